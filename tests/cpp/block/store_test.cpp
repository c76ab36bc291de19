// SPDX-License-Identifier: Apache-2.0
// Life cycles of one block in a BlockStore, step by step.
// One thread: left out under ThreadSanitizer.
#include "block/store.h"

#include "testing.h"

namespace hkv {
namespace {

constexpr GroupSlot groups[] = {{WordClass::H, 0, StateKind::Compressed},
                                {WordClass::H, 1, StateKind::Indexer},
                                {WordClass::B, 0, StateKind::Window}};
constexpr std::uint32_t pages[] = {3, 3, 3};
constexpr Key128 key{7, 8};

struct World : BlockStore {
  World() : BlockStore(4, groups, pages) {}
  DescriptorId claimed(int group) {
    bool lives = true;
    const DescriptorId id = table().get_or_insert(key).id;
    EXPECT(claim(id, key, group, pool(group).take(), lives));
    return id;
  }
  DescriptorId ready(int group) {
    const DescriptorId id = claimed(group);
    publish(id, group);
    return id;
  }
  Phase phase(int group) {
    const Sighting seen = table().find(key);
    return seen.found() ? seen.word(slot_of(group).which).phase(slot_of(group).slot) : Phase::Absent;
  }
  PinResult pin(DescriptorId id, int group) {
    const WordClass which = slot_of(group).which;
    return BlockStore::pin(id, which, (*this)[id].word(which),
                           static_cast<SlotMask>(1u << slot_of(group).slot));
  }
  void expect_empty() {
    EXPECT_EQ(ids().free_count(), 4u);
    for (int g = 0; g < 3; ++g) EXPECT_EQ(pool(g).free_count(), 3u);
    EXPECT(verify() == no_descriptor);
  }
};

}  // namespace

HKV_TEST("claim, publish, evict: the page comes back and the descriptor goes with the last one") {
  World w;
  const DescriptorId id = w.ready(0);
  w.ready(2);
  EXPECT_EQ(w.pool(0).free_count(), 2u);
  EXPECT(w.phase(0) == Phase::Ready && w.phase(2) == Phase::Ready && w.phase(1) == Phase::Absent);
  EXPECT_EQ(w.once_held(id), 0b101u);
  EXPECT(w.evict(key, 0));
  EXPECT(!w.evict(key, 0));
  EXPECT(w.table().find(key).found());  // the window page is still there
  EXPECT(w.evict(key, 2));
  EXPECT(!w.table().find(key).found());
  w.expect_empty();
}

HKV_TEST("a claimed block is neither usable nor taken twice; abort gives it back") {
  World w;
  const DescriptorId id = w.claimed(0);
  bool lives = false;
  const PageId page = w.pool(0).take();
  EXPECT(!w.claim(id, key, 0, page, lives));
  EXPECT(lives);
  w.pool(0).give_back(page);
  EXPECT(w.pin(id, 0) == PinResult::Raced);
  EXPECT(!w.evict(key, 0));
  EXPECT(!w.retire(id, 0));
  w.abort(id, key, 0);
  w.expect_empty();
  EXPECT(w.claimed(0) != no_descriptor);  // and it can be claimed anew
}

HKV_TEST("abort that keeps its page leaves the page out of the pool") {
  World w;
  w.abort(w.claimed(2), key, 2, true);
  EXPECT_EQ(w.pool(2).free_count(), 2u);
  EXPECT_EQ(w.ids().free_count(), 4u);
}

HKV_TEST("a pin keeps its page from evict, and not the page of the other word") {
  World w;
  const DescriptorId id = w.ready(0);
  w.ready(1);
  w.ready(2);
  EXPECT(w.pin(id, 0) == PinResult::Pinned);
  EXPECT(!w.evict(key, 0));
  EXPECT(!w.evict(key, 1));  // the same word: a neighbour's pin counts
  EXPECT(w.evict(key, 2));
  EXPECT_EQ(w.census(0, 0).held, 1u);
  w.unpin(id, WordClass::H);
  EXPECT_EQ(w.census(0, 0).cached, 1u);
  EXPECT(w.evict(key, 0) && w.evict(key, 1));
  w.expect_empty();
}

HKV_TEST("a retired page takes no new pin and goes with its last one; its neighbour stays") {
  World w;
  const DescriptorId id = w.ready(0);
  w.ready(1);
  const Word before = w[id].word(WordClass::H);
  EXPECT(w.pin(id, 0) == PinResult::Pinned);
  EXPECT(w.pin(id, 0) == PinResult::Pinned);
  EXPECT(w.retire(id, 0));
  EXPECT(!w.retire(id, 0));
  EXPECT(w.phase(0) == Phase::Retiring);
  EXPECT(w.pin(id, 0) == PinResult::Raced);
  EXPECT(w.pin(id, 1) == PinResult::Pinned);
  w.unpin(id, WordClass::H);
  w.unpin(id, WordClass::H);
  EXPECT(w.phase(0) == Phase::Retiring);
  EXPECT_EQ(w.pool(0).free_count(), 2u);
  w.unpin(id, WordClass::H);
  EXPECT(w.phase(0) == Phase::Absent && w.phase(1) == Phase::Ready);
  EXPECT_EQ(w.pool(0).free_count(), 3u);
  // What was checked before the page went cannot be pinned any more, its neighbour included.
  EXPECT(w[id].pin(WordClass::H, before, 0b10) == PinResult::Raced);
  EXPECT(w.retire_of(key, 1));
  EXPECT(!w.retire_of(key, 1));
  w.expect_empty();
}

HKV_TEST(
    "all published pages of a word are withdrawn: at once where nobody pins it, else with the last pin") {
  World w;
  DescriptorId id = w.ready(0);
  w.ready(1);
  EXPECT_EQ(w.withdraw_at(id, WordClass::H), 2);
  w.expect_empty();
  id = w.ready(0);
  w.ready(1);
  EXPECT(w.pin(id, 0) == PinResult::Pinned);
  EXPECT_EQ(w.withdraw_at(id, WordClass::H), 0);
  EXPECT(w.phase(0) == Phase::Retiring && w.phase(1) == Phase::Retiring);
  EXPECT(w.pin(id, 0) == PinResult::Raced && w.pin(id, 1) == PinResult::Raced);
  EXPECT_EQ(w.withdraw_at(id, WordClass::H), 0);
  w.unpin(id, WordClass::H);
  w.expect_empty();
}

HKV_TEST("pins stop at their limit, and one more is refused without a trace") {
  World w;
  const DescriptorId id = w.ready(0);
  for (std::uint32_t i = 0; i < Word::pins_max; ++i) EXPECT(w.pin(id, 0) == PinResult::Pinned);
  const Word full = w[id].word(WordClass::H);
  EXPECT_EQ(full.pins(), Word::pins_max);
  EXPECT(w.pin(id, 0) == PinResult::Full);
  EXPECT(!w.retire_of(key, 0));
  EXPECT(w[id].word(WordClass::H) == full);
  EXPECT(w.table().find(key).found());
  for (std::uint32_t i = 0; i < Word::pins_max; ++i) w.unpin(id, WordClass::H);
  EXPECT(w.evict(key, 0));
  w.expect_empty();
}

HKV_TEST("a sighting of an earlier life pins nothing of a later one") {
  World w;
  w.ready(0);
  const Sighting old = w.table().find(key);
  EXPECT(w.evict(key, 0));
  const DescriptorId id = w.ready(0);
  EXPECT(id == old.id);
  EXPECT(w[id].pin(WordClass::H, old.h, 1) == PinResult::Raced);
  EXPECT_EQ(w[id].word(WordClass::H).pins(), 0u);
}

HKV_TEST("a ninth group keeps its page ids in the second line") {
  std::vector<GroupSlot> many;
  for (std::uint8_t g = 0; g < 12; ++g)
    many.push_back(
        {g < 6 ? WordClass::H : WordClass::B, static_cast<std::uint8_t>(g % 6), StateKind::Window});
  const std::vector<std::uint32_t> counts(12, 2);
  BlockStore store(2, many, counts);
  bool lives = true;
  const DescriptorId id = store.table().get_or_insert(key).id;
  std::vector<PageId> taken;
  for (int g = 0; g < 12; ++g) {
    if (g % 2) store.pool(g).take();  // another page than the neighbour's
    taken.push_back(store.pool(g).take());
    EXPECT(store.claim(id, key, g, taken.back(), lives));
    store.publish(id, g);
  }
  for (int g = 0; g < 12; ++g) EXPECT(store.page(id, g) == taken[static_cast<std::size_t>(g)]);
}

HKV_TEST("what a directory's line holds in its next life is no tip, whatever number it is") {
  World w;
  const DescriptorId id = w.ready(1);
  EXPECT(!w.is_tip_of(DescriptorId{w.blocks()}, id));
  EXPECT(!w.is_tip_of(no_descriptor, id));
  w.note_tip(id, id);
  EXPECT(w.is_tip_of(id, id));
}

HKV_TEST("verify names the descriptor whose derived bit is wrong, and reset forgets everything") {
  World w;
  const DescriptorId id = w.ready(1);
  EXPECT(w.index_of_states().get(StateKind::Indexer, id));
  w.index_of_states().corrupt(StateKind::Indexer, id);
  EXPECT(w.verify() == id);
  w.reset();
  w.expect_empty();
  EXPECT(!w.table().find(key).found());
  EXPECT_EQ(w.index_of_states().count(StateKind::Indexer), 0u);
}

}  // namespace hkv
