// SPDX-License-Identifier: Apache-2.0
// Tail compression on a device: a team of threads for each closing window, from rows to the packed row in its page.
//
// The first item of a request (compress_request.cuh) closes the windows that draw on the carry; where the new carry is
// the old one, it alone writes it, behind them. Else all items of a request write a share of it. So one launch does it
// all, in place or not, and no block waits for another.
#pragma once
#include "kernels/compress_entry.cuh"
#include "kernels/compress_keep.cuh"
#include "kernels/compress_pool.cuh"
#include "kernels/device_pieces.cuh"

namespace hkv {

// What a team is to tail compression: its room, its place in the block, and how its warps divide a window.
template <class Team>
struct CompressTeam;
template <>
struct CompressTeam<WarpTeam> {
  static constexpr CompressRoom room = warp_room;
  static constexpr unsigned warps = 1, groups = 1;
  HKV_DEVICE static unsigned of_block() { return simt::thread() / 32; }
};
template <>
struct CompressTeam<BlockTeam> {
  static constexpr CompressRoom room = block_room;
  static constexpr unsigned warps = device_threads / 32, groups = 4;
  HKV_DEVICE static unsigned of_block() { return 0; }
};

// Closes windows one after another.
template <class Team, class Row>
class WindowCloser {
 public:
  HKV_DEVICE WindowCloser(const CompressLaunch& launch, Team& team, Row& row)
      : launch_(launch), call_(launch.call), team_(team), row_(row) {}

  // All threads of the team come here together.
  HKV_DEVICE void close(const DeviceRequest& request, std::int64_t entry) {
    const std::int64_t slot = device_entry_slot(call_, request, entry);
    if (slot < 0) return;
    const DeviceWindow window(call_, request, entry);
    if (window.carried != 0 && call_.carry.base == nullptr) return;
    const bool near = team_.all(pool(window));
    double eps = call_.eps, mean_square = row_.mean_square();
    if (!near || !(mean_square >= least_mean_square) || mean_square == __builtin_huge_val()) {
      eps *= pool_again(window);
      mean_square = row_.mean_square();
    }
    team_.sync();
    row_.finish(mean_square, eps, entry * call_.ratio);
    store(slot);
    team_.sync();  // before the next entry takes the row
  }

 private:
  using Division = CompressTeam<Team>;
  static constexpr unsigned span = 32 / Division::groups;  // columns of a warp at a time

  HKV_DEVICE static unsigned group() { return simt::lane() / span; }
  HKV_DEVICE unsigned columns() const {
    return (static_cast<unsigned>(call_.width) + column_channels - 1) / column_channels;
  }
  HKV_DEVICE unsigned first_column() const { return team_.rank() / 32 * span; }

