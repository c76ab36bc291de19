// SPDX-License-Identifier: Apache-2.0
// What a device kernel is given: plain data, by value, so that a launch allocates nothing and can be captured.
//
// Thread safety: plain data.
// Invariants: one launch's arguments fit in the 4,096 bytes that every device takes.
#pragma once
#include <cstdint>

#include "kernels/compress.h"
#include "kernels/paged_copy.h"
#include "kernels/piece_shape.h"

namespace hkv {

// Which pieces one group of a launch has, and which items are its own. An item is what one team of threads does.
struct DevicePieces {
  const void* page_ids;
  const void* rows;  // null: whole pages
  std::int64_t count;
  std::int64_t null_page;
  std::int64_t pages, page_rows;  // ids from here on are out of range
  std::int64_t first_item;
  std::int32_t first_layer, layer_count;
  bool wide;  // ids of 64 bits
};

// A group of gather or scatter. An item is a piece of one layer; where hand-outs are verified, of all layers, because
// the counts are compared before the first and after the last byte.
struct DevicePagedCopy {
  DevicePieces pieces;
  PieceShape shape;
  std::byte* buffer;
  const std::uint64_t* handouts;
  const std::uint64_t* expected;
  std::int32_t* status;
  std::int64_t piece_bytes;
  std::int32_t unit;  // bytes of a load: 1, 2, 4, 8 or 16
  bool zero_missing;
};

// A group of fingerprint. An item is a page of one layer.
struct DeviceFingerprint {
  DevicePieces pieces;
  PageRows page;
  std::uint64_t* out;
};

template <class Group>
struct DeviceLaunch {
  static constexpr int most_groups = 8, most_layers = 128;
  Group groups[most_groups];
  PoolLayer layers[most_layers];
  std::int64_t items;
  std::int32_t group_count;
};
using CopyLaunch = DeviceLaunch<DevicePagedCopy>;
using FingerprintLaunch = DeviceLaunch<DeviceFingerprint>;
static_assert(sizeof(CopyLaunch) <= 4096 && sizeof(FingerprintLaunch) <= 4096);

// Threads of a block, of every kernel.
inline constexpr unsigned device_threads = 256;
// Blocks that share a multiprocessor at least: registers for each, and loads under way from all of them.
template <class Arguments>
inline constexpr unsigned resident_blocks = 3;

// A call of compress_tail. What `call` points to on the host is in the launch itself and not followed.
struct CompressLaunch {
  static constexpr int most_parts = 8, most_pairs = 384;
  CompressTail call;
  RowPart parts[most_parts];
  double frequencies[most_pairs];
  std::int64_t items;
  bool wide_loads;          // eight channels of kv, of score and of the carry are loads of 16 bytes
  bool wide_keeps;          // and four channels of the new carry are stores of 16
  std::int32_t store_unit;  // bytes of a store to a row: 1, 2 or 4
};
static_assert(sizeof(CompressLaunch) <= 4096);
template <>
inline constexpr unsigned resident_blocks<CompressLaunch> = 2;

// What a team has room for in shared memory.
struct CompressRoom {
  unsigned channels, row_bytes, teams;
};
inline constexpr CompressRoom warp_room{640, 1536, device_threads / 32}, block_room{2048, 10240, 1};

}  // namespace hkv

// Every kernel: its name, its arguments, and whether a team is a warp (else a block). The device image, the driver
// and the stand-in of the tests are made from this list, so that none can lack one or call it with other arguments.
#define HKV_DEVICE_KERNELS(each)                                                                        \
  each(hkv_gather_by_warp, hkv::CopyLaunch) each(hkv_gather_by_block, hkv::CopyLaunch)                  \
      each(hkv_scatter_by_warp, hkv::CopyLaunch) each(hkv_scatter_by_block, hkv::CopyLaunch)            \
          each(hkv_fingerprint, hkv::FingerprintLaunch) each(hkv_compress_by_warp, hkv::CompressLaunch) \
              each(hkv_compress_by_block, hkv::CompressLaunch)
