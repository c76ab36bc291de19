// SPDX-License-Identifier: Apache-2.0
// A small number for the calling thread, so that threads can keep what is theirs on lines of their own.
//
// Thread safety: wait-free. Numbers go round: two threads may share one, so what lies at it is shared memory
// all the same.
#pragma once
#include <cstddef>

#include "base/atomic.h"

namespace hkv {

inline constexpr std::size_t thread_slots = 8;

inline std::size_t thread_slot() {
#if defined(HKV_RELACY)
  return 0;  // the checker's threads are fibres of one
#elif defined(HKV_SCHEDULE)
  return schedule::thread();  // and so are the scheduler's, which knows them apart
#else
  static Atom<std::uint32_t> next;
  thread_local const std::size_t mine = next.fetch_add(1) % thread_slots;
  return mine;
#endif
}

}  // namespace hkv
