// SPDX-License-Identifier: Apache-2.0
// Stacks of tiers: the contract, gets, and what is copied up.
#include "tier/tier_stack.h"

#include "base/check.h"
#include "tier/contract.h"
#include "tier/stack_world.h"

namespace hkv {
namespace {

using namespace contract;

// Two memory tiers: within the ask; and on threads of their own, with queues that are full at once.
class StackedMemories final : public TierWorld {
 public:
  StackedMemories(const WorldOptions& options, bool narrow) {
    const std::uint64_t capacity = options.small ? 24 * 4256 : 64u << 20;
    TierLimits limits = options.limits;
    limits.most_items = narrow ? 2 : 4096;
    fast_ = memory(capacity, narrow, limits);
    slow_ = memory(capacity, narrow, limits);
    StackOptions stacked;
    stacked.depth = options.depth;
    stacked.limits = options.limits;
    stack_ = std::make_unique<TierStack>(std::vector<std::shared_ptr<Tier>>{fast_, slow_}, stacked);
  }
  Tier& tier() override { return *stack_; }
  bool corrupt(const RecordKey& key) override {
    fast_->corrupt(key);
    slow_->corrupt(key);
    return true;
  }
  bool freeze() override {
    fast_->freeze();
    slow_->freeze();
    return true;
  }
  void thaw() override {
    fast_->thaw();
    slow_->thaw();
  }

