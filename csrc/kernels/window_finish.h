// SPDX-License-Identifier: Apache-2.0
// From a window's sums to its packed row: division, norm, rotation, quantiser. Included by compress_*.cpp only
// (window_pool.h says how).
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/compress_path.h"
#include "kernels/rotary_angles.h"
#include "kernels/row_encode.h"

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

HKV_TARGET_INLINE void norm(float* y, const float* weight, std::int64_t width, double scale) {
  int exponent = 0;
  double fraction = std::frexp(scale, &exponent);
  if (std::isfinite(fraction)) {  // float32 ends at 2^-126: the rest goes to the fraction
    const int kept = std::clamp(exponent, -126, 127);
    fraction = std::ldexp(fraction, exponent - kept);
    exponent = kept;
  }
  const auto power = static_cast<float>(std::ldexp(1.0, exponent));
  const auto rest = static_cast<float>(fraction);
  for (std::int64_t i = 0; i < width; ++i) y[i] = y[i] * power * rest * weight[i];
}

HKV_TARGET_INLINE void rotate_pair(float& a, float& b, double cosine, double sine) {
  const double x = a, y = b;
  a = static_cast<float>(x * cosine - y * sine);
  b = static_cast<float>(y * cosine + x * sine);
}

HKV_TARGET_INLINE void rotate(float* y, std::int64_t dims, bool interleaved, const double* cosines,
                              const double* sines) {
  const std::int64_t pairs = dims / 2;
  if (interleaved) {
    for (std::int64_t i = 0; i < pairs; ++i) rotate_pair(y[2 * i], y[2 * i + 1], cosines[i], sines[i]);
  } else {
    for (std::int64_t i = 0; i < pairs; ++i) rotate_pair(y[i], y[i + pairs], cosines[i], sines[i]);
  }
}

HKV_TARGET void finish(const CompressTail& call, double mean_square, double eps, std::int64_t position,
                       const WindowScratch& scratch) {
  norm(scratch.entry, scratch.weight, call.width, 1.0 / std::sqrt(mean_square + eps));
  if (call.rope_dims != 0) {
    rotary_angles(static_cast<double>(position), call.frequencies, call.rope_dims / 2, scratch.cosines,
                  scratch.sines);
    rotate(scratch.entry + call.width - call.rope_dims, call.rope_dims, call.interleaved, scratch.cosines,
           scratch.sines);
  }
  encode_row(scratch.entry, call.width, call.layout, scratch.codes, scratch.packed);
}

}  // namespace
}  // namespace hkv
