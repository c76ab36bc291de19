// SPDX-License-Identifier: Apache-2.0
// Restore: pages for what a length needs and is not here, loaded from the tier, published once verified.
#include <algorithm>
#include <cstring>

#include "cache/transfers.h"

namespace hkv {
namespace {

constexpr std::size_t most_asked = 1024;       // records of one question: of a longer prefix the beginning
constexpr std::int64_t most_units_asked = 16;  // of them those whose tips are asked for

}  // namespace

// Own blocks of each group that a resume at the length needs, a tip's partial ones included; of those that can be
// computed again what is stored, and may be written.
std::vector<Selection> Transfers::needed_for(const KeyChain& keys, std::int64_t tokens) const {
  const Layout& layout = cache_.layout_;
  check_boundary("tokens", keys, tokens);
  const RecordKey boundary = cache_.link_.record(RecordKind::Boundary, key_at(layout, keys, tokens));
  const Presence stored = cache_.link_.tier->look(boundary);
  const std::uint8_t left_out = stored.answer == Presence::Answer::Here ? stored.flags : 0xFF;
  std::vector<Selection> needed(layout.groups.size());
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    const Group& group = layout.groups[g];
    if (group.rebuildable && (left_out & left_out_flag(layout, static_cast<int>(g))) != 0) continue;
    if (group.rebuildable && !cache_.memory_[g].writable()) continue;
    const BlockSpan span = needed_blocks(group.coverage, layout.block_tokens(group), tokens);
    for (std::int64_t block = span.from; block < span.to; ++block) needed[g].blocks.push_back(block);
  }
  return needed;
}

std::shared_ptr<Transfer> Transfers::restore(const std::shared_ptr<const KeyChain>& keys, std::int64_t tokens,
                                             const TransferOptions& options, Ticket* ticket) {
  check_pools();
  const std::vector<Selection> needed = needed_for(*keys, tokens);
  auto transfer = std::make_shared<Transfer>();
  transfer->kind = TransferKind::Restore;
  transfer->options = options;
  transfer->keys = keys->head(tokens);
  transfer->tokens = tokens;
  transfer->boundaries.push_back({tokens});
  transfer->elsewhere_until = TierClock::now() + options.timeout;
  transfer->fill = cache_.reserve(transfer->keys, needed, cache_.spec_formats_, nullptr, ticket, true);
  refuse_read_only(*transfer->fill);
  const std::lock_guard guard(lock_);
  list_records(*transfer);
  if (options.priority == Priority::Demand) hasten_others(*transfer);
  begin(transfer);
  return transfer;
}

// A plan may be older than the pool that is bound now, and pages that it took for granted may have gone since.
void Transfers::refuse_read_only(Fill& fill) {
  for (std::size_t g = 0; g < fill.entries.size(); ++g) {
    if (cache_.memory_[g].writable() || fill.entries[g].empty()) continue;
    cache_.abort(fill, false);
    throw Error(ErrorCode::ArgumentError, "plan",
                "a pool of '" + cache_.layout_.groups[g].name + "' that may be written", "a read-only one");
  }
}

// Somebody waits now for what others load for nobody yet.
void Transfers::hasten_others(const Transfer& waits) {
  const auto key = [&](const Transfer& of, const std::pair<int, std::int64_t>& page) {
    std::int64_t tip_unit = -1;
    const std::int64_t end =
        (page.second + 1) * cache_.layout_.groups[static_cast<std::size_t>(page.first)].block_units;
    if (end > of.keys->end_unit() && of.keys->rest_tokens() == 0) return Key128{};
    return cache_.key_of_block(*of.keys, page.first, page.second, tip_unit);
  };
  for (const auto& other : live_) {
    if (other->kind != TransferKind::Restore || other->options.priority == Priority::Demand) continue;
    const bool brings = std::any_of(waits.elsewhere.begin(), waits.elsewhere.end(),
                                    [&](const auto& page) { return key(*other, page) == key(waits, page); });
    if (!brings) continue;
    other->options.priority = Priority::Demand;
    for (const BatchId batch : other->batches) cache_.link_.tier->hasten(batch);
  }
}

