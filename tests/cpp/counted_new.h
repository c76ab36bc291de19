// SPDX-License-Identifier: Apache-2.0
// Counts calls of operator new, in the program that includes it once.
#pragma once
#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<long> allocations{0};

void* counted(std::size_t bytes, std::size_t alignment) {
  allocations.fetch_add(1);
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// Not inline: GCC would take free() for the wrong partner of operator new.
#define HKV_NOT_INLINE __attribute__((noinline))
HKV_NOT_INLINE void* operator new(std::size_t bytes) {
  return counted(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
HKV_NOT_INLINE void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
// The array and nothrow forms of the standard library call these two; so do the sized deletes.
HKV_NOT_INLINE void operator delete(void* memory) noexcept { std::free(memory); }
HKV_NOT_INLINE void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
HKV_NOT_INLINE void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
HKV_NOT_INLINE void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
