// SPDX-License-Identifier: Apache-2.0
// The new carry of a tail compression on a device: live rows of one request, copied by the teams of its items.
#pragma once
#include <cstdint>

#include "kernels/compress_request.cuh"

namespace hkv {

// What a thread holds of a row between load and store: so many channels, widened where they are bfloat16.
template <bool wide, int channels>
struct KeptChannels;
template <>
struct KeptChannels<true, 4> {
  simt::Wide held;
  HKV_DEVICE void load(const std::byte* from) {
    held = simt::load(reinterpret_cast<const simt::Wide*>(from));
  }
  HKV_DEVICE void store(std::byte* to) const { simt::store(reinterpret_cast<simt::Wide*>(to), held); }
};
template <>
struct KeptChannels<false, 4> {
  std::uint64_t held;
  HKV_DEVICE void load(const std::byte* from) {
    held = simt::load(reinterpret_cast<const std::uint64_t*>(from));
  }
  HKV_DEVICE static std::uint64_t widened(std::uint32_t pair) {
    return std::uint64_t{pair & 0xffff0000u} << 32 | pair << 16;
  }
  HKV_DEVICE void store(std::byte* to) const {
    const simt::Wide floats{widened(static_cast<std::uint32_t>(held)),
                            widened(static_cast<std::uint32_t>(held >> 32))};
    simt::store(reinterpret_cast<simt::Wide*>(to), floats);
  }
};
template <>
struct KeptChannels<true, 1> {
  std::uint32_t held;
  HKV_DEVICE void load(const std::byte* from) {
    held = simt::load(reinterpret_cast<const std::uint32_t*>(from));
  }
  HKV_DEVICE void store(std::byte* to) const { simt::store(reinterpret_cast<std::uint32_t*>(to), held); }
};
template <>
struct KeptChannels<false, 1> {
  std::uint16_t held;
  HKV_DEVICE void load(const std::byte* from) {
    held = simt::load(reinterpret_cast<const std::uint16_t*>(from));
  }
  HKV_DEVICE void store(std::byte* to) const {
    simt::store(reinterpret_cast<std::uint32_t*>(to), std::uint32_t{held} << 16);
  }
};

template <class Team>
class CarryKeeper {
 public:
  HKV_DEVICE CarryKeeper(const CompressLaunch& launch, const DeviceRequest& request)
      : launch_(launch), call_(launch.call), request_(request) {}

  // Whether windows may read what the new carry overwrites: then the request's first item keeps all rows, behind them.
  HKV_DEVICE bool behind_windows() const {
    return in_place() && first_live(request_.position) < request_.position;
  }

  // Share `share` of `shares` of the live rows: those of the window before the open one, of which the first halves are
  // live, and those of the open one; each carried or new; of each kv and score.
  HKV_DEVICE void keep(std::int64_t share, std::int64_t shares) const {
    const std::int64_t last = request_.last(), opened = last - remainder(last, call_.ratio);
    HKV_ROLLED
    for (unsigned kind = 0; kind < 8; ++kind) {
      const bool open = (kind & 4) != 0, carried = (kind & 2) == 0, score = (kind & 1) != 0;
      if (carried && (call_.carry.base == nullptr || in_place())) continue;
      Kept kept;
      kept.carried = carried;
      kept.first = open ? opened : first_live(last);
      kept.end = open ? last : opened;
      if (carried && kept.end > request_.position) kept.end = request_.position;
      if (!carried && kept.first < request_.position) kept.first = request_.position;
      kept.first += share;
      kept.step = shares;
      kept.channels = static_cast<std::uint32_t>(open ? call_.row_width() : call_.width);
      const ChannelRows& rows = score ? call_.score : call_.kv;
      kept.wide = carried || rows.wide;
      kept.in_ring = score ? call_.row_width() * 4 : 0;
      kept.rows = rows.base + (std::int64_t{request_.first_row} - request_.position) * rows.stride;
      kept.stride = rows.stride;
      if (kept.first < kept.end) copy(kept);
    }
  }

 private:
  // Tokens first, first + step, ... below end, so many channels of kv or score of each.
  struct Kept {
    std::int64_t first, end, step;
    std::uint32_t channels;
    bool carried, wide;
    std::int64_t in_ring;   // bytes from the start of a ring's row
    const std::byte* rows;  // of the call: that of the token at 0
    std::int64_t stride;
  };

  HKV_DEVICE bool in_place() const { return call_.carry.base == call_.new_carry.base; }
  // As CompressTail::first_live.
  HKV_DEVICE std::int64_t first_live(std::int64_t at) const {
    const std::int64_t opened = at - remainder(at, call_.ratio);
    return call_.overlap && opened > 0 ? opened - call_.ratio : opened;
  }
  HKV_DEVICE std::int64_t ring_row(const CarryRings& rings, std::int64_t token) const {
    return request_.number * rings.request_stride + ring_slot(call_, token) * rings.row_stride;
  }

  HKV_DEVICE void copy(const Kept& kept) const {
    if (launch_.wide_keeps) {
      kept.wide ? copy_channels<true, 4>(kept) : copy_channels<false, 4>(kept);
    } else {
      kept.wide ? copy_channels<true, 1>(kept) : copy_channels<false, 1>(kept);
    }
  }

  // A warp for each token; a few loads of a thread are under way before it stores the first.
  template <bool wide, int channels>
  HKV_DEVICE void copy_channels(const Kept& kept) const {
    constexpr unsigned in_flight = 4;
    const unsigned pieces = kept.channels / channels;
    HKV_ROLLED
    for (std::int64_t token = kept.first + team_.rank() / 32 * kept.step; token < kept.end;
         token += team_.size() / 32 * kept.step) {
      const std::byte* const from = kept.carried
                                        ? call_.carry.base + ring_row(call_.carry, token) + kept.in_ring
                                        : kept.rows + token * kept.stride;
      std::byte* const to = call_.new_carry.base + ring_row(call_.new_carry, token) + kept.in_ring;
      HKV_ROLLED
      for (unsigned piece = simt::lane(); piece < pieces; piece += 32 * in_flight) {
        KeptChannels<wide, channels> held[in_flight];
        HKV_UNROLL
        for (unsigned k = 0; k < in_flight; ++k) {
          if (piece + 32 * k < pieces) held[k].load(from + (piece + 32 * k) * channels * (wide ? 4 : 2));
        }
        HKV_UNROLL
        for (unsigned k = 0; k < in_flight; ++k) {
          if (piece + 32 * k < pieces) held[k].store(to + (piece + 32 * k) * channels * 4);
        }
      }
    }
  }

  const CompressLaunch& launch_;
  const CompressTail& call_;
  const DeviceRequest& request_;
  Team team_;
};

// An item's share of its request's new carry.
template <class Team>
HKV_CALL void keep_carry(const CompressLaunch& launch, const DeviceRequest request, std::int64_t share,
                         std::int64_t shares) {
  const CarryKeeper<Team> keeper(launch, request);
  if (!keeper.behind_windows()) return keeper.keep(share, shares);
  if (share == 0) keeper.keep(0, 1);
}

}  // namespace hkv
