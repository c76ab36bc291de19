// SPDX-License-Identifier: Apache-2.0
// Several who ask for one prefix: who loads what, who waits, and what each is told; and why records were not stored.
//
// Thread safety: one thread.
#pragma once
#include <array>

#include "cache/transfer_world.h"

namespace hkv::shared_loads {

using transfer_world::hybrid;
using transfer_world::World;

HKV_TEST("two restores of one prefix load each block once, and the second is done with the first") {
  World w(hybrid(16));
  const auto keys = w.stored_and_gone();
  auto first = w.restore(keys, 16);
  auto second = w.restore(keys, 16);
  EXPECT_EQ(w.tier.waiting.size(), 5u);
  EXPECT_EQ(w.cache.transfers().state_of(*second).elsewhere, 11);
  for (int i = 0; i < 4; ++i) w.tier.end_one();
  w.cache.transfers().poll();
  EXPECT(!w.cache.transfers().state_of(*second).finished);
  w.tier.end_one();
  w.cache.transfers().poll();
  EXPECT(w.cache.transfers().state_of(*second).finished);
  EXPECT_EQ(w.cache.transfers().state_of(*second).status, TierStatus::Ok);
  EXPECT_EQ(w.cache.transfers().outcome_of(*second).boundaries, std::vector<std::int64_t>{16});
  EXPECT_EQ(w.look(keys).usable_tokens, 16);
  w.expect_idle();
}

HKV_TEST("a restore whose pages another did not bring is Busy, and names the first") {
  World w(hybrid(16));
  const auto keys = w.stored_and_gone();
  auto first = w.restore(keys, 16);
  auto second = w.restore(keys, 16);
  auto third = w.restore(keys, 16);
  w.cache.transfers().cancel(*third);
  EXPECT_EQ(w.cache.transfers().state_of(*third).status, TierStatus::Cancelled);
  w.tier.end_one();
  w.tier.end_one(TierStatus::IoError);  // of the second block
  w.tier.end_all();
  w.cache.transfers().poll();
  const TransferState state = w.cache.transfers().state_of(*second);
  EXPECT(state.finished);
  EXPECT_EQ(state.status, TierStatus::Busy);
  EXPECT_EQ(state.failed_group, 0);
  EXPECT_EQ(state.failed_block, 1);
  const TransferOutcome outcome = w.cache.transfers().outcome_of(*second);
  EXPECT(outcome.boundaries.empty());
  EXPECT_EQ(outcome.missed[0].second, static_cast<int>(TierStatus::Busy));
  w.expect_idle();
}

HKV_TEST("a restore waits for others no longer than its time-out") {
  World w(hybrid(16));
  const auto keys = w.stored_and_gone();
  auto first = w.restore(keys, 16);
  TransferOptions at_once;
  at_once.timeout = std::chrono::nanoseconds(1);
  auto second = w.cache.transfers().restore(keys, 16, at_once, nullptr);
  w.cache.transfers().poll();
  EXPECT_EQ(w.cache.transfers().state_of(*second).status, TierStatus::Busy);
  w.tier.end_all();
  w.cache.transfers().poll();
  w.expect_idle();
}

HKV_TEST("states that are being loaded are waited for, and in nobody's plan") {
  World w(hybrid(16));
  const auto keys = w.keys(17);
  w.write(w.keys(16));
  w.store(keys, {16});
  std::vector<Selection> gone(4);
  gone[2].all = true;
  w.cache.evict(*keys, gone);
  EXPECT_EQ(w.look(keys).restore_tokens, 16);
  auto back = w.restore(keys, 16);
  const Verdict verdict = w.look(keys);
  EXPECT_EQ(verdict.remedy, Remedy::Wait);
  EXPECT_EQ(verdict.restore_tokens, 0);
  EXPECT_EQ(w.cache.restorable(*keys, 17), 0);
  w.tier.end_all();
  w.cache.transfers().poll();
  EXPECT_EQ(w.look(keys).usable_tokens, 16);
  w.expect_idle();
}

HKV_TEST("what write admission leaves out keeps nothing else from being asked for") {
  World w(hybrid(32));
  w.write(w.keys(16));
  w.tier.depth = 1;  // the others are queued
  auto out = w.cache.transfers().offload(w.keys(16), std::array<std::int64_t, 1>{16}, {});
  int asked = 0;
  for (; !w.tier.waiting.empty(); ++asked) {
    w.tier.end_one(TierStatus::Declined);
    w.cache.transfers().poll();
  }
  EXPECT_EQ(asked, 5);
  EXPECT_EQ(w.cache.transfers().state_of(*out).status, TierStatus::Declined);
  auto flush = w.cache.transfers().flush({});
  w.tier.end_all();
  w.cache.transfers().poll();
  const Written written = w.cache.transfers().outcome_of(*flush).written;
  EXPECT_EQ(written.failed[static_cast<std::size_t>(TierStatus::Declined)], 5);
  w.expect_idle();
}

// What a flush tells of an offload of five records whose second ended so.
std::int64_t told_as(TierStatus status, TierStatus told, bool cancelled_by_caller) {
  World w(hybrid(32));
  w.write(w.keys(16));
  auto out = w.cache.transfers().offload(w.keys(16), std::array<std::int64_t, 1>{16}, {});
  w.tier.end_one();
  w.tier.end_one(status);
  if (cancelled_by_caller) w.cache.transfers().cancel(*out);
  w.cache.transfers().poll();
  while (!w.tier.waiting.empty()) w.tier.end_one(TierStatus::Cancelled);
  w.cache.transfers().poll();
  auto flush = w.cache.transfers().flush({});
  w.tier.end_all();
  w.cache.transfers().poll();
  const Written written = w.cache.transfers().outcome_of(*flush).written;
  EXPECT_EQ(written.records, 1);
  w.expect_idle();
  return written.failed[static_cast<std::size_t>(told)];
}

HKV_TEST(
    "what was taken back because of another record is told as that one; of a tier that closes, as closed") {
  EXPECT_EQ(told_as(TierStatus::IoError, TierStatus::IoError, false), 4);
  EXPECT_EQ(told_as(TierStatus::Cancelled, TierStatus::Closed, false), 4);
  EXPECT_EQ(told_as(TierStatus::Cancelled, TierStatus::Cancelled, true), 4);
}

HKV_TEST("a parent that was not stored is told as why what stands on it was not") {
  World w(hybrid(32));
  w.write(w.keys(16));
  auto out = w.cache.transfers().offload(w.keys(16), std::array<std::int64_t, 1>{16}, {});
  w.tier.end_one(TierStatus::NoSpace);
  while (!w.tier.waiting.empty()) w.tier.end_one(TierStatus::Miss);
  auto flush = w.cache.transfers().flush({});
  w.cache.transfers().poll();
  w.tier.end_all();
  w.cache.transfers().poll();
  const Written written = w.cache.transfers().outcome_of(*flush).written;
  EXPECT_EQ(written.failed[static_cast<std::size_t>(TierStatus::NoSpace)], 5);
  w.expect_idle();
}

HKV_TEST("no room is made for what another loads") {
  World w(hybrid(8));
  const auto keys = w.stored_and_gone();
  const auto hot = w.keys(17, 1000);
  w.write(w.keys(16, 1000));
  auto first = w.restore(keys, 16);
  auto second = w.restore(keys, 16);
  EXPECT_EQ(w.look(hot).usable_tokens, 16);
  std::unique_ptr<Lease> lease;
  w.match(hot, lease);
  auto third = w.restore(keys, 16);  // no page is free, and none is needed
  EXPECT_EQ(w.cache.transfers().state_of(*third).elsewhere, 11);
  w.let_go(lease);
  w.tier.end_all();
  w.cache.transfers().poll();
  EXPECT_EQ(w.cache.transfers().state_of(*third).status, TierStatus::Ok);
  EXPECT_EQ(w.look(keys).usable_tokens, 16);
  w.expect_idle();
}

HKV_TEST("while a longer length is being loaded no shorter one is named, nor loaded") {
  World w(hybrid(16));
  const auto keys = w.keys(17);
  w.write(w.keys(16));
  w.store(keys, {4, 8, 16});
  std::vector<Selection> gone(4);
  gone[2].all = gone[3].all = true;
  w.cache.evict(*keys, gone);
  auto back = w.restore(keys, 16);
  EXPECT_EQ(w.look(keys).restore_tokens, 0);
  EXPECT_EQ(w.look(keys).remedy, Remedy::Wait);
  while (!w.tier.waiting.empty()) w.tier.end_one(TierStatus::IoError);
  w.cache.transfers().poll();
  EXPECT_EQ(w.look(keys).restore_tokens, 8);  // the longer one failed
  w.forget(*keys);
  auto whole = w.restore(keys, 16);
  w.tier.end_one();
  w.cache.transfers().poll();
  EXPECT_EQ(w.look(keys).restore_tokens, 0);  // the next block comes
  w.tier.end_all();
  w.cache.transfers().poll();
  EXPECT_EQ(w.look(keys).usable_tokens, 16);
  w.expect_idle();
}

HKV_TEST("who waits for what is loaded ahead makes it go with what somebody waits for") {
  World w(hybrid(32));
  const auto ahead = w.stored_and_gone(), other = w.keys(17, 1000);
  w.write(w.keys(16, 1000));
  w.store(other, {16});
  w.forget(*other);
  w.tier.depth = 1;
  const auto order = [&](bool joined) {
    auto busy = w.restore(other, 4);  // the one that runs
    TransferOptions prefetch;
    prefetch.priority = Priority::Prefetch;
    auto first = w.cache.transfers().restore(ahead, 16, prefetch, nullptr);
    std::shared_ptr<Transfer> second;
    if (joined) second = w.restore(ahead, 16);
    auto last = w.restore(other, 16);
    int ended = 0, place = -1;
    while (!w.tier.waiting.empty()) {
      w.tier.end_one();
      w.cache.transfers().poll();
      ++ended;
      if (place < 0 && w.cache.transfers().state_of(*first).finished) place = ended;
    }
    w.forget(*ahead);
    w.forget(*other);
    return place;
  };
  const int alone = order(false), joined = order(true);
  EXPECT(alone > joined);
  w.expect_idle();
}

}  // namespace hkv::shared_loads
