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

// Cuts [0, count) into stretches of `stretch` and calls body(from, to), or body(from, to, thread), for each, on up to
// `threads` threads; `thread` is below `threads`, and no two at work have the same.
template <class Body>
void share_out(std::int64_t count, std::int64_t stretch, int threads, Body& body) noexcept {
  constexpr bool numbered = std::is_invocable_v<Body&, std::int64_t, std::int64_t, int>;
  static_assert(numbered || std::is_invocable_v<Body&, std::int64_t, std::int64_t>);
  struct Work {
    Body& body;
    std::int64_t count, stretch;
    Atom<std::int64_t> next;
    Atom<int> begun;

    void call(std::int64_t from, std::int64_t to, [[maybe_unused]] int thread) {
      if constexpr (numbered) {
        body(from, to, thread);
      } else {
        body(from, to);
      }
    }
  } work{body, count, stretch, Atom<std::int64_t>(0), Atom<int>(0)};
  if (threads <= 1 || count <= stretch) return work.call(0, count, 0);
  run_on_threads(
      threads,
      [](void* context) {
        auto& mine = *static_cast<Work*>(context);
        const int thread = mine.begun.fetch_add(1);
        for (;;) {
          const std::int64_t from = mine.next.fetch_add(mine.stretch);
          if (from >= mine.count) return;
          mine.call(from, from + mine.stretch < mine.count ? from + mine.stretch : mine.count, thread);
        }
      },
      &work);
}

}  // namespace hkv
