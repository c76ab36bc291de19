// SPDX-License-Identifier: Apache-2.0
// The other side of the seam in atomic.h: the same atomic type and orders over Relacy's model of memory.
//
// Thread safety: Relacy runs one thread at a time and decides who is next and which value a load may see.
// Every access is announced before it is made, so that a scheduler can tell which of two next steps depend
// on each other (tests/cpp/relacy/reduced.h).
#pragma once
// Everything that names new, delete or a memory order comes before Relacy, which redefines them as macros.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <bitset>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <new>
#include <optional>
#include <queue>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <relacy/relacy.hpp>
#undef new
#undef delete
#undef malloc
#undef calloc
#undef realloc
#undef free
#undef assert
#undef errno
#undef memory_order_relaxed
#undef memory_order_consume
#undef memory_order_acquire
#undef memory_order_release
#undef memory_order_acq_rel
#undef memory_order_seq_cst

// Relacy replaces new and delete but not the sized forms, which must go with them.
inline void operator delete(void* p, std::size_t) noexcept { operator delete(p); }
inline void operator delete[](void* p, std::size_t) noexcept { operator delete[](p); }

namespace hkv {

namespace relacy {
struct Access {
  unsigned atom = 0;
  bool writes = false;
};
inline constexpr unsigned threads_max = 4;
inline Access next_access[threads_max];  // what each thread is about to do
inline unsigned atoms_made = 0;          // in one execution; the order of construction names an atom

inline void announce(unsigned atom, bool writes) { next_access[rl::thread_index()] = {atom, writes}; }
}  // namespace relacy

using Order = rl::memory_order;
inline constexpr Order relaxed = rl::mo_relaxed;
inline constexpr Order acquire = rl::mo_acquire;
inline constexpr Order release = rl::mo_release;
inline constexpr Order acq_rel = rl::mo_acq_rel;
inline constexpr Order seq_cst = rl::mo_seq_cst;

namespace relacy {
// HKV_WEAKEN="12 acquire" in the environment weakens site 12, so that one build serves every site.
struct Weakening {
  int site = 0;
  Order to = relaxed;
  Weakening() {
    const char* text = std::getenv("HKV_WEAKEN");
    char order[16] = "";
    if (text == nullptr || std::sscanf(text, "%d %15s", &site, order) != 2) return;
    const std::string name(order);
    to = name == "acquire" ? acquire : name == "release" ? release : name == "acq_rel" ? acq_rel : relaxed;
  }
};
inline const Weakening weakening;
}  // namespace relacy

inline Order at(int site, Order order) {
  return site == relacy::weakening.site ? relacy::weakening.to : order;
}

template <class T>
class Atom {
 public:
  Atom() : Atom(T{}) {}
  explicit Atom(T value) : name_(relacy::atoms_made++) { value_.store(value, relaxed, $); }
  T load(Order order = relaxed) const { return relacy::announce(name_, false), value_.load(order, $); }
  void store(T value, Order order = relaxed) { relacy::announce(name_, true), value_.store(value, order, $); }
  T fetch_add(T by, Order order = relaxed) {
    return relacy::announce(name_, true), value_.fetch_add(by, order, $);
  }
  T fetch_sub(T by, Order order = relaxed) {
    return relacy::announce(name_, true), value_.fetch_sub(by, order, $);
  }
  T fetch_or(T bits, Order order = relaxed) {
    return relacy::announce(name_, true), value_.fetch_or(bits, order, $);
  }
  T fetch_and(T bits, Order order = relaxed) {
    return relacy::announce(name_, true), value_.fetch_and(bits, order, $);
  }
  T exchange(T value, Order order = relaxed) {
    return relacy::announce(name_, true), value_.exchange(value, order, $);
  }
  bool compare_exchange(T& expected, T desired, Order order = relaxed) {
    relacy::announce(name_, true);
    return value_.compare_exchange_strong(expected, desired, order, $, relaxed, $);
  }

 private:
  rl::atomic<T> value_;
  unsigned name_;
};

}  // namespace hkv
