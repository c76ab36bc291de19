// SPDX-License-Identifier: Apache-2.0
// Cosine and sine of a position's angles in float64, in operations that every machine has and rounds alike.
// For the levels of the CPU and for the device: whoever includes it has defined HKV_TARGET_INLINE, how a function is
// declared there (window_pool.h, compress_math.cuh).
//
// The angle t = position * frequency is taken to the nearest multiple n of pi / 2 and r = t - n pi / 2, with pi / 2 as the
// sum of two float64: exact to 2^-53 for positions below 2^31. Taylor's series up to r^11 and r^12 leave less than
// 2^-37, far below what a float32 shows.
#pragma once
#include <cstdint>
#include <cstring>

namespace hkv {
namespace {

constexpr double two_over_pi = 0x1.45f306dc9c883p-1;
constexpr double half_pi = 0x1.921fb54442d18p+0;
constexpr double half_pi_rest = 0x1.1a62633145c07p-54;
constexpr double whole_double = 0x1.8p+52;  // adding it leaves a whole number in the last bits

HKV_TARGET_INLINE double sine_of(double r, double square) {
  double p = -1.0 / 39916800;
  p = __builtin_fma(p, square, 1.0 / 362880);
  p = __builtin_fma(p, square, -1.0 / 5040);
  p = __builtin_fma(p, square, 1.0 / 120);
  p = __builtin_fma(p, square, -1.0 / 6);
  return __builtin_fma(p * square, r, r);
}

HKV_TARGET_INLINE double cosine_of(double square) {
  double p = 1.0 / 479001600;
  p = __builtin_fma(p, square, -1.0 / 3628800);
  p = __builtin_fma(p, square, 1.0 / 40320);
  p = __builtin_fma(p, square, -1.0 / 720);
  p = __builtin_fma(p, square, 1.0 / 24);
  p = __builtin_fma(p, square, -0.5);
  return __builtin_fma(p, square, 1.0);
}

struct Turn {
  double cosine, sine;
};

// Of the angle t, at least 0.
HKV_TARGET_INLINE Turn turn_of(double t) {
  const double shifted = t * two_over_pi + whole_double;
  const double n = shifted - whole_double;
  const double r = __builtin_fma(-n, half_pi_rest, __builtin_fma(-n, half_pi, t));
  std::uint64_t turn;
  std::memcpy(&turn, &shifted, 8);
  const double square = r * r;
  const double sine = sine_of(r, square), cosine = cosine_of(square);
  std::uint64_t s, c;
  std::memcpy(&s, &sine, 8);
  std::memcpy(&c, &cosine, 8);
  // A quarter turn exchanges the two, a half turn changes signs.
  const std::uint64_t quarter = 0 - (turn & 1);
  const std::uint64_t exchanged = (s ^ c) & quarter;
  s ^= exchanged ^ (turn & 2) << 62;
  c ^= exchanged ^ ((turn + 1) & 2) << 62;
  Turn made;
  std::memcpy(&made.cosine, &c, 8);
  std::memcpy(&made.sine, &s, 8);
  return made;
}

}  // namespace
}  // namespace hkv
