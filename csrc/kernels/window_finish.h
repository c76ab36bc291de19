// SPDX-License-Identifier: Apache-2.0
// From a window's sums to its packed row: division, norm, rotation, quantiser. Included by compress_*.cpp only
// (window_pool.h says how).
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/compress_path.h"
#include "kernels/entry_norm.h"
#include "kernels/rotary_angles.h"
#include "kernels/row_encode.h"
#include "kernels/window_undecided.h"

namespace hkv {
namespace {

HKV_TARGET double divide(std::int64_t width, const WindowScratch& scratch) {
  const std::int64_t padded = scratch.padded;
  float* const y = scratch.entry;
  for (std::int64_t i = 0; i < padded; ++i) y[i] = scratch.sums[i] / scratch.powers[i];
  std::fill(y + width, y + padded, 0.0f);
  double sums[channel_block] = {};
  for (std::int64_t i = 0; i < padded; i += channel_block) {
    for (int j = 0; j < channel_block; ++j) {
      sums[j] += static_cast<double>(y[i + j]) * static_cast<double>(y[i + j]);
    }
  }
  for (int half = channel_block / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0] / static_cast<double>(width);
}

HKV_TARGET_INLINE void norm(float* __restrict y, const float* __restrict weight, std::int64_t count,
                            double scale) {
  for (std::int64_t i = 0; i < count; ++i)
    y[i] = static_cast<float>(normed(static_cast<double>(y[i]), weight[i], scale));
}

// Norm and rotation of pairs: (0, 1), (2, 3), ... where interleaved, else (0, pairs), (1, pairs + 1), ...
template <bool interleaved>
HKV_TARGET void rotate(float* __restrict y, const float* __restrict weight, std::int64_t pairs, double scale,
                       const double* __restrict cosines, const double* __restrict sines) {
  for (std::int64_t i = 0; i < pairs; ++i) {
    const std::int64_t first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : i + pairs;
    const double a = normed(static_cast<double>(y[first]), weight[first], scale);
    const double b = normed(static_cast<double>(y[second]), weight[second], scale);
    const Turn turn{cosines[i], sines[i]};
    y[first] = static_cast<float>(turned_first(a, b, turn));
    y[second] = static_cast<float>(turned_second(a, b, turn));
  }
}

HKV_TARGET void rotary_angles(double position, const double* frequencies, std::int64_t pairs, double* cosines,
                              double* sines) {
  for (std::int64_t i = 0; i < pairs; ++i) {
    const Turn turn = turn_of(position * frequencies[i]);
    cosines[i] = turn.cosine;
    sines[i] = turn.sine;
  }
}

HKV_TARGET std::int64_t finish(const CompressTail& call, const WindowRows& window, double mean_square,
                               double factor, const WindowScratch& scratch) {
  const double scale = norm_scale(mean_square, call.eps * factor * factor);
  norm(scratch.entry, scratch.weight, call.width - call.rope_dims, scale);
  if (call.rope_dims != 0) {
    rotary_angles(static_cast<double>(window.position), call.frequencies, call.rope_dims / 2, scratch.cosines,
                  scratch.sines);
    const std::int64_t first = call.width - call.rope_dims;
    const auto rotated = call.interleaved ? &rotate<true> : &rotate<false>;
    rotated(scratch.entry + first, scratch.weight + first, call.rope_dims / 2, scale, scratch.cosines,
            scratch.sines);
  }
  const std::int64_t bytes =
      settle_undecided(call, window, reach_of(mean_square, scale), scale, factor, scratch);
  encode_row(scratch.entry, call.width, call.layout, scratch.codes, scratch.packed);
  return bytes;
}

// Weights of the norm into `weight`, and of a channel's reach into `reach`.
HKV_TARGET void take_weights(const CompressTail& call, const WindowScratch& scratch) {
  widen(call.norm_weight.base, call.norm_weight.wide, call.width, scratch.weight);
  for (std::int64_t i = 0; i < call.width; ++i) {
    const std::int64_t partner = partner_of(call, i);
    scratch.reach[i] = std::fabs(scratch.weight[i]) + (partner == i ? 0 : std::fabs(scratch.weight[partner]));
  }
}

}  // namespace
}  // namespace hkv
