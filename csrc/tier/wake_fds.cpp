// SPDX-License-Identifier: Apache-2.0
#include "tier/wake_fds.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/check.h"

namespace hkv {
namespace {

timespec timespec_of(std::chrono::nanoseconds time) {
  constexpr std::int64_t second = 1'000'000'000;
  return {static_cast<time_t>(time.count() / second), static_cast<long>(time.count() % second)};
}

}  // namespace

WakeFds::WakeFds() {
  event_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  timer_ = ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);  // the clock of steady_clock
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  bool made = event_ >= 0 && timer_ >= 0 && epoll_ >= 0;
  for (const int fd : {event_, timer_}) {
    epoll_event interest{};
    interest.events = EPOLLIN;
    made = made && ::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &interest) == 0;
  }
  if (made) return;
  const int reason = errno;
  close();
  throw Error(ErrorCode::TierError, "event_fd", "three file descriptors", std::strerror(reason));
}

WakeFds::~WakeFds() { close(); }

void WakeFds::close() {
  for (const int fd : {epoll_, timer_, event_}) {
    if (fd >= 0) ::close(fd);
  }
}

void WakeFds::raise() {
  if (raised_) return;
  const std::uint64_t one = 1;
  HKV_CHECK(::write(event_, &one, sizeof one) == sizeof one);
  raised_ = true;
}

void WakeFds::lower() {
  if (!raised_) return;
  std::uint64_t count;
  HKV_CHECK(::read(event_, &count, sizeof count) == sizeof count);
  raised_ = false;
}

void WakeFds::arm(Clock::time_point at) {
  itimerspec time{};  // zeros disarm it
  if (at != Clock::time_point::max()) {
    time.it_value = timespec_of(std::max(at.time_since_epoch(), std::chrono::nanoseconds(1)));
  }
  HKV_CHECK(::timerfd_settime(timer_, TFD_TIMER_ABSTIME, &time, nullptr) == 0);
  armed_ = at;
}

bool WakeFds::wait(int fd, std::chrono::nanoseconds at_most) {
  pollfd interest{fd, POLLIN, 0};
  return wait({&interest, 1}, at_most);
}

bool WakeFds::wait(std::span<pollfd> fds, std::chrono::nanoseconds at_most) {
  const timespec time = timespec_of(std::max(at_most, std::chrono::nanoseconds(0)));
  return ::ppoll(fds.data(), fds.size(), &time, nullptr) > 0;
}

}  // namespace hkv
