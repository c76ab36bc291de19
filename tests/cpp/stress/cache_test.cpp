// SPDX-License-Identifier: Apache-2.0
// Threads beat on a HybridCache with a Prefix, a Window and a Checkpoint group, with tips: sequences of one
// tree are reserved, written, published, matched, read under their leases and evicted. Page bytes are a function
// of (key, group) and are plain memory, so a false hit is a mismatch and early reuse a reported race.
//
// A step is one operation of the cache on one sequence: a fill (reserve, write, publish or give up), a match whose
// leased pages are all read before its release, an eviction, or over a tier that forgets, an offload or a restore of what
// the last match was told of. 10^7 of them by default, 10^9 in a soak (about half an
// hour on two cores), or HKV_STEPS. Seed and rate are printed; HKV_SEED repeats a seed.
#include "cache/cache.h"

#include <random>
#include <thread>

#include "cache/transfers.h"
#include "stress/steps.h"
#include "testing.h"
#include "tier/memory_tier.h"

namespace hkv {
namespace {

constexpr std::int64_t unit = 4;
constexpr int page_words = 8, group_count = 3;
using Chain = std::shared_ptr<const KeyChain>;

Layout layout_of(std::int64_t pages) {
  std::vector<Group> groups(group_count);
  groups[0].name = "kv", groups[0].coverage = {Rule::Prefix, 0}, groups[0].kind = 0;
  groups[1].name = "swa", groups[1].coverage = {Rule::Window, 6}, groups[1].kind = 2;
  groups[2].name = "state", groups[2].coverage = {Rule::Checkpoint, 0}, groups[2].kind = 1;
  for (Group& g : groups) g.pages = pages, g.page_bytes = page_words * 8;
  return make_layout(unit, std::move(groups));
}

Chain chain_of(std::vector<std::uint32_t> ids) {
  const std::string_view parts[identity_parts] = {"stress", "", "", "", ""};
  const auto owned = std::make_shared<const std::vector<std::uint32_t>>(std::move(ids));
  TokenView view;
  view.data = reinterpret_cast<const std::byte*>(owned->data());
  view.count = static_cast<std::int64_t>(owned->size());
  view.owner = owned;
  return KeyChain::build(KeyChain::identity_root(unit, parts), unit, view, {});
}

std::uint64_t content(Key128 key, int group, int word) {
  const std::uint64_t x = (key.lo ^ static_cast<unsigned>(group * 64 + word)) * 0x9E3779B97F4A7C15u + key.hi;
  return x ^ x >> 31;
}

struct Tally {
  std::uint64_t steps = 0, filled = 0, full = 0, aborted = 0, hits = 0, tip_hits = 0, false_hits = 0,
                misses = 0, longer = 0, evicted = 0, pages_read = 0, wrong = 0, offloads = 0, restores = 0;
};

// Room for about a third of what the sequences need, so that records go while they are asked for.
std::unique_ptr<MemoryTier> small_tier() {
  MemoryOptions options;
  options.capacity_bytes = 12 << 10;
  options.threaded = true;
  options.depth = 4;
  return std::make_unique<MemoryTier>(options);
}

class World {
 public:
  World(std::int64_t blocks, std::int64_t pages, bool tiered)
      : tier(tiered ? small_tier() : nullptr),
        cache(layout_of(pages), blocks, std::vector<Digest16>(group_count)) {
    if (tiered) cache.attach({tier.get(), {}, {}, {}});
    std::mt19937_64 random(17);
    for (int i = 0; i < 48; ++i) {
      std::vector<std::uint32_t> ids;
      const std::size_t length = 3 + random() % 30;
      // One of two choices at a few places, so that sequences share prefixes of every length.
      for (std::size_t t = 0; t < length; ++t)
        ids.push_back(static_cast<std::uint32_t>(t * 2 + (t % 5 == 0 ? random() % 2 : 0)));
      chains.push_back(chain_of(std::move(ids)));
    }
    for (int g = 0; g < group_count; ++g) {
      bytes[g].resize(static_cast<std::size_t>(pages) * page_words);
      cache.bind(
          g, {PoolArray{reinterpret_cast<std::uint64_t>(bytes[g].data()), page_words * 8, page_words * 8, 0}},
          true);
    }
  }
  std::unique_ptr<MemoryTier> tier;
  HybridCache cache;
  std::vector<Chain> chains;
  std::vector<std::uint64_t> bytes[group_count];

