// SPDX-License-Identifier: Apache-2.0
// A deterministic scheduler: runs the threads of a small program one step at a time, in every order that matters.
//
// The core is compiled with HKV_SCHEDULE, so that every access of an atom asks `schedule::before` for its turn. One
// thread runs at a time; before each step the invariants of the program are checked, and then it is decided whose step
// is next: by a depth-first search of all orders (search.h), at random from a seed, or as a replay says. A failure
// prints the program, its schedule and the command that repeats it.
//
// Thread safety: none; all on one operating-system thread. Include it once in a program. HKV_PROGRAM=name runs one
// program only; HKV_REPLAY="0x3 1x7 0x2" runs it once in that order (thread x steps; - for none) and prints every step;
// HKV_SEED=n draws random schedules from n on.
#pragma once
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <concepts>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/atomic.h"
#include "sim/fiber.h"
#include "sim/search.h"
#include "testing.h"

namespace hkv::sim {

// Threads that work on something, and what must hold. Made anew for each execution.
class Program {
 public:
  virtual ~Program() = default;
  virtual int threads() const { return 2; }
  virtual void before() {}  // alone, before the threads start
  virtual void thread(int self) = 0;
  virtual void check() {}  // before the first step and after each that writes: what holds at all times
  virtual void after() {}  // alone, when all threads are through
};

class Scheduler;
inline Scheduler* running = nullptr;  // the one whose program runs

class Scheduler {
 public:
  static constexpr std::size_t steps_max = 4000;
  enum class How : std::uint8_t { Search, Random, Replay };

  // One execution. Returns: whether it kept all that was asked of it.
  bool run(Program& program, How how) {
    program_ = &program;
    how_ = how;
    schedule_.clear();
    fault_.clear();
    locked_.clear();
    done_ = started_ = 0;
    wrote_ = true;  // what before() did
    search_.begin();
    running = this;
    program.before();
    live_ = true;
    for (current_ = 0; current_ < program.threads(); ++current_) {
      fibers_[static_cast<std::size_t>(current_)].start(&enter);
      visit(current_);  // up to its first step
    }
    started_ = 1;
    if (fault_.empty() && done_ != everybody()) {
      current_ = next_thread();
      if (fault_.empty()) visit(current_);
    }
    live_ = false;
    if (fault_.empty()) program.after();
    running = nullptr;
    return fault_.empty();
  }

  // The first thing that did not hold ends the execution, from a thread or from `check`.
  void fail(const std::string& what) {
    if (!fault_.empty()) return;
    fault_ = what;
    if (live_) leave();
  }

  void before(const void* atom, schedule::Kind kind, bool writes, const std::source_location& where) {
    step({atom, writes, false}, kind, where);
  }
  void lock(const void* mutex) {
    step({mutex, true, true}, schedule::Kind::Exchange, std::source_location::current());
    locked_.push_back({mutex, current_});
    after(0, 1);
  }
  void unlock(const void* mutex) {
    step({mutex, true, false}, schedule::Kind::Exchange, std::source_location::current());
    std::erase_if(locked_, [mutex](const Locked& held) { return held.mutex == mutex; });
    after(1, 0);
  }
  void yield() {
    yields_ = true;
    before(this, schedule::Kind::Plain, false, std::source_location::current());
  }
  void after(std::uint64_t found, std::uint64_t left) const {
    if (!loud_) return;
    static constexpr const char* names[] = {"load", "store",    "add", "sub",  "or",
                                            "and",  "exchange", "CAS", "plain"};
    const Step& step = step_[static_cast<std::size_t>(current_)];
    const char* file = std::strrchr(step.where.file_name(), '/');
    std::printf("%5zu  thread %d  %-8s %#18llx -> %#18llx  %s:%u\n", schedule_.size(), current_,
                names[static_cast<int>(step.kind)], static_cast<unsigned long long>(found),
                static_cast<unsigned long long>(left), file == nullptr ? "?" : file + 1, step.where.line());
  }

  bool live() const { return live_; }
  int current() const { return live_ ? current_ : 0; }
  const std::string& fault() const { return fault_; }
  Search& search() { return search_; }
  void search_anew(bool every_state, int preemptions) { search_ = Search(every_state, preemptions); }
  void draw_from(std::uint64_t seed) {
    random_.seed(seed);
    // Few switches find what needs a long undisturbed stretch; many find what needs a meeting.
    switch_one_in_ = unsigned{2} << random_() % 6;
  }
  void replay(std::vector<std::uint8_t> steps) { wanted_ = std::move(steps); }
  void print_steps(bool on) { loud_ = on; }

