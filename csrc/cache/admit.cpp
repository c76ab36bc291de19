// SPDX-License-Identifier: Apache-2.0
// admit: the right to memory, and what a ticket holds from its first moment.
#include <algorithm>
#include <array>

#include "cache/cache.h"
#include "cache/ticket.h"
#include "layout/residency.h"

namespace hkv {
namespace {

// A request may be let grow to a length that it never comes near.
constexpr std::int64_t most_reserved_blocks = std::int64_t{1} << 20;

}  // namespace

std::vector<AdmissionLedger::Room> HybridCache::rooms() const {
  std::vector<AdmissionLedger::Room> rooms;
  for (int g = 0; g < store_.group_count(); ++g) rooms.push_back(room_of(g));
  return rooms;
}

AdmissionLedger::Room HybridCache::room_of(int group) const {
  AdmissionLedger::Room r;
  r.takes = admission_.takes(group);  // before the rest: it bounds what moved meanwhile
  r.capacity = static_cast<std::int64_t>(store_.pool(group).count()) - quarantined_pages_[group].load();
  r.free_and_evictable = room(group);
  r.unowned = unowned_pages_[group].load();
  return r;
}

// Pages of a group that are free, or cached, held by nobody, and may go.
std::int64_t HybridCache::room(int group) const {
  const std::int64_t cached = policy_ == nullptr ? 0 : std::max<std::int64_t>(store_.evictable(group), 0);
  return static_cast<std::int64_t>(store_.pool(group).free_count()) + cached;
}

std::unique_ptr<Ticket> HybridCache::admit(const AdmitQuestion& question, NotAdmitted& refused) {
  const std::int64_t start = question.lease == nullptr ? 0 : question.lease->tokens;
  if (question.max_tokens <= start) {
    throw Error(ErrorCode::ArgumentError, "max_tokens", "more than the lease's " + std::to_string(start),
                std::to_string(question.max_tokens));
  }
  auto ticket = std::make_unique<Ticket>(question.start, start, question.max_tokens);
  ticket->formats.assign(question.formats.begin(), question.formats.end());
  const std::vector<std::int64_t> extra = extra_pages(question);
  const AdmissionLedger::Demand demand{question.max_tokens, start, question.states, extra, question.groups};
  if (question.lease != nullptr) disown(*question.lease);  // its pins are the request's, not nobody's
  refused.reason = admission_.admit(ticket->share, demand, rooms(), refused.group);
  if (refused.reason == Refusal::None && !take_first_pages(*ticket, question)) {
    admission_.end(ticket->share);
    refused.reason = Refusal::Pages;
  }
  if (refused.reason != Refusal::None) {
    refuse(question, refused);
    return nullptr;
  }
  try {
    ticket->keys.reserve();
    ticket->handle = tickets_.add(ticket.get());
  } catch (...) {  // no memory, or too many tickets: nothing has changed
    give_up_pages(*ticket, false);
    admission_.end(ticket->share);
    if (question.lease != nullptr) own(*question.lease);
    throw;
  }
  ticket->lease = question.lease;
  ticket->keep = question.keep;
  ticket->born = resets_;
  note_width(*ticket);
  plan_events(*ticket);
  return ticket;
}

// Whoever is refused holds nothing while it waits.
void HybridCache::refuse(const AdmitQuestion& question, NotAdmitted& refused) {
  if (question.lease != nullptr) {
    settle(*question.lease, Settlement::Withdrawn);
    if (question.lease_waits) {
      own(*question.lease);
    } else {
      question.lease->drop(store_);
    }
    int group = -1;
    AdmitQuestion without = question;
    without.lease = nullptr;
    const std::vector<std::int64_t> extra = extra_pages(without);
    const AdmissionLedger::Demand alone{question.max_tokens, 0, question.states, extra, question.groups};
    if (refused.reason == Refusal::Pages && admission_.judge(alone, rooms(), group) == Refusal::None)
      refused.reason = Refusal::Lease;
  }
  counters_.add(kNotAdmitted + static_cast<int>(refused.reason), 1);
}

// A lease that no ticket has taken over counts as held by nobody who could finish for it. Its pins are on words: with
// the pages that it needs they hold those of every group that records a block at the same unit.
void HybridCache::count_unowned(const Lease& lease, int by) {
  const auto pinned = pinned_pages(lease);
  for (int g = 0; g < store_.group_count(); ++g) {
    if (pinned[static_cast<std::size_t>(g)] != 0)
      unowned_pages_[g].fetch_add(by * pinned[static_cast<std::size_t>(g)]);
  }
}

std::array<std::int64_t, AdmissionLedger::most_groups> HybridCache::pinned_pages(const Lease& lease) const {
  std::array<std::int64_t, AdmissionLedger::most_groups> pages{};
  DescriptorId last = no_descriptor;
  for (const Lease::Held& held : lease.held) {
    const Group& group = layout_.groups[held.group];
    const std::int64_t unit = (held.block + 1) * group.block_units;
    if (unit * layout_.unit_tokens > lease.tokens) {  // a tip's partial page
      ++pages[static_cast<std::size_t>(held.group)];
      continue;
    }
    if (held.id == last) continue;
    last = held.id;
    for (std::size_t g = 0; g < layout_.groups.size(); ++g)
      pages[g] += !layout_.groups[g].prefix() && unit % layout_.groups[g].block_units == 0 ? 1 : 0;
  }
  return pages;
}

// Pages of a group that the ticket may take now. A share has room for what pins hold beside what was taken; a request
// never comes near it by itself, but what its fills take would use it up.
std::int64_t HybridCache::room_of(const Ticket& ticket, int group, std::int64_t in_fills) const {
  const std::int64_t room = AdmissionLedger::room(ticket.share, group);
  if (in_fills == 0 || layout_.groups[group].prefix()) return room;
  const RequestLengths lengths{ticket.max_tokens, ticket.start_tokens, admission_.limits().step_tokens, 0};
  const std::int64_t leased =
      ticket.lease == nullptr ? 0 : pinned_pages(*ticket.lease)[static_cast<std::size_t>(group)];
  const std::int64_t pinned = leased + neighbour_pages(layout_, group, lengths) + ticket.hands[group].beside;
  return std::max<std::int64_t>(room - pinned, 0);
}

std::int64_t HybridCache::room_of(const Ticket& ticket, int group) const {
  return room_of(ticket, group,
                 ticket.fills == nullptr ? 0 : ticket.fills->pages[static_cast<std::size_t>(group)]);
}

void HybridCache::own(Lease& lease) {
  lease.unowned = true;
  count_unowned(lease, 1);
}

void HybridCache::disown(Lease& lease) {
  if (!lease.unowned) return;
  lease.unowned = false;
  count_unowned(lease, -1);
}

// What a request needs beyond its worst case (residency.h): pages that its lease pins until it has gone on, and
// the blocks that are computed again instead of read; of a group that it does not use, what pins for the sake of others
// hold there.
std::vector<std::int64_t> HybridCache::extra_pages(const AdmitQuestion& question) const {
  std::vector<std::int64_t> extra(layout_.groups.size(), 0);
  const auto used = [&](int g) { return (question.groups >> g & 1) != 0; };
  const std::int64_t start = question.lease == nullptr ? 0 : question.lease->tokens;
  const RequestLengths lengths{question.max_tokens, start, admission_.limits().step_tokens, question.states};
  for (int g = 0; g < store_.group_count(); ++g) {
    if (used(g)) continue;
    extra[g] = neighbour_pages(layout_, g, lengths);
    if (question.lease != nullptr && !layout_.groups[g].prefix())
      extra[g] += pinned_pages(*question.lease)[static_cast<std::size_t>(g)];
  }
  if (question.lease == nullptr) return extra;
  const Lease& lease = *question.lease;
  for (const Lease::Held& held : lease.held) {
    const Group& group = layout_.groups[held.group];
    if (used(held.group) && is_live_group(group, layout_.block_tokens(group))) ++extra[held.group];
  }
  for (int g = 0; g < store_.group_count(); ++g) {
    if (used(g) && (lease.replayed >> g & 1) != 0)
      extra[g] += replayed_blocks(g, lease).to - replayed_blocks(g, lease).from;
  }
  return extra;
}

// Own blocks of a replayed group that are computed again so that a resume at the lease's length is exact.
BlockSpan HybridCache::replayed_blocks(int group, const Lease& lease) const {
  const Group& g = layout_.groups[group];
  const std::int64_t block_tokens = layout_.block_tokens(g);
  const BlockSpan none{lease.tokens / block_tokens, lease.tokens / block_tokens};
  if (is_live_group(g, block_tokens)) return none;
  return {lease.resume_tokens / block_tokens, blocks_for(lease.tokens, block_tokens)};
}

bool HybridCache::take_first_pages(Ticket& ticket, const AdmitQuestion& question) {
  const Lease* const lease = question.lease;
  const RequestLengths lengths{question.max_tokens, ticket.start_tokens, 0, question.states};
  ticket.hands.resize(layout_.groups.size());
  bool enough = true;
  for (int g = 0; g < store_.group_count(); ++g) {
    const Group& group = layout_.groups[g];
    const std::int64_t block_tokens = layout_.block_tokens(group);
    Ticket::Hand& hand = ticket.hands[g];
    hand.used = (question.groups >> g & 1) != 0;
    hand.live_group = !hand.used || is_live_group(group, block_tokens);
    if (!hand.used) continue;
    if (hand.live_group) {
      hand.keeps_states = hkv::keeps_states(group, block_tokens, lengths);
      enough = enough && take_page(ticket, g, hand.live);
      if (hand.keeps_states) enough = enough && take_page(ticket, g, hand.spare);
      continue;
    }
    hand.base = hand.next_publish = hand.next_grow = ticket.start_tokens / block_tokens;
    const bool replayed = lease != nullptr && (lease->replayed >> g & 1) != 0;
    if (replayed) {
      hand.base = std::min(hand.base, replayed_blocks(g, *lease).from);
      hand.next_grow = hand.base;
    }
    hand.first_held = hand.base;
    hand.blocks.reserve(static_cast<std::size_t>(
        std::min(blocks_for(ticket.max_tokens, block_tokens) - hand.base, most_reserved_blocks)));
    if (replayed)  // what is computed again has its pages now, so that it can always go on
      enough = enough && take_blocks(ticket, g, blocks_for(ticket.start_tokens, block_tokens));
  }
  if (!enough) {
    give_up_pages(ticket, false);
    return false;
  }
  if (lease != nullptr) copy_leased_states(ticket, *lease);
  return true;
}

// The state a request starts from is somebody else's page too: it goes on in the live page.
void HybridCache::copy_leased_states(Ticket& ticket, const Lease& lease) {
  for (const Lease::Held& held : lease.held) {
    const Ticket::Hand& hand = ticket.hands[held.group];
    if (!hand.live_group || !hand.used) continue;
    const PageId source = store_.page(held.id, held.group);
    const auto rows = static_cast<std::int32_t>(store_.pool(held.group)[source].attested_rows.load());
    ticket.copies.push_back({held.group, source, hand.live, rows});
  }
}

// ---- pages -------------------------------------------------------------------------------------

// Takes one page for the ticket, evicting where the pool is short. Returns: whether it could be had.
bool HybridCache::take_page(Ticket& ticket, int group, PageId& page) {
  if (take_some(group, {&page, 1}) == 0) return false;
  private_pages_[group].fetch_add(1);
  admission_.took(ticket.share, group, 1);
  return true;
}

// Takes pages for the blocks below `end` that have none yet, all or none. Returns: whether they could be had.
bool HybridCache::take_blocks(Ticket& ticket, int group, std::int64_t end) {
  Ticket::Hand& hand = ticket.hands[group];
  const auto had = hand.blocks.size();
  const auto wanted = static_cast<std::size_t>(std::max<std::int64_t>(0, end - hand.next_grow));
  std::array<PageId, 64> some;
  std::size_t taken = 0, n = 1;
  while (taken < wanted && n > 0) {
    n = take_some(group, std::span(some).first(std::min(some.size(), wanted - taken)));
    for (std::size_t i = 0; i < n; ++i)
      hand.blocks.push_back({some[i], no_descriptor, Ticket::Hold::Private});
    taken += n;
  }
  if (taken < wanted) {
    for (std::size_t i = had; i < hand.blocks.size(); ++i) store_.pool(group).give_back(hand.blocks[i].page);
    hand.blocks.resize(had);
    return false;
  }
  private_pages_[group].fetch_add(static_cast<std::int64_t>(taken));
  admission_.took(ticket.share, group, static_cast<std::int64_t>(taken));
  hand.next_grow = std::max(hand.next_grow, end);
  return true;
}

void HybridCache::give_page(Ticket& ticket, int group, PageId& page, bool quarantine) {
  if (page == no_page) return;
  private_pages_[group].fetch_sub(1);
  admission_.gave(ticket.share, group, 1);
  if (quarantine) {
    quarantined_pages_[group].fetch_add(1);
    counters_.add(kQuarantined, 1);
  } else {
    store_.pool(group).give_back(page);
  }
  page = no_page;
}

}  // namespace hkv
