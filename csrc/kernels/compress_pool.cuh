// SPDX-License-Identifier: Apache-2.0
// Slots of a window to sums of eight channels, on a device: what one thread does of window_pool.h. Of rows that loads of
// 16 bytes fit, it has eight of these under way before it computes; of others, it takes one channel after another.
#pragma once
#include <cstdint>

#include "kernels/compress_request.cuh"

namespace hkv {

// Slots whose rows lie at equal distances, of one kind.
struct SlotRun {
  const std::byte* kv;  // of the first slot, its first channel
  const std::byte* score;
  std::int64_t kv_step, score_step;
  std::uint32_t count;
  bool kv_wide, score_wide;
};

// The slots of one window: those of the window before it, then its own.
struct DeviceWindow {
  const CompressTail& call;
  std::int64_t request;
  std::int64_t row_of_zero;  // of the token at 0, were it there
  std::int64_t first_token;  // of slot 0
  std::uint32_t drawn, count;
  std::uint32_t carried;  // the first so many slots lie in the carry

  HKV_DEVICE DeviceWindow(const CompressTail& call, const DeviceRequest& request, std::int64_t entry)
      : call(call),
        request(request.number),
        row_of_zero(std::int64_t{request.first_row} - request.position),
        drawn(call.overlap && entry > 0 ? static_cast<std::uint32_t>(call.ratio) : 0),
        count(drawn + static_cast<std::uint32_t>(call.ratio)) {
    first_token = entry * call.ratio - drawn;
    const std::int64_t old = request.position - first_token;
    carried = old <= 0 ? 0 : old < count ? static_cast<std::uint32_t>(old) : count;
  }

  HKV_DEVICE std::uint32_t chunks() const { return (count - 1) / chunk_slots + 1; }

  // The slots from k on, before `end`, that make a run.
  HKV_DEVICE SlotRun run(std::uint32_t k, std::uint32_t end) const {
    const std::int64_t channel = call.overlap && k >= drawn ? call.width : 0;
    if (k < drawn && drawn < end) end = drawn;
    const std::int64_t token = first_token + k;
    if (k < carried) {
      const std::int64_t slot = ring_slot(call, token), to_wrap = call.ring_rows() - slot;
      if (carried < end) end = carried;
      const std::byte* const row =
          call.carry.base + request * call.carry.request_stride + slot * call.carry.row_stride + channel * 4;
      const std::uint32_t slots = end - k < to_wrap ? end - k : static_cast<std::uint32_t>(to_wrap);
      return {row, row + call.row_width() * 4, call.carry.row_stride, call.carry.row_stride, slots, true,
              true};
    }
    return {given(call.kv, token, channel),
            given(call.score, token, channel),
            call.kv.stride,
            call.score.stride,
            end - k,
            call.kv.wide,
            call.score.wide};
  }

 private:
  HKV_DEVICE const std::byte* given(const ChannelRows& rows, std::int64_t token, std::int64_t channel) const {
    return rows.base + (row_of_zero + token) * rows.stride + channel * (rows.wide ? 4 : 2);
  }
};

// Eight channels of a row as 16 bytes of bfloat16, or twice 16 of float32.
template <bool wide>
struct ColumnLoad {
  static constexpr int bytes = wide ? 32 : 16;
  simt::Wide part[bytes / 16];

