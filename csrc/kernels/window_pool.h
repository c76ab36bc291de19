// SPDX-License-Identifier: Apache-2.0
// The pooling of a window's slots, once for all levels. Included by compress_*.cpp only, which first define HKV_TARGET,
// the instruction set of each function. Everything has internal linkage: no function built for one level can be linked
// into another.
//
// Lanes: a type with `width` floats in an F and these functions, all of them one rounding a lane: load, store, all,
// add, sub, mul, fma (a b + c), fms (a b - c), larger; split (2 * width bfloat16 to the even and the odd channels) and
// join (back to the order of channels); `most` and `most16` (greatest magnitudes, as bits), `above` and `above16`
// (whether one is beyond score_limit); raise (p 2^n) and power (2^n, 0 from n = -127 down), where n is in the last bits of
// `shifted`.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/compress_path.h"

#define HKV_TARGET_INLINE HKV_TARGET __attribute__((always_inline)) inline
#include "kernels/score_power.h"

namespace hkv {
namespace {

template <class Lanes>
struct Bf16Rows {
  using Item = std::uint16_t;
  using F = typename Lanes::F;
  HKV_TARGET_INLINE static void load(const Item* from, F& first, F& second) {
    Lanes::split(from, first, second);
  }
  HKV_TARGET_INLINE static void order(F& first, F& second) { Lanes::join(first, second); }
  HKV_TARGET_INLINE static typename Lanes::I most(typename Lanes::I m, const Item* from) {
    return Lanes::most16(m, from);
  }
  HKV_TARGET_INLINE static bool above(typename Lanes::I m) { return Lanes::above16(m); }
};

template <class Lanes>
struct F32Rows {
  using Item = float;
  using F = typename Lanes::F;
  HKV_TARGET_INLINE static void load(const Item* from, F& first, F& second) {
    first = Lanes::load(from);
    second = Lanes::load(from + Lanes::width);
  }
  HKV_TARGET_INLINE static void order(F&, F&) {}
  HKV_TARGET_INLINE static typename Lanes::I most(typename Lanes::I m, const Item* from) {
    return Lanes::most(Lanes::most(m, Lanes::load(from)), Lanes::load(from + Lanes::width));
  }
  HKV_TARGET_INLINE static bool above(typename Lanes::I m) { return Lanes::above(m); }
};

struct Below {
  const float* largest = nullptr;
  float value_scale = 1;
};

// Channels [at, at + 2 * width) of a chunk, which lie at `from` in its rows.
template <class Lanes, class Rows, bool below>
HKV_TARGET_INLINE void pool_block(const Slot* slots, int count, std::int64_t from, std::int64_t at,
                                  bool first, const WindowScratch& scratch, typename Lanes::I& most,
                                  Below relative) {
  using F = typename Lanes::F;
  F s0 = Lanes::all(0), s1 = s0, a0 = s0, a1 = s0;
#pragma GCC unroll 8
  for (int k = 0; k < count; ++k) {
    const auto* const score = reinterpret_cast<const typename Rows::Item*>(slots[k].score) + from;
    const auto* const kv = reinterpret_cast<const typename Rows::Item*>(slots[k].kv) + from;
    F z0, z1, v0, v1;
    Rows::load(score, z0, z1);
    Rows::load(kv, v0, v1);
    if constexpr (below) {
      const F lowest = Lanes::all(lowest_difference), scale = Lanes::all(relative.value_scale);
      z0 = Lanes::larger(Lanes::sub(z0, Lanes::load(relative.largest + at)), lowest);
      z1 = Lanes::larger(Lanes::sub(z1, Lanes::load(relative.largest + at + Lanes::width)), lowest);
      v0 = Lanes::mul(v0, scale);
      v1 = Lanes::mul(v1, scale);
    } else {
      most = Rows::most(most, score);
    }
    const F e0 = exponential<Lanes, below>(z0), e1 = exponential<Lanes, below>(z1);
    s0 = Lanes::add(s0, e0);
    s1 = Lanes::add(s1, e1);
    a0 = Lanes::fma(e0, v0, a0);
    a1 = Lanes::fma(e1, v1, a1);
  }
  Rows::order(s0, s1);
  Rows::order(a0, a1);
  float* const powers = scratch.powers + at;
  float* const sums = scratch.sums + at;
  if (!first) {
    s0 = Lanes::add(Lanes::load(powers), s0);
    s1 = Lanes::add(Lanes::load(powers + Lanes::width), s1);
    a0 = Lanes::add(Lanes::load(sums), a0);
    a1 = Lanes::add(Lanes::load(sums + Lanes::width), a1);
  }
  Lanes::store(powers, s0);
  Lanes::store(powers + Lanes::width, s1);
  Lanes::store(sums, a0);
  Lanes::store(sums + Lanes::width, a1);
}

template <class Item>
HKV_TARGET_INLINE void fetch_ahead(const Slot* slots, int count, std::int64_t at) {
  const std::int64_t byte = at * static_cast<std::int64_t>(sizeof(Item));
  for (int k = 0; k < count; ++k) {
    __builtin_prefetch(slots[k].kv_ahead + byte);
    __builtin_prefetch(slots[k].score_ahead + byte);
  }
}

template <class Lanes, class Rows, bool below, int fixed>
HKV_TARGET_INLINE bool pool_rows(const Slot* slots, int given, std::int64_t width, bool first,
                                 const WindowScratch& scratch, Below relative) {
  using Item = typename Rows::Item;
  constexpr std::int64_t step = 2 * Lanes::width;
  constexpr std::int64_t line_items = 64 / sizeof(Item);
  const int count = fixed != 0 ? fixed : given;
  typename Lanes::I most = Lanes::none();
  std::int64_t at = 0;
  for (; at + step <= width; at += step) {
    if constexpr (!below) {
      for (std::int64_t line = at; line < at + step; line += line_items) {
        if (line % line_items == 0) fetch_ahead<Item>(slots, count, line);
      }
    }
    pool_block<Lanes, Rows, below>(slots, count, at, at, first, scratch, most, relative);
  }
  if (at < width) {  // the rest in rows of its own, zeros behind it: nothing behind a row is read
    alignas(64) Item rest[2 * chunk_slots][step] = {};
    Slot own[chunk_slots];
    for (int k = 0; k < count; ++k) {
      std::memcpy(rest[2 * k], slots[k].kv + at * sizeof(Item), (width - at) * sizeof(Item));
      std::memcpy(rest[2 * k + 1], slots[k].score + at * sizeof(Item), (width - at) * sizeof(Item));
      own[k].kv = reinterpret_cast<const std::byte*>(rest[2 * k]);
      own[k].score = reinterpret_cast<const std::byte*>(rest[2 * k + 1]);
    }
    pool_block<Lanes, Rows, below>(own, count, 0, at, first, scratch, most, relative);
  }
  return below || !Rows::above(most);
}

HKV_TARGET void widen(const std::byte* from, bool wide, std::int64_t count, float* to) {
  if (wide) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, from + 2 * i, 2);
    const std::uint32_t wider = static_cast<std::uint32_t>(bits) << 16;
    std::memcpy(to + i, &wider, 4);
  }
}

