// SPDX-License-Identifier: Apache-2.0
// Tail compression on a device: a team of threads for each closing window, from rows to the packed row in its page.
//
// The first item of a request (compress_request.cuh) closes the windows that draw on the carry; where the new carry is
// the old one, it alone writes it, behind them. Else all items of a request write a share of it. So one launch does it
// all, in place or not, and no block waits for another.
#pragma once
#include "kernels/compress_keep.cuh"
#include "kernels/compress_window.cuh"

namespace hkv {

// All threads of the team come here together.
template <class Team>
HKV_DEVICE void close_window(const CompressLaunch& launch, const DeviceRequest& request, std::int64_t entry) {
  const CompressTail& call = launch.call;
  const EntryPlace place = entry_place(call, request, entry);
  if (place.page < 0) return;
  if (DeviceWindow(call, request, entry).carried != 0 && call.carry.base == nullptr) return;
  Team team;
  const EntryRow<Team> row(launch);
  const bool near = team.all(launch.wide_loads ? pool_window<Team, SlotLoads::Wide>(launch, request, entry)
                                               : pool_window<Team, SlotLoads::Items>(launch, request, entry));
  double factor = 1, mean_square = row.mean_square();
  if (!near || !(mean_square >= least_mean_square) || mean_square == __builtin_huge_val()) {
    factor = pool_again<Team>(launch, request, entry);
    mean_square = row.mean_square();
  }
  team.sync();  // before channels are changed that others still square
  finish_entry<Team>(launch, request, entry, mean_square, factor, place);
}

// One item: its windows, and its share of the new carry.
template <class Team>
HKV_DEVICE void compress_item(const CompressLaunch& launch, std::int64_t item) {
  const CompressTail& call = launch.call;
  const DeviceRequest request = device_request(call, request_of(call, item));
  if (!request.sound(call)) return;
  const std::int64_t share = item - request.first_item(call), shares = request.items(call);
  if (share < 0 || share >= shares) return;
  const std::int64_t head = request.head_windows(call), first = request.first_entry(call);
  const std::int64_t entry = share == 0 ? first : first + head + share - 1;
  const std::int64_t behind = request.end_entry(call);
  const std::int64_t end = share == 0 ? first + head : entry < behind ? entry + 1 : entry;
  HKV_ROLLED
  for (std::int64_t e = entry; e < end; ++e) close_window<Team>(launch, request, e);
  if (call.new_carry.base == nullptr) return;
  // What windows have read may be overwritten: they synchronised since.
  keep_carry<Team>(launch, request, share, shares);
}

template <class Team>
HKV_DEVICE void compress_windows(const CompressLaunch& launch) {
  EntryRow<Team>(launch).prepare();
  const Team team;
  HKV_ROLLED
  for (std::int64_t item = team.number(); item < launch.items; item += team.teams()) {
    compress_item<Team>(launch, item);
  }
}

}  // namespace hkv
