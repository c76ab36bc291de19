// SPDX-License-Identifier: Apache-2.0
// grow and rewind: pages for the tokens of a step to come, and giving back those of rejected drafts.
#include <algorithm>

#include "base/yield.h"
#include "cache/cache.h"
#include "cache/ticket.h"
#include "layout/residency.h"

namespace hkv {
namespace {

bool asked_for(const Ticket& ticket, std::int64_t length) {
  for (const Ticket::Hand& hand : ticket.hands) {
    for (const Ticket::State& state : hand.states) {
      if (state.tokens == length) return true;
    }
  }
  return false;
}

bool wants_spare(const Ticket::Hand& hand) {
  return hand.keeps_states && hand.spare == no_page &&
         std::none_of(hand.states.begin(), hand.states.end(),
                      [](const Ticket::State& state) { return state.from == Ticket::State::From::Copied; });
}

}  // namespace

void HybridCache::check_open(const Ticket& ticket) const {
  if (ticket.closed || ticket.failed || ticket.born != resets_)
    throw Error(ErrorCode::Closed, "ticket", "a ticket neither closed nor failed", "one that was");
}

bool HybridCache::keeps_state(const Ticket& ticket, int group, std::int64_t tokens) const {
  const std::int64_t block_tokens = layout_.block_tokens(layout_.groups[group]);
  return ticket.hands[group].used && tokens > 0 && tokens % block_tokens == 0 && needs_page(group, tokens);
}

// Pages that grow would take of a group. A live group's spare is taken back once the state that the last one kept
// is visible: until then the ticket has no right to another.
std::int64_t HybridCache::pages_to_grow(const Ticket& ticket, int group, std::int64_t grown,
                                        std::span<const std::int64_t> states) const {
  const Ticket::Hand& hand = ticket.hands[group];
  if (!hand.live_group) {
    const std::int64_t end = blocks_for(grown, layout_.block_tokens(layout_.groups[group]));
    return std::max<std::int64_t>(0, end - hand.next_grow);
  }
  std::int64_t pages = wants_spare(hand) ? 1 : 0;
  for (const std::int64_t length : states) pages += keeps_state(ticket, group, length) ? 1 : 0;
  return pages;
}

void HybridCache::grow(Ticket& ticket, std::int64_t tokens, std::span<const std::int64_t> states) {
  check_open(ticket);
  const std::int64_t grown = ticket.grown + tokens;
  if (tokens > ticket.max_tokens - ticket.grown)
    throw OutOfPagesError("max_tokens", ticket.grown + tokens, ticket.max_tokens);
  if (!in_flight_fits(ticket, grown, ticket.advanced)) {
    throw Error(ErrorCode::ArgumentError, "tokens",
                "at most " + std::to_string(admission_.limits().step_tokens) + " tokens in flight",
                std::to_string(grown - ticket.advanced));
  }
  for (const std::int64_t length : states) {
    if (length <= ticket.advanced || length > grown || length % layout_.unit_tokens != 0 ||
        asked_for(ticket, length))
      throw Error(ErrorCode::ArgumentError, "states",
                  "lengths not asked for before, multiples of the unit, in (" +
                      std::to_string(ticket.advanced) + ", " + std::to_string(grown) + "]",
                  std::to_string(length));
  }
  if (states.empty() && grown <= ticket.pages_until) {
    note_grown(ticket, grown);
    return;
  }
  const int short_of = try_grow(ticket, grown, states);
  if (short_of >= 0) {
    throw OutOfPagesError(layout_.groups[short_of].name, pages_to_grow(ticket, short_of, grown, states),
                          std::min(room(short_of), room_of(ticket, short_of)));
  }
}

// Worst cases were counted for so many tokens in flight.
bool HybridCache::in_flight_fits(const Ticket& ticket, std::int64_t grown, std::int64_t advanced) const {
  const std::int64_t most = admission_.limits().step_tokens;
  return most == 0 || grown - advanced <= std::min(most, ticket.max_tokens);
}

// Whether so many pages are free or can be evicted. A page on its way from the one to the other may be seen in
// neither: whoever was promised it looks again.
bool HybridCache::is_room(int group, std::int64_t pages) const {
  constexpr int looks = 64;
  for (int look = 0; look < looks; ++look) {
    if (pages <= room(group)) return true;
    yield();
  }
  return false;
}

// Returns: -1, or the group whose pages were not enough; nothing has changed then.
int HybridCache::try_grow(Ticket& ticket, std::int64_t grown, std::span<const std::int64_t> states) {
  const int groups = store_.group_count();
  for (int g = 0; g < groups; ++g) {  // nothing is evicted for a request that would not fit then
    const std::int64_t pages = pages_to_grow(ticket, g, grown, states);
    if (pages > 0 && (pages > room_of(ticket, g) || !is_room(g, pages))) return g;
  }
  const std::int64_t before = ticket.grown;
  ticket.spares_taken = 0;
  for (int g = 0; g < groups; ++g) {
    if (!grow_group(ticket, g, grown, states)) {
      for (int undone = g; undone-- > 0;) shrink_group(ticket, undone, before, states);
      return g;
    }
  }
  for (int g = 0; g < groups; ++g) copy_shared_block(ticket, g);
  note_grown(ticket, grown);
  note_width(ticket);
  if (ticket.eager >= 0 && !ticket.eager_counted) {
    ticket.eager_counted = true;
    counters_.add(kEager + static_cast<int>(EagerReason::Width), 1);
  }
  plan_events(ticket);
  return -1;
}

void HybridCache::note_grown(Ticket& ticket, std::int64_t grown) {
  if (grown == ticket.grown) return;
  ticket.live_at = -1;     // the step to come moves the live state on,
  ticket.rewound = false;  // from where what was taken back had left it right
  ticket.grown = grown;
}

// Takes a group's pages, all or none. Returns: whether they could be had.
bool HybridCache::grow_group(Ticket& ticket, int group, std::int64_t grown,
                             std::span<const std::int64_t> states) {
  Ticket::Hand& hand = ticket.hands[group];
  if (!hand.live_group)
    return take_blocks(ticket, group, blocks_for(grown, layout_.block_tokens(layout_.groups[group])));
  const bool had_spare = !wants_spare(hand);
  const auto had = hand.states.size();
  bool enough = had_spare || take_page(ticket, group, hand.spare);
  if (!had_spare && enough) ticket.spares_taken |= 1u << group;
  for (const std::int64_t length : states) {
    PageId page = no_page;
    if (!enough || !keeps_state(ticket, group, length)) continue;
    enough = take_page(ticket, group, page);
    if (enough) hand.states.push_back({length, page, Ticket::State::From::Asked});
  }
  if (enough) return true;
  while (hand.states.size() > had) {
    give_page(ticket, group, hand.states.back().page, false);
    hand.states.pop_back();
  }
  if (!had_spare) give_page(ticket, group, hand.spare, false);
  return false;
}

// Undoes grow_group for a grow that failed in a later group.
void HybridCache::shrink_group(Ticket& ticket, int group, std::int64_t grown,
                               std::span<const std::int64_t> states) {
  Ticket::Hand& hand = ticket.hands[group];
  if (!hand.live_group) {
    drop_blocks(ticket, group, grown, false);
    return;
  }
  for (const std::int64_t length : states) {
    if (!keeps_state(ticket, group, length)) continue;
    give_page(ticket, group, hand.states.back().page, false);
    hand.states.pop_back();
  }
  if (ticket.spares_taken >> group & 1) give_page(ticket, group, hand.spare, false);
}

// Takes the pages beyond a total away from the ticket; parked: they go back later.
void HybridCache::drop_blocks(Ticket& ticket, int group, std::int64_t grown, bool park) {
  Ticket::Hand& hand = ticket.hands[group];
  const std::int64_t kept = blocks_for(grown, layout_.block_tokens(layout_.groups[group]));
  // A block that a lease shares may have no own page yet, and what slid out is not there any more.
  while (hand.next_grow > std::max(kept, hand.base)) {
    Ticket::Block& block = hand.blocks.back();
    HKV_CHECK(block.hold == Ticket::Hold::Private);
    if (park) {
      ticket.parked.push_back({group, block.page});
    } else {
      give_page(ticket, group, block.page, false);
    }
    hand.blocks.pop_back();
    --hand.next_grow;
  }
}

// A request that starts inside a shared page writes into its own page of that block, after a copy.
void HybridCache::copy_shared_block(Ticket& ticket, int group) {
  Ticket::Hand& hand = ticket.hands[group];
  const Group& g = layout_.groups[group];
  const std::int64_t block = ticket.start_tokens / layout_.block_tokens(g);
  if (hand.live_group || ticket.lease == nullptr || ticket.advanced > ticket.start_tokens ||
      hand.next_grow <= block || ticket.start_tokens % layout_.block_tokens(g) == 0)
    return;
  for (const PageCopy& copy : ticket.copies) {
    if (copy.group == group) return;
  }
  for (const Lease::Held& held : ticket.lease->held) {
    if (held.group != group || held.block != block) continue;
    const PageId source = store_.page(held.id, group);
    const auto rows = static_cast<std::int32_t>(store_.pool(group)[source].attested_rows.load());
    ticket.copies.push_back(
        {group, source, hand.blocks[static_cast<std::size_t>(block - hand.base)].page, rows});
  }
}

std::size_t HybridCache::rewind(Ticket& ticket, std::int64_t tokens) {
  check_open(ticket);
  if (tokens > ticket.grown - ticket.advanced) {
    throw Error(ErrorCode::Busy, "tokens",
                "at most " + std::to_string(ticket.grown - ticket.advanced) + " tokens not yet advanced",
                std::to_string(tokens));
  }
  if (tokens == 0) return 0;
  const std::int64_t grown = ticket.grown - tokens;
  const auto before = ticket.parked.size();
  for (int g = 0; g < store_.group_count(); ++g) {
    Ticket::Hand& hand = ticket.hands[g];
    if (!hand.live_group) {
      drop_blocks(ticket, g, grown, true);
      const std::int64_t kept = hand.base + static_cast<std::int64_t>(hand.blocks.size());
      std::erase_if(ticket.copies, [&](const PageCopy& copy) {
        return copy.group == g && ticket.start_tokens / layout_.block_tokens(layout_.groups[g]) >= kept;
      });
      continue;
    }
    std::erase_if(hand.states, [&](const Ticket::State& state) {
      if (state.tokens <= grown) return false;
      ticket.parked.push_back({g, state.page});
      return true;
    });
  }
  ticket.grown = grown;
  ticket.rewound = true;
  ticket.live_at = -1;
  note_width(ticket);
  plan_events(ticket);
  return ticket.parked.size() - before;
}

void HybridCache::give_back_parked(Ticket& ticket, std::size_t count) {
  HKV_CHECK(count <= ticket.parked.size());
  for (std::size_t i = 0; i < count; ++i)
    give_page(ticket, ticket.parked[i].group, ticket.parked[i].page, false);
  ticket.parked.erase(ticket.parked.begin(), ticket.parked.begin() + static_cast<std::ptrdiff_t>(count));
}

// ---- captured graphs ---------------------------------------------------------------------------

void HybridCache::set_graph_widths(std::span<const std::int64_t> widths) {
  for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
    const Group& group = layout_.groups[g];
    if (widths[g] != 0 && is_live_group(group, layout_.block_tokens(group)))
      throw Error(ErrorCode::ArgumentError, "widths[" + group.name + "]",
                  "a group with a page for each block", "one with a live page");
  }
  for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
    const std::int64_t block_tokens = layout_.block_tokens(layout_.groups[g]);
    const bool any = widths[g] == 0 || widths[g] > Ticket::never / block_tokens;
    graph_tokens_[g] = any ? Ticket::never : widths[g] * block_tokens;
  }
  tickets_.each([this](Ticket& ticket) {
    note_width(ticket);
    plan_events(ticket);
  });
}

