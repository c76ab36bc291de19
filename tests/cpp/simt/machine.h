// SPDX-License-Identifier: Apache-2.0
// The machine of the harness: blocks of threads that are fibers, their barriers and collectives, and what went wrong.
//
// A launch runs one block after another; within a block threads run in a given order until each waits or ends. The
// first fault ends the launch: fibers that have not ended are left where they are, so kernels may hold nothing that a
// destructor must free.
//
// Thread safety: none; one operating-system thread.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <source_location>
#include <string>
#include <vector>

#include "sim/fiber.h"
#include "simt/memory.h"
#include "simt/seen_by_tsan.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace hkv::simt {

using Place = std::source_location;

enum class Order { Forward, Reverse, Random };

enum class Fault {
  None,
  OutOfBounds,  // global memory that is not registered, or a store to what is only read
  SharedOutOfBounds,
  Misaligned,
  Race,
  UnsetShared,       // shared memory read before anybody wrote it
  DivergentBarrier,  // threads of a block at different barriers, or some of them gone
  DivergentWarp,     // the same of a warp's barriers and collectives
  LaneOutside,       // a shuffle from a lane that is none
  CopyInFlight,      // a thread ended before its copies
  BadCopy,           // asynchronous copies of other than 4, 8 or 16 bytes
};

struct Options {
  Order order = Order::Forward;
  std::uint64_t seed = 1;
  // Called before each load from global memory with how many came before it: a writer beside the kernel.
  std::function<void(std::uint64_t)> before_load;
};

// What a launch did.
struct Report {
  Fault fault = Fault::None;
  std::string what;  // place and thread of the fault
  std::uint64_t loads = 0, loaded_bytes = 0, stored_bytes = 0;
  std::uint64_t wide_loads = 0;  // of 16 bytes
};

struct AsyncCopy {
  std::function<void()> land;
};

struct Thread {
  enum class State { Ready, AtBarrier, AtWarp, Ended };
  sim::Fiber fiber;
  Actor actor{};
  State state = State::Ready;
  const char* operation = "";  // of the warp
  unsigned place = 0;          // line of the barrier or collective
  std::uint64_t deposit = 0;
  std::vector<AsyncCopy> copies;
  std::vector<std::size_t> commits;  // how many copies each group ends at
  // What AddressSanitizer puts locals on. It is kept for the next start, since making one is a dozen system calls, and
  // made anew after many ends, since a fiber that ends may leave a frame behind on it.
  void* fake_stack = nullptr;
  unsigned ends = 0;
  static constexpr unsigned most_ends = 500;
  SeenThread seen;
};

// Shared memory of the running block, one piece for each HKV_SHARED.
struct SharedPiece {
  const void* key;
  std::unique_ptr<std::byte[]> bytes;
  std::vector<Stamps> stamps;
  std::vector<bool> set;
};

class Machine {
 public:
  static Machine& instance() {
    static Machine machine;
    return machine;
  }

  Report launch(unsigned blocks, unsigned threads, const std::function<void()>& kernel,
                const Options& options) {
    report_ = {};
    kernel_ = &kernel;
    options_ = &options;
    blocks_ = blocks;
    random_.seed(options.seed);
    GlobalMemory::instance().forget_accesses();
    main_context_ = this_context();
    give_order(&start_);
    while (threads_.size() < threads) threads_.push_back(std::make_unique<Thread>());
    count_ = threads;
    tokens_.assign(std::size_t{blocks} * (1 + (threads + 31) / 32) * 16, 0);
    std::vector<unsigned> order(blocks);
    for (unsigned block = 0; block < blocks; ++block) order[block] = block;
    if (options.order == Order::Reverse) std::reverse(order.begin(), order.end());
    if (options.order == Order::Random) std::shuffle(order.begin(), order.end(), random_);
    for (const unsigned block : order) {
      run_block(block);
      take_order(&end_);  // by the host alone: what it does from here on, no later block is told
      if (report_.fault != Fault::None) break;
    }
    return report_;
  }

  Thread& self() { return *threads_[current_]; }
  unsigned blocks() const { return blocks_; }
  unsigned threads() const { return count_; }
  Report& report() { return report_; }
  const Options& options() const { return *options_; }

