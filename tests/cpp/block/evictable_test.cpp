// SPDX-License-Identifier: Apache-2.0
// The counts of evictable pages beside a scan of all words, after every event of random runs.
// One thread: left out under ThreadSanitizer.
#include "block/evictable.h"

#include <random>

#include "block/store.h"
#include "testing.h"

namespace hkv {
namespace {

constexpr GroupSlot groups[] = {{WordClass::H, 0, StateKind::Compressed},
                                {WordClass::H, 1, StateKind::Indexer},
                                {WordClass::B, 0, StateKind::Window}};
constexpr std::uint32_t pages[] = {12, 12, 12};
constexpr int key_count = 10;

Key128 key_of(int i) {
  return {static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15u + 1, 77u + static_cast<unsigned>(i)};
}

class Run {
 public:
  explicit Run(std::uint64_t seed) : random_(seed) {}

  void step() {
    const Key128 key = key_of(static_cast<int>(random_() % key_count));
    const int group = static_cast<int>(random_() % 3);
    switch (random_() % 11) {
      case 0:
      case 1: fill(key, group); break;
      case 2:
      case 3: pin(key, group); break;
      case 4:
      case 5: unpin(); break;
      case 6: store.evict(key, group); break;
      case 7: store.retire_of(key, group); break;
      case 8: retire(key, group); break;
      case 9: withdraw(key); break;
      default: evict_at(key); break;
    }
  }
  bool counted() const {
    for (int g = 0; g < 3; ++g) {
      if (store.evictable(g) != static_cast<std::int64_t>(store.census(g, 0).cached)) return false;
    }
    return true;
  }
  void end() {
    while (!pins_.empty()) unpin();
    for (int i = 0; i < key_count; ++i) {
      for (int g = 0; g < 3; ++g) store.evict(key_of(i), g);
    }
  }

  BlockStore store{16, groups, pages};

 private:
  void fill(Key128 key, int group) {
    const PageId page = store.pool(group).take();
    if (page == no_page) return;
    const Placement placed = store.table().get_or_insert(key);
    bool lives = true;
    if (!store.claim(placed.id, key, group, page, lives)) {
      store.pool(group).give_back(page);
    } else if (random_() % 4 == 0) {
      store.abort(placed.id, key, group);
    } else {
      store.publish(placed.id, group);
    }
  }
  void pin(Key128 key, int group) {
    const Sighting seen = store.table().find(key);
    const GroupSlot& at = store.slot_of(group);
    if (!seen.found()) return;
    const auto mask = static_cast<SlotMask>(1u << at.slot);
    if (store.pin(seen.id, at.which, seen.word(at.which), mask) == PinResult::Pinned)
      pins_.push_back({seen.id, at.which});
  }
  void unpin() {
    if (pins_.empty()) return;
    const std::size_t i = random_() % pins_.size();
    store.unpin(pins_[i].id, pins_[i].which);
    pins_[i] = pins_.back();
    pins_.pop_back();
  }
  void withdraw(Key128 key) {
    const Sighting seen = store.table().find(key);
    if (!seen.found()) return;
    for (const WordClass which : {WordClass::H, WordClass::B}) store.withdraw_at(seen.id, which);
  }
  void retire(Key128 key, int group) {  // by id, pinned or not
    const Sighting seen = store.table().find(key);
    if (seen.found()) store.retire(seen.id, group);
  }
  void evict_at(Key128 key) {
    const Sighting seen = store.table().find(key);
    if (!seen.found()) return;
    const WordClass which = random_() % 2 ? WordClass::H : WordClass::B;
    const SlotMask could = seen.word(which).evictable_slots();
    EXPECT_EQ(static_cast<int>(store.evict_at(seen.id, which, 0xFF)), static_cast<int>(could));
  }

  struct Pin {
    DescriptorId id;
    WordClass which;
  };
  std::mt19937_64 random_;
  std::vector<Pin> pins_;
};

}  // namespace

HKV_TEST("a slot is evictable exactly where Evict is a legal transition of the word") {
  for (std::uint32_t pins : {0u, 1u}) {
    for (int phase = 0; phase < phase_count; ++phase) {
      const Word word(Word::bare(3, pins).bits() | static_cast<std::uint64_t>(phase) << 6);
      EXPECT_EQ(word.apply(0b100, Event::Evict).has_value(), (word.evictable_spread() >> 6 & 1) != 0);
      EXPECT_EQ(static_cast<int>(word.evictable_slots()), word.evictable_spread() != 0 ? 4 : 0);
    }
  }
}

HKV_TEST("the counts are those of a scan after every event of random runs, and 0 at the end") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Run run(seed);
    for (int i = 0; i < 400; ++i) {
      run.step();
      if (!run.counted()) {
        EXPECT(run.counted());
        std::printf("     seed %llu, event %d\n", static_cast<unsigned long long>(seed), i);
        return;
      }
    }
    run.end();
    for (int g = 0; g < 3; ++g) EXPECT_EQ(run.store.evictable(g), 0);
  }
}

HKV_TEST("a reset forgets the counts") {
  Run run(1);
  for (int i = 0; i < 50; ++i) run.step();
  run.end();
  bool lives = true;
  const DescriptorId id = run.store.table().get_or_insert(key_of(1)).id;
  EXPECT(run.store.claim(id, key_of(1), 0, run.store.pool(0).take(), lives));
  run.store.publish(id, 0);
  EXPECT_EQ(run.store.evictable(0), 1);
  run.store.reset();
  EXPECT_EQ(run.store.evictable(0), 0);
}

HKV_TEST("a change notes runs of equal words and single ones alike") {
  EvictableChange change;
  for (int i = 0; i < 5; ++i) change.note(WordClass::H, 0b001001);
  change.note(WordClass::H, 0b001000);
  change.note(WordClass::B, 0b1);
  change.note(WordClass::H, 0);
  std::int64_t h0 = 0, h1 = 0, b0 = 0;
  const auto add = [&](WordClass which, int slot, std::int64_t n) {
    (which == WordClass::B ? b0 : slot == 0 ? h0 : h1) += n;
  };
  change.drain(add);
  change.drain(add);  // it is forgotten by now
  EXPECT_EQ(h0, 5);
  EXPECT_EQ(h1, 6);
  EXPECT_EQ(b0, 1);
}

}  // namespace hkv
