// SPDX-License-Identifier: Apache-2.0
// The shared truth in one place: descriptors, table, pages and the derived index, and the steps that move
// a (block, group) from phase to phase.
//
// Thread safety: every operation on any thread, except where "owner" is required.
// Invariants:
//  1. A page is in exactly one place: free in its pool, or named by one (block, group) whose phase holds a
//     page, or private to a fill. Why: a claim or a fill takes it from the pool; only the CAS that gives the
//     group up returns it, and one CAS of several wins.
//  2. A page given back has no reader: Evict and Finish need 0 pins, Abort is the owner's.
//  3. Every step refreshes the derived index after its CAS (state_index.h), and adds what it changed to the counts of
//     evictable pages (evictable.h). A tip directory holds no page: its steps, and its pins, are not counted.
//  4. Every step after which a page can be pinned that could not before, or the reverse, notes the descriptor in the log of
//     changes after its CAS (change_log.h). So does the end of a directory, whose slot could be taken for a page.
#pragma once
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/arena.h"
#include "base/atomic.h"
#include "base/types.h"
#include "block/change_log.h"
#include "block/descriptor.h"
#include "block/evictable.h"
#include "block/gone.h"
#include "block/id_pool.h"
#include "block/page_pool.h"
#include "block/recency.h"
#include "block/state_index.h"
#include "block/table.h"

namespace hkv {

// Where a group lives in a descriptor.
struct GroupSlot {
  WordClass which = WordClass::H;
  std::uint8_t slot = 0;
  StateKind kind = StateKind::Compressed;
};

// What evicting many pages adds up: pages and descriptors go back to their pools, and are counted, together.
struct EvictionRun {
  static constexpr int most_pages = 64;  // of a group; descriptors as well
  EvictableChange change;
  std::array<std::array<std::uint32_t, most_pages>, 2 * Word::slots> pages;  // a group
  std::array<std::uint8_t, 2 * Word::slots> count{};                         // a group
  std::array<std::uint32_t, most_pages> ids;                                 // descriptors whose life ended
  std::uint8_t id_count = 0;
};

class BlockStore {
 public:
  // groups: one entry per group, page_counts likewise. Requires: blocks >= 1, pages >= 1, at most 8 groups a class.
  BlockStore(std::uint32_t blocks, std::span<const GroupSlot> groups,
             std::span<const std::uint32_t> page_counts);

  Table& table() { return table_; }
  const Table& table() const { return table_; }
  Descriptor& operator[](DescriptorId id) { return descriptors_[index(id)]; }
  const Descriptor& operator[](DescriptorId id) const { return descriptors_[index(id)]; }
  PagePool& pool(int group) { return *pools_[group]; }
  const PagePool& pool(int group) const { return *pools_[group]; }
  StateIndex& index_of_states() { return states_; }
  const IdPool& ids() const { return ids_; }
  Recency& recency() { return recency_; }
  const Recency& recency() const { return recency_; }
  ChangeLog& changes() { return changes_; }
  Gone& gone() { return gone_; }
  const Gone& gone() const { return gone_; }
  std::uint32_t blocks() const { return ids_.count(); }
  int group_count() const { return static_cast<int>(slots_.size()); }
  // The group that lives in a slot, or -1.
  int group_at(WordClass which, int slot) const { return group_at_[static_cast<int>(which)][slot]; }
  const GroupSlot& slot_of(int group) const { return slots_[group]; }

  // Page of a group at a descriptor. Meaningful under a pin, for the owner of a claim, or in a snapshot
  // whose generation a later pin confirms. Progress: wait-free.
  PageId page(DescriptorId id, int group) const {
    if (group < Descriptor::inline_pages) return descriptors_[index(id)].page(group);
    return PageId{more_page(id, group).load()};
  }

