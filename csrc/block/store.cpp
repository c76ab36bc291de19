// SPDX-License-Identifier: Apache-2.0
#include "block/store.h"

namespace hkv {
namespace {

KindMap kinds_of(std::span<const GroupSlot> groups) {
  KindMap map{};
  for (const GroupSlot& group : groups) {
    for (const StateKind kind : {group.kind, StateKind::Disk}) {
      KindSlots& slots = map[static_cast<int>(kind)];
      SlotMask& mask = group.which == WordClass::H ? slots.h : slots.b;
      mask = static_cast<SlotMask>(mask | 1u << group.slot);
    }
  }
  return map;
}

}  // namespace

BlockStore::BlockStore(std::uint32_t blocks, std::span<const GroupSlot> groups,
                       std::span<const std::uint32_t> page_counts)
    : ids_(blocks),
      descriptors_(blocks),
      lines_(Table::lines_for(blocks)),
      notes_(new Atom<std::uint32_t>[blocks]),
      table_(lines_.data(), static_cast<std::uint32_t>(lines_.size()), descriptors_.data(), notes_.get(),
             ids_),
      slots_(groups.begin(), groups.end()),
      states_(blocks, kinds_of(groups)),
      recency_(blocks, descriptors_.data()),
      changes_(blocks),
      gone_(blocks) {
  for (auto& row : group_at_) {
    for (int& group : row) group = -1;
  }
  for (int group = 0; group < group_count(); ++group) {
    group_at_[static_cast<int>(slots_[group].which)][slots_[group].slot] = group;
    pools_.push_back(std::make_unique<PagePool>(page_counts[group]));
  }
  if (group_count() > Descriptor::inline_pages) {
    const auto more = static_cast<std::size_t>(group_count() - Descriptor::inline_pages);
    more_pages_.reset(new Atom<std::uint32_t>[blocks * more]);
  }
}

void BlockStore::set_page(DescriptorId id, int group, PageId page) {
  if (group < Descriptor::inline_pages) {
    descriptors_[index(id)].set_page(group, page);
  } else {
    more_page(id, group).store(index(page));
  }
}

bool BlockStore::claim(DescriptorId id, Key128 key, int group, PageId page, bool& lives, Event how) {
  const GroupSlot& at_slot = slots_[group];
  const auto wanted = static_cast<SlotMask>(1u << at_slot.slot);
  const SlotMask taken = at_slot.which == WordClass::H ? table_.claim_h(id, key, wanted, how, lives)
                                                       : table_.claim_b(id, key, wanted, how, lives);
  if (taken == 0) return false;
  set_page(id, group, page);
  if (how == Event::RestoreBegins)
    states_.refresh(id, descriptors_[index(id)], states_.kinds_of(at_slot.which, taken, true));
  return true;
}

void BlockStore::publish(DescriptorId id, int group, std::uint32_t tick) {
  publish_where(id, group, tick, none_u32);
}

bool BlockStore::publish_unpinned(DescriptorId id, int group, std::uint32_t tick) {
  return publish_where(id, group, tick, 0);
}

bool BlockStore::publish_where(DescriptorId id, int group, std::uint32_t tick, std::uint32_t most_pins) {
  const GroupSlot& at_slot = slots_[group];
  Descriptor& d = descriptors_[index(id)];
  notes_[index(id)].fetch_or(1u << group);
  recency_.touch(id, at_slot.which, tick);
  Word seen = d.word(at_slot.which), next;
  do {
    if (seen.pins() > most_pins) return false;
    const Event event = seen.phase(at_slot.slot) == Phase::Restoring ? Event::Restored : Event::Publish;
    next = *seen.apply(static_cast<SlotMask>(1u << at_slot.slot), event);
  } while (!d.try_publish(at_slot.which, seen, next));
  evictable_.changed(at_slot.which, seen, next);
  const bool restored = next.phase(at_slot.slot) == Phase::ReadyCopy;
  states_.refresh(id, d,
                  states_.kinds_of(at_slot.which, static_cast<SlotMask>(1u << at_slot.slot), restored));
  changes_.note(id);
  return true;
}

bool BlockStore::publish_slots(DescriptorId id, WordClass which, SlotMask slots, std::uint32_t pins,
                               std::uint32_t tick, SlotMask unready) {
  Descriptor& d = descriptors_[index(id)];
  recency_.touch(id, which, tick);
  Word seen = d.word(which), next;
  do {
    if (seen.pins() + pins > Word::pins_max) return false;
    for (int slot = 0; slot < Word::slots; ++slot) {
      if (unready >> slot & 1 && seen.usable_slot(slot)) return false;
    }
    next = seen.apply(slots, Event::Publish)->pinned(pins);
  } while (!d.try_publish(which, seen, next));
  evictable_.changed(which, seen, next);
  states_.refresh(id, d, states_.kinds_of(which, slots, false));
  changes_.note(id);
  return true;
}

void BlockStore::abort(DescriptorId id, Key128 key, int group, bool keep_page) {
  const GroupSlot& at_slot = slots_[group];
  Descriptor& d = descriptors_[index(id)];
  const PageId held = page(id, group);
  Word seen = d.word(at_slot.which);
  const Event event = seen.phase(at_slot.slot) == Phase::Restoring ? Event::RestoreFailed : Event::Abort;
  const auto mask = static_cast<SlotMask>(1u << at_slot.slot);
  while (!d.try_give_up(at_slot.which, seen, seen.apply(mask, event)->without_tier_only())) {
  }
  states_.refresh(id, d);
  if (!keep_page) pool(group).give_back(held);
  table_.erase_if_empty(id, key);
}

bool BlockStore::evict(Key128 key, int group) {
  const GroupSlot& at_slot = slots_[group];
  const auto mask = static_cast<SlotMask>(1u << at_slot.slot);
  for (;;) {
    const Sighting seen = table_.find(key);
    if (!seen.found()) return false;
    Word word = seen.word(at_slot.which);
    const auto next = word.apply(mask, Event::Evict);
    if (!next || is_directory(seen.id)) return false;
    const PageId held = page(seen.id, group);
    Descriptor& d = descriptors_[index(seen.id)];
    if (!d.try_give_up(at_slot.which, word, next->without_tier_only())) continue;
    evictable_.changed(at_slot.which, word, *next);
    changes_.note(seen.id);
    give_up_slots(seen.id, key, at_slot.which, mask, &held);
    return true;
  }
}

SlotMask BlockStore::evict_at(DescriptorId id, WordClass which, SlotMask wanted) {
  EvictionRun run;
  const SlotMask gone = evict_at(id, which, wanted, run);
  give_back(run);
  return gone;
}

SlotMask BlockStore::evict_at(DescriptorId id, WordClass which, SlotMask wanted, EvictionRun& run) {
  Descriptor& d = descriptors_[index(id)];
  const Key128 key = d.key();  // of this life if sight() says so
  for (;;) {
    Word h, b;
    if (is_directory(id) || !d.sight(key, h, b)) return 0;
    Word word = which == WordClass::H ? h : b;
    const auto gone = static_cast<SlotMask>(wanted & word.evictable_slots());
    if (gone == 0) return 0;
    PageId pages[Word::slots];
    read_pages(id, which, gone, pages);
    if (!d.try_give_up(which, word, word.apply(gone, Event::Evict)->without_tier_only())) continue;
    run.change.note(which, word_detail::spread[gone]);
    changes_.note(id);
    states_.refresh(id, d, states_.kinds_of(which, gone, (gone & word.slots_in(Phase::ReadyCopy)) != 0));
    const PageId* page = pages;
    for (std::uint32_t bits = gone; bits != 0; bits &= bits - 1) {
      const int group = group_at(which, std::countr_zero(bits));
      run.pages[group][run.count[group]++] = index(*page++);
    }
    if (table_.end_if_empty(id, key)) run.ids[run.id_count++] = index(id);
    return gone;
  }
}

void BlockStore::give_back(EvictionRun& run) {
  count_change(run.change, -1);  // before they are free: no page counts twice
  for (int group = 0; group < group_count(); ++group) {
    if (run.count[group] != 0) pool(group).give_back_some({run.pages[group].data(), run.count[group]});
    run.count[group] = 0;
  }
  if (run.id_count != 0) ids_.give_back_some({run.ids.data(), run.id_count});
  run.id_count = 0;
}

void BlockStore::read_pages(DescriptorId id, WordClass which, SlotMask gone, PageId* pages) const {
  for (std::uint32_t bits = gone; bits != 0; bits &= bits - 1)
    *pages++ = page(id, group_at(which, std::countr_zero(bits)));
}

bool BlockStore::retire(DescriptorId id, int group) {
  const GroupSlot& at_slot = slots_[group];
  const auto mask = static_cast<SlotMask>(1u << at_slot.slot);
  Descriptor& d = descriptors_[index(id)];
  const Key128 key = d.key();
  Word seen = d.word(at_slot.which);
  for (;;) {
    const auto next = seen.apply(mask, Event::Retire);
    if (!next) return false;
    if (!d.try_apply(at_slot.which, seen, *next)) continue;
    evictable_.changed(at_slot.which, seen, *next);
    break;
  }
  states_.refresh(id, d);
  changes_.note(id);
  finish_retiring(id, key, at_slot.which);
  return true;
}

int BlockStore::withdraw_at(DescriptorId id, WordClass which) {
  const int taken = std::popcount(static_cast<unsigned>(evict_at(id, which, SlotMask{0xFF})));
  for (;;) {
    const Word seen = descriptors_[index(id)].word(which);
    const SlotMask left = seen.usable_slots();
    if (left == 0 || is_directory(id)) return taken;
    // A pin of our own makes the life that was seen, no directory's, go on until its slots retire.
    const PinResult result = pin(id, which, seen, left);
    if (result == PinResult::Full) return taken;
    if (result == PinResult::Raced) continue;
    for (std::uint32_t bits = left; bits != 0; bits &= bits - 1)
      retire(id, group_at(which, std::countr_zero(bits)));
    unpin(id, which);
    return taken;
  }
}

bool BlockStore::retire_of(Key128 key, int group) {
  const Sighting seen = table_.find(key);
  const GroupSlot& at_slot = slots_[group];
  const auto mask = static_cast<SlotMask>(1u << at_slot.slot);
  // A pin of our own makes the life go on until it is retired.
  if (!seen.found() || is_directory(seen.id) ||
      pin(seen.id, at_slot.which, seen.word(at_slot.which), mask) != PinResult::Pinned)
    return false;
  const bool done = retire(seen.id, group);
  unpin(seen.id, at_slot.which);
  return done;
}

SlotMask BlockStore::begin_offload(DescriptorId id, WordClass which, SlotMask wanted) {
  Descriptor& d = descriptors_[index(id)];
  Word seen = d.word(which);
  for (;;) {
    const auto copied = static_cast<SlotMask>(wanted & seen.slots_in(Phase::ReadyCopy));
    const auto mine = static_cast<SlotMask>(copied | (wanted & seen.slots_in(Phase::Ready)));
    if (mine == 0) return 0;
    const Word next = *seen.apply(copied, Event::RecordGone)->apply(mine, Event::OffloadBegins);
    if (!d.try_apply(which, seen, next)) continue;
    if (copied != 0) states_.refresh(id, d, states_.kinds_of(which, copied, true));
    return mine;
  }
}

void BlockStore::end_offload(DescriptorId id, WordClass which, SlotMask marked, bool copied) {
  Descriptor& d = descriptors_[index(id)];
  Word seen = d.word(which);
  for (;;) {
    const auto mine = static_cast<SlotMask>(marked & seen.slots_in(Phase::Offloading));
    if (mine == 0) return;
    if (!d.try_apply(which, seen, *seen.apply(mine, copied ? Event::Offloaded : Event::OffloadFailed)))
      continue;
    states_.refresh(id, d, states_.kinds_of(which, mine, true));
    return;
  }
}

bool BlockStore::lose_copies(DescriptorId id, WordClass which, Word seen, SlotMask gone) {
  Descriptor& d = descriptors_[index(id)];
  if (!d.try_apply(which, seen, *seen.apply(gone, Event::RecordGone))) return false;
  states_.refresh(id, d, states_.kinds_of(which, gone, true));
  return true;
}

void BlockStore::publish_directory(DescriptorId id) {
  note_directory(id);
  Descriptor& d = descriptors_[index(id)];
  Word seen = d.word(WordClass::H);
  while (!d.try_publish(WordClass::H, seen, *seen.apply(1, Event::Publish))) {
  }
}

bool BlockStore::is_dead_entry(DescriptorId directory, std::uint32_t entry) const {
  const DescriptorId tip{entry};
  if (entry == none_u32 || !is_tip_of(tip, directory)) return true;
  const Word h = (*this)[tip].word(WordClass::H);
  return !h.live() || (h.no_phase() && (*this)[tip].word(WordClass::B).no_phase());
}

bool BlockStore::directory_is_empty(DescriptorId id) const {
  for (int slot = 0; slot < Descriptor::tips_per_directory; ++slot) {
    if (!is_dead_entry(id, (*this)[id].tip(slot).load())) return false;
  }
  return true;
}

void BlockStore::end_directory(DescriptorId id, Key128 key, Word seen) {
  const auto next = seen.apply(1, Event::Evict);
  if (!next || !descriptors_[index(id)].try_give_up(WordClass::H, seen, *next)) return;
  changes_.note(id);
  table_.erase_if_empty(id, key);
}

PinResult BlockStore::pin(DescriptorId id, WordClass which, Word seen, SlotMask required) {
  EvictableChange change;
  const PinResult result = pin(id, which, seen, required, change);
  count_pins(change);
  return result;
}

void BlockStore::unpin(DescriptorId id, WordClass which) {
  EvictableChange change;
  unpin(id, which, recency_.next(), change);
  count_unpins(change);
}

void BlockStore::unpin(DescriptorId id, WordClass which, std::uint32_t tick, EvictableChange& change) {
  Descriptor& d = descriptors_[index(id)];
  const Key128 key = d.key();  // stable while pinned; used only if this unpin has something to finish
  const Word left = d.unpin(which);
  if (left.pins() != 0) return;
  recency_.touch(id, which, tick);
  change.note(which, left.evictable_spread());
  if (left.any(Phase::Retiring)) [[unlikely]]
    finish_retiring(id, key, which);
}

void BlockStore::count_change(EvictableChange& change, int sign) {
  change.drain([&](WordClass which, int slot, std::int64_t n) { evictable_.add(which, slot, sign * n); });
}

// Whoever sees 0 pins may finish; the page ids are read before the CAS that gives them up, and belong to
// it because a moved generation fails it.
void BlockStore::finish_retiring(DescriptorId id, Key128 key, WordClass which) {
  Descriptor& d = descriptors_[index(id)];
  Word h, b;
  for (;;) {
    if (!d.sight_steadily(key, h, b)) return;  // giving up here would leave a page retiring for ever
    Word seen = which == WordClass::H ? h : b;
    const SlotMask gone = seen.slots_in(Phase::Retiring);
    if (gone == 0 || seen.pins() != 0) return;
    PageId pages[Word::slots];
    read_pages(id, which, gone, pages);
    if (!d.try_give_up(which, seen, *seen.apply(gone, Event::Finish))) continue;
    give_up_slots(id, key, which, gone, pages);
    return;
  }
}

void BlockStore::give_up_slots(DescriptorId id, Key128 key, WordClass which, SlotMask gone,
                               const PageId* pages) {
  states_.refresh(id, descriptors_[index(id)], states_.kinds_of(which, gone, true));
  for (int slot = 0; slot < Word::slots; ++slot) {
    if (gone >> slot & 1) pool(group_at_[static_cast<int>(which)][slot]).give_back(*pages++);
  }
  table_.erase_if_empty(id, key);
}

BlockStore::Holding BlockStore::holding(DescriptorId id) const {
  const Descriptor& d = descriptors_[index(id)];
  for (;;) {
    const Key128 key = d.key();  // of this life if look() says so
    Word h, b;
    const Descriptor::Look seen = d.look(key, h, b);
    if (seen == Descriptor::Look::No || (seen == Descriptor::Look::Yes && !h.live())) return {};
    if (seen == Descriptor::Look::Moved) continue;
    const bool directory = is_directory(id);
    // The note is cleared for the next life, so it is this one's while H has not moved on.
    if (d.word(WordClass::H).generation() != h.generation()) continue;
    if (directory) return {};
    return {key, groups_of(WordClass::H, h.usable_slots()) | groups_of(WordClass::B, b.usable_slots())};
  }
}

std::optional<Key128> BlockStore::parent_key(DescriptorId id) const {
  const std::uint32_t tag = recency_.parent_tag(id);
  const DescriptorId parent = descriptors_[index(id)].parent();
  if (tag == 0 || index(parent) >= blocks()) return std::nullopt;
  const Descriptor& d = descriptors_[index(parent)];
  const std::uint32_t life = d.word(WordClass::H).generation();
  const Key128 key = d.key();
  if (d.word(WordClass::H).generation() != life || Recency::tag_of(key) != tag) return std::nullopt;
  return key;
}

void BlockStore::reset() {
  changes_.forget();
  for (std::uint32_t i = 0; i < ids_.count(); ++i) {
    if (!ids_.is_free(i)) descriptors_[i].reset();
  }
  for (std::uint32_t i = 0; i < lines_.size(); ++i) lines_[i].reset();
  for (auto& pool : pools_) pool->reset();
  ids_.reset();
  states_.reset();
  evictable_.reset();
}

DescriptorId BlockStore::verify() const {
  for (std::uint32_t i = 0; i < ids_.count(); ++i) {
    const DescriptorId id{i};
    if (!ids_.is_free(i) && !is_directory(id) && !states_.verify(id, (*this)[id])) return id;
  }
  return no_descriptor;
}

BlockStore::Census BlockStore::census(int group, std::uint64_t private_pages) const {
  Census census;
  census.free = pool(group).free_count();
  census.filling = private_pages;
  const GroupSlot& at_slot = slots_[group];
  for (std::uint32_t i = 0; i < ids_.count(); ++i) {
    const DescriptorId id{i};
    if (ids_.is_free(i) || is_directory(id)) continue;
    const Word word = (*this)[id].word(at_slot.which);
    const Phase phase = word.phase(at_slot.slot);
    if (!(*this)[id].word(WordClass::H).live() || !holds_page(phase)) continue;
    if (in_making(phase)) {
      ++census.filling;
    } else if (word.pins() != 0 || phase == Phase::Retiring || phase == Phase::Offloading) {
      ++census.held;
    } else {
      ++census.cached;
    }
  }
  return census;
}

std::size_t BlockStore::unit_bytes() const {
  return descriptors_.bytes() + lines_.bytes() + ids_.count() * sizeof(std::uint32_t) + ids_.bytes() +
         states_.bytes() + recency_.bytes() + changes_.bytes() +
         (more_pages_ ? std::size_t{ids_.count()} * sizeof(std::uint32_t) *
                            static_cast<std::size_t>(group_count() - Descriptor::inline_pages)
                      : 0);
}

}  // namespace hkv
