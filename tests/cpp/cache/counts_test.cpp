// SPDX-License-Identifier: Apache-2.0
// What is counted of what is lost: by check and kind of state, and over again by code.
// One thread: left out under ThreadSanitizer.
#include "alloc/eviction_world.h"

namespace hkv {
using namespace eviction;

namespace {

std::int64_t sum(const HybridCache& cache, int from, int count) {
  std::int64_t total = 0;
  for (int i = 0; i < count; ++i) total += cache.counters().read(from + i);
  return total;
}

bool adds_up(const HybridCache& cache) {
  const std::int64_t lost = cache.counters().read(kFalseHitsTokens);
  return lost == sum(cache, kLostTokens, check_count * kind_count) &&
         lost == sum(cache, kLostByCode, code_count);
}

}  // namespace

HKV_TEST("what a look-up loses is counted by check and by code") {
  World w(hybrid(64, 64), 128, EvictionOrder::Usability);
  w.insert(branch(1, 8));
  w.forget(branch(1, 8), 1, {6, 7});
  EXPECT_EQ(w.use(branch(1, 8)), 6 * unit);
  EXPECT_EQ(w.cache.counters().read(by_check_and_kind(kLostTokens, Check::Groups, 2)), 2 * unit);
  EXPECT_EQ(w.cache.counters().read(by_code(Code::Expired)), 2 * unit);
  EXPECT(adds_up(w.cache));
}

HKV_TEST("a lease that failed is lost for its content") {
  World w(hybrid(64, 64), 128, EvictionOrder::Usability);
  w.insert(branch(1, 8));
  auto lease = w.match(branch(1, 8));
  w.cache.settle(*lease, Settlement::Failed, 0);
  w.cache.drop(std::move(lease));
  EXPECT_EQ(w.cache.counters().read(by_code(Code::Content)), 8 * unit);
  EXPECT(adds_up(w.cache));
}

}  // namespace hkv