 private:
  std::shared_ptr<HeldMemory> fast_, slow_;
  std::unique_ptr<TierStack> stack_;
};

}  // namespace

const int contract::kinds = 2;
std::unique_ptr<contract::TierWorld> contract::make_world(const WorldOptions& options, int kind) {
  return std::make_unique<StackedMemories>(options, kind == 1);
}

HKV_TEST("an arena of a stack is one of each of its tiers, or of none") {
  const auto fast = memory(), slow = memory();
  TierStack stack({fast, slow});
  AlignedMemory mine(4 * 4096);
  std::byte* const at = mine.data();
  const auto arenas = [&] { return std::make_pair(fast->usage().arenas, slow->usage().arenas); };
  const auto both = [](std::uint64_t n) { return std::make_pair(n, n); };
  EXPECT_EQ(stack.add_arena(at, 8192), Status::Ok);
  EXPECT(arenas() == both(1));
  // A tier that has an arena of its own there keeps it, also when the stack's goes.
  EXPECT_EQ(slow->add_arena(at + 8192, 4096), Status::Ok);
  EXPECT_EQ(stack.add_arena(at + 8192, 8192), Status::Ok);
  EXPECT(arenas() == std::make_pair(std::uint64_t{2}, std::uint64_t{2}));
  EXPECT_EQ(stack.drop_arena(at + 8192), Status::Ok);
  EXPECT(arenas() == std::make_pair(std::uint64_t{1}, std::uint64_t{2}));
  EXPECT_EQ(slow->drop_arena(at + 8192), Status::Ok);
  // One of them still uses it (somebody asked it meanwhile): then all have it.
  slow->freeze();
  const Part part{at, 100, {}};
  PutItem item;
  item.key = sample(1).key;
  item.parts = {&part, 1};
  BatchId batch{};
  EXPECT_EQ(static_cast<Tier&>(*slow).put({&item, 1}, never, batch), Status::Ok);
  EXPECT_EQ(stack.drop_arena(at), Status::Busy);
  EXPECT(arenas() == both(1));
  EXPECT_EQ(stack.usage().arenas, 1u);
  slow->thaw();
  EXPECT(slow->drain(never));
  EXPECT_EQ(stack.drop_arena(at), Status::Ok);
  EXPECT(arenas() == both(0));
  EXPECT_EQ(stack.usage().arenas, 0u);
}

// ---- what it is made of -------------------------------------------------------------------------

HKV_TEST("a stack is of two tiers or more, each there and once") {
  const auto refused = [](std::vector<std::shared_ptr<Tier>> tiers) {
    try {
      TierStack stack(std::move(tiers));
    } catch (const Error& error) {
      return error.field + ": " + error.got;
    }
    return std::string("nothing");
  };
  const auto a = memory(), b = memory();
  EXPECT_EQ(refused({}), "tiers: 0");
  EXPECT_EQ(refused({a}), "tiers: 1");
  EXPECT_EQ(refused({a, nullptr}), "tiers: none at 1");
  EXPECT_EQ(refused({a, b, a}), "tiers: one again at 2");
  EXPECT_EQ(refused({a, b}), "nothing");
}

HKV_TEST("it can what its slowest tier can, and takes as much as all together") {
  const auto small = memory(1000), large = memory(2000);
  const auto durable = std::make_shared<Told>(Answer::Unknown, 5, true);
  const TierStack memories({small, large}), mixed({memory(), durable});
  EXPECT_EQ(memories.caps().most_bytes, 2000u);
  EXPECT_EQ(memories.caps().depth, 32u);
  EXPECT(memories.caps().index && !memories.caps().durable);
  EXPECT_EQ(mixed.caps().depth, 21u);
  EXPECT(!mixed.caps().index && mixed.caps().durable);
}

HKV_TEST("what its fast tiers drop is no loss as long as the slowest has it") {
  const auto fast = memory(6000), slow = memory(1 << 20);
  TierStack stack({fast, slow});
  contract::Asker ask(stack);
  for (std::uint64_t name = 1; name <= 4; ++name) EXPECT_EQ(ask.put(sample(name, {4096})).status, Status::Ok);
  EXPECT_EQ(ask.flush().status, Status::Ok);
  EXPECT(fast->losses() != 0 && slow->losses() == 0);
  EXPECT_EQ(stack.losses(), 0u);
  EXPECT_EQ(stack.look_lasting(sample(1, {}).key).answer, Answer::Here);
  EXPECT_EQ(ask.remove(sample(1, {}).key).status, Status::Ok);
  EXPECT_EQ(stack.losses(), 1u);
}

HKV_TEST("look takes the best answer, and touch goes to all") {
  const Answer ranked[] = {Answer::Absent, Answer::Unknown, Answer::OtherFormat, Answer::Here};
  for (std::size_t above = 0; above < 4; ++above) {
    for (std::size_t below = 0; below < 4; ++below) {
      Tolds w(std::make_shared<Told>(ranked[above]), std::make_shared<Told>(ranked[below]));
      EXPECT_EQ(w.stack.look(sample(1).key).answer, ranked[std::max(above, below)]);
      w.stack.touch(sample(1).key);
      EXPECT(w.fast->touches == 1 && w.slow->touches == 1);
    }
  }
}

// ---- gets ---------------------------------------------------------------------------------------

HKV_TEST("a hit above asks nobody below, and keeps the record in use there") {
  Tolds w(std::make_shared<Told>(Answer::Here), std::make_shared<Told>(Answer::Here));
  answers(*w.fast, Status::Ok);
  EXPECT_EQ(w.ask.get(sample(1)).status, Status::Ok);
  EXPECT_EQ(w.slow->total(), 0u);
  EXPECT(w.fast->touches == 0 && w.slow->touches == 1);
  EXPECT_EQ(w.stack.counts_of(0).hits, 1u);
  w.fast->answer = Answer::Absent;
  answers(*w.slow, Status::Ok);
  EXPECT_EQ(w.ask.probe(sample(1).key).status, Status::Ok);
  EXPECT_EQ(w.fast->total(), 1u);  // nobody is asked who says that it has it not
  w.slow->answer = Answer::OtherFormat;
  EXPECT_EQ(w.ask.get(sample(1)).status, Status::Miss);
  EXPECT_EQ(w.slow->total(), 1u);
}

HKV_TEST("a hit below is copied up as it is, and served from there") {
  const Sample root = sample(1);
  Sample record = sample(2, {64, 4096}, root.key.digest);
  record.flags = 0x5A;
  const auto slow = memory();
  file(*slow, root);
  file(*slow, record);
  Memories w(memory(), slow);
  EXPECT(w.ask.has(root));
  EXPECT(w.promoted(1));
  std::vector<std::byte> envelopes[2];
  for (auto& bytes : envelopes) {
    Sample room = room_for(record);
    const GetItem item{room.key, room.parts, &bytes};
    BatchId batch;
    EXPECT_EQ(w.stack.get({&item, 1}, never, Priority::Demand, batch), Status::Ok);
    EXPECT_EQ(w.reports().done(batch).status, Status::Ok);
    EXPECT(room == record);
    EXPECT(w.promoted(2));
  }
  EXPECT(!envelopes[0].empty() &&
         envelopes[0] == envelopes[1]);  // parent, identity, tokens, flags and all CRCs
  EXPECT_EQ(w.fast->look(record.key).flags, 0x5A);
  EXPECT_EQ(w.stack.counts_of(0).hits, 1u);
  EXPECT_EQ(w.stack.counts_of(1).hits, 2u);
  EXPECT_EQ(w.stack.counts_of(0).promoted, 2u);
  EXPECT_EQ(w.stack.usage_of(0).records, 2u);
}

HKV_TEST("a get of some parts is not taken for a record, one of all parts is, in whatever order") {
  const Sample record = sample(1), other = sample(2);
  const auto slow = memory();
  file(*slow, record);
  file(*slow, other);
  Memories w(memory(), slow);
  Sample room = room_for(record);
  EXPECT_EQ(w.ask.get(room.key, {room.parts.data(), 2}).status, Status::Ok);
  EXPECT_EQ(w.ask.get(room.key, {}).status, Status::Ok);
  std::swap(room.parts[0], room.parts[2]);
  EXPECT(w.ask.has(other));
  EXPECT(w.promoted(1));
  EXPECT(!here(*w.fast, record) && here(*w.fast, other));
  EXPECT_EQ(w.ask.get(room).status, Status::Ok);
  EXPECT(w.promoted(2));
  EXPECT(here(*w.fast, record));
  EXPECT(w.ask.has(record));
  EXPECT_EQ(w.stack.counts_of(0).hits, 1u);
}

HKV_TEST("a chain that comes back in any order is copied up in its own") {
  for (const bool root_fails : {false, true}) {
    StackOf<HeldMemory, Told> w(memory(), std::make_shared<Told>(Answer::Here));
    std::vector<Sample> chain;
    for (std::uint64_t name = 1; name <= 5; ++name) {
      chain.push_back(sample(name, {64}, chain.empty() ? Key128{} : chain.back().key.digest));
    }
    chain.push_back(sample(5, {64}, chain[4].key.digest, RecordKind::Boundary));
    std::vector<Sample> rooms;
    std::vector<GetItem> items;
    for (const Sample& each : chain) rooms.push_back(room_for(each));
    for (const Sample& each : rooms) items.push_back(each.get_item());
    BatchId batch;
    EXPECT_EQ(w.stack.get(items, never, Priority::Demand, batch), Status::Ok);
    EXPECT(begins(*w.slow, 6));
    for (const std::size_t at : {5, 3, 4, 1, 2}) {
      const auto begun = names(w.slow->begun());
      std::size_t behind = 0;
      while (w.slow->begun()[behind]->key != chain[at].key) ++behind;
      bring(*w.slow, chain[at], behind);
      EXPECT_EQ(w.reports().done(batch, static_cast<std::uint32_t>(at)).status, Status::Ok);
      EXPECT(rooms[at] == chain[at]);
    }
    EXPECT_EQ(w.fast->usage().records, 0u);
    if (root_fails) {
      w.slow->end_one(Status::IoError);
    } else {
      bring(*w.slow, chain[0]);
    }
    EXPECT(w.promoted(root_fails ? 5 : 6));
    EXPECT_EQ(w.stack.counts_of(0).promoted, root_fails ? 0u : 6u);
    for (const Sample& each : chain) EXPECT_EQ(here(*w.fast, each), !root_fails);
  }
}

HKV_TEST("copies on their way up are bounded, and none are made where none are wanted") {
  std::vector<Sample> small;
  for (std::uint64_t name = 2; name <= 42; ++name) small.push_back(sample(name, {64}));
  const Sample large = sample(1, {4096});
  for (const std::uint64_t bytes : {0, 4000}) {
    const auto slow = memory();
    file(*slow, large);
    for (const Sample& each : small) file(*slow, each);
    StackOptions options;
    options.promotion_bytes = bytes;
    Memories w(memory(), slow, options);
    EXPECT(w.ask.has(large));
    for (std::size_t i = 0; i < small.size(); ++i) {  // more than fits at a time: the room comes back
      EXPECT(w.ask.has(small[i]));
      EXPECT(w.promoted(i + 2));
    }
    EXPECT_EQ(w.stack.counts_of(0).promoted, bytes == 0 ? 0 : small.size());
    EXPECT_EQ(w.stack.counts_of(0).not_promoted, bytes == 0 ? small.size() + 1 : 1);
    EXPECT(!here(*w.fast, large));
  }
}

HKV_TEST("bytes that changed behind a tier's proof are neither given nor copied up") {
  Tolds w(std::make_shared<Told>(Answer::Absent), std::make_shared<Told>(Answer::Here));
  w.slow->script([](ScriptedTier& self, ScriptedTier::Op* operation) {
    std::byte* const bytes = static_cast<std::byte*>(operation->parts[0].data);
    self.bring(*operation);
    self.answer(operation, Status::Ok);
    bytes[0] ^= std::byte{1};
  });
  const Done done = w.ask.get(sample(1));
  EXPECT_EQ(done.status, Status::Corrupt);
  EXPECT_EQ(done.damage, Damage::Content);
  w.slow->answer = Answer::Absent;
  EXPECT_EQ(w.ask.get(sample(1)).status, Status::Miss);
  EXPECT_EQ(w.fast->total(), 0u);
}

HKV_TEST("what is damaged above is sound from below, and replaced") {
  const Sample record = sample(1);
  Memories w(memory(), memory());
  EXPECT_EQ(w.ask.put(record).status, Status::Ok);
  w.fast->corrupt(record.key);
  EXPECT(w.ask.has(record));
  EXPECT_EQ(w.stack.counts_of(0).failed, 1u);
  EXPECT_EQ(w.stack.usage_of(0).corrupt, 1u);
  EXPECT_EQ(w.stack.usage().corrupt, 0u);
  EXPECT(w.promoted(1));
  EXPECT(w.ask.has(record));
  EXPECT_EQ(w.stack.counts_of(0).hits, 1u);
  w.fast->corrupt(record.key);
  w.slow->corrupt(record.key);
  Sample room = room_for(record);
  const Done both = w.ask.get(room);
  EXPECT_EQ(both.status, Status::Corrupt);
  EXPECT_EQ(both.damage, Damage::Content);
  EXPECT_EQ(w.ask.get(room).status, Status::Miss);
}

HKV_TEST("whatever fails above is asked of the next, and a miss there covers no damage") {
  const auto finding = [](Status status) {
    return status == Status::Corrupt || status == Status::Mismatch || status == Status::IoError;
  };
  for (int above = 1; above < tier_status_count; ++above) {
    for (int below = 0; below < tier_status_count; ++below) {
      const Status first = static_cast<Status>(above), second = static_cast<Status>(below);
      Tolds w(std::make_shared<Told>(Answer::Here), std::make_shared<Told>(Answer::Unknown));
      answers(*w.fast, first);
      answers(*w.slow, second);
      const bool ends = first == Status::Cancelled;
      const Status told = ends || (second == Status::Miss && finding(first)) ? first : second;
      EXPECT_EQ(w.ask.probe(sample(1).key).status, told);
      EXPECT_EQ(w.ask.get(sample(1)).status, told);
      EXPECT_EQ(w.slow->total() != 0, !ends);
      if (finding(first)) {
        w.slow->answer = Answer::Absent;
        EXPECT_EQ(w.ask.get(sample(1)).status, first);
      }
    }
  }
}

HKV_TEST("under threads, over a fast tier that holds a few records only, everything adds up") {
  TierLimits limits;
  limits.most_items = 3;
  limits.breaker_first = limits.breaker_most = 1ms;
  StackOptions options;
  options.limits.most_items = 64;
  Memories w(memory(6 * 4700, true, limits), memory(64u << 20, true, limits), options);
  threads::Ledger ledger(w.stack);
  const std::uint64_t steps = stress::steps_wanted(20000, 1000000);
  std::atomic<int> asking{3};
  std::vector<std::thread> others;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    others.emplace_back([&, seed] {
      std::mt19937_64 random(seed);
      for (std::uint64_t step = 0; step < steps / 3; ++step) ledger.ask(random);
      --asking;
    });
  }
  while (asking != 0) {
    if (!ledger.poll()) w.stack.wait(1ms);
  }
  for (std::thread& thread : others) thread.join();
  EXPECT(w.stack.drain(in(120s)));
  while (ledger.poll()) {
  }
  ledger.check();
  EXPECT(ledger.hits() > 0);
  // In the few steps that a sanitizer run has it need not come to that.
  EXPECT(stress::slower > 1 || (w.stack.counts_of(0).promoted != 0 && w.stack.counts_of(1).hits != 0));
  for (std::uint64_t name = 1; name <= 24; ++name) w.ask.remove(sample(name).key);
  for (std::uint64_t name = 1; name <= 24; ++name) {
    EXPECT_EQ(w.stack.look(sample(name).key).answer, Answer::Absent);
  }
}

}  // namespace hkv
