// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda_driver.h"

#include <dlfcn.h>

#include <cstdlib>

#include "base/check.h"
#include "kernels/device_image.h"

namespace hkv {
namespace {

// The part of the driver's interface that is used, declared here: a build needs no header of CUDA.
using Result = int;  // 0: success
struct Context;
struct Library;
struct KernelHandle;
struct Function;
struct Stream;

struct Driver {
  Result (*init)(unsigned) = nullptr;
  Result (*version)(int*) = nullptr;
  Result (*error_string)(Result, const char**) = nullptr;
  Result (*device_count)(int*) = nullptr;
  Result (*device)(int*, int) = nullptr;
  Result (*retain_primary)(Context**, int) = nullptr;
  Result (*current)(Context**) = nullptr;
  Result (*set_current)(Context*) = nullptr;
  Result (*load)(Library**, const void*, void*, void**, unsigned, void*, void**, unsigned) = nullptr;
  Result (*kernel)(KernelHandle**, Library*, const char*) = nullptr;
  Result (*function)(Function**, KernelHandle*) = nullptr;
  Result (*launch)(Function*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream*,
                   void**, void**) = nullptr;
};

constexpr const char* names[] = {
#define HKV_STRING(name, arguments) #name,
    HKV_DEVICE_KERNELS(HKV_STRING)
#undef HKV_STRING
};

class Cuda {
 public:
  static Cuda& instance() {
    static Cuda opened;
    return opened;
  }
  const CudaStatus& status() const { return status_; }

  void launch(int slot, unsigned blocks, const void* arguments, const CudaStream& stream) {
    if (!status_.available) {
      throw Error{ErrorCode::KernelContract, "stream", "a CUDA device",
                  "CUDA is not available: " + status_.reason};
    }
    enter_context(stream.device);
    void* packed[] = {const_cast<void*>(arguments)};
    // A kernel of a library is taken in the place of a function.
    demand(driver_.launch(reinterpret_cast<Function*>(kernels_[slot]), blocks, 1, 1, device_threads, 1, 1, 0,
                          reinterpret_cast<Stream*>(stream.handle), packed, nullptr),
           names[slot]);
  }

 private:
  Cuda() {
    status_.reason = open();
    status_.available = status_.reason.empty();
  }

  // Returns: why there is no CUDA; empty where there is.
  std::string open() {
    const DeviceImage image = device_image();
    if (image.bytes == 0) return "this build carries no CUDA kernels (it was made without nvcc)";
    const char* path = std::getenv("HYBRIDKV_LIBCUDA");
    if (path == nullptr || *path == 0) path = "libcuda.so.1";
    void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);  // never closed
    if (library == nullptr) return std::string("no NVIDIA driver: ") + dlerror();
    if (const char* missing = look_up(library))
      return std::string("the NVIDIA driver is too old: no ") + missing;
    if (const Result result = driver_.init(0)) return "cuInit: " + told(result);
    driver_.version(&status_.driver_version);
    if (const Result result = driver_.device_count(&status_.devices))
      return "cuDeviceGetCount: " + told(result);
    if (status_.devices == 0) return "no CUDA device is visible";
    Library* loaded = nullptr;
    if (const Result result = driver_.load(&loaded, image.data, nullptr, nullptr, 0, nullptr, nullptr, 0)) {
      return "cuLibraryLoadData: " + told(result);
    }
    for (int slot = 0; slot < device_kernels::slot_count; ++slot) {
      const Result result = driver_.kernel(&kernels_[slot], loaded, names[slot]);
      if (result != 0) return std::string(names[slot]) + ": " + told(result);
    }
    return {};
  }

  // Returns: the first name that the library lacks, or null.
  const char* look_up(void* library) {
    const char* missing = nullptr;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr && missing == nullptr) missing = name;
    };
    find(driver_.init, "cuInit");
    find(driver_.version, "cuDriverGetVersion");
    find(driver_.error_string, "cuGetErrorString");
    find(driver_.device_count, "cuDeviceGetCount");
    find(driver_.device, "cuDeviceGet");
    find(driver_.retain_primary, "cuDevicePrimaryCtxRetain");
    find(driver_.current, "cuCtxGetCurrent");
    find(driver_.set_current, "cuCtxSetCurrent");
    find(driver_.load, "cuLibraryLoadData");
    find(driver_.kernel, "cuLibraryGetKernel");
    find(driver_.function, "cuKernelGetFunction");
    find(driver_.launch, "cuLaunchKernel");
    return missing;
  }

  // Makes sure that this thread has a context, and that the context has the code of all kernels: code that is loaded by
  // the first launch of a kernel could not be captured.
  void enter_context(int device) {
    thread_local Context* loaded_in = nullptr;
    Context* context = nullptr;
    demand(driver_.current(&context), "cuCtxGetCurrent");
    if (context == nullptr) {
      int handle = 0;
      demand(driver_.device(&handle, device), "cuDeviceGet");
      demand(driver_.retain_primary(&context, handle), "cuDevicePrimaryCtxRetain");
      demand(driver_.set_current(context), "cuCtxSetCurrent");
    }
    if (context == loaded_in) return;
    Function* unused = nullptr;
    for (KernelHandle* kernel : kernels_) demand(driver_.function(&unused, kernel), "cuKernelGetFunction");
    loaded_in = context;
  }

  void demand(Result result, const char* what) const {
    if (result == 0) return;
    throw Error{ErrorCode::KernelContract, "stream", "a launch that the CUDA driver takes",
                std::string(what) + ": " + told(result)};
  }
  std::string told(Result result) const {
    const char* text = nullptr;
    if (driver_.error_string(result, &text) != 0 || text == nullptr) return "error " + std::to_string(result);
    return text;
  }

  Driver driver_;
  CudaStatus status_;
  KernelHandle* kernels_[device_kernels::slot_count] = {};
};

}  // namespace

const CudaStatus& cuda_status() { return Cuda::instance().status(); }

void launch_slot(int slot, unsigned blocks, const void* arguments, const CudaStream& stream) {
  Cuda::instance().launch(slot, blocks, arguments, stream);
}

}  // namespace hkv
