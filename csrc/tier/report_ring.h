// SPDX-License-Identifier: Apache-2.0
// Reports that nobody took yet, first in first out. Room is made when work is taken, so that a report never allocates.
//
// Thread safety: none.
#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <span>
#include <vector>

#include "base/check.h"
#include "tier/tier.h"

namespace hkv {

class ReportRing {
 public:
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }

  void reserve(std::size_t reports) {
    if (reports <= ring_.size()) return;
    std::vector<Done> larger(std::bit_ceil(reports));
    for (std::size_t i = 0; i < size_; ++i) larger[i] = ring_[(first_ + i) & (ring_.size() - 1)];
    ring_.swap(larger);
    first_ = 0;
  }

  // Requires: room was made.
  void push(const Done& done) {
    HKV_CHECK(size_ < ring_.size());
    ring_[(first_ + size_++) & (ring_.size() - 1)] = done;
  }

  std::size_t take(std::span<Done> out) {
    const std::size_t count = std::min(out.size(), size_);
    for (std::size_t i = 0; i < count; ++i) out[i] = ring_[(first_ + i) & (ring_.size() - 1)];
    if (count != 0) first_ = (first_ + count) & (ring_.size() - 1);
    size_ -= count;
    return count;
  }

 private:
  std::vector<Done> ring_;  // a power of two long, or empty
  std::size_t first_ = 0, size_ = 0;
};

}  // namespace hkv
