// SPDX-License-Identifier: Apache-2.0
// Calls of device kernels under the harness, planned as for a device.
//
// Thread safety: none; one operating-system thread.
#pragma once
#include "simt/device.h"

#include "kernels/compress_plan.h"
#include "kernels/device_kernels.cuh"
#include "kernels/device_plan.h"

namespace hkv::simt {

inline void add(Report& sum, const Report& one) {
  if (sum.fault == Fault::None) {
    sum.fault = one.fault;
    sum.what = one.what;
  }
  sum.loads += one.loads;
  sum.loaded_bytes += one.loaded_bytes;
  sum.stored_bytes += one.stored_bytes;
  sum.wide_loads += one.wide_loads;
}

// Runs all launches of gather or scatter; with few blocks each has several pieces one after another. Returns: the sum
// of what they did, and the first fault.
inline Report run_copy(DeviceDirection direction, const PagedCopy* groups, int count,
                       const Options& options = {}, unsigned most_blocks = 1u << 20) {
  Report sum;
  plan_launches(groups, count, [&](const CopyLaunch& args, LaunchSize size) {
    const auto kernel = direction == DeviceDirection::Gather
                            ? (size.team == Team::Warp ? &hkv_gather_by_warp : &hkv_gather_by_block)
                            : (size.team == Team::Warp ? &hkv_scatter_by_warp : &hkv_scatter_by_block);
    add(sum, launch(std::min(size.blocks, most_blocks), device_threads, [&] { kernel(args); }, options));
  });
  return sum;
}

inline Report run_fingerprint(const FingerprintGroup* groups, int count, const Options& options = {},
                              unsigned most_blocks = 1u << 20) {
  Report sum;
  plan_launches(groups, count, [&](const FingerprintLaunch& args, LaunchSize size) {
    add(sum,
        launch(std::min(size.blocks, most_blocks), device_threads, [&] { hkv_fingerprint(args); }, options));
  });
  return sum;
}

// Runs the launch of a tail compression by teams of one kind.
inline Report run_compress(const CompressTail& call, Team team, const Options& options = {},
                           unsigned most_blocks = 1u << 20) {
  const CompressLaunch args = compress_launch(call);
  const auto kernel = team == Team::Warp ? &hkv_compress_by_warp : &hkv_compress_by_block;
  const LaunchSize size = compress_size(args, team);
  return launch(std::min(size.blocks, most_blocks), device_threads, [&] { kernel(args); }, options);
}

}  // namespace hkv::simt
