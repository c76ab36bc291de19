// SPDX-License-Identifier: Apache-2.0
// Counters that readers on several threads bump without sharing a line.
//
// Thread safety: add on any thread, wait-free; read is a sum that is exact when idle.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <thread>

#include "base/atomic.h"

namespace hkv {

template <int N>
class Counters {
 public:
  void add(int which, std::int64_t by) { shard()[which].fetch_add(by); }
  std::int64_t read(int which) const {
    std::int64_t total = 0;
    for (const Shard& shard : shards_) total += shard.value[which].load();
    return total;
  }

 private:
  static constexpr std::size_t shard_count = 8;
  struct alignas(cache_line_bytes) Shard {
    std::array<Atom<std::int64_t>, N> value;
  };
  std::array<Atom<std::int64_t>, N>& shard() {
    thread_local const std::size_t mine =
        std::hash<std::thread::id>{}(std::this_thread::get_id()) % shard_count;
    return shards_[mine].value;
  }
  std::array<Shard, shard_count> shards_;
};

}  // namespace hkv