  std::uint64_t* page(int group, PageId id) {
    return bytes[group].data() + std::size_t{index(id)} * page_words;
  }
};

class Worker {
 public:
  Worker(World& world, std::uint64_t seed) : w_(world), random_(seed) {}
  Tally tally;

  void step() {
    ++tally.steps;
    const Chain& chain = w_.chains[random_() % w_.chains.size()];
    const auto what = random_() % 100;
    if (w_.tier != nullptr && random_() % 8 == 0) w_.cache.transfers().poll();
    if (w_.tier != nullptr && what < 8) {
      offload(chain);
    } else if (what < 35) {
      fill(chain);
    } else if (what < 85) {
      ask(chain);
    } else {
      tally.evicted += static_cast<std::uint64_t>(w_.cache.evict(*chain, everything()));
    }
  }

 private:
  static std::span<const Selection> everything() {
    static const std::vector<Selection> all(group_count, Selection{true, {}});
    return all;
  }

  void fill(const Chain& chain) {
    std::unique_ptr<Fill> fill;
    try {
      fill = w_.cache.reserve(chain, everything(), w_.cache.spec_formats(), nullptr);
    } catch (const Error&) {
      ++tally.full;
      return;
    }
    for (int g = 0; g < group_count; ++g) {
      for (const Fill::Entry& entry : fill->entries[static_cast<std::size_t>(g)]) {
        for (int i = 0; i < page_words; ++i) w_.page(g, entry.page)[i] = content(entry.key, g, i);
      }
    }
    if (random_() % 8 == 0) {
      ++tally.aborted;
    } else {
      try {
        w_.cache.publish(*fill, everything());
        ++tally.filled;
      } catch (const Error&) {  // a private page found no descriptor
        ++tally.full;
      }
    }
    w_.cache.abort(*fill, false);  // gives back what stayed private
  }

  void offload(const Chain& chain) {
    std::vector<std::int64_t> boundaries;
    for (std::int64_t t = unit; t <= chain->end_unit() * unit; t += unit) boundaries.push_back(t);
    w_.cache.transfers().offload(chain, boundaries, {});
    ++tally.offloads;
  }
  void restore(const Chain& chain, std::int64_t tokens) {
    try {
      const auto transfer = w_.cache.transfers().restore(chain, tokens, {}, nullptr);
      if (random_() % 16 == 0) w_.cache.transfers().cancel(*transfer);
      ++tally.restores;
    } catch (const Error&) {
      ++tally.full;
    }
  }

  void ask(const Chain& chain) {
    Question question;
    question.keys = chain.get();
    question.limit = chain->tokens() + 1;
    question.formats = w_.cache.spec_formats();
    question.verify = random_() % 4 == 0 ? Verify::All : Verify::Off;
    std::unique_ptr<Lease> lease;
    const Verdict verdict = w_.cache.match(question, chain, lease);
    tally.misses += verdict.outcome == Outcome::Miss;
    tally.false_hits += verdict.outcome == Outcome::FalseHit;
    if (verdict.remedy == Remedy::Restore && random_() % 2 == 0) restore(chain, verdict.restore_tokens);
    if (lease == nullptr) return;
    ++tally.hits;
    tally.tip_hits += lease->tokens % unit != 0;
    read(*lease);
    if (random_() % 4 == 0) {
      const std::int64_t before = lease->tokens;
      if (w_.cache.extend(*lease, question, chain) > before) {
        ++tally.longer;
        read(*lease);
      }
    }
    w_.cache.settle(*lease, Settlement::Released);
    w_.cache.drop(std::move(lease));
  }

  void read(const Lease& lease) {
    const KeyChain& keys = *lease.keys;
    for (std::size_t block = 0; block < static_cast<std::size_t>(lease.tokens / unit); ++block) {
      check(lease.history[block], 0, keys.keys()[block]);
    }
    for (const Lease::Held& held : lease.held) {
      const bool whole = (held.block + 1) * unit <= lease.tokens;
      check(held.id, held.group,
            whole ? keys.keys()[held.block] : keys.tip_key(held.block, lease.tokens % unit));
    }
  }
  void check(DescriptorId id, int group, Key128 key) {
    ++tally.pages_read;
    const PageId page = w_.cache.store().page(id, group);
    bool right =
        page != no_page && w_.cache.store()[id].key() == key && !w_.cache.store().pool(group).is_free(page);
    for (int i = 0; right && i < page_words; ++i) right = w_.page(group, page)[i] == content(key, group, i);
    if (!right) ++tally.wrong;
  }

