// SPDX-License-Identifier: Apache-2.0
// Copies that a tier drops by itself: what words, counts and eviction know of them.
//
// Thread safety: one thread.
#pragma once
#include <array>

#include "alloc/usability.h"
#include "cache/transfer_world.h"

namespace hkv::lost_copies {

using transfer_world::hybrid;
using transfer_world::World;

constexpr int swa = 2, tail = 3;  // groups of hybrid()

inline std::uint64_t copies(World& w) { return w.cache.store().index_of_states().count(StateKind::Disk); }
inline Phase word_phase(World& w, const KeyChain& keys, int g, std::int64_t block) {
  const Sighting seen = w.cache.store().table().find(keys.keys()[block]);
  const GroupSlot& at = w.cache.store().slot_of(g);
  return seen.word(at.which).phase(at.slot);
}

HKV_TEST("a page whose record the tier dropped is ready without a copy once the tier's word is taken") {
  World w(hybrid(32));
  const auto keys = w.keys(16);
  w.write(keys);
  w.store(keys, {8, 16});
  EXPECT_EQ(copies(w), 4u);
  EXPECT_EQ(word_phase(w, *keys, swa, 2), Phase::ReadyCopy);
  w.tier.looks = 0;
  w.cache.transfers().poll();
  EXPECT_EQ(w.tier.looks, 0);  // nothing was lost: nothing is asked
  w.tier.lose(RecordKind::Block, keys->keys()[3]);
  w.tier.lose(RecordKind::Block, keys->keys()[2]);
  w.cache.transfers().poll();
  EXPECT_EQ(word_phase(w, *keys, 0, 1), Phase::ReadyCopy);
  for (const int g : {0, 1}) EXPECT_EQ(word_phase(w, *keys, g, 3), Phase::Ready);
  EXPECT_EQ(word_phase(w, *keys, tail, 3), Phase::ReadyCopy);
  EXPECT_EQ(copies(w), 4u);  // by their states
  // The window of 16 needs the block before: its copy is in that boundary's record, by whatever name.
  EXPECT_EQ(word_phase(w, *keys, swa, 2), Phase::ReadyCopy);
  w.tier.lose(RecordKind::Boundary, keys->keys()[3]);
  w.cache.transfers().poll();
  EXPECT_EQ(word_phase(w, *keys, swa, 2), Phase::Ready);
  EXPECT_EQ(word_phase(w, *keys, swa, 3), Phase::Ready);
  EXPECT_EQ(word_phase(w, *keys, tail, 3), Phase::Ready);
  EXPECT_EQ(word_phase(w, *keys, swa, 1), Phase::ReadyCopy);
  EXPECT_EQ(copies(w), 2u);
  EXPECT_EQ(w.cache.transfers().copies().lost(), 4u);
  // What is dropped is stored again.
  EXPECT(w.cache.transfers().is_unstored(*keys, {}));
  w.store(keys, {8, 16});
  EXPECT_EQ(copies(w), 4u);
  const std::array<std::int64_t, 2> lengths = {8, 16};
  EXPECT(!w.cache.transfers().is_unstored(*keys, lengths));
  w.expect_idle();
}

HKV_TEST("of a boundary alone that the tier dropped it is known that it is not stored") {
  World w(hybrid(32));
  const auto keys = w.keys(16);
  w.write(keys);
  w.store(keys, {8, 16});
  w.tier.lose(RecordKind::Boundary, keys->keys()[1]);
  const std::array<std::int64_t, 1> dropped = {8}, kept = {16};
  EXPECT(w.cache.transfers().is_unstored(*keys, dropped));
  EXPECT(!w.cache.transfers().is_unstored(*keys, kept));
}

HKV_TEST("pages that were loaded are copies of their records, and no longer than those are there") {
  World w(hybrid(32));
  const auto keys = w.stored_and_gone();
  w.restore(keys, 16);
  w.tier.end_all();
  w.cache.transfers().poll();
  w.tier.lose(RecordKind::Block, keys->keys()[3]);
  w.cache.transfers().check_copies();
  EXPECT_EQ(word_phase(w, *keys, 0, 3), Phase::Ready);
  EXPECT_EQ(word_phase(w, *keys, swa, 2), Phase::ReadyCopy);
  w.tier.lose(RecordKind::Boundary, keys->keys()[3]);
  w.cache.transfers().check_copies();
  EXPECT_EQ(word_phase(w, *keys, swa, 2), Phase::Ready);
  EXPECT_EQ(word_phase(w, *keys, 0, 2), Phase::ReadyCopy);
}

HKV_TEST("a record that was dropped before its pages became copies is found all the same") {
  World w(hybrid(32));
  const auto keys = w.keys(16);
  w.write(keys);
  auto out = w.cache.transfers().offload(keys, {}, {});
  w.tier.end_all();  // stored, and dropped before anybody takes the report
  w.tier.lose(RecordKind::Block, keys->keys()[3], false);
  w.cache.transfers().poll();
  w.cache.transfers().check_copies();
  EXPECT_EQ(word_phase(w, *keys, 0, 3), Phase::Ready);
  EXPECT_EQ(copies(w), 3u);
}

HKV_TEST("a page beside one that could not be loaded is no copy, and one whose tier was closed neither") {
  World w(hybrid(32));
  const auto keys = w.keys(16);
  w.write(keys);
  w.store(keys, {16});
  std::vector<Selection> one(4);
  one[0].blocks = {1};
  EXPECT_EQ(w.cache.evict(*keys, one), 1);
  EXPECT_EQ(word_phase(w, *keys, 1, 1), Phase::ReadyCopy);
  w.restore(keys, 16);
  w.tier.end_one(TierStatus::IoError);
  w.cache.transfers().poll();
  EXPECT_EQ(word_phase(w, *keys, 1, 1), Phase::Ready);
  EXPECT_EQ(word_phase(w, *keys, 1, 2), Phase::ReadyCopy);
  EXPECT(copies(w) != 0);
  w.tier.close();
  w.store(w.keys(4, 3001), {});
  w.write(w.keys(4, 3001));
  w.store(w.keys(4, 3001), {});
  EXPECT_EQ(copies(w), 0u);
}

HKV_TEST("what a poll asks of is bounded, and goes on where it ended") {
  const std::int64_t blocks = copies_a_poll + 40;
  World w({transfer_world::group("kv", 0, Rule::Prefix, 0, blocks)}, {}, blocks);
  const auto keys = w.keys(blocks * 4);
  w.write(keys);
  w.store(keys, {});
  for (int i = 0; i < 5 && copies(w) != static_cast<std::uint64_t>(blocks); ++i) {
    w.tier.end_all();
    w.cache.transfers().poll();
  }
  EXPECT_EQ(copies(w), static_cast<std::uint64_t>(blocks));
  for (std::int64_t i = 0; i < blocks; ++i) w.tier.lose(RecordKind::Block, keys->keys()[i]);
  w.tier.looks = 0;
  w.cache.transfers().poll();
  EXPECT_EQ(w.tier.looks, copies_a_poll);
  EXPECT_EQ(copies(w), 40u);
  w.cache.transfers().poll();
  EXPECT_EQ(copies(w), 0u);
}

HKV_TEST("inspect tells no copy that the tier dropped, before any poll") {
  World w(hybrid(32));
  const auto keys = w.keys(16);
  w.write(keys);
  w.store(keys, {16});
  EXPECT_EQ(w.phase(*keys, 0, 3), Phase::ReadyCopy);
  w.tier.lose(RecordKind::Block, keys->keys()[3]);
  EXPECT_EQ(w.phase(*keys, 0, 3), Phase::Ready);
  EXPECT_EQ(w.phase(*keys, swa, 3), Phase::ReadyCopy);
}

// Two prefixes about as old, both stored; the records of the one used last are lost. Nobody polls before the eviction.
struct Contest {
  explicit Contest(std::vector<Group> groups) : w(std::move(groups)) {
    for (const auto& keys : {older, newer, third}) w.write(keys);
  }
  void wait_a_while() {
    for (int i = 0; i < 100; ++i) w.look(third);
  }
  std::string here(const std::shared_ptr<const KeyChain>& keys, int g) {
    std::string text;
    for (std::int64_t block = 0; block < 4; ++block)
      text += usable(word_phase(w, *keys, g, block)) ? '1' : '0';
    return text;
  }
  World w;
  const std::shared_ptr<const KeyChain> older = w.keys(16, 1), newer = w.keys(16, 1001),
                                        third = w.keys(16, 2001);
};

HKV_TEST("usability: a page whose record is gone makes room by its age, not as one that the tier has") {
  Contest c({transfer_world::group("kv", 0, Rule::Prefix, 0, 24)});
  c.w.store(c.newer, {});
  c.wait_a_while();
  for (const std::int64_t block : {3, 2, 1, 0}) c.w.tier.lose(RecordKind::Block, c.newer->keys()[block]);
  EXPECT_EQ(c.w.cache.make_room(0, 3), 3);
  EXPECT_EQ(c.here(c.newer, 0), std::string("1111"));
  EXPECT_EQ(c.here(c.older, 0), std::string("1000"));
}

HKV_TEST("usability: records that go after the order was made count no more than those gone before") {
  Contest c({transfer_world::group("kv", 0, Rule::Prefix, 0, 24)});
  c.w.store(c.newer, {});
  c.wait_a_while();
  EXPECT_EQ(c.w.cache.make_room(0, 1), 1);  // makes the order
  EXPECT_EQ(c.here(c.newer, 0), std::string("1110"));
  for (const std::int64_t block : {2, 1, 0}) c.w.tier.lose(RecordKind::Block, c.newer->keys()[block]);
  EXPECT_EQ(c.w.cache.make_room(0, 2), 2);
  EXPECT_EQ(c.here(c.newer, 0), std::string("1110"));
  EXPECT_EQ(c.here(c.older, 0), std::string("1100"));
}

HKV_TEST("usability: a prefix does not go as copied from under an end that lost its copy") {
  Contest c({transfer_world::group("kv", 0, Rule::Prefix, 0, 24)});
  c.w.store(c.newer, {});
  c.wait_a_while();
  c.w.tier.lose(RecordKind::Block, c.newer->keys()[3]);
  EXPECT_EQ(c.w.cache.make_room(0, 4), 4);
  EXPECT_EQ(c.here(c.newer, 0), std::string("1111"));
  EXPECT_EQ(c.here(c.older, 0), std::string("0000"));
  EXPECT_EQ(c.w.cache.make_room(0, 1), 1);  // its turn, and then the copied ones before the third's
  EXPECT_EQ(c.here(c.newer, 0), std::string("1110"));
  EXPECT_EQ(c.w.cache.make_room(0, 3), 3);
  EXPECT_EQ(c.here(c.third, 0), std::string("1111"));
}

// One whose end a tier is reading cannot go before that end; the order counted on copies of others, which are gone.
HKV_TEST(
    "usability: where every copy that the order counted on is gone, no history goes from under what stays") {
  constexpr std::int64_t prefixes = 5, pages = 8 * prefixes;  // an order is made for half of them
  World w({transfer_world::group("kv", 0, Rule::Prefix, 0, pages)}, {}, pages);
  const auto held = w.keys(16, 1), old = w.keys(16, 701), third = w.keys(48, 901);
  w.write(old);
  w.write(w.keys(12, 1));
  w.store(w.keys(12, 1), {});
  std::vector<std::shared_ptr<const KeyChain>> all;
  for (std::uint32_t i = 1; i <= prefixes; ++i) {
    all.push_back(w.keys(16, 1000 * i));
    w.write(all.back());
    w.store(all.back(), {});
  }
  w.write(held);
  w.write(third);
  auto out = w.cache.transfers().offload(held, {}, {});
  w.look(old);
  for (const auto& keys : all) w.look(keys);
  for (int i = 0; i < 300; ++i) w.look(third);
  for (const auto& keys : all) {
    for (const std::int64_t block : {3, 2, 1, 0}) w.tier.lose(RecordKind::Block, keys->keys()[block]);
  }
  // The oldest that can go, though the order had no place for it beside so many copies.
  EXPECT_EQ(w.cache.make_room(0, 4), 4);
  EXPECT(!usable(w.phase(*old, 0, 0)));
  EXPECT_EQ(w.cache.make_room(0, prefixes), prefixes);
  EXPECT(usable(word_phase(w, *held, 0, 2)));
  for (const auto& keys : all) {  // none has a gap
    for (std::int64_t block = 1; block < 4; ++block)
      EXPECT(!usable(w.phase(*keys, 0, block)) || usable(w.phase(*keys, 0, block - 1)));
  }
  w.tier.end_all();
  w.cache.transfers().poll();
}

HKV_TEST("usability: of tails about as old, one whose boundary record is gone goes by its age") {
  Contest c(hybrid(24));
  c.w.store(c.newer, {16});
  c.wait_a_while();
  EXPECT_EQ(c.w.cache.make_room(swa, 6), 6);  // what no boundary needs
  c.w.tier.lose(RecordKind::Boundary, c.newer->keys()[3]);
  EXPECT_EQ(c.w.cache.make_room(swa, 2), 2);
  EXPECT_EQ(c.here(c.newer, swa), std::string("0011"));
  EXPECT_EQ(c.here(c.older, swa), std::string("0000"));
}

}  // namespace hkv::lost_copies