  // The steps so far as "thread x steps" pairs.
  std::string schedule() const {
    std::string text;
    for (std::size_t i = 0; i < schedule_.size();) {
      std::size_t end = i;
      while (end < schedule_.size() && schedule_[end] == schedule_[i]) ++end;
      text += (text.empty() ? "" : " ") + std::to_string(schedule_[i]) + "x" + std::to_string(end - i);
      i = end;
    }
    return text.empty() ? "-" : text;
  }

 private:
  struct Step {
    schedule::Kind kind{};
    std::source_location where;
  };
  struct Locked {
    const void* mutex;
    int by;
  };

  // Announces the step, waits for its turn, and notes that it is made.
  void step(const Access& access, schedule::Kind kind, const std::source_location& where) {
    const auto self = static_cast<std::size_t>(current_);
    next_[self] = access;
    step_[self] = {kind, where};
    if (!started_) {
      switch_fiber(fibers_[self], home_);
    } else if (const int next = next_thread(); next != current_) {
      current_ = next;
      switch_fiber(fibers_[self], fibers_[static_cast<std::size_t>(next)]);
    }
    current_ = static_cast<int>(self);
    if (how_ == How::Search) search_.made(current_, next_);
    schedule_.push_back(static_cast<std::uint8_t>(current_));
    wrote_ |= access.writes;
    if (schedule_.size() > steps_max) fail("no end after so many steps");
  }
  bool waits(int thread) const {
    const Access& next = next_[static_cast<std::size_t>(thread)];
    return next.locks && std::any_of(locked_.begin(), locked_.end(),
                                     [&](const Locked& held) { return held.mutex == next.atom; });
  }

  ThreadMask everybody() const { return static_cast<ThreadMask>((1 << program_->threads()) - 1); }

  static void enter() {
    Scheduler& s = *running;
    const int self = s.current_;
    try {
      s.program_->thread(self);
    } catch (const std::exception& e) {
      s.fail(std::string("thread ") + std::to_string(self) + " threw: " + e.what());
    }
    s.finish(self);
  }
  void finish(int self) {
    done_ = static_cast<ThreadMask>(done_ | bit(self));
    Fiber& fiber = fibers_[static_cast<std::size_t>(self)];
    if (!started_ || done_ == everybody()) switch_fiber(fiber, home_);
    current_ = next_thread();
    switch_fiber(fiber, fibers_[static_cast<std::size_t>(current_)]);
  }
  void visit(int thread) {
    at_home_ = false;
    switch_fiber(home_, fibers_[static_cast<std::size_t>(thread)]);
    at_home_ = true;
  }
  // Abandons all fibers; the next execution starts them anew.
  void leave() {
    live_ = false;
    if (at_home_) return;
    Fiber nobody;
    switch_fiber(started_ ? nobody : fibers_[static_cast<std::size_t>(current_)], home_);
  }

  int next_thread() {
    if (wrote_) {
      wrote_ = false;
      live_ = false;  // what the check reads is no step
      program_->check();
      live_ = true;
      if (!fault_.empty()) {
        leave();
        return current_;
      }
    }
    auto enabled = static_cast<ThreadMask>(everybody() & ~done_);
    for (int t = 0; !locked_.empty() && t < program_->threads(); ++t) {
      if (waits(t)) enabled = static_cast<ThreadMask>(enabled & ~bit(t));
    }
    if (enabled == 0) {
      fail("every thread waits for a mutex");
      return current_;
    }
    if (how_ == How::Search) {
      const int chosen = search_.choose(enabled, current_);
      if (!(enabled & bit(chosen))) fail("the same steps led elsewhere than before: the program keeps state");
      return chosen;
    }
    if (how_ == How::Replay && schedule_.size() < wanted_.size()) {
      const int wanted = wanted_[schedule_.size()];
      if (enabled & bit(wanted)) return wanted;
      std::fprintf(stderr, "the replay names thread %d, which has no step here\n", wanted);
      std::exit(2);
    }
    if (yields_ && how_ == How::Random && enabled != bit(current_)) enabled &= ~bit(current_);
    yields_ = false;
    const bool stay = enabled & bit(current_);
    if (stay && (how_ == How::Replay || random_() % switch_one_in_ != 0)) return current_;
    int nth =
        how_ == How::Replay ? 0 : static_cast<int>(random_() % static_cast<unsigned>(std::popcount(enabled)));
    for (int t = 0;; ++t) {
      if ((enabled & bit(t)) && nth-- == 0) return t;
    }
  }

