// SPDX-License-Identifier: Apache-2.0
// A value that many threads write and that decides nothing: a count, an age, a guess at a neighbour.
//
// Thread safety: every operation on any thread, wait-free, without order. Under the model checker and
// the scheduler it is a plain value: their threads are fibres of one, and what no step depends on needs no step.
#pragma once
#include "base/atomic.h"

namespace hkv {

#if defined(HKV_RELACY) || defined(HKV_SCHEDULE)
template <class T>
class Hint {
 public:
  Hint() = default;
  explicit Hint(T value) : value_(value) {}
  T load() const { return value_; }
  void store(T value) { value_ = value; }
  T fetch_add(T by) {
    const T before = value_;
    value_ = static_cast<T>(before + by);
    return before;
  }

 private:
  T value_{};
};
#else
template <class T>
using Hint = Atom<T>;
#endif

}  // namespace hkv