  World& w_;
  std::mt19937_64 random_;
};

void beat(std::int64_t blocks, std::int64_t pages, double share, bool tiered = false) {
  constexpr unsigned thread_count = 4;
  const std::uint64_t seed = stress::seed_of_run();
  const auto wanted = static_cast<std::uint64_t>(
      static_cast<double>(stress::steps_wanted(10'000'000, 1'000'000'000)) * share / thread_count);
  World world(blocks, pages, tiered);
  std::vector<Worker> workers;
  for (unsigned t = 0; t < thread_count; ++t) workers.emplace_back(world, seed + t);
  const stress::Clock clock;
  std::vector<std::thread> threads;
  for (Worker& worker : workers) {
    threads.emplace_back([&worker, wanted] {
      for (std::uint64_t i = 0; i < wanted; ++i) worker.step();
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = clock.seconds();
  Tally all;
  for (const Worker& worker : workers) {
    const Tally& t = worker.tally;
    all.steps += t.steps, all.filled += t.filled, all.full += t.full, all.aborted += t.aborted,
        all.hits += t.hits;
    all.tip_hits += t.tip_hits, all.false_hits += t.false_hits, all.misses += t.misses,
        all.longer += t.longer;
    all.evicted += t.evicted, all.pages_read += t.pages_read, all.wrong += t.wrong;
    all.offloads += t.offloads, all.restores += t.restores;
  }
  using stress::shown;
  std::printf(
      "     seed %llu, %llu steps in %.1f s (%.0f/s): %llu fills, %llu full, %llu aborted, %llu hits (%llu "
      "of tips), %llu false "
      "hits, %llu misses, "
      "%llu made longer, %llu pages evicted, %llu pages read, %llu wrong\n",
      shown(seed), shown(all.steps), seconds, static_cast<double>(all.steps) / seconds, shown(all.filled),
      shown(all.full), shown(all.aborted), shown(all.hits), shown(all.tip_hits), shown(all.false_hits),
      shown(all.misses), shown(all.longer), shown(all.evicted), shown(all.pages_read), shown(all.wrong));
  if (tiered) {
    while (world.cache.transfers().live() != 0) world.cache.transfers().poll();
    const TierUsage usage = world.tier->usage();
    std::printf(
        "     %llu offloads, %llu restores, %llu records stored, %llu loaded, %llu gone when asked for\n",
        shown(all.offloads), shown(all.restores), shown(usage.puts), shown(usage.hits), shown(usage.misses));
    EXPECT(usage.puts > 0 && usage.hits > 0);
    EXPECT_EQ(usage.corrupt, 0u);
  }
  EXPECT_EQ(all.wrong, 0u);
  EXPECT(all.filled > 0 && all.hits > 0 && all.tip_hits > 0 && all.false_hits > 0 && all.evicted > 0);
  BlockStore& store = world.cache.store();
  EXPECT(store.verify() == no_descriptor);
  EXPECT(store.table().counts_hold());
  for (int g = 0; g < group_count; ++g) {
    const auto census = store.census(g, static_cast<std::uint64_t>(world.cache.private_pages(g)));
    EXPECT_EQ(census.free + census.cached, store.pool(g).count());
    EXPECT_EQ(census.filling + census.held, 0u);
    EXPECT_EQ(static_cast<std::int64_t>(census.cached), store.evictable(g));
  }
  const std::vector<Selection> everything(group_count, Selection{true, {}});
  for (const Chain& chain : world.chains) world.cache.evict(*chain, everything);
  for (int g = 0; g < group_count; ++g) EXPECT_EQ(store.pool(g).free_count(), store.pool(g).count());
  std::uint32_t directories = 0;
  for (std::uint32_t i = 0; i < store.blocks(); ++i)
    directories += !store.ids().is_free(i) && store.is_directory(DescriptorId{i});
  EXPECT_EQ(store.ids().free_count() + directories, store.blocks());
  std::printf("     %u directories left\n", directories);
  EXPECT_EQ(world.cache.live_leases(), 0);
  EXPECT_EQ(world.cache.live_fills(), 0);
}

}  // namespace

HKV_TEST("leases read what was published for their keys, with little memory") { beat(40, 24, 0.5); }
HKV_TEST("and over a tier that forgets") { beat(60, 40, 0.02, true); }
HKV_TEST("and with room for all") { beat(400, 300, 0.5); }

}  // namespace hkv
