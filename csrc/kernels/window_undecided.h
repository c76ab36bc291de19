// SPDX-License-Identifier: Apache-2.0
// Channels of a window that float32 leaves undecided, taken again in float64 (undecided.h). Included by compress_*.cpp
// only (window_pool.h says how).
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/compress_path.h"
#include "kernels/undecided.h"

namespace hkv {
namespace {

// Appends the undecided ones of channels [from, end). Most blocks have none, and are passed as vectors.
HKV_TARGET std::int32_t list_undecided(const float* __restrict y, const float* __restrict weights,
                                       float reach, std::int64_t from, std::int64_t end,
                                       std::int32_t* __restrict list, std::int32_t listed) {
  for (std::int64_t at = from; at < end; at += channel_block) {
    const std::int64_t behind = std::min<std::int64_t>(at + channel_block, end);
    if (behind - at == channel_block) {
      int any = 0;
      for (int j = 0; j < channel_block; ++j) any |= is_undecided(y[at + j], reach * weights[at + j]);
      if (any == 0) continue;
    }
    for (std::int64_t i = at; i < behind; ++i) {
      if (is_undecided(y[i], reach * weights[i])) list[listed++] = static_cast<std::int32_t>(i);
    }
  }
  return listed;
}

HKV_TARGET_INLINE float channel_of(const std::byte* row, bool wide, std::int64_t channel) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, row + channel * (wide ? 4 : 2), wide ? 4 : 2);
  return float_of(wide ? bits : bits << 16);
}

HKV_TARGET void raise_largest(const Slot* slots, int count, const WideSums& sums) {
  for (std::int32_t n = 0; n < sums.count; ++n) {
    for (int k = 0; k < count; ++k) {
      const float score = channel_of(slots[k].score, slots[k].score_wide, sums.channels[n]);
      sums.largest[n] = std::max(sums.largest[n], score);
    }
  }
}

HKV_TARGET void add_wide(const Slot* slots, int count, const WideSums& sums) {
  for (std::int32_t n = 0; n < sums.count; ++n) {
    const std::int64_t channel = sums.channels[n];
    double differences[chunk_slots] = {}, powers[chunk_slots];
    for (int k = 0; k < count; ++k) {
      differences[k] = static_cast<double>(channel_of(slots[k].score, slots[k].score_wide, channel)) -
                       static_cast<double>(sums.largest[n]);
    }
    for (int k = 0; k < chunk_slots; ++k) powers[k] = wide_power(differences[k]);
    for (int k = 0; k < count; ++k) {
      const auto kv = static_cast<double>(channel_of(slots[k].kv, slots[k].kv_wide, channel));
      sums.powers[n] += powers[k];
      sums.entry[n] = __builtin_fma(powers[k], kv, sums.entry[n]);
    }
  }
}

// The entry's channels that are listed. Returns: the bytes read.
HKV_TARGET std::int64_t pool_wide(const WindowRows& window, const WideSums& sums) {
  std::fill_n(sums.largest, sums.count, -__builtin_inff());
  std::fill_n(sums.powers, sums.count, 0.0);
  std::fill_n(sums.entry, sums.count, 0.0);
  std::int64_t bytes = 0;
  Slot slots[chunk_slots];
  for (const bool largest : {true, false}) {
    for (std::int64_t at = 0; at < window.count; at += chunk_slots) {
      const int count = static_cast<int>(std::min<std::int64_t>(chunk_slots, window.count - at));
      bytes += window.fill(window.of, at, count, slots) / window.width * sums.count;
      largest ? raise_largest(slots, count, sums) : add_wide(slots, count, sums);
    }
  }
  for (std::int32_t n = 0; n < sums.count; ++n) sums.entry[n] /= sums.powers[n];
  return bytes;
}

// The other channel of a rotated one's pair; itself where it is not rotated.
HKV_TARGET_INLINE std::int64_t partner_of(const CompressTail& call, std::int64_t channel) {
  const std::int64_t first = call.width - call.rope_dims, at = channel - first, pairs = call.rope_dims / 2;
  if (at < 0) return channel;
  return first + (call.interleaved ? at ^ 1 : at < pairs ? at + pairs : at - pairs);
}

// Takes the undecided channels of the entry again. `factor`: of its kv. Returns: the bytes read.
HKV_TARGET std::int64_t settle_undecided(const CompressTail& call, const WindowRows& window, float reach,
                                         double scale, double factor, const WindowScratch& scratch) {
  std::int32_t listed = 0;
  std::int64_t from = 0;
  for (std::int32_t p = 0; p < call.layout.part_count; ++p) {
    const std::int64_t end = from + call.layout.parts[p].channels;
    if (becomes_bf16(call.layout, call.layout.parts[p])) {
      listed = list_undecided(scratch.entry, scratch.reach, reach, from, end, scratch.undecided, listed);
    }
    from = end;
  }
  if (listed == 0) return 0;
  WideSums sums = scratch.wide;
  sums.count = 0;
  for (std::int32_t n = 0; n < listed; ++n) {
    const std::int64_t channel = scratch.undecided[n], partner = partner_of(call, channel);
    sums.channels[sums.count++] = static_cast<std::int32_t>(channel);
    if (partner != channel) sums.channels[sums.count++] = static_cast<std::int32_t>(partner);
  }
  const std::int64_t bytes = pool_wide(window, sums);
  for (std::int32_t n = 0; n < sums.count; ++n) {
    const std::int64_t channel = sums.channels[n], partner = partner_of(call, channel);
    double value = normed(sums.entry[n] * factor, scratch.weight[channel], scale);
    if (partner != channel) {
      const double other = normed(sums.entry[++n] * factor, scratch.weight[partner], scale);
      const std::int64_t at = std::min(channel, partner) - (call.width - call.rope_dims);
      const std::int64_t pair = call.interleaved ? at / 2 : at;
      const Turn turn{scratch.cosines[pair], scratch.sines[pair]};
      value = channel < partner ? turned_first(value, other, turn) : turned_second(other, value, turn);
    }
    scratch.entry[channel] = narrow_to_odd(value);
  }
  return bytes;
}

}  // namespace
}  // namespace hkv
