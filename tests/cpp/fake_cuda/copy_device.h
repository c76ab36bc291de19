// SPDX-License-Identifier: Apache-2.0
// A stand-in for the part of the CUDA driver that contexts, page-locked memory, streams, events and copies are: a copy
// moves its bytes only when the test says so, in the order of its stream, and can be refused, or lost with its device.
//
// Device memory of `allocate` cannot be touched by the CPU at its address: whoever tries is killed. The test looks at it
// through `seen`. Calls that a real driver would refuse, or that would disturb an engine (no context, another device's,
// memory that is not page-locked, a mode of capture that breaks somebody's graph), are refused and counted as misuse.
//
// Included once in a program. Thread safety: one thread at a time.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#define HKV_API extern "C" __attribute__((visibility("default")))

namespace hkv::fake_cuda {

using Handle = void*;
enum : int {
  Success = 0,
  InvalidValue = 1,
  OutOfMemory = 2,
  NoDevice = 100,
  InvalidContext = 201,
  NotFound = 500,
  NotReady = 600,
  IllegalAddress = 700,
  Fault = 719
};

inline int number_of(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

inline std::string fault = "no fault";  // text of the last Fault
inline int devices = number_of("HKV_FAKE_DEVICES", 1);
inline int contexts[8];  // their addresses are handles
inline thread_local std::vector<Handle> context_stack;
inline thread_local int capture_mode = 0;  // global, as a thread begins

inline Handle current_context() { return context_stack.empty() ? nullptr : context_stack.back(); }

struct Event {
  bool recorded = false, passed = true;
};
struct Operation {
  void* target;
  const void* source;
  std::size_t bytes;
  Event* event;  // of a record; else null
};
struct Stream {
  int device;
  std::deque<Operation> waiting;
};

class CopyDevice {
 public:
  enum class Kind { Device, Managed, Host };
  struct Range {
    std::uint64_t start;
    std::size_t bytes;
    Kind kind;
    int device;
    std::byte* seen;  // where this program may read and write it
  };
  static CopyDevice& instance() {
    static CopyDevice only;
    return only;
  }
  ~CopyDevice() { end(); }

  // Memory of a device, out of reach of the CPU.
  std::uint64_t allocate(std::size_t bytes, int device) {
    const int file = memfd_create("device", 0);
    if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) std::abort();
    void* const there = mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, file, 0);
    void* const here = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (there == MAP_FAILED || here == MAP_FAILED) std::abort();
    ::close(file);
    const auto start = reinterpret_cast<std::uint64_t>(there);
    ranges_.push_back({start, bytes, Kind::Device, device, static_cast<std::byte*>(here)});
    return start;
  }
  // Memory of this program, called something else.
  void add(void* start, std::size_t bytes, Kind kind, int device) {
    ranges_.push_back(
        {reinterpret_cast<std::uint64_t>(start), bytes, kind, device, static_cast<std::byte*>(start)});
  }
  const Range* find(std::uint64_t address, std::size_t bytes = 1) const {
    for (const Range& range : ranges_) {
      if (address >= range.start && address + bytes <= range.start + range.bytes) return &range;
    }
    return nullptr;
  }
  std::byte* seen(std::uint64_t address) const {
    const Range* const range = find(address);
    return range == nullptr ? nullptr : range->seen + (address - range->start);
  }
  bool locked(const void* start, std::size_t bytes) const {
    const auto at = reinterpret_cast<std::uint64_t>(start);
    return std::any_of(locked_.begin(), locked_.end(), [&](const auto& each) {
      const auto from = reinterpret_cast<std::uint64_t>(each.first);
      return at >= from && at + bytes <= from + each.second;
    });
  }

  int call(const Stream* stream) {
    if (lost) return IllegalAddress;
    if (capture_mode != 2) return misused(InvalidValue);
    if (stream != nullptr && current_context() != &contexts[stream->device]) return misused(InvalidContext);
    return current_context() == nullptr ? misused(InvalidContext) : Success;
  }
  int misused(int result) {
    ++misuses;
    return result;
  }
  int host_alloc(void** out, std::size_t bytes) {
    if (const int refused = call(nullptr)) return refused;
    if (no_memory) return OutOfMemory;
    *out = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    std::memset(*out, 0xA5, bytes);
    locked_.emplace(*out, bytes);
    return Success;
  }
  int host_free(void* memory) {
    if (locked_.erase(memory) == 0) return misused(InvalidValue);
    std::free(memory);
    return Success;
  }
  int copy(Stream* stream, std::uint64_t there, const void* here, std::size_t bytes, bool out) {
    if (const int refused = call(stream)) return refused;
    const Range* const range = find(there, bytes);
    const bool known = range != nullptr && range->kind == Kind::Device && range->device == stream->device;
    if (!known || !locked(here, bytes) || bytes == 0) return misused(InvalidValue);
    if (refuse_copy_in > 0 && --refuse_copy_in == 0) return InvalidValue;
    std::byte* const device = range->seen + (there - range->start);
    if (out) {
      stream->waiting.push_back({const_cast<void*>(here), device, bytes, nullptr});
    } else {
      stream->waiting.push_back({device, here, bytes, nullptr});
    }
    ++copies;
    most_waiting = std::max(most_waiting, stream->waiting.size());
    return Success;
  }
  int record(Event* event, Stream* stream) {
    if (const int refused = call(stream)) return refused;
    event->recorded = true;
    event->passed = false;
    stream->waiting.push_back({nullptr, nullptr, 0, event});
    return Success;
  }
  int query(Event* event) {
    if (const int refused = call(nullptr)) return refused;
    if (!event->recorded) return misused(InvalidValue);
    if (by_itself > 0 && !event->passed) run(by_itself);
    return event->passed ? Success : NotReady;
  }

