// SPDX-License-Identifier: Apache-2.0
// A small number for the calling thread, so that threads can keep what is theirs on lines of their own.
//
// Thread safety: wait-free. Two threads may share a number: what lies at it is shared memory all the same.
#pragma once
#include <cstddef>
#ifndef HKV_RELACY
#include <functional>
#include <thread>
#endif

namespace hkv {

inline constexpr std::size_t thread_slots = 8;

inline std::size_t thread_slot() {
#ifdef HKV_RELACY
  return 0;  // the checker's threads are fibres of one
#else
  thread_local const std::size_t mine =
      std::hash<std::thread::id>{}(std::this_thread::get_id()) % thread_slots;
  return mine;
#endif
}

}  // namespace hkv
