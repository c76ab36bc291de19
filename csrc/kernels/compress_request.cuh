// SPDX-License-Identifier: Apache-2.0
// What a team of a device finds in the lists of a tail compression: which request an item belongs to, what that request
// closes, and where an entry goes. Lists are the device's and are believed in nothing: whatever they hold, no row outside
// of `kv`, no ring but the request's own and no page behind the last one is touched.
//
// The host knows rows and requests alone. Request q has the items from starts[q] / ratio + q up to those of the next
// one: as many as its rows can close windows at any position, and one at least. All lanes of a warp call together.
#pragma once
#include <bit>
#include <cstdint>

#include "kernels/compress_math.cuh"
#include "kernels/device_arguments.h"

namespace hkv {

HKV_DEVICE std::int32_t list_item(const IntList& list, std::int64_t i) {
  return simt::load(reinterpret_cast<const std::int32_t*>(list.base + i * list.stride));
}

// Ratios, rows and positions have 31 bits; what is not sound gives any number.
HKV_DEVICE std::uint32_t quotient(std::int64_t value, std::int64_t divisor) {
  return static_cast<std::uint32_t>(value) / static_cast<std::uint32_t>(divisor);
}
HKV_DEVICE std::uint32_t remainder(std::int64_t value, std::int64_t divisor) {
  return static_cast<std::uint32_t>(value) % static_cast<std::uint32_t>(divisor);
}

// The row of a ring that is the token's.
HKV_DEVICE std::int64_t ring_slot(const CompressTail& call, std::int64_t token) {
  constexpr std::int64_t tokens = std::int64_t{1} << 31;
  return remainder(token, call.ring_rows() < tokens ? call.ring_rows() : tokens);
}

// Rows, position and mask of one request.
struct DeviceRequest {
  std::int64_t number;
  std::int32_t first_row, end_row, position, mask;

  // Whether it can be worked on: rows that are there, positions of 31 bits.
  HKV_DEVICE bool sound(const CompressTail& call) const {
    return first_row >= 0 && first_row <= end_row && end_row <= call.rows && position >= 0 &&
           last() < std::int64_t{1} << 31;
  }
  HKV_DEVICE std::int64_t last() const { return std::int64_t{position} + end_row - first_row; }
  // Entries [first_entry, end_entry) are those whose windows its rows close.
  HKV_DEVICE std::int64_t first_entry(const CompressTail& call) const {
    return quotient(position, call.ratio);
  }
  HKV_DEVICE std::int64_t end_entry(const CompressTail& call) const { return quotient(last(), call.ratio); }
  HKV_DEVICE std::int64_t first_item(const CompressTail& call) const {
    return quotient(first_row, call.ratio) + number;
  }
  HKV_DEVICE std::int64_t items(const CompressTail& call) const {
    return quotient(end_row, call.ratio) + 1 - std::int64_t{quotient(first_row, call.ratio)};
  }
  // Windows that its first item closes: those that draw on what was carried, which may be overwritten after them.
  HKV_DEVICE std::int64_t head_windows(const CompressTail& call) const {
    const std::int64_t closed = end_entry(call) - first_entry(call);
    const std::int64_t drawing = call.overlap && remainder(position, call.ratio) != 0 ? 2 : 1;
    return closed < drawing ? closed : drawing;
  }
};

// A load for four lanes: each has one number of the request.
HKV_DEVICE DeviceRequest device_request(const CompressTail& call, std::int64_t q) {
  const unsigned lane = simt::lane();
  std::int32_t mine = 0;
  if (lane < 2) mine = list_item(call.starts, q + lane);
  if (lane == 2) mine = list_item(call.positions, q);
  if (lane == 3 && call.write_mask.base != nullptr) mine = list_item(call.write_mask, q);
  return {q, simt::shuffle(mine, 0), simt::shuffle(mine, 1), simt::shuffle(mine, 2), simt::shuffle(mine, 3)};
}

// The last request whose items begin at `item` or before; of starts that do not ascend, any.
HKV_DEVICE std::int64_t request_of(const CompressTail& call, std::int64_t item) {
  std::int64_t low = 0, count = call.requests;
  HKV_ROLLED
  while (count > 1) {
    const std::int64_t step = (count + 31) / 32, ahead = simt::lane() * step;
    bool begun = false;
    if (ahead < count) {
      const std::int64_t q = low + ahead;
      begun = quotient(list_item(call.starts, q), call.ratio) + q <= item;
    }
    const unsigned votes = simt::ballot(begun);
    const unsigned furthest = votes == 0 ? 0 : 31 - static_cast<unsigned>(std::countl_zero(votes));
    low += furthest * step;
    const std::int64_t left = count - furthest * step;
    count = left < step ? left : step;
  }
  return low;
}

// Windows that the requests before this one close.
HKV_DEVICE std::int64_t windows_before(const CompressTail& call, std::int64_t number) {
  std::int64_t windows = 0;
  HKV_ROLLED
  for (std::int64_t q = simt::lane(); q < number; q += 32) {
    const DeviceRequest other{q, list_item(call.starts, q), list_item(call.starts, q + 1),
                              list_item(call.positions, q), 0};
    if (other.sound(call)) windows += other.end_entry(call) - other.first_entry(call);
  }
  for (unsigned mask = 16; mask != 0; mask /= 2) windows += simt::shuffle_xor(windows, mask);
  return windows;
}

// Where an entry goes; page -1 where it is not written, as its mask says or because no page or column is there for it.
struct EntryPlace {
  std::int64_t page, row;
};

HKV_DEVICE EntryPlace entry_place(const CompressTail& call, const DeviceRequest& request,
                                  std::int64_t entry) {
  const std::int32_t rows = call.layout.page_rows;
  EntryPlace place{-1, remainder(entry, rows)};
  if ((entry + 1) * call.ratio <= request.mask) return place;
  if (call.page_ids.base == nullptr) {
    const std::int64_t window = windows_before(call, request.number) + entry - request.first_entry(call);
    place = {quotient(window, rows), remainder(window, rows)};
  } else if (quotient(entry, rows) < call.page_columns) {
    std::int32_t page = 0;
    if (simt::lane() == 0) {
      page = list_item({call.page_ids.base + request.number * call.page_id_stride, call.page_ids.stride},
                       quotient(entry, rows));
    }
    place.page = simt::shuffle(page, 0);
  }
  if (place.page >= call.page_count) place.page = -1;
  return place;
}

}  // namespace hkv