  // Does the oldest operations of each stream, or of one.
  void run(std::size_t operations = ~std::size_t{0}, const Stream* only = nullptr) {
    for (const auto& stream : streams) {
      if (only != nullptr && stream.get() != only) continue;
      for (std::size_t i = 0; i < operations && !stream->waiting.empty(); ++i) {
        const Operation next = stream->waiting.front();
        stream->waiting.pop_front();
        if (next.event != nullptr) {
          next.event->passed = true;
        } else {
          std::memcpy(next.target, next.source, next.bytes);
          bytes_copied += next.bytes;
        }
      }
    }
  }
  bool idle() const {
    return std::all_of(streams.begin(), streams.end(),
                       [](const auto& stream) { return stream->waiting.empty(); });
  }
  std::size_t locked_bytes() const {
    std::size_t bytes = 0;
    for (const auto& [memory, size] : locked_) bytes += size;
    return bytes;
  }

  // What the driver does when the process ends.
  void end() {
    streams.clear();
    events.clear();
    for (const auto& [memory, bytes] : locked_) std::free(memory);
    locked_.clear();
  }

  std::vector<std::unique_ptr<Stream>> streams;
  std::size_t by_itself = 0;  // operations of each stream that a question after an event gets done
  bool lost = false, no_memory = false;
  int refuse_copy_in = 0;  // the copy after so many is refused, once
  std::vector<std::unique_ptr<Event>> events;
  int misuses = 0, copies = 0;
  std::size_t most_waiting = 0, bytes_copied = 0;

 private:
  std::vector<Range> ranges_;
  std::map<void*, std::size_t> locked_;
};

inline CopyDevice& copy_device() { return CopyDevice::instance(); }

}  // namespace hkv::fake_cuda

// ---- the driver's own names ----------------------------------------------------------------------

