// SPDX-License-Identifier: Apache-2.0
// Tips in a tier: stored whole or not at all, found without any I/O, brought back with every byte defined.
//
// Thread safety: one thread.
#pragma once
#include "cache/transfer_world.h"

namespace hkv::tip_transfers {

using transfer_world::World;

// Two groups whose rows lie one after another in a page, one that tells no rows, one of states.
inline std::vector<Group> with_rows() {
  std::vector<Group> groups = transfer_world::hybrid(24);
  groups[0].row_bytes = groups[2].row_bytes = 16;
  return groups;
}

inline std::uint8_t byte_at(int g, std::int64_t block, int i) {
  return static_cast<std::uint8_t>(1 + g * 50 + block * 5 + i / 16);
}

// Publishes everything of the keys, a tip included; every byte tells group, block and row, behind attested rows too.
inline void write(World& w, const std::shared_ptr<const KeyChain>& keys) {
  const std::vector<Selection> all(w.pools.size(), Selection{true, {}});
  auto fill = w.cache.reserve(keys, all, w.cache.spec_formats(), nullptr);
  for (int g = 0; g < static_cast<int>(w.pools.size()); ++g) {
    for (const Fill::Entry& entry : fill->entries[static_cast<std::size_t>(g)]) {
      for (int i = 0; i < 64; ++i) w.page(g, entry.page)[i] = byte_at(g, entry.block, i);
    }
  }
  w.cache.publish(*fill, all);
  w.cache.abort(*fill, false);
}

// What the lease holds is what was written; of a tip's page nothing but zeros stands behind the attested rows.
inline void expect_bytes(World& w, const Lease& lease) {
  for (int g = 0; g < static_cast<int>(w.pools.size()); ++g) {
    const Group& group = w.cache.layout().groups[static_cast<std::size_t>(g)];
    const std::int64_t block_tokens = w.cache.layout().block_tokens(group);
    std::vector<std::uint32_t> ids;
    w.cache.page_ids(lease, g, ids);
    for (std::int64_t block = 0; block < std::ssize(ids); ++block) {
      if (ids[static_cast<std::size_t>(block)] == none_u32) continue;
      const bool partial = (block + 1) * block_tokens > lease.tokens && group.row_bytes != 0;
      const std::int64_t attested = partial ? (lease.tokens - block * block_tokens) * group.row_bytes : 64;
      for (int i = 0; i < 64; ++i)
        EXPECT_EQ(int{w.page(g, PageId{ids[static_cast<std::size_t>(block)]})[i]},
                  i < attested ? int{byte_at(g, block, i)} : 0);
    }
  }
}

inline void restore(World& w, const std::shared_ptr<const KeyChain>& keys, std::int64_t tokens) {
  auto back = w.restore(keys, tokens);
  w.tier.end_all();
  w.cache.transfers().poll();
  EXPECT_EQ(w.cache.transfers().state_of(*back).status, TierStatus::Ok);
  std::unique_ptr<Lease> lease;
  EXPECT_EQ(w.match(keys, lease).usable_tokens, tokens);
  if (lease != nullptr) expect_bytes(w, *lease);
  w.let_go(lease);
  w.expect_idle();
}

inline void store_and_forget(World& w, const std::shared_ptr<const KeyChain>& keys) {
  write(w, keys);
  const auto out = w.store(keys, {keys->tokens()});
  EXPECT_EQ(w.cache.transfers().state_of(*out).left_out.size(), 0u);
  w.forget(*keys);
}

HKV_TEST("a tip goes to the tier and comes back, attested rows alone, zeros behind them") {
  World w(with_rows());
  write(w, w.keys(18));
  auto out = w.cache.transfers().offload(w.keys(18), std::array<std::int64_t, 1>{18}, {});
  EXPECT_EQ(w.tier.waiting.size(), 6u);  // four blocks, the listing, the tip
  EXPECT_EQ(w.phase(*w.keys(18), 0, 4), Phase::Offloading);
  EXPECT_EQ(w.cache.unowned_pages(0), 1);  // a tip's page is pinned by itself, as by a lease
  EXPECT_EQ(w.cache.unowned_pages(3), 2);  // the tip's, and the one beside the window's last whole block
  w.tier.end_all();
  w.cache.transfers().poll();
  const TransferState state = w.cache.transfers().state_of(*out);
  EXPECT_EQ(state.status, TierStatus::Ok);
  EXPECT_EQ(state.tokens, 18);
  EXPECT_EQ(state.bytes_moved, 4 * 128 + 32 + 64 + 64 + 32 + 64);  // two rows of kv and swa
  w.expect_idle();
  w.forget(*w.keys(18));
  const auto keys = w.keys(23);
  const Verdict verdict = w.look(keys);
  EXPECT_EQ(verdict.outcome, Outcome::FalseHit);
  EXPECT_EQ(verdict.matched_tokens, 18);
  EXPECT_EQ(verdict.restore_tokens, 18);
  EXPECT_EQ(verdict.remedy, Remedy::Restore);
  EXPECT_EQ(w.cache.transfers().loads(*keys, 18).size(), 5u + 5 + 2 + 1);
  restore(w, keys, 18);
}

HKV_TEST("the longest tip of the prompt's own tokens is the one restored") {
  World w(with_rows());
  store_and_forget(w, w.keys(17));
  store_and_forget(w, w.keys(19));
  store_and_forget(w, w.keys(16));
  EXPECT_EQ(w.look(w.keys(22)).restore_tokens, 19);
  EXPECT_EQ(w.look(w.keys(18)).restore_tokens, 17);
  sim::Prefix other;
  for (std::uint32_t i = 1; i <= 22; ++i) other.push_back(i == 18 ? 99 : i);
  EXPECT_EQ(w.look(sim::chain_of(4, other)).restore_tokens, 17);  // of other tokens from the 18th on
  other[16] = 99;
  EXPECT_EQ(w.look(sim::chain_of(4, other)).restore_tokens, 16);
  restore(w, w.keys(22), 19);
  EXPECT_EQ(w.tier.count(RecordKind::Boundary), 4u);  // one listing for both
}

HKV_TEST("a tip of the first unit stands on no block and is found") {
  World w(with_rows());
  store_and_forget(w, w.keys(3));
  EXPECT_EQ(w.look(w.keys(9)).restore_tokens, 3);
  restore(w, w.keys(9), 3);
}

HKV_TEST("a tip inside a block of several units has its rows of that block, and windows below it") {
  std::vector<Group> groups = with_rows();
  groups[0].block_units = groups[1].block_units = 4;
  groups[0].row_bytes = 4;
  World w(groups);
  store_and_forget(w, w.keys(11));
  const auto keys = w.keys(15);
  EXPECT_EQ(w.look(keys).restore_tokens, 11);
  World other(groups);  // a cache that never filed a tip
  other.tier.stored = w.tier.stored;
  EXPECT_EQ(other.look(other.keys(15)).restore_tokens, 11);
  restore(w, keys, 11);
}

HKV_TEST("a tip of which a state is gone is not stored, nor listed") {
  World w(with_rows());
  const auto keys = w.keys(18);
  write(w, keys);
  std::vector<Selection> window(4);
  window[2].blocks = {3};
  EXPECT_EQ(w.cache.evict(*keys, window), 1);
  const auto out = w.store(keys, {18});
  EXPECT_EQ(w.cache.transfers().state_of(*out).left_out.size(), 1u);
  EXPECT_EQ(w.tier.count(RecordKind::Boundary), 0u);
  w.expect_idle();
}

HKV_TEST("a tip that could not be loaded is a false hit with its reason, and the shorter boundary is named") {
  World w(with_rows());
  store_and_forget(w, w.keys(16));
  store_and_forget(w, w.keys(18));
  const auto keys = w.keys(20);
  auto back = w.restore(keys, 18);
  while (w.tier.waiting.size() > 1) w.tier.end_one();
  w.tier.end_one(TierStatus::Corrupt);
  w.cache.transfers().poll();
  EXPECT_EQ(w.cache.transfers().state_of(*back).status, TierStatus::Corrupt);
  const Verdict verdict = w.look(keys);
  EXPECT_EQ(verdict.matched_tokens, 18);
  EXPECT_EQ(verdict.restore_tokens, 16);
  EXPECT(verdict.lost[static_cast<int>(Check::Integrity)] > 0);
  w.expect_idle();
  write(w, w.keys(18));  // computed again
  w.forget(*w.keys(18));
  EXPECT_EQ(w.look(keys).restore_tokens, 18);
}

HKV_TEST("a tip whose history has a gap in the tier is not named") {
  World w(with_rows());
  store_and_forget(w, w.keys(18));
  w.tier.stored.erase(HeldTier::name_of({w.keys(18)->keys()[1], {}, RecordKind::Block}));
  const auto keys = w.keys(20);
  EXPECT_EQ(w.look(keys).restore_tokens, 0);
  std::unique_ptr<Lease> lease;
  EXPECT_EQ(w.match(keys, lease, 18).restore_tokens, 0);
}

HKV_TEST("match_at names the restore of exactly a tip, without a listing, and of no other length") {
  World w(with_rows());
  store_and_forget(w, w.keys(18));
  w.tier.stored.erase(HeldTier::name_of({listing_key(*w.keys(18), 4, 2), {}, RecordKind::Boundary}));
  const auto keys = w.keys(20);
  std::unique_ptr<Lease> lease;
  const Verdict exact = w.match(keys, lease, 18);
  EXPECT_EQ(exact.restore_tokens, 18);
  EXPECT_EQ(exact.remedy, Remedy::Restore);
  EXPECT_EQ(w.match(keys, lease, 17).restore_tokens, 0);
  EXPECT_EQ(w.look(keys).restore_tokens, 0);  // nobody can find it without
  write(w, w.keys(18));
  w.store(w.keys(18), {18});  // the record is there: its listing is written again
  w.forget(*w.keys(18));
  EXPECT_EQ(w.look(keys).restore_tokens, 18);
}

HKV_TEST("without a group of history the tip's record alone is found and restored") {
  World w({transfer_world::group("state", 4, Rule::Checkpoint, 0, 8)});
  store_and_forget(w, w.keys(18));
  const auto keys = w.keys(23);
  EXPECT_EQ(w.look(keys).restore_tokens, 18);
  restore(w, keys, 18);
}

HKV_TEST("what can be computed again may be left out of a tip's record") {
  std::vector<Group> groups = with_rows();
  groups[2].rebuildable = true;
  groups[2].replay_tokens = 8;
  World w(std::move(groups));
  write(w, w.keys(18));
  std::vector<Selection> window(4);
  window[2].blocks = {3};
  EXPECT_EQ(w.cache.evict(*w.keys(18), window), 1);
  w.store(w.keys(18), {18});
  w.forget(*w.keys(18));
  const auto keys = w.keys(20);
  EXPECT_EQ(w.look(keys).restore_tokens, 18);
  auto back = w.restore(keys, 18);
  w.tier.end_all();
  w.cache.transfers().poll();
  EXPECT_EQ(w.cache.transfers().state_of(*back).status, TierStatus::Ok);
  std::unique_ptr<Lease> lease;
  const Verdict verdict = w.match(keys, lease);
  EXPECT_EQ(verdict.usable_tokens, 18);
  EXPECT_EQ(verdict.resume_tokens, 8);
  w.let_go(lease);
  w.expect_idle();
}

HKV_TEST("tips cost one look a unit above what is usable, and hashes only where one is listed") {
  World w(with_rows(), {}, 256);
  const auto keys = w.keys(61);
  write(w, w.keys(60));
  w.tier.looks = 0;
  EXPECT_EQ(w.look(keys).usable_tokens, 60);
  EXPECT_EQ(w.tier.looks, 1);  // the listing of the last unit
  w.store(w.keys(60), {});
  w.forget(*keys);
  w.tier.looks = 0;
  EXPECT_EQ(w.look(keys).restore_tokens, 0);
  const std::int64_t without = w.tier.looks;
  store_and_forget(w, w.keys(30));
  w.tier.looks = 0;
  EXPECT_EQ(w.look(keys).restore_tokens, 30);
  EXPECT(w.tier.looks <= without + 3 + 2);  // lengths behind unit 7, and the record's flags
}

HKV_TEST("of a long prompt as many listings are looked for as are allowed, and as many lengths") {
  World w(with_rows());
  store_and_forget(w, w.keys(8));
  const auto keys = w.keys(4 * 6000 + 3);
  const HeldTier::Stored block =
      w.tier.stored.at(HeldTier::name_of({keys->keys()[0], {}, RecordKind::Block}));
  for (std::int64_t unit = 2; unit < 6000; ++unit)
    w.tier.stored.emplace(HeldTier::name_of({keys->keys()[unit], {}, RecordKind::Block}), block);
  w.tier.looks = 0;
  EXPECT_EQ(w.look(keys).restore_tokens, 8);
  const std::int64_t bare = w.tier.looks;
  EXPECT(bare <= 6000 + 4096 + 6000 + 8);  // blocks, listings, and boundaries from the end down
  const HeldTier::Stored listing =
      w.tier.stored.at(HeldTier::name_of({keys->keys()[1], {}, RecordKind::Boundary}));
  for (std::int64_t unit = 5000; unit < 6000; ++unit)
    w.tier.stored.emplace(HeldTier::name_of({listing_key(*keys, unit, 1), {}, RecordKind::Boundary}),
                          listing);
  w.tier.looks = 0;
  EXPECT_EQ(w.look(keys).restore_tokens, 8);
  EXPECT(w.tier.looks <= bare + 1024);
}

HKV_TEST(
    "a tip is found where every descriptor is taken, and one that no directory has room for by its listing") {
  World w(with_rows(), {}, 24);
  for (std::uint32_t i = 0; i < 40; ++i) {
    write(w, w.keys(6, 1 + i * 100));
    EXPECT_EQ(w.look(w.keys(9, 1 + i * 100)).usable_tokens, 6);
  }
  World short_ones(with_rows());
  std::vector<std::unique_ptr<Lease>> leases;
  for (std::uint32_t i = 0; i < 6; ++i) {
    const std::int64_t length =
        i < 4 ? 2 : 3;  // four that are pinned fill the directory, and tell of no other length
    store_and_forget(short_ones, short_ones.keys(length, 1 + i * 100));
    const auto keys = short_ones.keys(5, 1 + i * 100);
    auto back = short_ones.restore(keys, length);
    short_ones.tier.end_all();
    short_ones.cache.transfers().poll();
    EXPECT_EQ(short_ones.match(keys, leases.emplace_back()).usable_tokens, length);
  }
  for (auto& lease : leases) short_ones.let_go(lease);
}

HKV_TEST("a fifth tip behind one unit displaces one, and that is counted") {
  World w(transfer_world::hybrid(24));  // behind no unit: all begin with the sequence
  const auto keys = [&](std::int64_t i) { return w.keys(5, 1 + i * 100); };
  for (std::int64_t i = 0; i < 4; ++i) write(w, w.keys(3, 1 + i * 100));
  EXPECT_EQ(w.cache.counters().read(kTipsDisplaced), 0);
  write(w, w.keys(3, 401));
  EXPECT_EQ(w.cache.counters().read(kTipsDisplaced), 1);
  EXPECT_EQ(w.cache.counters().read(kUnplaced), 0);
  for (std::int64_t i = 0; i < 5; ++i) EXPECT_EQ(w.look(keys(i)).usable_tokens, i == 0 ? 0 : 3);
}

HKV_TEST("history alone: a tip that failed is known to be lost until it is computed again") {
  World w({with_rows()[0]});
  store_and_forget(w, w.keys(6));
  auto back = w.restore(w.keys(9), 6);
  w.tier.end_one();
  w.tier.end_one(TierStatus::IoError);
  w.cache.transfers().poll();
  EXPECT_EQ(w.look(w.keys(9)).restore_tokens, 0);
  EXPECT_EQ(w.look(w.keys(9)).matched_tokens, 6);
  write(w, w.keys(6));
  w.forget(*w.keys(6));
  EXPECT_EQ(w.look(w.keys(9)).restore_tokens, 6);
}

}  // namespace hkv::tip_transfers
