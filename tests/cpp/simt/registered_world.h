// SPDX-License-Identifier: Apache-2.0
// The memory of a random world, registered with the harness piece by piece: what a kernel may touch.
#pragma once
#include <memory>
#include <vector>

#include "kernels/device_world.h"
#include "simt/memory.h"

namespace hkv::simt {

class RegisteredWorld {
 public:
  RegisteredWorld(const testing::World& world, testing::Memory& memory, bool pools_written,
                  bool buffer_written) {
    for (testing::Bytes& pool : memory.pools) add(pool.data(), pool.size(), pools_written);
    add(memory.buffer.data(), memory.buffer.size(), buffer_written);
    add_items(memory.status, true);
    add_items(memory.fingerprints, true);
    add_items(world.ids, false);
    add_items(world.rows, false);
    add_items(world.narrow_ids, false);
    add_items(world.narrow_rows, false);
    add_items(world.handouts, false);
    add_items(world.expected, false);
  }

 private:
  void add(const void* start, std::size_t bytes, bool writable) {
    spans_.push_back(std::make_unique<Registered>(start, bytes, writable));
  }
  template <class T>
  void add_items(const std::vector<T>& items, bool writable) {
    if (!items.empty()) add(items.data(), items.size() * sizeof(T), writable);
  }

  std::vector<std::unique_ptr<Registered>> spans_;
};

inline constexpr Order orders[] = {Order::Forward, Order::Reverse, Order::Random};

}  // namespace hkv::simt
