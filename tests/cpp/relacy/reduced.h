// SPDX-License-Identifier: Apache-2.0
// A Relacy scheduler that searches every execution of a program up to the order of independent steps.
//
// Relacy's own full search explores every interleaving, also those that differ only in the order of steps
// that cannot notice each other; two threads of 30 steps are then out of reach. Here:
//  1. Steps on an atom that in no execution is written by one thread and touched by another ("private")
//     are not scheduling points. Which atoms are shared is found on the way: when an access proves an atom
//     shared that was taken for private, the search starts over with that known. Sound: up to the first such
//     access every execution equals a searched one with the private steps moved next to their predecessors.
//  2. Sleep sets (Godefroid): a step that was explored first at a node is not explored again after steps
//     that are independent of it. Of each class of executions that differ only in the order of independent
//     steps one is run; runs that turn out redundant are finished without branching.
// Two steps depend on each other if they touch the same atom and one writes. What a load may see in Relacy
// depends on the order of accesses to its atom and on program order alone, so classes lose no value.
//  3. A load may see the value before the last one (as in Relacy's full search), but one thread sees an
//     outdated value of one atom at most twice in a row: stores become visible in finite time.
// tests/cpp/relacy/litmus.cpp compares the outcomes with those of Relacy's own full search.
#pragma once
#include "base/atomic.h"

namespace hkv::relacy {

inline constexpr unsigned atoms_max = 2048;
inline std::bitset<atoms_max> shared_atoms;  // kept between a failing search and its replay
inline unsigned long redundant_runs = 0;
inline unsigned long restarts = 0;

template <rl::thread_id_t thread_count>
class ReducedScheduler
    : public rl::tree_search_scheduler<ReducedScheduler<thread_count>,
                                       rl::tree_search_scheduler_thread_info<thread_count>, thread_count> {
 public:
  using Base = rl::tree_search_scheduler<ReducedScheduler<thread_count>,
                                         rl::tree_search_scheduler_thread_info<thread_count>, thread_count>;
  using thread_info_t = typename Base::thread_info_t;
  using shared_context_t = typename Base::shared_context_t;

  ReducedScheduler(rl::test_params& params, shared_context_t& context, rl::thread_id_t dynamic)
      : Base(params, context, dynamic) {}

  rl::thread_id_t iteration_begin_impl() {
    this->stree_depth_ = 0;
    atoms_made = 0;  // the suite is made next
    started_ = 1;
    sleeping_ = 0;
    redundant_ = restart_ = false;
    touched_.fill({});
    for (auto& of_thread : outdated_) of_thread.fill(0);
    return 0;
  }

  bool iteration_end_impl() {
    if (redundant_) ++redundant_runs;
    if (restart_) {
      ++restarts;
      this->stree_.clear();
      this->stree_depth_ = 0;
      return false;
    }
    return Base::iteration_end_impl();
  }

  double iteration_count_approx() { return 1; }

  rl::thread_id_t schedule_impl(rl::unpark_reason& reason, unsigned) {
    reason = rl::unpark_reason_normal;
    const rl::thread_id_t self = this->thread_->index_;
    const bool running = this->thread_->state_ == rl::thread_state_running;
    // Every thread first runs up to its first step, so that all next steps are known.
    for (rl::thread_id_t t = 0; t < thread_count; ++t) {
      if (!(started_ >> t & 1)) {
        started_ |= 1u << t;
        return t;
      }
    }
    if (running && !shared_atoms.test(next_access[self].atom)) return go(self);
    rl::thread_id_t choice[thread_count];
    unsigned n = 0;
    if (running && !(sleeping_ >> self & 1)) choice[n++] = self;
    rl::thread_id_t any = self;
    for (rl::thread_id_t i = 0; i < this->running_threads_count; ++i) {
      const rl::thread_id_t t = this->running_threads[i];
      if (!running) any = t;
      if (t != self && !(sleeping_ >> t & 1)) choice[n++] = t;
    }
    if (n > 1) std::sort(choice + (running && choice[0] == self ? 1 : 0), choice + n);
    if (n == 0) {
      redundant_ = true;
      return go(any);
    }
    // A private step of another thread goes first and alone: it cannot matter when.
    for (unsigned i = 0; i < n; ++i) {
      if (!shared_atoms.test(next_access[choice[i]].atom)) return go(choice[i]);
    }
    const unsigned index = n == 1 ? 0 : rand_impl(n, rl::sched_type_sched);
    for (unsigned i = 0; i < index; ++i) sleeping_ |= 1u << choice[i];
    return go(choice[index]);
  }

  unsigned rand_impl(unsigned limit, rl::sched_type type) {
    if (redundant_ || restart_ || type == rl::sched_type_mem_realloc) return 0;
    if (type == rl::sched_type_atomic_load) {
      const rl::thread_id_t self = this->thread_->index_;
      std::uint8_t& times = outdated_[self][next_access[self].atom];
      if (times >= outdated_max) return times = 0;
      const unsigned picked = Base::rand_impl(limit, type);
      times = static_cast<std::uint8_t>(picked == 0 ? 0 : times + 1);
      return picked;
    }
    return Base::rand_impl(limit, type);
  }

 private:
  static constexpr unsigned outdated_max = 2;
  struct Touch {
    std::uint8_t readers = 0, writers = 0;
  };

  rl::thread_id_t go(rl::thread_id_t t) {
    const Access step = next_access[t];
    Touch& touch = touched_[step.atom];
    std::uint8_t& mine = step.writes ? touch.writers : touch.readers;
    mine = static_cast<std::uint8_t>(mine | 1u << t);
    const unsigned both = touch.readers | touch.writers;
    if (touch.writers != 0 && (both & (both - 1)) != 0 && !shared_atoms.test(step.atom)) {
      shared_atoms.set(step.atom);
      restart_ = true;
    }
    unsigned awake = 0;
    for (rl::thread_id_t s = 0; s < thread_count; ++s) {
      const Access other = next_access[s];
      if (other.atom == step.atom && (other.writes || step.writes)) awake |= 1u << s;
    }
    sleeping_ &= ~awake;
    sleeping_ &= ~(1u << t);
    return t;
  }

  unsigned started_ = 0, sleeping_ = 0;
  bool redundant_ = false, restart_ = false;
  // Arrays, since nothing may be allocated while an execution runs.
  std::array<Touch, atoms_max> touched_;
  std::array<std::array<std::uint8_t, atoms_max>, thread_count> outdated_;
};

}  // namespace hkv::relacy
