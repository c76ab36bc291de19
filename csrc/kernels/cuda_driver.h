// SPDX-License-Identifier: Apache-2.0
// Kernels on a CUDA device, through the driver that cuda_api.h opens.
//
// Thread safety: any thread. The first call loads the kernels, under a lock; what it found stays.
// Invariants:
// 1. A launch allocates nothing and waits for nothing, so it can be captured in a graph; a thread's first launch in a
//    context is the exception, since it loads the code of the kernels.
// 2. A kernel is launched with the arguments that it was declared with: the argument's type is part of the kernel's.
#pragma once
#include <cstdint>
#include <string>

#include "kernels/device_arguments.h"

namespace hkv {

struct CudaStatus {
  bool available = false;
  std::string reason;  // why not, for people
  int devices = 0;
  int driver_version = 0;  // 13000: 13.0; 0 where there is no driver
};

// Whether device kernels can be launched.
// Progress: blocks while another thread opens the driver.
const CudaStatus& cuda_status();

// Where a launch goes: a stream of the driver (0: its default one), and the device whose primary context is taken
// where the thread has no current one.
struct CudaStream {
  std::uintptr_t handle = 0;
  int device = 0;
};

// One kernel of the image, with the type of its arguments.
template <class Arguments>
struct DeviceKernel {
  int slot;
};

namespace device_kernels {
enum Slot : int {
#define HKV_SLOT(name, arguments) slot_##name,
  HKV_DEVICE_KERNELS(HKV_SLOT)
#undef HKV_SLOT
      slot_count
};
#define HKV_NAME(name, arguments) inline constexpr DeviceKernel<arguments> name{slot_##name};
HKV_DEVICE_KERNELS(HKV_NAME)
#undef HKV_NAME
}  // namespace device_kernels

void launch_slot(int slot, unsigned blocks, const void* arguments, const CudaStream& stream);

// Launches `blocks` blocks of device_threads on a stream. Throws: Error(KernelContract) where there is no CUDA or the
// driver refuses. Progress: as the driver's.
template <class Arguments>
void launch_device(DeviceKernel<Arguments> kernel, unsigned blocks, const Arguments& arguments,
                   const CudaStream& stream) {
  launch_slot(kernel.slot, blocks, &arguments, stream);
}

}  // namespace hkv
