// SPDX-License-Identifier: Apache-2.0
// Threads that help with a large copy: made when first needed, kept, asleep in between.
//
// Thread safety: run() from any thread. Who finds the helpers busy with another's work does its own alone, so nobody
// waits for a stranger. After a fork the child has none and makes its own.
#pragma once
#include <cstdint>
#include <type_traits>

#include "base/atomic.h"

namespace hkv {

inline constexpr int most_threads = 64;

// Calls body(context) on up to `threads` threads, the caller's among them, and returns when all have returned.
// Requires: 1 <= threads <= most_threads; the body throws nothing and shares its work out by itself.
// Progress: blocks on the helpers that take part; allocates where it makes one.
void run_on_threads(int threads, void (*body)(void*), void* context) noexcept;

// Cuts [0, count) into stretches of `stretch` and calls body(from, to) for each, on up to `threads` threads.
template <class Body>
void share_out(std::int64_t count, std::int64_t stretch, int threads, Body& body) noexcept {
  static_assert(std::is_invocable_v<Body&, std::int64_t, std::int64_t>);
  if (threads <= 1 || count <= stretch) {
    body(std::int64_t{0}, count);
    return;
  }
  struct Work {
    Body& body;
    std::int64_t count, stretch;
    Atom<std::int64_t> next;
  } work{body, count, stretch, Atom<std::int64_t>(0)};
  run_on_threads(
      threads,
      [](void* context) {
        auto& mine = *static_cast<Work*>(context);
        for (;;) {
          const std::int64_t from = mine.next.fetch_add(mine.stretch);
          if (from >= mine.count) return;
          mine.body(from, from + mine.stretch < mine.count ? from + mine.stretch : mine.count);
        }
      },
      &work);
}

}  // namespace hkv
