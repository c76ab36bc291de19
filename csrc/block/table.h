// SPDX-License-Identifier: Apache-2.0
// The block table: 128-bit key -> descriptor, lock-free, of fixed capacity, without tombstones,
// displacement or resize.
//
// A key stands in the first of its candidate lines that had a free slot. Two candidates would not do: at a
// load of 0.6 one key in a hundred would find both full after some turnover, and one block that cannot be
// found cuts every prefix behind it. With eight at a load of 0.4 it is less than one in 10^9, a hit still
// reads 1.01 lines on average, and most misses one: a line that no key went past ends the search. Each line counts
// the keys that did, and the count goes down as they go: a flag that stays would be set everywhere in the end, and
// each miss of an old table would read eight lines.
//
// Thread safety: every operation on any thread at any time.
// Invariants:
//  1. At most one final slot names a live descriptor of a key. Why: an inserter puts a tentative slot
//     in, then reads every line that may hold the key: candidates up to the first that no key went past.
//     The count (25), insert CAS (12) and those reads (13, 26) are seq_cst, so of two inserters of one key
//     at least one sees the other's slot (or its count on the way there), and the positions of the two
//     decide who yields:
//     a final slot wins; of two tentative ones the lower position wins, because the higher withdraws
//     and the lower removes the higher, whose finalising CAS then fails.
//  2. Nobody finds, claims, pins or erases through a tentative slot. Why: H itself says tentative until the
//     slot is final (a slot value read earlier proves nothing, since the id may have a new life of the same
//     key by now), and sight() refuses it. Whoever meets a final slot over a tentative H settles it: the
//     slot read again after H is final still, an id is reused only after its slot was cleared, so that H
//     belongs to that slot. Thus a stopped inserter delays nobody.
//  3. A final slot is cleared by the eraser of its life alone: the one whose CAS leaves B empty under a
//     closed H. Why exactly one: see erase_if_empty().
//  4. A slot is a hint. The key in the descriptor, read within one life (descriptor.h invariant 1), decides.
//  5. A line's count is at least the number of slots behind it whose keys went past it. Why: who places a slot counts
//     first, and takes that back only after the slot is empty again: the eraser of the life, or the inserter who
//     withdrew or found its slot removed. A stopped inserter leaves a count too high: a line more to read, no more.
// Edges: (12) insert CAS -> (13) scan: who sees the slot sees the key and the opened words behind it;
// (25) count -> (26) scan: who does not see the count inserted before it was moved.
#pragma once
#include <cstdint>
#include <span>

#include "base/atomic.h"
#include "base/types.h"
#include "block/descriptor.h"
#include "block/id_pool.h"
#include "block/line.h"

namespace hkv {

enum class Placed : std::uint8_t {
  Found,     // a live descriptor of the key was there
  Inserted,  // a new one is
  Private,  // every candidate line is full, or an unfinished insert of the same key stands lower: not findable
  Full,     // no free descriptor
};

struct Placement {
  Placed how;
  DescriptorId id;
};

class Table {
 public:
  // Requires: `lines` has line_count lines, `descriptors` and `notes` have as many entries as `ids` counts;
  // all outlive it. notes[id] is a side array of hints about one life; it is 0 when a life begins.
  Table(Line* lines, std::uint32_t line_count, Descriptor* descriptors, Atom<std::uint32_t>* notes,
        IdPool& ids)
      : lines_(lines), line_count_(line_count), descriptors_(descriptors), notes_(notes), ids_(ids) {}

  // Lines for so many descriptors, all in use: a load of 0.4.
  static constexpr std::uint32_t lines_for(std::uint32_t descriptors) {
    return static_cast<std::uint32_t>(descriptors / 0.4 / Line::slots) + 2;
  }

  Descriptor& operator[](DescriptorId id) const { return descriptors_[index(id)]; }

  // Looks a key up. Stores nothing. A miss reads one line unless some key went past it.
  // Progress: wait-free.
  Sighting find(Key128 key) const {
    Sighting seen = find_in(lines_[first_line(key)], key);
    if (!seen.found() && lines_[first_line(key)].passed.load() != 0) [[unlikely]]
      seen = find_beyond(key);
    return seen;
  }

  // Brings near, for writing, the line where a key's search begins. Progress: wait-free.
  void prefetch(Key128 key) const { __builtin_prefetch(&lines_[first_line(key)], 1); }

