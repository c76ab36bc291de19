// SPDX-License-Identifier: Apache-2.0
// Which pages make room, in which order: the least recently used, and by usability.
#include "alloc/eviction.h"

#include <algorithm>
#include <random>

#include "cache/cache.h"
#include "testing.h"

namespace hkv {
namespace {

constexpr std::int64_t unit = 4;
using Chain = std::shared_ptr<const KeyChain>;

Group group(const char* name, Rule rule, std::int64_t tokens, std::int64_t pages, std::int64_t block_units = 1) {
  Group g;
  g.name = name;
  g.kind = rule == Rule::Prefix ? 0 : rule == Rule::Checkpoint ? 1 : 2;
  g.coverage = {rule, tokens};
  g.pages = pages;
  g.page_bytes = 64;
  g.block_units = block_units;
  return g;
}

Chain chain_of(std::vector<std::uint32_t> ids) {
  const std::string_view parts[identity_parts] = {"eviction", "", "", "", ""};
  const auto owned = std::make_shared<const std::vector<std::uint32_t>>(std::move(ids));
  TokenView view;
  view.data = reinterpret_cast<const std::byte*>(owned->data());
  view.count = static_cast<std::int64_t>(owned->size());
  view.owner = owned;
  return KeyChain::build(KeyChain::identity_root(unit, parts), unit, view, {});
}

// `units` whole units and `rest` tokens: the first `shared` tokens are alike in all branches.
Chain branch(std::uint32_t name, std::int64_t units, std::int64_t shared = 0, std::int64_t rest = 0) {
  std::vector<std::uint32_t> ids;
  for (std::int64_t t = 0; t < units * unit + rest; ++t)
    ids.push_back(static_cast<std::uint32_t>(t) + (t < shared * unit ? 0 : 1000 * name));
  return chain_of(std::move(ids));
}

struct World {
  World(std::vector<Group> groups, std::int64_t blocks, EvictionOrder order)
      : cache(make_layout(unit, std::move(groups)), blocks,
              std::vector<Digest16>(8), order),
        all(cache.layout().groups.size(), Selection{true, {}}) {}

  std::unique_ptr<Fill> reserve(const Chain& keys) {
    return cache.reserve(keys, all, cache.spec_formats(), nullptr);
  }
  void insert(const Chain& keys) {
    auto fill = reserve(keys);
    cache.publish(*fill, all);
    cache.abort(*fill, false);
  }
  std::unique_ptr<Lease> match(const Chain& keys) {
    Question question;
    question.keys = keys.get();
    question.limit = keys->tokens() + 1;
    question.formats = cache.spec_formats();
    std::unique_ptr<Lease> lease;
    cache.match(question, keys, lease);
    return lease;
  }
  void drop(std::unique_ptr<Lease> lease) {
    cache.settle(*lease, Settlement::Released);
    cache.drop(std::move(lease));
  }
  std::int64_t use(const Chain& keys) {
    auto lease = match(keys);
    const std::int64_t tokens = lease == nullptr ? 0 : lease->tokens;
    if (lease != nullptr) drop(std::move(lease));
    return tokens;
  }
  bool has(const Chain& keys, int g, std::int64_t block) {
    return usable(cache.inspect(*keys, g, block).phase);
  }
  // Blocks of a group that are there, as "1101".
  std::string there(const Chain& keys, int g, std::int64_t blocks) {
    std::string text;
    for (std::int64_t b = 0; b < blocks; ++b) text += has(keys, g, b) ? '1' : '0';
    return text;
  }
  void forget(const Chain& keys, int g, std::vector<std::int64_t> blocks) {
    std::vector<Selection> some(all.size());
    some[static_cast<std::size_t>(g)].blocks = std::move(blocks);
    cache.evict(*keys, some);
  }
  bool conserved() {
    for (int g = 0; g < cache.store().group_count(); ++g) {
      const auto census = cache.store().census(g, static_cast<std::uint64_t>(cache.private_pages(g)));
      const std::uint64_t sum = census.free + census.filling + census.held + census.cached;
      if (sum != cache.store().pool(g).count()) return false;
      if (cache.store().evictable(g) != static_cast<std::int64_t>(census.cached)) return false;
    }
    return true;
  }

