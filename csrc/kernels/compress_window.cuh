// SPDX-License-Identifier: Apache-2.0
// A window's slots to the channels of its entry, on a device: the arithmetic of window_pool.h by a team of threads.
//
// The lanes of a warp are `groups` groups of 32 / groups columns each: chunk c of eight slots is summed by group c mod
// groups, and the chunks' sums are added in order.
#pragma once
#include <cstdint>

#include "kernels/compress_entry.cuh"
#include "kernels/compress_pool.cuh"

namespace hkv {

// The channels of a window into a team's row.
template <class Team>
class WindowPool {
 public:
  HKV_DEVICE WindowPool(const CompressLaunch& launch, const DeviceWindow& window)
      : call_(launch.call), window_(window), row_(launch) {}

  // Returns: whether this thread saw no score beyond 40.
  template <SlotLoads loads>
  HKV_DEVICE bool pool() {
    bool near = true;
    HKV_ROLLED
    for (unsigned first = first_column(); first < columns(); first += Division::warps * span) {
      sum_chunks(first, [&](const SlotRun& run, unsigned column, ColumnSums& sums) {
        const bool is_near = pool_run<loads>(run, call_.width, column, sums);
        near = near & is_near;
      });
    }
    return near;
  }

  // The same for scores and values of any size. Returns: what values were multiplied by.
  HKV_DEVICE double pool_again() {
    team_.sync();  // the row is free once all have its mean square
    std::uint32_t most_value = 0;
    bool numbers = true;
    HKV_ROLLED
    for (unsigned first = first_column(); first < columns(); first += Division::warps * span) {
      numbers = scan(first, most_value) & numbers;
    }
    numbers = team_.all(numbers);
    const float scale = team_.all(most_value < large_value_bits) ? 1.0f : large_value_scale;
    if (!numbers) {  // no softmax of such scores: the entry is no number in any channel
      for (unsigned c = team_.rank(); c < call_.width; c += team_.size()) {
        row_.set_channel(c, __builtin_nanf(""));
      }
    } else {
      HKV_ROLLED
      for (unsigned first = first_column(); first < columns(); first += Division::warps * span) {
        pool_below(first, scale);
      }
    }
    team_.sync();
    return static_cast<double>(scale);
  }

 private:
  using Division = CompressTeam<Team>;
  static constexpr unsigned span = 32 / Division::groups;  // columns of a warp at a time

  HKV_DEVICE static unsigned group() { return simt::lane() / span; }
  HKV_DEVICE unsigned columns() const {
    return (static_cast<unsigned>(call_.width) + column_channels - 1) / column_channels;
  }
  HKV_DEVICE unsigned first_column() const { return team_.rank() / 32 * span; }

  // Calls each(run, column, sums) for the runs of each chunk of this lane, adds chunks in order and divides: y of its
  // columns. All lanes of a warp together.
  template <class Each>
  HKV_DEVICE void sum_chunks(unsigned first, Each&& each) {
    const unsigned column = first + simt::lane() % span;
    const std::uint32_t chunks = window_.chunks();
    ColumnSums total;
    HKV_ROLLED
    for (std::uint32_t round = 0; round < chunks; round += Division::groups) {
      ColumnSums part;
      const std::uint32_t own = round + group();
      if (own < chunks && column < columns()) {
        each_run(window_, own, [&](const SlotRun& run) { each(run, column, part); });
      }
      HKV_ROLLED
      for (unsigned g = 0; g < Division::groups && round + g < chunks; ++g) {
        add_chunk(total, part, round + g == 0, g);
      }
    }
    if (group() != 0 || column >= columns()) return;
    HKV_UNROLL
    for (int i = 0; i < column_channels; ++i) {
      const unsigned c = column * column_channels + static_cast<unsigned>(i);
      if (c < call_.width) row_.set_channel(c, total.sums[i] / total.powers[i]);
    }
  }
  // Adds the sums that lanes of group g hold; the first ones are taken as they are.
  HKV_DEVICE static void add_chunk(ColumnSums& total, const ColumnSums& part, bool first, unsigned g) {
    HKV_UNROLL
    for (int i = 0; i < column_channels; ++i) {
      float powers = part.powers[i], sums = part.sums[i];
      if constexpr (Division::groups > 1) {
        powers = simt::shuffle(powers, simt::lane() % span + g * span);
        sums = simt::shuffle(sums, simt::lane() % span + g * span);
      }
      total.powers[i] = first ? powers : total.powers[i] + powers;
      total.sums[i] = first ? sums : total.sums[i] + sums;
    }
  }

  // Puts the largest scores of a warp's columns into the row. Returns: whether all are numbers below infinity, and no
  // channel has nothing but -infinity.
  HKV_DEVICE bool scan(unsigned first, std::uint32_t& most_value) {
    const unsigned column = first + simt::lane() % span;
    float largest[column_channels];
    HKV_UNROLL
    for (int i = 0; i < column_channels; ++i) largest[i] = -__builtin_inff();
    bool numbers = true;
    const std::uint32_t chunks = window_.chunks();
    HKV_ROLLED
    for (std::uint32_t chunk = group(); chunk < chunks && column < columns(); chunk += Division::groups) {
      each_run(window_, chunk, [&](const SlotRun& run) {
        each_item(run, call_.width, column, [&](int i, float score, float kv) {
          const std::uint32_t magnitude = bits_of(kv) & magnitude_bits;
          most_value = magnitude > most_value ? magnitude : most_value;
          numbers = numbers & (score < __builtin_inff());
          largest[i] = score > largest[i] ? score : largest[i];
        });
      });
    }
    HKV_UNROLL
    for (int i = 0; i < column_channels; ++i) {
      for (unsigned mask = 16; mask >= span; mask /= 2) {
        largest[i] = ScalarLanes::larger(simt::shuffle_xor(largest[i], mask), largest[i]);
      }
      const unsigned c = column * column_channels + static_cast<unsigned>(i);
      if (group() != 0 || c >= call_.width) continue;
      numbers = numbers & (largest[i] != -__builtin_inff());
      row_.set_channel(c, largest[i]);
    }
    return numbers;
  }

  HKV_DEVICE void pool_below(unsigned first, float scale) {
    const unsigned column = first + simt::lane() % span;
    float largest[column_channels];
    HKV_UNROLL
    for (int i = 0; i < column_channels; ++i) {
      const unsigned c = column * column_channels + static_cast<unsigned>(i);
      largest[i] = c < call_.width ? row_.channel(c) : 0;
    }
    simt::warp_barrier();  // entries take the place of the largest scores
    sum_chunks(first, [&](const SlotRun& run, unsigned at, ColumnSums& sums) {
      each_item(run, call_.width, at,
                [&](int i, float score, float kv) { sums.add_below(i, score, kv, largest[i], scale); });
    });
  }

  const CompressTail& call_;
  const DeviceWindow& window_;
  EntryRow<Team> row_;
  Team team_;
};

// These are out of line, so that each has all registers.
template <class Team, SlotLoads loads>
HKV_CALL bool pool_window(const CompressLaunch& launch, const DeviceRequest request, std::int64_t entry) {
  const DeviceWindow window(launch.call, request, entry);
  return WindowPool<Team>(launch, window).template pool<loads>();
}
template <class Team>
HKV_CALL double pool_again(const CompressLaunch& launch, const DeviceRequest request, std::int64_t entry) {
  const DeviceWindow window(launch.call, request, entry);
  return WindowPool<Team>(launch, window).pool_again();
}

}  // namespace hkv
