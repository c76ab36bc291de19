// SPDX-License-Identifier: Apache-2.0
// What a tier stack is made of: a lane to each tier, a job for each operation that is under way, and the steps of jobs.
//
// Thread safety: `inbox` on any thread under its mutex, counts of lanes on any thread, `arenas` as told; everything else is the stack's
// thread's.
#pragma once
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/hint.h"
#include "tier/ready_queue.h"
#include "tier/tier_stack.h"
#include "tier/wake_fds.h"

namespace hkv {

// What one tier is asked for one job.
struct TierStack::Ask {
  enum class State : std::uint8_t {
    Idle,
    Waiting,  // in its lane
    Sent,     // with the tier
    Late,     // timed out there, and the tier may still use the memory
  };
  Job* job = nullptr;
  std::size_t tier = 0;
  State state = State::Idle;
  BatchId batch{};
  Priority priority = Priority::Demand;
  Ask* next_ready = nullptr;
  Ask* previous_ready = nullptr;
};

// One operation under way, or a promotion: the put of a copy, which nobody waits for.
struct TierStack::Job {
  Operation* operation = nullptr;  // of a promotion, and of a job that is free: none
  PutItem put;                     // of a put and a promotion
  std::vector<Ask> asks;           // one a tier
  std::size_t open = 0;            // those that are not Idle
  std::size_t at = 0;              // of a get and a probe: the tier that is asked
  TierStatus status = TierStatus::Miss;
  Damage damage = Damage::None;  // status and damage: what is told, as far as it is known
  bool cancelled = false;
  bool beside_remove = false;  // a remove was under way when it began
  std::uint64_t removals = 0;  // removes that had begun by then

  // Of a promotion:
  std::unique_ptr<std::byte[]> payload;
  std::uint64_t bytes = 0;
  std::vector<Part> parts;
  std::size_t found = 0;  // the tier it comes from
  bool parked = false;    // until its parent was copied up, or will not be

  Deadline deadline() const { return operation == nullptr ? Deadline::max() : operation->deadline; }
};

struct TierStack::Lane {
  struct Counts {
    Hint<std::uint64_t> hits, failed, copies_refused, promoted, not_promoted;
  };

  std::shared_ptr<Tier> tier;
  TierCaps caps;
  ReadyQueue<Ask> waiting;
  Ask* refused = nullptr;  // the first: the tier's queue was full
  std::vector<Ask*> sent;  // oldest first; room is made before an ask is sent
  Counts counts;

  bool idle() const { return refused == nullptr && waiting.empty(); }
  void push(Ask* ask);
  // The next to be sent, which is in no queue then; nullptr: none.
  Ask* take();
  // Of one that waits.
  void remove(Ask* ask);
  // Asks the tier. Returns: Ok where it took it.
  TierStatus send(Ask* ask);
  // The ask of a batch, no more among the sent ones if the report released it; nullptr: none of the stack's.
  Ask* reported(const Done& done);
};

struct TierStack::Engine {
  // Copies on their way up at a time, so that looking for one among them stays cheap.
  static constexpr std::size_t most_promotions = 1024;

  Engine(TierStack& of, std::vector<std::shared_ptr<Tier>> tiers, const StackOptions& given);

  std::size_t slowest() const { return lanes.size() - 1; }

  void run();

  TierStack& stack;
  const StackOptions options;
  TierCaps caps;
  std::vector<std::unique_ptr<Lane>> lanes;
  std::thread thread;
  struct Arena {
    std::size_t bytes = 0;
    std::vector<Lane*> lanes;  // that took it
  };
  std::map<void*, Arena> arenas;  // under the tier's lock of arenas

  struct Inbox {
    std::mutex mutex;
    std::vector<Operation*> begun;  // room for caps.depth
    std::vector<BatchId> cancelled;
    bool ending = false;
    WakeFds wake;  // raised while there is something
  } inbox;

 private:
  // tier_stack_engine.cpp. Steps may finish jobs and make asks wait; those that return bool say whether anything moved.
  bool take_inbox();
  bool send(Lane& lane);
  bool collect(Lane& lane);
  bool expire();
  void wait();
  void shut_down();

  void start(Operation* operation);
  void ask(Job& job, std::size_t tier);
  void ask_next(Job& job);
  void answered(Ask* ask, TierStatus status, Damage damage);
  void found(Job& job);
  void cancel(BatchId batch);
  void over(Job& job, TierStatus status, Damage damage);

  // tier_stack_promotion.cpp
  void promote(const Job& job);
  std::unique_ptr<Job> copy_of(const Job& job) const;
  bool is_on_its_way(const Key128& block) const;
  void send_up(Job& promotion);
  void unpark(const Key128& block);
  void unpark_all();
  void drop_parked();
  void promoted(Ask* ask, TierStatus status);
  void retire(const Job& promotion);

  std::vector<Operation*> taken_;
  std::vector<BatchId> cancelled_;
  std::vector<Job> jobs_;  // one for each place of caps.depth; never moved
  std::vector<Job*> free_;
  std::vector<pollfd> watched_;                   // the inbox and each tier
  std::vector<std::unique_ptr<Job>> promotions_;  // oldest first
  std::vector<Key128> unparked_;  // of `unpark`: room for all, as for everything here that must not fail
  std::uint64_t promotion_bytes_ = 0, removals_ = 0;
  std::size_t parked_ = 0, gets_under_way_ = 0, removes_under_way_ = 0;
  bool ending_ = false;
};

}  // namespace hkv
