// SPDX-License-Identifier: Apache-2.0
// The tree of schedules of a program, searched depth first: every execution up to the order of independent steps.
//
// Two steps depend on each other if they touch one atom and one of them writes (a CAS counts as a write whether
// or not it succeeds). Executions that differ only in the order of independent steps end in the same state, so one
// of each class is run (source sets and sleep sets: Abdulla, Aronis, Jonsson, Sagonas, POPL 2014):
//  1. Of every two steps in a race (dependent, of different threads, not ordered by steps between them) the other
//     order is tried too: a thread that begins the part not ordered after the first is added where the first was
//     chosen.
//  2. A thread whose next step was explored at a node sleeps until a step that depends on it is made. An execution
//     in which every thread sleeps repeats an earlier one: it is finished without branching and counted apart.
// What a step finds depends on the order of the steps on its atom alone (sequential consistency), hence a thread's
// later steps too. Values of plain memory between two steps are the thread's own, or are accesses themselves.
// So no outcome of a thread and no final state is missed; of the states in between only those on the way are seen.
// With `every_state` any two writes depend on each other: every state of memory that can come up does.
//
// With a bound on preemptions (Musuvathi, Qadeer, PLDI 2007) nothing is reduced, but only those executions are run in
// which a thread that could go on is interrupted at most so often: for programs whose whole tree is too large.
//
// Thread safety: none; belongs to the scheduler.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

namespace hkv::sim {

inline constexpr int threads_max = 4;
using ThreadMask = std::uint8_t;
constexpr ThreadMask bit(int thread) { return static_cast<ThreadMask>(1u << thread); }

struct Access {
  const void* atom = nullptr;
  bool writes = false;
  bool locks =
      false;  // a mutex: of two that lock it the order is tried both ways, of unlock and lock it is given
};

class Search {
 public:
  static constexpr int unbounded = -1;
  explicit Search(bool every_state = false, int preemptions = unbounded)
      : every_state_(every_state), bound_(preemptions) {}

  // ---- one execution ---------------------------------------------------------------------------

  void begin() {
    events_.clear();
    for (auto& of_thread : clock_) of_thread.fill(0);
    ++execution_;
    atoms_.clear();
    last_write_ = -1;
    depth_ = 0;
    preemptions_ = 0;
    sleep_ = 0;
    redundant_ = false;
  }

  // Who makes the next step. `enabled`: the threads that have one; `self`: the one that ran last.
  int choose(ThreadMask enabled, int self) {
    if (bound_ != unbounded) return choose_bounded(enabled, self);
    if (redundant_) return enabled & bit(self) ? self : std::countr_zero(enabled);
    const std::size_t depth = events_.size();
    if (depth == nodes_.size()) {
      const auto awake = static_cast<ThreadMask>(enabled & ~sleep_);
      if (awake == 0) {
        redundant_ = true;
        return choose(enabled, self);
      }
      const int chosen = awake & bit(self) ? self : std::countr_zero(awake);
      nodes_.push_back({static_cast<std::uint8_t>(chosen), bit(chosen), sleep_, enabled});
    }
    return nodes_[depth].chosen;
  }

  // The step was made. `next`: the next step of each thread before it.
  void made(int thread, const std::array<Access, threads_max>& next) {
    if (redundant_ || bound_ != unbounded) return;
    const std::size_t depth = events_.size();
    const Access& step = next[static_cast<std::size_t>(thread)];
    const auto before = static_cast<ThreadMask>(nodes_[depth].asleep);
    sleep_ = 0;
    for (int other = 0; other < threads_max; ++other) {
      if (other != thread && (before & bit(other)) && !depend(step, next[static_cast<std::size_t>(other)]))
        sleep_ = static_cast<ThreadMask>(sleep_ | bit(other));
    }
    append(thread, step);
  }

  // The execution is over. Returns: whether there is another one.
  bool end() {
    runs_redundant_ += redundant_;
    while (!nodes_.empty()) {
      Node& node = nodes_.back();
      node.asleep = static_cast<ThreadMask>(node.asleep | bit(node.chosen));
      const auto left = static_cast<ThreadMask>(node.backtrack & node.enabled & ~node.asleep);
      if (left != 0) {
        node.chosen = static_cast<std::uint8_t>(std::countr_zero(left));
        fresh_from_ = nodes_.size() - 1;
        return true;
      }
      nodes_.pop_back();
    }
    return false;
  }

  unsigned long redundant_runs() const { return runs_redundant_; }

 private:
  struct Node {
    std::uint8_t chosen;
    ThreadMask backtrack;  // threads to be tried here
    ThreadMask asleep;     // threads that need not be: slept when the node was made, or were tried
    ThreadMask enabled;
  };
  using Clock = std::array<std::uint16_t, threads_max>;
  struct Event {
    int thread;
    Clock clock;  // how many steps of each thread happen before it, or are it
  };
  // Steps on one atom that a next one may race with, as numbers of events.
  struct AtomState {
    const void* atom;
    int last_write = -1, last_lock = -1;
    std::array<int, threads_max> reads{-1, -1, -1, -1};  // since that write
  };

  // Who ran goes on first; the others are tried after it, while interrupting it is allowed.
  int choose_bounded(ThreadMask enabled, int self) {
    const bool may_go_on = enabled & bit(self);
    if (depth_ == nodes_.size()) {
      const int chosen = may_go_on ? self : std::countr_zero(enabled);
      const bool alone = may_go_on && preemptions_ == bound_;
      nodes_.push_back({static_cast<std::uint8_t>(chosen), alone ? bit(chosen) : enabled, 0, enabled});
    }
    const int chosen = nodes_[depth_++].chosen;
    preemptions_ += may_go_on && chosen != self;
    return chosen;
  }

