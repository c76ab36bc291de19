// SPDX-License-Identifier: Apache-2.0
// Threads at full speed in a pool that is always full: whoever was admitted gets every page it was promised, though
// others have just evicted what it needs and not given it back yet.
#include <atomic>
#include <thread>

#include "cache/cache.h"
#include "cache/ticket.h"
#include "stress/steps.h"
#include "testing.h"

namespace hkv {
namespace {

constexpr std::int64_t unit = 4, longest = 256, chunk = 32;

// Each pool holds the worst cases of so many requests and no page more. A victim's history goes with the pages of both
// Prefix groups, so that whoever makes room in one has pages of the other in hand.
std::unique_ptr<HybridCache> full_cache(int requests, EvictionOrder order) {
  std::vector<Group> groups(3);
  groups[0].name = "kv", groups[0].coverage = {Rule::Prefix, 0}, groups[0].pages = requests * longest / unit;
  groups[1].name = "swa", groups[1].coverage = {Rule::Window, 2 * unit}, groups[1].kind = 2;
  groups[1].pages = requests * ((2 * unit - 1 + chunk + unit - 1) / unit + 1);
  groups[2].name = "idx", groups[2].coverage = {Rule::Prefix, 0}, groups[2].block_units = 2;
  groups[2].pages = requests * longest / (2 * unit);
  for (Group& g : groups) g.page_bytes = 64;
  AdmissionLimits limits;
  limits.step_tokens = chunk;
  return std::make_unique<HybridCache>(make_layout(unit, std::move(groups)), 4 * requests * longest / unit,
                                       std::vector<Digest16>(3), order, limits);
}

// One request after another, each to its full length, its tokens those of one of a few families.
class Worker {
 public:
  Worker(HybridCache& cache, std::uint64_t seed) : cache_(cache), random_(seed) {}
  std::int64_t admitted = 0, refused = 0, broken = 0;

  void request() {
    AdmitQuestion question;
    question.start = root();
    question.max_tokens = longest;
    question.formats = cache_.spec_formats();
    NotAdmitted why;
    const std::unique_ptr<Ticket> ticket = cache_.admit(question, why);
    if (ticket == nullptr) {
      ++refused;
      return std::this_thread::yield();
    }
    ++admitted;
    run(*ticket);
    cache_.close(*ticket);
    cache_.end(*ticket, random_() % 2 == 0, false);
  }

 private:
  static std::shared_ptr<const KeyChain> root() {
    const std::string_view parts[identity_parts] = {};
    return KeyChain::build(KeyChain::identity_root(unit, parts), unit, {}, {});
  }
  void run(Ticket& ticket) {
    std::vector<std::uint32_t> ids(longest, static_cast<std::uint32_t>(random_() % 8));
    for (std::size_t i = longest / 2; i < ids.size(); ++i) ids[i] = static_cast<std::uint32_t>(random_() % 4);
    TokenView view;
    view.data = reinterpret_cast<const std::byte*>(ids.data());
    view.count = longest;
    while (ticket.advanced < longest) {
      const std::int64_t tokens = std::min<std::int64_t>(1 + random_() % chunk, longest - ticket.advanced);
      try {
        cache_.grow(ticket, tokens, {});
      } catch (const Error&) {
        ++broken;
        return;
      }
      ticket.keys.append(view, ticket.advanced, tokens);
      cache_.advance(ticket, ticket.grown, {}, 0, true);
      cache_.settle_advance(ticket, ticket.advanced, ticket.advanced);
    }
  }
  HybridCache& cache_;
  std::mt19937_64 random_;
};

void promises_hold(EvictionOrder order) {
  constexpr int threads = 4;
  const std::uint64_t seed = stress::seed_of_run();
  const auto rounds = static_cast<std::int64_t>(stress::steps_wanted(600, 200'000));
  const auto cache = full_cache(threads - 1, order);
  std::vector<Worker> workers;
  for (int i = 0; i < threads; ++i) workers.emplace_back(*cache, seed * 31 + static_cast<std::uint64_t>(i));
  std::vector<std::thread> running;
  for (Worker& worker : workers) {
    running.emplace_back([&worker, rounds] {
      while (worker.admitted < rounds) worker.request();
    });
  }
  for (std::thread& thread : running) thread.join();
  std::int64_t admitted = 0, refused = 0, broken = 0;
  for (const Worker& w : workers) admitted += w.admitted, refused += w.refused, broken += w.broken;
  std::printf("     seed %llu: %lld requests ran to their end, %lld refused, %lld promises broken\n",
              static_cast<unsigned long long>(seed), static_cast<long long>(admitted),
              static_cast<long long>(refused), static_cast<long long>(broken));
  EXPECT_EQ(broken, 0);
  EXPECT(admitted >= threads * rounds);
  for (int g = 0; g < cache->store().group_count(); ++g) {
    const auto census = cache->store().census(g, 0);
    EXPECT_EQ(cache->admission().promised(g), 0);
    EXPECT_EQ(census.free + census.cached, static_cast<std::uint64_t>(cache->store().pool(g).count()));
  }
  EXPECT(cache->store().verify() == no_descriptor);
}

}  // namespace

HKV_TEST("what was promised is there, least recently used first") { promises_hold(EvictionOrder::Lru); }
HKV_TEST("what was promised is there, by usability") { promises_hold(EvictionOrder::Usability); }

}  // namespace hkv
