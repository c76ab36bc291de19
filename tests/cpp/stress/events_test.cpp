// SPDX-License-Identifier: Apache-2.0
// Threads fill, match, evict and withdraw a cache while one reads its events and applies them to an index. Whenever all
// stand still the index is what can be pinned: no event was lost, and none came in a wrong order.
//
// Rounds of 20,000 steps a thread, 4 by default or HKV_ROUNDS; after each round the index is compared, key by key.
#include "cache/events.h"

#include <atomic>
#include <cstdlib>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <tuple>

#include "cache/cache.h"
#include "testing.h"

namespace hkv {
namespace {

constexpr std::int64_t unit = 4;
constexpr int groups_of_world = 3, writers = 3, steps = 20000;
using Chain = std::shared_ptr<const KeyChain>;
using Index = std::set<std::tuple<int, std::uint64_t, std::uint64_t>>;

Layout layout_of(std::int64_t pages) {
  std::vector<Group> groups(groups_of_world);
  groups[0].name = "kv", groups[0].coverage = {Rule::Prefix, 0}, groups[0].kind = 0;
  groups[1].name = "swa", groups[1].coverage = {Rule::Window, 6}, groups[1].kind = 2;
  groups[2].name = "state", groups[2].coverage = {Rule::Checkpoint, 0}, groups[2].kind = 1;
  for (Group& g : groups) g.pages = pages, g.page_bytes = 64;
  return make_layout(unit, std::move(groups));
}

Chain chain_of(std::mt19937_64& random) {
  const std::string_view parts[identity_parts] = {"events", "", "", "", ""};
  const auto ids = std::make_shared<std::vector<std::uint32_t>>();
  const std::size_t length = 3 + random() % 20;
  for (std::size_t t = 0; t < length; ++t)
    ids->push_back(static_cast<std::uint32_t>(t * 2 + (t % 5 == 0 ? random() % 2 : 0)));
  TokenView view;
  view.data = reinterpret_cast<const std::byte*>(ids->data());
  view.count = static_cast<std::int64_t>(ids->size());
  view.owner = ids;
  return KeyChain::build(KeyChain::identity_root(unit, parts), unit, view, {});
}

struct World {
  HybridCache cache{layout_of(20), 40, std::vector<Digest16>(groups_of_world)};
  std::vector<Chain> chains;
  std::vector<Selection> all{groups_of_world, Selection{true, {}}};
  Index index;
  std::int64_t stored = 0, removed = 0, cleared = 0;

  World() {
    std::mt19937_64 random(5);
    for (int i = 0; i < 24; ++i) chains.push_back(chain_of(random));
  }

  void step(std::mt19937_64& random) {
    const Chain& chain = chains[random() % chains.size()];
    const auto what = random() % 100;
    if (what < 45) {
      fill(chain, random() % 8 != 0);
    } else if (what < 75) {
      ask(chain);
    } else if (what < 98) {
      cache.evict(*chain, all);
    } else if (random() % 16 == 0) {
      cache.withdraw_all();
    }
  }
  void fill(const Chain& chain, bool publishes) {
    try {
      const auto fill = cache.reserve(chain, all, cache.spec_formats(), nullptr);
      try {
        if (publishes) cache.publish(*fill, all);
      } catch (const Error&) {  // a private page found no descriptor
      }
      cache.abort(*fill, false);
    } catch (const Error&) {  // full
    }
  }
  void ask(const Chain& chain) {
    Question question;
    question.keys = chain.get();
    question.limit = chain->tokens();
    question.formats = cache.spec_formats();
    std::unique_ptr<Lease> lease;
    cache.match(question, chain, lease);
    if (lease == nullptr) return;
    cache.settle(*lease, Settlement::Released);
    cache.drop(std::move(lease));
  }
  void apply() {
    for (const StoreEvent& event : cache.events(false)) {
      const std::tuple at{event.group, event.key.lo, event.key.hi};
      if (event.kind == StoreEventKind::Cleared) {
        index.clear();
        ++cleared;
      } else if (event.kind == StoreEventKind::Stored) {
        EXPECT(index.insert(at).second);
        ++stored;
      } else {
        EXPECT(index.erase(at) == 1);
        ++removed;
      }
    }
  }
  // What can be pinned, from the words of every descriptor.
  Index truth() {
    Index found;
    BlockStore& store = cache.store();
    for (std::uint32_t i = 0; i < store.blocks(); ++i) {
      const DescriptorId id{i};
      const Descriptor& d = store[id];
      if (!d.word(WordClass::H).live() || store.is_directory(id)) continue;
      for (int g = 0; g < groups_of_world; ++g) {
        const GroupSlot& at = store.slot_of(g);
        if (d.word(at.which).usable_slot(at.slot)) found.insert({g, d.key().lo, d.key().hi});
      }
    }
    return found;
  }
};

HKV_TEST("an index made of events is the cache, however many threads change it") {
  World world;
  const char* const wanted = std::getenv("HKV_ROUNDS");
  const int rounds = wanted != nullptr ? std::atoi(wanted) : 4;
  for (int round = 0; round < rounds; ++round) {
    std::atomic<int> running{writers};
    std::vector<std::thread> threads;
    for (int t = 0; t < writers; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(static_cast<std::uint64_t>(round * writers + t));
        for (int i = 0; i < steps; ++i) world.step(random);
        --running;
      });
    }
    while (running.load() != 0) world.apply();
    for (std::thread& thread : threads) thread.join();
    world.apply();
    EXPECT(world.index == world.truth());
    EXPECT(world.cache.events(false).empty());
  }
  std::printf("%lld stored, %lld removed, %lld cleared\n", static_cast<long long>(world.stored),
              static_cast<long long>(world.removed), static_cast<long long>(world.cleared));
  EXPECT(world.stored > 1000 && world.removed > 1000 && world.cleared > 0);
}

HKV_TEST("an index that begins anew has all there is") {
  World world;
  std::mt19937_64 random(1);
  for (int i = 0; i < 500; ++i) world.step(random);
  world.apply();
  world.fill(world.chains[0], true);
  const std::vector<StoreEvent> events = world.cache.events(true);
  EXPECT(!events.empty() && events.front().kind == StoreEventKind::Cleared);
  EXPECT_EQ(events.size(), world.truth().size() + 1);
  EXPECT(world.cache.events(false).empty());
}

}  // namespace
}  // namespace hkv
