// SPDX-License-Identifier: Apache-2.0
// The copies of a level with vectors, once for all such levels. Included by vector_copy_avx2.cpp and
// vector_copy_avx512.cpp only, which first define HKV_TARGET, the instruction set of each function, and include what
// it needs. Everything has internal linkage: no function built for one level can be linked into another.
//
// Streamed stores go to whole lines of the destination: a line that is written in part and streamed in part is read
// again by the memory controller. So each lane is first brought to a line of its destination.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu_level.h"

#define HKV_TARGET_INLINE HKV_TARGET __attribute__((always_inline)) inline

namespace hkv {
namespace {

constexpr std::size_t line_bytes = 64;
constexpr std::size_t step_bytes = 256;  // of one lane, before the next lane's turn

// Vector: a type of `width` bytes with load (any address), store (any address) and stream (aligned address).
template <class Vector, bool stream>
HKV_TARGET_INLINE void move(std::byte* to, const std::byte* from, std::size_t bytes) {
#pragma GCC unroll 8
  for (std::size_t at = 0; at < bytes; at += Vector::width) {
    const Vector vector = Vector::load(from + at);
    if constexpr (stream) {
      vector.stream(to + at);
    } else {
      vector.store(to + at);
    }
  }
}

template <class Vector, bool stream, int count>
HKV_TARGET_INLINE void copy_lanes(std::byte* const* to, const std::byte* const* from, std::size_t bytes) {
  std::byte* out[count];
  const std::byte* in[count];
  std::size_t left[count];
  std::size_t body = bytes;
  for (int lane = 0; lane < count; ++lane) {
    const std::size_t off_line = (0 - reinterpret_cast<std::uintptr_t>(to[lane])) % line_bytes;
    const std::size_t head = stream ? std::min(off_line, bytes) : 0;
    if (head != 0) std::memcpy(to[lane], from[lane], head);
    out[lane] = to[lane] + head;
    in[lane] = from[lane] + head;
    left[lane] = bytes - head;
    body = std::min(body, left[lane]);
  }
  body -= body % step_bytes;
  for (std::size_t at = 0; at < body; at += step_bytes) {
#pragma GCC unroll 4
    for (int lane = 0; lane < count; ++lane) move<Vector, stream>(out[lane] + at, in[lane] + at, step_bytes);
  }
  for (int lane = 0; lane < count; ++lane) {
    std::size_t at = body;
    for (; at + line_bytes <= left[lane]; at += line_bytes) {
      move<Vector, stream>(out[lane] + at, in[lane] + at, line_bytes);
    }
    if (at != left[lane]) std::memcpy(out[lane] + at, in[lane] + at, left[lane] - at);
  }
}

template <class Vector, bool stream>
HKV_TARGET void copy_some(std::byte* const* to, const std::byte* const* from, int count, std::size_t bytes) {
  switch (count) {
    case 4: return copy_lanes<Vector, stream, 4>(to, from, bytes);
    case 3: return copy_lanes<Vector, stream, 3>(to, from, bytes);
    case 2: return copy_lanes<Vector, stream, 2>(to, from, bytes);
    default: return copy_lanes<Vector, stream, 1>(to, from, bytes);
  }
}

template <class Vector>
HKV_TARGET void vector_copy(std::byte* const* to, const std::byte* const* from, int count, std::size_t bytes,
                            bool stream) {
  if (stream) return copy_some<Vector, true>(to, from, count, bytes);
  copy_some<Vector, false>(to, from, count, bytes);
}

template <class Vector>
HKV_TARGET void vector_zero(std::byte* to, std::size_t bytes, bool stream) {
  const std::size_t off_line = (0 - reinterpret_cast<std::uintptr_t>(to)) % line_bytes;
  const std::size_t head = std::min(off_line, bytes);
  const std::size_t body = (bytes - head) / line_bytes * line_bytes;
  if (!stream || body == 0) {
    std::memset(to, 0, bytes);
    return;
  }
  std::memset(to, 0, head);
  const Vector zero = Vector::zero();
  for (std::size_t at = 0; at < body; at += Vector::width) zero.stream(to + head + at);
  std::memset(to + head + body, 0, bytes - head - body);
}

}  // namespace
}  // namespace hkv