// A record for each block whose pages the fill holds, lowest first, and one for the boundary. Pages of blocks that
// another had claimed go back: its owner will publish them.
void Transfers::list_records(Transfer& transfer) {
  Fill& fill = *transfer.fill;
  const Layout& layout = cache_.layout_;
  std::vector<std::pair<std::int64_t, Transfer::Page>> history;  // by the unit at which the block ends
  Transfer::Record boundary;
  transfer.elsewhere = fill.elsewhere;
  for (int g = 0; g < static_cast<int>(layout.groups.size()); ++g) {
    for (std::size_t i = 0; i < fill.entries[g].size(); ++i) {
      Fill::Entry& entry = fill.entries[g][i];
      if (entry.state != Fill::State::Claimed) {
        transfer.elsewhere.emplace_back(g, entry.block);
        cache_.give_back(fill, g, entry, false);
      } else if (layout.groups[g].prefix() && entry.tip_unit < 0) {
        history.push_back({(entry.block + 1) * layout.groups[g].block_units, {g, i}});
      } else {
        boundary.pages.push_back({g, i});
        add_parts(boundary, g, entry.block, entry.page, entry.rows);
      }
    }
  }
  std::stable_sort(history.begin(), history.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::int64_t last = -1;
  for (const auto& [unit, page] : history) {
    if (unit != last) {
      Transfer::Record& record = transfer.records.emplace_back();
      record.key = cache_.link_.record(RecordKind::Block, transfer.keys->keys()[unit - 1]);
      record.tokens = unit * layout.unit_tokens;
    }
    last = unit;
    Transfer::Record& record = transfer.records.back();
    const Fill::Entry& entry = fill.entries[page.group][page.entry];
    record.pages.push_back(page);
    add_parts(record, page.group, entry.block, entry.page, entry.rows);
  }
  if (boundary.pages.empty()) return;
  boundary.key = cache_.link_.record(RecordKind::Boundary, key_at(layout, *transfer.keys, transfer.tokens));
  boundary.tokens = transfer.tokens;
  if (is_tip(layout, transfer.tokens)) {  // what leads to it is of use with it
    cache_.link_.tier->touch(cache_.link_.record(
        RecordKind::Boundary,
        listing_key(*transfer.keys, transfer.keys->end_unit(), transfer.keys->rest_tokens())));
  }
  transfer.records.push_back(std::move(boundary));
}

// Of a tip's page the record has the attested rows alone: what stood behind them is of another owner of the page.
void Transfers::clear_unattested(const Group& group, std::uint32_t rows, std::byte* piece,
                                 std::int64_t bytes) {
  if (rows == 0 || group.ordered_row_bytes() == 0) return;
  const std::int64_t end = group.footer_offset < 0 ? bytes : std::min(group.footer_offset, bytes);
  const std::int64_t kept = std::min<std::int64_t>(rows * group.ordered_row_bytes(), end);
  std::memset(piece + kept, 0, static_cast<std::size_t>(end - kept));
}

void Transfers::clear_unattested(int group, const Fill::Entry& entry) const {
  const Group& g = cache_.layout_.groups[group];
  const PoolMemory& memory = cache_.memory_[static_cast<std::size_t>(group)];
  if (!memory.host()) return;  // cleared on its way there
  for (std::int64_t array = 0; array < memory.rows(); ++array) {
    const std::int64_t layers = memory.layers_in(g, array), piece = memory.bytes_of_page(array) / layers;
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      const std::uint64_t from =
          memory.address(array, index(entry.page)) + static_cast<std::uint64_t>(layer * piece);
      clear_unattested(g, entry.rows, reinterpret_cast<std::byte*>(from), piece);
    }
  }
}

// All pages of the record at once, B before H.
void Transfers::publish(Transfer& transfer, Transfer::Record& record) {
  Fill& fill = *transfer.fill;
  const std::uint32_t tick = cache_.store_.recency().next();
  for (const WordClass which : {WordClass::B, WordClass::H}) {
    for (const Transfer::Page& page : record.pages) {
      if (cache_.store_.slot_of(page.group).which != which) continue;
      Fill::Entry& entry = fill.entries[page.group][page.entry];
      clear_unattested(page.group, entry);
      if (record.key.kind == RecordKind::Boundary)
        copies_.note_page(page.group, entry.page, record.key.digest);
      cache_.publish_entry(fill, page.group, entry, tick);
      if (entry.state != Fill::State::Published)
        transfer.elsewhere.emplace_back(page.group, entry.block);  // pinned, and nobody answers for it there
    }
  }
  if (is_dropped(record.key.digest, record.key.kind)) copies_.ask_again();
}