HKV_API int cuInit(unsigned) { return hkv::fake_cuda::number_of("HKV_FAKE_INIT", 0); }
HKV_API int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
HKV_API int cuGetErrorString(int result, const char** text) {
  using namespace hkv::fake_cuda;
  switch (result) {
    case NoDevice: *text = "no CUDA-capable device is detected"; return Success;
    case InvalidValue: *text = "invalid argument"; return Success;
    case OutOfMemory: *text = "out of memory"; return Success;
    case IllegalAddress: *text = "an illegal memory access was encountered"; return Success;
    case Fault: *text = fault.c_str(); return Success;
    default: *text = nullptr; return InvalidValue;
  }
}
HKV_API int cuDeviceGetCount(int* count) {
  *count = hkv::fake_cuda::devices;
  return 0;
}
HKV_API int cuDeviceGet(int* device, int number) {
  using namespace hkv::fake_cuda;
  *device = number;
  return number >= 0 && number < devices ? Success : InvalidValue;
}
HKV_API int cuDeviceGetName(char* name, int room, int device) {
  std::snprintf(name, static_cast<std::size_t>(room), "Stand-in %d", device);
  return 0;
}
HKV_API int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? 9 : 0;  // compute capability 9.0
  return 0;
}
HKV_API int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = &hkv::fake_cuda::contexts[device];
  return 0;
}
HKV_API int cuCtxGetCurrent(void** context) {
  *context = hkv::fake_cuda::current_context();
  return 0;
}
HKV_API int cuCtxSetCurrent(void* context) {
  auto& stack = hkv::fake_cuda::context_stack;
  if (!stack.empty()) stack.pop_back();
  stack.push_back(context);
  return 0;
}
HKV_API int cuCtxPushCurrent_v2(void* context) {
  hkv::fake_cuda::context_stack.push_back(context);
  return 0;
}
HKV_API int cuCtxPopCurrent_v2(void** context) {
  auto& stack = hkv::fake_cuda::context_stack;
  if (stack.empty()) return hkv::fake_cuda::InvalidContext;
  *context = stack.back();
  stack.pop_back();
  return 0;
}
HKV_API int cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, hkv::fake_cuda::capture_mode);
  return 0;
}
HKV_API int cuPointerGetAttribute(void* out, int attribute, std::uint64_t address) {
  using namespace hkv::fake_cuda;
  const CopyDevice::Range* const range = copy_device().find(address);
  if (range == nullptr) return InvalidValue;
  switch (attribute) {
    case 2: *static_cast<unsigned*>(out) = range->kind == CopyDevice::Kind::Host ? 1 : 2; return Success;
    case 8: *static_cast<int*>(out) = range->kind == CopyDevice::Kind::Managed; return Success;
    case 9: *static_cast<int*>(out) = range->device; return Success;
    default: return copy_device().misused(InvalidValue);
  }
}
HKV_API int cuMemHostAlloc(void** out, std::size_t bytes, unsigned) {
  return hkv::fake_cuda::copy_device().host_alloc(out, bytes);
}
HKV_API int cuMemFreeHost(void* memory) { return hkv::fake_cuda::copy_device().host_free(memory); }
HKV_API int cuStreamCreate(void** out, unsigned flags) {
  using namespace hkv::fake_cuda;
  CopyDevice& device = copy_device();
  if (const int refused = device.call(nullptr)) return refused;
  if (flags != 1)
    return device.misused(InvalidValue);  // one that waits for the default stream holds up a step
  const auto number = static_cast<int*>(current_context()) - contexts;
  device.streams.push_back(std::make_unique<Stream>(Stream{static_cast<int>(number), {}}));
  *out = device.streams.back().get();
  return Success;
}
HKV_API int cuStreamDestroy_v2(void* stream) {
  auto& streams = hkv::fake_cuda::copy_device().streams;
  return std::erase_if(streams, [&](const auto& each) { return each.get() == stream; }) == 1 ? 0 : 1;
}
HKV_API int cuEventCreate(void** out, unsigned) {
  auto& events = hkv::fake_cuda::copy_device().events;
  events.push_back(std::make_unique<hkv::fake_cuda::Event>());
  *out = events.back().get();
  return 0;
}
HKV_API int cuEventRecord(void* event, void* stream) {
  using namespace hkv::fake_cuda;
  return copy_device().record(static_cast<Event*>(event), static_cast<Stream*>(stream));
}
HKV_API int cuEventQuery(void* event) {
  using namespace hkv::fake_cuda;
  return copy_device().query(static_cast<Event*>(event));
}
HKV_API int cuEventDestroy_v2(void* event) {
  auto& events = hkv::fake_cuda::copy_device().events;
  return std::erase_if(events, [&](const auto& each) { return each.get() == event; }) == 1 ? 0 : 1;
}
HKV_API int cuMemcpyDtoHAsync_v2(void* to, std::uint64_t from, std::size_t bytes, void* stream) {
  using namespace hkv::fake_cuda;
  return copy_device().copy(static_cast<Stream*>(stream), from, to, bytes, true);
}
HKV_API int cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from, std::size_t bytes, void* stream) {
  using namespace hkv::fake_cuda;
  return copy_device().copy(static_cast<Stream*>(stream), to, from, bytes, false);
}

// ---- what a test says to it, in a library ---------------------------------------------------------

HKV_API std::uint64_t fake_allocate(std::size_t bytes, int device) {
  return hkv::fake_cuda::copy_device().allocate(bytes, device);
}
HKV_API void* fake_seen(std::uint64_t address) { return hkv::fake_cuda::copy_device().seen(address); }
// `kind` 1: managed memory, 2: memory of the host; anything else: of device 0.
HKV_API void fake_call(void* start, std::size_t bytes, int kind) {
  using Kind = hkv::fake_cuda::CopyDevice::Kind;
  const Kind called = kind == 1 ? Kind::Managed : kind == 2 ? Kind::Host : Kind::Device;
  hkv::fake_cuda::copy_device().add(start, bytes, called, 0);
}
HKV_API void fake_run(std::size_t operations) { hkv::fake_cuda::copy_device().run(operations); }
HKV_API void fake_by_itself(std::size_t operations) { hkv::fake_cuda::copy_device().by_itself = operations; }
HKV_API void fake_lose() { hkv::fake_cuda::copy_device().lost = true; }
HKV_API int fake_misuses() { return hkv::fake_cuda::copy_device().misuses; }
HKV_API int fake_copies() { return hkv::fake_cuda::copy_device().copies; }
HKV_API int fake_idle() { return hkv::fake_cuda::copy_device().idle(); }