  // Calls chunk(column, from, end, sums) for each chunk of this lane, adds chunks in order and divides: y of its
  // columns. All lanes of a warp together.
  template <class Chunk>
  HKV_DEVICE void sum_chunks(std::uint32_t slots, unsigned first, Chunk&& chunk) {
    const unsigned column = first + simt::lane() % span;
    const std::uint32_t chunks = (slots - 1) / chunk_slots + 1;
    ColumnSums total;
    for (std::uint32_t round = 0; round < chunks; round += Division::groups) {
      ColumnSums part;
      const std::uint32_t own = round + group(), from = own * chunk_slots;
      if (own < chunks && column < columns()) {
        chunk(column, from, slots - from < chunk_slots ? slots : from + chunk_slots, part);
      }
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

  // Returns: whether this thread saw no score beyond 40.
  HKV_DEVICE bool pool(const DeviceWindow& window) {
    bool near = true;
    for (unsigned first = first_column(); first < columns(); first += Division::warps * span) {
      sum_chunks(window.count, first,
                 [&](unsigned column, std::uint32_t from, std::uint32_t end, ColumnSums& sums) {
                   near = near & pool_slots(window, launch_.wide_loads, from, end, column, sums);
                 });
    }
    return near;
  }

  // The same for scores and values of any size. Returns: what eps is multiplied by.
  HKV_DEVICE double pool_again(const DeviceWindow& window) {
    team_.sync();  // the row is free once all have its mean square
    std::uint32_t most_value = 0;
    bool numbers = true;
    for (unsigned first = first_column(); first < columns(); first += Division::warps * span) {
      numbers = scan(window, first, most_value) & numbers;
    }
    numbers = team_.all(numbers);
    const float scale = team_.all(most_value < large_value_bits) ? 1.0f : large_value_scale;
    if (!numbers) {  // no softmax of such scores: the entry is no number in any channel
      for (unsigned c = team_.rank(); c < call_.width; c += team_.size()) {
        row_.set_channel(c, __builtin_nanf(""));
      }
    } else {
      for (unsigned first = first_column(); first < columns(); first += Division::warps * span) {
        pool_below(window, first, scale);
      }
    }
    team_.sync();
    return static_cast<double>(scale) * static_cast<double>(scale);
  }

  // Puts the largest scores of a warp's columns into the row. Returns: whether all are numbers below infinity, and no
  // channel has nothing but -infinity.
  HKV_DEVICE bool scan(const DeviceWindow& window, unsigned first, std::uint32_t& most_value) {
    const unsigned column = first + simt::lane() % span;
    float largest[column_channels];
    HKV_UNROLL
    for (int i = 0; i < column_channels; ++i) largest[i] = -__builtin_inff();
    bool numbers = true;
    const std::uint32_t chunks = (window.count - 1) / chunk_slots + 1;
    for (std::uint32_t chunk = group(); chunk < chunks && column < columns(); chunk += Division::groups) {
      const std::uint32_t from = chunk * chunk_slots, left = window.count - from;
      each_item(window, from, from + (left < chunk_slots ? left : chunk_slots), column,
                [&](int i, float score, float kv) {
                  const std::uint32_t magnitude = bits_of(kv) & magnitude_bits;
                  most_value = magnitude > most_value ? magnitude : most_value;
                  numbers = numbers & (score < __builtin_inff());
                  largest[i] = score > largest[i] ? score : largest[i];
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

  HKV_DEVICE void pool_below(const DeviceWindow& window, unsigned first, float scale) {
    const unsigned column = first + simt::lane() % span;
    float largest[column_channels];
    HKV_UNROLL
    for (int i = 0; i < column_channels; ++i) {
      const unsigned c = column * column_channels + static_cast<unsigned>(i);
      largest[i] = c < call_.width ? row_.channel(c) : 0;
    }
    simt::warp_barrier();  // entries take the place of the largest scores
    sum_chunks(
        window.count, first, [&](unsigned at, std::uint32_t from, std::uint32_t end, ColumnSums& sums) {
          each_item(window, from, end, at,
                    [&](int i, float score, float kv) { sums.add_below(i, score, kv, largest[i], scale); });
        });
  }

  HKV_DEVICE void store(std::int64_t slot) const {
    const RowLayout& layout = call_.layout;
    std::byte* const page = call_.pages + slot / layout.page_rows * call_.page_stride;
    const std::int64_t row = slot % layout.page_rows, footer = layout.footer_bytes();
    store_bytes(page + row * layout.data_bytes, 0, layout.data_bytes);
    store_bytes(page + layout.page_rows * layout.data_bytes + row * footer, layout.data_bytes, footer);
  }
  HKV_DEVICE void store_bytes(std::byte* to, std::int64_t from, std::int64_t count) const {
    const auto first = static_cast<unsigned>(from), bytes = static_cast<unsigned>(count);
    switch (launch_.store_unit) {  // the same for all threads
      case 4: store_words<std::uint32_t>(to, first, bytes); break;
      case 2: store_words<std::uint16_t>(to, first, bytes); break;
      default: store_words<std::uint8_t>(to, first, bytes); break;
    }
  }
  template <class Word>
  HKV_DEVICE void store_words(std::byte* to, unsigned first, unsigned bytes) const {
    constexpr unsigned width = sizeof(Word);
    for (unsigned at = team_.rank() * width; at < bytes; at += team_.size() * width) {
      std::uint32_t word = 0;
      HKV_UNROLL
      for (unsigned k = 0; k < width; ++k) word |= std::uint32_t{row_.byte(first + at + k)} << 8 * k;
      simt::store(reinterpret_cast<Word*>(to + at), static_cast<Word>(word));
    }
  }

  const CompressLaunch& launch_;
  const CompressTail& call_;
  Team& team_;
  Row& row_;
};

// One item: its windows, and its share of the new carry.
template <class Team, class Row>
HKV_DEVICE void compress_item(const CompressLaunch& launch, std::int64_t item, Team& team, Row& row) {
  const CompressTail& call = launch.call;
  const DeviceRequest request = device_request(call, request_of(call, item));
  if (!request.sound(call)) return;
  const std::int64_t share = item - request.first_item(call.ratio), shares = request.items(call.ratio);
  if (share < 0 || share >= shares) return;
  const std::int64_t head = request.head_windows(call), first = request.first_entry(call.ratio);
  const std::int64_t entry = share == 0 ? first : first + head + share - 1;
  const std::int64_t behind = request.end_entry(call.ratio);
  const std::int64_t end = share == 0 ? first + head : entry < behind ? entry + 1 : entry;
  WindowCloser<Team, Row> closer(launch, team, row);
  for (std::int64_t e = entry; e < end; ++e) closer.close(request, e);
  if (call.new_carry.base == nullptr) return;
  const CarryKeeper<Team> keeper(launch, request, team);
  if (!keeper.behind_windows()) return keeper.keep(share, shares);
  if (share != 0) return;
  team.sync();
  keeper.keep(0, 1);
}

template <class Team>
HKV_DEVICE void compress_windows(const CompressLaunch& launch) {
  constexpr CompressRoom room = CompressTeam<Team>::room;
  HKV_SHARED(float, channels, room.teams* room.channels);
  HKV_SHARED(float, weights, room.channels);
  HKV_SHARED(std::uint8_t, packed, room.teams* room.row_bytes);
  const CompressTail& call = launch.call;
  for (unsigned c = simt::thread(); c < call.width; c += simt::threads()) {
    weights[c] = channel_at(call.norm_weight.base, c, call.norm_weight.wide);
  }
  Team team;
  const unsigned of_block = CompressTeam<Team>::of_block();
  for (unsigned i = team.rank(); i < call.layout.row_bytes; i += team.size()) {
    packed[of_block * room.row_bytes + i] = 0;  // what no part of a row covers stays 0
  }
  simt::barrier();
  EntryRow row(launch, team, channels, of_block * room.channels, packed, of_block * room.row_bytes, weights);
  for (std::int64_t item = team.number(); item < launch.items; item += team.teams()) {
    compress_item(launch, item, team, row);
  }
}

}  // namespace hkv
