// SPDX-License-Identifier: Apache-2.0
// Nothing is allocated on the match path once it is warm: operator new is counted.
// One thread: left out under ThreadSanitizer.
#include <memory>

#include "cache/cache.h"
#include "counted_new.h"
#include "layout/key_chain.h"
#include "testing.h"

namespace hkv {
namespace {

Group group(const char* name, Rule rule, std::int64_t tokens, std::int64_t block_units) {
  Group g;
  g.name = name;
  g.kind = rule == Rule::Prefix ? 0 : rule == Rule::Checkpoint ? 1 : 2;
  g.coverage = {rule, tokens};
  g.block_units = block_units;
  g.pages = 1024;
  g.page_bytes = 64;
  return g;
}

std::shared_ptr<const KeyChain> chain(std::size_t units, std::uint64_t seed) {
  std::vector<Key128> keys(units);
  std::uint64_t state = seed;
  for (Key128& key : keys) {
    key.lo = state = state * 6364136223846793005u + 1442695040888963407u;
    key.hi = state = state * 6364136223846793005u + 1442695040888963407u;
  }
  return KeyChain::from_hashes(std::move(keys), 4);
}

struct World {
  World()
      : cache(make_layout(4, {group("history", Rule::Prefix, 0, 4), group("second", Rule::Prefix, 0, 2),
                              group("window", Rule::Window, 40, 1), group("state", Rule::Checkpoint, 0, 4)}),
              4096, std::vector<Digest16>(4)),
        known(chain(256, 1)),
        unknown(chain(256, 2)),
        shorter(chain(64, 1)) {
    std::vector<Selection> everything(4);
    for (Selection& selection : everything) selection.all = true;
    auto fill = cache.reserve(known, everything, cache.spec_formats(), nullptr);
    cache.publish(*fill, everything);
  }

  Verdict cycle(const std::shared_ptr<const KeyChain>& keys, Settlement how = Settlement::Released,
                std::int64_t drop_tokens = 0, std::int64_t exactly = -1) {
    Question question;
    question.keys = keys.get();
    question.limit = keys->tokens() + 1;
    question.drop_tokens = drop_tokens;
    question.exactly = exactly;
    question.formats = cache.spec_formats();
    std::unique_ptr<Lease> lease;
    const Verdict verdict = cache.match(question, keys, lease);
    if (lease != nullptr) {
      cache.settle(*lease, how);
      cache.drop(std::move(lease));
    }
    return verdict;
  }

  HybridCache cache;
  std::shared_ptr<const KeyChain> known, unknown, shorter;
};

template <class Body>
long allocated_by(Body&& body) {
  const long before = allocations.load();
  body();
  return allocations.load() - before;
}

HKV_TEST("the counter counts: a vector and a cold match allocate") {
  EXPECT(allocated_by([] { std::vector<int> some(10); }) > 0);
  World world;
  EXPECT(allocated_by([&] { world.cycle(world.known); }) > 0);
}

HKV_TEST("a warm hit allocates nothing, however it is settled") {
  World world;
  EXPECT_EQ(world.cycle(world.known).usable_tokens, 1024);
  for (const Settlement how : {Settlement::Released, Settlement::Failed, Settlement::Withdrawn}) {
    EXPECT_EQ(allocated_by([&] { world.cycle(world.known, how); }), 0);
  }
}

HKV_TEST("a shorter hit, a drop, a length agreed on and a miss allocate nothing after a longer hit") {
  World world;
  world.cycle(world.known);
  EXPECT_EQ(world.cycle(world.shorter).usable_tokens, 256);
  EXPECT_EQ(allocated_by([&] { world.cycle(world.shorter); }), 0);
  EXPECT_EQ(allocated_by([&] { world.cycle(world.known, Settlement::Released, 100); }), 0);
  EXPECT_EQ(allocated_by([&] { world.cycle(world.known, Settlement::Released, 0, 512); }), 0);
  EXPECT(world.cycle(world.unknown).outcome == Outcome::Miss);
  EXPECT_EQ(allocated_by([&] { world.cycle(world.unknown); }), 0);
}

HKV_TEST("a false hit and its explanation allocate nothing") {
  World world;
  world.cycle(world.known);
  std::vector<Selection> windows(4);
  windows[2].all = true;
  world.cache.evict(*world.known, windows);
  EXPECT(world.cycle(world.known).outcome == Outcome::FalseHit);
  EXPECT_EQ(allocated_by([&] { world.cycle(world.known); }), 0);
}

HKV_TEST("making room allocates nothing once it has been made before") {
  World world;
  std::vector<Selection> everything(4);
  for (Selection& selection : everything) selection.all = true;
  for (int pass = 0; pass < 2; ++pass) {
    for (int group = -1; group < 4; ++group) {
      const long allocated = allocated_by([&] { EXPECT(world.cache.make_room(group, 20) >= 20); });
      if (pass == 1) EXPECT_EQ(allocated, 0);
    }
    auto fill = world.cache.reserve(world.known, everything, world.cache.spec_formats(), nullptr);
    world.cache.publish(*fill, everything);
  }
}

HKV_TEST("leases held at the same time allocate nothing once as many have been held before") {
  World world;
  const auto hold = [&](int n) {
    std::unique_ptr<Lease> held[4];
    for (int i = 0; i < n; ++i) {
      Question question;
      question.keys = world.known.get();
      question.limit = world.known->tokens();
      question.formats = world.cache.spec_formats();
      world.cache.match(question, world.known, held[i]);
    }
    for (int i = 0; i < n; ++i) {
      world.cache.settle(*held[i], Settlement::Released);
      world.cache.drop(std::move(held[i]));
    }
  };
  hold(4);
  EXPECT_EQ(allocated_by([&] { hold(4); }), 0);
}

}  // namespace
}  // namespace hkv
