// SPDX-License-Identifier: Apache-2.0
// Question: what do match, settle and drop cost in the core, without Python?
//
//   match [--json] [--smoke]
//
// One sequence in the cache, matched again and again (its lines stay in the cache of the core), and for "cold"
// 64 sequences in turn. A round measures every form once; printed are min / median of a whole cycle.
// Last, what of that is counting: the additions that such a cycle makes to the counters, made again alone, as often and
// by the same thread, in the same round as the cycle. Nothing of the cycle overlaps them then, so that it is a bound
// from above.
#include "limits/bench.hpp"

#include <memory>

#include "cache/cache.h"
#include "layout/key_chain.h"
#include "rounds.hpp"

namespace {

using hkv::Coverage;
using hkv::Rule;

hkv::Group group(const char* name, Rule rule, std::int64_t tokens, std::int64_t block_units,
                 std::int64_t pages) {
  hkv::Group g;
  g.name = name;
  g.kind = rule == Rule::Prefix ? 0 : rule == Rule::Checkpoint ? 1 : 2;
  g.coverage = {rule, tokens};
  g.block_units = block_units;
  g.pages = pages;
  g.page_bytes = 64;
  return g;
}

std::shared_ptr<const hkv::KeyChain> chain(std::int64_t units, std::int64_t unit_tokens, std::uint64_t seed) {
  Rng random(seed);
  std::vector<hkv::Key128> keys(static_cast<std::size_t>(units));
  for (auto& k : keys) k = {random(), random()};
  return hkv::KeyChain::from_hashes(std::move(keys), unit_tokens);
}

struct Shape {
  const char* name;
  std::int64_t unit_tokens;
  std::vector<hkv::Group> groups;
  std::int64_t tokens;
};

std::vector<Shape> shapes(bool smoke) {
  const std::int64_t pages = smoke ? 1 << 12 : 1 << 19;
  const auto g = [&](const char* name, Rule rule, std::int64_t tokens, std::int64_t units) {
    return group(name, rule, tokens, units, pages);
  };
  const std::int64_t divide = smoke ? 64 : 1;
  const std::vector<hkv::Group> two = {g("full", Rule::Prefix, 0, 1), g("window", Rule::Window, 128, 1)};
  return {
      {"2 groups, unit 16, 8k", 16, two, 8192 / divide},
      {"2 groups, unit 16, 64k", 16, two, 65536 / divide},
      {"6 groups, unit 256, 1M",
       256,
       {g("a", Rule::Prefix, 0, 1), g("b", Rule::Prefix, 0, 1), g("c", Rule::Prefix, 0, 1),
        g("w", Rule::Window, 128, 1), g("x", Rule::Window, 128, 1), g("t", Rule::Checkpoint, 256, 1)},
       (1 << 20) / divide},
      {"5 groups, unit 4, 1M",
       4,
       {g("c", Rule::Prefix, 0, 64), g("w", Rule::Window, 128, 16), g("x", Rule::Window, 128, 16),
        g("y", Rule::Window, 8, 1), g("z", Rule::Window, 128, 2)},
       (1 << 20) / divide},
  };
}

struct Cycle {
  std::unique_ptr<hkv::HybridCache> cache;
  std::vector<std::shared_ptr<const hkv::KeyChain>> keys;
  std::int64_t usable = 0;

