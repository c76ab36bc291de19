// SPDX-License-Identifier: Apache-2.0
// What ThreadSanitizer sees of a kernel under the harness: each fiber as a thread of its own, its accesses to global and
// shared memory, and no order among fibers but that of the start, the barriers and the end. So it judges races by its
// own means, beside the stamps of memory.h. Without it all of this is nothing.
//
// The harness's own memory is not seen: a fiber's accesses are ignored but within a Seen.
#pragma once
#include <cstddef>
#include <cstdint>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
extern "C" void __tsan_ignore_thread_begin();
extern "C" void __tsan_ignore_thread_end();
#define HKV_NOT_SEEN __attribute__((no_sanitize("thread")))
#else
#define HKV_NOT_SEEN
#endif

namespace hkv::simt {

#if defined(__SANITIZE_THREAD__)

// While it lives, what this fiber does to memory counts.
struct Seen {
  Seen() { __tsan_ignore_thread_end(); }
  ~Seen() { __tsan_ignore_thread_begin(); }
  Seen(const Seen&) = delete;
};

inline void give_order(const void* token) { __tsan_release(const_cast<void*>(token)); }
inline void take_order(const void* token) { __tsan_acquire(const_cast<void*>(token)); }

// A fiber as a thread. It is made anew after many starts, since each leaves a little behind on its list of calls.
class SeenThread {
 public:
  void start() {
    if (starts_++ % most_starts == 0) {
      end();
      context_ = __tsan_create_fiber(0);
    }
  }
  // On the fiber, first of all.
  void begin() {
    if (!ignoring_) __tsan_ignore_thread_begin();
    ignoring_ = true;
  }
  void* context() const { return context_; }
  ~SeenThread() { end(); }

 private:
  static constexpr unsigned most_starts = 1000;

  void end() {
    if (context_ == nullptr) return;
    if (ignoring_) {  // a thread may not end so
      void* const me = __tsan_get_current_fiber();
      __tsan_switch_to_fiber(context_, __tsan_switch_to_fiber_no_sync);
      __tsan_ignore_thread_end();
      __tsan_switch_to_fiber(me, __tsan_switch_to_fiber_no_sync);
    }
    __tsan_destroy_fiber(context_);
    context_ = nullptr;
    ignoring_ = false;
  }

  void* context_ = nullptr;
  unsigned starts_ = 0;
  bool ignoring_ = false;
};
inline void* this_context() { return __tsan_get_current_fiber(); }
HKV_NOT_SEEN inline void go_to(void* context) {
  __tsan_switch_to_fiber(context, __tsan_switch_to_fiber_no_sync);
}

#else

struct Seen {
  Seen() {}
  ~Seen() {}
};
inline void give_order(const void*) {}
inline void take_order(const void*) {}
struct SeenThread {
  void start() {}
  void begin() {}
  void* context() const { return nullptr; }
};
inline void* this_context() { return nullptr; }
inline void go_to(void*) {}

#endif

}  // namespace hkv::simt
