// SPDX-License-Identifier: Apache-2.0
// From the hash of a key to the numbers of cells that may hold it: lines of slots that split one at a time as records
// come (linear hashing), so that no insert waits for a table to be copied, and no memory is ever given back.
//
// Thread safety: `candidates` on any thread beside one writer, which calls everything else.
//
// Invariants, and why each holds:
//  1. A slot is a hint: its cell decides. So a stale one costs a look at a cell and nothing else.
//  2. A reader that met no slot of a number that was there throughout finds that the count of buckets has changed, and
//     looks again. A number leaves a line early only by a split, which stores it in its new line, then the count, then
//     clears the old slot: a reader with the new count (acquire) sees the new line, and one that sees the slot cleared
//     or taken by another (acquire) sees the new count when it compares.
//  3. A line that was seen stays a line: lines and their links are never taken back.
#pragma once
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/atomic.h"
#include "base/check.h"
#include "base/types.h"

namespace hkv {

#ifdef HKV_RELACY  // reduced geometry for the model checker
inline constexpr std::uint32_t bucket_slots = 1, bucket_load = 1, bucket_chunk = 2, bucket_chunks = 2;
#else
inline constexpr std::uint32_t bucket_slots = 15, bucket_load = 10, bucket_chunk = 1024, bucket_chunks = 8192;
#endif

class IndexBuckets {
 public:
  static constexpr std::uint32_t number_bits = 26;
  static constexpr std::uint32_t most_numbers = (1u << number_bits) - 1;

  IndexBuckets() { line_at(main_, 0, true); }

  // Calls `each(number)` for every number that may be that of a cell with this hash, until it returns true.
  // Returns: whether one did. Progress: lock-free; repeats only when a bucket was split meanwhile.
  template <class F>
  bool candidates(std::uint64_t hash, F&& each) const {
    // (37) acquire-load synchronizes-with (38)
    std::uint32_t count = count_.load(at(37, acquire));
    for (;;) {
      const Line* line = &line_of(main_, bucket_of(hash, count));
      for (;;) {
        for (const Atom<std::uint32_t>& slot : line->slot) {
          // (39) acquire-load synchronizes-with (40, 41, 44)
          const std::uint32_t seen = slot.load(at(39, acquire));
          if (seen >> number_bits == tag_of(hash) && seen != 0 && each((seen & most_numbers) - 1))
            return true;
        }
        // (42) acquire-load synchronizes-with (43)
        const std::uint32_t link = line->link.load(at(42, acquire));
        if (link == 0) break;
        line = &line_of(more_, link - 1);
      }
      const std::uint32_t now = count_.load();
      if (now == count) return false;
      count = now;  // what was read in the slots acquired all that a split did
    }
  }

  // ---- the writer's -------------------------------------------------------------------------
  // `hash_of(number)`: hash of a number that is in.
  template <class F>
  void insert(std::uint64_t hash, std::uint32_t number, F&& hash_of) {
    place(bucket_of(hash, count_.load()), tag_of(hash) << number_bits | (number + 1));
    if (++numbers_ > std::uint64_t{count_.load()} * bucket_load &&
        count_.load() < bucket_chunk * bucket_chunks) {
      split(hash_of);
    }
  }
  void erase(std::uint64_t hash, std::uint32_t number) {
    const std::uint32_t value = tag_of(hash) << number_bits | (number + 1);
    Atom<std::uint32_t>* slot = find(bucket_of(hash, count_.load()), value);
    HKV_CHECK(slot != nullptr);
    // (44) release-store synchronizes-with (39)
    slot->store(0, at(44, release));
    --numbers_;
  }
  std::size_t bytes() const {
    return (main_lines_ + more_lines_ + bucket_chunk - 1) / bucket_chunk * bucket_chunk * sizeof(Line);
  }

 private:
  struct alignas(cache_line_bytes) Line {
    Atom<std::uint32_t> slot[bucket_slots];  // tag 6 | number + 1; 0: empty
    Atom<std::uint32_t> link;                // a further line of the bucket, plus 1
  };
  using Chunks = std::array<std::unique_ptr<Line[]>, bucket_chunks>;

  static std::uint32_t tag_of(std::uint64_t hash) { return static_cast<std::uint32_t>(hash >> 58); }
  // Of `count` buckets, those below the split have one bit more.
  static std::uint32_t bucket_of(std::uint64_t hash, std::uint32_t count) {
    const std::uint32_t wide = std::bit_ceil(count);
    const auto at = static_cast<std::uint32_t>(hash) & (wide - 1);
    return at < count ? at : at & (wide / 2 - 1);
  }
  static const Line& line_of(const Chunks& chunks, std::uint32_t n) {
    return chunks[n / bucket_chunk][n % bucket_chunk];
  }
  Line& line_at(Chunks& chunks, std::uint32_t n, bool main) {
    auto& chunk = chunks[n / bucket_chunk];
    if (chunk == nullptr) chunk.reset(new Line[bucket_chunk]);
    std::uint32_t& lines = main ? main_lines_ : more_lines_;
    if (lines <= n) lines = n + 1;
    return chunk[n % bucket_chunk];
  }

  Atom<std::uint32_t>* find(std::uint32_t bucket, std::uint32_t value) {
    for (Line* line = &line_at(main_, bucket, true);; line = &line_at(more_, line->link.load() - 1, false)) {
      for (auto& slot : line->slot) {
        if (slot.load() == value) return &slot;
      }
      if (line->link.load() == 0) return nullptr;
    }
  }
  void place(std::uint32_t bucket, std::uint32_t value) {
    Line* line = &line_at(main_, bucket, true);
    for (;; line = &line_at(more_, line->link.load() - 1, false)) {
      for (auto& slot : line->slot) {
        if (slot.load() != 0) continue;
        // (40) release-store synchronizes-with (39)
        slot.store(value, at(40, release));
        return;
      }
      if (line->link.load() == 0) break;
    }
    Line& further = line_at(more_, more_lines_, false);
    further.slot[0].store(value);
    // (43) release-store synchronizes-with (42)
    line->link.store(more_lines_, at(43, release));
  }
  template <class F>
  void split(F&& hash_of) {
    const std::uint32_t count = count_.load();
    const std::uint32_t half = std::bit_floor(count);
    line_at(main_, count, true);
    std::vector<Atom<std::uint32_t>*> leaving;
    for (Line* line = &line_at(main_, count - half, true);;
         line = &line_at(more_, line->link.load() - 1, false)) {
      for (auto& slot : line->slot) {
        const std::uint32_t value = slot.load();
        if (value == 0 || bucket_of(hash_of((value & most_numbers) - 1), count + 1) != count) continue;
        place(count, value);
        leaving.push_back(&slot);
      }
      if (line->link.load() == 0) break;
    }
    // (38) release-store synchronizes-with (37)
    count_.store(count + 1, at(38, release));
    for (Atom<std::uint32_t>* slot : leaving) {
      // (41) release-store synchronizes-with (39)
      slot->store(0, at(41, release));
    }
  }

  Chunks main_, more_;
  std::uint32_t main_lines_ = 0, more_lines_ = 0;
  std::uint64_t numbers_ = 0;
  Atom<std::uint32_t> count_{1};
};

}  // namespace hkv
