// SPDX-License-Identifier: Apache-2.0
// One thread: left out under ThreadSanitizer.
#include "block/table.h"

#include <map>
#include <memory>
#include <random>

#include "testing.h"

namespace hkv {
namespace {

struct World {
  std::uint32_t line_count, blocks;
  std::unique_ptr<Line[]> lines{new Line[line_count]};
  std::unique_ptr<Descriptor[]> descriptors{new Descriptor[blocks]};
  std::unique_ptr<Atom<std::uint32_t>[]> notes{new Atom<std::uint32_t>[blocks]};
  IdPool ids{blocks};
  Table table{lines.get(), line_count, descriptors.get(), notes.get(), ids};
  World(std::uint32_t line_count, std::uint32_t blocks) : line_count(line_count), blocks(blocks) {}
};

// Keys of one first line and one tag; `i` chooses bits that neither sees.
Key128 colliding(std::uint32_t i) { return {0x1234'0000'0000'0000ull | i, 0x77ull | std::uint64_t{i} << 33}; }

bool same(const Sighting& a, const Sighting& b) {
  return a.id == b.id && (!a.found() || (a.h == b.h && a.b == b.b));
}

}  // namespace

HKV_TEST("a key is found once inserted and not after its erase") {
  World w(4, 8);
  const Key128 key{1, 2};
  EXPECT(!w.table.find(key).found());
  const Placement placed = w.table.get_or_insert(key);
  EXPECT(placed.how == Placed::Inserted);
  EXPECT(w.table.get_or_insert(key).how == Placed::Found);
  EXPECT_EQ(index(w.table.find(key).id), index(placed.id));
  EXPECT_EQ(w.ids.free_count(), 7u);
  w.table.erase_if_empty(placed.id, {1, 3});  // another key: nothing
  EXPECT(w.table.find(key).found());
  w.table.erase_if_empty(placed.id, key);
  EXPECT(!w.table.find(key).found());
  EXPECT_EQ(w.ids.free_count(), 8u);
  w.table.erase_if_empty(placed.id, key);  // over already: nothing
  EXPECT_EQ(w.ids.free_count(), 8u);
}

HKV_TEST("a descriptor with a claim is not erased, and each word tells of its own life") {
  World w(4, 2);
  const Key128 key{5, 6};
  const DescriptorId id = w.table.get_or_insert(key).id;
  bool lives = false;
  EXPECT_EQ(w.table.claim_b(id, key, 0b11, Event::Claim, lives), 0b11);
  EXPECT_EQ(w.table.claim_b(id, key, 0b110, Event::Claim, lives), 0b100);  // only what is absent
  EXPECT_EQ(w.table.claim_b(id, key, 0b1, Event::Claim, lives), 0);
  EXPECT(lives);
  w.table.erase_if_empty(id, key);
  EXPECT(w.table.find(key).found());
  EXPECT_EQ(w.table.claim_h(id, {5, 7}, 1, Event::Claim, lives), 0);
  EXPECT(!lives);  // no such life
}

HKV_TEST("forged tags and neighbouring keys are told apart by the key in the descriptor") {
  World w(64, 64);
  std::vector<DescriptorId> ids;
  for (std::uint32_t i = 0; i < 24; ++i) {
    EXPECT(Slot::tag_of(colliding(i)) == Slot::tag_of(colliding(0)));
    EXPECT(!w.table.find(colliding(i)).found());
    const Placement placed = w.table.get_or_insert(colliding(i));
    EXPECT(placed.how == Placed::Inserted);
    ids.push_back(placed.id);
  }
  for (std::uint32_t i = 0; i < 24; ++i) {
    EXPECT_EQ(index(w.table.find(colliding(i)).id), index(ids[i]));
    for (int bit = 0; bit < 64; ++bit) {  // each 127-bit near-collision misses, unless it is one of ours
      Key128 near = colliding(i);
      near.lo ^= std::uint64_t{1} << bit;
      EXPECT(!w.table.find(near).found());
      near = colliding(i);
      near.hi ^= std::uint64_t{1} << bit;
      EXPECT(!w.table.find(near).found());
    }
  }
}

HKV_TEST("a key whose lines are all full stays private, and none is lost") {
  World w(2, 64);
  int inserted = 0, unplaced = 0;
  for (std::uint32_t i = 0; i < 30; ++i) {
    const Placement placed = w.table.get_or_insert(colliding(i));
    inserted += placed.how == Placed::Inserted;
    unplaced += placed.how == Placed::Private;
  }
  EXPECT_EQ(inserted, 2 * Line::slots);
  EXPECT_EQ(unplaced, 30 - 2 * Line::slots);
  EXPECT_EQ(w.ids.free_count(), 64u - 2 * Line::slots);  // a private one holds no descriptor
  for (std::uint32_t i = 0; i < 30; ++i) EXPECT_EQ(w.table.find(colliding(i)).found(), i < 2 * Line::slots);
  w.table.erase_if_empty(w.table.find(colliding(3)).id, colliding(3));  // a hole in the first line
  EXPECT(w.table.find(colliding(12)).found());  // what stands beyond it is found still
  EXPECT(w.table.get_or_insert(colliding(12)).how == Placed::Found);
  EXPECT(w.table.get_or_insert(colliding(29)).how == Placed::Inserted);
}

HKV_TEST("no descriptor free is told, and nothing changes") {
  World w(8, 3);
  for (std::uint64_t i = 0; i < 3; ++i) EXPECT(w.table.get_or_insert({i << 61, i}).how == Placed::Inserted);
  EXPECT(w.table.get_or_insert({9, 9}).how == Placed::Full);
  EXPECT(w.table.get_or_insert({std::uint64_t{1} << 61, 1}).how == Placed::Found);
  EXPECT(!w.table.find({9, 9}).found());
}

HKV_TEST(
    "find_batch says what find says, with erased, overflowed and forged keys, at every length and stride") {
  std::mt19937_64 random(3);
  for (const std::uint32_t line_count : {1u, 2u, 5u, 40u}) {
    World w(line_count, 128);
    std::vector<Key128> keys;
    for (std::uint32_t i = 0; i < 160; ++i) {
      keys.push_back(i % 4 == 0
                         ? colliding(i)
                         : Key128{random(), random() & (i % 4 == 1 ? ~std::uint64_t{0} : 0xFull << 60)});
    }
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (i % 3 != 0) w.table.get_or_insert(keys[i]);
    }
    for (std::size_t i = 0; i < keys.size(); i += 5) {
      const Sighting seen = w.table.find(keys[i]);
      if (seen.found()) w.table.erase_if_empty(seen.id, keys[i]);
    }
    int found = 0, mismatches = 0;
    for (std::size_t stride = 1; stride <= 3; ++stride) {
      for (std::size_t count = 0; count * stride <= keys.size(); ++count) {
        std::vector<Sighting> out(count + 1);
        out[count].id = DescriptorId{77};
        w.table.find_batch(keys.data(), stride, count, out.data());
        for (std::size_t i = 0; i < count; ++i) {
          mismatches += !same(out[i], w.table.find(keys[i * stride]));
          found += out[i].found();
        }
        mismatches += index(out[count].id) != 77;  // nothing is written behind the end
      }
    }
    EXPECT_EQ(mismatches, 0);
    EXPECT(found > 0);
  }
}

HKV_TEST("the scan of a line finds the tags that a loop over its slots finds") {
  std::mt19937_64 random(5);
  int mismatches = 0, matches = 0;
  Line line;
  for (int round = 0; round < 20000; ++round) {
    const std::uint32_t tag = static_cast<std::uint32_t>(random() & 0x7FFFFFFF) | 1;
    unsigned want = 0;
    for (int i = 0; i < Line::slots; ++i) {
      Slot slot = Slot::tentative_of(random() % 2 ? tag : tag ^ 1u << (1 + random() % 30),
                                     DescriptorId{static_cast<std::uint32_t>(random())});
      if (random() % 4 != 0) slot = slot.final();
      if (random() % 8 == 0) slot = Slot();
      line.slot[i].store(slot.bits());
      if (!slot.empty() && !slot.tentative() && slot.tag() == tag) want |= 1u << i;
    }
    line.passed.store(random() % 2);
    mismatches += line.match(tag) != want;
    matches += want != 0;
  }
  EXPECT_EQ(mismatches, 0);
  EXPECT(matches > 1000);
}

HKV_TEST("random inserts and erases agree with a map") {
  std::mt19937_64 random(9);
  World w(16, 40);
  std::map<std::uint64_t, DescriptorId> model;
  for (int step = 0; step < 60000; ++step) {
    const std::uint64_t n = random() % 60;
    const Key128 key = n % 2 ? colliding(static_cast<std::uint32_t>(n)) : Key128{n << 58, n};
    const auto known = model.find(n);
    if (random() % 2) {
      const Placement placed = w.table.get_or_insert(key);
      if (known != model.end()) {
        EXPECT(placed.how == Placed::Found && placed.id == known->second);
      } else if (placed.how == Placed::Inserted) {
        model[n] = placed.id;
      } else {
        EXPECT(placed.how == Placed::Full && model.size() == 40);
      }
    } else if (known != model.end()) {
      w.table.erase_if_empty(known->second, key);
      model.erase(known);
    }
    EXPECT_EQ(w.table.find(key).found(), model.count(n) == 1);
    EXPECT_EQ(w.ids.free_count(), 40 - model.size());
  }
}

HKV_TEST("an old table misses as a new one does: lines count only the keys that are past them now") {
  constexpr std::uint32_t blocks = 4096;
  World w(Table::lines_for(blocks), blocks);
  std::mt19937_64 random(5);
  std::vector<std::pair<DescriptorId, Key128>> all;
  const auto insert = [&] {
    const Key128 key{random(), random()};
    const Placement placed = w.table.get_or_insert(key);
    if (placed.how == Placed::Inserted) all.emplace_back(placed.id, key);
  };
  const auto marked = [&] {
    int lines = 0;
    for (std::uint32_t i = 0; i < w.line_count; ++i) lines += w.lines[i].passed.load() != 0;
    return lines;
  };
  while (w.ids.free_count() != 0) insert();
  EXPECT(w.table.counts_hold());
  const int young = marked();
  EXPECT(young > 0 && young < static_cast<int>(w.line_count) / 20);
  for (int update = 0; update < 100 * static_cast<int>(blocks); ++update) {
    std::swap(all[random() % all.size()], all.back());
    w.table.erase_if_empty(all.back().first, all.back().second);
    all.pop_back();
    insert();
  }
  EXPECT(w.table.counts_hold());
  EXPECT(marked() < static_cast<int>(w.line_count) / 10);
  for (const auto& [id, key] : all) {
    EXPECT_EQ(index(w.table.find(key).id), index(id));
    w.table.erase_if_empty(id, key);
  }
  EXPECT_EQ(marked(), 0);
}

HKV_TEST("a key that found no place, and a slot where its key has none, are told apart by the counts") {
  World w(3, 3 * Line::slots + 2);
  std::uint32_t i = 0;
  while (w.table.get_or_insert(colliding(i)).how == Placed::Inserted) ++i;
  EXPECT_EQ(i, 3u * Line::slots);
  EXPECT(w.table.counts_hold());  // the last one took back what it counted
  w.lines[1].passed.fetch_add(1);
  EXPECT(!w.table.counts_hold());
}

}  // namespace hkv
