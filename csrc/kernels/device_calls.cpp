// SPDX-License-Identifier: Apache-2.0
#include "kernels/device_calls.h"

#include "base/check.h"
#include "kernels/device_plan.h"

namespace hkv {

using namespace device_kernels;

void device_gather(const PagedCopy* groups, int group_count, const CudaStream& stream) {
  plan_launches(groups, group_count, [&](const CopyLaunch& launch, LaunchSize size) {
    launch_device(size.team == Team::Warp ? hkv_gather_by_warp : hkv_gather_by_block, size.blocks, launch,
                  stream);
  });
}

void device_scatter(const PagedCopy* groups, int group_count, const CudaStream& stream) {
  plan_launches(groups, group_count, [&](const CopyLaunch& launch, LaunchSize size) {
    launch_device(size.team == Team::Warp ? hkv_scatter_by_warp : hkv_scatter_by_block, size.blocks, launch,
                  stream);
  });
}

void device_fingerprint(const FingerprintGroup* groups, int group_count, const CudaStream& stream) {
  plan_launches(groups, group_count, [&](const FingerprintLaunch& launch, LaunchSize size) {
    launch_device(hkv_fingerprint, size.blocks, launch, stream);
  });
}

void check_device_group(const PageRows& page, int layer_count, const std::string& suffix) {
  constexpr int most = CopyLaunch::most_layers;
  if (layer_count > most) {
    throw Error{ErrorCode::KernelContract, "pools" + suffix,
                "at most " + std::to_string(most) + " arrays on a device", std::to_string(layer_count)};
  }
  constexpr std::int64_t page_limit = std::int64_t{1} << 31;
  const std::int64_t reach = page.rows * page.row_stride + page.footer_offset + page.rows * page.footer_bytes;
  if (reach >= page_limit) {
    throw Error{ErrorCode::KernelContract, "pools" + suffix, "pages below 2 GiB on a device",
                std::to_string(reach)};
  }
}

}  // namespace hkv
