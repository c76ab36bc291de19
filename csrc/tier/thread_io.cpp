// SPDX-License-Identifier: Apache-2.0
#include "tier/thread_io.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/check.h"

namespace hkv {
namespace {

std::int64_t perform(const IoRequest& request, int fd) {
  const auto offset = static_cast<off_t>(request.offset);
  const auto count = static_cast<int>(request.pieces.size());
  for (;;) {
    ssize_t result = -1;
    switch (request.op) {
      case IoRequest::Op::Read: result = ::preadv(fd, request.pieces.data(), count, offset); break;
      case IoRequest::Op::Write: result = ::pwritev(fd, request.pieces.data(), count, offset); break;
      case IoRequest::Op::Sync: result = ::fdatasync(fd); break;
      case IoRequest::Op::Allocate:
        result = ::fallocate(fd, 0, offset, static_cast<off_t>(request.bytes));
        break;
    }
    if (result >= 0) return result;
    if (errno != EINTR) return -errno;
  }
}

}  // namespace

ThreadIo::ThreadIo(const std::string& path, bool direct, std::size_t depth)
    : DirectoryIo(path, direct), depth_(depth) {
  if (!add_worker()) throw Error{ErrorCode::TierError, "engine", "a thread", "none could be started"};
}

ThreadIo::~ThreadIo() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  work_there_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

bool ThreadIo::add_worker() {
  // Signals are for the threads of the program.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool added = true;
  try {
    workers_.emplace_back([this] { run(); });
  } catch (const std::system_error&) {
    added = false;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return added;
}

void ThreadIo::submit(IoRequest* request) {
  HKV_CHECK(in_flight_ < depth_);
  ++in_flight_;
  bool alone = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back({request, descriptor(request->file)});
    alone = queue_.size() > idle_;
  }
  // Where no more can be had, those that are there do all of it.
  if (alone && workers_.size() < std::min(depth_, most_threads)) add_worker();
  work_there_.notify_one();
}

void ThreadIo::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    ++idle_;
    work_there_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    --idle_;
    if (queue_.empty()) return;
    const Work work = queue_.front();
    queue_.pop_front();
    lock.unlock();
    IoRequest& request = *work.request;
    std::int64_t result = perform(request, work.descriptor);
    if (result == -EOPNOTSUPP && request.op == IoRequest::Op::Allocate) {
      result = extend(work.descriptor, request.offset + request.bytes);
    }
    request.result = result;
    lock.lock();
    done_.push_back(work.request);
    something_done_.notify_one();
  }
}

std::size_t ThreadIo::wait(std::span<IoRequest*> out, std::chrono::nanoseconds at_most) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto ready = [this] { return woken_ || !done_.empty(); };
  if (at_most > std::chrono::hours(24 * 365)) {  // where a point in time could not be told
    something_done_.wait(lock, ready);
  } else {
    something_done_.wait_for(lock, at_most, ready);
  }
  woken_ = false;
  const std::size_t count = std::min(out.size(), done_.size());
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = done_.front();
    done_.pop_front();
  }
  in_flight_ -= count;
  return count;
}

void ThreadIo::wake() {
  const std::lock_guard<std::mutex> lock(mutex_);
  woken_ = true;
  something_done_.notify_one();
}

}  // namespace hkv
