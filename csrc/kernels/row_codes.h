// SPDX-License-Identifier: Apache-2.0
// What one channel becomes in a row, and the scale of one tile: the scalar part of the quantisers, for the levels of the
// CPU and for the device. Whoever includes it has defined HKV_TARGET_INLINE, how a function is declared there
// (window_pool.h, compress_math.cuh).
//
// Rounding is to nearest, ties to even, on the bits of a float32, without branches, so that loops become vectors. What
// is too large becomes the largest finite value (bfloat16: infinity); NaN becomes the one NaN of the type, in e2m1 6.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/row_layout.h"

namespace hkv {
namespace {

HKV_TARGET_INLINE std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
HKV_TARGET_INLINE float float_of(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

constexpr std::uint32_t magnitude_bits = 0x7fffffff;
constexpr std::uint32_t infinity_bits = 0x7f800000;

// A type of 1 sign bit, exponent bits and `mantissa` bits. Below `smallest`, its least normal number, steps are equal:
// adding `aligner`, of which the last bit is worth one step, rounds to one.
template <int mantissa, std::uint32_t smallest, std::uint32_t aligner, std::uint32_t largest_code,
          std::uint32_t nan_code, std::uint32_t sign>
HKV_TARGET_INLINE std::uint32_t small_float(float x) {
  constexpr int dropped = 23 - mantissa;
  constexpr std::uint32_t first_normal = smallest - (1u << 23);  // codes count from the exponent below it
  const std::uint32_t bits = bits_of(x), a = bits & magnitude_bits;
  const bool tiny = a < smallest;
  const std::uint32_t steps = bits_of(float_of(tiny ? a : 0u) + float_of(aligner)) - aligner;
  const std::uint32_t rounded =
      (a + ((1u << (dropped - 1)) - 1) + ((a >> dropped) & 1u) - first_normal) >> dropped;
  const std::uint32_t code = std::min(tiny ? steps : rounded, largest_code);
  return a > infinity_bits ? nan_code : code | ((bits >> 31) * sign);
}

HKV_TARGET_INLINE std::uint32_t e4m3_code(float x) {
  return small_float<3, 0x3c800000, 0x46800000, 0x7e, 0x7f, 0x80>(x);
}
HKV_TARGET_INLINE std::uint32_t e2m1_code(float x) {
  return small_float<1, 0x3f800000, 0x4a800000, 0x7, 0x7, 0x8>(x);
}
HKV_TARGET_INLINE std::uint32_t bf16_code(float x) {
  const std::uint32_t bits = bits_of(x);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return (bits & magnitude_bits) > infinity_bits ? 0x7fc0u : rounded;
}

// The value of an e4m3 or e2m1 code that is no NaN.
HKV_TARGET_INLINE float small_value(std::uint32_t code, int mantissa, int bits, int bias) {
  const std::uint32_t magnitude = code & ((1u << (bits - 1)) - 1);
  const auto exponent = static_cast<int>(magnitude >> mantissa);
  const auto steps =
      static_cast<int>(magnitude & ((1u << mantissa) - 1)) + (exponent > 0 ? 1 << mantissa : 0);
  const std::uint32_t power = static_cast<std::uint32_t>(std::max(exponent, 1) - bias - mantissa + 127) << 23;
  const float value = static_cast<float>(steps) * float_of(power);
  return (code >> (bits - 1)) != 0 ? -value : value;
}
HKV_TARGET_INLINE float e4m3_value(std::uint32_t code) {
  return code == 0x7f ? __builtin_nanf("") : small_value(code, 3, 8, 7);
}
HKV_TARGET_INLINE float e2m1_value(std::uint32_t code) { return small_value(code, 1, 4, 1); }

// A float32 with its one NaN.
HKV_TARGET_INLINE std::uint32_t f32_code(float x) {
  const std::uint32_t bits = bits_of(x);
  return (bits & magnitude_bits) > infinity_bits ? 0x7fc00000u : bits;
}

// What x is after a look through `element`.
HKV_TARGET_INLINE float rounded_to(Element element, float x) {
  if (element == Element::Bf16) return float_of(bf16_code(x) << 16);
  if (element == Element::E4m3) return e4m3_value(e4m3_code(x));
  if (element == Element::E2m1) return e2m1_value(e2m1_code(x));
  return x;
}

// The magnitude that counts for the scale of a tile, as bits: that of a NaN does not.
HKV_TARGET_INLINE std::uint32_t counted_magnitude(float x) {
  const std::uint32_t a = bits_of(x) & magnitude_bits;
  return a & (0u - static_cast<std::uint32_t>(a <= infinity_bits));
}

// What becomes of a channel behind a rotation of `root` squared channels.
HKV_TARGET_INLINE float over_root(float x, double root) {
  return static_cast<float>(static_cast<double>(x) / root);
}

// The smallest k with a <= limit * 2^k, between -127 and 127.
HKV_TARGET_INLINE int scale_exponent(double a, bool e4m3) {
  constexpr std::uint64_t fraction_bits = (std::uint64_t{1} << 52) - 1;
  const double limit = e4m3 ? 448.0 : 6.0;
  std::uint64_t bits, limit_bits;
  std::memcpy(&bits, &a, 8);
  std::memcpy(&limit_bits, &limit, 8);
  const int k = static_cast<int>(bits >> 52) - static_cast<int>(limit_bits >> 52) +
                ((bits & fraction_bits) > (limit_bits & fraction_bits) ? 1 : 0);
  return std::clamp(k, -127, 127);
}

// 2^k for a k that a float64 has.
HKV_TARGET_INLINE double power_of_two(int k) {
  const std::uint64_t bits = static_cast<std::uint64_t>(k + 1023) << 52;
  double power;
  std::memcpy(&power, &bits, 8);
  return power;
}

// To float32, where what is not exact gets an odd last bit: rounding once more, to fewer bits, is then right.
HKV_TARGET_INLINE float narrow_to_odd(double x) {
  const auto near = static_cast<float>(x);
  std::uint32_t bits = bits_of(near);
  if (static_cast<double>(near) == x || (bits & infinity_bits) == infinity_bits) return near;
  if (std::fabs(static_cast<double>(near)) > std::fabs(x)) --bits;  // to the float32 nearer to 0
  return float_of(bits | 1);
}

struct TileScale {
  float factor;   // of the channels, where it is a power of two
  float divisor;  // else
  std::uint32_t stored;
};

HKV_TARGET_INLINE TileScale tile_scale(const RowPart& part, float greatest_magnitude) {
  const double a = std::max(static_cast<double>(greatest_magnitude), part.floor);
  const bool e4m3 = part.element == Element::E4m3;
  if (part.power_of_two) {
    const int k = scale_exponent(a, e4m3);
    const auto factor = static_cast<float>(power_of_two(-k));
    if (part.scale == ScaleCode::Ue8m0) return {factor, 1, static_cast<std::uint32_t>(k + 127)};
    return {factor, 1, bits_of(static_cast<float>(power_of_two(k)))};
  }
  const double scale = a / (e4m3 ? 448.0 : 6.0);
  if (part.scale == ScaleCode::E4m3) {
    const std::uint32_t code = e4m3_code(narrow_to_odd(scale));
    return {1, e4m3_value(code), code};
  }
  constexpr float most = 0x1.fffffep+127f;
  const float narrow = std::min(static_cast<float>(std::min(scale, static_cast<double>(most))), most);
  return {1, narrow, bits_of(narrow)};
}

}  // namespace
}  // namespace hkv
