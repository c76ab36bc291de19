// SPDX-License-Identifier: Apache-2.0
// The arithmetic of tail compression for a thread of a device: the functions that the CPU computes with, on one channel
// at a time.
#pragma once
#include <cmath>
#include <cstdint>

#include "kernels/compress.h"
#include "kernels/simt.h"

#define HKV_TARGET_INLINE HKV_DEVICE
#include "kernels/entry_norm.h"
#include "kernels/row_codes.h"
#include "kernels/score_power.h"
#include "kernels/undecided.h"

namespace hkv {

// Lanes of window_pool.h, of one float.
struct ScalarLanes {
  using F = float;
  HKV_DEVICE static float all(float value) { return value; }
  HKV_DEVICE static float sub(float a, float b) { return a - b; }
  HKV_DEVICE static float mul(float a, float b) { return a * b; }
  HKV_DEVICE static float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
  HKV_DEVICE static float fms(float a, float b, float c) { return __builtin_fmaf(a, b, -c); }
  HKV_DEVICE static float larger(float a, float b) { return a > b ? a : b; }
  HKV_DEVICE static float raise(float p, float shifted) { return raised(p, shifted); }
  HKV_DEVICE static float power(float shifted) { return whole_power(shifted); }
};

HKV_DEVICE float channel_at(const std::byte* row, std::int64_t channel, bool wide) {
  if (wide) return simt::load(reinterpret_cast<const float*>(row) + channel);
  return float_of(std::uint32_t{simt::load(reinterpret_cast<const std::uint16_t*>(row) + channel)} << 16);
}

inline constexpr int column_channels = 8;  // of a thread

// The sums of some slots, of eight channels.
struct ColumnSums {
  float powers[column_channels] = {}, sums[column_channels] = {};

  // One slot more of channel i. Returns: whether its score is at most 40 in magnitude.
  HKV_DEVICE bool add(int i, float score, float kv) {
    add_power<false>(i, score, kv);
    return __builtin_fabsf(score) <= float_of(score_limit);
  }
  // The same relative to the largest score of the channel, with kv times `value_scale`.
  HKV_DEVICE void add_below(int i, float score, float kv, float largest, float value_scale) {
    add_power<true>(i, ScalarLanes::larger(score - largest, lowest_difference), kv * value_scale);
  }

 private:
  template <bool below>
  HKV_DEVICE void add_power(int i, float z, float kv) {
    const float power = exponential<ScalarLanes, below>(z);
    powers[i] += power;
    sums[i] = ScalarLanes::fma(power, kv, sums[i]);
  }
};

}  // namespace hkv
