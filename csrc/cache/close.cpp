// SPDX-License-Identifier: Apache-2.0
// The end of a ticket: what may still be published is, and everything it held goes back.
#include <algorithm>

#include "cache/cache.h"
#include "cache/ticket.h"

namespace hkv {

// The continuation did not work: nothing more of this request is published.
void HybridCache::fail(Ticket& ticket, int kind) {
  check_open(ticket);
  ticket.failed = true;
  if (ticket.lease != nullptr && ticket.lease->settlement == Settlement::Open)
    settle(*ticket.lease, Settlement::Failed, kind);
}

// Nothing more can be asked of the ticket. What it holds goes with end().
void HybridCache::close(Ticket& ticket) {
  if (ticket.closed) throw Error(ErrorCode::Closed, "ticket", "an open ticket", "a closed one");
  ticket.closed = true;
  tickets_.remove(ticket.handle);
  if (ticket.lease != nullptr && ticket.lease->settlement == Settlement::Open)
    settle(*ticket.lease, Settlement::Withdrawn);
}

void HybridCache::withhold(Ticket& ticket) {
  if (!ticket.ended) ticket.failed = true;
}

// Requires: closed, once. quarantine: a ticket lost by its owner, whose pages may still be written.
void HybridCache::end(Ticket& ticket, bool keep_tip, bool quarantine) {
  HKV_CHECK(ticket.closed && !ticket.ended);
  ticket.ended = true;
  if (ticket.born == resets_) {  // else a reset took every page back
    if (quarantine) {
      ticket.failed = true;
    } else {
      publish_blocks(ticket, ticket.advanced);
      publish_states(ticket, ticket.advanced, ticket.advanced);
      if (!ticket.failed) publish_end(ticket, keep_tip);
      if (!ticket.keep.all && !ticket.keep.output_end) slide_all(ticket);
    }
    give_up_pages(ticket, quarantine);
    let_history_go(ticket);
    if (ticket.lease != nullptr) ticket.lease->drop(store_);
  }
  ticket.lease = nullptr;
  leave_fills(ticket);
  admission_.end(ticket.share);
}

// What its fills hold is nobody's from now on. Counted as such before the share ends, so that no reader finds it in
// neither count.
void HybridCache::leave_fills(Ticket& ticket) {
  if (ticket.fills == nullptr) return;
  for (int g = 0; ticket.born == resets_ && g < store_.group_count(); ++g)
    unowned_pages_[g].fetch_add(ticket.fills->pages[static_cast<std::size_t>(g)]);
  ticket.fills->share = nullptr;
}

// One use of all that it published; what continues nothing counts as older (recency.h).
void HybridCache::let_history_go(Ticket& ticket) {
  if (ticket.history.empty()) return;
  UnpinRun run;
  for (auto id = ticket.history.rbegin(); id != ticket.history.rend(); ++id) {
    if (ticket.history.rend() - id > Lease::unpin_ahead) store_.prefetch_unpin(*(id + Lease::unpin_ahead));
    unpin(*id, WordClass::H, run);
  }
  store_.count_unpins(run.change);
  ticket.history.clear();
}

// The end of the request is no boundary that is kept: its windows go, but for what others need.
void HybridCache::slide_all(Ticket& ticket) {
  UnpinRun run;
  for (int g = 0; g < store_.group_count(); ++g) {
    const Ticket::Hand& hand = ticket.hands[g];
    if (hand.live_group || layout_.groups[g].prefix()) continue;
    slide_until(ticket, g, hand.next_grow, run);
  }
  store_.count_unpins(run.change);
}

// The state at the end. The live page itself can keep it, since no step writes it any more.
void HybridCache::publish_end(Ticket& ticket, bool keep_tip) {
  const std::int64_t rest = ticket.advanced % layout_.unit_tokens;
  if (ticket.advanced == ticket.start_tokens) return;  // all of it was there before
  if (rest != 0) {
    if (keep_tip) publish_tip(ticket);
    return;
  }
  if (ticket.live_at != ticket.advanced || !(ticket.keep.output_end || ticket.keep.keeps(ticket.advanced)))
    return;
  for (int g = 0; g < store_.group_count(); ++g) {
    Ticket::Hand& hand = ticket.hands[g];
    if (!hand.live_group || !keeps_state(ticket, g, ticket.advanced)) continue;
    const Key128 key = ticket.keys.key(ticket.advanced / layout_.unit_tokens - 1);
    if (publish_page(ticket, g, key, ticket.advanced, 0, hand.live) != no_descriptor) hand.live = no_page;
  }
}

// The partial last unit: usable only where every group attests it, so that it is all or nothing.
void HybridCache::publish_tip(Ticket& ticket) {
  if (!ticket.keys.has_tokens()) return;
  for (int g = 0; g < store_.group_count(); ++g) {
    if (tip_page(ticket, g) == nullptr && needs_page(g, ticket.advanced) && !layout_.groups[g].rebuildable)
      return;
  }
  const Key128 key = ticket.keys.tip_key();
  const std::int64_t unit = ticket.advanced / layout_.unit_tokens;
  make_directory_room(ticket.keys.parent_key(unit), 1);
  DescriptorId tip = no_descriptor;
  for (const WordClass which : {WordClass::B, WordClass::H}) {
    for (int g = 0; g < store_.group_count(); ++g) {
      PageId* const page = tip_page(ticket, g);
      if (store_.slot_of(g).which != which || page == nullptr || !needs_page(g, ticket.advanced)) continue;
      const DescriptorId id =
          publish_page(ticket, g, key, ticket.advanced, rows_in_tip(g, ticket.advanced), *page);
      if (id == no_descriptor) continue;
      tip = id;
      *page = no_page;  // the cache's now
    }
  }
  if (tip != no_descriptor) file_tip(ticket.keys.parent_key(unit), tip);
}

// The page that holds a group's rows, or state, of the partial last unit; nullptr where there is none.
PageId* HybridCache::tip_page(Ticket& ticket, int group) {
  Ticket::Hand& hand = ticket.hands[group];
  if (hand.live_group) return hand.used && ticket.live_at == ticket.advanced ? &hand.live : nullptr;
  const std::int64_t block = ticket.advanced / layout_.block_tokens(layout_.groups[group]);
  // Pages grown beyond the end were given back or hold nothing: the last one that matters is this block's.
  if (block < hand.first_held || block >= hand.next_grow) return nullptr;
  Ticket::Block& own = hand.blocks[static_cast<std::size_t>(block - hand.base)];
  return own.hold == Ticket::Hold::Private ? &own.page : nullptr;
}

void HybridCache::give_up_pages(Ticket& ticket, bool quarantine) {
  UnpinRun run;
  for (int g = store_.group_count(); g-- > 0;) {
    Ticket::Hand& hand = ticket.hands[g];
    const bool published_alone = !layout_.groups[g].prefix();
    if (published_alone)
      admission_.gave(ticket.share, g, hand.published_in(hand.base, hand.base + std::ssize(hand.blocks)));

    for (auto block = hand.blocks.rbegin(); block != hand.blocks.rend(); ++block) {
      // A block of H goes with the pin of its descriptor, which the ticket drops once for all its groups.
      if (block->hold == Ticket::Hold::Published && !published_alone) {
        *block = {};
        continue;
      }
      let_go(ticket, g, *block, quarantine, run);
    }
    for (Ticket::State& state : hand.states) give_page(ticket, g, state.page, quarantine);
    hand.states.clear();
    give_page(ticket, g, hand.live, quarantine);
    give_page(ticket, g, hand.spare, quarantine);
  }
  store_.count_unpins(run.change);
  for (Ticket::Parked& parked : ticket.parked) give_page(ticket, parked.group, parked.page, quarantine);
  ticket.parked.clear();
}

}  // namespace hkv
