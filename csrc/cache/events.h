// SPDX-License-Identifier: Apache-2.0
// What became findable and what went, as a list of differences that whoever keeps an index of the cache applies to it.
//
// Thread safety: read() on any thread, one after another (a lock); everything else in the cache goes on meanwhile.
// Invariants:
//  1. Whoever applies all events in their order has the set of (group, key) of `held_`. Why: an event is made exactly where
//     the count of one of them leaves 0 or comes to 0; of one read removals stand before stores, and within a read none is
//     removed after it was stored: a descriptor is looked at once, so what a read removes was counted before the read.
//  2. While no step is in flight `held_` is, after a read, what can be pinned in the cache. Why: `told_` of a descriptor whose
//     bit is clear is what its words say (change_log.h, invariant 1), and `held_` counts what is in `told_`.
//  3. A key can stand in two descriptors of `told_` at a time, where the step that ends the one life was noted later than the
//     step that began the other: hence counts, and no set. No index loses it.
// Cost: what changed, and nothing before the first read but one bit a step. From then on 24 bytes a descriptor and an entry
// of a hash table for each key.
#pragma once
#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "block/store.h"

namespace hkv {

enum class StoreEventKind : std::uint8_t { Cleared = 0, Stored = 1, Removed = 2 };

struct StoreEvent {
  StoreEventKind kind = StoreEventKind::Cleared;
  int group = -1;
  Key128 key;
  std::int64_t end_tokens = 0;   // where the block, or tip, ends, capped at Recency::end_max; 0: not known
  std::optional<Key128> parent;  // Stored: the key of what it continues, where known
  Departure why;                 // Removed: as far as it is remembered
};

class EventReader {
 public:
  explicit EventReader(BlockStore& store) : store_(store) {}

  // The differences since the last read. After a reset, after everything was withdrawn, and with `anew`: Cleared, and all
  // that is there now. Stores come parents first, removals what ends last first.
  std::vector<StoreEvent> read(bool anew);

 private:
  struct Told {
    Key128 key;
    std::uint32_t groups = 0, end = 0;
  };
  struct KeyHash {
    std::size_t operator()(const Key128& key) const { return static_cast<std::size_t>(key.lo ^ key.hi); }
  };
  using Counts = std::array<std::uint8_t, 2 * Word::slots>;  // descriptors of told_, a group

  void compare(DescriptorId id);
  void lose(const Told& told, std::uint32_t groups);
  void gain(DescriptorId id, const Told& now, std::uint32_t groups);

  BlockStore& store_;
  std::mutex reading_;
  std::vector<Told> told_;  // a descriptor; empty before the first read
  std::unordered_map<Key128, Counts, KeyHash> held_;
  std::vector<StoreEvent> removed_, stored_;  // of the read under way
};

}  // namespace hkv
