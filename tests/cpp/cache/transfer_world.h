// SPDX-License-Identifier: Apache-2.0
// A small hybrid cache over a held tier, with pools whose pages tell whose they are.
//
// Thread safety: one thread.
#pragma once
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "cache/held_tier.h"
#include "cache/transfers.h"
#include "sim/ticket_draws.h"
#include "testing.h"

namespace hkv::transfer_world {

constexpr std::int64_t unit = 4;

inline Group group(const char* name, int kind, Rule rule, std::int64_t parameter, std::int64_t pages,
                   bool rebuildable = false) {
  Group g;
  g.name = name;
  g.kind = kind;
  g.coverage = {rule, parameter};
  g.pages = pages;
  g.page_bytes = 64;
  g.rebuildable = rebuildable;
  return g;
}

inline std::vector<Group> hybrid(std::int64_t pages) {
  return {group("kv", 0, Rule::Prefix, 0, pages), group("idx", 3, Rule::Prefix, 0, pages),
          group("swa", 2, Rule::Window, 6, pages), group("tail", 1, Rule::Checkpoint, 0, pages)};
}

class World {
 public:
  explicit World(std::vector<Group> groups, TierLink link = {}, std::int64_t blocks = 64)
      : cache(make_layout(unit, groups), blocks, std::vector<Digest16>(groups.size())) {
    for (std::size_t g = 0; g < groups.size(); ++g) {
      pools.emplace_back(static_cast<std::size_t>(groups[g].pages * groups[g].page_bytes));
      bases.push_back(pools.back().data());
      cache.bind(static_cast<int>(g),
                 {{reinterpret_cast<std::uint64_t>(pools.back().data()), groups[g].page_bytes,
                   groups[g].page_bytes, 0}},
                 true);
    }
    link.tier = &tier;
    cache.attach(link);
  }

  std::shared_ptr<const KeyChain> keys(std::int64_t tokens, std::uint32_t from = 1) {
    sim::Prefix ids;
    for (std::int64_t i = 0; i < tokens; ++i) ids.push_back(from + static_cast<std::uint32_t>(i));
    return sim::chain_of(unit, ids);
  }
  std::uint8_t byte_of(const KeyChain& keys, int g, std::int64_t block) const {
    return static_cast<std::uint8_t>(keys.keys()[block].lo * 7 + static_cast<std::uint64_t>(g) * 31 + 1);
  }
  // Publishes every block of the keys, each page full of its own byte.
  void write(const std::shared_ptr<const KeyChain>& keys) {
    const std::vector<Selection> all(pools.size(), Selection{true, {}});
    auto fill = cache.reserve(keys, all, cache.spec_formats(), nullptr);
    for (int g = 0; g < static_cast<int>(pools.size()); ++g) {
      for (const Fill::Entry& entry : fill->entries[static_cast<std::size_t>(g)])
        std::memset(page(g, entry.page), byte_of(*keys, g, entry.block), 64);
    }
    cache.publish(*fill, all);
    cache.abort(*fill, false);
  }
  std::int64_t evict(const KeyChain& keys) {
    return cache.evict(keys, std::vector<Selection>(pools.size(), Selection{true, {}}));
  }
  void forget(const KeyChain& keys) {
    evict(keys);
    for (std::size_t g = 0; g < pools.size(); ++g) std::memset(bases[g], 0xEE, pools[g].size());
  }
  std::uint8_t* page(int g, PageId page) { return bases[static_cast<std::size_t>(g)] + 64 * index(page); }

  Verdict match(const std::shared_ptr<const KeyChain>& keys, std::unique_ptr<Lease>& lease,
                std::int64_t exactly = -1) {
    Question question;
    question.keys = keys.get();
    question.limit = exactly >= 0 ? exactly + 1 : keys->tokens() + 1;
    question.exactly = exactly;
    question.formats = cache.spec_formats();
    return cache.match(question, keys, lease);
  }
  Verdict look(const std::shared_ptr<const KeyChain>& keys) {
    std::unique_ptr<Lease> lease;
    const Verdict verdict = match(keys, lease);
    let_go(lease);
    return verdict;
  }
  void let_go(std::unique_ptr<Lease>& lease) {
    if (lease == nullptr) return;
    cache.settle(*lease, Settlement::Released);
    cache.drop(std::move(lease));
  }
  // Every byte of every page that the lease holds is what was written.
  void expect_bytes(const KeyChain& keys, const Lease& lease) {
    for (int g = 0; g < static_cast<int>(pools.size()); ++g) {
      std::vector<std::uint32_t> ids;
      cache.page_ids(lease, g, ids);
      for (std::size_t block = 0; block < ids.size(); ++block) {
        if (ids[block] == none_u32) continue;
        for (int i = 0; i < 64; ++i)
          EXPECT_EQ(+page(g, PageId{ids[block]})[i], +byte_of(keys, g, static_cast<std::int64_t>(block)));
      }
    }
  }
  Phase phase(const KeyChain& keys, int g, std::int64_t block) { return cache.inspect(keys, g, block).phase; }
  std::shared_ptr<Transfer> store(const std::shared_ptr<const KeyChain>& keys,
                                  std::vector<std::int64_t> boundaries) {
    auto transfer = cache.transfers().offload(keys, boundaries, {});
    tier.end_all();
    cache.transfers().poll();
    return transfer;
  }
  // 16 tokens and their boundary are in the tier alone; the keys of one token more.
  std::shared_ptr<const KeyChain> stored_and_gone() {
    const auto whole = keys(16);
    write(whole);
    store(whole, {16});
    forget(*whole);
    return keys(17);
  }
  std::shared_ptr<Transfer> restore(const std::shared_ptr<const KeyChain>& keys, std::int64_t tokens) {
    return cache.transfers().restore(keys, tokens, {}, nullptr);
  }
  void expect_idle() {
    EXPECT_EQ(cache.transfers().live(), 0);
    EXPECT_EQ(cache.live_fills(), 0);
    for (int g = 0; g < static_cast<int>(pools.size()); ++g) {
      const auto census = cache.store().census(g, static_cast<std::uint64_t>(cache.private_pages(g)));
      EXPECT_EQ(census.filling, 0u);
      EXPECT_EQ(census.held, 0u);
      EXPECT_EQ(cache.unowned_pages(g), 0);
      EXPECT_EQ(census.free + census.cached, cache.store().pool(g).count());
      EXPECT_EQ(cache.store().evictable(g), static_cast<std::int64_t>(census.cached));
    }
    EXPECT_EQ(index(cache.store().verify()), index(no_descriptor));
  }

  HeldTier tier;
  std::vector<std::vector<std::uint8_t>> pools;
  std::vector<std::uint8_t*> bases;  // where this program sees each pool
  HybridCache cache;
};

}  // namespace hkv::transfer_world
