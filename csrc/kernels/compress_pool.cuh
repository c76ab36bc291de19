// SPDX-License-Identifier: Apache-2.0
// The slots of a window to one sum of each channel, on a device: the arithmetic of window_pool.h, eight channels to a
// thread.
//
// The lanes of a warp are `groups` groups of 32 / groups columns each: chunk c of eight slots is summed by group c mod
// groups, and the chunks' sums are added in order. Of rows that loads of 16 bytes fit, a lane has eight of these under
// way before it computes; of others, it takes one channel after another.
#pragma once
#include <cstdint>

#include "kernels/compress_request.cuh"

namespace hkv {

// The slots of one window: those of the window before it, then its own.
struct DeviceWindow {
  const CompressTail& call;
  std::int64_t request, position;
  std::int64_t row_of_zero;  // of the token at 0, were it there
  std::int64_t first_token;  // of slot 0
  std::uint32_t drawn, count;
  std::uint32_t carried;  // the first so many slots lie in the carry

  HKV_DEVICE DeviceWindow(const CompressTail& call, const DeviceRequest& request, std::int64_t entry)
      : call(call),
        request(request.number),
        position(request.position),
        row_of_zero(request.first_row - request.position),
        drawn(call.overlap && entry > 0 ? static_cast<std::uint32_t>(call.ratio) : 0),
        count(drawn + static_cast<std::uint32_t>(call.ratio)) {
    first_token = entry * call.ratio - drawn;
    const std::int64_t old = position - first_token;
    carried = old <= 0 ? 0 : old < count ? static_cast<std::uint32_t>(old) : count;
  }

  // Where slot k has its first channel, in a row of the call or of the ring.
  HKV_DEVICE const std::byte* kv_row(std::uint32_t k) const {
    if (k < carried) return ring_row(k);
    return call.kv.base + given_row(k) * call.kv.stride + first_channel(k) * (call.kv.wide ? 4 : 2);
  }
  HKV_DEVICE const std::byte* score_row(std::uint32_t k) const {
    if (k < carried) return ring_row(k) + call.row_width() * 4;
    return call.score.base + given_row(k) * call.score.stride + first_channel(k) * (call.score.wide ? 4 : 2);
  }

 private:
  HKV_DEVICE std::int64_t given_row(std::uint32_t k) const { return row_of_zero + first_token + k; }
  HKV_DEVICE std::int64_t first_channel(std::uint32_t k) const {
    return call.overlap && k >= drawn ? call.width : 0;
  }
  HKV_DEVICE const std::byte* ring_row(std::uint32_t k) const {
    const std::int64_t slot = (first_token + k) % call.ring_rows();
    return call.carry.base + request * call.carry.request_stride + slot * call.carry.row_stride +
           first_channel(k) * 4;
  }
};

// Eight channels of a row as 16 bytes of bfloat16, or twice 16 of float32.
template <bool wide>
struct ColumnLoad {
  simt::Wide part[wide ? 2 : 1];

  HKV_DEVICE void load(const std::byte* row, unsigned column) {
    const auto* const from = reinterpret_cast<const simt::Wide*>(row) + column * (wide ? 2 : 1);
    HKV_UNROLL
    for (int i = 0; i < (wide ? 2 : 1); ++i) part[i] = simt::load(from + i);
  }
  HKV_DEVICE float channel(int i) const {
    if constexpr (wide) {
      const std::uint64_t pair = i % 4 < 2 ? part[i / 4].x : part[i / 4].y;
      return float_of(static_cast<std::uint32_t>(pair >> 32 * (i % 2)));
    } else {
      const std::uint64_t four = i < 4 ? part[0].x : part[0].y;
      const auto pair = static_cast<std::uint32_t>(four >> 32 * (i / 2 % 2));
      return float_of(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
    }
  }
};

// Adds slots [from, end) of one kind. Returns: whether every score is at most 40 in magnitude.
template <bool wide>
HKV_DEVICE bool pool_wide_loads(const DeviceWindow& window, std::uint32_t from, std::uint32_t end,
                                unsigned column, ColumnSums& sums) {
  constexpr std::uint32_t in_flight = wide ? 2 : 4;
  bool near = true;
  for (; from < end; from += in_flight) {
    ColumnLoad<wide> kv[in_flight], score[in_flight];
    HKV_UNROLL
    for (std::uint32_t k = 0; k < in_flight; ++k) {
      if (from + k >= end) continue;
      score[k].load(window.score_row(from + k), column);
      kv[k].load(window.kv_row(from + k), column);
    }
    HKV_UNROLL
    for (std::uint32_t k = 0; k < in_flight; ++k) {
      if (from + k >= end) continue;
      HKV_UNROLL
      for (int i = 0; i < column_channels; ++i) {
        const bool is_near = sums.add(i, score[k].channel(i), kv[k].channel(i));
        near = near & is_near;
      }
    }
  }
  return near;
}

HKV_DEVICE float channel_at(const std::byte* row, std::int64_t channel, bool wide) {
  if (wide) return simt::load(reinterpret_cast<const float*>(row) + channel);
  return float_of(std::uint32_t{simt::load(reinterpret_cast<const std::uint16_t*>(row) + channel)} << 16);
}

// Calls each(i, score, kv) for the channels of a column that are there, slot by slot of [from, end).
template <class Each>
HKV_DEVICE void each_item(const DeviceWindow& window, std::uint32_t from, std::uint32_t end, unsigned column,
                          Each&& each) {
  const std::int64_t channel = std::int64_t{column} * column_channels;
  for (std::uint32_t k = from; k < end; ++k) {
    const std::byte* const kv = window.kv_row(k);
    const std::byte* const score = window.score_row(k);
    const bool carried = k < window.carried;
    HKV_UNROLL
    for (int i = 0; i < column_channels; ++i) {
      if (channel + i >= window.call.width) continue;
      each(i, channel_at(score, channel + i, carried || window.call.score.wide),
           channel_at(kv, channel + i, carried || window.call.kv.wide));
    }
  }
}

// Adds slots [from, end) of whatever kinds. Returns as above.
HKV_DEVICE bool pool_slots(const DeviceWindow& window, bool wide_loads, std::uint32_t from, std::uint32_t end,
                           unsigned column, ColumnSums& sums) {
  bool near = true;
  if (!wide_loads) {
    each_item(window, from, end, column, [&](int i, float score, float kv) {
      const bool is_near = sums.add(i, score, kv);
      near = near & is_near;
    });
    return near;
  }
  const std::uint32_t given = window.carried < from ? from : window.carried < end ? window.carried : end;
  near = pool_wide_loads<true>(window, from, window.call.kv.wide ? end : given, column, sums);
  if (!window.call.kv.wide) near = near & pool_wide_loads<false>(window, given, end, column, sums);
  return near;
}

}  // namespace hkv
