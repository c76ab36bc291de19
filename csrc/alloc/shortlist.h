// SPDX-License-Identifier: Apache-2.0
// The lowest-ranked candidates of one pass, kept and handed out in order.
//
// Thread safety: none; the policy's lock is held.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/types.h"

namespace hkv {

struct Candidate {
  std::uint64_t rank;  // the lowest goes first
  std::uint32_t id;
  std::uint32_t tick;  // when it was looked at: it was used since where it has another
};

// Keeps the `limit` lowest of any number of candidates in room for twice as many: when that is full the upper half
// goes. Nothing is allocated after the first pass.
class Shortlist {
 public:
  void begin(std::size_t limit) {
    limit_ = std::max<std::size_t>(limit, 1);
    some_.clear();
    late_.clear();
    some_.reserve(2 * limit_);
    bound_ = ~std::uint64_t{0};
    at_ = 0;
  }
  void add(std::uint64_t rank, std::uint32_t id, std::uint32_t tick) {
    if (rank > bound_) return;
    some_.push_back({rank, id, tick});
    if (some_.size() == 2 * limit_) cut();
  }
  void end() {
    if (some_.size() > limit_) cut();
    std::sort(some_.begin(), some_.end(), before);
  }

  // The next candidate. Returns: whether there is one.
  bool next(Candidate& out) {
    if (!late_.empty() && (at_ == some_.size() || before(late_.front(), some_[at_]))) {
      std::pop_heap(late_.begin(), late_.end(), after);
      out = late_.back();
      late_.pop_back();
      return true;
    }
    if (at_ == some_.size()) return false;
    out = some_[at_++];
    return true;
  }
  // One that was taken comes up again, where its rank is now. Beyond what the pass kept it is left to the next pass.
  void put_back(const Candidate& candidate) {
    if (candidate.rank > bound_) return;
    late_.push_back(candidate);
    std::push_heap(late_.begin(), late_.end(), after);
  }
  void clear() { some_.clear(), late_.clear(), at_ = 0; }

 private:
  static constexpr auto before = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank < b.rank : a.id > b.id;
  };
  static constexpr auto after = [](const Candidate& a, const Candidate& b) { return before(b, a); };
  void cut() {
    const auto last = some_.begin() + static_cast<std::ptrdiff_t>(limit_ - 1);
    std::nth_element(some_.begin(), last, some_.end(), before);
    bound_ = last->rank;
    some_.resize(limit_);
  }

  std::vector<Candidate> some_;
  std::vector<Candidate> late_;  // put back: a heap, the first to go on top
  std::size_t limit_ = 1, at_ = 0;
  std::uint64_t bound_ = 0;
};

}  // namespace hkv
