// SPDX-License-Identifier: Apache-2.0
// From the channels of one entry to its packed row, on a device: norm, rotation and quantisers of window_finish.h and
// row_encode.h, by a team of threads over shared memory.
#pragma once
#include <cstdint>

#include "kernels/compress_pool.cuh"
#include "kernels/device_pieces.cuh"

namespace hkv {

// What a team is to tail compression: its room, how its warps divide a window, and its part of the shared memory.
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

template <class Team>
struct EntryMemory {
  static constexpr CompressRoom room = CompressTeam<Team>::room;
  HKV_DEVICE static auto channels() {
    HKV_SHARED(float, memory, room.teams* room.channels);
    return memory;
  }
  HKV_DEVICE static auto packed() {
    HKV_SHARED(std::uint8_t, memory, room.teams* room.row_bytes);
    return memory;
  }
  HKV_DEVICE static auto weights() {  // of the block
    HKV_SHARED(float, memory, room.channels);
    return memory;
  }
};

// The entry under way of a team: its channels in float32, and the bytes of its packed row.
template <class Team>
class EntryRow {
 public:
  HKV_DEVICE explicit EntryRow(const CompressLaunch& launch)
      : launch_(launch), call_(launch.call), width_(static_cast<unsigned>(launch.call.width)) {}

  // Channels are apart by an exclusive or, so that 32 threads touch 32 banks whether each has one of 32 channels in a
  // row or one of eight of its own.
  HKV_DEVICE float channel(unsigned c) const { return Memory::channels()[place(c)]; }
  HKV_DEVICE void set_channel(unsigned c, float value) const { Memory::channels()[place(c)] = value; }

  // Weights to shared memory, and zeros where no part of a row covers a byte.
  HKV_DEVICE void prepare() const {
    for (unsigned c = simt::thread(); c < width_; c += simt::threads()) {
      Memory::weights()[c] = channel_at(call_.norm_weight.base, c, call_.norm_weight.wide);
    }
    for (unsigned i = team_.rank(); i < call_.layout.row_bytes; i += team_.size()) set_byte(i, 0);
    simt::barrier();
  }

  // The same for all threads; in the order of window_finish.h.
  HKV_DEVICE double mean_square() const {
    double sum = 0;
    for (unsigned c = simt::lane(); c < width_; c += channel_block) {
      const auto y = static_cast<double>(channel(c));
      sum += y * y;
    }
    for (unsigned half = channel_block / 2; half > 0; half /= 2) sum += simt::shuffle_xor(sum, half);
    return sum / static_cast<double>(width_);
  }

  // The packed row of the entry, of which wide(c) is channel c in float64. All threads of the team together; what they
  // wrote is seen by all.
  template <class Wide>
  HKV_DEVICE void finish(double mean_square, double eps, std::int64_t position, Wide&& wide) {
    const double scale = norm_scale(mean_square, eps);
    norm_and_rotate(scale, reach_of(mean_square, scale), static_cast<double>(position), wide);
    team_.sync();
    const RowLayout& layout = call_.layout;
    if (layout.hadamard) rotate_hadamard();
    if (layout.rounded) {
      for (unsigned c = team_.rank(); c < width_; c += team_.size()) {
        set_channel(c, rounded_to(layout.rounded_to, channel(c)));
      }
      team_.sync();
    }
    unsigned first = 0;
    HKV_ROLLED
    for (std::int32_t p = 0; p < layout.part_count; ++p) {
      if (launch_.parts[p].scale != ScaleCode::None) scale_tiles(launch_.parts[p], first);
      first += static_cast<unsigned>(launch_.parts[p].channels);
    }
    team_.sync();
    first = 0;
    HKV_ROLLED
    for (std::int32_t p = 0; p < layout.part_count; ++p) {
      encode(launch_.parts[p], first);
      first += static_cast<unsigned>(launch_.parts[p].channels);
    }
    team_.sync();
  }

  HKV_DEVICE void store(const EntryPlace& at) const {
    const RowLayout& layout = call_.layout;
    std::byte* const page = call_.pages + at.page * call_.page_stride;
    const std::int64_t footer = layout.footer_bytes();
    store_bytes(page + at.row * layout.data_bytes, 0, layout.data_bytes);
    store_bytes(page + layout.page_rows * layout.data_bytes + at.row * footer, layout.data_bytes, footer);
  }

