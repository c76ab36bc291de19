// SPDX-License-Identifier: Apache-2.0
// The circuit breaker: who does not answer is left alone for a while, then tried with one operation.
//
// Closed: everything goes. After `after` failures one after another it opens: everything is refused. When its time is
// over one operation goes as a trial, the rest is refused until that one is known: an answer closes the breaker, a
// failure opens it for twice as long. Failures are Unavailable and Timeout; whatever else an engine says is an answer.
//
// Thread safety: none; the time is given. Invariants:
//  1. At most one trial at a time: `trial_` is set where one is given out, and only its own outcome clears it.
//  2. A result of an operation that was let through before the breaker opened moves nothing: only in Closed do results
//     of operations that are no trial count.
#pragma once
#include <chrono>
#include <cstdint>

namespace hkv {

class Breaker {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Admission : std::uint8_t { Go, Trial, Refuse };

  // `after` 0: never opens. Requires: 0 < first <= most.
  Breaker(std::uint32_t after, std::chrono::nanoseconds first, std::chrono::nanoseconds most)
      : after_(after), first_(first), most_(most), open_for_(first) {}

  // Effect: of an open breaker whose time is over, the caller's operation becomes the trial.
  Admission admit(Clock::time_point now) {
    if (closed_) return Admission::Go;
    if (trial_ || now - opened_at_ < open_for_) return Admission::Refuse;
    trial_ = true;
    return Admission::Trial;
  }

  // Returns: whether it opened by this.
  bool failed(bool trial, Clock::time_point now) {
    if (trial) {
      open_for_ = open_for_ > most_ / 2 ? most_ : 2 * open_for_;
    } else if (!closed_ || after_ == 0 || ++in_a_row_ < after_) {
      return false;
    }
    closed_ = trial_ = false;
    opened_at_ = now;
    in_a_row_ = 0;
    return true;
  }

  void answered(bool trial) {
    in_a_row_ = 0;
    if (!trial) return;
    closed_ = true;
    trial_ = false;
    open_for_ = first_;
  }

  // The operation never reached the engine, so that it tells nothing of it.
  void withdrawn(bool trial) {
    if (trial) trial_ = false;
  }

  bool open() const { return !closed_; }

 private:
  std::uint32_t after_;
  std::chrono::nanoseconds first_, most_, open_for_;
  Clock::time_point opened_at_{};
  std::uint32_t in_a_row_ = 0;
  bool closed_ = true;
  bool trial_ = false;
};

}  // namespace hkv
