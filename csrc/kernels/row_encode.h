// SPDX-License-Identifier: Apache-2.0
// Quantisers: float32 channels to the bytes of a packed row. Included by compress_*.cpp only (window_pool.h says how).
//
// What one channel becomes, and the scale of one tile, are in row_codes.h.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/compress_path.h"
#include "kernels/row_codes.h"

namespace hkv {
namespace {

HKV_TARGET void round_to(Element element, float* y, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    y[i] = rounded_to(element, y[i]);
  }
}

// `restrict`: a store of bytes could be to anything, and then nothing becomes a vector.
HKV_TARGET void encode_e4m3(const float* __restrict y, std::int64_t count, std::uint8_t* __restrict to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<std::uint8_t>(e4m3_code(y[i]));
}

HKV_TARGET void encode_e2m1(const float* __restrict y, std::int64_t count, std::uint8_t* __restrict codes,
                            std::uint8_t* __restrict to) {
  for (std::int64_t i = 0; i < count; ++i) codes[i] = static_cast<std::uint8_t>(e2m1_code(y[i]));
  for (std::int64_t i = 0; i < count / 2; ++i) {
    to[i] = static_cast<std::uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
  }
}

HKV_TARGET void encode_bf16(const float* __restrict y, std::int64_t count, std::uint8_t* __restrict to) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto code = static_cast<std::uint16_t>(bf16_code(y[i]));
    std::memcpy(to + 2 * i, &code, 2);
  }
}

HKV_TARGET void encode_f32(const float* __restrict y, std::int64_t count, std::uint8_t* __restrict to) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t code = f32_code(y[i]);
    std::memcpy(to + 4 * i, &code, 4);
  }
}

HKV_TARGET void encode_elements(const float* y, const RowPart& part, std::uint8_t* codes,
                                std::uint8_t* packed) {
  std::uint8_t* const to = packed + part.offset;
  switch (part.element) {
    case Element::E4m3: return encode_e4m3(y, part.channels, to);
    case Element::E2m1: return encode_e2m1(y, part.channels, codes, to);
    case Element::Bf16: return encode_bf16(y, part.channels, to);
    case Element::F32: return encode_f32(y, part.channels, to);
  }
}

// The greatest magnitude; a NaN does not count.
HKV_TARGET_INLINE float greatest(const float* y, std::int64_t count) {
  std::uint32_t most = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t counted = counted_magnitude(y[i]);
    most = counted > most ? counted : most;
  }
  return float_of(most);
}

// Scales a part's channels in place and writes their scales.
HKV_TARGET void scale_tiles(float* y, const RowPart& part, std::uint8_t* packed) {
  const std::int64_t scale_bytes = part.scale == ScaleCode::F32 ? 4 : 1;
  std::uint8_t* to = packed + part.scale_offset;
  for (std::int64_t tile = 0; tile < part.channels; tile += part.tile, to += scale_bytes) {
    const TileScale scale = tile_scale(part, greatest(y + tile, part.tile));
    std::memcpy(to, &scale.stored, scale_bytes);
    if (part.power_of_two) {
      for (std::int64_t i = tile; i < tile + part.tile; ++i) y[i] *= scale.factor;
    } else {
      for (std::int64_t i = tile; i < tile + part.tile; ++i) y[i] /= scale.divisor;
    }
  }
}

// Sylvester's order, over the square root of the length; sums before differences, spans from 1 up.
HKV_TARGET void rotate_hadamard(float* y, std::int64_t count) {
  for (std::int64_t span = 1; span < count; span *= 2) {
    for (std::int64_t from = 0; from < count; from += 2 * span) {
      for (std::int64_t i = from; i < from + span; ++i) {
        const float sum = y[i] + y[i + span], difference = y[i] - y[i + span];
        y[i] = sum;
        y[i + span] = difference;
      }
    }
  }
  const double root = std::sqrt(static_cast<double>(count));
  for (std::int64_t i = 0; i < count; ++i) y[i] = over_root(y[i], root);
}

// Writes the packed row. Requires: bytes that no part covers are 0 already. The entry is used up.
HKV_TARGET void encode_row(float* entry, std::int64_t width, const RowLayout& layout, std::uint8_t* codes,
                           std::uint8_t* packed) {
  if (layout.hadamard) rotate_hadamard(entry, width);
  if (layout.rounded) round_to(layout.rounded_to, entry, width);
  for (std::int32_t p = 0; p < layout.part_count; ++p) {
    const RowPart& part = layout.parts[p];
    if (part.scale != ScaleCode::None) scale_tiles(entry, part, packed);
    encode_elements(entry, part, codes, packed);
    entry += part.channels;
  }
}

}  // namespace
}  // namespace hkv