  Program* program_ = nullptr;
  How how_ = How::Search;
  bool at_home_ = true, live_ = false, wrote_ = false, loud_ = false, yields_ = false;
  ThreadMask done_ = 0, started_ = 0;
  int current_ = 0;
  Fiber home_;
  std::array<Fiber, threads_max> fibers_;
  std::array<Access, threads_max> next_;
  std::array<Step, threads_max> step_;
  std::vector<Locked> locked_;
  std::vector<std::uint8_t> schedule_, wanted_;
  std::string fault_;
  Search search_;
  std::mt19937_64 random_;
  unsigned switch_one_in_ = 2;
};

}  // namespace hkv::sim

namespace hkv::schedule {

void before(const void* atom, Kind kind, bool writes, const std::source_location& where) {
  if (sim::running != nullptr && sim::running->live()) sim::running->before(atom, kind, writes, where);
}
void after(std::uint64_t found, std::uint64_t left) {
  if (sim::running != nullptr && sim::running->live()) sim::running->after(found, left);
}
void yield() {
  if (sim::running != nullptr && sim::running->live()) sim::running->yield();
}
std::size_t thread() {
  return sim::running == nullptr ? 0 : static_cast<std::size_t>(sim::running->current());
}

}  // namespace hkv::schedule

// A std::mutex of the core blocks a scheduled thread, not the one thread that all of them run on.
extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  if (hkv::sim::running != nullptr && hkv::sim::running->live()) hkv::sim::running->lock(mutex);
  return 0;
}
extern "C" int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  if (hkv::sim::running != nullptr && hkv::sim::running->live()) hkv::sim::running->unlock(mutex);
  return 0;
}