  HKV_DEVICE void load(const std::byte* row) {
    const auto* const from = reinterpret_cast<const simt::Wide*>(row);
    HKV_UNROLL
    for (int i = 0; i < bytes / 16; ++i) part[i] = simt::load(from + i);
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

// Adds the slots of a run. Returns: whether every score is at most 40 in magnitude.
template <bool wide>
HKV_DEVICE bool pool_wide_loads(const SlotRun& run, unsigned column, ColumnSums& sums) {
  constexpr std::uint32_t in_flight = wide ? 2 : 4;
  const std::byte* kv_row = run.kv + column * ColumnLoad<wide>::bytes;
  const std::byte* score_row = run.score + column * ColumnLoad<wide>::bytes;
  bool near = true;
  HKV_ROLLED
  for (std::uint32_t from = 0; from < run.count; from += in_flight) {
    ColumnLoad<wide> kv[in_flight], score[in_flight];
    HKV_UNROLL
    for (std::uint32_t k = 0; k < in_flight; ++k) {
      if (from + k >= run.count) continue;
      score[k].load(score_row);
      kv[k].load(kv_row);
      score_row += run.score_step;
      kv_row += run.kv_step;
    }
    HKV_UNROLL
    for (std::uint32_t k = 0; k < in_flight; ++k) {
      if (from + k >= run.count) continue;
      HKV_UNROLL
      for (int i = 0; i < column_channels; ++i) {
        const bool is_near = sums.add(i, score[k].channel(i), kv[k].channel(i));
        near = near & is_near;
      }
    }
  }
  return near;
}

// Calls each(i, score, kv) for the channels of a column that are there, slot by slot of a run.
template <class Each>
HKV_DEVICE void each_item(const SlotRun& run, std::int64_t width, unsigned column, Each&& each) {
  const std::int64_t channel = std::int64_t{column} * column_channels;
  const std::byte *kv = run.kv, *score = run.score;
  HKV_ROLLED
  for (std::uint32_t k = 0; k < run.count; ++k) {
    HKV_UNROLL
    for (int i = 0; i < column_channels; ++i) {
      if (channel + i >= width) continue;
      each(i, channel_at(score, channel + i, run.score_wide), channel_at(kv, channel + i, run.kv_wide));
    }
    kv += run.kv_step;
    score += run.score_step;
  }
}

// How the slots of a call are loaded: all by 16 bytes, or item by item.
enum class SlotLoads { Wide, Items };

// Adds a run. Returns as above.
template <SlotLoads loads>
HKV_DEVICE bool pool_run(const SlotRun& run, std::int64_t width, unsigned column, ColumnSums& sums) {
  if constexpr (loads == SlotLoads::Wide) {
    return run.kv_wide ? pool_wide_loads<true>(run, column, sums) : pool_wide_loads<false>(run, column, sums);
  } else {
    bool near = true;
    each_item(run, width, column, [&](int i, float score, float kv) {
      const bool is_near = sums.add(i, score, kv);
      near = near & is_near;
    });
    return near;
  }
}

// Calls each(run) for the slots of a chunk, in order.
template <class Each>
HKV_DEVICE void each_run(const DeviceWindow& window, std::uint32_t chunk, Each&& each) {
  std::uint32_t from = chunk * chunk_slots;
  const std::uint32_t end = window.count - from < chunk_slots ? window.count : from + chunk_slots;
  HKV_ROLLED
  while (from < end) {
    const SlotRun run = window.run(from, end);
    each(run);
    from += run.count;
  }
}

// Calls each(score, kv) for one channel of every slot.
template <class Each>
HKV_DEVICE void each_slot(const DeviceWindow& window, unsigned channel, Each&& each) {
  HKV_ROLLED
  for (std::uint32_t k = 0; k < window.count;) {
    const SlotRun run = window.run(k, window.count);
    HKV_ROLLED
    for (std::uint32_t i = 0; i < run.count; ++i) {
      each(channel_at(run.score + i * run.score_step, channel, run.score_wide),
           channel_at(run.kv + i * run.kv_step, channel, run.kv_wide));
    }
    k += run.count;
  }
}

// One channel of an entry in float64, by whichever thread needs it (window_undecided.h).
HKV_CALL double wide_entry(const CompressTail& call, const DeviceRequest request, std::int64_t entry,
                           unsigned channel) {
  const DeviceWindow window(call, request, entry);
  float largest = -__builtin_inff();
  each_slot(window, channel, [&](float score, float) { largest = score > largest ? score : largest; });
  double powers = 0, sum = 0;
  each_slot(window, channel, [&](float score, float kv) {
    const double power = wide_power(static_cast<double>(score) - static_cast<double>(largest));
    powers += power;
    sum = __builtin_fma(power, static_cast<double>(kv), sum);
  });
  return sum / powers;
}

}  // namespace hkv
