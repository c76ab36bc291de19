// SPDX-License-Identifier: Apache-2.0
// The kernels on a CUDA device: the groups of a call as launches on the caller's stream.
//
// docs/kernels.md defines every byte and code; section 8 says what a device does otherwise.
//
// Thread safety: any thread. All memory is the device's and is touched when the stream comes to it.
#pragma once
#include "kernels/compress.h"
#include "kernels/cuda_driver.h"
#include "kernels/fingerprint.h"
#include "kernels/paged_copy.h"

namespace hkv {

// Requires: as gather and scatter, on device memory; groups that check_device_group takes. Throws: Error(KernelContract).
// Progress: no allocation, no waiting (cuda_driver.h).
void device_gather(const PagedCopy* groups, int group_count, const CudaStream& stream);
void device_scatter(const PagedCopy* groups, int group_count, const CudaStream& stream);
void device_fingerprint(const FingerprintGroup* groups, int group_count, const CudaStream& stream);

// One launch. Requires: memory of the device but for the row's parts and the frequencies; what check_device_compress
// takes. Lists are read when the stream comes to them: what they hold that the CPU refuses is left out (docs/kernels.md,
// section 9), and nothing outside of the outputs is written. Throws, Progress: as above.
void device_compress_tail(const CompressTail& call, const CudaStream& stream);

// Throws: Error(KernelContract) naming "norm_weight", "rope" or "row_format", where an entry is wider, or its row
// longer, than a team has room for.
void check_device_compress(const CompressTail& call);

// Throws: Error(KernelContract) naming "pools" with `suffix` behind it, where a group has more arrays than a launch
// takes, or pages of 2 GiB or more.
void check_device_group(const PageRows& page, int layer_count, const std::string& suffix);

}  // namespace hkv
