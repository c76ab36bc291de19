// SPDX-License-Identifier: Apache-2.0
// Norm and rotation of one channel: for the levels of the CPU and for the device. Whoever includes it has defined
// HKV_TARGET_INLINE, how a function is declared there (window_pool.h, compress_math.cuh).
#pragma once
#include <cmath>

#include "kernels/rotary_angles.h"

namespace hkv {
namespace {

// What the norm multiplies an entry by.
HKV_TARGET_INLINE double norm_scale(double mean_square, double eps) {
  return 1.0 / std::sqrt(mean_square + eps);
}

// What the norm makes of a channel, not rounded yet.
HKV_TARGET_INLINE double normed(double y, float weight, double scale) {
  return y * scale * static_cast<double>(weight);
}

// A pair after its rotation, not rounded yet.
HKV_TARGET_INLINE double turned_first(double a, double b, Turn turn) {
  return a * turn.cosine - b * turn.sine;
}
HKV_TARGET_INLINE double turned_second(double a, double b, Turn turn) {
  return b * turn.cosine + a * turn.sine;
}

}  // namespace
}  // namespace hkv
