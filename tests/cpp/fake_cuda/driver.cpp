// SPDX-License-Identifier: Apache-2.0
// A stand-in for libcuda.so.1: what the library asks of a driver, with kernels run under the harness of tests/cpp/simt,
// and copies as in fake_cuda/copy_device.h.
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

#include "fake_cuda/copy_device.h"
#include "simt/device.h"

#include "kernels/device_kernels.cuh"

namespace {

using namespace hkv::fake_cuda;
using hkv::simt::GlobalMemory;

struct Kernel {
  const char* name;
  void (*call)(void** arguments);
};
#define HKV_ENTRY(name, arguments) {#name, [](void** a) { name(*static_cast<const arguments*>(a[0])); }},
const Kernel kernels[] = {HKV_DEVICE_KERNELS(HKV_ENTRY)};
#undef HKV_ENTRY

int library;  // its address is a handle
int launches = 0, loads_of_code = 0;
Handle last_stream = nullptr;

}  // namespace

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
  return current_context() == nullptr ? InvalidContext : Success;
}
HKV_API int cuLaunchKernel(Handle function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned,
                           unsigned, unsigned, Handle stream, void** arguments, void** extra) {
  if (current_context() == nullptr) return InvalidContext;
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
  copy_device().add(const_cast<void*>(start), bytes, CopyDevice::Kind::Device, 0);
}
HKV_API int fake_launches() { return launches; }
HKV_API int fake_loads_of_code() { return loads_of_code; }
HKV_API std::size_t fake_last_stream() { return reinterpret_cast<std::size_t>(last_stream); }
