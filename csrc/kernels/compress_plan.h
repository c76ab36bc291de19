// SPDX-License-Identifier: Apache-2.0
// A tail compression as one launch of a device kernel.
//
// Thread safety: pure functions of their arguments; nothing is allocated, so that they can run under graph capture.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/device_plan.h"

namespace hkv {

namespace compress_plan {

// Up to so many items a block does each, although a warp could: few windows are done soonest by many threads.
inline constexpr std::int64_t block_items = 512;
// Of longer windows a warp would read for too long.
inline constexpr std::int64_t warp_most_slots = 16;

constexpr std::int64_t items_of(const CompressTail& call) {
  return call.requests == 0 ? 0 : call.rows / call.ratio + call.requests;
}

constexpr bool fits(const CompressTail& call, const CompressRoom& room) {
  return call.width <= room.channels && call.layout.row_bytes <= room.row_bytes;
}

inline Team team_of(const CompressTail& call) {
  const std::int64_t slots = call.ratio * (call.overlap ? 2 : 1);
  const bool short_windows = slots <= warp_most_slots && fits(call, warp_room);
  return short_windows && items_of(call) > block_items ? Team::Warp : Team::Block;
}

// The largest power of two that all that was added is a multiple of.
class Unit {
 public:
  void add(std::int64_t value) { bits_ |= static_cast<std::uint64_t>(value); }
  void add(const void* address) { bits_ |= reinterpret_cast<std::uintptr_t>(address); }
  void add(const ChannelRows& rows, std::int64_t half) {
    add(rows.base);
    add(rows.stride);
    add(half * (rows.wide ? 4 : 2));
  }
  void add(const CarryRings& rings, std::int64_t half) {
    if (rings.base == nullptr) return;
    add(rings.base);
    add(rings.request_stride);
    add(rings.row_stride);
    add(half * 4);
  }
  std::int32_t bytes(std::int32_t most) const {
    return 1 << std::countr_zero(bits_ | static_cast<unsigned>(most));
  }

 private:
  std::uint64_t bits_ = 0;
};

inline std::int32_t store_unit(const CompressTail& call) {
  Unit unit;
  unit.add(call.pages);
  if (call.page_count > 1) unit.add(call.page_stride);
  unit.add(call.layout.data_bytes);
  unit.add(call.layout.footer_bytes());
  return unit.bytes(4);
}

}  // namespace compress_plan

// Requires: what check_device_compress asks for. Returns: the launch; without items there is nothing to do.
inline CompressLaunch compress_launch(const CompressTail& call) {
  CompressLaunch launch{};
  launch.call = call;
  std::copy_n(call.layout.parts, call.layout.part_count, launch.parts);
  std::copy_n(call.frequencies, call.rope_dims / 2, launch.frequencies);
  launch.call.layout.parts = nullptr;
  launch.call.frequencies = nullptr;
  launch.call.traffic = nullptr;
  launch.items = compress_plan::items_of(call);
  compress_plan::Unit loads;
  loads.add(call.kv, call.width);
  loads.add(call.score, call.width);
  loads.add(call.carry, call.width);
  launch.wide_loads = call.kv.wide == call.score.wide && call.width % 8 == 0 && loads.bytes(16) == 16;
  loads.add(call.new_carry, call.width);
  launch.wide_keeps = launch.wide_loads && loads.bytes(16) == 16;
  launch.store_unit = compress_plan::store_unit(call);
  return launch;
}

inline LaunchSize compress_size(const CompressLaunch& launch, Team team) {
  const std::int64_t teams_of_block = team == Team::Warp ? warp_room.teams : block_room.teams;
  const std::int64_t blocks = (launch.items + teams_of_block - 1) / teams_of_block;
  return {team, static_cast<unsigned>(std::min(blocks, device_plan::most_blocks))};
}

}  // namespace hkv
