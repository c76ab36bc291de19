// SPDX-License-Identifier: Apache-2.0
// Threads beat on one small BlockStore with pages that certify themselves: their bytes are a function of
// (key, group), so a false hit is a mismatch, and they are plain memory, so a page handed out too early is a
// race that ThreadSanitizer reports. When idle: every page and every id is back, and the derived index is right.
//
// Short by default; HYBRIDKV_SOAK=1 runs for minutes. The seed is printed; HKV_SEED repeats it.
#include "block/store.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "testing.h"

namespace hkv {
namespace {

constexpr int group_count = 3, page_words = 4;
constexpr GroupSlot groups[group_count] = {{WordClass::H, 0, StateKind::Compressed},
                                           {WordClass::B, 0, StateKind::Window},
                                           {WordClass::B, 1, StateKind::Tail}};

// Families of keys that are easily mistaken: equal line and tag, one bit of one half apart.
std::vector<Key128> make_keys(int families) {
  std::mt19937_64 random(11);
  std::vector<Key128> keys;
  for (int i = 0; i < families; ++i) {
    const Key128 base{random(), random()};
    keys.push_back(base);
    keys.push_back({base.lo ^ 1, base.hi});                           // same line, same tag
    keys.push_back({base.lo, base.hi ^ std::uint64_t{1} << 40});      // same line, same tag
    keys.push_back({base.lo ^ std::uint64_t{1} << 63, base.hi});      // another line, same tag
    keys.push_back({base.lo ^ 4, base.hi ^ 2});                       // same line, another tag
    keys.push_back({base.lo + 2, base.hi ^ std::uint64_t{3} << 33});  // a forged tag collision
  }
  return keys;
}

std::uint64_t content(Key128 key, int group, int word) {
  std::uint64_t x = key.lo * 0x9E3779B97F4A7C15u ^ (key.hi + static_cast<unsigned>(group * 16 + word));
  x ^= x >> 29;
  return x * 0xBF58476D1CE4E5B9u;
}

struct Tally {
  std::uint64_t steps = 0, filled = 0, duplicates = 0, unplaced = 0, hits = 0, raced = 0, leases = 0,
                evicted = 0, retired = 0, aborted = 0, wrong = 0;
  void add(const Tally& t) {
    steps += t.steps, filled += t.filled, duplicates += t.duplicates, unplaced += t.unplaced, hits += t.hits;
    raced += t.raced, leases += t.leases, evicted += t.evicted, retired += t.retired, aborted += t.aborted,
        wrong += t.wrong;
  }
};

class Arena3 {  // the world that the threads share
 public:
  Arena3(std::uint32_t blocks, std::uint32_t pages, int families)
      : keys(make_keys(families)), store(blocks, groups, std::vector<std::uint32_t>(group_count, pages)) {
    for (auto& of_group : bytes) of_group.resize(std::size_t{pages} * page_words);
  }
  std::vector<Key128> keys;
  BlockStore store;
  std::vector<std::uint64_t> bytes[group_count];

  void write(int group, PageId page, Key128 key) {
    for (int i = 0; i < page_words; ++i)
      bytes[group][index(page) * page_words + static_cast<unsigned>(i)] = content(key, group, i);
  }
  bool intact(int group, PageId page, Key128 key) const {
    if (index(page) >= bytes[group].size() / page_words) return false;
    for (int i = 0; i < page_words; ++i) {
      if (bytes[group][index(page) * page_words + static_cast<unsigned>(i)] != content(key, group, i))
        return false;
    }
    return true;
  }
};

class Worker {
 public:
  Worker(Arena3& world, std::uint64_t seed) : w_(world), random_(seed) {}
  Tally tally;

  void step() {
    ++tally.steps;
    const auto what = random_() % 100;
    const Key128 key = w_.keys[random_() % w_.keys.size()];
    const auto group = static_cast<int>(random_() % group_count);
    if (what < 30) {
      fill(key, group, what < 3);
    } else if (what < 65) {
      read_one(key, group);
    } else if (what < 80) {
      read_lease();
    } else if (what < 94) {
      tally.evicted += w_.store.evict(key, group);
    } else if (what < 98) {
      tally.retired += w_.store.retire_of(key, group);
    } else {
      const Placement placed = w_.store.table().get_or_insert(key);
      if (placed.how == Placed::Found || placed.how == Placed::Inserted)
        w_.store.table().erase_if_empty(placed.id, key);
    }
  }

 private:
  void fill(Key128 key, int group, bool give_up) {
    PagePool& pool = w_.store.pool(group);
    const PageId page = pool.take();
    if (page == no_page) return;
    w_.write(group, page, key);  // before the claim or after it: nobody sees the page yet
    for (;;) {
      const Placement placed = w_.store.table().get_or_insert(key);
      if (placed.how == Placed::Full || placed.how == Placed::Private) {
        ++tally.unplaced;
        break;
      }
      bool lives = true;
      if (w_.store.claim(placed.id, key, group, page, lives)) {
        if (give_up) {
          w_.store.abort(placed.id, key, group);
          ++tally.aborted;
        } else {
          w_.store.publish(placed.id, group);
          ++tally.filled;
        }
        return;
      }
      if (!lives) continue;
      w_.store.table().erase_if_empty(placed.id, key);
      ++tally.duplicates;
      break;
    }
    pool.give_back(page);
  }

