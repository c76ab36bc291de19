// SPDX-License-Identifier: Apache-2.0
// Groups that are replayed together: where layers run from, and the pages that the rows go to.
// One thread: left out under ThreadSanitizer.
#include <memory>
#include <vector>

#include "cache/cache.h"
#include "layout/key_chain.h"
#include "testing.h"

namespace hkv {
namespace {

constexpr std::int64_t unit = 8;
constexpr int history = 0, low = 1, high = 2, coarse = 3;

Group window(const char* name, std::int64_t tokens, std::int64_t replay_tokens, std::int64_t block_units) {
  Group g;
  g.name = name;
  g.kind = 2;
  g.coverage = {Rule::Window, tokens};
  g.block_units = block_units;
  g.pages = 64;
  g.page_bytes = 64;
  g.rebuildable = true;
  g.replay_tokens = replay_tokens;
  return g;
}

Layout layout() {
  Group h;
  h.name = "history";
  h.pages = 64;
  h.page_bytes = 64;
  return make_layout(unit, {h, window("low", 9, 0, 1), window("high", 17, 24, 1), window("coarse", 2, 1, 8)});
}

std::shared_ptr<const KeyChain> chain(std::size_t units) {
  std::vector<Key128> keys(units);
  for (std::size_t i = 0; i < units; ++i) keys[i] = {i + 1, (i + 1) * 0x9E3779B97F4A7C15u};
  return KeyChain::from_hashes(std::move(keys), unit);
}

struct World {
  World() : cache(layout(), 256, std::vector<Digest16>(4)), keys(chain(10)) {}

  void store(std::vector<int> groups) {
    std::vector<Selection> some(4);
    for (const int g : groups) some[static_cast<std::size_t>(g)].all = true;
    auto fill = cache.reserve(keys, some, cache.spec_formats(), nullptr);
    cache.publish(*fill, some);
  }
  std::unique_ptr<Lease> match() {
    Question question;
    question.keys = keys.get();
    question.limit = keys->tokens() + 1;
    question.formats = cache.spec_formats();
    std::unique_ptr<Lease> lease;
    const Verdict verdict = cache.match(question, keys, lease);
    EXPECT_EQ(verdict.usable_tokens, 80);
    EXPECT_EQ(verdict.resume_tokens, lease->resume_tokens);
    return lease;
  }
  // First own block that a request starting from the lease has a page of, of those that it computes again.
  std::vector<std::int64_t> first_pages(std::unique_ptr<Lease> lease, std::vector<int> groups) {
    AdmitQuestion question;
    question.start = keys;
    question.max_tokens = 96;
    question.lease = lease.get();
    question.formats = cache.spec_formats();
    NotAdmitted why;
    std::unique_ptr<Ticket> ticket = cache.admit(question, why);
    HKV_CHECK(ticket != nullptr);
    std::vector<std::int64_t> first;
    std::vector<std::uint32_t> pages;
    for (const int g : groups) {
      cache.page_ids(*ticket, g, pages);
      std::size_t block = 0;
      while (block < pages.size() && pages[block] == none_u32) ++block;
      for (std::size_t rest = block; rest < pages.size(); ++rest) EXPECT(pages[rest] != none_u32);
      first.push_back(block == pages.size() ? -1 : static_cast<std::int64_t>(block));
    }
    cache.close(*ticket);
    cache.end(*ticket, false, false);
    cache.drop(std::move(lease));
    return first;
  }

  HybridCache cache;
  std::shared_ptr<const KeyChain> keys;
};

HKV_TEST("what is replayed together starts where the first of them has to, and has its pages from there on") {
  World world;
  world.store({history, coarse});
  std::unique_ptr<Lease> both = world.match();
  EXPECT_EQ(both->replayed, 1u << low | 1u << high | 1u << coarse);  // coarse: 80 is no end of its block
  EXPECT_EQ(both->resume_tokens, 56);
  EXPECT(world.first_pages(std::move(both), {low, high}) == (std::vector<std::int64_t>{7, 7}));
}

HKV_TEST("what is replayed alone starts where itself has to") {
  World world;
  world.store({history, high});
  std::unique_ptr<Lease> alone = world.match();
  EXPECT_EQ(alone->replayed, 1u << low | 1u << coarse);
  EXPECT_EQ(alone->resume_tokens, 72);
  EXPECT(world.first_pages(std::move(alone), {low, coarse}) == (std::vector<std::int64_t>{9, 1}));
}

}  // namespace
}  // namespace hkv