  // Groups that once held a page in this life of the descriptor: tells missing from stale and expired.
  // A hint for explanations; bit `group`.
  std::uint32_t once_held(DescriptorId id) const { return notes_[index(id)].load() & groups_mask; }
  // Whether a tip directory may hang below the unit.
  bool has_tips(DescriptorId id) const { return notes_[index(id)].load() & tips_note; }
  void note_tips(DescriptorId id) { notes_[index(id)].fetch_or(tips_note); }
  // Whether the descriptor is a tip directory: it holds no page, and its slot 0 only says that it lives.
  bool is_directory(DescriptorId id) const { return notes_[index(id)].load() & directory_note; }
  void note_directory(DescriptorId id) { notes_[index(id)].fetch_or(directory_note); }

  // Marks the descriptor as a tip filed in that directory, as far as 13 bits of its id tell; a hint that keeps
  // an entry whose tip is gone from being taken for the next life of the id.
  void note_tip(DescriptorId id, DescriptorId directory) {
    notes_[index(id)].fetch_or(tip_note | (index(directory) & directory_bits) << directory_shift);
  }
  // `id` may be any number: who reads an entry without a pin may read what the next life of the line wrote there.
  bool is_tip_of(DescriptorId id, DescriptorId directory) const {
    if (index(id) >= blocks()) return false;
    const std::uint32_t note = notes_[index(id)].load();
    return (note & tip_note) != 0 && note >> directory_shift == (index(directory) & directory_bits);
  }

  // The key that lives at the descriptor, and the groups whose page of it can be pinned; none where it is a directory.
  // True when read. Progress: lock-free (the words move meanwhile).
  struct Holding {
    Key128 key;
    std::uint32_t groups = 0;  // bit `group`
  };
  Holding holding(DescriptorId id) const;
  // The key of what the descriptor's unit continues, if that is known and was not forgotten. A hint: what it names was
  // the key of a life once, and is this one's unless 31 bits of two keys agree by chance. Progress: wait-free.
  std::optional<Key128> parent_key(DescriptorId id) const;

  // ---- steps of an owner ----------------------------------------------------------------------

  // Claims `group` at the descriptor of `key`, to fill it or (Event::RestoreBegins) to restore it, and files the page.
  // Returns: true where the claim is the caller's; false with `lives` as in Table::claim_b.
  // Requires: the caller took `page` from pool(group). Progress: lock-free.
  bool claim(DescriptorId id, Key128 key, int group, PageId page, bool& lives, Event how = Event::Claim);
  // The claimed page becomes visible, restored as ready with a copy; it counts as used at `tick`, or now.
  // Requires: owner of Filling or Restoring.
  // Progress: lock-free.
  void publish(DescriptorId id, int group, std::uint32_t tick);
  void publish(DescriptorId id, int group) { publish(id, group, recency_.next()); }
  // The same only while nobody pins the word, so that the page can be evicted from that step on. Returns: whether it
  // was; else nothing has changed. Requires, progress: as publish.
  bool publish_unpinned(DescriptorId id, int group, std::uint32_t tick);
  // The claimed page goes back; with keep_page it stays out of the pool (a lost fill may still be written).
  // Requires: owner of Filling or Restoring. Progress: lock-free.
  void abort(DescriptorId id, Key128 key, int group, bool keep_page = false);

  // Claims `wanted` slots of one class at once; those taken get their pages by file_page, then become visible
  // together. Returns: the slots taken; 0 with `lives` as in Table::claim_b. Progress: lock-free.
  SlotMask claim_slots(DescriptorId id, Key128 key, WordClass which, SlotMask wanted, bool& lives) {
    return which == WordClass::H ? table_.claim_h(id, key, wanted, Event::Claim, lives)
                                 : table_.claim_b(id, key, wanted, Event::Claim, lives);
  }
  // Requires: owner of Filling of that group; the caller took `page` from pool(group). Progress: lock-free.
  void file_page(DescriptorId id, int group, PageId page) { set_page(id, group, page); }
  // Makes claimed slots visible in one step, with `pins` pins of the caller's on the word from that step on; they
  // count as used at `tick`. Returns: false where so many pins are there that these would not fit, or where one of the
  // `unready` slots is usable by now; nothing has changed then. Requires: owner of Filling of all of them; note_held of
  // their groups. Progress: lock-free.
  bool publish_slots(DescriptorId id, WordClass which, SlotMask slots, std::uint32_t pins, std::uint32_t tick,
                     SlotMask unready = 0);
  // Notes the groups of those slots of H and of B as once_held. Progress: wait-free.
  void note_held(DescriptorId id, SlotMask h, SlotMask b) {
    const std::uint32_t groups = groups_of(WordClass::H, h) | groups_of(WordClass::B, b);
    Atom<std::uint32_t>& notes = notes_[index(id)];
    if ((notes.load() & groups) != groups) notes.fetch_or(groups);
  }

