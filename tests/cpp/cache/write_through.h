// SPDX-License-Identifier: Apache-2.0
// Offloads of prefixes that grow, counted in look-ups; flushes; and what a transfer says it came to.
//
// Thread safety: one thread.
#pragma once
#include <algorithm>
#include <array>

#include "cache/transfer_world.h"

namespace hkv::write_through {

using transfer_world::hybrid;
using transfer_world::World;

HKV_TEST("a prefix that grows is offloaded by looking at what is new alone") {
  World w(hybrid(60), {}, 256);
  std::int64_t most = 0;
  for (std::int64_t tokens = 8; tokens <= 200; tokens += 8) {
    w.write(w.keys(tokens));
    w.tier.looks = 0;
    const std::array<std::int64_t, 2> lengths = {tokens - 4, tokens};
    auto out = w.cache.transfers().offload_new(w.keys(tokens), tokens - 8, lengths, {}, {});
    w.tier.end_all();
    w.cache.transfers().poll();
    most = std::max(most, w.tier.looks);
    const TransferState state = w.cache.transfers().state_of(*out);
    EXPECT_EQ(state.records, 4);  // two blocks, two boundaries
    EXPECT_EQ(state.status, TierStatus::Ok);
    std::vector<Selection> gone(4);  // states that nobody needs any more, so that the pools have room
    for (std::int64_t block = 0; tokens > 24 && block < tokens / 4 - 6; ++block) {
      gone[2].blocks.push_back(block);
      gone[3].blocks.push_back(block);
    }
    w.cache.evict(*w.keys(tokens), gone);
  }
  // Back to what is stored, forward again, the boundaries, each record once it is stored: not 50 blocks.
  EXPECT(most <= 3 + 2 + 2 + 4);
  w.forget(*w.keys(200));
  EXPECT_EQ(w.look(w.keys(201)).restore_tokens, 200);
}

HKV_TEST("what was not stored before is, and of the ends the first that is complete") {
  World w(hybrid(32));
  w.write(w.keys(24));
  std::vector<Selection> tail(4);
  tail[3].blocks = {5};
  EXPECT_EQ(w.cache.evict(*w.keys(24), tail), 1);
  const std::array<std::int64_t, 2> ends = {24, 20};
  auto out = w.cache.transfers().offload_new(w.keys(24), 24, {}, ends, {});
  w.tier.end_all();
  w.cache.transfers().poll();
  const TransferOutcome outcome = w.cache.transfers().outcome_of(*out);
  EXPECT_EQ(outcome.boundaries, std::vector<std::int64_t>{20});
  EXPECT_EQ(outcome.missed.size(), 1u);
  EXPECT_EQ(outcome.missed[0].second, TransferOutcome::no_states);
  EXPECT_EQ(outcome.blocks, (std::vector<std::int64_t>{6, 6, 2, 1}));
  EXPECT_EQ(w.tier.count(RecordKind::Block), 6u);
}

HKV_TEST(
    "of what was published anew each block is stored that the tier lost, though it has what continues it") {
  World w(hybrid(32));
  const auto whole = w.keys(24);
  w.write(whole);
  w.store(whole, {});
  std::vector<Selection> third(4);
  third[0].blocks = third[1].blocks = {2};
  EXPECT_EQ(w.cache.evict(*whole, third), 2);
  w.tier.lose(RecordKind::Block, whole->keys()[2]);
  w.write(whole);
  w.tier.looks = 0;
  const auto since = [&](std::int64_t tokens) {
    auto out = w.cache.transfers().offload_new(whole, tokens, {}, {}, {});
    w.tier.end_all();
    w.cache.transfers().poll();
    return w.cache.transfers().state_of(*out).records;
  };
  EXPECT_EQ(since(24), 0);  // the last is there, and nothing is new
  EXPECT(w.tier.looks <= 2 + 6);
  EXPECT(w.cache.transfers().is_unstored(*whole, {}) == false);  // of a tier that knows parents it cannot be
  EXPECT_EQ(since(8), 1);
  EXPECT_EQ(w.tier.count(RecordKind::Block), 6u);
}

HKV_TEST("a flush ends behind the offloads before it, and tells what they came to, once") {
  World w(hybrid(32));
  w.write(w.keys(16));
  auto first = w.cache.transfers().offload(w.keys(16), std::array<std::int64_t, 1>{16}, {});
  auto flush = w.cache.transfers().flush({});
  EXPECT_EQ(w.tier.waiting.size(), 5u);  // it has not begun
  for (int i = 0; i < 4; ++i) w.tier.end_one();
  w.cache.transfers().poll();
  EXPECT_EQ(w.tier.waiting.size(), 1u);
  w.tier.end_one(TierStatus::NoSpace);
  w.cache.transfers().poll();
  EXPECT_EQ(w.tier.waiting.size(), 1u);
  EXPECT(!w.cache.transfers().state_of(*flush).finished);
  w.tier.end_one();
  w.cache.transfers().poll();
  EXPECT(w.cache.transfers().state_of(*flush).finished);
  const Written written = w.cache.transfers().outcome_of(*flush).written;
  EXPECT_EQ(written.records, 4);
  EXPECT_EQ(written.bytes, 4 * 128);
  EXPECT_EQ(written.failed[static_cast<std::size_t>(TierStatus::NoSpace)], 1);
  const TransferOutcome outcome = w.cache.transfers().outcome_of(*first);
  EXPECT(outcome.boundaries.empty());
  EXPECT_EQ(outcome.missed[0].second, static_cast<int>(TierStatus::NoSpace));
  auto again = w.cache.transfers().flush({});
  w.tier.end_one(TierStatus::IoError);
  w.cache.transfers().poll();
  EXPECT_EQ(w.cache.transfers().state_of(*again).status, TierStatus::IoError);
  EXPECT_EQ(w.cache.transfers().outcome_of(*again).written.records, 0);
  auto given_up = w.cache.transfers().flush({});
  w.cache.transfers().cancel(*given_up);
  w.tier.end_all();
  w.cache.transfers().poll();
  w.expect_idle();
}

HKV_TEST("a boundary is told as stored only where all history below it is") {
  World w(hybrid(32));
  w.write(w.keys(16));
  auto out = w.cache.transfers().offload(w.keys(16), std::array<std::int64_t, 2>{8, 16}, {});
  w.tier.end_one();
  w.tier.end_one();
  w.tier.end_one(TierStatus::NoSpace);  // the third block
  w.tier.end_all();
  w.cache.transfers().poll();
  w.tier.end_all();
  w.cache.transfers().poll();
  const TransferOutcome outcome = w.cache.transfers().outcome_of(*out);
  EXPECT_EQ(outcome.boundaries, std::vector<std::int64_t>{8});
  EXPECT_EQ(outcome.missed.size(), 1u);
  EXPECT_EQ(outcome.missed[0].first, 16);
}

}  // namespace hkv::write_through
