// SPDX-License-Identifier: Apache-2.0
// Offload and restore over a tier whose every step the test decides: phases, pins, what is published when, and what a
// match says meanwhile.
#include "cache/transfers.h"

#include <array>
#include <chrono>
#include <thread>

#include "cache/device_pool_cases.h"
#include "cache/lost_copies.h"
#include "cache/lost_states.h"
#include "cache/misaligned_pools.h"
#include "cache/shared_loads.h"
#include "cache/tip_transfers.h"
#include "cache/transfer_world.h"
#include "cache/write_through.h"
#include "testing.h"

namespace hkv {
namespace {

using transfer_world::group;
using transfer_world::hybrid;
using transfer_world::World;

HKV_TEST("a prefix goes to the tier and comes back, every byte, and says so at each step") {
  World w(hybrid(16));
  const auto keys = w.keys(16);
  w.write(keys);
  auto out = w.cache.transfers().offload(keys, std::array<std::int64_t, 1>{16}, {});
  EXPECT_EQ(w.tier.waiting.size(), 5u);  // four blocks and a boundary
  EXPECT_EQ(w.phase(*keys, 0, 0), Phase::Offloading);
  std::unique_ptr<Lease> lease;
  EXPECT_EQ(w.match(keys, lease).usable_tokens, 16);  // still pinnable
  w.let_go(lease);
  EXPECT_EQ(w.evict(*keys), 4);  // states that the boundary does not need; pins hold the rest
  w.tier.end_all();
  EXPECT_EQ(w.cache.transfers().poll(), 5);
  EXPECT(w.cache.transfers().state_of(*out).finished);
  EXPECT_EQ(w.phase(*keys, 0, 0), Phase::ReadyCopy);
  w.expect_idle();
}

HKV_TEST("what is only in the tier is a false hit with remedy RESTORE, then reusable with every byte") {
  World w(hybrid(16));
  const auto keys = w.stored_and_gone();
  const Verdict verdict = w.look(keys);
  EXPECT_EQ(verdict.outcome, Outcome::FalseHit);
  EXPECT_EQ(verdict.matched_tokens, 16);
  EXPECT_EQ(verdict.restore_tokens, 16);
  EXPECT_EQ(verdict.remedy, Remedy::Restore);
  EXPECT_EQ(verdict.why.check, Check::Complete);
  EXPECT(verdict.why.in_tier);
  EXPECT_EQ(w.phase(*keys, 0, 2), Phase::TierOnly);
  EXPECT_EQ(w.cache.transfers().loads(*keys, 16).size(), 4u * 2 + 2 + 1);
  auto back = w.restore(keys, 16);
  EXPECT_EQ(w.phase(*keys, 0, 2), Phase::Restoring);
  const Verdict meanwhile = w.look(keys);
  EXPECT_EQ(meanwhile.remedy, Remedy::Wait);
  EXPECT_EQ(meanwhile.matched_tokens, 16);
  w.tier.end_all();
  w.cache.transfers().poll();
  EXPECT_EQ(w.cache.transfers().state_of(*back).status, TierStatus::Ok);
  EXPECT_EQ(w.phase(*keys, 0, 2), Phase::ReadyCopy);
  std::unique_ptr<Lease> lease;
  EXPECT_EQ(w.match(keys, lease).usable_tokens, 16);
  w.expect_bytes(*keys, *lease);
  w.let_go(lease);
  w.expect_idle();
}

HKV_TEST("history without its boundary record is known and not resumable") {
  World w(hybrid(16));
  const auto keys = w.keys(17);
  w.write(w.keys(16));
  w.store(keys, {});
  w.forget(*keys);
  const Verdict verdict = w.look(keys);
  EXPECT_EQ(verdict.outcome, Outcome::FalseHit);
  EXPECT_EQ(verdict.restore_tokens, 0);
  EXPECT_EQ(verdict.remedy, Remedy::Recompute);
}

HKV_TEST("the longest boundary record whose history is there is the one restored") {
  World w(hybrid(16));
  const auto keys = w.keys(17);
  w.write(w.keys(16));
  w.store(keys, {4, 12});
  w.forget(*keys);
  EXPECT_EQ(w.look(keys).restore_tokens, 12);
  w.tier.stored.erase(HeldTier::name_of({keys->keys()[2], {}, RecordKind::Block}));
  EXPECT_EQ(w.look(keys).restore_tokens, 4);
  w.tier.stored.erase(HeldTier::name_of({keys->keys()[0], {}, RecordKind::Block}));
  EXPECT_EQ(w.look(keys).outcome, Outcome::Miss);
}

HKV_TEST("a boundary whose states are not all here is not stored") {
  World w(hybrid(16));
  const auto keys = w.keys(16);
  w.write(keys);
  std::vector<Selection> tail(4);
  tail[3].blocks = {2};
  EXPECT_EQ(w.cache.evict(*keys, tail), 1);
  const auto out = w.store(keys, {12, 16});
  EXPECT_EQ(w.cache.transfers().state_of(*out).left_out.size(), 1u);
  EXPECT_EQ(w.tier.count(RecordKind::Boundary), 1u);
  w.expect_idle();
}

HKV_TEST("only what is missing is loaded, and what is there is not written again") {
  World w(hybrid(16));
  const auto keys = w.keys(17);
  w.write(w.keys(16));
  w.store(keys, {16});
  const auto again = w.store(keys, {16});
  EXPECT_EQ(w.cache.transfers().state_of(*again).records, 0);
  std::vector<Selection> some(4);
  some[1].blocks = {1};
  some[2].blocks = {3};
  EXPECT_EQ(w.cache.evict(*keys, some), 2);
  auto back = w.restore(keys, 16);
  EXPECT_EQ(w.tier.waiting.size(), 2u);
  w.tier.end_all();
  w.cache.transfers().poll();
  EXPECT_EQ(w.cache.transfers().state_of(*back).records, 2);
  EXPECT_EQ(w.look(keys).usable_tokens, 16);
  w.expect_idle();
}

HKV_TEST("a load that fails publishes nothing, is told as a false hit, and stops what stood above it") {
  for (const TierStatus status : {TierStatus::IoError, TierStatus::Miss, TierStatus::Corrupt}) {
    World w(hybrid(16));
    const auto keys = w.stored_and_gone();
    auto back = w.restore(keys, 16);
    w.tier.end_one();
    w.tier.end_one(status);
    w.cache.transfers().poll();
    w.tier.end_all();
    w.cache.transfers().poll();
    const TransferState state = w.cache.transfers().state_of(*back);
    EXPECT(state.finished);
    EXPECT_EQ(state.status, status);
    EXPECT_EQ(state.failed_block, 1);
    const Verdict verdict = w.look(keys);
    EXPECT_EQ(verdict.outcome, Outcome::FalseHit);
    EXPECT_EQ(verdict.why.check, Check::Integrity);
    EXPECT_EQ(verdict.why.code, Code::Load);
    EXPECT(verdict.why.in_tier);
    EXPECT_EQ(verdict.remedy, Remedy::Recompute);
    EXPECT_EQ(w.cache.counters().read(kLoadFailures + static_cast<int>(status)), 1);
    w.expect_idle();
    w.write(w.keys(16));  // computed again: no longer a failed load
    EXPECT_EQ(w.look(keys).usable_tokens, 16);
    w.forget(*keys);
    EXPECT(w.look(keys).remedy != Remedy::Recompute || status == TierStatus::Miss);
  }
}

HKV_TEST("a tier that is out of reach keeps what it has: the next match says RESTORE again") {
  World w(hybrid(16));
  const auto keys = w.stored_and_gone();
  auto back = w.restore(keys, 16);
  w.tier.end_one(TierStatus::Unavailable);
  w.tier.end_all();
  w.cache.transfers().poll();
  EXPECT_EQ(w.cache.transfers().state_of(*back).status, TierStatus::Unavailable);
  EXPECT_EQ(w.look(keys).remedy, Remedy::Restore);
  w.expect_idle();
}

HKV_TEST("a plan is named only where a restore would make more usable") {
  World w(hybrid(16));
  const auto keys = w.keys(17);
  w.write(w.keys(16));
  w.store(keys, {16});
  Question question;
  question.keys = keys.get();
  question.limit = 18;
  question.drop_tokens = 3;
  question.formats = w.cache.spec_formats();
  std::unique_ptr<Lease> lease;
  EXPECT_EQ(w.cache.match(question, keys, lease).restore_tokens,
            0);  // all is here: only the drop takes from it
  w.let_go(lease);
  const FormatId other = w.cache.format_id(Digest16{7});
  std::vector<FormatId> reader(w.cache.spec_formats().begin(), w.cache.spec_formats().end());
  reader[0] = other;
  question.drop_tokens = 0;
  question.formats = reader;
  w.forget(*keys);
  EXPECT_EQ(w.cache.match(question, keys, lease).restore_tokens, 0);  // records are in the spec's formats
  question.formats = w.cache.spec_formats();
  EXPECT_EQ(w.cache.match(question, keys, lease).restore_tokens, 16);
  std::vector<Selection> second(4);
  second[0].blocks = {1};
  auto fill = w.cache.reserve(keys, second, reader, nullptr);
  w.cache.publish(*fill, second);
  w.cache.abort(*fill, false);
  EXPECT_EQ(w.cache.match(question, keys, lease).restore_tokens, 0);  // a foreign page stands in its place
  w.expect_idle();
}

HKV_TEST("a tier that was closed is asked for nothing more") {
  World w(hybrid(16));
  const auto keys = w.stored_and_gone();
  w.tier.close();
  auto back = w.restore(keys, 16);
  EXPECT_EQ(w.cache.transfers().state_of(*back).status, TierStatus::Closed);
  EXPECT_EQ(w.look(keys).outcome, Outcome::Miss);
  w.expect_idle();
}

HKV_TEST(
    "what each length takes to restore: history that is not here, its states, a replay of what was left "
    "out") {
  std::vector<Group> groups = hybrid(24);
  groups.push_back(group("again", 2, Rule::Window, 6, 24, true));
  World w(groups);
  const auto keys = w.keys(32);
  w.write(keys);
  w.cache.evict(*keys, std::vector<Selection>{{}, {}, {}, {}, {false, {6, 7}}});
  w.store(keys, {16, 32});
  EXPECT(w.cache.restore_options(*keys, 33).empty());  // the last is usable by replay
  w.cache.evict(*keys, std::vector<Selection>{
                           {false, {2, 3, 4, 5, 6, 7}}, {true, {}}, {true, {}}, {true, {}}, {true, {}}});
  const std::vector<RestoreOption> options = w.cache.restore_options(*keys, 33);
  EXPECT_EQ(options.size(), 2u);
  if (options.size() != 2) return;
  EXPECT_EQ(options[0].tokens, 16);
  EXPECT_EQ(options[0].resume_tokens, 16);
  EXPECT(options[0].pages == (std::vector<std::int64_t>{2, 4, 2, 1, 2}));
  EXPECT_EQ(options[1].tokens, 32);
  EXPECT_EQ(options[1].resume_tokens, 24);  // one layer of window: 5 tokens before, rounded down
  EXPECT(options[1].pages == (std::vector<std::int64_t>{6, 8, 2, 1, 0}));
  EXPECT_EQ(w.cache.restore_options(*keys, 32).size(), 1u);
  EXPECT(w.cache.restore_options(*w.keys(32, 1001), 33).empty());
}

HKV_TEST("what a tip takes to restore: of its partial pages those that are not here") {
  World w(hybrid(24));
  const auto keys = w.keys(18);
  tip_transfers::write(w, keys);
  w.store(keys, {18});
  const auto taken = [&](std::vector<Selection> gone) {
    w.cache.evict(*keys, gone);
    const std::vector<RestoreOption> options = w.cache.restore_options(*w.keys(20), 21);
    return options.size() == 1 && options[0].tokens == 18 ? options[0].pages : std::vector<std::int64_t>{};
  };
  EXPECT(taken({{}, {}, {}, {true, {}}}) == (std::vector<std::int64_t>{0, 0, 0, 1}));
  EXPECT(taken({{}, {}, {false, {4}}, {}}) == (std::vector<std::int64_t>{0, 0, 1, 1}));
  EXPECT(taken({{false, {4}}, {}, {}, {}}) == (std::vector<std::int64_t>{1, 0, 1, 1}));
  EXPECT(taken({{true, {}}, {true, {}}, {true, {}}, {}}) == (std::vector<std::int64_t>{5, 5, 2, 1}));
}

HKV_TEST("damaged bytes are never published") {
  World w(hybrid(16));
  const auto keys = w.stored_and_gone();
  for (auto& [name, record] : w.tier.stored) record.payload[5] ^= std::byte{1};
  auto back = w.restore(keys, 16);
  w.tier.end_all();
  w.cache.transfers().poll();
  EXPECT_EQ(w.cache.transfers().state_of(*back).status, TierStatus::Corrupt);
  EXPECT_EQ(w.look(keys).usable_tokens, 0);
  w.expect_idle();
}

HKV_TEST("a load that is late keeps its page until the tier lets go, and the block is free for others") {
  World w(hybrid(4));
  const auto keys = w.keys(5);
  w.write(w.keys(4));
  w.store(keys, {4});
  w.forget(*keys);
  TransferOptions options;
  options.timeout = std::chrono::milliseconds(1);
  auto back = w.cache.transfers().restore(keys, 4, options, nullptr);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  w.cache.transfers().poll();
  EXPECT_EQ(w.cache.transfers().state_of(*back).status, TierStatus::Timeout);
  EXPECT(!w.cache.transfers().state_of(*back).finished);
  EXPECT_EQ(w.cache.store().pool(0).free_count(), 3u);  // quarantined, not handed out
  w.write(w.keys(4));                                   // another computes it meanwhile
  EXPECT_EQ(w.look(keys).usable_tokens, 4);
  w.tier.end_all();  // the late bytes land in pages that are nobody's
  w.cache.transfers().poll();
  EXPECT(w.cache.transfers().state_of(*back).finished);
  std::unique_ptr<Lease> lease;
  EXPECT_EQ(w.match(keys, lease).usable_tokens, 4);
  w.expect_bytes(*keys, *lease);
  w.let_go(lease);
  w.expect_idle();
}

HKV_TEST("a late store keeps its source pinned until the tier lets go") {
  World w(hybrid(4));
  const auto keys = w.keys(4);
  w.write(keys);
  TransferOptions options;
  options.timeout = std::chrono::milliseconds(1);
  auto out = w.cache.transfers().offload(keys, std::array<std::int64_t, 1>{4}, options);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  w.cache.transfers().poll();
  EXPECT_EQ(w.cache.transfers().state_of(*out).status, TierStatus::Timeout);
  EXPECT_EQ(w.evict(*keys), 0);
  w.tier.end_all();
  w.cache.transfers().poll();
  EXPECT(w.cache.transfers().state_of(*out).finished);
  EXPECT_EQ(w.evict(*keys), 4);
  w.expect_idle();
}

HKV_TEST("a cancelled restore gives its pages back and publishes what was verified before") {
  World w(hybrid(16));
  w.tier.depth = 2;
  const auto keys = w.stored_and_gone();
  auto back = w.restore(keys, 16);
  w.tier.end_one();
  w.cache.transfers().poll();
  w.cache.transfers().cancel(*back);
  EXPECT_EQ(w.tier.waiting.size(), 2u);  // those go on
  w.tier.end_all();
  w.cache.transfers().poll();
  EXPECT(w.cache.transfers().state_of(*back).finished);
  EXPECT(w.cache.transfers().state_of(*back).cancelled);
  EXPECT_EQ(w.phase(*keys, 0, 0), Phase::ReadyCopy);
  w.expect_idle();
  EXPECT_EQ(w.look(keys).remedy, Remedy::Restore);
}

HKV_TEST("a restore that does not fit takes nothing") {
  World w(hybrid(4));
  const auto keys = w.keys(17), other = w.keys(12, 1000);
  w.write(w.keys(16));
  w.store(keys, {16});
  w.forget(*keys);
  w.write(other);
  std::unique_ptr<Lease> lease;
  EXPECT_EQ(w.match(w.keys(13, 1000), lease).usable_tokens, 12);
  bool refused = false;
  try {
    w.restore(keys, 16);
  } catch (const OutOfPagesError&) {
    refused = true;
  }
  EXPECT(refused);
  w.let_go(lease);
  w.expect_idle();
}

HKV_TEST("a foreign page is not stored, nor what stands on it") {
  World w(hybrid(16));
  const auto keys = w.keys(12);
  const FormatId other = w.cache.format_id(Digest16{7});
  std::vector<Selection> second(4);
  second[0].blocks = {1};
  std::vector<FormatId> formats(w.cache.spec_formats().begin(), w.cache.spec_formats().end());
  formats[0] = other;
  auto fill = w.cache.reserve(keys, second, formats, nullptr);
  w.cache.publish(*fill, second);
  w.write(keys);
  const auto out = w.store(keys, {4, 12});
  EXPECT_EQ(w.tier.count(RecordKind::Block), 1u);
  EXPECT_EQ(w.cache.transfers().state_of(*out).left_out.size(), 1u);
  w.expect_idle();
}

HKV_TEST("pages that an offload pins are counted among those that nobody answers for") {
  World w(hybrid(16));
  const auto keys = w.keys(16);
  w.write(keys);
  auto out = w.cache.transfers().offload(keys, std::array<std::int64_t, 1>{16}, {});
  EXPECT_EQ(w.cache.unowned_pages(0), 0);  // history is promised to nobody twice
  EXPECT(w.cache.unowned_pages(2) >= 2);
  EXPECT(w.cache.unowned_pages(3) >= 1);
  w.tier.end_all();
  w.cache.transfers().poll();
  w.expect_idle();
}

HKV_TEST("a group that can be computed again may be left out of the record, and is replayed then") {
  auto groups = hybrid(16);
  groups[2].rebuildable = true;
  groups[2].replay_tokens = 8;
  World w(groups);
  const auto keys = w.keys(17);
  w.write(w.keys(16));
  std::vector<Selection> window(4);
  window[2].blocks = {2};
  EXPECT_EQ(w.cache.evict(*keys, window), 1);
  w.store(keys, {16});
  w.forget(*keys);
  EXPECT_EQ(w.look(keys).restore_tokens, 16);
  auto back = w.restore(keys, 16);
  w.tier.end_all();
  w.cache.transfers().poll();
  EXPECT_EQ(w.cache.transfers().state_of(*back).status, TierStatus::Ok);
  std::unique_ptr<Lease> lease;
  const Verdict verdict = w.match(keys, lease);
  EXPECT_EQ(verdict.usable_tokens, 16);
  EXPECT_EQ(verdict.resume_tokens, 8);
  w.expect_bytes(*keys, *lease);
  w.let_go(lease);
}

HKV_TEST("without a group of history the boundary record alone is found and restored") {
  World w({group("state", 1, Rule::Checkpoint, 0, 8)});
  const auto keys = w.keys(13);
  w.write(w.keys(12));
  w.store(keys, {12});
  w.forget(*keys);
  const Verdict verdict = w.look(keys);
  EXPECT_EQ(verdict.matched_tokens, 12);
  EXPECT_EQ(verdict.restore_tokens, 12);
  EXPECT_EQ(verdict.remedy, Remedy::Restore);
  auto back = w.restore(keys, 12);
  w.tier.end_all();
  w.cache.transfers().poll();
  EXPECT_EQ(w.look(keys).usable_tokens, 12);
  w.expect_idle();
}

HKV_TEST("match_at names the length that a restore would serve, and no other") {
  World w(hybrid(16));
  const auto keys = w.keys(17);
  w.write(w.keys(16));
  w.store(keys, {8, 16});
  w.forget(*keys);
  std::unique_ptr<Lease> lease;
  EXPECT_EQ(w.match(keys, lease, 8).restore_tokens, 8);
  EXPECT_EQ(w.match(keys, lease, 12).restore_tokens, 0);
  EXPECT(lease == nullptr);
}

HKV_TEST("a boundary that is none, and a pool that nobody bound, are refused") {
  std::vector<Group> groups = hybrid(16);
  for (Group& g : groups) g.block_units = 2;
  World w(std::move(groups));
  const auto keys = w.keys(16);
  const auto refused = [&](auto&& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.code == ErrorCode::ArgumentError;
    }
    return false;
  };
  EXPECT(refused([&] { w.cache.transfers().offload(keys, std::array<std::int64_t, 1>{4}, {}); }));
  EXPECT(refused([&] { w.cache.transfers().offload(keys, std::array<std::int64_t, 1>{17}, {}); }));
  EXPECT(refused([&] { w.cache.transfers().offload(keys, std::array<std::int64_t, 1>{20}, {}); }));
  EXPECT(refused([&] { w.restore(keys, 20); }));
  EXPECT(refused([&] { w.restore(keys, 17); }));
  EXPECT(refused([&] { w.restore(keys, 0); }));
}

HKV_TEST("a record names the identity of its keys; of keys that say none, the cache's when it was begun") {
  TierLink link;
  link.identity = {1, 1};
  World w(hybrid(32), link);
  const auto named = sim::chain_of(transfer_world::unit, {51, 52, 53, 54, 55, 56, 57, 58}, Key128{7, 7});
  const auto before = w.keys(8), after = w.keys(8, 101);
  std::vector<std::shared_ptr<Transfer>> begun;
  std::vector<std::uint64_t> found;
  for (const auto& keys : {before, named, after}) {
    w.write(keys);
    TransferOptions options;
    options.gated = true;  // sent only after the change
    begun.push_back(w.cache.transfers().offload(keys, std::array<std::int64_t, 1>{8}, options));
    if (keys == named) w.cache.transfers().change_identity({2, 2});
  }
  for (const auto& transfer : begun) w.cache.transfers().open(*transfer);
  for (const auto* operation : w.tier.waiting) found.push_back(operation->identity.lo);
  EXPECT(found == std::vector<std::uint64_t>({1, 1, 1, 7, 7, 7, 2, 2, 2}));
  w.tier.end_all();
  w.cache.transfers().poll();
  w.expect_idle();
}

}  // namespace
}  // namespace hkv