 private:
  using Memory = EntryMemory<Team>;

  HKV_DEVICE unsigned place(unsigned c) const {
    return CompressTeam<Team>::of_block() * Memory::room.channels + (c ^ (c >> 5 & 7));
  }
  HKV_DEVICE unsigned byte_place(std::int64_t i) const {
    return CompressTeam<Team>::of_block() * Memory::room.row_bytes + static_cast<unsigned>(i);
  }
  HKV_DEVICE void set_byte(std::int64_t i, std::uint32_t value) const {
    Memory::packed()[byte_place(i)] = static_cast<std::uint8_t>(value);
  }

  HKV_DEVICE double normed_channel(unsigned c, double y, double scale) const {
    const float weight = Memory::weights()[c];
    return normed(y, weight, scale);
  }
  HKV_DEVICE float weight_reach(unsigned c) const {
    const float weight = Memory::weights()[c];
    return std::fabs(weight);
  }
  HKV_DEVICE bool becomes_bf16_at(unsigned c) const {
    unsigned end = 0;
    HKV_ROLLED
    for (std::int32_t p = 0; p < call_.layout.part_count; ++p) {
      end += static_cast<unsigned>(launch_.parts[p].channels);
      if (c < end) return becomes_bf16(call_.layout, launch_.parts[p]);
    }
    return false;
  }

  template <class Wide>
  HKV_DEVICE void norm_and_rotate(double scale, float reach, double position, Wide&& wide) const {
    const auto rotated = static_cast<unsigned>(call_.rope_dims), plain = width_ - rotated;
    for (unsigned c = team_.rank(); c < plain; c += team_.size()) {
      auto y = static_cast<float>(normed_channel(c, static_cast<double>(channel(c)), scale));
      if (is_undecided(y, reach * weight_reach(c)) && becomes_bf16_at(c)) {
        y = narrow_to_odd(normed_channel(c, wide(c), scale));
      }
      set_channel(c, y);
    }
    const unsigned pairs = rotated / 2;
    HKV_ROLLED
    for (unsigned i = team_.rank(); i < pairs; i += team_.size()) {
      const unsigned first = plain + (call_.interleaved ? 2 * i : i);
      const unsigned second = plain + (call_.interleaved ? 2 * i + 1 : i + pairs);
      const Turn turn = turn_of(position * launch_.frequencies[i]);
      double a = normed_channel(first, static_cast<double>(channel(first)), scale);
      double b = normed_channel(second, static_cast<double>(channel(second)), scale);
      auto y = static_cast<float>(turned_first(a, b, turn)),
           z = static_cast<float>(turned_second(a, b, turn));
      const float of_pair = reach * (weight_reach(first) + weight_reach(second));
      const bool y_again = is_undecided(y, of_pair) && becomes_bf16_at(first);
      const bool z_again = is_undecided(z, of_pair) && becomes_bf16_at(second);
      if (y_again || z_again) {
        a = normed_channel(first, wide(first), scale);
        b = normed_channel(second, wide(second), scale);
        if (y_again) y = narrow_to_odd(turned_first(a, b, turn));
        if (z_again) z = narrow_to_odd(turned_second(a, b, turn));
      }
      set_channel(first, y);
      set_channel(second, z);
    }
  }

  HKV_DEVICE void rotate_hadamard() {
    for (unsigned span = 1; span < width_; span *= 2) {
      HKV_ROLLED
      for (unsigned i = team_.rank(); i < width_ / 2; i += team_.size()) {
        const unsigned at = i / span * 2 * span + i % span;
        const float a = channel(at), b = channel(at + span);
        set_channel(at, a + b);
        set_channel(at + span, a - b);
      }
      team_.sync();
    }
    const double root = std::sqrt(static_cast<double>(width_));
    for (unsigned c = team_.rank(); c < width_; c += team_.size())
      set_channel(c, over_root(channel(c), root));
    team_.sync();
  }