  // ---- steps of who offloads -------------------------------------------------------------------

  // Of the slots asked for, marks those that are ready as being copied to a tier; a copy that they had is gone, or none
  // would be made. Returns: the slots marked. Requires: the caller holds a pin of the word. Progress: lock-free.
  SlotMask begin_offload(DescriptorId id, WordClass which, SlotMask wanted);
  // They are no longer being copied; `copied`: a tier has them. Slots that retire meanwhile go on to.
  // Requires: begin_offload marked them; the pin is still held. Progress: lock-free.
  void end_offload(DescriptorId id, WordClass which, SlotMask marked, bool copied);

  // Of the slots given, those that are ready with a copy are so without one: the tier has it no more. Returns: false where
  // the word is not `seen` any more; nothing has changed then. Progress: wait-free but for the refresh.
  bool lose_copies(DescriptorId id, WordClass which, Word seen, SlotMask gone);

  // ---- steps of anybody -----------------------------------------------------------------------

  // Takes a ready page from (key, group) if nobody pins its word. Returns: whether this call did. A directory
  // has no page to take: its note is set before its slot is published, so whoever sees the slot ready sees it.
  // Progress: lock-free.
  bool evict(Key128 key, int group);
  // The same for any of several slots of a word, of whatever key lives at the id, in one CAS.
  // Returns: the slots taken; those that could not go are left out.
  SlotMask evict_at(DescriptorId id, WordClass which, SlotMask wanted);
  // The same; the pages, and the id where its life ended, are free once give_back(run) was called; the pages count as
  // evictable until then. Requires: at most EvictionRun::most_pages ids a run.
  SlotMask evict_at(DescriptorId id, WordClass which, SlotMask wanted, EvictionRun& run);
  void give_back(EvictionRun& run);
  // Ends the use of every published page of a word: those that nobody pins are taken, the others retire. A directory is
  // left. Returns: pages taken now. Progress: lock-free.
  int withdraw_at(DescriptorId id, WordClass which);
  // Pages of a group that could be evicted now. Exact when idle; else near the truth. Progress: wait-free.
  std::int64_t evictable(int group) const { return evictable_.read(slots_[group].which, slots_[group].slot); }
  // No new pins on (id, group) from now on; the page goes with the last pin. Returns: false where the
  // page is not usable. Requires: the caller holds a pin of that word, or knows that the life goes on.
  // Progress: lock-free.
  bool retire(DescriptorId id, int group);
  // The same by key, whoever asks: false where no usable page of (key, group) is there.
  bool retire_of(Key128 key, int group);
  // Descriptor::pin, counted; with `change` the count waits for the caller's count_pins. Progress: lock-free.
  PinResult pin(DescriptorId id, WordClass which, Word seen, SlotMask required);
  PinResult pin(DescriptorId id, WordClass which, Word seen, SlotMask required, EvictableChange& change) {
    Word before;
    const PinResult result = descriptors_[index(id)].pin(which, seen, required, &before);
    if (result == PinResult::Pinned && before.pins() == 0) change.note(which, before.evictable_spread());
    return result;
  }
  // Drops a pin and finishes what retires; what nobody pins any more was used at `tick`, or now. The second one leaves
  // the count to the caller's count_unpins. Requires: the caller holds the pin. Progress: lock-free.
  void unpin(DescriptorId id, WordClass which);
  void unpin(DescriptorId id, WordClass which, std::uint32_t tick, EvictableChange& change);
  // Brings near what unpin of the descriptor will touch.
  void prefetch_unpin(DescriptorId id) const { __builtin_prefetch(&descriptors_[index(id)], 1); }
  void count_pins(EvictableChange& change) { count_change(change, -1); }
  void count_unpins(EvictableChange& change) { count_change(change, 1); }

