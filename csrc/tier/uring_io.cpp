// SPDX-License-Identifier: Apache-2.0
#include "tier/uring_io.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/check.h"

namespace hkv {
namespace {

// What a completion is of: a request's address, whose lowest bit says that it was kept from being tried without
// waiting; or the read of the eventfd.
constexpr std::uint64_t of_wake = 2, forced_bit = 1;
static_assert(alignof(IoRequest) >= 4);

[[noreturn]] void refuse(int error) {
  throw Error{ErrorCode::TierError, "engine", "io_uring", std::strerror(error)};
}

}  // namespace

UringIo::UringIo(const std::string& path, bool direct, std::size_t depth, Waiting waiting,
                 std::uint32_t buffers)
    : DirectoryIo(path, direct), depth_(depth) {
  constexpr std::size_t most = 4096;
  if (depth > most) throw Error{ErrorCode::TierError, "depth", "at most 4096", std::to_string(depth)};
  if (const int result = ring_.open(static_cast<std::uint32_t>(depth) + 1); result < 0) refuse(-result);
  arenas_.emplace(ring_, buffers);
  in_ring_ = ring_.timed() && waiting == Waiting::Best;
  wake_ = ::eventfd(0, EFD_CLOEXEC);
  if (wake_ < 0) refuse(errno);
}

UringIo::~UringIo() {
  IoRequest* done[16];
  while (in_flight_ != 0) wait(done, std::chrono::nanoseconds::max());
  if (armed_) {  // its target is a member
    wake();
    bool woken = false;
    while (!woken) {
      take(done, woken);
      if (!woken) wait_in_ring(std::chrono::nanoseconds::max());
    }
  }
  ::close(wake_);
}

void UringIo::prepare(IoRequest* request, bool forced) {
  uring::Submission& entry = ring_.next();
  entry.file = descriptor(request->file);
  entry.offset = request->offset;
  entry.user = reinterpret_cast<std::uint64_t>(request) | (forced ? forced_bit : 0);
  entry.flags = forced ? uring::submission_async : 0;
  switch (request->op) {
    case IoRequest::Op::Read:
    case IoRequest::Op::Write: prepare_move(*request, entry); break;
    case IoRequest::Op::Sync:
      entry.opcode = uring::Fsync;
      entry.offset = 0;  // with 0 bytes: all of the file
      entry.op_flags = uring::fsync_data;
      break;
    case IoRequest::Op::Allocate:
      entry.opcode = uring::Fallocate;
      entry.address = request->bytes;
      break;
  }
}

void UringIo::prepare_move(IoRequest& request, uring::Submission& entry) const {
  const bool read = request.op == IoRequest::Op::Read, one = request.pieces.size() == 1;
  const iovec* pieces = request.pieces.data();
  const UringArenas::Run run = arenas_->find(request.pieces);
  request.fixed = run.pieces == request.pieces.size();
  if (request.fixed) {
    entry.opcode =
        one ? (read ? uring::ReadFixed : uring::WriteFixed) : (read ? uring::ReadvFixed : uring::WritevFixed);
    entry.buffer = static_cast<std::uint16_t>(run.place);
  } else {
    entry.opcode = one ? (read ? uring::Read : uring::Write) : (read ? uring::Readv : uring::Writev);
  }
  entry.address = reinterpret_cast<std::uint64_t>(one ? pieces->iov_base : pieces);
  constexpr std::size_t most = 0x7ffff000;  // of one call, as read and write have it
  entry.length = static_cast<std::uint32_t>(one ? std::min(pieces->iov_len, most) : request.pieces.size());
}

void UringIo::submit(IoRequest* request) {
  HKV_CHECK(in_flight_ < depth_);
  ++in_flight_;
  prepare(request, false);
  ring_.enter(false, {});  // what the kernel does not take now, the next wait hands over
}

void UringIo::arm() {
  if (armed_) return;
  uring::Submission& entry = ring_.next();
  entry.opcode = uring::Read;
  entry.file = wake_;
  entry.offset = ~std::uint64_t{0};
  entry.address = reinterpret_cast<std::uint64_t>(&wakes_);
  entry.length = sizeof wakes_;
  entry.user = of_wake;
  armed_ = true;
}

// Returns whether a request is done: one that was refused for now, or interrupted, goes again.
bool UringIo::finish(const uring::Completion& completion, IoRequest*& out) {
  auto* request = reinterpret_cast<IoRequest*>(completion.user & ~forced_bit);
  const bool forced = (completion.user & forced_bit) != 0;
  std::int64_t result = completion.result;
  if ((result == -EAGAIN || result == -EINTR) && !forced) {
    prepare(request, true);
    ring_.enter(false, {});
    return false;
  }
  if (result == -EOPNOTSUPP && request->op == IoRequest::Op::Allocate) {
    result = extend(descriptor(request->file), request->offset + request->bytes);
  }
  request->result = result;
  --in_flight_;
  out = request;
  return true;
}

std::size_t UringIo::take(std::span<IoRequest*> out, bool& woken) {
  std::size_t count = 0;
  uring::Completion completion{};
  while (count < out.size() && ring_.take(completion)) {
    if (completion.user == of_wake) {
      armed_ = false;
      woken = true;
    } else if (finish(completion, out[count])) {
      ++count;
    }
  }
  return count;
}

void UringIo::wait_in_ring(std::chrono::nanoseconds at_most) {
  const int result = ring_.enter(true, at_most);
  if (result == -EAGAIN || result == -EBUSY) {  // short of memory: nothing to wait for may have begun
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool UringIo::wait_by_poll(std::chrono::nanoseconds at_most) {
  if (!ring_.all_submitted()) {
    ring_.enter(false, {});
    if (!ring_.all_submitted())
      at_most = std::min<std::chrono::nanoseconds>(at_most, std::chrono::milliseconds(1));
  }
  pollfd files[] = {{ring_.descriptor(), POLLIN, 0}, {wake_, POLLIN, 0}};
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at_most);
  const timespec time{static_cast<time_t>(seconds.count()), static_cast<long>((at_most - seconds).count())};
  if (::ppoll(files, 2, unbounded(at_most) ? nullptr : &time, nullptr) <= 0) return false;
  if ((files[1].revents & POLLIN) == 0) return false;
  return ::read(wake_, &wakes_, sizeof wakes_) == sizeof wakes_;  // readable: does not wait
}

std::size_t UringIo::wait(std::span<IoRequest*> out, std::chrono::nanoseconds at_most) {
  const bool bounded = !unbounded(at_most);
  const Clock::time_point end = bounded ? Clock::now() + at_most : Clock::time_point::max();
  bool woken = false, over = false;
  for (;;) {
    if (in_ring_) arm();
    const std::size_t count = take(out, woken);
    if (woken) end_wake();
    if (count != 0 || woken || over) return count;
    const auto left = bounded ? std::max<std::chrono::nanoseconds>(end - Clock::now(), {}) : at_most;
    if (in_ring_) {
      wait_in_ring(left);
    } else {
      woken = wait_by_poll(left);
    }
    over = bounded && Clock::now() >= end;  // once more round, for what came in the last moment
  }
}

// From here on a wake is another one. What its caller did before is seen by whoever the wait returns to.
void UringIo::end_wake() {
  const std::lock_guard<std::mutex> lock(wake_mutex_);
  wake_pending_ = false;
}

void UringIo::wake() {
  const std::lock_guard<std::mutex> lock(wake_mutex_);
  if (wake_pending_) return;
  wake_pending_ = true;
  const std::uint64_t one = 1;
  while (::write(wake_, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

}  // namespace hkv
