// SPDX-License-Identifier: Apache-2.0
// The CUDA driver as opened from its library: the calls that are used, declared here, so that a build needs no header
// of CUDA and nothing links against it.
//
// Thread safety: any thread. The first call of cuda_library opens the driver, under a lock; what it found stays.
// Invariants:
// 1. `api` is there only with every call that copies need: who has it need not look again. What kernels need besides came
//    later to the driver, and may be missing: `kernels_lack` names it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hkv {

namespace cuda {
struct Context;
struct Library;
struct KernelHandle;
struct Function;
struct Stream;
struct Event;
}  // namespace cuda

struct CudaApi {
  using Result = int;
  static constexpr Result success = 0, not_ready = 600;
  // cuPointerGetAttribute
  static constexpr int of_memory_type = 2, of_managed = 8, of_device = 9;
  static constexpr int of_major = 75, of_minor = 76;  // cuDeviceGetAttribute: compute capability
  static constexpr unsigned device_memory = 2;        // a memory type
  static constexpr unsigned portable = 1;             // of cuMemHostAlloc: page-locked for every device
  static constexpr unsigned non_blocking = 1;    // of cuStreamCreate: not ordered with the default stream
  static constexpr unsigned without_timing = 2;  // of cuEventCreate
  static constexpr int relaxed_capture = 2;      // of cuThreadExchangeStreamCaptureMode

  Result (*init)(unsigned) = nullptr;
  Result (*version)(int*) = nullptr;
  Result (*error_string)(Result, const char**) = nullptr;
  Result (*device_count)(int*) = nullptr;
  Result (*device)(int*, int) = nullptr;
  Result (*retain_primary)(cuda::Context**, int) = nullptr;
  Result (*current)(cuda::Context**) = nullptr;
  Result (*set_current)(cuda::Context*) = nullptr;
  // copies
  Result (*push_current)(cuda::Context*) = nullptr;
  Result (*pop_current)(cuda::Context**) = nullptr;
  Result (*exchange_capture_mode)(int*) = nullptr;
  Result (*pointer_attribute)(void*, int, std::uint64_t) = nullptr;
  Result (*host_alloc)(void**, std::size_t, unsigned) = nullptr;
  Result (*host_free)(void*) = nullptr;
  Result (*stream_create)(cuda::Stream**, unsigned) = nullptr;
  Result (*stream_destroy)(cuda::Stream*) = nullptr;
  Result (*event_create)(cuda::Event**, unsigned) = nullptr;
  Result (*event_record)(cuda::Event*, cuda::Stream*) = nullptr;
  Result (*event_query)(cuda::Event*) = nullptr;
  Result (*event_destroy)(cuda::Event*) = nullptr;
  Result (*to_host)(void*, std::uint64_t, std::size_t, cuda::Stream*) = nullptr;
  Result (*to_device)(std::uint64_t, const void*, std::size_t, cuda::Stream*) = nullptr;
  // kernels
  Result (*load)(cuda::Library**, const void*, void*, void**, unsigned, void*, void**, unsigned) = nullptr;
  Result (*kernel)(cuda::KernelHandle**, cuda::Library*, const char*) = nullptr;
  Result (*function)(cuda::Function**, cuda::KernelHandle*) = nullptr;
  Result (*launch)(cuda::Function*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   cuda::Stream*, void**, void**) = nullptr;

  // what a device is; for people, so that a driver without them serves all the same
  Result (*device_name)(char*, int, int) = nullptr;
  Result (*device_attribute)(int*, int, int) = nullptr;

  // What the driver says of an error, for people.
  std::string told(Result result) const;
};

struct CudaLibrary {
  const CudaApi* api = nullptr;  // null where there is no driver or no device
  std::string reason;            // why not, for people
  std::string kernels_lack;      // the first call that kernels need and this driver does not have
  int devices = 0;
  int driver_version = 0;  // 13000: 13.0; 0 where there is no driver
};

// HYBRIDKV_LIBCUDA in the environment names another library than libcuda.so.1.
// Progress: blocks while another thread opens the driver.
const CudaLibrary& cuda_library();

// One device as the driver describes it.
struct CudaDevice {
  std::string name;          // empty where the driver does not tell
  int major = 0, minor = 0;  // compute capability; 0.0 where the driver does not tell
};

// Returns: every visible device, in the driver's order; none where there is no driver.
// Progress: as cuda_library.
std::vector<CudaDevice> cuda_devices();

}  // namespace hkv
