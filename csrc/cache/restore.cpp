// SPDX-License-Identifier: Apache-2.0
// Restore: pages for what a length needs and is not here, loaded from the tier, published once verified.
#include <algorithm>

#include "cache/transfers.h"

namespace hkv {
namespace {

constexpr std::size_t most_asked = 1024;  // records of one question: of a longer prefix the beginning

}  // namespace

// Own blocks of each group that a resume at the length needs; of those that can be computed again what is stored.
std::vector<Selection> Transfers::needed_for(const KeyChain& keys, std::int64_t tokens) const {
  const Layout& layout = cache_.layout_;
  const std::int64_t units = tokens / layout.unit_tokens;
  if (tokens <= 0 || tokens % layout.step_tokens() != 0 || units > keys.end_unit()) {
    throw Error(ErrorCode::ArgumentError, "tokens",
                "a multiple of " + std::to_string(layout.step_tokens()) + " inside the keys",
                std::to_string(tokens));
  }
  const RecordKey boundary = cache_.link_.record(RecordKind::Boundary, keys.keys()[units - 1]);
  const Presence stored = cache_.link_.tier->look(boundary);
  const std::uint8_t left_out = stored.answer == Presence::Answer::Here ? stored.flags : 0xFF;
  std::vector<Selection> needed(layout.groups.size());
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    const Group& group = layout.groups[g];
    if (group.rebuildable && (left_out & left_out_flag(layout, static_cast<int>(g))) != 0) continue;
    const BlockSpan span = needed_blocks(group.coverage, layout.block_tokens(group), tokens);
    const std::int64_t whole_end = units / group.block_units;
    for (std::int64_t block = span.from; block < std::min(span.to, whole_end); ++block)
      needed[g].blocks.push_back(block);
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
  transfer->keys = keys;
  transfer->tokens = tokens;
  transfer->fill = cache_.reserve(keys, needed, cache_.spec_formats_, nullptr, ticket, true);
  const std::lock_guard guard(lock_);
  list_records(*transfer);
  begin(transfer);
  return transfer;
}

// A record for each block whose pages the fill holds, lowest first, and one for the boundary. Pages of blocks that
// another had claimed go back: its owner will publish them.
void Transfers::list_records(Transfer& transfer) {
  Fill& fill = *transfer.fill;
  const Layout& layout = cache_.layout_;
  std::vector<std::pair<std::int64_t, Transfer::Page>> history;  // by the unit at which the block ends
  Transfer::Record boundary;
  for (int g = 0; g < static_cast<int>(layout.groups.size()); ++g) {
    for (std::size_t i = 0; i < fill.entries[g].size(); ++i) {
      Fill::Entry& entry = fill.entries[g][i];
      if (entry.state != Fill::State::Claimed) {
        ++transfer.elsewhere;
        cache_.give_back(fill, g, entry, false);
      } else if (layout.groups[g].prefix()) {
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
  boundary.key = cache_.link_.record(RecordKind::Boundary,
                                     transfer.keys->keys()[transfer.tokens / layout.unit_tokens - 1]);
  boundary.tokens = transfer.tokens;
  transfer.records.push_back(std::move(boundary));
}

// All pages of the record at once, B before H.
void Transfers::publish(Transfer& transfer, Transfer::Record& record) {
  Fill& fill = *transfer.fill;
  const std::uint32_t tick = cache_.store_.recency().next();
  for (const WordClass which : {WordClass::B, WordClass::H}) {
    for (const Transfer::Page& page : record.pages) {
      if (cache_.store_.slot_of(page.group).which != which) continue;
      Fill::Entry& entry = fill.entries[page.group][page.entry];
      cache_.publish_entry(fill, page.group, entry, tick);
      if (entry.state != Fill::State::Published)
        ++transfer.elsewhere;  // pinned, and nobody answers for it there
    }
  }
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
  const auto add = [&](RecordKind kind, std::int64_t unit) {
    const RecordKey key = cache_.link_.record(kind, keys.keys()[unit - 1]);
    if (unknown.size() < most_asked && tier.look(key).answer == Presence::Answer::Unknown)
      unknown.push_back(key);
  };
  for (std::int64_t unit = 1; unit <= keys.end_unit(); ++unit) {
    if (records_history_at(unit)) add(RecordKind::Block, unit);
    if (unit % cache_.layout_.step_units == 0) add(RecordKind::Boundary, unit);
  }
  BatchId batch{};
  if (unknown.empty()) return 0;
  const TierStatus taken = tier.probe(unknown, TierClock::now() + options.timeout, batch);
  return taken == TierStatus::Ok ? std::ssize(unknown) : 0;
}

std::vector<std::pair<int, std::int64_t>> Transfers::loads(const KeyChain& keys, std::int64_t tokens) const {
  std::vector<std::pair<int, std::int64_t>> missing;
  const std::vector<Selection> needed = needed_for(keys, tokens);
  for (int g = 0; g < static_cast<int>(needed.size()); ++g) {
    const GroupSlot& at = cache_.store_.slot_of(g);
    for (const std::int64_t block : needed[g].blocks) {
      std::int64_t tip_unit = -1;
      const Sighting seen = cache_.store_.table().find(cache_.key_of_block(keys, g, block, tip_unit));
      if (!seen.found() || !seen.word(at.which).usable_slot(at.slot)) missing.emplace_back(g, block);
    }
  }
  return missing;
}

}  // namespace hkv
