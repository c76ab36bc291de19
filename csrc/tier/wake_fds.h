// SPDX-License-Identifier: Apache-2.0
// The descriptor that a tier's reports wake: an epoll over an eventfd (there is a report) and a timerfd (the earliest
// deadline passed), so that one descriptor in the caller's own loop serves both, and a frozen engine delays neither.
//
// Thread safety: none; `fd` alone may be polled by anyone meanwhile. No call blocks.
#pragma once
#include <poll.h>

#include <chrono>
#include <span>

namespace hkv {

class WakeFds {
 public:
  using Clock = std::chrono::steady_clock;

  // Throws Error(TierError, "event_fd") where the process may open no more files.
  WakeFds();
  ~WakeFds();
  WakeFds(const WakeFds&) = delete;
  WakeFds& operator=(const WakeFds&) = delete;

  // Readable while it is raised, and once the time that it is armed for has come.
  int fd() const { return epoll_; }
  void raise();
  void lower();
  // Arms it for `at` unless it is armed for an earlier time: who comes then finds nothing and calls `rearm`. So most
  // operations come and go without a system call.
  void arm_by(Clock::time_point at) {
    if (at < armed_) arm(at);
  }
  // Effect: where the time that it was armed for has come, arms it for `at`.
  void rearm(Clock::time_point now, Clock::time_point at) {
    if (armed_ <= now) arm(at);
  }
  // Waits until it is readable or the time is over. Returns: whether it is.
  static bool wait(int fd, std::chrono::nanoseconds at_most);
  // The same of any of several. A signal ends it early.
  static bool wait(std::span<pollfd> fds, std::chrono::nanoseconds at_most);

 private:
  void arm(Clock::time_point at);
  void close();

  int event_ = -1, timer_ = -1, epoll_ = -1;
  bool raised_ = false;
  Clock::time_point armed_ = Clock::time_point::max();  // max: not armed
};

}  // namespace hkv
