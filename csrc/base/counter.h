// SPDX-License-Identifier: Apache-2.0
// Counters that readers on several threads bump without sharing a line.
//
// Thread safety: add on any thread, wait-free; read is a sum that is exact when idle.
#pragma once
#include <array>
#include <cstdint>

#include "base/hint.h"
#include "base/thread_slot.h"

namespace hkv {

template <int N>
class Counters {
 public:
  void add(int which, std::int64_t by) { add_at_thread_slot(shards_[thread_slot()].value[which], by); }
  // What the calling thread adds to, for who adds to several: its number is asked for once.
  class Mine {
   public:
    void add(int which, std::int64_t by) { add_at_thread_slot(values_[which], by, own_); }

   private:
    friend class Counters;
    Mine(std::array<Hint<std::int64_t>, N>& values, bool own) : values_(values), own_(own) {}
    std::array<Hint<std::int64_t>, N>& values_;
    bool own_;
  };
  // It must not be passed on to another thread.
  Mine mine() { return {shards_[thread_slot()].value, owns_thread_slot()}; }
  std::int64_t read(int which) const {
    std::int64_t total = 0;
    for (const Shard& shard : shards_) total += shard.value[which].load();
    return total;
  }
  // Requires: no other call in flight.
  void reset() {
    for (Shard& shard : shards_) {
      for (auto& value : shard.value) value.store(0);
    }
  }

 private:
  struct alignas(cache_line_bytes) Shard {
    std::array<Hint<std::int64_t>, N> value;
  };
  std::array<Shard, thread_slots> shards_;
};

}  // namespace hkv
