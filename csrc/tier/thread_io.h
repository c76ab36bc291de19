// SPDX-License-Identifier: Apache-2.0
// Io by a pool of threads that make blocking calls: everywhere, and where each call shall be seen (strace, sanitizers).
//
// Thread safety: as Io. Everything shared is under `mutex_`; a request is a worker's from the queue to the list of
// those done, and its result is written before it is put there.
#pragma once
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "tier/directory.h"

namespace hkv {

class ThreadIo final : public DirectoryIo {
 public:
  // Throws TierError: "path" as DirectoryIo, "engine" where not one thread can be had. Requires: depth >= 1.
  ThreadIo(const std::string& path, bool direct, std::size_t depth);
  // Waits for what is under way.
  ~ThreadIo() override;

  void submit(IoRequest* request) override;
  std::size_t depth() const override { return depth_; }
  std::size_t wait(std::span<IoRequest*> out, std::chrono::nanoseconds at_most) override;
  void wake() override;
  const char* name() const override { return "threads"; }

 private:
  struct Work {
    IoRequest* request;
    int descriptor;
  };
  void run();  // a worker
  bool add_worker();

  static constexpr std::size_t most_threads = 32;

  const std::size_t depth_;
  std::size_t in_flight_ = 0;         // the user's thread alone
  std::vector<std::thread> workers_;  // the user's thread alone
  std::mutex mutex_;
  std::condition_variable work_there_, something_done_;
  std::deque<Work> queue_;
  std::deque<IoRequest*> done_;
  std::size_t idle_ = 0;
  bool woken_ = false, stopping_ = false;
};

}  // namespace hkv
