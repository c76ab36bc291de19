// SPDX-License-Identifier: Apache-2.0
// What tier stacks are tested in: tiers that say what a test wants, and stacks of two.
//
// Thread safety: one thread's, but `Told` where it overrides what a stack's thread calls.
#pragma once
#include <atomic>
#include <memory>
#include <thread>

#include "tier/contract_world.h"
#include "tier/held_memory.h"
#include "tier/scripted_tier.h"
#include "tier/tier_stack.h"

namespace hkv::contract {

// A scripted tier that also says what it has, and counts who touches it.
class Told final : public ScriptedTier {
 public:
  explicit Told(Answer answer, std::size_t depth = 8, bool durable = false, std::size_t most_items = 4096)
      : ScriptedTier(limits_of(most_items), depth), answer(answer), durable_(durable) {}
  ~Told() override { close(); }

  TierCaps caps() const override {
    TierCaps caps = ScriptedTier::caps();
    caps.durable = durable_;
    caps.index = answer != Answer::Unknown;
    return caps;
  }
  Presence look(const RecordKey&) const override { return {answer, 7}; }
  void touch(const RecordKey&) override { ++touches; }

  std::atomic<Answer> answer;
  std::atomic<int> touches{0};

 private:
  static TierLimits limits_of(std::size_t most_items) {
    TierLimits limits;
    limits.breaker_after = 0;
    limits.most_items = most_items;
    return limits;
  }
  const bool durable_;
};

// Waits for what the stack's thread must come to.
template <class Condition>
bool comes(Condition&& condition) {
  for (const Deadline end = in(20s); !condition(); std::this_thread::yield()) {
    if (TierClock::now() > end) return false;
  }
  return true;
}

inline std::shared_ptr<HeldMemory> memory(std::uint64_t capacity_bytes = 64u << 20, bool threaded = false,
                                          const TierLimits& limits = {}) {
  MemoryOptions options;
  options.capacity_bytes = capacity_bytes;
  options.threaded = threaded;
  options.limits = limits;
  return std::make_shared<HeldMemory>(options);
}

template <class Fast, class Slow>
struct StackOf {
  StackOf(std::shared_ptr<Fast> above, std::shared_ptr<Slow> below, const StackOptions& options = {})
      : fast(std::move(above)), slow(std::move(below)), stack({fast, slow}, options), ask(stack) {}

  BatchId get(const Sample& room, Deadline deadline = never) {
    const GetItem item = room.get_item();
    BatchId batch{};
    EXPECT_EQ(stack.get({&item, 1}, deadline, Priority::Demand, batch), Status::Ok);
    return batch;
  }
  BatchId put(const Sample& record, Deadline deadline = never) {
    const PutItem item = record.put_item();
    BatchId batch{};
    EXPECT_EQ(stack.put({&item, 1}, deadline, batch), Status::Ok);
    return batch;
  }
  BatchId remove(const Sample& record) {
    BatchId batch{};
    EXPECT_EQ(stack.remove({&record.key, 1}, never, batch), Status::Ok);
    return batch;
  }
  bool promoted(std::uint64_t records) {
    return comes([&] { return stack.counts_of(0).promoted + stack.counts_of(0).not_promoted >= records; });
  }
  Collector& reports() { return ask.reports; }

  std::shared_ptr<Fast> fast;
  std::shared_ptr<Slow> slow;
  TierStack stack;
  Asker ask;
};
using Memories = StackOf<HeldMemory, HeldMemory>;
using Tolds = StackOf<Told, Told>;

inline bool begins(const ScriptedTier& tier, std::size_t total) {
  return comes([&] { return tier.total() >= total; });
}
// Whether an item is reported at all, and with this status; where it is not a test goes no further.
inline bool is_told(Collector& reports, BatchId batch, Status status) {
  const auto reported = [&] {
    reports.take();
    return reports.reported(batch);
  };
  if (!comes(reported)) return false;
  return reports.done(batch).status == status;
}
#define HKV_REQUIRE(condition)   \
  do {                           \
    const bool is = (condition); \
    EXPECT(is && #condition);    \
    if (!is) return;             \
  } while (false)

inline bool here(const Tier& tier, const Sample& record) {
  return tier.look(record.key).answer == Answer::Here;
}

// Puts a record into a tier that is in no stack yet.
inline void file(Tier& tier, const Sample& record) { EXPECT_EQ(Asker(tier).put(record).status, Status::Ok); }

// A tier below says that it has a record, with what stands in the memory by now, and this parent.
inline void bring(Told& tier, const Sample& record, std::size_t behind = 0) {
  ScriptedTier::Op& operation = *tier.begun()[behind];
  operation.parent = record.parent;
  for (std::size_t i = 0; i < operation.parts.size(); ++i) {
    std::memcpy(operation.parts[i].data, record.pages[i].data(), operation.parts[i].bytes);
  }
  tier.end_one(Status::Ok, behind);
}

inline void answers(Told& tier, Status status) {
  tier.script([status](ScriptedTier& self, ScriptedTier::Op* operation) {
    if (status == Status::Ok && operation->kind == ScriptedTier::Op::Kind::Get) self.bring(*operation);
    self.answer(operation, status);
  });
}

inline std::vector<std::uint64_t> names(const std::vector<ScriptedTier::Op*>& operations) {
  std::vector<std::uint64_t> found;
  for (const auto* operation : operations) found.push_back(operation->key.digest.lo);
  return found;
}

}  // namespace hkv::contract