  bool pin(Key128 key, int group, DescriptorId& id) {
    const Sighting seen = w_.store.table().find(key);
    const GroupSlot& at = w_.store.slot_of(group);
    if (!seen.found() || !seen.word(at.which).usable_slot(at.slot)) return false;
    id = seen.id;
    const auto mask = static_cast<SlotMask>(1u << at.slot);
    if (w_.store.pin(id, at.which, seen.word(at.which), mask) == PinResult::Pinned) return true;
    ++tally.raced;
    return false;
  }
  void check(Key128 key, int group, DescriptorId id) {
    const PageId page = w_.store.page(id, group);
    if (w_.store.pool(group).is_free(page) || w_.store[id].key() != key || !w_.intact(group, page, key))
      ++tally.wrong;
  }

  void read_one(Key128 key, int group) {
    DescriptorId id{};
    if (!pin(key, group, id)) return;
    check(key, group, id);
    w_.store.unpin(id, w_.store.slot_of(group).which);
    ++tally.hits;
  }

  // Pins some neighbours in the key list, all or none, and reads them all while all are held.
  void read_lease() {
    constexpr int width = 4;
    struct {
      Key128 key;
      int group;
      DescriptorId id;
    } held[width];
    const std::size_t from = random_() % w_.keys.size();
    int n = 0;
    for (; n < width; ++n) {
      held[n].key = w_.keys[(from + static_cast<std::size_t>(n)) % w_.keys.size()];
      held[n].group = static_cast<int>(random_() % group_count);
      if (!pin(held[n].key, held[n].group, held[n].id)) break;
    }
    for (int i = 0; i < n; ++i) check(held[i].key, held[i].group, held[i].id);
    if (n == width) ++tally.leases;
    while (n-- > 0) w_.store.unpin(held[n].id, w_.store.slot_of(held[n].group).which);
  }

  Arena3& w_;
  std::mt19937_64 random_;
};

void check_idle(Arena3& w, bool emptied) {
  EXPECT_EQ(index(w.store.verify()), index(no_descriptor));
  EXPECT(w.store.table().counts_hold());
  for (int g = 0; g < group_count; ++g) {
    const auto census = w.store.census(g, 0);
    EXPECT_EQ(census.free + census.cached, w.store.pool(g).count());
    EXPECT_EQ(census.filling + census.held, 0u);
    EXPECT_EQ(static_cast<std::int64_t>(census.cached), w.store.evictable(g));
    if (emptied) EXPECT_EQ(census.free, w.store.pool(g).count());
  }
  // One life a key at most, and every life that holds pages is found.
  for (std::uint32_t i = 0; i < w.store.blocks(); ++i) {
    const DescriptorId id{i};
    if (w.store.ids().is_free(i)) continue;
    const Sighting seen = w.store.table().find(w.store[id].key());
    EXPECT_EQ(index(seen.id), i);
  }
  if (emptied) EXPECT_EQ(w.store.ids().free_count(), w.store.blocks());
}

std::uint64_t seed_of_run() {
  const char* given = std::getenv("HKV_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

void beat(const char* name, std::uint32_t blocks, std::uint32_t pages, int families, int threads,
          double share) {
  const bool soak = std::getenv("HYBRIDKV_SOAK") != nullptr;
  const std::uint64_t seed = seed_of_run();
  const double seconds = (soak ? 150 : 4.5) * share;
  Arena3 world(blocks, pages, families);
  std::vector<Worker> workers;
  for (int t = 0; t < threads; ++t) workers.emplace_back(world, seed + static_cast<unsigned>(t));
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::vector<std::thread> running;
  for (Worker& worker : workers) {
    running.emplace_back([&worker, end] {
      while (std::chrono::steady_clock::now() < end) {
        for (int i = 0; i < 1000; ++i) worker.step();
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  Tally all;
  for (const Worker& worker : workers) all.add(worker.tally);
  std::printf(
      "     %s: seed %llu, %d threads, %llu steps: %llu filled, %llu duplicates, %llu unplaced, %llu hits, "
      "%llu leases, "
      "%llu raced, %llu evicted, %llu retired, %llu aborted, %llu wrong\n",
      name, static_cast<unsigned long long>(seed), threads, static_cast<unsigned long long>(all.steps),
      static_cast<unsigned long long>(all.filled), static_cast<unsigned long long>(all.duplicates),
      static_cast<unsigned long long>(all.unplaced), static_cast<unsigned long long>(all.hits),
      static_cast<unsigned long long>(all.leases), static_cast<unsigned long long>(all.raced),
      static_cast<unsigned long long>(all.evicted), static_cast<unsigned long long>(all.retired),
      static_cast<unsigned long long>(all.aborted), static_cast<unsigned long long>(all.wrong));
  EXPECT_EQ(all.wrong, 0u);
  EXPECT(all.filled > 0 && all.hits > 0 && all.leases > 0 && all.evicted > 0 && all.retired > 0);
  check_idle(world, false);
  for (const Key128 key : world.keys) {
    for (int g = 0; g < group_count; ++g) world.store.evict(key, g);
  }
  check_idle(world, true);
}

}  // namespace

HKV_TEST("self-certifying pages survive writers, readers and evictors on few keys") {
  beat("few keys", 8, 6, 1, 4, 0.4);
}
HKV_TEST("and on more keys than descriptors, with full lines") { beat("crowded", 12, 16, 6, 3, 0.3); }
HKV_TEST("and on many keys with room") { beat("roomy", 512, 400, 60, 4, 0.3); }

}  // namespace hkv
