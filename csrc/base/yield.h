// SPDX-License-Identifier: Apache-2.0
// Lets another thread go first, where one waits for what that thread is about to do.
//
// Thread safety: any thread.
#pragma once
#include "base/atomic.h"

#if !defined(HKV_RELACY) && !defined(HKV_SCHEDULE)
#include <thread>
#endif

namespace hkv {

inline void yield() {
#if defined(HKV_SCHEDULE)
  schedule::yield();
#elif !defined(HKV_RELACY)
  std::this_thread::yield();
#endif
}

}  // namespace hkv
