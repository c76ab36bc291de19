// SPDX-License-Identifier: Apache-2.0
// Tail compression: projected kv and score rows, and what each request carries, to finished rows in pages and the new
// carry, in one pass.
//
// hybridkv.reference.compress_tail is the specification. The arithmetic is float32 in this order, so that a device can
// repeat it; every fma is one rounding, and nothing else is contracted:
// 1. Slots of a window in order of position, eight to a chunk. In a chunk, per channel and slot by slot:
//    e = 2^(z log2 e) (window_pool.h), s += e, a = fma(e, kv, a), both from 0. Chunks are added to the window's s and a
//    in order. A window with a score beyond 40 in magnitude, or whose mean square is not between 2^-80 and infinity, is
//    done again with z - max z for z, and with kv / 2^16 where some |kv| is 2^100 or more.
// 2. y = a / s; the mean square in float64: 32 sums, channel i to sum i mod 32, then halves added to halves. Norm in
//    float64, y * (1 / sqrt(mean + eps)) * w, rounded once, after
// 3. the rotation of a pair by cosine and sine of position * frequency, in float64 too (rotary_angles.h).
// 4. Channels that become bfloat16, and are too near a middle between two for float32 to tell, are taken again in
//    float64 (undecided.h).
// 5. Hadamard in float32 by halves of growing spans, then the quantisers of row_encode.h.
//
// The structs are plain data: the same go to a device kernel.
//
// Thread safety: calls may run at the same time as long as nobody writes what another touches.
// Invariants:
// 1. Nothing is written but the bytes of rows that are written and the live rows of new_carry.
// 2. Each byte of kv and score is read once, save where a window is done again (1 above) or a channel is (4).
// 3. All levels and any number of threads write the same bytes.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/atomic.h"
#include "kernels/row_layout.h"

namespace hkv {

inline constexpr int chunk_slots = 8;
inline constexpr int channel_block = 32;  // sums of the mean square

// A mean square between this and infinity tells that no sum came near the ends of float32.
inline constexpr double least_mean_square = 0x1p-80;
// Values from here on are taken 2^-16 times, so that no sum of them is too large.
inline constexpr std::uint32_t large_value_bits = 0x71800000;  // 2^100
inline constexpr float large_value_scale = 0x1p-16f;

// Rows of channels: bfloat16, or float32 where `wide`.
struct ChannelRows {
  const std::byte* base = nullptr;
  std::int64_t stride = 0;
  bool wide = false;

  const std::byte* row(std::int64_t i) const { return base + i * stride; }
};

// Rings of float32 rows, kv and score side by side; row p mod ring rows is that of the token at p.
struct CarryRings {
  std::byte* base = nullptr;  // null: none
  std::int64_t request_stride = 0;
  std::int64_t row_stride = 0;

  float* row(std::int64_t request, std::int64_t slot) const {
    return reinterpret_cast<float*>(base + request * request_stride + slot * row_stride);
  }
};

// A list of int32 at a stride in bytes.
struct IntList {
  const std::byte* base = nullptr;
  std::int64_t stride = 4;

  std::int32_t operator[](std::int64_t i) const {
    return *reinterpret_cast<const std::int32_t*>(base + i * stride);
  }
};

// Bytes that a call moved between memory and its registers, for tests; a thread's own scratch not counted.
struct CompressTraffic {
  Atom<std::int64_t> read{0};
  Atom<std::int64_t> written{0};
};

struct CompressTail {
  ChannelRows kv, score;  // [rows, c * width], c = 2 with overlap, else 1
  std::int64_t rows = 0;
  std::int64_t ratio = 1;
  bool overlap = false;
  std::int64_t width = 0;   // channels of an entry
  ChannelRows norm_weight;  // one row
  double eps = 0;
  const double* frequencies = nullptr;  // angle per position of each pair
  std::int64_t rope_dims = 0;           // 0: nothing is rotated
  bool interleaved = true;
  RowLayout layout;
  std::byte* pages = nullptr;
  std::int64_t page_stride = 0;
  std::int64_t page_count = 0;
  CarryRings carry, new_carry;
  std::int64_t requests = 0;
  IntList starts, positions;
  IntList write_mask;  // base null: 0 for all
  IntList page_ids;    // base null: the windows of the call fill the rows of `pages` in order
  std::int64_t page_columns = 0;
  std::int64_t page_id_stride = 0;  // bytes from request to request
  CompressTraffic* traffic = nullptr;

  constexpr std::int64_t row_width() const { return width * (overlap ? 2 : 1); }
  constexpr std::int64_t ring_rows() const { return ratio * (overlap ? 2 : 1); }
  std::int64_t position(std::int64_t q) const { return positions[q]; }
  std::int64_t last(std::int64_t q) const { return position(q) + starts[q + 1] - starts[q]; }
  std::int64_t mask(std::int64_t q) const { return write_mask.base == nullptr ? 0 : write_mask[q]; }
  // Entries [first_entry, end_entry) are those whose windows the rows of request q close.
  std::int64_t first_entry(std::int64_t q) const { return position(q) / ratio; }
  std::int64_t end_entry(std::int64_t q) const { return last(q) / ratio; }
  // The first token whose row a ring at `at` must hold.
  constexpr std::int64_t first_live(std::int64_t at) const {
    const std::int64_t opened = at - at % ratio;
    return overlap && opened > 0 ? opened - ratio : opened;
  }
};

// Where an entry goes: page * page_rows + row, or one of these.
inline constexpr std::int64_t slot_not_written = -1;
inline constexpr std::int64_t slot_missing = -2;  // behind the last column of page_ids

// Slot of entry `entry` of request q, which is number `window` of the call; what the mask says comes first.
inline std::int64_t entry_slot(const CompressTail& call, std::int64_t q, std::int64_t entry,
                               std::int64_t window) {
  if ((entry + 1) * call.ratio <= call.mask(q)) return slot_not_written;
  if (call.page_ids.base == nullptr) return window;
  const std::int64_t column = entry / call.layout.page_rows;
  if (column >= call.page_columns) return slot_missing;
  const IntList ids{call.page_ids.base + q * call.page_id_stride, call.page_ids.stride};
  const std::int64_t page = ids[column];
  return page < 0 ? slot_not_written : page * call.layout.page_rows + entry % call.layout.page_rows;
}

// Closes every window that the rows fill. Requires: what check_compress asks for. Progress: finishes by itself, on up
// to `threads` threads; no allocation after the first calls with as many threads, as wide rows and as many requests.
void compress_tail(const CompressTail& call, int threads) noexcept;

}  // namespace hkv
