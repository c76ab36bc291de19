// SPDX-License-Identifier: Apache-2.0
// Groups of a call as launches of device kernels: one launch for all, as long as their arguments fit in one.
//
// Thread safety: pure functions of their arguments; nothing is allocated, so that they can run under graph capture.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/device_arguments.h"
#include "kernels/fingerprint.h"

namespace hkv {

// How many threads do an item together.
enum class Team { Warp, Block };

struct LaunchSize {
  Team team;
  unsigned blocks;
};

namespace device_plan {

inline constexpr std::int64_t warp_most_bytes = 2048;  // longer pieces leave a warp waiting for memory
inline constexpr std::int64_t most_blocks = std::int64_t{1} << 20;

// The widest load, 16 bytes at most, that every address of a copy is a multiple of.
inline std::int32_t load_unit(const PagedCopy& copy, const PieceShape& shape) {
  std::uint64_t bits =
      16 | reinterpret_cast<std::uintptr_t>(copy.buffer) | static_cast<std::uint64_t>(copy.piece_bytes());
  const auto add = [&bits](std::int64_t value) { bits |= static_cast<std::uint64_t>(value); };
  for (std::int32_t layer = 0; layer < copy.layer_count; ++layer) {
    bits |= reinterpret_cast<std::uintptr_t>(copy.layers[layer].base);
    if (copy.pieces.pages > 1) add(copy.layers[layer].page_stride);
  }
  for (int k = 0; k < shape.count; ++k) {
    const Stretch& stretch = shape.stretches[k];
    add(stretch.page_offset);
    add(stretch.packed_offset);
    add(stretch.bytes);
    if (stretch.repeats > 1) add(stretch.page_step);
    if (copy.pieces.rows != nullptr && copy.page.rows > 1) add(shape.row_step[k]);
  }
  return 1 << std::countr_zero(bits);
}

inline DevicePieces pieces_of(const PieceList& list, const PageRows& page) {
  DevicePieces pieces{};
  pieces.page_ids = list.page_ids;
  pieces.rows = list.rows;
  pieces.count = list.count;
  pieces.null_page = list.null_page;
  pieces.pages = list.pages;
  pieces.page_rows = page.rows;
  pieces.wide = list.wide;
  return pieces;
}

inline DevicePagedCopy device_group(const PagedCopy& copy) {
  DevicePagedCopy group{};
  group.pieces = pieces_of(copy.pieces, copy.page);
  group.shape = piece_shape(copy.page, copy.pieces.rows == nullptr);
  group.buffer = copy.buffer;
  group.handouts = copy.handouts;
  group.expected = copy.expected;
  group.status = copy.status;
  group.piece_bytes = copy.piece_bytes();
  group.unit = load_unit(copy, group.shape);
  group.zero_missing = copy.zero_missing;
  return group;
}
inline DeviceFingerprint device_group(const FingerprintGroup& asked) {
  return {pieces_of(asked.pieces, asked.page), asked.page, asked.out};
}

inline std::int64_t items_of(const PagedCopy& copy) {
  return copy.pieces.count * (copy.handouts == nullptr ? copy.layer_count : 1);
}
inline std::int64_t items_of(const FingerprintGroup& asked) { return asked.pieces.count * asked.layer_count; }

inline std::int64_t team_bytes(const PagedCopy& copy) { return copy.piece_bytes(); }
inline std::int64_t team_bytes(const FingerprintGroup&) { return warp_most_bytes + 1; }  // always a block

}  // namespace device_plan

// Calls send(launch, size) for each launch of a call. Requires: no group has more than DeviceLaunch::most_layers
// layers; no page reaches over 2 GiB. Progress: wait-free but for `send`.
template <class Asked, class Send>
void plan_launches(const Asked* groups, int group_count, Send&& send) {
  using Launch = DeviceLaunch<decltype(device_plan::device_group(*groups))>;
  Launch launch;
  int next = 0;
  while (next < group_count) {
    launch.items = 0;
    launch.group_count = 0;
    std::int32_t layers = 0;
    std::int64_t longest = 0;
    for (; next < group_count && launch.group_count < Launch::most_groups; ++next) {
      const Asked& asked = groups[next];
      if (asked.pieces.count == 0) continue;
      if (layers + asked.layer_count > Launch::most_layers) break;
      auto& group = launch.groups[launch.group_count++];
      group = device_plan::device_group(asked);
      group.pieces.first_item = launch.items;
      group.pieces.first_layer = layers;
      group.pieces.layer_count = asked.layer_count;
      std::copy_n(asked.layers, asked.layer_count, launch.layers + layers);
      layers += asked.layer_count;
      launch.items += device_plan::items_of(asked);
      longest = std::max(longest, device_plan::team_bytes(asked));
    }
    if (launch.items == 0) continue;
    const Team team = longest <= device_plan::warp_most_bytes ? Team::Warp : Team::Block;
    const std::int64_t teams_of_block = team == Team::Warp ? device_threads / 32 : 1;
    const std::int64_t blocks = (launch.items + teams_of_block - 1) / teams_of_block;
    send(launch, LaunchSize{team, static_cast<unsigned>(std::min(blocks, device_plan::most_blocks))});
  }
}

}  // namespace hkv
