// SPDX-License-Identifier: Apache-2.0
// A cache with small pools, and prefixes that share what they are told to.
#pragma once
#include <algorithm>
#include <random>

#include "alloc/eviction.h"
#include "cache/cache.h"
#include "testing.h"

namespace hkv::eviction {

inline constexpr std::int64_t unit = 4;
using Chain = std::shared_ptr<const KeyChain>;

inline Group group(const char* name, Rule rule, std::int64_t tokens, std::int64_t pages,
                   std::int64_t block_units = 1) {
  Group g;
  g.name = name;
  g.kind = rule == Rule::Prefix ? 0 : rule == Rule::Checkpoint ? 1 : 2;
  g.coverage = {rule, tokens};
  g.pages = pages;
  g.page_bytes = 64;
  g.block_units = block_units;
  return g;
}

inline Chain chain_of(std::vector<std::uint32_t> ids) {
  const std::string_view parts[identity_parts] = {"eviction", "", "", "", ""};
  const auto owned = std::make_shared<const std::vector<std::uint32_t>>(std::move(ids));
  TokenView view;
  view.data = reinterpret_cast<const std::byte*>(owned->data());
  view.count = static_cast<std::int64_t>(owned->size());
  view.owner = owned;
  return KeyChain::build(KeyChain::identity_root(unit, parts), unit, view, {});
}

// `units` whole units and `rest` tokens: the first `shared` tokens are alike in all branches.
inline Chain branch(std::uint32_t name, std::int64_t units, std::int64_t shared = 0, std::int64_t rest = 0) {
  std::vector<std::uint32_t> ids;
  for (std::int64_t t = 0; t < units * unit + rest; ++t)
    ids.push_back(static_cast<std::uint32_t>(t) + (t < shared * unit ? 0 : 1000 * name));
  return chain_of(std::move(ids));
}

struct World {
  World(std::vector<Group> groups, std::int64_t blocks, EvictionOrder order)
      : cache(make_layout(unit, std::move(groups)), blocks, std::vector<Digest16>(8), order),
        all(cache.layout().groups.size(), Selection{true, {}}) {}

  std::unique_ptr<Fill> reserve(const Chain& keys) {
    return cache.reserve(keys, all, cache.spec_formats(), nullptr);
  }
  void insert(const Chain& keys) {
    auto fill = reserve(keys);
    cache.publish(*fill, all);
    cache.abort(*fill, false);
  }
  // Those blocks alone, of every group: what is before them is not used.
  void insert_blocks(const Chain& keys, std::vector<std::int64_t> blocks) {
    const std::vector<Selection> some(all.size(), Selection{false, std::move(blocks)});
    auto fill = cache.reserve(keys, some, cache.spec_formats(), nullptr);
    cache.publish(*fill, some);
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

inline std::vector<Group> kv(std::int64_t pages) { return {group("kv", Rule::Prefix, 0, pages)}; }
// Window(5): what a resume needs is the one block before it.
inline std::vector<Group> hybrid(std::int64_t history, std::int64_t states) {
  return {group("kv", Rule::Prefix, 0, history), group("swa", Rule::Window, 5, states)};
}
inline std::int64_t pages_of(const HybridCache::EvictionCounts& counts, int g, EvictionClass why) {
  return counts.pages[static_cast<std::size_t>(g)][static_cast<std::size_t>(why)];
}

}  // namespace hkv::eviction
