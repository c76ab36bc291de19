// SPDX-License-Identifier: Apache-2.0
// Records that were asked for not long ago: at least the last `remembered` of them, and none that was not.
//
// A generation is an open hash table of prints of 64 bits; once it is full it becomes the old one, whose keys are known
// still, and the one before is forgotten. So no key drives out another of the same prefix, however long that is. Memory: 16
// to 32 bytes a key that is remembered, at most 8 MiB.
// Thread safety: one thread. Progress: each call looks at a few places, but for a growth, which moves every key once.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tier/record.h"

namespace hkv {

class TouchedKeys {
 public:
  static constexpr std::size_t remembered = std::size_t{1} << 18;

  // Whether the record was asked for before. Effect: from now on it was.
  bool touch(const RecordKey& key) {
    const std::uint64_t print = print_of(key);
    if (has(young_, print) || has(old_, print)) return true;
    if (count_ == remembered) {
      old_ = std::exchange(young_, {});
      count_ = 0;
    }
    if (2 * (count_ + 1) > young_.size()) grow();
    place_of(young_, print) = print;
    ++count_;
    return false;
  }
  std::size_t bytes() const { return (young_.capacity() + old_.capacity()) * sizeof(std::uint64_t); }

 private:
  using Table = std::vector<std::uint64_t>;  // a power of two of prints, half of them 0 at least
  static constexpr std::size_t least_places = 1024;

  // Two records in 2^64 have the same: then one is taken for the other, and written a touch too early.
  static std::uint64_t print_of(const RecordKey& key) {
    const std::uint64_t both = key.digest.lo ^ (key.digest.hi + key.format.lo) * 0x9E3779B97F4A7C15u;
    const std::uint64_t print = both + static_cast<std::uint64_t>(key.kind) * 0xD6E8FEB86659FD93u;
    return print == 0 ? 1 : print;
  }
  // Where the print is, or would go.
  static std::uint64_t& place_of(Table& table, std::uint64_t print) {
    const std::size_t mask = table.size() - 1;
    std::size_t at = (print ^ print >> 29) & mask;
    while (table[at] != 0 && table[at] != print) at = (at + 1) & mask;
    return table[at];
  }
  static bool has(Table& table, std::uint64_t print) {
    return !table.empty() && place_of(table, print) == print;
  }
  void grow() {
    Table wider(young_.empty() ? least_places : 2 * young_.size());
    for (const std::uint64_t print : young_) {
      if (print != 0) place_of(wider, print) = print;
    }
    young_ = std::move(wider);
  }

  Table young_, old_;
  std::size_t count_ = 0;  // of the young
};

}  // namespace hkv
