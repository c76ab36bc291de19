// SPDX-License-Identifier: Apache-2.0
// advance: rows are written. First what is known at once (totals, states to copy), then what may wait for an event:
// complete blocks become visible, and what no later token reads goes.
#include <algorithm>
#include <bit>

#include "cache/cache.h"
#include "cache/ticket.h"

namespace hkv {
namespace {

constexpr std::int64_t publish_ahead = 8;  // units whose lines of the table are on their way

}  // namespace

void HybridCache::check_advance(const Ticket& ticket, std::int64_t computed,
                                std::span<const std::int64_t> states) const {
  check_open(ticket);
  if (computed < ticket.advanced || computed > ticket.grown) {
    throw Error(ErrorCode::ArgumentError, "computed_tokens",
                "a total in [" + std::to_string(ticket.advanced) + ", " + std::to_string(ticket.grown) + "]",
                std::to_string(computed));
  }
  for (const std::int64_t length : states) {
    bool asked = length % layout_.unit_tokens == 0 && length > ticket.advanced && length <= computed;
    for (int g = 0; asked && g < store_.group_count(); ++g) {
      const Ticket::Hand& hand = ticket.hands[g];
      if (!hand.live_group || !keeps_state(ticket, g, length)) continue;
      asked = std::any_of(hand.states.begin(), hand.states.end(),
                          [&](const Ticket::State& state) { return state.tokens == length; });
    }
    if (!asked)
      throw Error(ErrorCode::ArgumentError, "states",
                  "lengths named in grow, in (" + std::to_string(ticket.advanced) + ", " +
                      std::to_string(computed) + "]",
                  std::to_string(length));
  }
}

// Requires: check_advance; the keys cover `computed` already.
void HybridCache::advance(Ticket& ticket, std::int64_t computed, std::span<const std::int64_t> states,
                          std::int64_t copies_room, bool settles) {
  ticket.step_copies.clear();
  // What was copied by an earlier advance has its bytes: its page makes room for the next one.
  if (settles) publish_states(ticket, ticket.advanced, ticket.advanced);
  const bool at_end = computed == ticket.grown && !ticket.rewound;
  if (computed > ticket.start_tokens) ticket.copies.clear();
  for (int g = 0; g < store_.group_count(); ++g) {
    Ticket::Hand& hand = ticket.hands[g];
    if (!hand.live_group) continue;
    for (Ticket::State& state : hand.states) {
      if (std::find(states.begin(), states.end(), state.tokens) != states.end())
        state.from = Ticket::State::From::Written;
    }
  }
  if (at_end && computed > ticket.advanced) copy_live_states(ticket, computed, copies_room);
  if (ticket.lease != nullptr && computed > ticket.start_tokens &&
      ticket.lease->settlement == Settlement::Open)
    settle(*ticket.lease, Settlement::Released);
  // A step without progress moves no state either: what was known of the live pages stays known.
  if (computed > ticket.advanced || ticket.rewound) ticket.live_at = at_end ? computed : -1;
  ticket.advanced = computed;
}

// Keeps the states at the total just reached, in pages of their own: the next step overwrites the live ones. A
// boundary is usable with the states of all groups, so that where the caller has no room for all, none is kept.
void HybridCache::copy_live_states(Ticket& ticket, std::int64_t computed, std::int64_t copies_room) {
  if (!ticket.keep.keeps(computed)) return;
  std::int64_t wanted = 0;
  for (int g = 0; g < store_.group_count(); ++g) wanted += wants_state(ticket, g, computed) ? 1 : 0;
  if (wanted > copies_room) return;
  for (int g = 0; g < store_.group_count(); ++g) {
    if (wants_state(ticket, g, computed)) copy_live_state(ticket, g, computed);
  }
}

bool HybridCache::wants_state(const Ticket& ticket, int group, std::int64_t computed) const {
  const Ticket::Hand& hand = ticket.hands[group];
  return hand.live_group && keeps_state(ticket, group, computed) &&
         std::none_of(hand.states.begin(), hand.states.end(),
                      [&](const Ticket::State& state) { return state.tokens == computed; });
}

void HybridCache::copy_live_state(Ticket& ticket, int group, std::int64_t computed) {
  Ticket::Hand& hand = ticket.hands[group];
  // A state that finds no page is not kept.
  if (hand.spare == no_page && (room_of(ticket, group) == 0 || !take_page(ticket, group, hand.spare))) return;
  hand.states.push_back({computed, hand.spare, Ticket::State::From::Copied});
  ticket.step_copies.push_back({group, hand.live, hand.spare, 0});
  hand.spare = no_page;
}

// What an advance to `upto` makes visible and gives up. States copied from the live page at lengths beyond
// `copied_upto` wait: their copy may not have run yet.
void HybridCache::settle_advance(Ticket& ticket, std::int64_t upto, std::int64_t copied_upto) {
  if (ticket.born != resets_) return;
  publish_blocks(ticket, upto);
  publish_states(ticket, upto, copied_upto);
  slide(ticket, upto);
  if (ticket.lease != nullptr && upto > ticket.start_tokens) slide_lease(ticket, upto);
  plan_events(ticket);
}

// ---- publishing --------------------------------------------------------------------------------

// Offers every complete block that has not been, unit by unit: of a unit the pages of B, then all of H at once.
void HybridCache::publish_blocks(Ticket& ticket, std::int64_t upto) {
  if (record_units_ == 0) return;  // no group has pages a block
  const std::int64_t end = upto / layout_.unit_tokens;
  std::int64_t unit = end;
  for (int g = 0; g < store_.group_count(); ++g) {
    const Ticket::Hand& hand = ticket.hands[g];
    if (!hand.live_group) unit = std::min(unit, (hand.next_publish + 1) * layout_.groups[g].block_units);
  }
  PublishRun run;
  for (; unit <= end; unit += record_units_) {
    if (unit + publish_ahead * record_units_ <= end)
      store_.table().prefetch(ticket.keys.key(unit + publish_ahead * record_units_ - 1));
    ClaimedUnit claimed{unit, {}};
    for (int g = 0; g < store_.group_count(); ++g) {
      Ticket::Hand& hand = ticket.hands[g];
      const std::int64_t block = hand.next_publish;
      if (hand.live_group || (block + 1) * layout_.groups[g].block_units != unit) continue;
      ++hand.next_publish;
      if (hand.blocks[static_cast<std::size_t>(block - hand.base)].hold != Ticket::Hold::Private) continue;
      const GroupSlot& at = store_.slot_of(g);
      SlotMask& mask = claimed.wanted[static_cast<int>(at.which)];
      mask = static_cast<SlotMask>(mask | 1u << at.slot);
    }
    if (ticket.failed || (claimed.wanted[0] | claimed.wanted[1]) == 0) continue;
    if (run.tick == 0) run.tick = store_.recency().next();
    claimed.key = ticket.keys.key(unit - 1);
    publish_unit(ticket, claimed, run);
  }
  count_published(run);
}

void HybridCache::count_published(const PublishRun& run) {
  if (run.published == 0) return;
  counters_.add(kPublished, run.published);
  for (int g = 0; g < store_.group_count(); ++g) {
    if (run.pages[g] != 0) private_pages_[g].fetch_sub(run.pages[g]);
  }
}

void HybridCache::publish_unit(Ticket& ticket, ClaimedUnit& claimed, PublishRun& run) {
  // The descriptor is looked up once for both words, as long as its life goes on.
  for (const WordClass which : {WordClass::B, WordClass::H}) {
    const SlotMask wanted = claimed.wanted[static_cast<int>(which)];
    claimed.which = which;
    bool lives = wanted == 0;
    while (!lives) {
      DescriptorId& id = claimed.id;
      if (id == no_descriptor && find_place(claimed.key, ticket.keys.has_tokens(), id) != Claim::Taken)
        return;
      claimed.mine = store_.claim_slots(id, claimed.key, which, wanted, lives);
      claimed.lost = static_cast<SlotMask>(wanted & ~claimed.mine);
      if (lives && claimed.mine != 0) {
        publish_claimed(ticket, claimed, run);
        continue;
      }
      if (lives) {
        counters_.add(kDuplicates, std::popcount(static_cast<unsigned>(wanted)));
        store_.table().erase_if_empty(id, claimed.key);
      }
      id = no_descriptor;
    }
  }
}

// Slots of Prefix groups that the ticket does not use: a pin of its own would hold what others filed there. (Of other
// groups its share has room for it from the start.)
SlotMask HybridCache::unused_slots(const Ticket& ticket, std::int64_t unit, WordClass which) const {
  SlotMask slots = 0;
  for (int g = 0; which == WordClass::H && g < store_.group_count(); ++g) {
    if (ticket.hands[g].used || !layout_.groups[g].prefix() || unit % layout_.groups[g].block_units != 0)
      continue;
    slots = static_cast<SlotMask>(slots | 1u << store_.slot_of(g).slot);
  }
  return slots;
}

// A pin is on a word: it would also hold the pages that others filed where the ticket's own stay private. May it,
// without taking from what other tickets were promised (alloc/admission.h, invariant 4)? If so, the ticket has
// room for them in its share.
bool HybridCache::widen_beside(Ticket& ticket, DescriptorId id, WordClass which, SlotMask& lost) {
  const Word now = store_[id].word(which);
  SlotMask widened = 0;
  for (int slot = 0; slot < Word::slots; ++slot) {
    // Of B a page filed there later is held too, and its taker may slide on while this pin stays.
    const bool history = which == WordClass::H;
    if (!(lost >> slot & 1) || (history && !now.usable_slot(slot))) continue;
    const int group = store_.group_at(which, slot);
    if (!admission_.widen(ticket.share, group, room_of(group), history && now.pins() != 0)) {
      narrow_beside(ticket, which, widened);
      return false;
    }
    widened = static_cast<SlotMask>(widened | 1u << slot);
  }
  lost = widened;
  return true;
}

void HybridCache::narrow_beside(Ticket& ticket, WordClass which, SlotMask widened) {
  for (int slot = 0; slot < Word::slots; ++slot) {
    if (widened >> slot & 1) admission_.narrow(ticket.share, store_.group_at(which, slot));
  }
}

// Claimed blocks stay private after all.
void HybridCache::abort_slots(DescriptorId id, Key128 key, WordClass which, SlotMask mine) {
  for (std::uint32_t bits = mine; bits != 0; bits &= bits - 1) {
    const int group = store_.group_at(which, std::countr_zero(bits));
    note_gone(key, group, Cause::Unpromised);
    store_.abort(id, key, group, true);
  }
}

// The ticket's own blocks among those claimed: of each group the one that was offered last.
template <class What>
void HybridCache::for_each_block(Ticket& ticket, const ClaimedUnit& claimed, What&& what) {
  for (std::uint32_t bits = claimed.mine; bits != 0; bits &= bits - 1) {
    const int group = store_.group_at(claimed.which, std::countr_zero(bits));
    Ticket::Hand& hand = ticket.hands[group];
    what(group, hand.blocks[static_cast<std::size_t>(hand.next_publish - 1 - hand.base)]);
  }
}

// Makes claimed blocks visible, pinned by the ticket from that moment on.
void HybridCache::publish_claimed(Ticket& ticket, const ClaimedUnit& claimed, PublishRun& run) {
  const auto& [unit, key, id, which, mine, lost, wanted] = claimed;
  const auto others = static_cast<SlotMask>(lost | unused_slots(ticket, unit, which));
  SlotMask beside = others;
  if (others != 0 && !widen_beside(ticket, id, which, beside)) {
    abort_slots(id, key, which, mine);
    return;
  }
  if (lost != 0)
    counters_.add(kDuplicates, std::popcount(static_cast<unsigned>(lost)));  // the first writer won
  for_each_block(ticket, claimed, [&](int group, Ticket::Block& block) {
    store_.file_page(id, group, block.page);
    describe_page(group, block.page, ticket.formats[group], 0);
  });
  link_unit(ticket, unit * layout_.unit_tokens, id);
  store_.note_held(id, wanted[static_cast<int>(WordClass::H)], wanted[static_cast<int>(WordClass::B)]);
  const auto count = static_cast<std::uint32_t>(std::popcount(static_cast<unsigned>(mine)));
  // What of history was not ready then and is now, nobody made room for.
  const auto late = static_cast<SlotMask>(which == WordClass::H ? others & ~beside : 0);
  if (!store_.publish_slots(id, which, mine, which == WordClass::H ? 1 : count, run.tick, late)) {
    narrow_beside(ticket, which, beside);
    abort_slots(id, key, which, mine);  // private still
    return;
  }
  for (int slot = 0; slot < Word::slots; ++slot) {
    if (!(beside >> slot & 1)) continue;
    const int group = store_.group_at(which, slot);
    if (which == WordClass::H) {
      admission_.took(ticket.share, group, 1);
    } else {
      ++ticket.hands[group].beside;
    }
  }
  for_each_block(ticket, claimed, [&](int group, Ticket::Block& block) {
    block.id = id;
    block.hold = Ticket::Hold::Published;
    ++run.pages[group];
  });
  if (which == WordClass::H) ticket.history.push_back(id);
  run.published += count;
}

// As place(), and where no descriptor is free, once more after one was made free.
HybridCache::Claim HybridCache::find_place(Key128 key, bool may_have_tips, DescriptorId& id) {
  const Claim placed = place(key, may_have_tips, id);
  if (placed != Claim::Full || make_room(descriptor_pool, 1 + store_.blocks() / 64) == 0) return placed;
  return place(key, may_have_tips, id);
}

// States that were in memory at their length, and have their bytes by now; the others that are passed go back.
void HybridCache::publish_states(Ticket& ticket, std::int64_t upto, std::int64_t copied_upto) {
  for (int g = 0; g < store_.group_count(); ++g) {
    Ticket::Hand& hand = ticket.hands[g];
    std::erase_if(hand.states, [&](Ticket::State& state) {
      using From = Ticket::State::From;
      if (state.tokens > (state.from == From::Copied ? copied_upto : upto)) return false;
      if (state.from != From::Asked && !ticket.failed) publish_state(ticket, g, state);
      give_page(ticket, g, state.page, false);
      return true;
    });
  }
}

// Publishes the page of a state; it is the cache's then, and not the ticket's any more.
void HybridCache::publish_state(Ticket& ticket, int group, Ticket::State& state) {
  const Key128 key = ticket.keys.key(state.tokens / layout_.unit_tokens - 1);
  if (publish_page(ticket, group, key, state.tokens, 0, state.page) == no_descriptor) return;
  state.page = no_page;
}

// Publishes one page of the ticket's without a pin. Returns: its descriptor, or no_descriptor where another was
// first or there is no place for it; the page is the ticket's still.
DescriptorId HybridCache::publish_page(Ticket& ticket, int group, Key128 key, std::int64_t tokens,
                                       std::uint32_t rows, PageId page) {
  const bool is_tip = tokens % layout_.unit_tokens != 0;
  bool lives = false;
  DescriptorId id = no_descriptor;
  while (!lives) {
    if (find_place(key, !is_tip && ticket.keys.has_tokens(), id) != Claim::Taken) return no_descriptor;
    if (store_.claim(id, key, group, page, lives)) break;
    if (!lives) continue;
    store_.table().erase_if_empty(id, key);
    counters_.add(kDuplicates, 1);
    return no_descriptor;
  }
  describe_page(group, page, ticket.formats[group], rows);
  link_unit(ticket, tokens, id);            // while the life cannot end
  admission_.gave(ticket.share, group, 1);  // before the page can be evicted: nobody finds it unpromised
  store_.publish(id, group);
  private_pages_[group].fetch_sub(1);
  counters_.add(kPublished, 1);
  return id;
}

// ---- sliding -----------------------------------------------------------------------------------

// Lets go of blocks that no token from `upto` on reads.
void HybridCache::slide(Ticket& ticket, std::int64_t upto) {
  UnpinRun run;
  for (int g = 0; g < store_.group_count(); ++g) {
    const Group& group = layout_.groups[g];
    if (ticket.hands[g].live_group || group.prefix()) continue;
    const std::int64_t block_tokens = layout_.block_tokens(group);
    slide_until(ticket, g,
                std::min(needed_blocks(group.coverage, block_tokens, upto).from, upto / block_tokens), run);
  }
  store_.count_unpins(run.change);
}

void HybridCache::slide_until(Ticket& ticket, int group, std::int64_t end, UnpinRun& run) {
  Ticket::Hand& hand = ticket.hands[group];
  if (hand.first_held >= end) return;
  // What is promised rises before what is free does (alloc/admission.h).
  admission_.gave(ticket.share, group, hand.published_in(hand.first_held, end));
  for (; hand.first_held < end; ++hand.first_held) slide_out(ticket, group, hand.first_held, run);
}

// What this ticket published goes for good where no boundary that is kept needs it; others' pins keep it.
void HybridCache::slide_out(Ticket& ticket, int group, std::int64_t block, UnpinRun& run) {
  const Group& g = layout_.groups[group];
  Ticket::Hand& hand = ticket.hands[group];
  Ticket::Block& own = hand.blocks[static_cast<std::size_t>(block - hand.base)];
  const bool retires = own.hold == Ticket::Hold::Published &&
                       !ticket.keep.keeps_block(g.coverage, layout_.block_tokens(g), block);
  const Key128 key = retires ? store_[own.id].key() : Key128{};
  let_go(ticket, group, own, false, run);
  if (!retires || !store_.evict(key, group)) return;
  note_gone(key, group, Cause::Expired);
  counters_.add(kRetired, 1);
}

// Requires: where the block is published, the share has given it already.
void HybridCache::let_go(Ticket& ticket, int group, Ticket::Block& block, bool quarantine, UnpinRun& run) {
  if (block.hold == Ticket::Hold::Published) {
    unpin(block.id, store_.slot_of(group).which, run);
  } else if (block.hold == Ticket::Hold::Private) {
    give_page(ticket, group, block.page, quarantine);
  }
  block = {};
}

void HybridCache::unpin(DescriptorId id, WordClass which, UnpinRun& run) {
  if (run.tick == 0) run.tick = store_.recency().next();
  store_.unpin(id, which, run.tick, run.change);
}

// The same for what the lease pinned. Its lists are in one order, blocks recorded at one unit under one pin.
void HybridCache::slide_lease(Ticket& ticket, std::int64_t upto) {
  Lease& lease = *ticket.lease;
  if (ticket.lease_due > upto && ticket.lease_due != Ticket::never) return;
  UnpinRun run;
  ticket.lease_due = Ticket::never;
  // History stays to the end.
  const auto history = std::count_if(lease.history.begin(), lease.history.end(),
                                     [](DescriptorId id) { return id != no_descriptor; });
  auto held = lease.held.begin(), held_kept = held;
  auto pin = lease.pins.begin() + history, pin_kept = pin;
  while (held != lease.held.end()) {
    const DescriptorId id = held->id;
    std::int64_t due = 0;
    auto next = held;
    for (; next != lease.held.end() && next->id == id; ++next)
      due = std::max(due, needed_until(ticket, *next));
    const bool stays = due > upto;
    if (stays) {
      ticket.lease_due = std::min(ticket.lease_due, due);
      held_kept = std::copy(held, next, held_kept);
    }
    for (; pin != lease.pins.end() && pin->id == id; ++pin) {
      if (stays) {
        *pin_kept++ = *pin;
      } else {
        unpin(id, pin->which, run);
      }
    }
    held = next;
  }
  store_.count_unpins(run.change);
  lease.pins.erase(pin_kept, lease.pins.end());
  lease.held.erase(held_kept, lease.held.end());
}

// Whether the page is of the block that the lease ends in.
bool HybridCache::is_partial(const Ticket& ticket, const Lease::Held& held) const {
  return (held.block + 1) * layout_.block_tokens(layout_.groups[held.group]) > ticket.start_tokens;
}

// The advanced total from which on nobody reads a page that the lease holds.
std::int64_t HybridCache::needed_until(const Ticket& ticket, const Lease::Held& held) const {
  const Group& group = layout_.groups[held.group];
  const std::int64_t block_tokens = layout_.block_tokens(group);
  // A state and a partial page were copied before the first step.
  if (ticket.hands[held.group].live_group || is_partial(ticket, held)) return ticket.start_tokens + 1;
  return slides_out_at(group.coverage, block_tokens, held.block);
}

}  // namespace hkv
