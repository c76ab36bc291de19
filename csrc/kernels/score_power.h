// SPDX-License-Identifier: Apache-2.0
// e^score, by which a slot counts: for the levels of the CPU and for the device, which therefore give the same bits.
// Whoever includes it has defined HKV_TARGET_INLINE, how a function is declared there (window_pool.h says what Lanes
// are; compress_math.cuh has those of a device).
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/row_codes.h"

#if defined(__CUDACC__)
#define HKV_UNROLL_TERMS _Pragma("unroll")
#else
#define HKV_UNROLL_TERMS _Pragma("GCC unroll 6")
#endif

namespace hkv {
namespace {

// Magnitude up to which a power of a score, and a sum of powers, is far from the ends of float32.
constexpr std::uint32_t score_limit = 0x42200000;  // 40

constexpr float log2_e = 0x1.715476p+0f;
constexpr float log2_e_rest = 0x1.4ae0cp-26f;
// Adding it leaves a whole number in the last bits.
constexpr float whole = 0x1.8p+23f;
constexpr std::uint32_t whole_bits = 0x4b400000;
// What every z - max z is raised to: its power is 0.
constexpr float lowest_difference = -100;

// 2^f for |f| <= 1/2, within 2^-28.3 of it: least greatest relative error at a value of 1 in 0.
template <class Lanes>
HKV_TARGET_INLINE typename Lanes::F fraction_power(typename Lanes::F f) {
  constexpr float power_terms[] = {0x1.416b6p-13f, 0x1.5f083p-10f, 0x1.3b2dep-7f, 0x1.c6af7cp-5f,
                                   0x1.ebfbdcp-3f, 0x1.62e43p-1f,  1.0f};
  typename Lanes::F p = Lanes::all(power_terms[0]);
  HKV_UNROLL_TERMS
  for (int i = 1; i < 7; ++i) p = Lanes::fma(p, f, Lanes::all(power_terms[i]));
  return p;
}

// p 2^n and 2^n (0 from n = -127 down), where n is in the last bits of `shifted`.
HKV_TARGET_INLINE float raised(float p, float shifted) {
  return float_of(bits_of(p) + (bits_of(shifted) << 23));
}
HKV_TARGET_INLINE float whole_power(float shifted) {
  const auto n = static_cast<std::int32_t>(bits_of(shifted) - whole_bits);
  return float_of(static_cast<std::uint32_t>(std::max(n, -127) + 127) << 23);
}

// e^z: n + f = z log2 e, n whole; 2^f by a polynomial, times 2^n.
template <class Lanes, bool below>
HKV_TARGET_INLINE typename Lanes::F exponential(typename Lanes::F z) {
  const typename Lanes::F shifted = Lanes::fma(z, Lanes::all(log2_e), Lanes::all(whole));
  const typename Lanes::F n = Lanes::sub(shifted, Lanes::all(whole));
  const typename Lanes::F near = Lanes::fms(z, Lanes::all(log2_e), n);
  const typename Lanes::F p = fraction_power<Lanes>(Lanes::fma(z, Lanes::all(log2_e_rest), near));
  if constexpr (below) {
    return Lanes::mul(p, Lanes::power(shifted));
  } else {
    return Lanes::raise(p, shifted);
  }
}

}  // namespace
}  // namespace hkv
