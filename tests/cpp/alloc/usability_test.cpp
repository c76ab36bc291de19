// SPDX-License-Identifier: Apache-2.0
// The order by usability: what goes first, and what is kept for the next prompt.
// One thread: left out under ThreadSanitizer.
#include "alloc/usability.h"

#include "alloc/eviction_world.h"
#include "cache/transfer_world.h"

namespace hkv {
using namespace eviction;

HKV_TEST("usability: the tail of a branch outlives pages outside every tail") {
  World w(hybrid(40, 10), 64, EvictionOrder::Usability);
  w.insert(branch(1, 2));  // the oldest
  w.insert(branch(2, 8));
  EXPECT_EQ(w.cache.make_room(1, 8), 8);
  EXPECT_EQ(w.there(branch(1, 2), 1, 2), std::string("01"));
  EXPECT_EQ(w.there(branch(2, 8), 1, 8), std::string("00000001"));
  EXPECT_EQ(w.use(branch(1, 2)), 2 * unit);
  EXPECT_EQ(w.use(branch(2, 8)), 8 * unit);
  EXPECT_EQ(pages_of(w.cache.eviction_counts(), 1, EvictionClass::Superseded), 8);
  // Then the tail that was used longest ago goes.
  w.use(branch(1, 2));
  EXPECT_EQ(w.cache.make_room(1, 1), 1);
  EXPECT_EQ(w.use(branch(1, 2)), 2 * unit);
  EXPECT_EQ(w.use(branch(2, 8)), 0);
  EXPECT_EQ(pages_of(w.cache.eviction_counts(), 1, EvictionClass::Tail), 1);
}

HKV_TEST("usability: a fork keeps its tail") {
  World w(hybrid(40, 20), 64, EvictionOrder::Usability);
  w.insert(branch(1, 6, 3));
  w.insert(branch(2, 6, 3));  // a fork at 3
  EXPECT_EQ(w.cache.make_room(1, 6), 6);
  EXPECT_EQ(w.there(branch(1, 6, 3), 1, 6), std::string("001001"));
  EXPECT_EQ(w.there(branch(2, 6, 3), 1, 6), std::string("001001"));
}

HKV_TEST("usability: a window of several blocks is kept as a whole") {
  // Window(10): a resume needs the last 9 tokens, which lie in 3 blocks.
  World w({group("kv", Rule::Prefix, 0, 40), group("swa", Rule::Window, 10, 20)}, 64,
          EvictionOrder::Usability);
  w.insert(branch(1, 8));
  EXPECT_EQ(w.cache.make_room(1, 5), 5);
  EXPECT_EQ(w.there(branch(1, 8), 1, 8), std::string("00000111"));
  // Blocks that end between two steps of history belong to the tail of what comes next.
  World fine({group("kv", Rule::Prefix, 0, 20, 4), group("swa", Rule::Window, 10, 40)}, 64,
             EvictionOrder::Usability);
  fine.insert(branch(1, 8));
  EXPECT_EQ(fine.cache.make_room(1, 5), 5);
  EXPECT_EQ(fine.there(branch(1, 8), 1, 8), std::string("00000111"));
}

HKV_TEST("usability: suffix goes before prefix, and what is used last stays longest") {
  World w(kv(12), 64, EvictionOrder::Usability);
  w.insert(branch(1, 6, 3));
  w.insert(branch(2, 6, 3));
  w.use(branch(1, 6, 3));
  EXPECT_EQ(w.cache.make_room(0, 2), 2);
  EXPECT_EQ(w.there(branch(2, 6, 3), 0, 6), std::string("111100"));
  EXPECT_EQ(w.there(branch(1, 6, 3), 0, 6), std::string("111111"));
  EXPECT_EQ(w.cache.make_room(0, 4), 4);
  EXPECT_EQ(w.there(branch(1, 6, 3), 0, 6), std::string("111000"));
  EXPECT_EQ(w.there(branch(2, 6, 3), 0, 6), std::string("111000"));
  EXPECT_EQ(w.cache.make_room(0, 9), 3);
  EXPECT_EQ(w.cache.store().ids().free_count(), 64u);
}

HKV_TEST("usability: history that leads to no boundary goes before history that does") {
  World w(hybrid(20, 20), 64, EvictionOrder::Usability);
  w.insert(branch(1, 3));
  w.insert(branch(2, 5));
  w.forget(branch(2, 5), 1, {3, 4});  // nothing resumes at 4 and 5 any more
  EXPECT_EQ(w.cache.make_room(0, 2), 2);
  EXPECT_EQ(w.there(branch(2, 5), 0, 5), std::string("11100"));
  EXPECT_EQ(w.there(branch(1, 3), 0, 3), std::string("111"));
  EXPECT_EQ(w.cache.make_room(0, 1), 1);  // now the older one
  EXPECT_EQ(w.there(branch(1, 3), 0, 3), std::string("110"));
  EXPECT(w.has(branch(1, 3), 1, 2));  // its state stays, and serves when the prompt comes again
  w.insert(branch(1, 3));
  EXPECT_EQ(w.use(branch(1, 3)), 3 * unit);
}

HKV_TEST("usability: stranded history is counted and goes first, and states without history do") {
  World w(hybrid(20, 20), 64, EvictionOrder::Usability);
  w.insert(branch(1, 3));
  w.insert(branch(2, 4));
  EXPECT_EQ(w.cache.eviction_counts().stranded_now, 0);
  w.forget(branch(2, 4), 0, {0});
  EXPECT_EQ(w.cache.eviction_counts().stranded_now, 3 * unit);
  EXPECT_EQ(w.cache.make_room(1, 4), 4);
  EXPECT_EQ(w.there(branch(2, 4), 1, 4), std::string("0000"));
  EXPECT_EQ(w.there(branch(1, 3), 1, 3), std::string("111"));
  EXPECT_EQ(w.cache.make_room(0, 3), 3);
  EXPECT_EQ(w.there(branch(1, 3), 0, 3), std::string("111"));
  const auto counts = w.cache.eviction_counts();
  EXPECT_EQ(counts.stranded_now, 0);
  EXPECT_EQ(counts.stranded_tokens, 3 * unit);
  EXPECT_EQ(pages_of(counts, 0, EvictionClass::Stranded), 3);
  EXPECT_EQ(pages_of(counts, 1, EvictionClass::Stranded), 4);
}

HKV_TEST("usability: what comes back under stranded history makes it whole again") {
  for (const bool leased : {false, true}) {
    World w(kv(20), 64, EvictionOrder::Usability);
    w.insert(branch(1, 4));
    auto elsewhere = w.reserve(branch(3, 1));
    w.forget(branch(1, 4), 0, {0});
    w.insert(branch(9, 1));  // takes the id
    w.insert(leased ? branch(1, 1) : branch(1, 4));
    if (leased) {
      EXPECT_EQ(w.cache.eviction_counts().stranded_now, 3 * unit);  // nobody has told yet
      w.use(branch(1, 4));
    }
    EXPECT_EQ(w.cache.eviction_counts().stranded_now, 0);
    w.cache.abort(*elsewhere, false);
  }
}

HKV_TEST("tips go as ends of branches do, and their directory serves again") {
  World w(hybrid(24, 24), 64, EvictionOrder::Usability);
  for (std::uint32_t i = 1; i <= 4; ++i) w.insert(branch(i, 2, 2, 2));
  EXPECT_EQ(w.use(branch(3, 2, 2, 2)), 2 * unit + 2);
  EXPECT_EQ(w.cache.make_room(0, 3), 3);
  EXPECT_EQ(w.use(branch(3, 2, 2, 2)), 2 * unit + 2);  // the one used last is left
  EXPECT_EQ(w.use(branch(1, 2, 2, 2)), 2 * unit);
  for (std::uint32_t i = 5; i <= 7; ++i) {
    w.insert(branch(i, 2, 2, 2));
    EXPECT_EQ(w.use(branch(i, 2, 2, 2)), 2 * unit + 2);
  }
  EXPECT_EQ(w.use(branch(3, 2, 2, 2)), 2 * unit + 2);  // no place was taken from a live one
  EXPECT(w.conserved());
  while (w.cache.make_room(0, 1) != 0 || w.cache.make_room(1, 1) != 0) {
  }
  EXPECT_EQ(w.cache.store().ids().free_count(), 63u);  // the empty directory
  EXPECT_EQ(w.cache.make_room(descriptor_pool, 5), 1);
  EXPECT_EQ(w.cache.store().ids().free_count(), 64u);
}

HKV_TEST("usability: where leases resumed twice is kept like an end, and where they did once is not") {
  for (const int times : {1, 2}) {
    World w(hybrid(40, 20), 64, EvictionOrder::Usability);
    w.insert(branch(1, 6, 6));
    for (int i = 0; i < times; ++i) EXPECT_EQ(w.use(branch(3, 4, 2)), 2 * unit);
    EXPECT_EQ(w.cache.make_room(1, 5), 5);  // of the two tails the one used last is left
    EXPECT_EQ(w.there(branch(1, 6, 6), 1, 6), std::string(times == 2 ? "010000" : "000001"));
  }
}

HKV_TEST("usability: a tail goes as a whole, by the use of its boundary") {
  World w({group("kv", Rule::Prefix, 0, 40), group("swa", Rule::Window, 10, 20)}, 64,
          EvictionOrder::Usability);
  w.insert(branch(1, 5));
  w.insert(branch(2, 6));
  w.insert_blocks(branch(1, 6), {5});  // the blocks before it were not used again
  EXPECT_EQ(w.cache.make_room(1, 6 + 3), 9);
  EXPECT_EQ(w.there(branch(1, 6), 1, 6), std::string("000111"));
  EXPECT_EQ(w.there(branch(2, 6), 1, 6), std::string("000000"));
}

HKV_TEST("usability: a use of what continues a block is a use of the block") {
  World w(kv(20), 64, EvictionOrder::Usability);
  w.insert(branch(1, 2));
  w.insert(branch(9, 1));
  w.insert_blocks(branch(1, 4), {2, 3});
  w.insert(branch(11, 1));
  EXPECT_EQ(w.cache.make_room(0, 5), 5);
  EXPECT_EQ(w.there(branch(1, 4), 0, 4), std::string("0000"));
  EXPECT(!w.has(branch(9, 1), 0, 0) && w.has(branch(11, 1), 0, 0));
}

HKV_TEST("usability: what something continues stays until nothing else is left") {
  World w(kv(20), 64, EvictionOrder::Usability);
  w.insert(branch(1, 2));
  w.insert(branch(9, 1));
  BlockStore& store = w.cache.store();
  const Sighting end = store.table().find(branch(1, 2)->keys()[1]);
  EXPECT(store.pin(end.id, WordClass::H, end.h, 1) == PinResult::Pinned);
  EXPECT_EQ(w.cache.make_room(0, 1), 1);
  EXPECT_EQ(w.there(branch(1, 2), 0, 2), std::string("11"));
  EXPECT_EQ(w.cache.make_room(0, 1), 1);
  EXPECT_EQ(w.there(branch(1, 2), 0, 2), std::string("01"));
  EXPECT_EQ(w.cache.make_room(0, 1), 0);
  store.unpin(end.id, WordClass::H);
}

HKV_TEST("usability: a tip that its branch has passed by goes before an older end") {
  World w(hybrid(20, 20), 64, EvictionOrder::Usability);
  w.insert(branch(9, 2));
  w.insert(branch(1, 2, 2, 2));
  w.insert(branch(1, 3, 2));
  EXPECT_EQ(w.cache.make_room(0, 1), 1);
  EXPECT_EQ(w.there(branch(9, 2), 0, 2), std::string("11"));
  EXPECT_EQ(w.there(branch(1, 3, 2), 0, 3), std::string("111"));
  EXPECT(!w.has(branch(1, 2, 2, 2), 0, 2));
}

HKV_TEST("usability: of what was used about as long ago, what the tier has a copy of makes room first") {
  transfer_world::World w({transfer_world::group("kv", 0, Rule::Prefix, 0, 24)});
  const auto older = w.keys(16, 1), copied = w.keys(16, 1001), third = w.keys(16, 2001),
             newer = w.keys(16, 3001);
  const auto here = [&](const std::shared_ptr<const KeyChain>& keys) {
    std::string text;
    for (std::int64_t block = 0; block < 4; ++block) text += usable(w.phase(*keys, 0, block)) ? '1' : '0';
    return text;
  };
  const auto wait_a_while = [&] {
    for (int i = 0; i < 100; ++i) w.look(third);
  };
  for (const auto& keys : {older, copied, third, newer}) w.write(keys);
  w.store(copied, {});
  wait_a_while();
  EXPECT_EQ(w.cache.make_room(0, 3), 3);
  EXPECT_EQ(here(older), std::string("1111"));
  EXPECT_EQ(here(copied), std::string("1000"));  // suffix before prefix
  EXPECT_EQ(w.phase(*copied, 0, 3), Phase::TierOnly);
  // Then the oldest of those that are only here.
  EXPECT_EQ(w.cache.make_room(0, 2), 2);
  EXPECT_EQ(here(copied), std::string("0000"));
  EXPECT_EQ(here(older), std::string("1110"));
  EXPECT_EQ(here(newer), std::string("1111"));
}

HKV_TEST("usability: what was used much later stays, copied or not") {
  transfer_world::World w({transfer_world::group("kv", 0, Rule::Prefix, 0, 24)});
  const auto older = w.keys(16, 1), copied = w.keys(16, 1001), third = w.keys(16, 2001);
  for (const auto& keys : {older, third}) w.write(keys);
  for (int i = 0; i < 100; ++i) w.look(third);
  w.write(copied);
  w.store(copied, {});
  EXPECT_EQ(w.phase(*copied, 0, 3), Phase::ReadyCopy);
  EXPECT_EQ(w.cache.make_room(0, 2), 2);
  EXPECT(!usable(w.phase(*older, 0, 2)) && usable(w.phase(*older, 0, 1)));
  EXPECT(usable(w.phase(*copied, 0, 3)));
}

HKV_TEST(
    "usability: a copied prefix stays as long as what continues it, and does not hold up what goes first") {
  transfer_world::World w({transfer_world::group("kv", 0, Rule::Prefix, 0, 24)});
  const auto whole = w.keys(16, 1), front = w.keys(8, 1), alone = w.keys(16, 1001), third = w.keys(16, 2001);
  w.write(front);
  w.store(front, {});
  w.write(whole);
  w.write(alone);
  w.write(third);
  for (int i = 0; i < 100; ++i) w.look(third);
  EXPECT_EQ(w.phase(*whole, 0, 1), Phase::ReadyCopy);
  EXPECT_EQ(w.phase(*whole, 0, 2), Phase::Ready);
  EXPECT_EQ(w.cache.make_room(0, 2), 2);
  EXPECT(!usable(w.phase(*whole, 0, 2)) && usable(w.phase(*whole, 0, 1)));
  EXPECT_EQ(w.cache.make_room(0, 2), 2);  // now they are an end themselves, and go before what is older
  EXPECT(!usable(w.phase(*whole, 0, 0)) && usable(w.phase(*alone, 0, 3)));
}

HKV_TEST(
    "usability: of tails about as old, the one whose states the tier has goes first, after all that is in no "
    "tail") {
  transfer_world::World w(transfer_world::hybrid(24));
  const auto older = w.keys(16, 1), copied = w.keys(16, 1001), third = w.keys(16, 2001);
  for (const auto& keys : {older, copied, third}) w.write(keys);
  w.store(copied, {16});
  for (int i = 0; i < 100; ++i) w.look(third);
  constexpr int swa = 2;
  const auto here = [&](const auto& keys, std::int64_t block) { return usable(w.phase(*keys, swa, block)); };
  EXPECT_EQ(w.cache.make_room(swa, 6), 6);
  for (const auto& keys : {older, copied, third}) {
    EXPECT(!here(keys, 0) && !here(keys, 1) && here(keys, 2) && here(keys, 3));
  }
  EXPECT_EQ(w.cache.make_room(swa, 2), 2);
  EXPECT(here(older, 2) && here(older, 3));
  EXPECT(!here(copied, 2) && !here(copied, 3));
  EXPECT_EQ(w.look(older).usable_tokens, 16);
  EXPECT_EQ(w.look(copied).remedy, Remedy::Restore);
}

}  // namespace hkv