  void once(const std::shared_ptr<const hkv::KeyChain>& chain) {
    hkv::Question question;
    question.keys = chain.get();
    question.limit = chain->tokens() + 1;
    question.formats = cache->spec_formats();
    std::unique_ptr<hkv::Lease> lease;
    usable = cache->match(question, chain, lease).usable_tokens;
    if (lease == nullptr) return;
    cache->settle(*lease, hkv::Settlement::Released);
    cache->drop(std::move(lease));
  }
};

Cycle filled(const Shape& shape, int sequences) {
  Cycle cycle;
  std::vector<hkv::Digest16> formats(shape.groups.size());
  for (std::size_t g = 0; g < formats.size(); ++g) formats[g][0] = static_cast<std::uint8_t>(g);
  const std::int64_t units = shape.tokens / shape.unit_tokens;
  cycle.cache =
      std::make_unique<hkv::HybridCache>(hkv::make_layout(shape.unit_tokens, shape.groups),
                                         std::max<std::int64_t>(units * sequences * 5 / 4, 1024), formats);
  std::vector<hkv::Selection> everything(shape.groups.size());
  for (auto& selection : everything) selection.all = true;
  for (int i = 0; i < sequences; ++i) {
    cycle.keys.push_back(chain(units, shape.unit_tokens, 100 + i));
    auto fill = cycle.cache->reserve(cycle.keys.back(), everything, cycle.cache->spec_formats(), nullptr);
    cycle.cache->publish(*fill, everything);
  }
  return cycle;
}

// The counts of explain.cpp and settle.cpp, in their order.
void count_miss(hkv::CacheCounters& all) {
  auto counters = all.mine();
  for (const int which : {hkv::kLookups, hkv::kLookupsTokens, hkv::kMissesTokens, hkv::kMisses})
    counters.add(which, 3);
}
void count_false_hit(hkv::CacheCounters& all) {
  auto counters = all.mine();
  for (const int which :
       {int{hkv::kLookups}, int{hkv::kLookupsTokens}, int{hkv::kMissesTokens}, int{hkv::kFalseHitsTokens},
        by_check_and_kind(hkv::kLostTokens, hkv::Check::Groups, 2), by_code(hkv::Code::Expired),
        by_check_and_kind(hkv::kFalseHits, hkv::Check::Groups, 2)})
    counters.add(which, 3);
}
void count_hit(hkv::CacheCounters& all) {
  auto counters = all.mine();
  for (const int which :
       {hkv::kLookups, hkv::kLookupsTokens, hkv::kMissesTokens, hkv::kPending, hkv::kPendingTokens,
        hkv::kPending, hkv::kPendingTokens, hkv::kEffective, hkv::kEffectiveTokens})
    counters.add(which, 3);
}

// Of the smallest shape, where counting weighs most.
void report_counting(Report& report, bool smoke) {
  const Shape shape = shapes(smoke)[0];
  Cycle hot = filled(shape, 1), bare = filled(shape, 1);
  std::vector<hkv::Selection> windows(shape.groups.size());
  for (std::size_t g = 0; g < windows.size(); ++g) windows[g].all = !shape.groups[g].prefix();
  bare.cache->evict(*bare.keys[0], windows);
  const auto stranger = chain(shape.tokens / shape.unit_tokens, shape.unit_tokens, 7);
  const auto counters = std::make_unique<hkv::CacheCounters>();
  const auto timed = [&](int times, auto&& what) {
    return par(1,
               [&](int) {
                 for (int i = 0; i < times; ++i) what();
               }) /
           times;
  };
  const int some = smoke ? 10 : 1000, many = smoke ? 10 : 20000;
  Rounds rounds;
  for (int round = 0; round < (smoke ? 2 : 25); ++round) {
    rounds.add("hit", timed(some, [&] { hot.once(hot.keys[0]); }));
    rounds.add("count hit", timed(many, [&] { count_hit(*counters); }));
    rounds.add("false hit", timed(some, [&] { bare.once(bare.keys[0]); }));
    rounds.add("count false hit", timed(many, [&] { count_false_hit(*counters); }));
    rounds.add("miss", timed(some, [&] { hot.once(stranger); }));
    rounds.add("count miss", timed(many, [&] { count_miss(*counters); }));
  }
  for (const std::string what : {"hit", "false hit", "miss"}) {
    const double share = 100 * rounds.ratio("count " + what, what);
    report.line("%-24s counting %6.1f / %6.1f ns of %8.0f ns: %.2f %%\n", what.c_str(),
                rounds.min("count " + what), rounds.median("count " + what), rounds.median(what), share);
    report.figure("counting of a " + what + ": percent", share);
    report.figure("counting of a " + what + ": ns", rounds.median("count " + what));
  }
}

}  // namespace

int main(int argc, char** argv) {
  bool json = false, smoke = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) json = true;
    if (std::strcmp(argv[i], "--smoke") == 0) smoke = true;
  }
  Report report(json);
  for (const Shape& shape : shapes(smoke)) {
    Cycle hot = filled(shape, 1);
    const int times = smoke ? 1 : static_cast<int>(std::max<std::int64_t>(1, (4 << 20) / shape.tokens));
    const Stat hit = repeat(smoke ? 2 : 25, [&] {
      return par(1,
                 [&](int) {
                   for (int i = 0; i < times; ++i) hot.once(hot.keys[0]);
                 }) /
             times;
    });
    const std::int64_t usable = hot.usable;
    // A false hit: the windows of the whole sequence are gone, its history is there.
    std::vector<hkv::Selection> windows(shape.groups.size());
    for (std::size_t g = 0; g < windows.size(); ++g) windows[g].all = !shape.groups[g].prefix();
    hot.cache->evict(*hot.keys[0], windows);
    const Stat false_hit = repeat(smoke ? 2 : 25, [&] {
      return par(1,
                 [&](int) {
                   for (int i = 0; i < times; ++i) hot.once(hot.keys[0]);
                 }) /
             times;
    });
    const auto stranger = chain(shape.tokens / shape.unit_tokens, shape.unit_tokens, 7);
    const Stat miss = repeat(smoke ? 2 : 25, [&] {
      return par(1,
                 [&](int) {
                   for (int i = 0; i < 1000; ++i) hot.once(stranger);
                 }) /
             1000;
    });
    report.line(
        "%-24s hit %8.2f / %8.2f us   false hit %8.2f / %8.2f us   miss %6.0f / %6.0f ns   (%lld usable)\n",
        shape.name, hit.mn / 1e3, hit.md / 1e3, false_hit.mn / 1e3, false_hit.md / 1e3, miss.mn, miss.md,
        static_cast<long long>(usable));
    const std::string name = shape.name;
    report.figure(name + ": hit us", hit.md / 1e3);
    report.figure(name + ": false hit us", false_hit.md / 1e3);
    report.figure(name + ": miss ns", miss.md);
    report.figure(name + ": usable tokens", static_cast<double>(usable));
  }
  report_counting(report, smoke);
}