  // ---- tip directories (cache/tips.cpp) --------------------------------------------------------

  // Makes a claimed directory findable. Requires: owner of Filling of its slot 0.
  void publish_directory(DescriptorId id);
  // Whether an entry of a directory names no tip that lives: none there, or its tip is gone.
  bool is_dead_entry(DescriptorId directory, std::uint32_t entry) const;
  bool directory_is_empty(DescriptorId id) const;
  // Drops a pin of a directory. Requires: the caller holds it, by Descriptor::pin. Progress: wait-free.
  void unpin_directory(DescriptorId id) { descriptors_[index(id)].unpin(WordClass::H); }
  // Ends an empty directory if nothing happened to it since `seen`. Progress: wait-free but for the erase.
  void end_directory(DescriptorId id, Key128 key, Word seen);

  // ---- idle only ------------------------------------------------------------------------------

  // Ends every life and frees every page. Requires: no pin, no claim, no other call in flight.
  void reset();
  // First descriptor whose derived bits differ from its words, or no_descriptor.
  DescriptorId verify() const;
  // Pages of a group by what they are to its pool; they sum to its count.
  struct Census {
    std::uint64_t free = 0, filling = 0, held = 0, cached = 0;
  };
  // `private_pages`: pages of that group which fills hold outside any word.
  Census census(int group, std::uint64_t private_pages) const;
  // Bytes of descriptors, slots, side arrays and bitmaps together, without the memory of what is gone.
  std::size_t unit_bytes() const;

 private:
  static constexpr std::uint32_t groups_mask = 0xFFFF, tips_note = 0x10000, directory_note = 0x20000;
  static constexpr std::uint32_t tip_note = 0x40000, directory_bits = 0x1FFF;
  static constexpr int directory_shift = 19;

  // Page ids of the groups that the line has no room for, side by side.
  Atom<std::uint32_t>& more_page(DescriptorId id, int group) const {
    const auto more = static_cast<std::size_t>(group_count() - Descriptor::inline_pages);
    return more_pages_[index(id) * more + static_cast<std::size_t>(group - Descriptor::inline_pages)];
  }
  std::uint32_t groups_of(WordClass which, SlotMask slots) const {
    std::uint32_t groups = 0;
    for (std::uint32_t bits = slots; bits != 0; bits &= bits - 1)
      groups |= 1u << group_at(which, std::countr_zero(bits));
    return groups;
  }
  void set_page(DescriptorId id, int group, PageId page);
  bool publish_where(DescriptorId id, int group, std::uint32_t tick, std::uint32_t most_pins);
  void count_change(EvictableChange& change, int sign);
  void give_up_slots(DescriptorId id, Key128 key, WordClass which, SlotMask gone, const PageId* pages);
  // The page ids of the slots in `gone`, in their order.
  void read_pages(DescriptorId id, WordClass which, SlotMask gone, PageId* pages) const;
  void finish_retiring(DescriptorId id, Key128 key, WordClass which);

  IdPool ids_;
  Arena<Descriptor> descriptors_;
  Arena<Line> lines_;
  std::unique_ptr<Atom<std::uint32_t>[]> notes_;
  Table table_;
  std::vector<GroupSlot> slots_;
  int group_at_[2][Word::slots];
  std::vector<std::unique_ptr<PagePool>> pools_;
  std::unique_ptr<Atom<std::uint32_t>[]> more_pages_;
  StateIndex states_;
  Evictable evictable_;
  Recency recency_;
  ChangeLog changes_;
  Gone gone_;
};

}  // namespace hkv
