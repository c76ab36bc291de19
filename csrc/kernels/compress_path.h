// SPDX-License-Identifier: Apache-2.0
// What a level of the CPU offers to tail compression: the two stages of a window, and the memory that they work in.
//
// Thread safety: plain data and pure functions; a WindowScratch belongs to one thread.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/compress.h"
#include "kernels/cpu_level.h"

namespace hkv {

// One slot of a window: a row of kv and of score, each bfloat16 or float32 (`wide`), and what to fetch ahead for a
// window or chunk to come, which may be the slot itself.
struct Slot {
  const std::byte* kv = nullptr;
  const std::byte* score = nullptr;
  const std::byte* kv_ahead = nullptr;
  const std::byte* score_ahead = nullptr;
  bool kv_wide = false;
  bool score_wide = false;
};

// Where the slots of a window are, for whoever needs some of them again.
struct WindowRows {
  const void* of = nullptr;
  // Slots [from, from + count) into `slots`. Returns: the bytes that they are.
  std::int64_t (*fill)(const void* of, std::int64_t from, int count, Slot* slots) = nullptr;
  std::int64_t count = 0;  // slots
  std::int64_t width = 0;  // channels of each
  std::int64_t position = 0;
};

// Some channels of a window in float64. Room for twice as many as an entry has.
struct WideSums {
  std::int32_t count = 0;
  std::int32_t* channels = nullptr;
  float* largest = nullptr;  // score
  double* powers = nullptr;
  double* entry = nullptr;
};

// Memory of one thread: rows of `padded` items each, aligned to 64 bytes. `padded` is the width of an entry rounded up
// to blocks.
struct WindowScratch {
  std::int64_t padded = 0;
  float* powers = nullptr;    // s of each channel
  float* sums = nullptr;      // a of each channel
  float* largest = nullptr;   // greatest score of each channel, where a window is done again
  float* staged = nullptr;    // 2 * chunk_slots rows: slots of mixed types in float32
  float* entry = nullptr;     // the row under way
  float* weight = nullptr;    // of the norm
  float* reach = nullptr;     // of a normed channel's error, as a multiple of what the row has (undecided.h)
  double* cosines = nullptr;  // of each pair
  double* sines = nullptr;
  std::uint8_t* codes = nullptr;   // of the channels of a part
  std::uint8_t* packed = nullptr;  // the packed row
  std::int32_t* undecided = nullptr;
  WideSums wide;
};

struct CompressPath {
  // Adds chunk `count` slots to powers and sums; `first`: sets them. Returns: whether every score is at most 40 in
  // magnitude. Requires: 1 <= count <= chunk_slots.
  bool (*pool)(const Slot* slots, int count, std::int64_t width, bool first, const WindowScratch& scratch);
  // Raises `largest` to the scores of a chunk; returns whether all are numbers below infinity. `most_value` is raised
  // to the bits of the greatest |kv|.
  bool (*scan)(const Slot* slots, int count, std::int64_t width, bool first, const WindowScratch& scratch,
               std::uint32_t& most_value);
  // As pool, relative to `largest`, with kv times `value_scale`.
  void (*pool_below)(const Slot* slots, int count, std::int64_t width, bool first,
                     const WindowScratch& scratch, float value_scale);
  // y = a / s into `entry`, zeros behind `width`. Returns: the mean square.
  double (*divide)(std::int64_t width, const WindowScratch& scratch);
  // Norm, rotation, quantiser: the entry, of kv times `factor`, to packed. Undecided channels are taken again.
  // Returns: the bytes read for them.
  std::int64_t (*finish)(const CompressTail& call, const WindowRows& window, double mean_square,
                         double factor, const WindowScratch& scratch);
  // What the call's norm weights are to each channel, into the scratch.
  void (*take_weights)(const CompressTail& call, const WindowScratch& scratch);
  // Widens a row of bfloat16 to float32; copies one that is wide.
  void (*widen)(const std::byte* from, bool wide, std::int64_t count, float* to);
};

// Path of the level in use.
const CompressPath& compress_path() noexcept;

extern const CompressPath portable_compress_path;
#if defined(__x86_64__)
extern const CompressPath avx2_compress_path;
extern const CompressPath avx512_compress_path;
#endif

}  // namespace hkv
