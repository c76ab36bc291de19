// SPDX-License-Identifier: Apache-2.0
// The device kernels of this build as bytes: what nvcc made of device_image.cu, or nothing.
//
// Thread safety: constants.
#pragma once
#include <cstddef>

namespace hkv {

struct DeviceImage {
  const void* data;
  std::size_t bytes;  // 0: built without nvcc
};
DeviceImage device_image() noexcept;

}  // namespace hkv
