// SPDX-License-Identifier: Apache-2.0
// Pinning what a resume at a length needs, all or none, and verifying content under the pin.
#include <algorithm>

#include "cache/cache.h"
#include "reuse/checks.h"

namespace hkv {
namespace {

// A sampled check reads at most this much of one page.
constexpr std::int64_t sample_bytes = 64 << 10;

}  // namespace

PinResult HybridCache::pin(const Question& question, MatchScratch& scratch, std::int64_t tokens,
                           Lease& lease) {
  const Tip* tip = tokens % layout_.step_tokens() == 0 ? nullptr : usable_tip_at(scratch.snapshot, tokens);
  lease.tokens = tokens;
  EvictableChange change;
  PinResult result = pin_history(question, scratch, tokens, lease, change);
  if (result == PinResult::Pinned) result = pin_blocks(question, scratch, tip, lease, change);
  if (result == PinResult::Pinned && tip != nullptr) result = pin_tip(*tip, lease, change);
  store_.count_pins(change);
  // A page of a new format published since the words were read: look again with that known.
  if (result == PinResult::Pinned && formats_turn_.load() != scratch.formats_turn) return PinResult::Raced;
  return result;
}

// H of every block below the length that a Prefix group records: one CAS each. Whoever holds the pins of two
// neighbours can tell which continues which.
PinResult HybridCache::pin_history(const Question& question, MatchScratch& scratch, std::int64_t tokens,
                                   Lease& lease, EvictableChange& change) {
  if (layout_.probe_units == 0) return PinResult::Pinned;
  const std::int64_t positions = tokens / layout_.unit_tokens / layout_.probe_units;
  lease.history.resize(static_cast<std::size_t>(positions));
  lease.pins.reserve(static_cast<std::size_t>(positions) + 64);
  std::int64_t last = -1;  // position pinned before
  for (std::int64_t k = 0; k < positions; ++k) {
    SlotMask required = prefix_slots_;
    if (!one_prefix_block_) {
      required = 0;
      for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
        const Group& group = layout_.groups[g];
        if (!group.prefix() || (k + 1) * layout_.probe_units % group.block_units != 0) continue;
        required = static_cast<SlotMask>(required | 1u << store_.slot_of(static_cast<int>(g)).slot);
      }
    }
    DescriptorId& held = lease.history[k];
    held = no_descriptor;
    if (required == 0) continue;
    const Sighting& seen = scratch.history[k];
    if (!seen.found()) return PinResult::Raced;
    const PinResult result = store_.pin(seen.id, WordClass::H, seen.h, required, change);
    if (result != PinResult::Pinned) return result;
    held = seen.id;
    lease.pins.push_back({seen.id, WordClass::H});
    if (last >= 0 && policy_ != nullptr && store_[seen.id].parent() != lease.history[last])
      link(seen.id, question.keys->keys()[(last + 1) * layout_.probe_units - 1], lease.history[last]);
    last = k;
  }
  return PinResult::Pinned;
}

// B of only the blocks that windows and checkpoints need; blocks recorded at one unit share a pin.
PinResult HybridCache::pin_blocks(const Question& question, MatchScratch& scratch, const Tip* tip,
                                  Lease& lease, EvictableChange& change) {
  const Snapshot& s = scratch.snapshot;
  auto& wanted = scratch.wanted;
  wanted.clear();
  for (int g = 0; g < static_cast<int>(layout_.groups.size()); ++g) {
    const Group& group = layout_.groups[g];
    if (group.prefix()) continue;
    const std::int64_t block_tokens = layout_.block_tokens(group);
    const BlockSpan need = needed_blocks(group.coverage, block_tokens, lease.tokens);
    if (need.empty()) continue;
    if (group.rebuildable) {
      const bool stored = stored_at_length(s, g, lease.tokens, tip);
      if (!stored || group_misaligned(g)) {
        lease.replayed |= 1u << g;
        continue;
      }
    }
    std::int64_t from = need.from;
    const std::int64_t to = std::min(need.to, lease.tokens / block_tokens);
    if (group.coverage.rule == Rule::Checkpoint && need.to > to)
      from = to;  // the state at a tip is the tip's
    for (std::int64_t block = from; block < to; ++block)
      wanted.emplace_back((block + 1) * group.block_units, g);
  }
  std::sort(wanted.begin(), wanted.end());
  for (std::size_t i = 0; i < wanted.size();) {
    const std::int64_t end = wanted[i].first;
    const int first_group = wanted[i].second;
    const Sighting seen =
        sight_block(scratch, first_group, end / layout_.groups[first_group].block_units - 1);
    if (!seen.found()) return PinResult::Raced;
    SlotMask required = 0;
    for (; i < wanted.size() && wanted[i].first == end; ++i) {
      const int g = wanted[i].second;
      if (s.groups[g].may_be_foreign && foreign_page(question, g, seen.id)) return PinResult::Raced;
      required = static_cast<SlotMask>(required | 1u << store_.slot_of(g).slot);
      lease.held.push_back({g, end / layout_.groups[g].block_units - 1, seen.id});
    }
    const PinResult result = store_.pin(seen.id, WordClass::B, seen.b, required, change);
    if (result != PinResult::Pinned) return result;
    lease.pins.push_back({seen.id, WordClass::B});
  }
  return PinResult::Pinned;
}