  // find for many keys: out[i] answers keys[i * stride]. Both lines of each answer are prefetched.
  // Progress: wait-free.
  void find_batch(const Key128* keys, std::size_t stride, std::size_t count, Sighting* out) const;

  // Returns the descriptor of the key, inserting one if none lives. Progress: lock-free (an inserter
  // starts over only when another inserter removed its tentative slot, and that one goes on).
  Placement get_or_insert(Key128 key);

  // Ends the life of `key` at `id` if both words are empty; does nothing where they are not, or where that
  // life is over. To be called by whoever gave up a page there. Progress: lock-free.
  void erase_if_empty(DescriptorId id, Key128 key) {
    if (end_if_empty(id, key)) ids_.give_back(index(id));
  }
  // The same, but the id stays out of the pool. Returns: whether this call ended the life; the id is the caller's
  // to give back then.
  bool end_if_empty(DescriptorId id, Key128 key);

  // Takes `wanted` slots of B out of Absent (event `event`) and makes sure that the descriptor lives on.
  // Returns: the slots taken (those not Absent are left out); 0 with `lives` false where the life of `key`
  // ended: insert anew. Progress: lock-free.
  SlotMask claim_b(DescriptorId id, Key128 key, SlotMask wanted, Event event, bool& lives);
  // The same for H.
  SlotMask claim_h(DescriptorId id, Key128 key, SlotMask wanted, Event event, bool& lives);

  std::uint32_t line_count() const { return line_count_; }
  // Whether each line counts exactly the live keys that went past it. Requires: idle.
  bool counts_hold() const;

 private:
  static std::uint32_t scale(std::uint64_t hash, std::uint32_t n) {
    return static_cast<std::uint32_t>((hash >> 32) * n >> 32);
  }
  std::uint32_t first_line(Key128 key) const { return scale(key.lo, line_count_); }
  // The lines a key may stand in, each once, in this order; the next one is used only when all before it are full.
  class Candidates {
   public:
    Candidates(const Table& table, Key128 key)
        : lines_(table.line_count_),
          first_(table.first_line(key)),
          stride_(lines_ == 1 ? 0 : 1 + scale(key.hi, lines_ - 1)),
          line_(first_) {}
    std::uint32_t line() const { return line_; }
    // Goes on to the next one. Returns: whether there is one.
    bool next() {
      line_ = line_ < lines_ - stride_ ? line_ + stride_ : line_ - (lines_ - stride_);
      return ++n_ < candidate_lines && line_ != first_;
    }

   private:
    static constexpr int candidate_lines = 8;
    std::uint32_t lines_, first_, stride_, line_;
    int n_ = 0;
  };
  std::uint32_t second_line(Key128 key) const {
    Candidates at_line(*this, key);
    at_line.next();
    return at_line.line();
  }
  // The candidates after the first. Keys in a batch wait for theirs until so many do.
  static constexpr std::size_t max_waiting = 16;
  Sighting find_beyond(Key128 key) const;
  void find_waiting(const Key128* keys, std::size_t stride, const std::size_t* waiting, std::size_t count,
                    Sighting* out) const;

  Sighting find_in(const Line& line, Key128 key) const {
    for (unsigned bits = line.match(Slot::tag_of(key)); bits != 0; bits &= bits - 1) {
      const Slot slot(line.slot[std::countr_zero(bits)].load());
      Sighting seen;
      if (slot.empty() || slot.tentative() || index(slot.id()) >= ids_.count()) continue;
      if ((*this)[slot.id()].sight(key, seen.h, seen.b)) {
        seen.id = slot.id();
        return seen;
      }
    }
    return {};
  }

  struct Position {
    std::uint32_t line;
    int slot;
    friend constexpr auto operator<=>(const Position&, const Position&) = default;
  };
  enum class Scan : std::uint8_t { Alone, Final, Lower, Again };
  bool place_tentative(Key128 key, Slot slot, Position& where);
  Scan scan(Key128 key, Position mine, DescriptorId& found);
  Scan scan_line(std::uint32_t line, Key128 key, Position mine, DescriptorId& found);
  void withdraw(Key128 key, Position where, Slot slot, DescriptorId id);
  void uncount(Key128 key, std::uint32_t line);
  void clear_slot(DescriptorId id, Key128 key);

  Line* lines_;
  std::uint32_t line_count_;
  Descriptor* descriptors_;
  Atom<std::uint32_t>* notes_;
  IdPool& ids_;
};

}  // namespace hkv