// What a program must find; may be used in thread, check and after. In `check` and `after` the call goes on.
#define HKV_MUST(condition)                                                                                \
  ((condition) ? (void)0                                                                                   \
               : ::hkv::sim::running->fail(std::string(__FILE__) + ":" + std::to_string(__LINE__) + ": " + \
                                           #condition))

namespace hkv::sim {

// Plain memory whose accesses are steps, such as the bytes of a page.
class Plain {
 public:
  std::uint64_t get(const std::source_location& where = std::source_location::current()) const {
    schedule::before(this, schedule::Kind::Plain, false, where);
    schedule::after(value_, value_);
    return value_;
  }
  void set(std::uint64_t value, const std::source_location& where = std::source_location::current()) {
    schedule::before(this, schedule::Kind::Plain, true, where);
    schedule::after(value_, value);
    value_ = value;
  }
  // Outside steps: for checks alone.
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0;
};

struct Result {
  bool ok = true, complete = false;
  unsigned long executions = 0, redundant = 0;
  std::string fault, schedule;
};

inline const char* environment(const char* name) { return std::getenv(name); }
inline bool soak() { return environment("HYBRIDKV_SOAK") != nullptr; }
// The first seed of random schedules: the same on every machine, but for a soak.
inline std::uint64_t first_seed() {
  if (const char* given = environment("HKV_SEED")) return std::strtoull(given, nullptr, 10);
  return soak() ? std::random_device{}() : 20240229;
}

namespace detail {

inline Scheduler& scheduler() {
  static Scheduler one;
  return one;
}
inline const char* program_name = "";
inline std::uint64_t seed_now = 0;  // 0: not at random

inline void report(const std::string& fault, const std::string& steps) {
  std::printf("     FAILED %s: %s\n", program_name, fault.c_str());
  if (seed_now != 0) std::printf("     seed %llu\n", static_cast<unsigned long long>(seed_now));
  std::printf("     repeat: HKV_PROGRAM='%s' HKV_REPLAY='%s' %s\n", program_name, steps.c_str(),
              program_invocation_name);
  std::fflush(stdout);
}
// A broken invariant of the core aborts: tell in which schedule.
inline void on_abort(int signal) {
  static bool again = false;
  if (!again && running != nullptr) {
    again = true;
    report(std::string("the core ended with signal ") + std::to_string(signal), scheduler().schedule());
  }
  _exit(3);
}
inline void catch_aborts() {
  for (const int signal : {SIGABRT, SIGSEGV, SIGFPE, SIGILL}) ::signal(signal, on_abort);
}

inline std::vector<std::uint8_t> steps_of(const char* text) {
  std::vector<std::uint8_t> steps;
  int thread = 0, count = 0, used = 0;
  for (; std::sscanf(text, " %dx%d%n", &thread, &count, &used) == 2; text += used)
    steps.insert(steps.end(), static_cast<std::size_t>(count), static_cast<std::uint8_t>(thread));
  return steps;
}

template <class Maker>
bool once(Maker& make, Scheduler::How how, Result& result) {
  const std::unique_ptr<Program> program = make();
  ++result.executions;
  if (scheduler().run(*program, how)) return true;
  result.ok = false;
  result.fault = scheduler().fault();
  result.schedule = scheduler().schedule();
  return false;
}

}  // namespace detail

// What a search sees to: every outcome (`check` sees the states on the way), or every state of memory as well.
enum class Every : std::uint8_t { Outcome, State };

// Runs every execution up to the order of independent steps, at most `budget` of them, up to the first failure.
template <class Maker>
Result explored(Maker make, unsigned long budget, Every every = Every::Outcome,
                int preemptions = Search::unbounded) {
  Result result;
  Scheduler& scheduler = detail::scheduler();
  scheduler.search_anew(every == Every::State, preemptions);
  detail::catch_aborts();
  detail::seed_now = 0;
  while (result.executions < budget && detail::once(make, Scheduler::How::Search, result)) {
    if (!scheduler.search().end()) {
      result.complete = true;
      break;
    }
  }
  result.redundant = scheduler.search().redundant_runs();
  return result;
}

// Runs `runs` random schedules from `seed` on, up to the first failure.
template <class Maker>
Result sampled(Maker make, unsigned long runs, std::uint64_t seed) {
  Result result;
  detail::catch_aborts();
  for (unsigned long i = 0; i < runs; ++i) {
    detail::seed_now = seed + i;
    detail::scheduler().draw_from(seed + i);
    if (!detail::once(make, Scheduler::How::Random, result)) break;
  }
  return result;
}

template <class Maker>
Result replayed(Maker make, const char* steps) {
  Result result;
  detail::catch_aborts();
  detail::seed_now = 0;
  detail::scheduler().replay(detail::steps_of(steps));
  detail::once(make, Scheduler::How::Replay, result);
  return result;
}

// ---- in tests ----------------------------------------------------------------------------------

// Whether the program is wanted; where a replay is, runs it and says no.
template <class Maker>
bool wanted(const char* name, Maker& make) {
  detail::program_name = name;
  const char* only = environment("HKV_PROGRAM");
  if (only != nullptr && std::string(only) != name) return false;
  const char* const steps = only == nullptr ? nullptr : environment("HKV_REPLAY");
  if (steps == nullptr) return true;
  detail::scheduler().print_steps(true);
  const Result result = replayed(make, steps);
  detail::scheduler().print_steps(false);
  std::printf("     %s: %s\n", name, result.ok ? "nothing failed" : result.fault.c_str());
  EXPECT(result.ok);
  return false;
}

// Searches a program whole: not getting to the end of the tree is a failure too. `total` counts executions.
template <class Maker>
void search_all(const char* name, Maker make, Every every = Every::Outcome, unsigned long* total = nullptr) {
  constexpr unsigned long budget = 3000000;
  if (!wanted(name, make)) return;
  const auto started = std::chrono::steady_clock::now();
  const Result result = explored(make, budget, every);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  if (!result.ok) detail::report(result.fault, result.schedule);
  EXPECT(result.ok);
  if (result.ok && !result.complete) std::printf("     %s: the tree is not through\n", name);
  EXPECT(!result.ok || result.complete);
  if (total != nullptr) *total += result.executions;
  if (total == nullptr || !result.ok) {
    std::printf("     %s: %lu executions (%lu redundant), %s, %.2f s\n", name, result.executions,
                result.redundant, every == Every::State ? "every state" : "every outcome", seconds);
  }
  std::fflush(stdout);
}
template <std::derived_from<Program> P>
void search_all(const char* name, Every every = Every::Outcome) {
  search_all(name, [] { return std::make_unique<P>(); }, every);
}

// Searches whole those executions of a program in which threads are interrupted at most so often.
template <std::derived_from<Program> P>
void search_interrupted(const char* name, int preemptions) {
  const auto make = [] { return std::make_unique<P>(); };
  if (!wanted(name, make)) return;
  const Result result = explored(make, 1000000, Every::Outcome, preemptions);
  if (!result.ok) detail::report(result.fault, result.schedule);
  EXPECT(result.complete);
  std::printf("     %s: %lu executions, at most %d preemptions\n", name, result.executions, preemptions);
}

// Runs random schedules of a program too large to be searched whole; a soak runs 100 times as many.
template <class Maker>
void sample(const char* name, Maker make, unsigned long runs) {
  if (!wanted(name, make)) return;
  const std::uint64_t seed = first_seed();
  const Result result = sampled(make, soak() ? runs * 100 : runs, seed);
  if (!result.ok) detail::report(result.fault, result.schedule);
  EXPECT(result.ok);
  std::printf("     %s: %lu random schedules from seed %llu\n", name, result.executions,
              static_cast<unsigned long long>(seed));
}
template <std::derived_from<Program> P>
void sample(const char* name, unsigned long runs) {
  sample(name, [] { return std::make_unique<P>(); }, runs);
}

}  // namespace hkv::sim