// The partial pages of a tip, of every group that needs one there.
PinResult HybridCache::pin_tip(const Tip& tip, Lease& lease, EvictableChange& change) {
  SlotMask required[2] = {0, 0};
  for (int g = 0; g < static_cast<int>(layout_.groups.size()); ++g) {
    const Group& group = layout_.groups[g];
    if (lease.replayed >> g & 1) continue;
    const std::int64_t block_tokens = layout_.block_tokens(group);
    const BlockSpan need = needed_blocks(group.coverage, block_tokens, tip.tokens);
    if (need.empty() || need.to * block_tokens <= tip.tokens) continue;
    const GroupSlot& at = store_.slot_of(g);
    SlotMask& mask = required[static_cast<int>(at.which)];
    mask = static_cast<SlotMask>(mask | 1u << at.slot);
    lease.held.push_back({g, tip.tokens / block_tokens, DescriptorId{tip.id}});
  }
  const Word words[2] = {Word(tip.h), Word(tip.b)};
  for (const WordClass which : {WordClass::H, WordClass::B}) {
    const int i = static_cast<int>(which);
    if (required[i] == 0) continue;
    const PinResult result = store_.pin(DescriptorId{tip.id}, which, words[i], required[i], change);
    if (result != PinResult::Pinned) return result;
    lease.pins.push_back({DescriptorId{tip.id}, which});
  }
  return PinResult::Pinned;
}

void HybridCache::page_ids(const Lease& lease, int group, std::vector<std::uint32_t>& out) const {
  const Group& g = layout_.groups[group];
  const std::int64_t block_tokens = layout_.block_tokens(g);
  out.assign(static_cast<std::size_t>(blocks_for(lease.tokens, block_tokens)), none_u32);
  if (g.prefix()) {
    for (std::int64_t block = 0; block < lease.tokens / block_tokens; ++block) {
      const std::int64_t position = (block + 1) * g.block_units / layout_.probe_units - 1;
      out[block] = index(store_.page(lease.history[position], group));
    }
  }
  for (const Lease::Held& held : lease.held) {
    if (held.group == group) out[held.block] = index(store_.page(held.id, group));
  }
}

void HybridCache::page_ids(const Ticket& ticket, int group, std::vector<std::uint32_t>& out) const {
  const std::int64_t block_tokens = layout_.block_tokens(layout_.groups[group]);
  out.clear();
  if (ticket.lease != nullptr) page_ids(*ticket.lease, group, out);
  out.resize(static_cast<std::size_t>(blocks_for(ticket.grown, block_tokens)), none_u32);
  const Ticket::Hand& hand = ticket.hands[group];
  for (std::size_t i = 0; i < hand.blocks.size(); ++i) {
    if (hand.blocks[i].hold != Ticket::Hold::None)
      out[static_cast<std::size_t>(hand.base) + i] = index(hand.blocks[i].page);
  }
  for (const Ticket::State& state : hand.states)
    out[static_cast<std::size_t>(state.tokens / block_tokens - 1)] = index(state.page);
}

// ---- content -----------------------------------------------------------------------------------

