// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda_driver.h"

#include "base/check.h"
#include "kernels/cuda_api.h"
#include "kernels/device_image.h"

namespace hkv {
namespace {

using Result = CudaApi::Result;

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
    demand(driver_->launch(reinterpret_cast<cuda::Function*>(kernels_[slot]), blocks, 1, 1, device_threads, 1,
                           1, 0, reinterpret_cast<cuda::Stream*>(stream.handle), packed, nullptr),
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
    const CudaLibrary& library = cuda_library();
    status_.devices = library.devices;
    status_.driver_version = library.driver_version;
    if (library.api == nullptr) return library.reason;
    if (!library.kernels_lack.empty()) return "the NVIDIA driver is too old: no " + library.kernels_lack;
    driver_ = library.api;
    cuda::Library* loaded = nullptr;
    if (const Result result = driver_->load(&loaded, image.data, nullptr, nullptr, 0, nullptr, nullptr, 0)) {
      return "cuLibraryLoadData: " + driver_->told(result);
    }
    for (int slot = 0; slot < device_kernels::slot_count; ++slot) {
      const Result result = driver_->kernel(&kernels_[slot], loaded, names[slot]);
      if (result != 0) return std::string(names[slot]) + ": " + driver_->told(result);
    }
    return {};
  }

  // Makes sure that this thread has a context, and that the context has the code of all kernels: code that is loaded by
  // the first launch of a kernel could not be captured.
  void enter_context(int device) {
    thread_local cuda::Context* loaded_in = nullptr;
    cuda::Context* context = nullptr;
    demand(driver_->current(&context), "cuCtxGetCurrent");
    if (context == nullptr) {
      int handle = 0;
      demand(driver_->device(&handle, device), "cuDeviceGet");
      demand(driver_->retain_primary(&context, handle), "cuDevicePrimaryCtxRetain");
      demand(driver_->set_current(context), "cuCtxSetCurrent");
    }
    if (context == loaded_in) return;
    cuda::Function* unused = nullptr;
    for (cuda::KernelHandle* kernel : kernels_)
      demand(driver_->function(&unused, kernel), "cuKernelGetFunction");
    loaded_in = context;
  }

  void demand(Result result, const char* what) const {
    if (result == 0) return;
    throw Error{ErrorCode::KernelContract, "stream", "a launch that the CUDA driver takes",
                std::string(what) + ": " + driver_->told(result)};
  }

  const CudaApi* driver_ = nullptr;
  CudaStatus status_;
  cuda::KernelHandle* kernels_[device_kernels::slot_count] = {};
};

}  // namespace

const CudaStatus& cuda_status() { return Cuda::instance().status(); }

void launch_slot(int slot, unsigned blocks, const void* arguments, const CudaStream& stream) {
  Cuda::instance().launch(slot, blocks, arguments, stream);
}

}  // namespace hkv
