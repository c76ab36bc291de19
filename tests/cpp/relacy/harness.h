// SPDX-License-Identifier: Apache-2.0
// What every model-checked program shares: the core's sources over Relacy, and one line per search.
//
// A program is a file with suites (rl::test_suite) and a main that hands them to `search`. It ends with 1 if a
// suite failed. HKV_RELACY_HISTORY=1 prints the failing execution, HKV_RELACY_SUITE=name runs one suite,
// HKV_RELACY_FIRST=1 ends at the first failure.
#pragma once
#include "base/check.h"
#include "relacy/reduced.h"
#undef HKV_CHECK
#define HKV_CHECK(condition) RL_ASSERT(condition)

#include "base/types.h"

namespace hkv::relacy {

enum class Search { Reduced, Full, Random };
inline bool failed = false;  // some suite was

// A plain variable (page bytes): Relacy reports a race on it.
template <class T>
class Plain {
 public:
  Plain() : name_(atoms_made++) { value_($) = T{}; }
  T get() { return announce(name_, false), T(value_($)); }
  void set(T value) { announce(name_, true), value_($) = value; }

 private:
  rl::var<T> value_;
  unsigned name_;
};

template <class Suite, class Scheduler>
rl::test_result_e run(rl::test_params& params) {
  rl::ostringstream state;
  rl::test_result_e result = rl::run_test<Suite, Scheduler>(params, state, false);
  if (result != rl::test_result_success && std::getenv("HKV_RELACY_HISTORY") != nullptr) {
    rl::ostringstream again;
    params.initial_state = state.str();
    params.collect_history = true;
    rl::run_test<Suite, Scheduler>(params, again, true);
  }
  return result;
}

// Runs one suite. Returns: whether no execution failed.
template <class Suite>
bool search(const char* name, Search how = Search::Reduced, unsigned long random_runs = 200000) {
  if (const char* only = std::getenv("HKV_RELACY_SUITE"); only != nullptr && std::string(only) != name)
    return true;
  if (failed && std::getenv("HKV_RELACY_FIRST") != nullptr) return false;
  constexpr rl::thread_id_t threads = Suite::params::thread_count;
  rl::test_params params;
  std::ostringstream progress;
  params.progress_stream = &progress;
  params.iteration_count = how == Search::Random ? random_runs : ~0ul >> 1;
  params.execution_depth_limit = 4000;
  shared_atoms.reset();
  redundant_runs = restarts = 0;
  const auto started = std::chrono::steady_clock::now();
  rl::test_result_e result;
  if (how == Search::Reduced) {
    result = run<Suite, ReducedScheduler<threads>>(params);
  } else if (how == Search::Full) {
    params.search_type = rl::sched_full;
    result = run<Suite, rl::full_search_scheduler<threads>>(params);
  } else {
    params.search_type = rl::sched_random;
    result = run<Suite, rl::random_scheduler<threads>>(params);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  const char* kind = how == Search::Reduced ? "full search, reduced"
                     : how == Search::Full  ? "full search"
                                            : "random";
  std::printf("%-28s %-7s %9lu executions (%s, %lu of them redundant), %.1f s%s%s\n", name,
              result == rl::test_result_success ? "ok" : "FAILED",
              static_cast<unsigned long>(params.stop_iteration), kind, redundant_runs, seconds,
              result == rl::test_result_success ? "" : ": ",
              result == rl::test_result_success ? "" : rl::test_result_str(result));
  std::fflush(stdout);
  failed |= result != rl::test_result_success;
  return result == rl::test_result_success;
}

}  // namespace hkv::relacy
