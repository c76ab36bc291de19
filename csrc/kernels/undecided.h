// SPDX-License-Identifier: Apache-2.0
// Channels that float32 leaves undecided: so near the middle between two bfloat16 that its errors may choose the wrong
// one. They are taken again in float64, so that a row has the bytes of the specification. For the levels of the CPU and
// for the device: whoever includes it has defined HKV_TARGET_INLINE (window_pool.h, compress_math.cuh).
//
// Errors of an entry's sums are of one size in all its channels, and the norm makes their mean square 1: a normed
// channel's error is some 2^-24 of its weight. So the reach around a middle is a multiple of the weight, and about one
// channel in a thousand lies within it.
#pragma once
#include <cmath>
#include <cstdint>

#include "kernels/entry_norm.h"
#include "kernels/row_codes.h"
#include "kernels/row_layout.h"

namespace hkv {
namespace {

// Where the weight is 1 and the mean square far above eps.
constexpr double undecided_reach = 0x1p-22;

// Of all channels of an entry: what a weight is multiplied by.
HKV_TARGET_INLINE float reach_of(double mean_square, double scale) {
  return static_cast<float>(undecided_reach * std::sqrt(mean_square) * scale);
}

// Whether channels of a part are rounded to bfloat16 as the norm and the rotation leave them.
HKV_TARGET_INLINE bool becomes_bf16(const RowLayout& layout, const RowPart& part) {
  if (layout.hadamard) return false;
  if (layout.rounded) return layout.rounded_to == Element::Bf16;
  return part.element == Element::Bf16 && part.scale == ScaleCode::None;
}

// Whether bfloat16 within `reach` of y differ. 0 is taken for exact; NaN and infinity are.
HKV_TARGET_INLINE bool is_undecided(float y, float reach) {
  const float middle = float_of((bits_of(y) & 0xffff0000u) | 0x8000u);
  return (std::fabs(y - middle) <= reach) & (y != 0);
}

constexpr double log2_e_wide = 0x1.71547652b82fep+0;
constexpr double ln_2 = 0x1.62e42fefa39efp-1;
constexpr double ln_2_rest = 0x1.abc9e3b39803fp-56;
constexpr double lowest_exponent = -700;  // less adds nothing to a sum that has a 1

// e^z for z <= 0, within 2^-38 of itself: Taylor's series up to r^10, |r| <= ln 2 / 2.
HKV_TARGET_INLINE double wide_power(double z) {
  const double kept = z > lowest_exponent ? z : lowest_exponent;
  const double shifted = __builtin_fma(kept, log2_e_wide, whole_double);
  const double n = shifted - whole_double;
  const double r = __builtin_fma(-n, ln_2_rest, __builtin_fma(-n, ln_2, kept));
  double p = 1.0 / 3628800;
  p = __builtin_fma(p, r, 1.0 / 362880);
  p = __builtin_fma(p, r, 1.0 / 40320);
  p = __builtin_fma(p, r, 1.0 / 5040);
  p = __builtin_fma(p, r, 1.0 / 720);
  p = __builtin_fma(p, r, 1.0 / 120);
  p = __builtin_fma(p, r, 1.0 / 24);
  p = __builtin_fma(p, r, 1.0 / 6);
  p = __builtin_fma(p, r, 0.5);
  p = __builtin_fma(p, r, 1.0);
  p = __builtin_fma(p, r, 1.0);
  std::uint64_t bits, turns;
  std::memcpy(&bits, &p, 8);
  std::memcpy(&turns, &shifted, 8);
  bits += turns << 52;
  std::memcpy(&p, &bits, 8);
  return p;
}

}  // namespace
}  // namespace hkv