// Whether the ticket's tables fit the captured ones, after its total or the widths moved. A total moves past a width only
// where a block begins, and so where a page is taken: a grow that needs none passes none.
void HybridCache::note_width(Ticket& ticket) const {
  ticket.eager = -1;
  for (int g = store_.group_count(); g-- > 0;) {
    if (!ticket.hands[g].live_group && ticket.grown > graph_tokens_[g]) ticket.eager = g;
  }
  if (ticket.eager < 0) ticket.eager_counted = false;
}

// When the ticket must be looked at again: most steps of decoding pass no boundary of anything.
void HybridCache::plan_events(Ticket& ticket) const {
  std::int64_t due = Ticket::never, pages_until = ticket.max_tokens;
  for (int g = 0; g < store_.group_count(); ++g) {
    const Group& group = layout_.groups[g];
    const Ticket::Hand& hand = ticket.hands[g];
    const std::int64_t block_tokens = layout_.block_tokens(group);
    due = std::min(due, (ticket.advanced / block_tokens + 1) * block_tokens);
    if (hand.live_group) {
      if (wants_spare(hand)) pages_until = -1;
      if (!hand.states.empty()) due = ticket.advanced + 1;
      continue;
    }
    pages_until = std::min(pages_until, hand.next_grow * block_tokens);
    if (!group.prefix() && hand.first_held < hand.next_grow)
      due = std::min(due, slides_out_at(group.coverage, block_tokens, hand.first_held));
  }
  if (ticket.lease != nullptr)
    due = std::min(due, ticket.advanced == ticket.start_tokens ? ticket.advanced + 1 : ticket.lease_due);
  // Keys are made where a unit closes.
  due = std::min(due, (ticket.advanced / layout_.unit_tokens + 1) * layout_.unit_tokens);
  ticket.next_event = due;
  // What became too wide without growing, at a lease or by other widths, is counted by the next grow.
  ticket.pages_until = ticket.eager >= 0 && !ticket.eager_counted ? -1 : pages_until;
}

}  // namespace hkv
