// SPDX-License-Identifier: Apache-2.0
#include "kernels/workers.h"

#include <pthread.h>

#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

namespace hkv {
namespace {

class Workers {
 public:
  void run(int threads, void (*body)(void*), void* context) noexcept {
    const std::unique_lock<std::mutex> mine(busy_, std::try_to_lock);
    if (!mine.owns_lock() || threads <= 1) return body(context);
    const int helpers = at_least(threads - 1);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      body_ = body;
      context_ = context;
      wanted_ = running_ = helpers;
      ++call_;
    }
    start_.notify_all();
    body(context);
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return running_ == 0; });
  }

 private:
  // Makes helpers up to `helpers`. Returns: how many there are, fewer where the system gives no more.
  int at_least(int helpers) noexcept {
    try {
      for (; made_ < helpers; ++made_) std::thread(&Workers::work, this, made_, call_).detach();
    } catch (const std::system_error&) {
      // Fewer helpers are slower and nothing else.
    } catch (const std::bad_alloc&) {
    }
    return made_ < helpers ? made_ : helpers;
  }

  void work(int number, std::uint64_t seen) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      start_.wait(lock, [&] { return call_ != seen; });
      seen = call_;
      if (number >= wanted_) continue;
      lock.unlock();
      body_(context_);
      lock.lock();
      if (--running_ == 0) done_.notify_one();
    }
  }

  std::mutex busy_;   // held for a call; never waited for
  std::mutex mutex_;  // guards what follows
  std::condition_variable start_, done_;
  void (*body_)(void*) = nullptr;
  void* context_ = nullptr;
  std::uint64_t call_ = 0;
  int wanted_ = 0, running_ = 0;
  int made_ = 0;  // under busy_
};

// Never destroyed: helpers may sleep in it until the process ends. Behind a forked child lie the parent's.
Workers*& workers() noexcept {
  static Workers* current = [] {
    pthread_atfork(nullptr, nullptr, [] { workers() = new (std::nothrow) Workers; });
    return new (std::nothrow) Workers;
  }();
  return current;
}

}  // namespace

void run_on_threads(int threads, void (*body)(void*), void* context) noexcept {
  Workers* const helpers = workers();
  if (helpers == nullptr) return body(context);
  helpers->run(threads, body, context);
}

}  // namespace hkv
