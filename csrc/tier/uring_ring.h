// SPDX-License-Identifier: Apache-2.0
// One io_uring: its two rings in memory shared with the kernel, and the three system calls.
//
// Thread safety: one thread at a time, but `set_buffer`. The kernel is the other side of the rings: indices are volatile, and a fence
// stands between an index and the entries that it hands over.
#pragma once
#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "tier/uring_abi.h"

namespace hkv {

class UringRing {
 public:
  UringRing() = default;
  ~UringRing();
  UringRing(const UringRing&) = delete;
  UringRing& operator=(const UringRing&) = delete;

  // Effect: makes a ring of at least so many entries and shows that it can do all that is asked of it.
  // Returns: 0, or -errno: EPERM (forbidden), ENOSYS (no such call), EOPNOTSUPP (a kernel that lacks an operation).
  int open(std::uint32_t entries);
  // Whether `enter` can be told for how long to wait (Linux 5.11).
  bool timed() const { return timed_; }
  int descriptor() const { return descriptor_; }
  // Whether pieces of one fixed buffer go as one request (Linux 6.15).
  bool fixes_pieces() const { return fixes_pieces_; }

  // Effect: a table of so many fixed buffers, all empty. Returns: 0 or -errno (EINVAL: older than Linux 5.19).
  int make_table(std::uint32_t entries);
  // Effect: the buffer at a place of the table; of no bytes: none. The kernel finds its pages and keeps them, until no
  // request is under way in it and the place has another. On any thread, beside requests. Returns: 0 or -errno.
  int set_buffer(std::uint32_t place, const iovec& buffer) const;

  // A cleared entry, submitted by the next `enter`. Requires: fewer than `entries` are waiting for that.
  uring::Submission& next();
  // The oldest completion into `out`, if there is one.
  bool take(uring::Completion& out);
  // Effect: submits what `next` gave out; then, where `wait`, waits for a completion or until `at_most` is over (not
  // at all looked at unless timed()). Returns: 0, or -errno: ETIME, EINTR, or why not everything could be submitted
  // (EAGAIN, EBUSY: later).
  int enter(bool wait, std::chrono::nanoseconds at_most);
  bool all_submitted() const { return pending_ == 0; }

 private:
  int map(const uring::Parameters& parameters);
  int prove();

  int descriptor_ = -1;
  bool timed_ = false, fixes_pieces_ = false;
  void* rings_ = nullptr;
  std::size_t rings_bytes_ = 0;
  uring::Submission* submissions_ = nullptr;
  std::size_t submissions_bytes_ = 0;
  volatile std::uint32_t *submission_head_ = nullptr, *submission_tail_ = nullptr;
  volatile std::uint32_t *completion_head_ = nullptr, *completion_tail_ = nullptr;
  const uring::Completion* completions_ = nullptr;
  std::uint32_t submission_mask_ = 0, completion_mask_ = 0;
  std::uint32_t pending_ = 0;  // given out by `next`, not yet taken by the kernel
};

// Longer than any wait: no bound, and no arithmetic on it.
constexpr bool unbounded(std::chrono::nanoseconds at_most) { return at_most > std::chrono::hours(24 * 365); }

}  // namespace hkv
