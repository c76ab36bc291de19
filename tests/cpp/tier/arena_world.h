// SPDX-License-Identifier: Apache-2.0
// A disk store whose asker has arenas, over a simulated disk.
//
// Thread safety: as DiskWorld.
#pragma once
#include <cstring>
#include <vector>

#include "testing.h"
#include "tier/aligned_memory.h"
#include "tier/disk_world.h"

namespace hkv {

// A get of one record of three parts into two arenas, and what its reads are told. The parts lie in memory so that they
// make two runs.
struct ArenaWorld : DiskWorld {
  static constexpr std::size_t part = 128u << 10;
  ArenaWorld() : DiskWorld(SimulatedDisk(), roomy()), put_memory(3 * part), one(2 * part), two(part) {
    open();
    put_memory.fill(3);
    const Ask put = make_ask(TierOperation::Kind::Put, put_memory.data(), put_memory.data() + 2 * part);
    EXPECT_EQ(wait(put), TierStatus::Ok);
    settle();
  }
  static DiskOptions roomy() {
    DiskOptions options = world_options();
    options.region_bytes = 256 * disk_unit;
    options.capacity_bytes = 5 * options.region_bytes;
    return options;
  }
  void know() {
    io.add_arena(one.data(), one.size());
    io.add_arena(two.data(), two.size());
  }
  Ask make_ask(TierOperation::Kind kind, std::byte* at, std::byte* last) {
    std::vector<Part> parts;
    for (std::uint16_t i = 0; i < 3; ++i) {
      parts.push_back({i == 2 ? last : at + i * part, part, {1, i, 1, 0}});
    }
    if (kind == TierOperation::Kind::Get) return get_parts(1, parts);
    return put_parts(1, parts);
  }
  Ask get_all() { return make_ask(TierOperation::Kind::Get, one.data(), two.data()); }
  bool right() {
    return std::memcmp(one.data(), put_memory.data(), one.size()) == 0 &&
           std::memcmp(two.data(), put_memory.data() + 2 * part, part) == 0;
  }
  std::size_t reads() const {
    std::size_t count = 0;
    for (const SimulatedCall& call : io.log())
      count += call.what == SimulatedCall::What::Submit && call.op == IoRequest::Op::Read;
    return count;
  }
  AlignedMemory put_memory, one, two;
};

}  // namespace hkv