  // Ends the launch. `what` is no string: this fiber is left as it is, and would keep one for ever.
  [[noreturn]] void fail(Fault fault, std::size_t number, const char* what, const Place& place) {
    const Actor& actor = self().actor;
    report_.fault = fault;
    report_.what = std::to_string(number) + " " + what + " at line " + std::to_string(place.line()) + " of " +
                   place.file_name() + ", block " + std::to_string(actor.block) + ", thread " +
                   std::to_string(actor.thread);
    for (;;) leave(false);  // never resumed
  }

  void barrier(const Place& place) {
    const Actor& actor = self().actor;
    const char* const token = token_of(actor.block, 0, actor.barriers);
    give_order(token);
    wait(Thread::State::AtBarrier, "barrier", place);
    take_order(token);
  }
  void warp_barrier(const Place& place) {
    const Actor& actor = self().actor;
    const char* const token = token_of(actor.block, 1 + actor.thread / 32, actor.warp_barriers);
    give_order(token);
    meet("warp barrier", 0, place);
    take_order(token);
  }

  // Leaves `value` for the other lanes and returns when all have left theirs.
  void meet(const char* operation, std::uint64_t value, const Place& place) {
    self().deposit = value;
    wait(Thread::State::AtWarp, operation, place);
  }
  std::uint64_t deposit_of(unsigned lane, const Place& place) {
    const unsigned other = self().actor.thread / 32 * 32 + lane;
    if (lane >= 32 || other >= count_) fail(Fault::LaneOutside, lane, "is no lane", place);
    return met_[other];
  }

  SharedPiece& shared(const void* key, std::size_t bytes) {
    for (SharedPiece& piece : shared_) {
      if (piece.key == key) return piece;
    }
    shared_.push_back(
        {key, std::make_unique<std::byte[]>(bytes), std::vector<Stamps>(bytes), std::vector<bool>(bytes)});
    std::memset(shared_.back().bytes.get(), 0xff, bytes);  // a NaN in every format
    return shared_.back();
  }

 private:
  Machine() { shared_.reserve(64); }

  // Two tokens of a barrier, in turn: who runs ahead to the next one may not be told to those who leave this one.
  const char* token_of(unsigned block, unsigned of_block, std::uint32_t passed) {
    const std::size_t at = ((std::size_t{block} * (1 + (count_ + 31) / 32) + of_block) * 2 + passed % 2) * 8;
    return tokens_.data() + at;
  }

  HKV_NOT_SEEN static void enter() {
    Machine& machine = instance();
    machine.self().seen.begin();
    take_order(&machine.start_);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(machine.self().fake_stack, &machine.main_bottom_, &machine.main_size_);
#endif
    (*machine.kernel_)();
    if (!machine.self().copies.empty()) {
      machine.fail(Fault::CopyInFlight, machine.self().copies.size(), "copies in flight when a thread ends",
                   Place::current());
    }
    machine.self().state = Thread::State::Ended;
    machine.leave(true);
    std::abort();
  }

  HKV_NOT_SEEN void leave(bool ends) {
    Thread& thread = self();
#if defined(__SANITIZE_ADDRESS__)
    const bool anew = ends && ++thread.ends % Thread::most_ends == 0;
    __sanitizer_start_switch_fiber(anew ? nullptr : &thread.fake_stack, main_bottom_, main_size_);
    if (anew) thread.fake_stack = nullptr;
#else
    static_cast<void>(ends);
#endif
    give_order(&end_);
    go_to(main_context_);
    sim::switch_fiber(thread.fiber, main_);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(thread.fake_stack, &main_bottom_, &main_size_);
#endif
  }

