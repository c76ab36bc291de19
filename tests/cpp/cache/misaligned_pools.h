// SPDX-License-Identifier: Apache-2.0
// Pools that kernels cannot take, or that are read-only: what a match says of them, and that nothing is loaded into them.
//
// Thread safety: one thread.
#pragma once
#include "cache/transfer_world.h"

namespace hkv::misaligned_pools {

using transfer_world::hybrid;
using transfer_world::World;

// Binds a group's pool anew, as what kernels cannot take for a reason.
inline void rebind(World& w, int g, Code of_kernels) {
  w.cache.bind(g, {{reinterpret_cast<std::uint64_t>(w.bases[static_cast<std::size_t>(g)]), 64, 64, 0}}, true,
               of_kernels);
}

// Binds it anew, as memory that may be written or not.
inline void rebind(World& w, int g, bool writable) {
  w.cache.bind(g, {{reinterpret_cast<std::uint64_t>(w.bases[static_cast<std::size_t>(g)]), 64, 64, 0}}, true,
               Code::None, writable);
}

HKV_TEST("what kernels cannot take of a pool is told by match, with its code") {
  World w(hybrid(32));
  const auto keys = w.keys(16);
  for (const Code code : {Code::Base, Code::PageStride, Code::RowStride, Code::Footer}) {
    rebind(w, 0, code);
    w.write(keys);
    const Verdict verdict = w.look(keys);
    EXPECT(verdict.outcome == Outcome::FalseHit);
    EXPECT(verdict.why.check == Check::Aligned);
    EXPECT(verdict.why.code == code);
    EXPECT_EQ(verdict.why.group, 0);
    w.evict(*keys);
  }
  rebind(w, 0, Code::None);
  w.write(keys);
  EXPECT_EQ(w.look(keys).usable_tokens, 16);
  w.evict(*keys);
  w.expect_idle();
}

HKV_TEST("what the group itself declares comes before what kernels need") {
  auto groups = hybrid(32);
  groups[0].alignment = 64;
  World w(groups);
  const auto keys = w.keys(16);
  const auto code_at = [&](std::uint64_t base) {  // nobody reads there
    w.cache.bind(0, {{base, 64, 64, 0}}, false, Code::Footer);
    w.write(keys);
    const Code code = w.look(keys).why.code;
    w.evict(*keys);
    return code;
  };
  EXPECT(code_at(64) == Code::Footer);
  EXPECT(code_at(72) == Code::Base);
}

HKV_TEST("nothing is restored into a pool that its kernels cannot take") {
  World w(hybrid(32));
  const auto keys = w.stored_and_gone();
  EXPECT_EQ(w.look(keys).restore_tokens, 16);
  for (const int g : {0, 3}) {  // history, and a state of the boundary
    rebind(w, g, Code::PageStride);
    const Verdict verdict = w.look(keys);
    EXPECT(verdict.outcome == Outcome::FalseHit);
    EXPECT_EQ(verdict.restore_tokens, 0);
    std::unique_ptr<Lease> lease;
    EXPECT_EQ(w.match(keys, lease, 16).restore_tokens, 0);
    EXPECT_EQ(w.cache.restorable(*keys, 17), 0);
    rebind(w, g, Code::None);
    EXPECT_EQ(w.match(keys, lease, 16).restore_tokens, 16);
  }
  EXPECT_EQ(w.cache.restorable(*keys, 17), 16);
  w.expect_idle();
}

HKV_TEST("a misaligned group that can be computed again hinders no restore") {
  auto groups = hybrid(32);
  groups[2].rebuildable = true;
  groups[2].replay_tokens = 8;
  World w(groups);
  const auto keys = w.stored_and_gone();
  rebind(w, 2, Code::Base);
  EXPECT_EQ(w.look(keys).restore_tokens, 16);
  auto back = w.restore(keys, 16);
  w.tier.end_all();
  w.cache.transfers().poll();
  EXPECT_EQ(w.cache.transfers().state_of(*back).status, TierStatus::Ok);
  const Verdict verdict = w.look(keys);
  EXPECT_EQ(verdict.usable_tokens, 16);
  EXPECT_EQ(verdict.resume_tokens, 8);  // its pages are there and not read
  w.expect_idle();
}

HKV_TEST("nothing is restored into a pool that is read-only") {
  World w(hybrid(32));
  const auto keys = w.stored_and_gone();
  for (const int g : {0, 3}) {  // history, and a state of the boundary
    rebind(w, g, false);
    const Verdict verdict = w.look(keys);
    EXPECT(verdict.outcome == Outcome::FalseHit);
    EXPECT_EQ(verdict.restore_tokens, 0);
    std::unique_ptr<Lease> lease;
    EXPECT_EQ(w.match(keys, lease, 16).restore_tokens, 0);
    EXPECT_EQ(w.cache.restorable(*keys, 17), 0);
    bool refused = false;
    try {
      w.restore(keys, 16);  // as a plan would that is older than the pool
    } catch (const Error& error) {
      refused = error.field == "plan";
    }
    EXPECT(refused);
    w.expect_idle();
    rebind(w, g, true);
    EXPECT_EQ(w.look(keys).restore_tokens, 16);
  }
}

HKV_TEST("a read-only group that can be computed again hinders no restore, and is left out of it") {
  auto groups = hybrid(32);
  groups[2].rebuildable = true;
  groups[2].replay_tokens = 8;
  World w(groups);
  const auto keys = w.stored_and_gone();
  rebind(w, 2, false);
  EXPECT_EQ(w.look(keys).restore_tokens, 16);
  for (const auto& [group, block] : w.cache.transfers().loads(*keys, 16)) EXPECT(group != 2);
  auto back = w.restore(keys, 16);
  w.tier.end_all();
  w.cache.transfers().poll();
  EXPECT_EQ(w.cache.transfers().state_of(*back).status, TierStatus::Ok);
  EXPECT_EQ(w.look(keys).usable_tokens, 16);
  EXPECT_EQ(w.look(keys).resume_tokens, 8);  // replayed: nothing was loaded
  w.expect_idle();
}

}  // namespace hkv::misaligned_pools
