// SPDX-License-Identifier: Apache-2.0
#include "block/id_pool.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <set>
#include <thread>

#include "testing.h"

namespace hkv {

HKV_TEST("every id is handed out once, then none, and again after it came back") {
  for (const std::uint32_t count : {2u, 63u, 64u, 65u, 200u}) {
    IdPool pool(count);
    std::set<std::uint32_t> taken;
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t id = pool.take();
      EXPECT(id < count);
      EXPECT(!pool.is_free(id));
      taken.insert(id);
      EXPECT_EQ(pool.free_count(), count - i - 1);
    }
    EXPECT_EQ(taken.size(), count);
    EXPECT_EQ(pool.take(), none_u32);
    pool.give_back(count - 1);
    pool.give_back(0);
    EXPECT_EQ(pool.free_count(), 2u);
    const std::set<std::uint32_t> again = {pool.take(), pool.take()}, want = {0, count - 1};
    EXPECT(again == want);
    EXPECT_EQ(pool.take(), none_u32);
    pool.reset();
    EXPECT_EQ(pool.free_count(), count);
    EXPECT(pool.is_free(count - 1));
  }
}

HKV_TEST("an id given back twice is a broken invariant") {
  const pid_t child = fork();
  if (child == 0) {
    std::fclose(stderr);
    IdPool pool(4);
    const std::uint32_t id = pool.take();
    pool.give_back(id);
    pool.give_back(id);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

HKV_TEST("many ids come at once, each once, and fewer only where no more are free") {
  for (const std::uint32_t count : {2u, 64u, 65u, 4096u, 5000u}) {
    IdPool pool(count);
    std::vector<std::uint32_t> out(64);
    std::set<std::uint32_t> taken;
    for (std::size_t n = 64; n == 64;) {
      n = pool.take_some(out);
      taken.insert(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(n));
      EXPECT_EQ(pool.free_count(), count - taken.size());
    }
    EXPECT_EQ(taken.size(), count);
    // A pool that is all but full: what came back is found over summary words that were cleared.
    const std::vector<std::uint32_t> some = {count - 1, 0, count / 2 == count - 1 ? 0 : count / 2};
    const std::set<std::uint32_t> few(some.begin(), some.end());
    for (const std::uint32_t id : few) pool.give_back(id);
    const std::size_t n = pool.take_some(out);
    EXPECT(std::set<std::uint32_t>(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(n)) == few);
    const std::vector<std::uint32_t> all(taken.begin(), taken.end());
    pool.give_back_some(all);
    EXPECT_EQ(pool.free_count(), count);
    for (std::uint32_t id = 0; id < count; ++id) EXPECT(pool.is_free(id));
  }
}

HKV_TEST("threads never hold one id at once, and the count never leaves its range") {
  constexpr std::uint32_t count = 70;
  IdPool pool(count);
  std::vector<std::atomic<int>> owners(count);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      std::uint32_t held[40];
      for (int round = 0; round < 1500; ++round) {
        int n = 0;
        if (round % 2 == 0) {
          n = static_cast<int>(pool.take_some(held));
        } else {
          while (n < 40 && (held[n] = pool.take()) != none_u32) ++n;
        }
        for (int i = 0; i < n; ++i) {
          if (owners[held[i]].fetch_add(1) != 0) ++wrong;
        }
        if (pool.free_count() > count) ++wrong;
        for (int i = 0; i < n; ++i) owners[held[i]].fetch_sub(1);
        if (round % 3 == 0) {
          pool.give_back_some({held, static_cast<std::size_t>(n)});
        } else {
          for (int i = 0; i < n; ++i) pool.give_back(held[i]);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(pool.free_count(), count);
}

}  // namespace hkv
