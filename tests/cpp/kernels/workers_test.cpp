// SPDX-License-Identifier: Apache-2.0
#include "kernels/workers.h"

#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "testing.h"

namespace hkv {
namespace {

// Counts each index of [0, n) once more. Returns: whether every index was met exactly once.
bool each_once(std::int64_t n, std::int64_t stretch, int threads) {
  std::vector<Atom<int>> met(static_cast<std::size_t>(n));
  const auto body = [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t i = from; i < to; ++i) met[static_cast<std::size_t>(i)].fetch_add(1);
  };
  share_out(n, stretch, threads, body);
  for (const auto& count : met) {
    if (count.load() != 1) return false;
  }
  return true;
}

}  // namespace

HKV_TEST("every stretch is done once, with any number of threads") {
  for (const int threads : {1, 2, 3, 8, 64}) {
    for (const std::int64_t n : {0, 1, 7, 1000}) EXPECT(each_once(n, 3, threads));
  }
}

HKV_TEST("calls at the same time do not wait for each other's helpers, and each is whole") {
  std::vector<std::thread> callers;
  Atom<int> wrong(0);
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) wrong.fetch_add(!each_once(100, 3, 3));
    });
  }
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(wrong.load(), 0);
}

#if !defined(__SANITIZE_THREAD__)  // which follows no threads into a fork
HKV_TEST("a forked child has helpers of its own") {
  EXPECT(each_once(100, 3, 3));
  const pid_t child = fork();
  if (child == 0) _exit(each_once(100, 3, 3) ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
#endif

}  // namespace hkv