// The block is given up while its page may still be written: the page is the fill's alone until the tier lets go.
void Transfers::make_private(Transfer& transfer, Transfer::Record& record) {
  for (const Transfer::Page& page : record.pages) {
    Fill::Entry& entry = transfer.fill->entries[page.group][page.entry];
    if (entry.state == Fill::State::Claimed) cache_.stay_private(page.group, entry);
  }
}

std::int64_t Transfers::ask(const KeyChain& keys, const TransferOptions& options) const {
  Tier& tier = *cache_.link_.tier;
  if (tier.caps().index) return 0;
  std::vector<RecordKey> unknown;
  for (std::int64_t unit = 1; unit <= keys.end_unit(); ++unit) {
    if (records_history_at(unit)) add_unknown(RecordKind::Block, keys.keys()[unit - 1], unknown);
    if (unit % cache_.layout_.step_units == 0)
      add_unknown(RecordKind::Boundary, keys.keys()[unit - 1], unknown);
  }
  add_unknown_tips(keys, unknown);
  BatchId batch{};
  if (unknown.empty()) return 0;
  const TierStatus taken = tier.probe(unknown, TierClock::now() + options.timeout, batch);
  return taken == TierStatus::Ok ? std::ssize(unknown) : 0;
}

// Returns: whether the tier is known to have it.
bool Transfers::add_unknown(RecordKind kind, Key128 digest, std::vector<RecordKey>& unknown) const {
  const RecordKey key = cache_.link_.record(kind, digest);
  const Presence::Answer answer = cache_.link_.tier->look(key).answer;
  if (answer == Presence::Answer::Unknown && unknown.size() < most_asked) unknown.push_back(key);
  return answer == Presence::Answer::Here;
}

// Of the last units whose history is known, what lists tips; where that is known, the tips.
void Transfers::add_unknown_tips(const KeyChain& keys, std::vector<RecordKey>& unknown) const {
  const Layout& layout = cache_.layout_;
  if (!keys.has_tokens()) return;
  std::int64_t last = layout.probe_units == 0 ? keys.end_unit() : 0;
  for (std::int64_t unit = layout.probe_units; layout.probe_units != 0 && unit <= keys.end_unit();
       unit += layout.probe_units) {
    if (records_history_at(unit) &&
        cache_.ask_tier(keys.keys()[unit - 1], RecordKind::Block) != TierAnswer::Here)
      break;
    last = unit;
  }
  if (layout.probe_units != 0) last = std::min(keys.end_unit(), last + layout.probe_units - 1);
  for (std::int64_t unit = last; unit >= std::max(last - most_units_asked, keys.first_tip_unit()); --unit) {
    const std::int64_t longest = std::min(layout.unit_tokens - 1, keys.tokens() - unit * layout.unit_tokens);
    for (std::int64_t from = 0; from <= longest; from += lengths_per_listing) {
      if (!add_unknown(RecordKind::Boundary, listing_key(keys, unit, from), unknown)) continue;
      const std::int64_t to = std::min(longest, from + lengths_per_listing - 1);
      for (std::int64_t length = to; length >= std::max(from, std::int64_t{1}); --length)
        add_unknown(RecordKind::Boundary, keys.tip_key(unit, length), unknown);
    }
  }
}

std::vector<std::pair<int, std::int64_t>> Transfers::loads(const KeyChain& keys, std::int64_t tokens) const {
  std::vector<std::pair<int, std::int64_t>> missing;
  const std::vector<Selection> needed = needed_for(keys, tokens);
  const std::shared_ptr<const KeyChain> prefix = keys.head(tokens);
  for (int g = 0; g < static_cast<int>(needed.size()); ++g) {
    const GroupSlot& at = cache_.store_.slot_of(g);
    for (const std::int64_t block : needed[g].blocks) {
      std::int64_t tip_unit = -1;
      const Sighting seen = cache_.store_.table().find(cache_.key_of_block(*prefix, g, block, tip_unit));
      if (!seen.found() || !seen.word(at.which).usable_slot(at.slot)) missing.emplace_back(g, block);
    }
  }
  return missing;
}

}  // namespace hkv
