// SPDX-License-Identifier: Apache-2.0
// What device kernels over pieces share: teams of threads, and where a piece is.
#pragma once
#include "kernels/device_arguments.h"
#include "kernels/simt.h"

namespace hkv {

// Threads that do an item together. `broadcast` gives all the value of the first, `all` tells whether a flag holds for
// every one; both order memory among them.
struct WarpTeam {
  HKV_DEVICE std::int64_t number() const {
    return std::int64_t{simt::block()} * (simt::threads() / 32) + simt::thread() / 32;
  }
  HKV_DEVICE std::int64_t teams() const { return std::int64_t{simt::blocks()} * (simt::threads() / 32); }
  HKV_DEVICE unsigned rank() const { return simt::lane(); }
  HKV_DEVICE unsigned size() const { return 32; }
  HKV_DEVICE void sync() { simt::warp_barrier(); }
  HKV_DEVICE int broadcast(int value) {
    value = simt::shuffle(value, 0);
    simt::warp_barrier();
    return value;
  }
  HKV_DEVICE bool all(bool flag) {
    const bool every = simt::ballot(flag) == 0xffffffffu;
    simt::warp_barrier();
    return every;
  }
};

struct BlockTeam {
  HKV_DEVICE std::int64_t number() const { return simt::block(); }
  HKV_DEVICE std::int64_t teams() const { return simt::blocks(); }
  HKV_DEVICE unsigned rank() const { return simt::thread(); }
  HKV_DEVICE unsigned size() const { return simt::threads(); }
  HKV_DEVICE void sync() { simt::barrier(); }
  // Two places in turn: who still reads one is not overtaken, since the barrier of the other lies between.
  HKV_DEVICE int broadcast(int value) {
    HKV_SHARED(int, told, 2);
    turn_ ^= 1;
    if (rank() == 0) told[turn_] = value;
    simt::barrier();
    return told[turn_];
  }
  HKV_DEVICE bool all(bool flag) {
    constexpr unsigned warps = device_threads / 32;
    HKV_SHARED(unsigned, votes, warps);
    const unsigned vote = simt::ballot(flag);
    if (simt::lane() == 0) votes[rank() / 32] = vote;
    simt::barrier();
    unsigned every = 0xffffffffu;
    for (unsigned warp = 0; warp < warps; ++warp) every &= votes[warp];
    simt::barrier();  // before the votes of the next question
    return every == 0xffffffffu;
  }

 private:
  int turn_ = 0;
};

// A page and a row of it, and whether they are there.
struct PiecePlace {
  std::int64_t page, row;
  CopyStatus status;
};

HKV_DEVICE std::int64_t piece_item(const void* list, std::int64_t i, bool wide) {
  if (wide) return simt::load(static_cast<const std::int64_t*>(list) + i);
  return simt::load(static_cast<const std::int32_t*>(list) + i);
}

HKV_DEVICE PiecePlace piece_place(const DevicePieces& pieces, std::int64_t i) {
  PiecePlace at{piece_item(pieces.page_ids, i, pieces.wide), 0, CopyStatus::Ok};
  if (pieces.rows != nullptr) at.row = piece_item(pieces.rows, i, pieces.wide);
  if (at.page == -1 || at.page == pieces.null_page || at.row == -1) {
    at.status = CopyStatus::Skipped;
  } else if (at.page < 0 || at.page >= pieces.pages || at.row < 0 || at.row >= pieces.page_rows) {
    at.status = CopyStatus::OutOfRange;
  }
  return at;
}

// The group that an item belongs to.
template <class Group>
HKV_DEVICE const Group& group_of(const DeviceLaunch<Group>& launch, std::int64_t item) {
  int g = 0;
  while (g + 1 < launch.group_count && launch.groups[g + 1].pieces.first_item <= item) ++g;
  return launch.groups[g];
}

}  // namespace hkv
