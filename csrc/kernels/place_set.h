// SPDX-License-Identifier: Apache-2.0
// Places of pools that a call writes, to find one that is named twice.
//
// Thread safety: none; each thread has its own.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace hkv {

class PlaceSet {
 public:
  // Forgets everything and makes room for `count` places. Progress: allocates where that is more than ever before.
  void reset(std::int64_t count) {
    const auto size = std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(count, 1)) * 2);
    if (keys_.size() < size) keys_.resize(size);
    std::fill_n(keys_.begin(), size, 0);
    mask_ = size - 1;
    shift_ = 64 - std::countr_zero(size);
  }
  // Requires: place >= 0; no more calls than reset made room for. Returns: whether it was not there yet.
  bool insert(std::int64_t place) {
    constexpr std::uint64_t golden = 0x9e3779b97f4a7c15;
    const std::uint64_t key = static_cast<std::uint64_t>(place) + 1;
    for (std::uint64_t at = key * golden >> shift_;; at = (at + 1) & mask_) {
      if (keys_[at] == key) return false;
      if (keys_[at] != 0) continue;
      keys_[at] = key;
      return true;
    }
  }

 private:
  // Open addressing; at most half of the keys are taken. 0 is free, so keys are one higher than places.
  std::vector<std::uint64_t> keys_;
  std::uint64_t mask_ = 0;
  int shift_ = 0;
};

}  // namespace hkv
