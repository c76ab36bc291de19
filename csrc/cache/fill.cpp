// SPDX-License-Identifier: Apache-2.0
// reserve, publish, abort, evict: how pages come and go.
#include <algorithm>
#include <bit>

#include "cache/cache.h"
#include "layout/key_message.h"

namespace hkv {

// Own blocks of a group that the selection names: those that end inside the slice, and the partial block of
// a tip. All of them means those that end after `after`. Throws Error(ArgumentError) on an index outside.
std::vector<std::int64_t> HybridCache::selected(const KeyChain& keys, int group, const Selection& selection,
                                                Of of, std::int64_t after) const {
  const Group& g = layout_.groups[group];
  const std::int64_t first = keys.begin_unit() / g.block_units, whole_end = keys.end_unit() / g.block_units;
  const bool tip = keys.rest_tokens() != 0 && keys.has_tokens();
  const std::int64_t end = whole_end + (tip ? 1 : 0);
  std::vector<std::int64_t> blocks;
  if (selection.all) {
    for (std::int64_t block = first; block < end; ++block) {
      const std::int64_t ends = block < whole_end ? (block + 1) * layout_.block_tokens(g) : keys.tokens();
      if (ends > after && (of == Of::Any || needs_page(group, ends))) blocks.push_back(block);
    }
    return blocks;
  }
  for (const std::int64_t block : selection.blocks) {
    if (block < first || block >= end) {
      throw Error(ErrorCode::ArgumentError, "groups[" + g.name + "]",
                  "own blocks in [" + std::to_string(first) + ", " + std::to_string(end) + ")",
                  std::to_string(block));
    }
  }
  return selection.blocks;
}

// Whether a state at the length can ever be asked for: a checkpoint group needs none at its own multiples.
bool HybridCache::needs_page(int group, std::int64_t tokens) const {
  const Group& g = layout_.groups[group];
  return g.coverage.rule != Rule::Checkpoint || !needed_span(g.coverage, tokens).empty();
}

// The key that records an own block, and for a tip's partial block the whole units before the tip.
Key128 HybridCache::key_of_block(const KeyChain& keys, int group, std::int64_t block,
                                 std::int64_t& tip_unit) const {
  const std::int64_t end = (block + 1) * layout_.groups[group].block_units;
  tip_unit = end <= keys.end_unit() ? -1 : keys.end_unit();
  return tip_unit < 0 ? keys.keys()[end - 1] : keys.tip_key(keys.end_unit(), keys.rest_tokens());
}

std::unique_ptr<Fill> HybridCache::reserve(const std::shared_ptr<const KeyChain>& keys,
                                           std::span<const Selection> groups,
                                           std::span<const FormatId> formats, const Lease* lease,
                                           Ticket* ticket) {
  return reserve(keys, groups, formats, lease, ticket, false);
}

std::unique_ptr<Fill> HybridCache::reserve(const std::shared_ptr<const KeyChain>& keys,
                                           std::span<const Selection> groups,
                                           std::span<const FormatId> formats, const Lease* lease,
                                           Ticket* ticket, bool restoring) {
  if (ticket != nullptr) check_open(*ticket);
  auto fill = std::make_unique<Fill>();
  fill->restoring = restoring;
  fill->keys = keys;
  fill->born = resets_;
  fill->formats.assign(formats.begin(), formats.end());
  fill->entries.resize(layout_.groups.size());
  fill->copies.resize(layout_.groups.size());
  if (ticket != nullptr) {
    if (ticket->fills == nullptr)
      ticket->fills = std::make_shared<FillRight>(
          FillRight{&ticket->share, std::vector<std::int64_t>(layout_.groups.size())});
    fill->right = ticket->fills;
  }
  Described described;
  list_entries(*fill, groups, lease, described);
  if (ticket != nullptr) check_share(*fill, *ticket);
  check_room(*fill, described);
  AdmissionLedger::Share share;
  if (ticket == nullptr) claim_room(*fill, share);
  live_fills_.fetch_add(1);
  try {
    take_entries(*fill);
  } catch (const Error&) {
    if (share.live) admission_.end(share);
    let_ready_go(*fill, false);
    abort(*fill, false);
    throw;
  }
  if (share.live) admission_.end(share);
  let_ready_go(*fill, true);
  if (lease != nullptr) add_copies(*fill, *lease);
  return fill;
}

// What is needed, so that a refusal leaves everything as it was; concurrent takers are met when pages are taken.
void HybridCache::list_entries(Fill& fill, std::span<const Selection> groups, const Lease* lease,
                               Described& described) const {
  const KeyChain& keys = *fill.keys;
  // A request that starts at a lease writes nothing before it: a page there would be published unwritten.
  const std::int64_t written_from = lease == nullptr ? 0 : lease->tokens;
  for (int g = 0; g < store_.group_count(); ++g) {
    const GroupSlot& at = store_.slot_of(g);
    for (const std::int64_t block : selected(keys, g, groups[g], Of::Needed, written_from)) {
      Fill::Entry entry{block, no_page, {}, no_descriptor, Fill::State::Given, -1, 0};
      entry.key = key_of_block(keys, g, block, entry.tip_unit);
      if (entry.tip_unit >= 0) entry.rows = rows_in_tip(g, keys.tokens());
      const Sighting seen = store_.table().find(entry.key);
      const std::int64_t unit =
          entry.tip_unit >= 0 ? entry.tip_unit + 1 : (block + 1) * layout_.groups[g].block_units;
      if (seen.found() && seen.word(at.which).usable_slot(at.slot)) {
        if (policy_ != nullptr) fill.ready.push_back({seen.id, g, unit, seen.word(at.which)});
        continue;
      }
      if (fill.restoring && seen.found() && in_making(seen.word(at.which).phase(at.slot))) {
        fill.elsewhere.emplace_back(g, block);  // no room is made for what another brings
        continue;
      }
      if (seen.found()) {
        described.met.push_back(seen.id);
      } else {
        described.new_units.push_back(entry.tip_unit >= 0 ? -1 : unit);
      }
      fill.entries[g].push_back(entry);
    }
  }
}

// Takes the pages and claims their blocks. Throws Error(OutOfPages); what was taken by then is the fill's to give back.
void HybridCache::take_entries(Fill& fill) {
  std::vector<PageId> pages;
  for (int g = 0; g < store_.group_count(); ++g) take_pages(fill, g, pages);
  for (int g = 0; g < store_.group_count(); ++g) {
    for (Fill::Entry& entry : fill.entries[g]) {
      // Where another is filling the block the page stays private.
      Claim claim = claim_entry(fill, g, entry);
      for (int attempt = 0; claim == Claim::Full && attempt < take_attempts; ++attempt) {
        // One is short, and more will be: each pass over all descriptors is to serve many.
        if (make_room(descriptor_pool, 1 + store_.blocks() / 64) == 0) break;
        claim = claim_entry(fill, g, entry);
      }
      if (claim == Claim::Full) throw OutOfPagesError("blocks", 1, 0);
    }
  }
}

// A fill of a ticket takes what the ticket could: its share is there, and nobody else's is touched.
// Throws Error(OutOfPages); nothing has changed then.
void HybridCache::check_share(const Fill& fill, const Ticket& ticket) const {
  for (int g = 0; g < store_.group_count(); ++g) {
    const auto pages = static_cast<std::int64_t>(fill.entries[g].size());
    const std::int64_t room = room_of(ticket, g, pages);
    if (pages > room) throw OutOfPagesError(layout_.groups[g].name, pages, room);
  }
}

// Makes sure that the fill takes no page that a ticket was promised, until it has its pages.
// Throws Error(OutOfPages); nothing has changed then.
void HybridCache::claim_room(Fill& fill, AdmissionLedger::Share& share) {
  std::vector<std::int64_t> pages;
  for (const auto& entries : fill.entries) pages.push_back(static_cast<std::int64_t>(entries.size()));
  int group = 0;
  const std::vector<AdmissionLedger::Room> rooms = this->rooms();
  if (admission_.admit_fill(share, pages, rooms, group)) return;
  let_ready_go(fill, false);
  throw OutOfPagesError(layout_.groups[group].name, pages[group],
                        std::max<std::int64_t>(admission_.spare(group, rooms[group]), 0));
}

// Takes a page for each entry of a group, private until it is claimed, and makes room for those that are short. Throws
// Error(OutOfPages) where others were faster; the pages taken by then are the fill's to give back.
void HybridCache::take_pages(Fill& fill, int group, std::vector<PageId>& scratch) {
  std::vector<Fill::Entry>& entries = fill.entries[group];
  scratch.resize(entries.size());
  const std::size_t taken = take_some(group, scratch);
  const auto pages = static_cast<std::int64_t>(taken);
  private_pages_[group].fetch_add(pages);
  if (AdmissionLedger::Share* const share = fill.share()) {
    admission_.took(*share, group, pages);
    fill.right->pages[static_cast<std::size_t>(group)] += pages;
  } else {
    unowned_pages_[group].fetch_add(pages);
  }
  for (std::size_t i = 0; i < taken; ++i) {
    entries[i].page = scratch[i];
    entries[i].state = Fill::State::Private;
  }
  if (taken < entries.size()) {
    throw OutOfPagesError(layout_.groups[group].name, static_cast<long long>(entries.size()),
                          static_cast<long long>(taken));
  }
}

// The descriptor of a key, made if there is none. Returns: Taken with `id`; Lost where it cannot be found; Full where
// no descriptor is free.
HybridCache::Claim HybridCache::place(Key128 key, bool may_have_tips, DescriptorId& id) {
  const Placement placed = store_.table().get_or_insert(key);
  if (placed.how == Placed::Full) return Claim::Full;
  if (placed.how == Placed::Private) {
    counters_.add(kUnplaced, 1);
    return Claim::Lost;
  }
  id = placed.id;
  // A unit that comes back may still have a tip directory below it.
  if (placed.how == Placed::Inserted && may_have_tips && tips_filed_.load() != 0 &&
      store_.table().find(key_message::directory_key(key)).found())
    store_.note_tips(id);
  return Claim::Taken;
}

// Returns: Taken where the block is now this fill's, Lost where it is another's or cannot be found, Full where
// no descriptor is free.
HybridCache::Claim HybridCache::claim_entry(Fill& fill, int group, Fill::Entry& entry) {
  const bool may_have_tips = entry.tip_unit < 0 && fill.keys->has_tokens();
  for (;;) {
    DescriptorId id = no_descriptor;
    const Claim placed = place(entry.key, may_have_tips, id);
    if (placed != Claim::Taken) return placed;
    bool lives = true;
    const Event how = fill.restoring ? Event::RestoreBegins : Event::Claim;
    if (store_.claim(id, entry.key, group, entry.page, lives, how)) {
      entry.id = id;
      entry.state = Fill::State::Claimed;
      private_pages_[group].fetch_sub(1);
      return Claim::Taken;
    }
    if (lives) {
      store_.table().erase_if_empty(id, entry.key);
      return Claim::Lost;
    }
  }
}

// Rows of the partial block at the end of so many tokens that a tip there attests.
std::uint32_t HybridCache::rows_in_tip(int group, std::int64_t tokens) const {
  const Group& g = layout_.groups[group];
  if (g.coverage.rule == Rule::Checkpoint) return 0;  // a state is whole or not there
  const std::int64_t rows = tokens % layout_.block_tokens(g) / g.tokens_per_row;
  const std::int64_t kept = g.rows_per_page == 0 ? rows : std::min(rows, g.rows_per_page);
  return static_cast<std::uint32_t>(std::max<std::int64_t>(kept, 1));
}

// The fill starts inside a shared page: its own page of that block gets the rows the lease attests.
void HybridCache::add_copies(Fill& fill, const Lease& lease) {
  for (const Lease::Held& held : lease.held) {
    const Group& g = layout_.groups[held.group];
    const std::int64_t start = held.block * layout_.block_tokens(g);
    const bool partial = start + layout_.block_tokens(g) > lease.tokens;
    if (!partial || g.coverage.rule == Rule::Checkpoint) continue;
    for (const Fill::Entry& entry : fill.entries[held.group]) {
      if (entry.block != held.block || entry.page == no_page) continue;
      const PageId source = store_.page(held.id, held.group);
      const std::uint32_t rows = store_.pool(held.group)[source].attested_rows.load();
      fill.copies[held.group].push_back({source, entry.page, static_cast<std::int32_t>(rows)});
    }
  }
}

// ---- publish -----------------------------------------------------------------------------------

HybridCache::Chosen HybridCache::chosen_of(const Fill& fill, std::span<const Selection> groups) const {
  if (fill.born != resets_)
    throw Error(ErrorCode::FillClosed, "fill", "a fill younger than the last reset", "an older one");
  Chosen chosen;
  for (int g = 0; g < store_.group_count(); ++g)
    chosen.push_back(selected(*fill.keys, g, groups[g], Of::Any, 0));
  return chosen;
}

void HybridCache::check_selection(const Fill& fill, std::span<const Selection> groups) const {
  chosen_of(fill, groups);
}

void HybridCache::publish(Fill& fill, std::span<const Selection> groups) {
  const Chosen chosen = chosen_of(fill, groups);
  const std::uint32_t tick = store_.recency().next();
  for (const WordClass which : {WordClass::B, WordClass::H}) {
    for (int g = 0; g < store_.group_count(); ++g) {
      if (store_.slot_of(g).which != which) continue;
      const auto& blocks = chosen[g];
      const bool all = groups[g].all;
      for (Fill::Entry& entry : fill.entries[g]) {
        if (all || std::find(blocks.begin(), blocks.end(), entry.block) != blocks.end())
          publish_entry(fill, g, entry, tick);
      }
    }
  }
  use_ready(fill, tick);
  note_if_done(fill);
}

void HybridCache::publish_entry(Fill& fill, int group, Fill::Entry& entry, std::uint32_t tick) {
  if (entry.state == Fill::State::Private) {
    Claim claim = claim_entry(fill, group, entry);
    if (claim == Claim::Full && make_room(descriptor_pool, 1 + store_.blocks() / 64) > 0)
      claim = claim_entry(fill, group, entry);
    if (claim != Claim::Taken) {
      // The first writer of a key won, or the table has no room for it: the page stays private, and the fill is done
      // with it, unless a later publish of the same block finds that changed.
      if (!entry.counted) counters_.add(claim == Claim::Full ? kUnplaced : kDuplicates, 1);
      if (claim == Claim::Full) note_gone(entry.key, group, Cause::Unplaced);
      entry.counted = true;
      return;
    }
  }
  if (entry.state != Fill::State::Claimed) return;
  const KeyChain& keys = *fill.keys;
  const Key128 parent = entry.tip_unit <= 0 ? keys.root() : keys.keys()[entry.tip_unit - 1];
  if (entry.tip_unit >= 0) make_directory_room(parent, 0);
  const bool history = layout_.groups[group].prefix() && entry.tip_unit < 0;
  failed_loads_.forget(history ? RecordKind::Block : RecordKind::Boundary, entry.key);
  describe_page(group, entry.page, fill.formats[group], entry.rows);
  link_entry(fill, group, entry);  // while the life cannot end
  if (fill.share() == nullptr) {
    unowned_pages_[group].fetch_sub(1);
    store_.publish(entry.id, group, tick);
  } else if (!publish_charged(fill, group, entry, tick)) {
    stay_private(group, entry);
    return;
  }
  entry.state = Fill::State::Published;
  counters_.add(kPublished, 1);
  if (entry.tip_unit >= 0) file_tip(parent, entry.id);
}

// Makes a page visible that a share answers for, and lets it go from the share. Returns: whether it may be seen.
bool HybridCache::publish_charged(Fill& fill, int group, Fill::Entry& entry, std::uint32_t tick) {
  AdmissionLedger::Share& share = *fill.share();
  const WordClass which = store_.slot_of(group).which;
  bool visible = false;
  while (!visible) {
    if (store_[entry.id].word(which).pins() != 0) {
      // Whoever pins the word for a neighbour would hold this page too, and nobody promised it to them.
      if (!admission_.pass_on(share, group, room_of(group))) return false;
      store_.publish(entry.id, group, tick);
      visible = true;
      continue;
    }
    admission_.gave(share, group, 1);
    visible = store_.publish_unpinned(entry.id, group, tick);
    if (!visible) admission_.took(share, group, 1);  // pinned meanwhile
  }
  --fill.right->pages[static_cast<std::size_t>(group)];
  return true;
}

// A claimed block is not to be seen yet; a later publish may try again.
void HybridCache::stay_private(int group, Fill::Entry& entry) {
  private_pages_[group].fetch_add(1);
  note_gone(entry.key, group, Cause::Unpromised);
  store_.abort(entry.id, entry.key, group, true);
  entry.id = no_descriptor;
  entry.state = Fill::State::Private;
  entry.counted = true;
}

// What a page holds, for whoever sees it published.
void HybridCache::describe_page(int group, PageId page, FormatId format, std::uint32_t rows) {
  PageRecord& record = store_.pool(group)[page];
  record.format.store(format);
  record.attested_rows.store(rows);
  take_fingerprint(group, page);
  note_format(group, format);
}

// Whether all pages of a group have one format; read by match before and after its pins.
void HybridCache::note_format(int group, FormatId format) {
  Atom<std::uint32_t>& one = page_formats_[group];
  std::uint32_t now = one.load();
  for (;;) {
    if (now == format + 1u || now == none_u32) return;
    if (!one.compare_exchange(now, now == 0 ? format + 1u : none_u32)) continue;
    formats_turn_.fetch_add(1);
    return;
  }
}

// ---- giving back -------------------------------------------------------------------------------

void HybridCache::give_back(Fill& fill, int group, Fill::Entry& entry, bool quarantine) {
  if (entry.state != Fill::State::Claimed && entry.state != Fill::State::Private) return;
  AdmissionLedger::Share* const share = fill.share();
  if (share != nullptr && !quarantine) admission_.gave(*share, group, 1);
  if (entry.state == Fill::State::Claimed) {
    note_gone(entry.key, group, quarantine ? Cause::Lost : Cause::Aborted);
    store_.abort(entry.id, entry.key, group, quarantine);
  } else {
    private_pages_[group].fetch_sub(1);
    if (!quarantine) store_.pool(group).give_back(entry.page);
  }
  if (quarantine) {
    counters_.add(kQuarantined, 1);
    quarantined_pages_[group].fetch_add(1);
    if (share != nullptr) admission_.lost(*share, group);
  }
  if (share == nullptr) {
    unowned_pages_[group].fetch_sub(1);
  } else {
    --fill.right->pages[static_cast<std::size_t>(group)];
  }
  entry.state = Fill::State::Given;
}

void HybridCache::abort(Fill& fill, bool quarantine) {
  if (fill.born != resets_) return;  // a reset took every page back
  for (int g = 0; g < store_.group_count(); ++g) {
    for (Fill::Entry& entry : fill.entries[g]) give_back(fill, g, entry, quarantine);
  }
  fill.closed = true;
  note_if_done(fill);
}

void HybridCache::note_if_done(Fill& fill) {
  if (fill.done) return;
  for (const auto& entries : fill.entries) {
    for (const Fill::Entry& entry : entries) {
      if (entry.state == Fill::State::Claimed || (entry.state == Fill::State::Private && !entry.counted))
        return;
    }
  }
  fill.done = true;
  live_fills_.fetch_sub(1);
}

std::int64_t HybridCache::evict(const KeyChain& keys, std::span<const Selection> groups) {
  std::vector<std::vector<std::int64_t>> chosen;
  for (int g = 0; g < store_.group_count(); ++g) chosen.push_back(selected(keys, g, groups[g], Of::Any, 0));
  std::int64_t retired = 0;
  std::int64_t tip_unit = -1;
  for (int g = 0; g < store_.group_count(); ++g) {
    const auto& blocks = chosen[g];
    for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {  // suffix before prefix
      std::int64_t unit = -1;
      const Key128 key = key_of_block(keys, g, *block, unit);
      if (store_.evict(key, g)) {
        note_gone(key, g, Cause::Asked);
        ++retired;
      }
      tip_unit = std::max(tip_unit, unit);
    }
  }
  if (tip_unit >= 0) unfile_tips(keys, tip_unit, keys.rest_tokens());
  counters_.add(kRetired, retired);
  return retired;
}

// Remembers of all that is published that it went, while it is there.
void HybridCache::note_all_gone(Cause cause) {
  const std::uint32_t now = Gone::now();
  for (std::uint32_t i = 0; i < store_.blocks(); ++i) {
    const BlockStore::Holding held = store_.holding(DescriptorId{i});
    for (std::uint32_t bits = held.groups; bits != 0; bits &= bits - 1)
      store_.gone().note(held.key, std::countr_zero(bits), cause, now);
  }
}

std::int64_t HybridCache::withdraw_all() {
  std::int64_t taken = 0;
  std::vector<Key128> directories;
  note_all_gone(Cause::Withdrawn);
  for (std::uint32_t i = 0; i < store_.blocks(); ++i) {
    const DescriptorId id{i};
    if (store_.is_directory(id)) directories.push_back(store_[id].key());
    for (const WordClass which : {WordClass::H, WordClass::B}) taken += store_.withdraw_at(id, which);
  }
  for (const Key128 key : directories) unfile_directory(key);
  counters_.add(kRetired, taken);
  store_.changes().forget();
  return taken;
}

void HybridCache::quarantine(DescriptorId id, int group) {
  const Key128 key = store_[id].key();
  if (!store_.retire(id, group)) return;
  note_gone(key, group, Cause::Damaged);
  counters_.add(kQuarantined, 1);
}

}  // namespace hkv