  HKV_NOT_SEEN void resume(unsigned number) {
    current_ = number;
    Thread& thread = self();
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&main_fake_stack_, thread.fiber.stack.get(), sim::Fiber::stack_bytes);
#endif
    go_to(thread.seen.context());
    sim::switch_fiber(main_, thread.fiber);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(main_fake_stack_, nullptr, nullptr);
#endif
  }

  void wait(Thread::State state, const char* operation, const Place& place) {
    Thread& thread = self();
    thread.state = state;
    thread.operation = operation;
    thread.place = place.line();
    place_ = place;
    leave(false);
  }

  void start(unsigned block) {
    shared_.clear();
    for (unsigned number = 0; number < count_; ++number) {
      Thread& thread = *threads_[number];
#if defined(__SANITIZE_ADDRESS__)
      if (thread.fiber.stack)
        __asan_unpoison_memory_region(thread.fiber.stack.get(), sim::Fiber::stack_bytes);
      if (thread.state != Thread::State::Ended) thread.fake_stack = nullptr;  // left where it was
#endif
      thread.fiber.start(&enter);
      thread.seen.start();
      thread.actor = {block, number, 0, 0};
      thread.state = Thread::State::Ready;
      thread.copies.clear();
      thread.commits.clear();
    }
    met_.assign(count_, 0);
  }

  void run_block(unsigned block) {
    start(block);
    std::vector<unsigned> order(count_);
    for (unsigned number = 0; number < count_; ++number) order[number] = number;
    if (options_->order == Order::Reverse) std::reverse(order.begin(), order.end());
    for (;;) {
      if (options_->order == Order::Random) std::shuffle(order.begin(), order.end(), random_);
      for (const unsigned number : order) {
        if (threads_[number]->state != Thread::State::Ready) continue;
        resume(number);
        if (report_.fault != Fault::None) return;
      }
      if (all(0, count_, Thread::State::Ended)) return;
      if (!release_warps() && !release_block()) return;
    }
  }

  bool all(unsigned from, unsigned to, Thread::State state) const {
    for (unsigned number = from; number < to; ++number) {
      if (threads_[number]->state != state) return false;
    }
    return true;
  }
  bool together(unsigned from, unsigned to) const {
    for (unsigned number = from; number < to; ++number) {
      if (threads_[number]->place != threads_[from]->place ||
          std::strcmp(threads_[number]->operation, threads_[from]->operation) != 0) {
        return false;
      }
    }
    return true;
  }

  // Lets every complete warp go on. Returns: whether there was one.
  bool release_warps() {
    bool released = false;
    for (unsigned from = 0; from < count_; from += 32) {
      const unsigned to = std::min(from + 32, count_);
      if (!all(from, to, Thread::State::AtWarp) || !together(from, to)) continue;
      const bool orders = std::strcmp(threads_[from]->operation, "warp barrier") == 0;
      for (unsigned number = from; number < to; ++number) {
        met_[number] = threads_[number]->deposit;
        threads_[number]->state = Thread::State::Ready;
        if (orders) ++threads_[number]->actor.warp_barriers;
      }
      released = true;
    }
    return released;
  }

  // Called where no warp can go on: all threads are at one barrier, or somebody will never come.
  bool release_block() {
    if (!all(0, count_, Thread::State::AtBarrier) || !together(0, count_)) {
      const auto waits = [](const auto& thread) { return thread->state == Thread::State::AtWarp; };
      const auto last = threads_.begin() + count_;
      const auto at_warp = std::find_if(threads_.begin(), last, waits);
      report_.fault = at_warp != last ? Fault::DivergentWarp : Fault::DivergentBarrier;
      report_.what = "threads of block " + std::to_string(threads_[0]->actor.block) +
                     " do not come together at line " + std::to_string(place_.line()) + " of " +
                     place_.file_name();
      return false;
    }
    for (unsigned number = 0; number < count_; ++number) {
      ++threads_[number]->actor.barriers;
      threads_[number]->state = Thread::State::Ready;
    }
    return true;
  }

  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<std::uint64_t> met_;
  std::vector<SharedPiece> shared_;
  sim::Fiber main_;
  const std::function<void()>* kernel_ = nullptr;
  const Options* options_ = nullptr;
  Report report_;
  std::mt19937_64 random_;
  Place place_ = Place::current();
  unsigned blocks_ = 0, count_ = 0, current_ = 0;
  std::vector<char> tokens_;  // of barriers
  char start_ = 0, end_ = 0;  // tokens too
  void* main_context_ = nullptr;
#if defined(__SANITIZE_ADDRESS__)
  const void* main_bottom_ = nullptr;
  std::size_t main_size_ = 0;
  void* main_fake_stack_ = nullptr;
#endif
};

// Runs `kernel` for each thread of each block. Returns: what it did, up to the first fault.
inline Report launch(unsigned blocks, unsigned threads, const std::function<void()>& kernel,
                     const Options& options = {}) {
  return Machine::instance().launch(blocks, threads, kernel, options);
}

}  // namespace hkv::simt