  HybridCache cache;
  std::vector<Selection> all;
};

std::vector<Group> kv(std::int64_t pages) { return {group("kv", Rule::Prefix, 0, pages)}; }
// Window(5): what a resume needs is the one block before it.
std::vector<Group> hybrid(std::int64_t history, std::int64_t states) {
  return {group("kv", Rule::Prefix, 0, history), group("swa", Rule::Window, 5, states)};
}
std::int64_t pages_of(const HybridCache::EvictionCounts& counts, int g, EvictionClass why) {
  return counts.pages[static_cast<std::size_t>(g)][static_cast<std::size_t>(why)];
}

}  // namespace

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

HKV_TEST("usability: the tail of a branch outlives pages outside every tail") {
  World w(hybrid(40, 10), 64, EvictionOrder::Usability);
  w.insert(branch(1, 2));  // the oldest
  w.insert(branch(2, 8));
  EXPECT_EQ(w.cache.make_room(1, 8), 8);
  EXPECT_EQ(w.there(branch(1, 2), 1, 2), std::string("01"));
  EXPECT_EQ(w.there(branch(2, 8), 1, 8), std::string("00000001"));
  EXPECT_EQ(w.use(branch(1, 2)), 2 * unit);
  EXPECT_EQ(w.use(branch(2, 8)), 8 * unit);
  EXPECT_EQ(pages_of(w.cache.eviction_counts(), 1, EvictionClass::Superseded), 8);
  // Then the tail that was used longest ago goes.
  w.use(branch(1, 2));
  EXPECT_EQ(w.cache.make_room(1, 1), 1);
  EXPECT_EQ(w.use(branch(1, 2)), 2 * unit);
  EXPECT_EQ(w.use(branch(2, 8)), 0);
  EXPECT_EQ(pages_of(w.cache.eviction_counts(), 1, EvictionClass::Tail), 1);
}

HKV_TEST("usability: a fork keeps its tail, and so does a boundary where leases resumed twice") {
  World w(hybrid(40, 20), 64, EvictionOrder::Usability);
  w.insert(branch(1, 6, 3));
  w.insert(branch(2, 6, 3));  // a fork at 3
  EXPECT_EQ(w.cache.make_room(1, 6), 6);
  EXPECT_EQ(w.there(branch(1, 6, 3), 1, 6), std::string("001001"));
  EXPECT_EQ(w.there(branch(2, 6, 3), 1, 6), std::string("001001"));
  World twice(hybrid(40, 20), 64, EvictionOrder::Usability);
  twice.insert(branch(1, 6, 6));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(twice.use(branch(3, 4, 2)), 2 * unit);
  EXPECT_EQ(twice.cache.make_room(1, 4), 4);
  EXPECT_EQ(twice.there(branch(1, 6, 6), 1, 6), std::string("010001"));
}

HKV_TEST("usability: a window of several blocks is kept as a whole") {
  // Window(10): a resume needs the last 9 tokens, which lie in 3 blocks.
  World w({group("kv", Rule::Prefix, 0, 40), group("swa", Rule::Window, 10, 20)}, 64, EvictionOrder::Usability);
  w.insert(branch(1, 8));
  EXPECT_EQ(w.cache.make_room(1, 5), 5);
  EXPECT_EQ(w.there(branch(1, 8), 1, 8), std::string("00000111"));
  // Blocks that end between two steps of history belong to the tail of what comes next.
  World fine({group("kv", Rule::Prefix, 0, 20, 4), group("swa", Rule::Window, 10, 40)}, 64,
             EvictionOrder::Usability);
  fine.insert(branch(1, 8));
  EXPECT_EQ(fine.cache.make_room(1, 5), 5);
  EXPECT_EQ(fine.there(branch(1, 8), 1, 8), std::string("00000111"));
}

HKV_TEST("usability: suffix goes before prefix, and what is used last stays longest") {
  World w(kv(12), 64, EvictionOrder::Usability);
  w.insert(branch(1, 6, 3));
  w.insert(branch(2, 6, 3));
  w.use(branch(1, 6, 3));
  EXPECT_EQ(w.cache.make_room(0, 2), 2);
  EXPECT_EQ(w.there(branch(2, 6, 3), 0, 6), std::string("111100"));
  EXPECT_EQ(w.there(branch(1, 6, 3), 0, 6), std::string("111111"));
  EXPECT_EQ(w.cache.make_room(0, 4), 4);
  EXPECT_EQ(w.there(branch(1, 6, 3), 0, 6), std::string("111000"));
  EXPECT_EQ(w.there(branch(2, 6, 3), 0, 6), std::string("111000"));
  EXPECT_EQ(w.cache.make_room(0, 9), 3);
  EXPECT_EQ(w.cache.store().ids().free_count(), 64u);
}

HKV_TEST("usability: history that leads to no boundary goes before history that does") {
  World w(hybrid(20, 20), 64, EvictionOrder::Usability);
  w.insert(branch(1, 3));
  w.insert(branch(2, 5));
  w.forget(branch(2, 5), 1, {3, 4});  // nothing resumes at 4 and 5 any more
  EXPECT_EQ(w.cache.make_room(0, 2), 2);
  EXPECT_EQ(w.there(branch(2, 5), 0, 5), std::string("11100"));
  EXPECT_EQ(w.there(branch(1, 3), 0, 3), std::string("111"));
  EXPECT_EQ(w.cache.make_room(0, 1), 1);  // now the older one
  EXPECT_EQ(w.there(branch(1, 3), 0, 3), std::string("110"));
  EXPECT(w.has(branch(1, 3), 1, 2));  // its state stays, and serves when the prompt comes again
  w.insert(branch(1, 3));
  EXPECT_EQ(w.use(branch(1, 3)), 3 * unit);
}

HKV_TEST("usability: stranded history is counted and goes first, and states without history do") {
  World w(hybrid(20, 20), 64, EvictionOrder::Usability);
  w.insert(branch(1, 3));
  w.insert(branch(2, 4));
  EXPECT_EQ(w.cache.eviction_counts().stranded_now, 0);
  w.forget(branch(2, 4), 0, {0});
  EXPECT_EQ(w.cache.eviction_counts().stranded_now, 3 * unit);
  EXPECT_EQ(w.cache.make_room(1, 4), 4);
  EXPECT_EQ(w.there(branch(2, 4), 1, 4), std::string("0000"));
  EXPECT_EQ(w.there(branch(1, 3), 1, 3), std::string("111"));
  EXPECT_EQ(w.cache.make_room(0, 3), 3);
  EXPECT_EQ(w.there(branch(1, 3), 0, 3), std::string("111"));
  const auto counts = w.cache.eviction_counts();
  EXPECT_EQ(counts.stranded_now, 0);
  EXPECT_EQ(counts.stranded_tokens, 3 * unit);
  EXPECT_EQ(pages_of(counts, 0, EvictionClass::Stranded), 3);
  EXPECT_EQ(pages_of(counts, 1, EvictionClass::Stranded), 4);
}

HKV_TEST("usability: what comes back under stranded history makes it whole again") {
  for (const bool leased : {false, true}) {
    World w(kv(20), 64, EvictionOrder::Usability);
    w.insert(branch(1, 4));
    auto elsewhere = w.reserve(branch(3, 1));
    w.forget(branch(1, 4), 0, {0});
    w.insert(branch(9, 1));  // takes the id
    w.insert(leased ? branch(1, 1) : branch(1, 4));
    if (leased) {
      EXPECT_EQ(w.cache.eviction_counts().stranded_now, 3 * unit);  // nobody has told yet
      w.use(branch(1, 4));
    }
    EXPECT_EQ(w.cache.eviction_counts().stranded_now, 0);
    w.cache.abort(*elsewhere, false);
  }
}

HKV_TEST("tips go as ends of branches do, and their directory serves again") {
  World w(hybrid(24, 24), 64, EvictionOrder::Usability);
  for (std::uint32_t i = 1; i <= 4; ++i) w.insert(branch(i, 2, 2, 2));
  EXPECT_EQ(w.use(branch(3, 2, 2, 2)), 2 * unit + 2);
  EXPECT_EQ(w.cache.make_room(0, 3), 3);
  EXPECT_EQ(w.use(branch(3, 2, 2, 2)), 2 * unit + 2);  // the one used last is left
  EXPECT_EQ(w.use(branch(1, 2, 2, 2)), 2 * unit);
  for (std::uint32_t i = 5; i <= 7; ++i) {
    w.insert(branch(i, 2, 2, 2));
    EXPECT_EQ(w.use(branch(i, 2, 2, 2)), 2 * unit + 2);
  }
  EXPECT_EQ(w.use(branch(3, 2, 2, 2)), 2 * unit + 2);  // no place was taken from a live one
  EXPECT(w.conserved());
  while (w.cache.make_room(0, 1) != 0 || w.cache.make_room(1, 1) != 0) {
  }
  EXPECT_EQ(w.cache.store().ids().free_count(), 63u);  // the empty directory
  EXPECT_EQ(w.cache.make_room(descriptor_pool, 5), 1);
  EXPECT_EQ(w.cache.store().ids().free_count(), 64u);
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

HKV_TEST("random runs: conservation, nothing pinned goes, history is never cut, a refusal changes nothing") {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const EvictionOrder order = seed % 3 == 0 ? EvictionOrder::Lru : EvictionOrder::Usability;
    World w({group("kv", Rule::Prefix, 0, 24, seed % 2 + 1), group("second", Rule::Prefix, 0, 24),
             group("swa", Rule::Window, 7, 20), group("state", Rule::Checkpoint, 0, 20)},
            seed % 5 == 0 ? 20 : 64, order);
    std::mt19937_64 random(seed);
    std::vector<Chain> chains;
    for (std::uint32_t i = 0; i < 12; ++i)
      chains.push_back(branch(i, 1 + static_cast<std::int64_t>(random() % 7), static_cast<std::int64_t>(random() % 4),
                              random() % 3 == 0 ? 2 : 0));
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
          right &= w.cache.store()[pin.id].word(pin.which).pins() > 0 && w.cache.store()[pin.id].word(WordClass::H).live();
        std::vector<std::uint32_t> ids;
        w.cache.page_ids(*lease, 1, ids);
        for (std::size_t b = 0; b < static_cast<std::size_t>(lease->tokens / unit); ++b)
          right &= ids[b] != none_u32 && !w.cache.store().pool(1).is_free(PageId{ids[b]});
      }
      for (const Chain& chain : chains) {  // history is whole from its start
        for (int g = 0; g < 2 && order == EvictionOrder::Usability; ++g) {
          const std::string seen = w.there(chain, g, chain->end_unit() / w.cache.layout().groups[g].block_units);
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