// Stages a chunk in float32; returns its slots.
HKV_TARGET_INLINE void stage(const Slot* slots, int count, std::int64_t width, const WindowScratch& scratch,
                             Slot* staged) {
  for (int k = 0; k < count; ++k) {
    float* const kv = scratch.staged + 2 * k * scratch.padded;
    float* const score = kv + scratch.padded;
    widen(slots[k].kv, slots[k].kv_wide, width, kv);
    widen(slots[k].score, slots[k].score_wide, width, score);
    std::fill(kv + width, kv + scratch.padded, 0.0f);
    std::fill(score + width, score + scratch.padded, 0.0f);
    staged[k].kv = staged[k].kv_ahead = reinterpret_cast<const std::byte*>(kv);
    staged[k].score = staged[k].score_ahead = reinterpret_cast<const std::byte*>(score);
    staged[k].kv_wide = staged[k].score_wide = true;
  }
}

template <class Lanes>
HKV_TARGET bool pool(const Slot* slots, int count, std::int64_t width, bool first,
                     const WindowScratch& scratch) {
  int wide = 0;
  for (int k = 0; k < count; ++k) wide += slots[k].kv_wide + slots[k].score_wide;
  if (wide == 0 && count == chunk_slots) {
    return pool_rows<Lanes, Bf16Rows<Lanes>, false, chunk_slots>(slots, count, width, first, scratch, {});
  }
  if (wide == 0) return pool_rows<Lanes, Bf16Rows<Lanes>, false, 0>(slots, count, width, first, scratch, {});
  if (wide == 2 * count)
    return pool_rows<Lanes, F32Rows<Lanes>, false, 0>(slots, count, width, first, scratch, {});
  Slot staged[chunk_slots];
  stage(slots, count, width, scratch, staged);
  return pool_rows<Lanes, F32Rows<Lanes>, false, 0>(staged, count, scratch.padded, first, scratch, {});
}

template <class Lanes>
HKV_TARGET void pool_below(const Slot* slots, int count, std::int64_t width, bool first,
                           const WindowScratch& scratch, float value_scale) {
  Slot staged[chunk_slots];
  stage(slots, count, width, scratch, staged);
  pool_rows<Lanes, F32Rows<Lanes>, true, 0>(staged, count, scratch.padded, first, scratch,
                                            {scratch.largest, value_scale});
}

HKV_TARGET bool scan(const Slot* slots, int count, std::int64_t width, bool first,
                     const WindowScratch& scratch, std::uint32_t& most_value) {
  Slot staged[chunk_slots];
  stage(slots, count, width, scratch, staged);
  std::uint32_t most = most_value;
  int strange = 0;
  for (int k = 0; k < count; ++k) {
    const float* const kv = reinterpret_cast<const float*>(staged[k].kv);
    const float* const score = reinterpret_cast<const float*>(staged[k].score);
    const bool sets = first && k == 0;
    for (std::int64_t i = 0; i < scratch.padded; ++i) {
      std::uint32_t bits;
      std::memcpy(&bits, kv + i, 4);
      most = std::max(most, bits & 0x7fffffff);
      const float z = score[i];
      strange |= !(z < __builtin_inff());
      scratch.largest[i] = sets || z > scratch.largest[i] ? z : scratch.largest[i];
    }
  }
  most_value = most;
  return strange == 0;
}

}  // namespace
}  // namespace hkv
