// SPDX-License-Identifier: Apache-2.0
// Why pages went: a bounded memory of keys that are no longer there. For explanations; it decides nothing.
//
// Thread safety: every operation on any thread, wait-free, without order: one note is one store of 8 bytes, so no reader
// sees half of one.
// Cost: a note is one store into a line of eight that the key chooses, at a place that key and group choose. There is a
// line for each descriptor, 1024 at least and 65536 at most: 64 KiB to 4 MiB. What was noted last at a place is remembered.
// An answer is for another key once in 2^22 at most.
#pragma once
#include <time.h>

#include <algorithm>
#include <cstdint>

#include "base/arena.h"
#include "base/hint.h"
#include "base/types.h"

namespace hkv {

// What took a page, or kept it from being seen.
enum class Cause : std::uint8_t {
  None,        // nothing is known
  Stranded,    // made room: nothing could reach it any more
  Superseded,  // made room: nothing resumed there any more
  Tail,        // made room: a boundary that the next prompt might have continued
  History,     // made room: it was the oldest
  Asked,       // evict() named it
  Expired,     // slid out of its window, at a boundary that no policy keeps
  Displaced,   // a tip, by a fifth one after the same unit
  Withdrawn,   // withdraw_all: another identity
  Damaged,     // its bytes were not those published
  Aborted,     // its writer gave it up before it was published; a load that failed among them
  Lost,        // its writer was lost before it was published
  Unplaced,    // written, and never to be found: the table had no room
  Unpromised,  // written, and never to be found: its page was promised to nobody else
  Reset,       // the cache was reset
};
inline constexpr int cause_count = 15;

// In place of the group that room was made for.
inline constexpr int for_descriptors = 16, for_nobody = 17;

struct Departure {
  Cause cause = Cause::None;
  int made_for = for_nobody;  // the group whose pool was short, or one of those above
  std::int64_t age_ms = 0;    // how long ago
};

class Gone {
 public:
  explicit Gone(std::uint32_t descriptors) : lines_(std::clamp(descriptors, least_lines, most_lines)) {}

  // Ticks of 10 ms since some moment. A coarse clock, some ns to read: it is read once for many notes.
  static std::uint32_t now() {
    timespec at{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &at);
    return static_cast<std::uint32_t>(at.tv_sec * 100 + at.tv_nsec / 10'000'000);
  }

  void note(Key128 key, int group, Cause cause, std::uint32_t tick, int made_for = for_nobody) {
    place(key, group)
        .store(tag(key, group) << 41 | std::uint64_t{static_cast<std::uint8_t>(cause)} << 37 |
               std::uint64_t{static_cast<std::uint32_t>(made_for)} << 32 | tick);
  }
  // Brings near the line that note() will write.
  void prefetch(Key128 key) const { __builtin_prefetch(&lines_[line_of(key)], 1); }

  // What is remembered of a page; Cause::None where nothing is.
  Departure find(Key128 key, int group) const {
    const std::uint64_t entry = const_cast<Gone*>(this)->place(key, group).load();
    const auto cause = static_cast<Cause>(entry >> 37 & 15);
    if (entry >> 41 != tag(key, group) || cause == Cause::None) return {};
    const std::uint32_t age = now() - static_cast<std::uint32_t>(entry);
    return {cause, static_cast<int>(entry >> 32 & 31), std::int64_t{age} * 10};
  }

  std::size_t bytes() const { return lines_.bytes(); }

 private:
  static constexpr int entries = 8;
  static constexpr std::uint32_t least_lines = 1024, most_lines = 65536;
  struct alignas(cache_line_bytes) Line {
    Hint<std::uint64_t> entry[entries];
  };
  std::size_t line_of(Key128 key) const { return (key.hi >> 32) * lines_.size() >> 32; }
  // Groups of one key have places of their own, but for those 8 apart, which the tag tells from each other.
  Hint<std::uint64_t>& place(Key128 key, int group) {
    return lines_[line_of(key)].entry[(key.hi + static_cast<std::uint64_t>(group)) % entries];
  }
  static std::uint64_t tag(Key128 key, int group) {
    return (key.lo >> 42) << 1 | static_cast<std::uint64_t>(group / entries);
  }

  Arena<Line> lines_;
};

}  // namespace hkv
