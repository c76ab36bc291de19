// SPDX-License-Identifier: Apache-2.0
// Hand-out counts of pages in memory that others own: read around a copy of a page's bytes, raised by who hands it out.
//
// Thread safety: any number of readers and writers. Counts are plain 64-bit words, so that numpy, an engine or a
// device can hold them. Bytes of the page themselves are not ordered by the language: a reader that races a new owner
// may read a mixture, and learns from the second read that it did.
//
// Invariants:
// 1. Who reads the expected count before a copy sees all bytes that were written before the page was handed out: the
//    release of (30) and the acquire of (29).
// 2. Who finds the same count again has read no byte of a later owner: owners write after they raised the count, loads
//    are not moved before earlier reads (reads_before_loads), and a raise comes before the writes that follow it
//    (raises_before_writes).
#pragma once
#include <cstdint>

#include "base/atomic.h"

namespace hkv {

using HandoutWord = Atom<std::uint64_t>;
static_assert(sizeof(HandoutWord) == sizeof(std::uint64_t) && alignof(HandoutWord) == alignof(std::uint64_t));

// The count before a copy. Requires: `count` aligned to 8. Progress: wait-free.
inline std::uint64_t handout_count(const std::uint64_t* count) noexcept {
  // (29) acquire-load synchronizes-with (30)
  return reinterpret_cast<const HandoutWord*>(count)->load(at(29, acquire));
}

// The count after a copy: no byte of the copy is read after it. Progress: wait-free.
inline std::uint64_t handout_count_after(const std::uint64_t* count) noexcept {
  reads_before_loads();
  return handout_count(count);
}

// Raises the count of a page that gets a new owner, before that owner writes. Progress: wait-free.
inline void raise_handout_count(std::uint64_t* count) noexcept {
  // (30) release-RMW synchronizes-with (29)
  reinterpret_cast<HandoutWord*>(count)->fetch_add(1, at(30, release));
  raises_before_writes();
}

}  // namespace hkv
