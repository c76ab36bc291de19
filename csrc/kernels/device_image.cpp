// SPDX-License-Identifier: Apache-2.0
#include "kernels/device_image.h"

#if defined(HKV_DEVICE_IMAGE)
asm(R"(
  .section .rodata
  .balign 64
  .globl hkv_device_image
  .hidden hkv_device_image
hkv_device_image:
  .incbin ")" HKV_DEVICE_IMAGE R"("
  .globl hkv_device_image_end
  .hidden hkv_device_image_end
hkv_device_image_end:
  .byte 0
  .text
)");
extern "C" const unsigned char hkv_device_image[], hkv_device_image_end[];

hkv::DeviceImage hkv::device_image() noexcept {
  return {hkv_device_image, static_cast<std::size_t>(hkv_device_image_end - hkv_device_image)};
}
#else
hkv::DeviceImage hkv::device_image() noexcept { return {nullptr, 0}; }
#endif