  bool depend(const Access& a, const Access& b) const {
    return (every_state_ && a.writes && b.writes) || (a.atom == b.atom && (a.writes || b.writes));
  }

  bool before(int earlier, int later) const {
    const Event& e = events_[static_cast<std::size_t>(earlier)];
    const auto t = static_cast<std::size_t>(e.thread);
    return events_[static_cast<std::size_t>(later)].clock[t] >= e.clock[t];
  }

  AtomState& state_of(const void* atom) {
    // Few atoms of one execution are touched; most lie close together and were touched lately.
    const auto at = (reinterpret_cast<std::uintptr_t>(atom) >> 1) * 0x9E3779B97F4A7C15u >> 52;
    for (std::size_t i = at;; i = (i + 1) % index_.size()) {
      Place& place = index_[i];
      if (place.execution == execution_ && place.atom == atom) return atoms_[place.at];
      if (place.execution == execution_) continue;
      place = {atom, execution_, static_cast<std::uint32_t>(atoms_.size())};
      atoms_.push_back({atom});
      return atoms_.back();
    }
  }

  void append(int thread, const Access& step) {
    const int number = static_cast<int>(events_.size());
    const auto t = static_cast<std::size_t>(thread);
    Clock clock = clock_[t];
    AtomState& atom = state_of(step.atom);
    std::array<int, threads_max + 2> earlier;  // steps it depends on and is not ordered after yet
    int n = 0;
    const auto consider = [&](int event) {
      if (event < 0) return;
      const Event& e = events_[static_cast<std::size_t>(event)];
      if (e.thread == thread ||
          clock[static_cast<std::size_t>(e.thread)] >= e.clock[static_cast<std::size_t>(e.thread)])
        return;
      earlier[static_cast<std::size_t>(n++)] = event;
    };
    consider(step.locks ? atom.last_lock : atom.last_write);
    if (step.writes) std::for_each(atom.reads.begin(), atom.reads.end(), consider);
    if (step.writes && every_state_ && last_write_ != atom.last_write) consider(last_write_);
    if (step.writes) last_write_ = number;
    for (int i = 0; i < n; ++i) {
      const Clock& other = events_[static_cast<std::size_t>(earlier[static_cast<std::size_t>(i)])].clock;
      for (std::size_t k = 0; k < threads_max; ++k) clock[k] = std::max(clock[k], other[k]);
    }
    if (step.locks && atom.last_write >= 0) {
      const Clock& unlock = events_[static_cast<std::size_t>(atom.last_write)].clock;
      for (std::size_t k = 0; k < threads_max; ++k) clock[k] = std::max(clock[k], unlock[k]);
    }
    if (step.locks) atom.last_lock = number;
    ++clock[t];
    clock_[t] = clock;
    events_.push_back({thread, clock});
    if (step.writes) {
      atom.last_write = number;
      atom.reads.fill(-1);
    } else {
      atom.reads[t] = number;
    }
    if (events_.size() <= fresh_from_) return;  // its races were found when it was made first
    for (int i = 0; i < n; ++i) {
      const int first = earlier[static_cast<std::size_t>(i)];
      bool direct = true;
      for (int k = 0; k < n; ++k) direct &= k == i || !before(first, earlier[static_cast<std::size_t>(k)]);
      if (direct) reverse(first, number);
    }
  }

  // Steps `first` and `second` race: sees to it that an execution in the other order is run.
  void reverse(int first, int second) {
    ThreadMask seen = 0, initials = 0;
    std::vector<int>& kept = scratch_;  // steps not ordered after `first`, and `second`
    kept.clear();
    for (int i = first + 1; i <= second; ++i) {
      if (i != second && before(first, i)) continue;
      const int thread = events_[static_cast<std::size_t>(i)].thread;
      if (!(seen & bit(thread))) {
        seen = static_cast<ThreadMask>(seen | bit(thread));
        const bool free =
            std::none_of(kept.begin(), kept.end(), [&](int earlier) { return before(earlier, i); });
        if (free) initials = static_cast<ThreadMask>(initials | bit(thread));
      }
      kept.push_back(i);
    }
    Node& node = nodes_[static_cast<std::size_t>(first)];
    if (node.backtrack & initials) return;
    const int own = events_[static_cast<std::size_t>(second)].thread;
    node.backtrack = static_cast<ThreadMask>(
        node.backtrack | (initials & bit(own) ? bit(own) : bit(std::countr_zero(initials))));
  }

  struct Place {
    const void* atom = nullptr;
    std::uint64_t execution = 0;
    std::uint32_t at = 0;
  };
  std::vector<Node> nodes_;
  std::vector<Event> events_;
  std::array<Clock, threads_max> clock_{};
  std::vector<AtomState> atoms_;
  std::vector<Place> index_{std::vector<Place>(4096)};
  std::vector<int> scratch_;
  std::uint64_t execution_ = 0;
  bool every_state_;
  int bound_;
  int preemptions_ = 0;  // so far in this execution
  std::size_t depth_ = 0;
  int last_write_ = -1;         // of any atom
  std::size_t fresh_from_ = 0;  // steps of the execution before this one were made in an earlier one
  ThreadMask sleep_ = 0;        // at the node that comes next
  bool redundant_ = false;
  unsigned long runs_redundant_ = 0;
};

}  // namespace hkv::sim
