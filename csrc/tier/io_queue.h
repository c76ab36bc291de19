// SPDX-License-Identifier: Apache-2.0
// Requests on their way to an Io that takes `depth` at a time: reads that somebody waits for first.
//
// Thread safety: one thread. Invariant: no more than depth requests are with the Io, as it requires.
#pragma once
#include <array>
#include <deque>

#include "tier/io.h"
#include "tier/tier.h"

namespace hkv {

class IoQueue {
 public:
  explicit IoQueue(Io& io) : io_(io) {}

  void add(IoRequest* request, Priority priority) {
    waiting_[static_cast<std::size_t>(priority)].push_back(request);
    ++added_;
    pump();
  }
  // The Io gave one back.
  void done() { --under_way_; }
  void pump() {
    while (under_way_ < io_.depth()) {
      std::deque<IoRequest*>* queue = next();
      if (queue == nullptr) return;
      IoRequest* request = queue->front();
      queue->pop_front();
      ++under_way_;
      io_.submit(request);
    }
  }
  bool idle() const { return under_way_ == 0 && waiting() == 0; }
  std::uint64_t added() const { return added_; }

 private:
  static constexpr unsigned patience = 8;  // so many of a higher priority pass a lower one, then it goes

  std::size_t waiting() const { return waiting_[0].size() + waiting_[1].size() + waiting_[2].size(); }
  std::deque<IoRequest*>* next() {
    for (std::size_t p = priority_count; p-- > 1;) {
      if (!waiting_[p].empty() && passed_[p] >= patience) return passed_[p] = 0, &waiting_[p];
    }
    for (std::size_t p = 0; p < priority_count; ++p) {
      if (waiting_[p].empty()) continue;
      for (std::size_t lower = p + 1; lower < priority_count; ++lower) {
        if (!waiting_[lower].empty()) ++passed_[lower];
      }
      return passed_[p] = 0, &waiting_[p];
    }
    return nullptr;
  }

  Io& io_;
  std::array<std::deque<IoRequest*>, priority_count> waiting_;
  std::array<unsigned, priority_count> passed_{};
  std::size_t under_way_ = 0;
  std::uint64_t added_ = 0;
};

}  // namespace hkv
