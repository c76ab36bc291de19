// SPDX-License-Identifier: Apache-2.0
#include "kernels/device_calls.h"

#include "base/check.h"
#include "kernels/compress_plan.h"
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

void device_compress_tail(const CompressTail& call, const CudaStream& stream) {
  const CompressLaunch launch = compress_launch(call);
  if (launch.items == 0) return;
  const LaunchSize size = compress_size(launch, compress_plan::team_of(call));
  launch_device(size.team == Team::Warp ? hkv_compress_by_warp : hkv_compress_by_block, size.blocks, launch,
                stream);
}

void check_device_compress(const CompressTail& call) {
  const auto refuse = [](const char* argument, std::int64_t most, const char* what, std::int64_t got) {
    throw Error{ErrorCode::KernelContract, argument,
                "at most " + std::to_string(most) + " " + what + " on a device", std::to_string(got)};
  };
  if (call.width > block_room.channels) refuse("norm_weight", block_room.channels, "channels", call.width);
  if (call.rope_dims > 2 * CompressLaunch::most_pairs) {
    refuse("rope", 2 * CompressLaunch::most_pairs, "rotated channels", call.rope_dims);
  }
  if (call.layout.part_count > CompressLaunch::most_parts) {
    refuse("row_format", CompressLaunch::most_parts, "parts", call.layout.part_count);
  }
  if (call.layout.row_bytes > block_room.row_bytes) {
    refuse("row_format", block_room.row_bytes, "bytes of a row", call.layout.row_bytes);
  }
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