  // Scales a part's channels in place and writes their scales. A tile has as many lanes as the largest power of two
  // that it holds, 32 at most; a warp does as many tiles at a time as fit.
  HKV_DEVICE void scale_tiles(const RowPart& part, unsigned first) const {
    const auto channels = static_cast<unsigned>(part.channels), tile = static_cast<unsigned>(part.tile);
    unsigned lanes = 32;
    while (lanes > tile) lanes /= 2;
    const unsigned of_warp = 32 / lanes, step = team_.size() / 32 * of_warp;
    const unsigned rank = simt::lane() % lanes;
    HKV_ROLLED
    for (unsigned base = team_.rank() / 32 * of_warp; base * tile < channels; base += step) {
      const unsigned from = first + (base + simt::lane() / lanes) * tile;
      const bool there = from < first + channels;
      std::uint32_t most = 0;
      for (unsigned c = rank; there && c < tile; c += lanes) {
        const std::uint32_t counted = counted_magnitude(channel(from + c));
        most = counted > most ? counted : most;
      }
      for (unsigned mask = lanes / 2; mask != 0; mask /= 2) {
        const std::uint32_t other = simt::shuffle_xor(most, mask);
        most = other > most ? other : most;
      }
      if (!there) continue;
      const TileScale scale = tile_scale(part, float_of(most));
      if (rank == 0) store_scale(part, (from - first) / tile, scale.stored);
      for (unsigned c = rank; c < tile; c += lanes) {
        const float y = channel(from + c);
        set_channel(from + c, part.power_of_two ? y * scale.factor : y / scale.divisor);
      }
    }
  }
  HKV_DEVICE void store_scale(const RowPart& part, unsigned tile, std::uint32_t stored) const {
    const unsigned bytes = part.scale == ScaleCode::F32 ? 4 : 1;
    for (unsigned k = 0; k < bytes; ++k) set_byte(part.scale_offset + tile * bytes + k, stored >> 8 * k);
  }

  HKV_DEVICE void encode(const RowPart& part, unsigned first) const {
    const auto channels = static_cast<unsigned>(part.channels);
    const std::int64_t to = part.offset;
    if (part.element == Element::E2m1) {
      for (unsigned i = team_.rank(); i < channels / 2; i += team_.size()) {
        const std::uint32_t low = e2m1_code(channel(first + 2 * i)),
                            high = e2m1_code(channel(first + 2 * i + 1));
        set_byte(to + i, low | high << 4);
      }
      return;
    }
    for (unsigned c = team_.rank(); c < channels; c += team_.size()) {
      const float y = channel(first + c);
      if (part.element == Element::E4m3) set_byte(to + c, e4m3_code(y));
      if (part.element == Element::Bf16) store_code<2>(to + 2 * std::int64_t{c}, bf16_code(y));
      if (part.element == Element::F32) store_code<4>(to + 4 * std::int64_t{c}, f32_code(y));
    }
  }
  template <int bytes>
  HKV_DEVICE void store_code(std::int64_t at, std::uint32_t code) const {
    HKV_UNROLL
    for (int k = 0; k < bytes; ++k) set_byte(at + k, code >> 8 * k);
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
    HKV_ROLLED
    for (unsigned at = team_.rank() * width; at < bytes; at += team_.size() * width) {
      std::uint32_t word = 0;
      HKV_UNROLL
      for (unsigned k = 0; k < width; ++k) word |= std::uint32_t{byte(first + at + k)} << 8 * k;
      simt::store(reinterpret_cast<Word*>(to + at), static_cast<Word>(word));
    }
  }
  HKV_DEVICE std::uint8_t byte(unsigned i) const { return Memory::packed()[byte_place(i)]; }

  const CompressLaunch& launch_;
  const CompressTail& call_;
  unsigned width_;
  Team team_;
};

// Norm, rotation and quantisers of a team's entry, whose values were taken `factor` times, and its row to where it goes.
template <class Team>
HKV_CALL void finish_entry(const CompressLaunch& launch, const DeviceRequest request, std::int64_t entry,
                           double mean_square, double factor, const EntryPlace place) {
  const CompressTail& call = launch.call;
  EntryRow<Team> row(launch);
  row.finish(mean_square, call.eps * factor * factor, entry * call.ratio,
             [&](unsigned c) { return wide_entry(call, request, entry, c) * factor; });
  row.store(place);
}

}  // namespace hkv
