// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda_api.h"

#include <dlfcn.h>

#include <cstdlib>
#include <type_traits>

namespace hkv {
namespace {

// Finds calls by their names in an opened library, and remembers the first that is missing.
class Finder {
 public:
  explicit Finder(void* library) : library_(library) {}
  template <class Call>
  void operator()(Call& call, const char* name) {
    call = reinterpret_cast<Call>(dlsym(library_, name));
    if (call == nullptr && missing_ == nullptr) missing_ = name;
  }
  const char* missing() const { return missing_; }

 private:
  void* library_;
  const char* missing_ = nullptr;
};

const char* find_all(void* library, CudaApi& api) {
  Finder find(library);
  find(api.init, "cuInit");
  find(api.version, "cuDriverGetVersion");
  find(api.error_string, "cuGetErrorString");
  find(api.device_count, "cuDeviceGetCount");
  find(api.device, "cuDeviceGet");
  find(api.retain_primary, "cuDevicePrimaryCtxRetain");
  find(api.current, "cuCtxGetCurrent");
  find(api.set_current, "cuCtxSetCurrent");
  find(api.push_current, "cuCtxPushCurrent_v2");
  find(api.pop_current, "cuCtxPopCurrent_v2");
  find(api.exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
  find(api.pointer_attribute, "cuPointerGetAttribute");
  find(api.host_alloc, "cuMemHostAlloc");
  find(api.host_free, "cuMemFreeHost");
  find(api.stream_create, "cuStreamCreate");
  find(api.stream_destroy, "cuStreamDestroy_v2");
  find(api.event_create, "cuEventCreate");
  find(api.event_record, "cuEventRecord");
  find(api.event_query, "cuEventQuery");
  find(api.event_destroy, "cuEventDestroy_v2");
  find(api.to_host, "cuMemcpyDtoHAsync_v2");
  find(api.to_device, "cuMemcpyHtoDAsync_v2");
  return find.missing();
}

const char* find_kernels(void* library, CudaApi& api) {
  Finder find(library);
  find(api.load, "cuLibraryLoadData");
  find(api.kernel, "cuLibraryGetKernel");
  find(api.function, "cuKernelGetFunction");
  find(api.launch, "cuLaunchKernel");
  return find.missing();
}

void find_descriptions(void* library, CudaApi& api) {
  Finder find(library);
  find(api.device_name, "cuDeviceGetName");
  find(api.device_attribute, "cuDeviceGetAttribute");
}

// Returns: why there is no CUDA; empty where there is.
std::string open(CudaApi& api, CudaLibrary& found) {
  const char* path = std::getenv("HYBRIDKV_LIBCUDA");
  if (path == nullptr || *path == 0) path = "libcuda.so.1";
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);  // never closed
  if (library == nullptr) return std::string("no NVIDIA driver: ") + dlerror();
  if (const char* missing = find_all(library, api))
    return std::string("the NVIDIA driver is too old: no ") + missing;
  if (const char* missing = find_kernels(library, api)) found.kernels_lack = missing;
  find_descriptions(library, api);
  if (const CudaApi::Result result = api.init(0)) return "cuInit: " + api.told(result);
  api.version(&found.driver_version);
  if (const CudaApi::Result result = api.device_count(&found.devices))
    return "cuDeviceGetCount: " + api.told(result);
  return found.devices == 0 ? "no CUDA device is visible" : "";
}

}  // namespace

std::string CudaApi::told(Result result) const {
  const char* text = nullptr;
  if (error_string(result, &text) != success || text == nullptr) return "error " + std::to_string(result);
  return text;
}

const CudaLibrary& cuda_library() {
  static CudaApi api;
  static const CudaLibrary found = [] {
    CudaLibrary made;
    made.reason = open(api, made);
    if (made.reason.empty()) made.api = &api;
    return made;
  }();
  return found;
}

std::vector<CudaDevice> cuda_devices() {
  const CudaLibrary& library = cuda_library();
  if (library.api == nullptr) return {};
  const CudaApi& api = *library.api;
  std::vector<CudaDevice> described(static_cast<std::size_t>(library.devices));
  for (int number = 0; number < library.devices; ++number) {
    CudaDevice& device = described[static_cast<std::size_t>(number)];
    int handle = 0;
    if (api.device(&handle, number) != CudaApi::success) continue;
    char name[256] = {};
    if (api.device_name != nullptr && api.device_name(name, sizeof name - 1, handle) == CudaApi::success)
      device.name = name;
    if (api.device_attribute == nullptr) continue;
    int major = 0, minor = 0;
    if (api.device_attribute(&major, CudaApi::of_major, handle) == CudaApi::success &&
        api.device_attribute(&minor, CudaApi::of_minor, handle) == CudaApi::success) {
      device.major = major;
      device.minor = minor;
    }
  }
  return described;
}

}  // namespace hkv
