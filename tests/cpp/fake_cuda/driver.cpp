// SPDX-License-Identifier: Apache-2.0
// A stand-in for libcuda.so.1: what the library asks of a driver, with kernels run under the harness of tests/cpp/simt.
//
// Device memory is host memory that a test has registered (fake_register). A fault of a kernel makes its launch fail
// with the fault as the error's text. HKV_FAKE_INIT in the environment is what cuInit returns, HKV_FAKE_DEVICES how
// many devices there are, HKV_FAKE_ORDER 0, 1 or 2 the order of threads.
//
// Thread safety: none.
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <type_traits>

#include "simt/device.h"

#include "kernels/device_kernels.cuh"

#define HKV_API extern "C" __attribute__((visibility("default")))

namespace {

using Handle = void*;
using hkv::simt::GlobalMemory;

enum : int {
  Success = 0,
  InvalidValue = 1,
  NoDevice = 100,
  InvalidContext = 201,
  NotFound = 500,
  Fault = 719
};

int number_of(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

struct Kernel {
  const char* name;
  void (*call)(void** arguments);
};
#define HKV_ENTRY(name, arguments) {#name, [](void** a) { name(*static_cast<const arguments*>(a[0])); }},
const Kernel kernels[] = {HKV_DEVICE_KERNELS(HKV_ENTRY)};
#undef HKV_ENTRY

int primary, library;  // their addresses are handles
thread_local Handle current_context = nullptr;
std::string fault = "no fault";
int launches = 0, loads_of_code = 0;
Handle last_stream = nullptr;

}  // namespace

HKV_API int cuInit(unsigned) { return number_of("HKV_FAKE_INIT", Success); }
HKV_API int cuDriverGetVersion(int* version) {
  *version = 13000;
  return Success;
}
HKV_API int cuGetErrorString(int result, const char** text) {
  switch (result) {
    case NoDevice: *text = "no CUDA-capable device is detected"; return Success;
    case InvalidValue: *text = "invalid argument"; return Success;
    case Fault: *text = fault.c_str(); return Success;
    default: *text = nullptr; return InvalidValue;
  }
}
HKV_API int cuDeviceGetCount(int* count) {
  *count = number_of("HKV_FAKE_DEVICES", 1);
  return Success;
}
HKV_API int cuDeviceGet(int* device, int number) {
  *device = number;
  return number < number_of("HKV_FAKE_DEVICES", 1) ? Success : InvalidValue;
}
HKV_API int cuDevicePrimaryCtxRetain(Handle* context, int) {
  *context = &primary;
  return Success;
}
HKV_API int cuCtxGetCurrent(Handle* context) {
  *context = current_context;
  return Success;
}
HKV_API int cuCtxSetCurrent(Handle context) {
  current_context = context;
  return Success;
}
HKV_API int cuLibraryLoadData(Handle* loaded, const void* image, void*, void**, unsigned, void*, void**,
                              unsigned) {
  std::uint32_t magic;
  std::memcpy(&magic, image, sizeof magic);
  *loaded = &library;
  return magic == 0xba55ed50 ? Success : InvalidValue;  // how a fat binary begins
}
HKV_API int cuLibraryGetKernel(Handle* found, Handle, const char* name) {
  for (const Kernel& kernel : kernels) {
    if (std::strcmp(kernel.name, name) != 0) continue;
    *found = const_cast<Kernel*>(&kernel);
    return Success;
  }
  return NotFound;
}
HKV_API int cuKernelGetFunction(Handle* function, Handle kernel) {
  ++loads_of_code;
  *function = kernel;
  return current_context == nullptr ? InvalidContext : Success;
}
HKV_API int cuLaunchKernel(Handle function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned,
                           unsigned, unsigned, Handle stream, void** arguments, void** extra) {
  if (current_context == nullptr) return InvalidContext;
  if (x == 0 || y != 1 || z != 1 || threads == 0 || threads > 1024 || extra != nullptr) return InvalidValue;
  ++launches;
  last_stream = stream;
  const auto* kernel = static_cast<const Kernel*>(function);
  const auto order = static_cast<hkv::simt::Order>(number_of("HKV_FAKE_ORDER", 0));
  const auto report = hkv::simt::launch(x, threads, [&] { kernel->call(arguments); }, {order, 1, {}});
  fault = report.what;
  return report.fault == hkv::simt::Fault::None ? Success : Fault;
}

HKV_API void fake_register(const void* start, std::size_t bytes) {
  GlobalMemory::instance().add(start, bytes, true);
}
HKV_API int fake_launches() { return launches; }
HKV_API int fake_loads_of_code() { return loads_of_code; }
HKV_API std::size_t fake_last_stream() { return reinterpret_cast<std::size_t>(last_stream); }
