// SPDX-License-Identifier: Apache-2.0
// Fingerprints on a device: a block for each page, a warp for each chunk of it, two pairs of words for each lane.
#pragma once
#include "kernels/device_pieces.cuh"
#include "kernels/fingerprint_math.h"

namespace hkv {

// The packed form of a page, read where it lies.
class PackedWords {
 public:
  HKV_DEVICE PackedWords(const std::byte* page, const PageRows& rows)
      : page_(page),
        rows_(rows),
        bytes_(static_cast<std::uint32_t>(rows.packed_bytes())),
        row_part_(static_cast<std::uint32_t>(rows.rows * rows.row_bytes)),
        one_piece_(rows.in_one_piece()),
        wide_(one_piece_ && reinterpret_cast<std::uintptr_t>(page) % 16 == 0) {}

  HKV_DEVICE std::uint32_t bytes() const { return bytes_; }
  // The two words at a multiple of 16, zeros behind the end.
  HKV_DEVICE simt::Wide pair(std::uint32_t at) const {
    if (wide_ && at + 16 <= bytes_) return simt::load(reinterpret_cast<const simt::Wide*>(page_ + at));
    return {word(at), word(at + 8)};
  }

 private:
  HKV_DEVICE std::uint64_t word(std::uint32_t at) const {
    if (at >= bytes_) return 0;
    if (at + 8 <= bytes_) return simt::load(reinterpret_cast<const std::uint64_t*>(page_ + place(at)));
    std::uint64_t value = 0;  // bytes of a page in one piece: others have multiples of 8
    for (std::uint32_t k = 0; at + k < bytes_; ++k) {
      value |= std::uint64_t{simt::load(reinterpret_cast<const std::uint8_t*>(page_ + at + k))} << 8 * k;
    }
    return value;
  }
  HKV_DEVICE std::int64_t place(std::uint32_t at) const {
    if (one_piece_) return at;
    if (at >= row_part_) return rows_.footer_offset + (at - row_part_);
    const auto row_bytes = static_cast<std::uint32_t>(rows_.row_bytes);
    return at / row_bytes * rows_.row_stride + at % row_bytes;
  }

  const std::byte* page_;
  const PageRows& rows_;
  std::uint32_t bytes_, row_part_;
  bool one_piece_, wide_;
};

// The sum over a warp modulo 2^128, the same in all lanes.
HKV_DEVICE fingerprint_math::U128 warp_sum(fingerprint_math::U128 value) {
  for (unsigned mask = 16; mask != 0; mask /= 2) {
    const auto low = simt::shuffle_xor(static_cast<std::uint64_t>(value), mask);
    const auto high = simt::shuffle_xor(static_cast<std::uint64_t>(value >> 64), mask);
    value += static_cast<fingerprint_math::U128>(high) << 64 | low;
  }
  return value;
}

class PageFingerprint {
 public:
  HKV_DEVICE PageFingerprint() {
    for (int k = 0; k < 2 * pairs; ++k)
      keys_[k] = fingerprint_math::term(2 * (simt::lane() + k / 2 * 32) + k % 2);
    for (unsigned w = 0; w < warp(); ++w)
      first_power_ = fingerprint_math::times(first_power_, fingerprint_math::base3);
  }

  // Returns: the fingerprint, in thread 0 alone. All threads of the block come here together.
  HKV_DEVICE std::uint64_t of(const PackedWords& words) {
    using namespace fingerprint_math;
    HKV_SHARED(std::uint64_t, sums, warps);
    constexpr std::uint64_t power_step = power_of(base3, warps);
    std::uint64_t sum = 0, power = first_power_;
    for (std::uint32_t from = warp() * chunk_bytes; from < words.bytes(); from += warps * chunk_bytes) {
      sum = reduced(U128{sum} + times(chunk_value(warp_sum(lane_sum(words, from))), power));
      power = times(power, power_step);
    }
    if (simt::lane() == 0) sums[warp()] = sum;
    simt::barrier();
    std::uint64_t value = 0;
    if (simt::thread() == 0) {
      U128 total = words.bytes();
      for (int w = 0; w < warps; ++w) total += sums[w];
      value = mix(reduced(total) + 1);
    }
    simt::barrier();  // before the sums of the next page
    return value;
  }

 private:
  static constexpr int warps = device_threads / 32;
  static constexpr int pairs = fingerprint_math::chunk_words / 2 / 32;  // of a lane

  HKV_DEVICE static unsigned warp() { return simt::thread() / 32; }

  HKV_DEVICE fingerprint_math::U128 lane_sum(const PackedWords& words, std::uint32_t chunk) const {
    simt::Wide held[pairs];
    HKV_UNROLL
    for (int k = 0; k < pairs; ++k) held[k] = words.pair(chunk + 16 * (simt::lane() + 32 * k));
    fingerprint_math::U128 sum = 0;
    HKV_UNROLL
    for (int k = 0; k < pairs; ++k) {
      // A pair behind the end adds nothing; without the keys, since zeros have them too.
      if (chunk + 16 * (simt::lane() + 32 * k) >= words.bytes()) continue;
      sum += static_cast<fingerprint_math::U128>(held[k].x + keys_[2 * k]) * (held[k].y + keys_[2 * k + 1]);
    }
    return sum;
  }

  std::uint64_t keys_[2 * pairs];
  std::uint64_t first_power_ = 1;
};

HKV_DEVICE void fingerprint_pages(const FingerprintLaunch& launch) {
  PageFingerprint fingerprint;
  for (std::int64_t item = simt::block(); item < launch.items; item += simt::blocks()) {
    const DeviceFingerprint& group = group_of(launch, item);
    const std::int64_t own = item - group.pieces.first_item;
    const PiecePlace at = piece_place(group.pieces, own % group.pieces.count);
    std::uint64_t value = 0;
    if (at.status == CopyStatus::Ok) {
      const PoolLayer& pool = launch.layers[group.pieces.first_layer + own / group.pieces.count];
      value = fingerprint.of(PackedWords(pool.base + at.page * pool.page_stride, group.page));
    }
    if (simt::thread() == 0) simt::store(group.out + own, value);
  }
}

}  // namespace hkv
