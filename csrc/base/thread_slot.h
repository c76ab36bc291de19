// SPDX-License-Identifier: Apache-2.0
// A small number for the calling thread, so that threads can keep what is theirs on lines of their own.
//
// All numbers but the last belong to one thread at a time; threads that find none left share the last one.
//
// Thread safety: any thread. Getting a number, once in a thread's life, and giving it back at its end take a lock;
// everything else is wait-free.
// Invariant: what the owner of a number wrote is there for the next owner. Why: the number goes from hand to hand
// under the lock.
#pragma once
#include <array>
#include <cstddef>
#include <mutex>

#include "base/atomic.h"

namespace hkv {

inline constexpr std::size_t thread_slots = 8;
inline constexpr std::size_t shared_thread_slot = thread_slots - 1;

#if defined(HKV_RELACY)
// The checker's threads are fibres of one.
inline std::size_t thread_slot() { return shared_thread_slot; }
inline bool owns_thread_slot() { return false; }
#elif defined(HKV_SCHEDULE)
// And so are the scheduler's, which knows them apart.
inline std::size_t thread_slot() { return schedule::thread(); }
inline bool owns_thread_slot() { return false; }
#else
namespace thread_slot_detail {

struct Registry {
  std::mutex mutex;
  std::array<bool, shared_thread_slot> taken{};
};
inline constinit Registry registry;

// Trivial, so that it can be read while a thread's other variables are being destroyed.
inline thread_local constinit std::size_t mine = thread_slots;  // thread_slots: not asked yet

struct Holder {
  Holder() {
    const std::lock_guard guard(registry.mutex);
    mine = 0;
    while (mine < shared_thread_slot && registry.taken[mine]) ++mine;
    if (mine < shared_thread_slot) registry.taken[mine] = true;
  }
  ~Holder() {
    const std::lock_guard guard(registry.mutex);
    if (mine < shared_thread_slot) registry.taken[mine] = false;
    mine = shared_thread_slot;
  }
};

inline std::size_t ask() {
  thread_local const Holder holder;
  return mine;
}

}  // namespace thread_slot_detail

inline std::size_t thread_slot() {
  const std::size_t mine = thread_slot_detail::mine;
  return mine < thread_slots ? mine : thread_slot_detail::ask();
}
// Whether no other thread has the calling thread's number.
inline bool owns_thread_slot() { return thread_slot() != shared_thread_slot; }
#endif

// Adds to a value that lies at the calling thread's number: without a locked instruction where that is its own.
// Value: Atom or Hint. Progress: wait-free.
template <class Value, class T>
void add_at_thread_slot(Value& value, T by, bool own = owns_thread_slot()) {
  if (own) {
    value.store(value.load() + by);
  } else {
    value.fetch_add(by);
  }
}

}  // namespace hkv
