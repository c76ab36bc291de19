// SPDX-License-Identifier: Apache-2.0
// What makes room, whatever the order, and the least recently used order.
// One thread: left out under ThreadSanitizer.
#include "alloc/eviction_world.h"

namespace hkv {
using namespace eviction;

HKV_TEST("least recently used: unhashed pages first, then by release, tail before head (vLLM test_evict)") {
  World w(kv(10), 64, EvictionOrder::Lru);
  auto first = w.reserve(branch(1, 5));
  const PageId unhashed = w.cache.store().pool(0).take();  // the partial block of the first request
  auto second = w.reserve(branch(2, 3));
  w.cache.publish(*first, w.all);
  w.cache.publish(*second, w.all);
  w.cache.store().pool(0).give_back(unhashed);
  std::vector<std::uint32_t> order;
  std::vector<std::unique_ptr<Fill>> fills;
  for (std::uint32_t i = 0; i < 10; ++i) {
    fills.push_back(w.reserve(branch(10 + i, 1)));
    order.push_back(index(fills.back()->entries[0][0].page) + 1);
  }
  EXPECT((order == std::vector<std::uint32_t>{6, 10, 5, 4, 3, 2, 1, 9, 8, 7}));
  EXPECT_EQ(pages_of(w.cache.eviction_counts(), 0, EvictionClass::History), 8);
  for (auto& fill : fills) w.cache.abort(*fill, false);
}

HKV_TEST("a cached block that makes room is not found any more") {
  for (const EvictionOrder order : {EvictionOrder::Lru, EvictionOrder::Usability}) {
    World w(kv(1), 8, order);
    w.insert(branch(1, 1));
    w.insert(branch(2, 1));
    EXPECT(!w.has(branch(1, 1), 0, 0) && w.has(branch(2, 1), 0, 0));
    EXPECT_EQ(w.use(branch(1, 1)), 0);
  }
}

HKV_TEST("what a lease holds is not evicted, and neither is what the request itself continues") {
  for (const EvictionOrder order : {EvictionOrder::Lru, EvictionOrder::Usability}) {
    World w(kv(2), 8, order);
    w.insert(branch(1, 1));
    w.insert(branch(2, 1));
    auto lease = w.match(branch(1, 1));
    auto fill = w.reserve(branch(3, 1));
    EXPECT(w.has(branch(1, 1), 0, 0) && !w.has(branch(2, 1), 0, 0));
    EXPECT(w.conserved());
    w.cache.abort(*fill, false);
    w.drop(std::move(lease));
    w.insert(branch(2, 1));
    // The older of two is what the request continues: its own prefix makes no room for it.
    fill = w.reserve(branch(4, 2, 1));  // shares nothing
    w.cache.abort(*fill, false);
    World own(kv(2), 8, order);
    own.insert(branch(1, 1));
    own.insert(branch(2, 1));
    fill = own.reserve(branch(1, 2));
    EXPECT_EQ(fill->entries[0].size(), 1u);
    EXPECT(own.has(branch(1, 2), 0, 0) && !own.has(branch(2, 1), 0, 0));
    own.cache.abort(*fill, false);
    EXPECT(own.conserved());
  }
}

HKV_TEST("a whole that does not fit changes nothing") {
  for (const EvictionOrder order : {EvictionOrder::Lru, EvictionOrder::Usability}) {
    World w(hybrid(6, 6), 32, order);
    w.insert(branch(1, 2));
    w.insert(branch(2, 2));
    w.insert(branch(3, 2));
    auto lease = w.match(branch(1, 2));
    // The lease holds 2 pages of history; the longer form of the second holds 2 more, which are its own.
    for (const bool continues : {false, true}) {
      bool refused = false;
      try {
        w.reserve(continues ? branch(2, 5) : branch(4, 5));
      } catch (const OutOfPagesError& error) {
        refused = true;
        EXPECT_EQ(error.pool, std::string("kv"));
        EXPECT_EQ(error.needed, continues ? 3 : 5);
        EXPECT_EQ(error.free, continues ? 2 : 4);
      }
      EXPECT(refused);
      for (std::uint32_t i = 1; i <= 3; ++i) {
        for (int g = 0; g < 2; ++g) EXPECT_EQ(w.there(branch(i, 2), g, 2), std::string("11"));
      }
      EXPECT(w.conserved());
    }
    w.drop(std::move(lease));
  }
}

HKV_TEST("no order: nothing makes room") {
  World w(kv(2), 8, EvictionOrder::None);
  w.insert(branch(1, 2));
  bool refused = false;
  try {
    w.reserve(branch(2, 1));
  } catch (const OutOfPagesError& error) {
    refused = error.free == 0 && error.needed == 1;
  }
  EXPECT(refused);
  EXPECT_EQ(w.cache.make_room(0, 1), 0);
  EXPECT_EQ(w.there(branch(1, 2), 0, 2), std::string("11"));
}

HKV_TEST("least recently used is exact, although victims are chosen many at a time") {
  constexpr int count = 300;
  World w(kv(count), 1024, EvictionOrder::Lru);
  std::mt19937_64 random(5);
  std::vector<std::uint32_t> order;  // the least recently used first
  for (std::uint32_t i = 0; i < count; ++i) {
    w.insert(branch(i, 1));
    order.push_back(i);
  }
  std::uint32_t next = count;
  for (int step = 0; step < 3000; ++step) {
    if (random() % 3 != 0) {
      const std::size_t at = random() % order.size();
      const std::uint32_t used = order[at];
      EXPECT_EQ(w.use(branch(used, 1)), unit);
      order.erase(order.begin() + static_cast<std::ptrdiff_t>(at));
      order.push_back(used);
      continue;
    }
    const std::uint32_t oldest = order.front();
    w.insert(branch(next, 1));
    order.erase(order.begin());
    order.push_back(next++);
    const bool right = !w.has(branch(oldest, 1), 0, 0) && w.has(branch(order.front(), 1), 0, 0);
    EXPECT(right);
    if (!right) return;
  }
}

HKV_TEST("where descriptors are short they are freed, and a whole that needs too many changes nothing") {
  for (const EvictionOrder order : {EvictionOrder::Lru, EvictionOrder::Usability}) {
    World w(hybrid(40, 40), 6, order);
    w.insert(branch(1, 3));
    w.insert(branch(2, 3));
    auto lease = w.match(branch(2, 3));
    auto fill = w.reserve(branch(3, 2));
    EXPECT_EQ(w.there(branch(1, 3), 0, 3), std::string("100"));
    EXPECT_EQ(w.there(branch(2, 3), 0, 3), std::string("111"));
    bool refused = false;
    try {
      w.reserve(branch(4, 2));
    } catch (const OutOfPagesError& error) {
      refused = error.pool == "blocks" && error.needed == 2 && error.free < 2;
    }
    EXPECT(refused);
    EXPECT_EQ(w.there(branch(1, 3), 0, 3), std::string("100"));
    w.cache.abort(*fill, false);
    w.drop(std::move(lease));
    EXPECT(w.conserved());
  }
}

HKV_TEST("descriptors that a fill needs itself do not count as those that can go for it") {
  for (const EvictionOrder order : {EvictionOrder::Lru, EvictionOrder::Usability}) {
    World w(hybrid(40, 3), 3, order);
    const std::vector<Selection> history = {Selection{true, {}}, Selection{}};
    const std::vector<Selection> states = {Selection{}, Selection{true, {}}};
    const auto fill_of = [&](const Chain& keys, const std::vector<Selection>& groups) {
      return w.cache.reserve(keys, groups, w.cache.spec_formats(), nullptr);
    };
    auto first = fill_of(branch(1, 2), history);
    w.cache.publish(*first, history);
    auto other =
        w.reserve(branch(2, 1));  // its state may make room, its descriptor not: the block is being filled
    w.cache.publish(*other, states);
    bool refused = false;
    try {
      fill_of(branch(1, 3), states);  // beside both blocks of history, and a third descriptor
    } catch (const OutOfPagesError& error) {
      refused = error.pool == "blocks" && error.needed == 1 && error.free == 0;
    }
    EXPECT(refused);
    EXPECT(w.has(branch(2, 1), 1, 0));
    EXPECT_EQ(w.there(branch(1, 2), 0, 2), std::string("11"));
    w.cache.abort(*other, false);
    auto fill = fill_of(branch(1, 3), states);  // now the other's can go
    EXPECT(!w.has(branch(2, 1), 1, 0));
    w.cache.abort(*fill, false);
    EXPECT(w.conserved());
  }
}

HKV_TEST("random runs: conservation, nothing pinned goes, history is never cut, a refusal changes nothing") {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const EvictionOrder order = seed % 3 == 0 ? EvictionOrder::Lru : EvictionOrder::Usability;
    World w({group("kv", Rule::Prefix, 0, 24, seed % 2 + 1), group("second", Rule::Prefix, 0, 24),
             group("swa", Rule::Window, 7, 20), group("state", Rule::Checkpoint, 0, 20)},
            seed % 5 == 0 ? 20 : 64, order);
    std::mt19937_64 random(seed);
    std::vector<Chain> chains;
    for (std::uint32_t i = 0; i < 12; ++i)
      chains.push_back(branch(i, 1 + static_cast<std::int64_t>(random() % 7),
                              static_cast<std::int64_t>(random() % 4), random() % 3 == 0 ? 2 : 0));
    std::vector<std::unique_ptr<Lease>> leases;
    for (int step = 0; step < 300; ++step) {
      const Chain& keys = chains[random() % chains.size()];
      const auto what = random() % 10;
      if (what < 4) {
        try {
          w.insert(keys);
        } catch (const OutOfPagesError&) {
        }
      } else if (what < 7) {
        if (auto lease = w.match(keys)) leases.push_back(std::move(lease));
      } else if (what < 9 && !leases.empty()) {
        w.drop(std::move(leases.back()));
        leases.pop_back();
      } else {
        w.cache.make_room(static_cast<int>(random() % 5) - 1, 1 + static_cast<std::int64_t>(random() % 3));
      }
      bool right = w.conserved() && w.cache.store().verify() == no_descriptor;
      for (const auto& lease : leases) {
        for (const Lease::Pin& pin : lease->pins)
          right &= w.cache.store()[pin.id].word(pin.which).pins() > 0 &&
                   w.cache.store()[pin.id].word(WordClass::H).live();
        std::vector<std::uint32_t> ids;
        w.cache.page_ids(*lease, 1, ids);
        for (std::size_t b = 0; b < static_cast<std::size_t>(lease->tokens / unit); ++b)
          right &= ids[b] != none_u32 && !w.cache.store().pool(1).is_free(PageId{ids[b]});
      }
      for (const Chain& chain : chains) {  // history is whole from its start
        for (int g = 0; g < 2 && order == EvictionOrder::Usability; ++g) {
          const std::string seen =
              w.there(chain, g, chain->end_unit() / w.cache.layout().groups[g].block_units);
          right &= seen.find("01") == std::string::npos;
        }
      }
      if (order == EvictionOrder::Usability) right &= w.cache.eviction_counts().stranded_now == 0;
      EXPECT(right);
      if (!right) {
        std::printf("     seed %llu, step %d, what %d\n", static_cast<unsigned long long>(seed), step,
                    static_cast<int>(what));
        return;
      }
    }
    for (auto& lease : leases) w.drop(std::move(lease));
  }
}

}  // namespace hkv
