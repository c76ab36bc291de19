// SPDX-License-Identifier: Apache-2.0
// The one seam between the core and the memory model: the atomic type and the orders.
//
// The product uses std::atomic. With HKV_RELACY the same sources run under the Relacy model checker, with
// HKV_SCHEDULE under a deterministic scheduler that decides before every access who goes next.
//
// Every order other than relaxed is spelled `at(n, order)`. The number n names the site: its comment
// "(n) ... synchronizes-with (m)" says with which sites it pairs, a test checks that the graph is
// mutual, and a build with -DHKV_WEAKEN_SITE=n weakens exactly that site, so that a test can show
// that the order is needed. Relaxed operations are bare.
#pragma once
#if defined(HKV_RELACY)
#include "relacy_atomic.h"
#elif defined(HKV_SCHEDULE)
#include "base/scheduled_atomic.h"
#else
#include <atomic>
#endif
#include <cstddef>
#include <cstdint>

#ifndef HKV_WEAKEN_SITE
#define HKV_WEAKEN_SITE 0
#endif
#ifndef HKV_WEAKEN_TO
#define HKV_WEAKEN_TO relaxed
#endif

namespace hkv {

#if !defined(HKV_RELACY) && !defined(HKV_SCHEDULE)
using Order = std::memory_order;
inline constexpr Order relaxed = std::memory_order_relaxed;
inline constexpr Order acquire = std::memory_order_acquire;
inline constexpr Order release = std::memory_order_release;
inline constexpr Order acq_rel = std::memory_order_acq_rel;
inline constexpr Order seq_cst = std::memory_order_seq_cst;

// An atomic of at most 8 bytes. Progress: every operation is wait-free on the hardware supported.
template <class T>
class Atom {
 public:
  Atom() noexcept : value_{} {}
  explicit Atom(T value) noexcept : value_(value) {}
  T load(Order order = relaxed) const noexcept { return value_.load(order); }
  void store(T value, Order order = relaxed) noexcept { value_.store(value, order); }
  T fetch_add(T by, Order order = relaxed) noexcept { return value_.fetch_add(by, order); }
  T fetch_sub(T by, Order order = relaxed) noexcept { return value_.fetch_sub(by, order); }
  T fetch_or(T bits, Order order = relaxed) noexcept { return value_.fetch_or(bits, order); }
  T fetch_and(T bits, Order order = relaxed) noexcept { return value_.fetch_and(bits, order); }
  T exchange(T value, Order order = relaxed) noexcept { return value_.exchange(value, order); }
  // Failure is relaxed: a lost CAS is always followed by a fresh decision, which loads for itself.
  bool compare_exchange(T& expected, T desired, Order order = relaxed) noexcept {
    return value_.compare_exchange_strong(expected, desired, order, relaxed);
  }

 private:
  std::atomic<T> value_;
};

// The order of site `site`; a weakening build replaces it for that one site. (Under Relacy: a weakened run.)
constexpr Order at(int site, Order order) noexcept { return site == HKV_WEAKEN_SITE ? HKV_WEAKEN_TO : order; }
#endif

// Two fences for bytes that are no atomics, around a count that tells whether they changed (base/handouts.h): reads of
// bytes stay before later loads, and a store or update stays before later writes of bytes. On x86-64 the hardware keeps
// both orders and only the compiler must be told, which sanitizers can see through.
#if defined(__x86_64__)
inline void reads_before_loads() noexcept { asm volatile("" ::: "memory"); }
inline void raises_before_writes() noexcept { asm volatile("" ::: "memory"); }
#else
inline void reads_before_loads() noexcept { __atomic_thread_fence(__ATOMIC_ACQUIRE); }
inline void raises_before_writes() noexcept { __atomic_thread_fence(__ATOMIC_RELEASE); }
#endif

inline constexpr std::size_t cache_line_bytes = 64;

}  // namespace hkv
