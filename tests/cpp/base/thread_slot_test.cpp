// SPDX-License-Identifier: Apache-2.0
#include "base/thread_slot.h"

#include <barrier>
#include <set>
#include <thread>
#include <vector>

#include "base/counter.h"
#include "testing.h"

namespace hkv {

HKV_TEST("every number but the last belongs to one thread, and is given again when that thread ends") {
  constexpr std::size_t threads = thread_slots + 4;
  for (int round = 0; round < 3; ++round) {
    std::vector<std::size_t> slots(threads);
    std::vector<char> owned(threads);
    std::barrier all_alive(static_cast<std::ptrdiff_t>(threads));
    std::vector<std::thread> running;
    for (std::size_t i = 0; i < threads; ++i) {
      running.emplace_back([&, i] {
        slots[i] = thread_slot();
        owned[i] = owns_thread_slot();
        all_alive.arrive_and_wait();
        EXPECT_EQ(thread_slot(), slots[i]);
      });
    }
    for (std::thread& thread : running) thread.join();
    std::set<std::size_t> alone;
    std::size_t sharing = 0;
    for (std::size_t i = 0; i < threads; ++i) {
      EXPECT(slots[i] < thread_slots);
      EXPECT_EQ(owned[i] != 0, slots[i] != shared_thread_slot);
      if (owned[i] != 0) {
        EXPECT(alone.insert(slots[i]).second);
      } else {
        ++sharing;
      }
    }
    // The thread that runs the tests may have one of the seven.
    EXPECT(alone.size() + 1 >= shared_thread_slot);
    EXPECT_EQ(alone.size() + sharing, threads);
  }
}

HKV_TEST("counts of threads that come and go, and of threads that share a number, are exact") {
  Counters<2> counters;
  constexpr int threads = 20, rounds = 6, adds = 20'000;
  for (int round = 0; round < rounds; ++round) {
    std::vector<std::thread> running;
    for (int i = 0; i < threads; ++i) {
      running.emplace_back([&] {
        for (int n = 0; n < adds; ++n) counters.add(n % 2, n % 4 == 3 ? -1 : 1);
      });
    }
    for (std::thread& thread : running) thread.join();
  }
  EXPECT_EQ(counters.read(0), std::int64_t{threads} * rounds * adds / 2);
  EXPECT_EQ(counters.read(1), 0);
}

}  // namespace hkv
