// SPDX-License-Identifier: Apache-2.0
#include "tier/contract.h"
#include "tier/held_memory.h"
#include "tier/known_records.h"

namespace hkv {
namespace {

class MemoryWorld final : public contract::TierWorld {
 public:
  MemoryWorld(const contract::WorldOptions& options, bool threaded) {
    MemoryOptions memory;
    memory.capacity_bytes = options.small ? 24 * 4256 : 64u << 20;
    memory.depth = options.depth;
    memory.threaded = threaded;
    memory.limits = options.limits;
    tier_ = std::make_unique<contract::HeldMemory>(memory);
  }
  Tier& tier() override { return *tier_; }
  bool corrupt(const RecordKey& key) override {
    tier_->corrupt(key);
    return true;
  }
  bool freeze() override {
    tier_->freeze();
    return true;
  }
  void thaw() override { tier_->thaw(); }

 private:
  std::unique_ptr<contract::HeldMemory> tier_;
};

}  // namespace

const int contract::kinds = 2;  // within the ask, and on a thread of its own
std::unique_ptr<contract::TierWorld> contract::make_world(const WorldOptions& options, int kind) {
  return std::make_unique<MemoryWorld>(options, kind == 1);
}

namespace {

MemoryOptions holding(std::size_t records) {  // of one part of 4096 bytes
  MemoryOptions options;
  options.capacity_bytes = records * (envelope_bytes(1) + 4096);
  return options;
}

contract::Sample page(std::uint64_t name, Key128 parent = {}, bool pinned = false) {
  contract::Sample made = contract::sample(name, {4096}, parent);
  made.pinned = pinned;
  return made;
}

bool here(const Tier& tier, const contract::Sample& record) {
  return tier.look(record.key).answer == Presence::Answer::Here;
}

}  // namespace

HKV_TEST("of a tier without an index it is known what was seen there, and what was seen to be gone since") {
  const auto known = std::make_unique<KnownRecords>();
  RecordKey key{{1, 2}, {3, 4}, RecordKind::Block}, same_place = key;
  same_place.digest.hi = 77;
  known->forget(key);
  EXPECT(!known->look(key).gone);  // it was never seen
  EXPECT_EQ(known->losses(), 0u);
  known->note(key, 9);
  EXPECT_EQ(known->look(key).answer, Presence::Answer::Here);
  EXPECT_EQ(+known->look(key).flags, 9);
  EXPECT_EQ(known->look(same_place).answer, Presence::Answer::Unknown);
  known->forget(same_place);
  EXPECT_EQ(known->look(key).answer, Presence::Answer::Here);
  known->forget(key);
  EXPECT_EQ(known->look(key).answer, Presence::Answer::Unknown);
  EXPECT(known->look(key).gone && !known->look(same_place).gone);
  EXPECT_EQ(known->losses(), 1u);
  known->note(same_place, 0);
  EXPECT(!known->look(key).gone);
  known->note(key, 0);
  EXPECT(known->look(key).answer == Presence::Answer::Here && !known->look(key).gone);
}

HKV_TEST("what was used least recently goes first, and a get, a put and a touch are uses") {
  MemoryTier tier(holding(4));
  contract::Asker ask(tier);
  const contract::Sample a = page(1), b = page(2), c = page(3), d = page(4), e = page(5), f = page(6);
  for (const auto* each : {&a, &b, &c, &d}) EXPECT_EQ(ask.put(*each).status, TierStatus::Ok);
  EXPECT(ask.has(a));
  tier.touch(b.key);
  EXPECT_EQ(ask.put(e).status, TierStatus::Ok);
  EXPECT(here(tier, a) && here(tier, b) && !here(tier, c) && here(tier, d));
  EXPECT_EQ(ask.put(d).status, TierStatus::Ok);
  EXPECT_EQ(ask.put(f).status, TierStatus::Ok);
  EXPECT(!here(tier, a) && here(tier, b) && here(tier, d) && here(tier, e) && here(tier, f));
  EXPECT_EQ(tier.usage().reclaimed, 2u);
  EXPECT_EQ(tier.usage().bytes, tier.usage().capacity_bytes);
}

HKV_TEST("suffix goes before prefix, however long ago the prefix was used") {
  MemoryTier tier(holding(4));
  contract::Asker ask(tier);
  const contract::Sample root = page(1), middle = page(2, root.key.digest), end = page(3, middle.key.digest);
  const contract::Sample alone = page(4), next = page(5), more = page(6);
  for (const auto* each : {&root, &middle, &end, &alone, &next})
    EXPECT_EQ(ask.put(*each).status, TierStatus::Ok);
  EXPECT(here(tier, root) && here(tier, middle) && !here(tier, end));
  EXPECT_EQ(ask.put(more).status, TierStatus::Ok);
  EXPECT(here(tier, root) && !here(tier, middle) && here(tier, alone));
}

HKV_TEST("room for a record is not made where its parents stand") {
  MemoryTier tier(holding(2));
  contract::Asker ask(tier);
  const contract::Sample root = page(1), middle = page(2, root.key.digest), end = page(3, middle.key.digest);
  EXPECT_EQ(ask.put(root).status, TierStatus::Ok);
  EXPECT_EQ(ask.put(middle).status, TierStatus::Ok);
  EXPECT_EQ(ask.put(end).status, TierStatus::NoSpace);
  EXPECT(here(tier, root) && here(tier, middle));
  EXPECT_EQ(ask.put(page(4)).status, TierStatus::Ok);  // nothing is held by the put that was refused
  EXPECT(here(tier, root) && !here(tier, middle));
}

HKV_TEST("what is pinned is never evicted, and a put that finds no room loses nothing") {
  MemoryTier tier(holding(4));
  contract::Asker ask(tier);
  const contract::Sample root = page(1), end = page(2, root.key.digest, true), alone = page(3, {}, true);
  const contract::Sample free = page(4);
  for (const auto* each : {&root, &end, &alone, &free}) EXPECT_EQ(ask.put(*each).status, TierStatus::Ok);
  tier.touch(alone.key);
  tier.touch(free.key);  // so that what is pinned would be the first to go
  const contract::Sample large = contract::sample(5, {8192});
  EXPECT_EQ(ask.put(large).status, TierStatus::NoSpace);
  EXPECT(here(tier, free));
  EXPECT_EQ(ask.put(page(6)).status, TierStatus::Ok);
  EXPECT(!here(tier, free));
  EXPECT_EQ(ask.remove(root.key).status, TierStatus::Ok);  // takes the pinned record below it along
  EXPECT(!here(tier, end) && here(tier, alone));
  EXPECT_EQ(ask.put(large).status, TierStatus::Ok);
  EXPECT_EQ(tier.usage().refused, 1u);
}

HKV_TEST("a chain of any depth is dropped without recursion") {
  MemoryOptions options;
  options.capacity_bytes = 1u << 30;
  MemoryTier tier(options);
  contract::Asker ask(tier);
  Key128 parent;
  const std::uint64_t depth = 20000;  // where each put walked the chain, this would take minutes
  for (std::uint64_t name = 1; name <= depth; ++name) {
    const contract::Sample block = contract::sample(name, {}, parent);
    EXPECT_EQ(ask.put(block).status, TierStatus::Ok);
    parent = block.key.digest;
  }
  EXPECT_EQ(tier.usage().records, depth);
  EXPECT_EQ(ask.remove(contract::sample(1, {}).key).status, TierStatus::Ok);
  EXPECT_EQ(tier.usage().records, 0u);
  EXPECT_EQ(tier.usage().bytes, 0u);
}

HKV_TEST("random puts, uses, pins and removals leave a forest in which everything adds up") {
  std::mt19937_64 random(7);
  std::uint64_t refused = 0, evicted = 0;
  for (int round = 0; round < 20; ++round) {
    RecordForest forest;
    std::vector<RecordKey> keys;
    for (int step = 0; step < 300; ++step) {
      RecordForest::Node* const some = keys.empty() ? nullptr : forest.find(keys[random() % keys.size()]);
      const std::uint64_t bytes_before = forest.bytes(), held_before = forest.held_bytes();
      switch (random() % 8) {
        case 0:
          if (some != nullptr && random() % 4 == 0) forest.drop(some);
          break;
        case 1:
          if (some != nullptr) forest.touch(some);
          break;
        default: {
          const RecordKey key{{random(), 1}, {}, RecordKind::Block};
          auto record = std::make_shared<MemoryRecord>();
          record->payload.resize(1 + random() % 9);
          std::uint64_t kept = forest.held_bytes();  // and what of the chain is not held
          for (auto* at = some; at != nullptr && at->held == 0; at = at->parent) kept += at->record->bytes();
          const auto gone = forest.make_room(record->bytes(), 100, some);
          EXPECT_EQ(gone.has_value(), kept + record->bytes() <= 100);
          EXPECT_EQ(forest.held_bytes(), held_before);
          if (!gone) {
            ++refused;
            EXPECT_EQ(forest.bytes(), bytes_before);
            break;
          }
          evicted += *gone;
          EXPECT(some == nullptr || forest.find(some->key) == some);
          forest.add(key, record, some, random() % 16 == 0);
          keys.push_back(key);
        }
      }
      std::uint64_t bytes = 0, held = 0, records = 0;
      for (const RecordKey& key : keys) {
        const RecordForest::Node* const node = forest.find(key);
        if (node == nullptr) continue;
        ++records;
        bytes += node->record->bytes();
        held += node->held != 0 ? node->record->bytes() : 0;
        EXPECT(node->parent == nullptr || forest.find(node->parent->key) == node->parent);
        EXPECT(node->held == 0 || node->parent == nullptr || node->parent->held != 0);
      }
      EXPECT_EQ(forest.records(), records);
      EXPECT_EQ(forest.bytes(), bytes);
      EXPECT_EQ(forest.held_bytes(), held);
      EXPECT(bytes <= 100);
    }
    EXPECT(forest.make_room(0, forest.held_bytes(), nullptr).has_value());
    EXPECT_EQ(forest.bytes(), forest.held_bytes());  // what is left is what is pinned and what it stands on
  }
  EXPECT(refused > 100 && evicted > 100);
}

}  // namespace hkv
