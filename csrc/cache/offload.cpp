// SPDX-License-Identifier: Apache-2.0
// Offload: which pages of a prefix go to the tier, and the pins under which they are read.
#include <algorithm>

#include "cache/transfers.h"
#include "reuse/planes.h"

namespace hkv {

std::shared_ptr<Transfer> Transfers::offload(const std::shared_ptr<const KeyChain>& keys,
                                             std::span<const std::int64_t> boundaries,
                                             const TransferOptions& options) {
  const Layout& layout = cache_.layout_;
  for (const std::int64_t t : boundaries) {
    if (t <= 0 || t % layout.step_tokens() != 0 || t > keys->end_unit() * layout.unit_tokens) {
      throw Error(ErrorCode::ArgumentError, "boundaries",
                  "multiples of " + std::to_string(layout.step_tokens()) + " tokens inside the keys",
                  std::to_string(t));
    }
  }
  check_pools();
  auto transfer = std::make_shared<Transfer>();
  transfer->kind = TransferKind::Offload;
  transfer->options = options;
  transfer->keys = keys;
  const std::lock_guard guard(lock_);
  const std::int64_t history = list_history(*transfer);
  for (const std::int64_t t : boundaries) {
    if ((layout.probe_units != 0 && t > history) || !add_boundary(*transfer, t)) {
      transfer->left_out.push_back(t);
    } else {
      transfer->tokens = std::max(transfer->tokens, t);
    }
  }
  begin(transfer);
  return transfer;
}

bool Transfers::records_history_at(std::int64_t unit) const {
  return std::any_of(cache_.layout_.groups.begin(), cache_.layout_.groups.end(),
                     [&](const Group& g) { return g.prefix() && unit % g.block_units == 0; });
}

// Key of the last block record at or below a unit; zero where there is none.
Key128 Transfers::parent_of(const KeyChain& keys, std::int64_t unit) const {
  const std::int64_t probe = cache_.layout_.probe_units;
  if (probe == 0) return {};
  std::int64_t at = unit / probe * probe;
  while (at > 0 && !records_history_at(at)) at -= probe;
  return at == 0 ? Key128{} : keys.keys()[at - 1];
}

// Adds a record for each block that is here and not in the tier, in prefix order, up to the first that is neither.
// Returns: tokens of history that the tier has then, if all goes well.
std::int64_t Transfers::list_history(Transfer& transfer) const {
  const Layout& layout = cache_.layout_;
  if (layout.probe_units == 0) return 0;
  std::int64_t reached = 0;
  for (std::int64_t unit = layout.probe_units; unit <= transfer.keys->end_unit();
       unit += layout.probe_units) {
    if (!records_history_at(unit)) continue;
    const Key128 key = transfer.keys->keys()[unit - 1];
    if (key == Key128{}) break;  // an engine's own hash that names nothing
    const TierAnswer answer = cache_.ask_tier(key, RecordKind::Block);
    if (answer != TierAnswer::Here) {
      if (!add_block(transfer, unit, parent_of(*transfer.keys, unit - 1))) break;
    } else {
      cache_.link_.tier->touch(cache_.link_.record(RecordKind::Block, key));
    }
    reached = unit * layout.unit_tokens;
  }
  return reached;
}

bool Transfers::add_block(Transfer& transfer, std::int64_t unit, Key128 parent) const {
  const Layout& layout = cache_.layout_;
  Transfer::Record record;
  record.key = cache_.link_.record(RecordKind::Block, transfer.keys->keys()[unit - 1]);
  record.parent = parent;
  record.tokens = unit * layout.unit_tokens;
  std::vector<int> groups;
  for (int g = 0; g < static_cast<int>(layout.groups.size()); ++g) {
    const Group& group = layout.groups[g];
    if (!group.prefix() || unit % group.block_units != 0) continue;
    groups.push_back(g);
  }
  if (!pin_unit(record, *transfer.keys, unit, WordClass::H, groups)) return false;
  transfer.records.push_back(std::move(record));
  return true;
}

// Adds what a resume exactly at a length needs besides history. Returns: false where it is not all here; a boundary
// that needs nothing, or is in the tier, needs no record.
bool Transfers::add_boundary(Transfer& transfer, std::int64_t tokens) const {
  const Layout& layout = cache_.layout_;
  const KeyChain& keys = *transfer.keys;
  const std::int64_t unit = tokens / layout.unit_tokens;
  const Key128 key = keys.keys()[unit - 1];
  if (cache_.ask_tier(key, RecordKind::Boundary) == TierAnswer::Here) {
    cache_.link_.tier->touch(cache_.link_.record(RecordKind::Boundary, key));
    return true;
  }
  Transfer::Record record;
  record.key = cache_.link_.record(RecordKind::Boundary, key);
  record.parent = parent_of(keys, unit);
  record.tokens = tokens;
  for (int g = 0; g < static_cast<int>(layout.groups.size()); ++g) {
    const Group& group = layout.groups[g];
    if (group.prefix()) continue;
    const BlockSpan need = needed_blocks(group.coverage, layout.block_tokens(group), tokens);
    const std::size_t parts = record.parts.size(), blocks = record.blocks.size();
    const std::int64_t bytes = record.bytes;
    bool complete = true;
    for (std::int64_t block = need.from; block < need.to && complete; ++block)
      complete = pin_unit(record, keys, (block + 1) * group.block_units, WordClass::B, {&g, 1});
    if (complete) continue;
    if (!group.rebuildable || replay_from(group, layout.step_tokens(), tokens) <= 0) {
      unpin(record, false);
      return false;
    }
    record.flags = static_cast<std::uint8_t>(record.flags | left_out_flag(layout, g));
    record.parts.resize(parts);
    record.blocks.resize(blocks);
    record.bytes = bytes;
  }
  if (record.parts.empty()) return true;
  transfer.records.push_back(std::move(record));
  return true;
}

// Pins the pages of those groups at a unit, if all are usable and of the spec's formats, and adds them to the record.
bool Transfers::pin_unit(Transfer::Record& record, const KeyChain& keys, std::int64_t unit, WordClass which,
                         std::span<const int> groups) const {
  BlockStore& store = cache_.store_;
  const Sighting seen = store.table().find(keys.keys()[unit - 1]);
  if (!seen.found()) return false;
  SlotMask slots = 0;
  for (const int g : groups) slots = static_cast<SlotMask>(slots | 1u << store.slot_of(g).slot);
  if (store.pin(seen.id, which, seen.word(which), slots) != PinResult::Pinned) return false;
  std::vector<PageId> pages;
  for (const int g : groups) {
    const PageId page = store.page(seen.id, g);
    if (store.pool(g)[page].format.load() == cache_.spec_formats_[static_cast<std::size_t>(g)])
      pages.push_back(page);
  }
  if (pages.size() != groups.size()) {
    store.unpin(seen.id, which);
    return false;
  }
  record.pins.push_back({seen.id, which, store.begin_offload(seen.id, which, slots), unit});
  count_unowned(record.pins.back(), 1);
  for (std::size_t i = 0; i < pages.size(); ++i)
    add_parts(record, groups[i], unit / cache_.layout_.groups[groups[i]].block_units - 1, pages[i], 0);
  return true;
}

// What an offload pins is held by nobody who could finish for it, as by a lease without a ticket.
void Transfers::count_unowned(const Transfer::Pin& pin, int by) const {
  if (pin.which != WordClass::B) return;
  for (std::size_t g = 0; g < cache_.layout_.groups.size(); ++g) {
    const Group& group = cache_.layout_.groups[g];
    if (!group.prefix() && pin.unit % group.block_units == 0) cache_.unowned_pages_[g].fetch_add(by);
  }
}

// The page's bytes, a part a layer. One array of equal layers is cut as if they lay apart, so that a record does not
// depend on how a pool was bound.
void Transfers::add_parts(Transfer::Record& record, int group, std::int64_t block, PageId page,
                          std::uint32_t rows) const {
  const Group& g = cache_.layout_.groups[group];
  const PoolMemory& memory = cache_.memory_[static_cast<std::size_t>(group)];
  std::uint16_t layer = 0;
  for (std::int64_t array = 0; array < memory.rows(); ++array) {
    const std::int64_t bytes = memory.bytes_of_page(array);
    const std::int64_t cuts = memory.rows() == 1 && bytes % g.layers == 0 ? g.layers : 1;
    for (std::int64_t i = 0; i < cuts; ++i, ++layer) {
      const std::uint64_t address =
          memory.address(array, index(page)) + static_cast<std::uint64_t>(i * (bytes / cuts));
      record.parts.push_back(
          {reinterpret_cast<void*>(address),
           static_cast<std::size_t>(bytes / cuts),
           {static_cast<std::uint16_t>(group), layer, static_cast<std::uint32_t>(block), rows}});
    }
    record.bytes += bytes;
  }
  record.blocks.emplace_back(group, block);
}

void Transfers::unpin(Transfer::Record& record, bool copied) const {
  for (auto pin = record.pins.rbegin(); pin != record.pins.rend(); ++pin) {
    cache_.store_.end_offload(pin->id, pin->which, pin->marked, copied);
    cache_.store_.unpin(pin->id, pin->which);
    count_unowned(*pin, -1);
  }
  record.pins.clear();
}

}  // namespace hkv