namespace {

struct Stretch {
  std::int64_t skip, bytes;
};
// Which bytes of a page a sample covers: successive owners of a page are sampled in successive places.
Stretch sample_of(std::int64_t attested_bytes, std::uint64_t handouts) {
  if (attested_bytes <= sample_bytes) return {0, attested_bytes};
  const auto places = static_cast<std::uint64_t>((attested_bytes + sample_bytes - 1) / sample_bytes);
  const auto skip = static_cast<std::int64_t>(handouts % places) * sample_bytes;
  return {skip, std::min(sample_bytes, attested_bytes - skip)};
}

}  // namespace

void HybridCache::take_fingerprint(int group, PageId page) {
  const PoolMemory& memory = memory_[group];
  const Group& g = layout_.groups[group];
  PageRecord& record = store_.pool(group)[page];
  const std::int64_t rows = record.attested_rows.load();
  // Of a partial page only its first rows are attested; where rows do not lie one after another, none can be told.
  if (!memory.host() || (rows != 0 && g.ordered_row_bytes() == 0)) return;
  const std::int64_t bytes = memory.attested_bytes(g, rows);
  const Stretch sample = sample_of(bytes, record.handouts.load());
  record.fingerprint.store(memory.fingerprint(g, index(page), rows, 0, bytes));
  record.sample.store(memory.fingerprint(g, index(page), rows, sample.skip, sample.bytes));
  record.fingerprinted.store(1);
}

bool HybridCache::content_intact(int group, PageId page, bool whole) const {
  const PoolMemory& memory = memory_[group];
  const Group& g = layout_.groups[group];
  const PageRecord& record = store_.pool(group)[page];
  if (record.fingerprinted.load() == 0) return true;
  const std::int64_t rows = record.attested_rows.load();
  const std::int64_t bytes = memory.attested_bytes(g, rows);
  if (whole) return memory.fingerprint(g, index(page), rows, 0, bytes) == record.fingerprint.load();
  const Stretch sample = sample_of(bytes, record.handouts.load());
  return memory.fingerprint(g, index(page), rows, sample.skip, sample.bytes) == record.sample.load();
}

bool HybridCache::verify(const Question& question, const Lease& lease, Why& wrong) {
  if (question.verify == Verify::Off || !any_host_pool_) return true;
  const auto check = [&](int group, std::int64_t block, DescriptorId id, bool whole) {
    if (!memory_[group].host() || content_intact(group, store_.page(id, group), whole)) return true;
    wrong = {Check::Integrity, Code::Content, group, block, false};
    quarantine(id, group);
    return false;
  };
  const auto pages_of = [&](int group) {
    return layout_.groups[group].prefix() ? lease.tokens / layout_.block_tokens(layout_.groups[group])
                                          : std::int64_t{0};
  };
  const auto history_at = [&](int group, std::int64_t block) {
    const Group& g = layout_.groups[group];
    return lease.history[static_cast<std::size_t>((block + 1) * g.block_units / layout_.probe_units - 1)];
  };
  const int groups = static_cast<int>(layout_.groups.size());
  if (question.verify == Verify::Sampled) {
    std::int64_t total = static_cast<std::int64_t>(lease.held.size());
    for (int g = 0; g < groups; ++g) total += pages_of(g);
    if (total == 0) return true;
    std::int64_t pick = static_cast<std::int64_t>(verify_turn_.fetch_add(1) * 2654435761u) % total;
    for (int g = 0; g < groups; ++g) {
      if (pick < pages_of(g)) return check(g, pick, history_at(g, pick), false);
      pick -= pages_of(g);
    }
    const Lease::Held& held = lease.held[pick];
    return check(held.group, held.block, held.id, false);
  }
  bool intact = true;
  for (int g = 0; g < groups; ++g) {
    for (std::int64_t block = 0; block < pages_of(g); ++block) {
      Why found = wrong;
      if (!check(g, block, history_at(g, block), true)) {
        if (!intact) wrong = found;  // the first one is named; every damaged page is quarantined
        intact = false;
      }
    }
  }
  for (const Lease::Held& held : lease.held) {
    const Why found = wrong;
    if (!check(held.group, held.block, held.id, true)) {
      if (!intact) wrong = found;
      intact = false;
    }
  }
  return intact;
}

}  // namespace hkv
