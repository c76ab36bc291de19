// SPDX-License-Identifier: Apache-2.0
// From the channels of one entry to its packed row, on a device: norm, rotation and quantisers of window_finish.h and
// row_encode.h, by a team of threads over shared memory.
#pragma once
#include <cstdint>

#include "kernels/compress_math.cuh"
#include "kernels/device_arguments.h"

namespace hkv {

// A team's part of its block's shared memory: `entry` channels of float32, then bytes of the packed row.
template <class Team, class Floats, class Bytes>
class EntryRow {
 public:
  HKV_DEVICE EntryRow(const CompressLaunch& launch, Team& team, Floats channels, unsigned first_channel,
                      Bytes packed, unsigned first_byte, Floats weights)
      : launch_(launch),
        call_(launch.call),
        width_(static_cast<unsigned>(launch.call.width)),
        team_(team),
        channels_(channels),
        first_channel_(first_channel),
        packed_(packed),
        first_byte_(first_byte),
        weights_(weights) {}

  // Channels are apart by an exclusive or, so that 32 threads touch 32 banks whether each has one of 32 channels in a
  // row or one of eight of its own.
  HKV_DEVICE float channel(unsigned c) const { return channels_[place(c)]; }
  HKV_DEVICE void set_channel(unsigned c, float value) const { channels_[place(c)] = value; }
  HKV_DEVICE std::uint8_t byte(unsigned i) const { return packed_[first_byte_ + i]; }

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

  // The packed row of the entry. All threads of the team together; what they wrote is seen by all.
  HKV_DEVICE void finish(double mean_square, double eps, std::int64_t position) {
    norm_and_rotate(norm_scale(mean_square, eps), static_cast<double>(position));
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
    for (std::int32_t p = 0; p < layout.part_count; ++p) {
      if (launch_.parts[p].scale != ScaleCode::None) scale_tiles(launch_.parts[p], first);
      first += static_cast<unsigned>(launch_.parts[p].channels);
    }
    team_.sync();
    first = 0;
    for (std::int32_t p = 0; p < layout.part_count; ++p) {
      encode(launch_.parts[p], first);
      first += static_cast<unsigned>(launch_.parts[p].channels);
    }
    team_.sync();
  }

 private:
  HKV_DEVICE unsigned place(unsigned c) const { return first_channel_ + (c ^ (c >> 5 & 7)); }
  HKV_DEVICE void set_byte(std::int64_t i, std::uint32_t value) const {
    packed_[first_byte_ + static_cast<unsigned>(i)] = static_cast<std::uint8_t>(value);
  }

  HKV_DEVICE double normed_channel(unsigned c, double scale) const {
    const float weight = weights_[c];
    return normed(channel(c), weight, scale);
  }
  HKV_DEVICE void norm_and_rotate(double scale, double position) const {
    const auto rotated = static_cast<unsigned>(call_.rope_dims), plain = width_ - rotated;
    for (unsigned c = team_.rank(); c < plain; c += team_.size()) {
      set_channel(c, static_cast<float>(normed_channel(c, scale)));
    }
    const unsigned pairs = rotated / 2;
    for (unsigned i = team_.rank(); i < pairs; i += team_.size()) {
      const unsigned first = plain + (call_.interleaved ? 2 * i : i);
      const unsigned second = plain + (call_.interleaved ? 2 * i + 1 : i + pairs);
      const Turn turn = turn_of(position * launch_.frequencies[i]);
      const double a = normed_channel(first, scale), b = normed_channel(second, scale);
      set_channel(first, turned_first(a, b, turn));
      set_channel(second, turned_second(a, b, turn));
    }
  }

  HKV_DEVICE void rotate_hadamard() {
    for (unsigned span = 1; span < width_; span *= 2) {
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

  const CompressLaunch& launch_;
  const CompressTail& call_;
  unsigned width_;
  Team& team_;
  Floats channels_;
  unsigned first_channel_;
  Bytes packed_;
  unsigned first_byte_;
  Floats weights_;
};

}  // namespace hkv
