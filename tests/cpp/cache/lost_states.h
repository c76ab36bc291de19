// SPDX-License-Identifier: Apache-2.0
// What a match says of history and states that rest in a tier in another format, were lost there, or were never stored.
//
// Thread safety: one thread.
#pragma once
#include "cache/transfer_world.h"

namespace hkv::lost_states {

using transfer_world::hybrid;
using transfer_world::World;

HKV_TEST("a record of another format is a false hit by ABI, and is not restored") {
  World w(hybrid(16));
  const auto keys = w.keys(17);
  w.write(w.keys(16));
  w.store(keys, {16});
  TierLink other;
  other.block_format = {1, 1};
  other.boundary_format = {1, 1};
  World reader(hybrid(16), other);
  reader.tier.stored = w.tier.stored;
  const Verdict verdict = reader.look(keys);
  EXPECT_EQ(verdict.outcome, Outcome::FalseHit);
  EXPECT_EQ(verdict.why.check, Check::Abi);
  EXPECT_EQ(verdict.why.code, Code::Format);
  EXPECT(verdict.why.in_tier);
  EXPECT_EQ(verdict.restore_tokens, 0);
}

HKV_TEST("states in another format below sound history are what was lost, by ABI") {
  World w(hybrid(16));
  const auto keys = w.keys(17);
  w.write(w.keys(16));
  w.store(keys, {8, 16});
  TierLink other;
  other.boundary_format = {1, 1};
  World reader(hybrid(16), other);
  reader.tier.stored = w.tier.stored;
  const Verdict verdict = reader.look(keys);
  EXPECT_EQ(verdict.why.check, Check::Abi);
  EXPECT_EQ(verdict.why.group, 2);
  EXPECT_EQ(verdict.why.block, 3);
  EXPECT(verdict.why.in_tier);
  EXPECT_EQ(verdict.lost[static_cast<int>(Check::Abi)], 16);
  EXPECT_EQ(verdict.lost[static_cast<int>(Check::Complete)], 0);
  EXPECT_EQ(verdict.remedy, Remedy::Recompute);
}

HKV_TEST("history in the tier without any states there is lost to GROUPS, by what is lacking") {
  World w(hybrid(16));
  const auto keys = w.keys(17);
  w.write(w.keys(16));
  w.store(keys, {});
  World reader(hybrid(16));
  reader.tier.stored = w.tier.stored;
  const Verdict verdict = reader.look(keys);
  EXPECT_EQ(verdict.why.check, Check::Groups);
  EXPECT_EQ(verdict.why.code, Code::Missing);
  EXPECT_EQ(verdict.why.group, 2);
  EXPECT(!verdict.why.in_tier);
  EXPECT_EQ(verdict.remedy, Remedy::Recompute);
}

// Whether all pages are gone, or those of the window alone.
void lose_the_record_of(bool all) {
  World w(hybrid(16));
  const auto keys = w.keys(17);
  w.write(w.keys(16));
  w.store(keys, {16});
  std::vector<Selection> gone(4);
  gone[2].all = true;
  all ? w.forget(*keys) : void(w.cache.evict(*keys, gone));
  auto back = w.restore(keys, 16);
  while (w.tier.waiting.size() > 1) w.tier.end_one();
  w.tier.end_one(TierStatus::Corrupt);
  w.cache.transfers().poll();
  EXPECT_EQ(w.cache.transfers().state_of(*back).status, TierStatus::Corrupt);
  const Verdict verdict = w.look(keys);
  EXPECT_EQ(verdict.why.check, Check::Integrity);
  EXPECT_EQ(verdict.why.code, Code::Load);
  EXPECT_EQ(verdict.why.group, 2);
  EXPECT_EQ(verdict.why.block, 2);  // the first of two: no boundary ends there that was stored
  EXPECT(verdict.why.in_tier);
  EXPECT_EQ(verdict.lost[static_cast<int>(Check::Integrity)], 16);
  EXPECT_EQ(verdict.remedy, Remedy::Recompute);
  w.expect_idle();
}

HKV_TEST("a window of several blocks whose record was damaged is lost to INTEGRITY") {
  lose_the_record_of(true);
  lose_the_record_of(false);
}

HKV_TEST("a boundary record below what is asked for, or usable, explains nothing") {
  World w(hybrid(16));
  const auto keys = w.keys(17);
  w.write(w.keys(16));
  w.store(keys, {8});
  World reader(hybrid(16));
  reader.tier.stored = w.tier.stored;
  std::unique_ptr<Lease> lease;
  for (const std::int64_t want : {4, 12, 16}) {
    const Verdict verdict = reader.match(keys, lease, want);
    EXPECT_EQ(verdict.why.check, Check::Groups);
    EXPECT_EQ(verdict.why.code, Code::Missing);
  }
  EXPECT_EQ(reader.match(keys, lease, 8).restore_tokens, 8);
  reader.write(reader.keys(8));
  const Verdict above = reader.match(keys, lease);
  EXPECT_EQ(above.usable_tokens, 8);
  EXPECT_EQ(above.why.check, Check::Groups);
  EXPECT_EQ(above.lost[static_cast<int>(Check::Complete)], 0);
  reader.let_go(lease);
}

}  // namespace hkv::lost_states
