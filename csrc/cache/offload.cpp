// SPDX-License-Identifier: Apache-2.0
// Offload: which pages of a prefix go to the tier, and the pins under which they are read.
#include <algorithm>

#include "cache/transfers.h"
#include "reuse/planes.h"

namespace hkv {

std::shared_ptr<Transfer> Transfers::offload(const std::shared_ptr<const KeyChain>& keys,
                                             std::span<const std::int64_t> boundaries,
                                             const TransferOptions& options) {
  for (const std::int64_t t : boundaries) check_boundary("boundaries", *keys, t);
  const std::shared_ptr<Transfer> transfer = offload_begun(keys, options);
  const std::lock_guard guard(lock_);
  const std::int64_t history = list_history(*transfer, 0);
  for (const std::int64_t t : boundaries) list_boundary(*transfer, t, history);
  add_sync(*transfer);
  begin(transfer);
  return transfer;
}

std::shared_ptr<Transfer> Transfers::offload_new(const std::shared_ptr<const KeyChain>& keys,
                                                 std::int64_t since, std::span<const std::int64_t> boundaries,
                                                 std::span<const std::int64_t> ends,
                                                 const TransferOptions& options) {
  for (const std::int64_t t : boundaries) check_boundary("boundaries", *keys, t);
  for (const std::int64_t t : ends) check_boundary("ends", *keys, t);
  const std::shared_ptr<Transfer> transfer = offload_begun(keys, options);
  const std::lock_guard guard(lock_);
  const std::int64_t old_unit = history_below(since) / cache_.layout_.unit_tokens;
  const std::int64_t history = list_history(*transfer, std::min(stored_unit(*keys), old_unit));
  for (const std::int64_t t : ends) {
    if (list_boundary(*transfer, t, history)) break;
  }
  std::vector<std::int64_t> tried;
  for (const Transfer::Boundary& each : transfer->boundaries) tried.push_back(each.tokens);
  std::sort(tried.begin(), tried.end());
  for (const std::int64_t t : boundaries) {
    if (!std::binary_search(tried.begin(), tried.end(), t)) list_boundary(*transfer, t, history);
  }
  begin(transfer);
  return transfer;
}

std::shared_ptr<Transfer> Transfers::offload_begun(const std::shared_ptr<const KeyChain>& keys,
                                                   const TransferOptions& options) {
  check_pools();
  auto transfer = std::make_shared<Transfer>();
  transfer->kind = TransferKind::Offload;
  transfer->options = options;
  transfer->keys = keys;
  return transfer;
}

// Returns: whether all is here that the boundary needs; `history` tokens are in the tier or on their way.
bool Transfers::list_boundary(Transfer& transfer, std::int64_t tokens, std::int64_t history) {
  using Lack = Transfer::Boundary::Lack;
  const std::size_t from = transfer.records.size();
  Lack lack = history_below(tokens) > history ? Lack::History : Lack::Nothing;
  if (lack == Lack::Nothing && !add_boundary(transfer, tokens)) lack = Lack::States;
  transfer.boundaries.push_back({tokens, lack, from, transfer.records.size()});
  if (lack == Lack::Nothing) transfer.tokens = std::max(transfer.tokens, tokens);
  return lack == Lack::Nothing;
}

void Transfers::check_boundary(const char* field, const KeyChain& keys, std::int64_t tokens) const {
  const Layout& layout = cache_.layout_;
  const bool tip =
      is_tip(layout, tokens) && keys.has_tokens() && tokens / layout.unit_tokens >= keys.first_tip_unit();
  if (tokens > 0 && tokens <= keys.tokens() && (tip || tokens % layout.step_tokens() == 0)) return;
  throw Error(ErrorCode::ArgumentError, field,
              "multiples of " + std::to_string(layout.step_tokens()) +
                  " tokens, or lengths that end inside a unit of tokens, inside the keys",
              std::to_string(tokens));
}

// Tokens of history that lie in block records, of what a resume at the length needs; the rest is in the tip's record.
std::int64_t Transfers::history_below(std::int64_t tokens) const {
  const Layout& layout = cache_.layout_;
  const std::int64_t probe_tokens = layout.probe_units * layout.unit_tokens;
  return probe_tokens == 0 ? 0 : tokens / probe_tokens * probe_tokens;
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

// Whether the tier has a record as lastingly as a put of it would make it: of a stack, the slowest tier.
bool Transfers::is_stored(Key128 digest, RecordKind kind) const {
  if (cache_.tier_closed_.load() != 0 || cache_.failed_loads_.has(kind, digest)) return false;
  return cache_.link_.tier->look_lasting(cache_.link_.record(kind, digest)).answer == Presence::Answer::Here;
}

// The opposite for a record that was stored: one of which the tier cannot tell is taken to be there.
bool Transfers::is_dropped(Key128 digest, RecordKind kind) const {
  if (cache_.tier_closed_.load() != 0 || cache_.failed_loads_.has(kind, digest)) return true;
  const Presence found = cache_.link_.tier->look_lasting(cache_.link_.record(kind, digest));
  return found.answer == Presence::Answer::Unknown ? found.gone : found.answer != Presence::Answer::Here;
}

// The last unit whose block record the tier has, and so all below it. Cost: a look for each block behind it.
std::int64_t Transfers::stored_unit(const KeyChain& keys) const {
  const Layout& layout = cache_.layout_;
  if (layout.probe_units == 0) return 0;
  std::int64_t unit = keys.end_unit() / layout.probe_units * layout.probe_units;
  for (; unit > 0; unit -= layout.probe_units) {
    if (!records_history_at(unit)) continue;
    if (is_stored(keys.keys()[unit - 1], RecordKind::Block)) break;
  }
  return unit;
}

void Transfers::check_copies() {
  for (int turns = 0; turns < 2;) {  // the one under way may have begun before what was lost last
    const std::lock_guard guard(lock_);
    if (copies_.is_checked()) return;
    turns += copies_.check_some(copies_a_poll) ? 1 : 0;
  }
}

bool Transfers::is_unstored(const KeyChain& keys, std::span<const std::int64_t> boundaries) const {
  const Layout& layout = cache_.layout_;
  std::int64_t stored = stored_unit(keys);
  for (std::int64_t at = layout.probe_units; !cache_.link_.tier->caps().index && at < stored;
       at += layout.probe_units) {
    if (records_history_at(at) && !is_stored(keys.keys()[at - 1], RecordKind::Block))
      stored = at - layout.probe_units;  // which a tier that knows no parents may have lost alone
  }
  std::int64_t next = stored + layout.probe_units;
  while (layout.probe_units != 0 && next <= keys.end_unit() && !records_history_at(next))
    next += layout.probe_units;
  if (layout.probe_units != 0 && next <= keys.end_unit() && has_history_at(keys, next)) return true;
  return std::any_of(boundaries.begin(), boundaries.end(), [&](std::int64_t t) {
    return history_below(t) <= stored * layout.unit_tokens && needs_record(t) &&
           !is_stored(key_at(layout, keys, t), RecordKind::Boundary);
  });
}

// Whether every Prefix group has its block that ends there.
bool Transfers::has_history_at(const KeyChain& keys, std::int64_t unit) const {
  const Layout& layout = cache_.layout_;
  const Sighting seen = cache_.store_.table().find(keys.keys()[unit - 1]);
  if (!seen.found()) return false;
  for (int g = 0; g < static_cast<int>(layout.groups.size()); ++g) {
    const Group& group = layout.groups[static_cast<std::size_t>(g)];
    if (!group.prefix() || unit % group.block_units != 0) continue;
    if (!seen.h.usable_slot(cache_.store_.slot_of(g).slot)) return false;
  }
  return true;
}

// Whether a resume at the length needs more than whole blocks of history and what can be computed again.
bool Transfers::needs_record(std::int64_t tokens) const {
  const Layout& layout = cache_.layout_;
  return std::any_of(layout.groups.begin(), layout.groups.end(), [&](const Group& g) {
    BlockSpan need = needed_blocks(g.coverage, layout.block_tokens(g), tokens);
    if (g.prefix()) need.from = tokens / layout.block_tokens(g);
    return need.from < need.to && !(g.rebuildable && replay_from(g, layout.step_tokens(), tokens) > 0);
  });
}

// Adds a record for each block that is here and not in the tier, in prefix order, up to the first that is neither. Blocks
// up to `stored_unit` are in the tier. Returns: tokens of history that the tier has then, if all goes well.
std::int64_t Transfers::list_history(Transfer& transfer, std::int64_t stored_unit) const {
  const Layout& layout = cache_.layout_;
  if (layout.probe_units == 0) return 0;
  std::int64_t reached = stored_unit * layout.unit_tokens;
  for (std::int64_t unit = stored_unit + layout.probe_units; unit <= transfer.keys->end_unit();
       unit += layout.probe_units) {
    if (!records_history_at(unit)) continue;
    const Key128 key = transfer.keys->keys()[unit - 1];
    if (key == Key128{}) break;  // an engine's own hash that names nothing
    if (!is_stored(key, RecordKind::Block)) {
      if (!add_block(transfer, unit, parent_of(*transfer.keys, unit - 1))) break;
    } else {
      cache_.link_.tier->touch(cache_.link_.record(RecordKind::Block, key));
    }
    reached = unit * layout.unit_tokens;
  }
  return reached;
}

// A tier's own flush behind everything else of an offload that is to survive a power cut: what was in the tier already may
// not be durable yet.
void Transfers::add_sync(Transfer& transfer) const {
  if (!transfer.options.durable) return;
  transfer.records.emplace_back();
  transfer.records.back().is_sync = true;
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
  if (!pin_pages(record, record.key.digest, record.tokens, WordClass::H, groups)) return false;
  transfer.records.push_back(std::move(record));
  return true;
}

// Adds what a resume exactly at a length needs besides whole blocks of history; of a tip the listing first. Returns:
// false where it is not all here; a boundary that needs nothing, or is in the tier, needs no record.
bool Transfers::add_boundary(Transfer& transfer, std::int64_t tokens) {
  const Layout& layout = cache_.layout_;
  const KeyChain& keys = *transfer.keys;
  const bool tip = is_tip(layout, tokens);
  Transfer::Record record;
  record.key = cache_.link_.record(RecordKind::Boundary, key_at(layout, keys, tokens));
  record.parent = parent_of(keys, tokens / layout.unit_tokens);
  record.tokens = tokens;
  record.flags = tip ? tip_flag : std::uint8_t{0};
  if (is_stored(record.key.digest, RecordKind::Boundary)) {
    cache_.link_.tier->touch(record.key);
    if (tip) add_listing(transfer, record);
    return true;
  }
  for (int g = 0; g < static_cast<int>(layout.groups.size()); ++g) {
    if (!add_states(record, keys, g)) {
      unpin(record, false);
      return false;
    }
  }
  if (record.parts.empty()) return true;
  if (tip) add_listing(transfer, record);
  transfer.records.push_back(std::move(record));
  return true;
}

// Adds the pages of one group that a boundary record holds. Returns: false where they are not all here and cannot be
// computed again.
bool Transfers::add_states(Transfer::Record& record, const KeyChain& keys, int group) const {
  const Layout& layout = cache_.layout_;
  const Group& g = layout.groups[group];
  const std::int64_t block_tokens = layout.block_tokens(g), tokens = record.tokens;
  BlockSpan need = needed_blocks(g.coverage, block_tokens, tokens);
  if (g.prefix()) need.from = tokens / block_tokens;  // whole blocks have records of their own
  const std::size_t parts = record.parts.size(), blocks = record.blocks.size();
  const std::int64_t bytes = record.bytes;
  bool complete = true;
  for (std::int64_t block = need.from; block < need.to && complete; ++block) {
    const std::int64_t end = std::min((block + 1) * block_tokens, tokens);
    complete =
        pin_pages(record, key_at(layout, keys, end), end, cache_.store_.slot_of(group).which, {&group, 1});
  }
  if (complete) return true;
  if (!g.rebuildable || replay_from(g, layout.step_tokens(), tokens) <= 0) return false;
  record.flags = static_cast<std::uint8_t>(record.flags | left_out_flag(layout, group));
  record.parts.resize(parts);
  record.blocks.resize(blocks);
  record.bytes = bytes;
  return true;
}

// The listing that leads to a tip's record (tier_link.h), where the tier has none.
void Transfers::add_listing(Transfer& transfer, const Transfer::Record& tip) const {
  const Layout& layout = cache_.layout_;
  const std::int64_t unit = tip.tokens / layout.unit_tokens;
  Transfer::Record record;
  record.key = cache_.link_.record(RecordKind::Boundary,
                                   listing_key(*transfer.keys, unit, tip.tokens % layout.unit_tokens));
  if (is_stored(record.key.digest, RecordKind::Boundary)) return cache_.link_.tier->touch(record.key);
  record.parent = tip.parent;
  record.tokens = unit * layout.unit_tokens;
  record.flags = listing_flag;
  transfer.records.push_back(std::move(record));
}

// Pins the pages of those groups whose blocks end at a length, if all are usable and of the spec's formats, and adds them
// to the record. `key`: of the unit or the tip that ends there.
bool Transfers::pin_pages(Transfer::Record& record, Key128 key, std::int64_t tokens, WordClass which,
                          std::span<const int> groups) const {
  BlockStore& store = cache_.store_;
  const Layout& layout = cache_.layout_;
  const bool tip = is_tip(layout, tokens);
  const Sighting seen = store.table().find(key);
  if (!seen.found()) return false;
  SlotMask slots = 0;
  for (const int g : groups) slots = static_cast<SlotMask>(slots | 1u << store.slot_of(g).slot);
  if (store.pin(seen.id, which, seen.word(which), slots) != PinResult::Pinned) return false;
  std::vector<PageId> pages;
  for (const int g : groups) {
    const PageId page = store.page(seen.id, g);
    const PageRecord& written = store.pool(g)[page];
    if (written.format.load() == cache_.spec_formats_[static_cast<std::size_t>(g)] &&
        written.attested_rows.load() == (tip ? cache_.rows_in_tip(g, tokens) : 0))
      pages.push_back(page);
  }
  if (pages.size() != groups.size()) {
    store.unpin(seen.id, which);
    return false;
  }
  Transfer::Pin& pin =
      record.pins.emplace_back(Transfer::Pin{seen.id, which, store.begin_offload(seen.id, which, slots), 0});
  for (int g = 0; g < static_cast<int>(layout.groups.size()); ++g) {
    const bool mine = std::find(groups.begin(), groups.end(), g) != groups.end();
    const bool beside = which == WordClass::B && !layout.groups[g].prefix() &&
                        tokens % layout.block_tokens(layout.groups[g]) == 0;
    if (tip ? mine : beside) pin.counted |= 1u << g;
  }
  count_unowned(pin, 1);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const std::int64_t block = (tokens - 1) / layout.block_tokens(layout.groups[groups[i]]);
    add_parts(record, groups[i], block, pages[i], tip ? cache_.rows_in_tip(groups[i], tokens) : 0);
  }
  return true;
}

// What an offload pins is held by nobody who could finish for it, as by a lease without a ticket.
void Transfers::count_unowned(const Transfer::Pin& pin, int by) const {
  for (std::size_t g = 0; g < cache_.layout_.groups.size(); ++g) {
    if (pin.counted >> g & 1) cache_.unowned_pages_[g].fetch_add(by);
  }
}

// The page's bytes, a part a layer. One array of equal layers is cut as if they lay apart, so that a record does not
// depend on how a pool was bound. Of a tip's page the attested rows alone, where rows lie one after another and nothing
// of theirs stands behind them: whoever goes on from it may be writing the next ones.
void Transfers::add_parts(Transfer::Record& record, int group, std::int64_t block, PageId page,
                          std::uint32_t rows) const {
  const Group& g = cache_.layout_.groups[group];
  const PoolMemory& memory = cache_.memory_[static_cast<std::size_t>(group)];
  std::uint16_t layer = 0;
  for (std::int64_t array = 0; array < memory.rows(); ++array) {
    const std::int64_t bytes = memory.bytes_of_page(array);
    const std::int64_t cuts = memory.layers_in(g, array);
    for (std::int64_t i = 0; i < cuts; ++i, ++layer) {
      const std::uint64_t address =
          memory.address(array, index(page)) + static_cast<std::uint64_t>(i * (bytes / cuts));
      const std::int64_t kept = stored_bytes(g, rows, bytes / cuts);
      record.parts.push_back(
          {reinterpret_cast<void*>(address),
           static_cast<std::size_t>(kept),
           {static_cast<std::uint16_t>(group), layer, static_cast<std::uint32_t>(block), rows}});
      record.bytes += kept;
    }
  }
  record.blocks.emplace_back(group, block);
}

// Bytes of a piece of a page that its part has: `rows` of 0 are the whole page.
std::int64_t Transfers::stored_bytes(const Group& group, std::uint32_t rows, std::int64_t piece) {
  if (rows == 0 || group.ordered_row_bytes() == 0 || group.footer_offset >= 0) return piece;
  return std::min<std::int64_t>(piece, rows * group.ordered_row_bytes());
}

void Transfers::unpin(Transfer::Record& record, bool copied) {
  const bool named = copied && record.key.kind == RecordKind::Boundary;
  for (auto pin = record.pins.rbegin(); pin != record.pins.rend(); ++pin) {
    if (named) copies_.note(pin->id, pin->which, pin->marked, record.key.digest);
    cache_.store_.end_offload(pin->id, pin->which, pin->marked, copied);
    cache_.store_.unpin(pin->id, pin->which);
    count_unowned(*pin, -1);
  }
  record.pins.clear();
  if (copied && is_dropped(record.key.digest, record.key.kind)) copies_.ask_again();
}

}  // namespace hkv
