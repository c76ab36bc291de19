// SPDX-License-Identifier: Apache-2.0
// The new carry of a tail compression on a device: live rows of one request, copied by the teams of its items.
#pragma once
#include <cstdint>

#include "kernels/compress_request.cuh"

namespace hkv {

// Rows that a token's row is found in: those of a call, or a ring.
struct TokenRows {
  const std::byte* base;
  std::int64_t stride;
  std::int64_t first;  // row of the token at 0
  std::int64_t ring;   // rows of the ring, 0: there is none

  HKV_DEVICE std::int64_t offset(std::int64_t token) const {
    return (ring == 0 ? first + token : token % ring) * stride;
  }
};

// Tokens from `from` on, every `step`th, up to `end`, so many channels of each.
struct KeptTokens {
  std::int64_t from, end, step, channels;
};

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

// A few loads of a thread are under way before it stores the first.
template <bool wide, int channels, class Team>
HKV_DEVICE void keep_channels(const TokenRows& rows, const TokenRows& ring, std::byte* to,
                              const KeptTokens& kept, const Team& team) {
  constexpr std::uint32_t in_flight = 4;
  const auto of_row = static_cast<std::uint32_t>(kept.channels / channels);
  const auto tokens = static_cast<std::uint32_t>((kept.end - kept.from + kept.step - 1) / kept.step);
  const std::uint64_t pieces = std::uint64_t{tokens} * of_row;
  for (std::uint64_t first = team.rank(); first < pieces; first += std::uint64_t{team.size()} * in_flight) {
    KeptChannels<wide, channels> held[in_flight];
    std::int64_t at[in_flight];
    HKV_UNROLL
    for (std::uint32_t k = 0; k < in_flight; ++k) {
      const std::uint64_t piece = first + std::uint64_t{k} * team.size();
      if (piece >= pieces) continue;
      const std::int64_t token = kept.from + static_cast<std::int64_t>(piece / of_row) * kept.step;
      const auto channel = static_cast<std::int64_t>(piece % of_row) * channels;
      held[k].load(rows.base + rows.offset(token) + channel * (wide ? 4 : 2));
      at[k] = ring.offset(token) + channel * 4;
    }
    HKV_UNROLL
    for (std::uint32_t k = 0; k < in_flight; ++k) {
      if (first + std::uint64_t{k} * team.size() >= pieces) continue;
      held[k].store(to + at[k]);
    }
  }
}

template <class Team>
class CarryKeeper {
 public:
  HKV_DEVICE CarryKeeper(const CompressLaunch& launch, const DeviceRequest& request, const Team& team)
      : launch_(launch), call_(launch.call), request_(request), team_(team) {}

  // Whether windows may read what the new carry overwrites: then the request's first item keeps all rows, behind them.
  HKV_DEVICE bool behind_windows() const {
    return call_.carry.base == call_.new_carry.base &&
           call_.first_live(request_.position) < request_.position;
  }

  // Share `share` of `shares` of the live rows.
  HKV_DEVICE void keep(std::int64_t share, std::int64_t shares) const {
    const std::int64_t last = request_.last(), opened = last - last % call_.ratio;
    const std::int64_t low = call_.first_live(last);
    keep_live({low + share, opened, shares, call_.width});
    // The shares go on where those of the rows before ended.
    const std::int64_t ahead = share - (opened - low) % shares;
    keep_live({opened + (ahead < 0 ? ahead + shares : ahead), last, shares, call_.row_width()});
  }

 private:
  // Of tokens with so many live channels, those that are carried and those that are new.
  HKV_DEVICE void keep_live(const KeptTokens& kept) const {
    std::int64_t carried = request_.position - kept.from;
    carried = carried <= 0 ? 0 : (carried + kept.step - 1) / kept.step;
    const std::int64_t turn = kept.from + carried * kept.step;
    if (call_.carry.base != nullptr && call_.carry.base != call_.new_carry.base) {
      const std::int64_t end = kept.end < request_.position ? kept.end : request_.position;
      keep_carried({kept.from, end, kept.step, kept.channels});
    }
    keep_new({turn, kept.end, kept.step, kept.channels});
  }

  HKV_DEVICE TokenRows ring_of(const CarryRings& rings) const {
    return {rings.base + request_.number * rings.request_stride, rings.row_stride, 0, call_.ring_rows()};
  }
  HKV_DEVICE void keep_carried(const KeptTokens& kept) const {
    if (kept.from >= kept.end) return;
    TokenRows old = ring_of(call_.carry);
    keep_half(old, true, 0, kept);
    old.base += call_.row_width() * 4;
    keep_half(old, true, call_.row_width() * 4, kept);
  }
  HKV_DEVICE void keep_new(const KeptTokens& kept) const {
    if (kept.from >= kept.end) return;
    const std::int64_t first = request_.first_row - request_.position;
    keep_half({call_.kv.base, call_.kv.stride, first, 0}, call_.kv.wide, 0, kept);
    keep_half({call_.score.base, call_.score.stride, first, 0}, call_.score.wide, call_.row_width() * 4,
              kept);
  }
  // kv or score, which lies `offset` bytes behind the start of a ring's row.
  HKV_DEVICE void keep_half(const TokenRows& rows, bool wide, std::int64_t offset,
                            const KeptTokens& kept) const {
    const TokenRows ring = ring_of(call_.new_carry);
    std::byte* const to = call_.new_carry.base + request_.number * call_.new_carry.request_stride + offset;
    if (launch_.wide_keeps) {
      wide ? keep_channels<true, 4>(rows, ring, to, kept, team_)
           : keep_channels<false, 4>(rows, ring, to, kept, team_);
    } else {
      wide ? keep_channels<true, 1>(rows, ring, to, kept, team_)
           : keep_channels<false, 1>(rows, ring, to, kept, team_);
    }
  }

  const CompressLaunch& launch_;
  const CompressTail& call_;
  const DeviceRequest& request_;
  const Team& team_;
};

}  // namespace hkv
