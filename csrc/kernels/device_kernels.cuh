// SPDX-License-Identifier: Apache-2.0
// The entry points of all device kernels, held against HKV_DEVICE_KERNELS.
#pragma once
#include "kernels/compress.cuh"
#include "kernels/fingerprint.cuh"
#include "kernels/paged_copy.cuh"

#define HKV_DECLARE(name, arguments) \
  HKV_KERNEL(name, hkv::device_threads, hkv::resident_blocks<arguments>, (HKV_ARGUMENT arguments));
HKV_DEVICE_KERNELS(HKV_DECLARE)
#undef HKV_DECLARE

#define HKV_COPY(name, direction, team)                                        \
  HKV_KERNEL(name, hkv::device_threads, hkv::resident_blocks<hkv::CopyLaunch>, \
             (HKV_ARGUMENT hkv::CopyLaunch launch)) {                          \
    hkv::copy_pieces<hkv::DeviceDirection::direction, hkv::team>(launch);      \
  }
HKV_COPY(hkv_gather_by_warp, Gather, WarpTeam)
HKV_COPY(hkv_gather_by_block, Gather, BlockTeam)
HKV_COPY(hkv_scatter_by_warp, Scatter, WarpTeam)
HKV_COPY(hkv_scatter_by_block, Scatter, BlockTeam)
#undef HKV_COPY

HKV_KERNEL(hkv_fingerprint, hkv::device_threads, hkv::resident_blocks<hkv::FingerprintLaunch>,
           (HKV_ARGUMENT hkv::FingerprintLaunch launch)) {
  hkv::fingerprint_pages(launch);
}

HKV_KERNEL(hkv_compress_by_warp, hkv::device_threads, hkv::resident_blocks<hkv::CompressLaunch>,
           (HKV_ARGUMENT hkv::CompressLaunch launch)) {
  hkv::compress_windows<hkv::WarpTeam>(launch);
}
HKV_KERNEL(hkv_compress_by_block, hkv::device_threads, hkv::resident_blocks<hkv::CompressLaunch>,
           (HKV_ARGUMENT hkv::CompressLaunch launch)) {
  hkv::compress_windows<hkv::BlockTeam>(launch);
}
