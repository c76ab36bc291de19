// SPDX-License-Identifier: Apache-2.0
// The state of a tier's shared half, and the moves of an item through it.
//
// Thread safety: everything under `mutex`, but `wake.fd()` and what is said of arenas. Invariants:
//  1. What is Queued is in `ready` and `deadlines`; Running: in `deadlines`, counted in `running`; Late: in `late`,
//     counted in `running`. Nothing else is alive.
//  2. `reports` has room for two reports of everything alive, made when it was taken, so that no move allocates.
//  3. `wake` is raised while there are reports, and armed for no later than the earliest deadline: `signal` ends every
//     stretch under the mutex that may have changed either.
#pragma once
#include <condition_variable>
#include <mutex>

#include "tier/breaker.h"
#include "tier/deadline_heap.h"
#include "tier/ready_queue.h"
#include "tier/report_ring.h"
#include "tier/tier.h"
#include "tier/wake_fds.h"

namespace hkv {

struct Tier::Core {
  enum class Life : std::uint8_t { Open, Refusing, Ending, Closed };

  explicit Core(const TierLimits& given)
      : limits(given), breaker(given.breaker_after, given.breaker_first, given.breaker_most) {}

  std::size_t alive() const { return ready.size() + running; }
  bool idle() const { return ready.empty() && running == late.size(); }  // every item has its status
  bool has_room(std::size_t items) const {
    const std::size_t used = alive() + reports.size();  // beyond most_items where late ones have reported
    return used <= limits.most_items && items <= limits.most_items - used;
  }

  // Effect: room for so many items more, or throws std::bad_alloc, with nothing changed.
  void reserve(std::size_t items);
  // A taken item comes in: it is queued, or answered where it or everything is refused.
  void enter(std::unique_ptr<Operation> operation, Deadline now);
  // What goes to the engine now; nullptr: nothing can.
  Operation* next(std::size_t depth);
  // The engine let go of an operation. Returns: it, for the caller to free.
  std::unique_ptr<Operation> settle(Operation* operation, TierStatus status, Damage damage);
  // What is past its deadline times out.
  void expire(Deadline now);
  // Whether an item that is not released has memory in [from, to).
  bool uses(std::uintptr_t from, std::uintptr_t to) const;
  // Answers what is queued and is picked.
  template <class Pick>
  void answer_queued(TierStatus status, Pick&& pick) {
    ready.each([&](Operation* operation) {
      if (!pick(*operation)) return;
      leave_queue(operation);
      breaker.withdrawn(operation->trial);
      answer(std::unique_ptr<Operation>(operation), status);
    });
  }
  // Keeps invariant 3, and wakes who waits for a change.
  void signal();
  // Where the timer went off it is set to the earliest deadline that is left.
  void rearm(Deadline now) {
    const Operation* const earliest = deadlines.earliest();
    wake.rearm(now, earliest == nullptr ? Deadline::max() : earliest->deadline);
  }

  struct Arena {
    std::uintptr_t from = 0, to = 0;
  };

  // Held over the engine's part of an add or a drop, and taken by close before the engine ends. Before `mutex`.
  std::mutex arena_mutex;
  std::vector<Arena> arenas;  // by address; changed under both mutexes

  mutable std::mutex mutex;
  std::condition_variable changed;
  const TierLimits limits;
  Breaker breaker;
  ReadyQueue<Operation> ready;
  DeadlineHeap<Operation> deadlines;
  ReportRing reports;
  WakeFds wake;
  TierUsage counted;
  std::uint64_t batches = 0;
  std::size_t running = 0, running_behind = 0;  // running_behind: those that are no Demand
  std::vector<Operation*> late;                 // room for all that is alive
  bool dispatching = false;                     // some thread is in `dispatch`
  Life life = Life::Open;

 private:
  void leave_queue(Operation* operation) {
    ready.remove(operation);
    deadlines.remove(operation);
  }
  void answer(std::unique_ptr<Operation> operation, TierStatus status);
  void time_out_queued(Operation* operation, Deadline now);
  void report(const Operation& operation, TierStatus status, Damage damage, bool released);
  void count(const Operation& operation, TierStatus status);
  void failed(bool trial, Deadline now);
};

}  // namespace hkv
