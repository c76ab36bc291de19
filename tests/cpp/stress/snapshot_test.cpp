// SPDX-License-Identifier: Apache-2.0
// Linearizability, light: threads at full speed log what they did and saw, with a common clock; afterwards every word
// of a snapshot must have existed between call and return, and every lease as a whole at its last CAS.
//
// Each key has one writer, so what its words went through is known in order: a state of them lasts at least from the
// end of the step that made it to the beginning of the next step, at most from the beginning to the end of those.
// Checked of every sighting: its two words, without pins, are a state that can have been between the call and the
// return, or one that the step of that moment passes through. Of every lease: each page was published before its last
// CAS was over, and no step that takes it away was over before its pin was dropped; hence all were there at that CAS.
//
// HKV_STEPS=n sets the number of steps, HKV_SEED repeats a seed.
#include <atomic>
#include <cstdlib>
#include <random>
#include <thread>

#include "block/store.h"
#include "stress/steps.h"
#include "testing.h"

namespace hkv {
namespace {

constexpr int group_count = 2, key_count = 6, writer_count = 2, reader_count = 2, lease_width = 3;
constexpr GroupSlot groups[group_count] = {{WordClass::H, 0, StateKind::Compressed},
                                           {WordClass::B, 0, StateKind::Window}};

struct Words {
  Word h = Word::bare(0, Word::pins_closed), b;
};
Words without_pins(Word h, Word b) { return {h.live() ? h.unpinned() : h, b.unpinned()}; }

// A step of a key's writer: between its two times the words went from the state before to `left`.
struct Change {
  std::uint64_t begun, over;
  DescriptorId id;  // none: the key has no life after it
  Words left;
};
struct Seen {
  std::uint64_t called, returned;
  int key;
  DescriptorId id;
  Words words;
};
struct Held {
  std::uint64_t last_cas_begun, last_cas_over;
  struct Page {
    int key, group;
    std::uint64_t drop_begun;
  } pages[lease_width];
};

class World {
 public:
  World() : store(5, groups, std::array<std::uint32_t, 2>{4, 4}) {
    for (int i = 0; i < key_count; ++i)
      keys[i] = {0x5000 + static_cast<std::uint64_t>(i % 2), 0x77 | static_cast<std::uint64_t>(i / 2) << 40};
    for (std::vector<Change>& log : changes) log.push_back({0, 0, no_descriptor, {}});
  }
  std::uint64_t now() { return clock_.fetch_add(1); }
  BlockStore store;
  Key128 keys[key_count];
  std::vector<Change> changes[key_count];  // each written by the writer of its key
 private:
  std::atomic<std::uint64_t> clock_{1};
};

class Writer {
 public:
  Writer(World& world, int self, std::uint64_t seed) : w_(world), self_(self), random_(seed) {}
  void step() {
    const int key = self_ + writer_count * static_cast<int>(random_() % (key_count / writer_count));
    const auto group = static_cast<int>(random_() % group_count);
    if (random_() % 2 == 0) {
      fill(key, group, random_() % 8 == 0);
    } else {
      const std::uint64_t begun = w_.now();
      random_() % 4 != 0 ? w_.store.evict(w_.keys[key], group) : w_.store.retire_of(w_.keys[key], group);
      note(key, begun);
    }
  }

 private:
  // What the words of the key are now; nobody else moves them but for pins, and the last unpin of what retires.
  void note(int key, std::uint64_t begun) {
    const Sighting seen = w_.store.table().find(w_.keys[key]);
    w_.changes[key].push_back({begun, w_.now(), seen.id, without_pins(seen.h, seen.b)});
  }
  void fill(int key, int group, bool give_up) {
    PagePool& pool = w_.store.pool(group);
    const PageId page = pool.take();
    if (page == no_page) return;
    std::uint64_t begun = w_.now();
    for (;;) {
      const Placement placed = w_.store.table().get_or_insert(w_.keys[key]);
      if (placed.how == Placed::Full || placed.how == Placed::Private) break;
      bool lives = true;
      if (w_.store.claim(placed.id, w_.keys[key], group, page, lives)) {
        note(key, begun);
        begun = w_.now();
        if (give_up) {
          w_.store.abort(placed.id, w_.keys[key], group);
        } else {
          w_.store.publish(placed.id, group);
        }
        return note(key, begun);
      }
      if (!lives) continue;
      w_.store.table().erase_if_empty(placed.id, w_.keys[key]);
      break;
    }
    pool.give_back(page);
    note(key, begun);
  }

  World& w_;
  int self_;
  std::mt19937_64 random_;
};

class Reader {
 public:
  Reader(World& world, std::uint64_t seed) : w_(world), random_(seed) {}
  std::vector<Seen> seen;
  std::vector<Held> leases;

  void step() {
    if (random_() % 2 == 0) {
      look(static_cast<int>(random_() % key_count));
    } else {
      lease();
    }
  }

 private:
  Sighting look(int key) {
    const std::uint64_t called = w_.now();
    const Sighting s = w_.store.table().find(w_.keys[key]);
    const std::uint64_t returned = w_.now();
    if (s.found()) seen.push_back({called, returned, key, s.id, without_pins(s.h, s.b)});
    return s;
  }
  void lease() {
    Held held{};
    Sighting of[lease_width];
    int n = 0;
    for (Held::Page& page : held.pages) {
      page.key = static_cast<int>(random_() % key_count),
      page.group = static_cast<int>(random_() % group_count);
      of[n] = look(page.key);
      const GroupSlot& at = groups[page.group];
      if (!of[n].found() || !of[n].word(at.which).usable_slot(at.slot)) return;
      ++n;
    }
    for (n = 0; n < lease_width; ++n) {
      const GroupSlot& at = groups[held.pages[n].group];
      held.last_cas_begun = w_.now();
      const PinResult result = w_.store.pin(of[n].id, at.which, of[n].word(at.which), 1);
      held.last_cas_over = w_.now();
      if (result != PinResult::Pinned) break;
    }
    const bool all = n == lease_width;
    while (n-- > 0) {
      held.pages[n].drop_begun = w_.now();
      w_.store.unpin(of[n].id, groups[held.pages[n].group].which);
    }
    if (all) leases.push_back(held);
  }

  World& w_;
  std::mt19937_64 random_;
};

// The last change that had begun by then.
std::size_t begun_by(const std::vector<Change>& log, std::uint64_t time) {
  const auto after = std::upper_bound(log.begin(), log.end(), time,
                                      [](std::uint64_t t, const Change& c) { return t < c.begun; });
  return static_cast<std::size_t>(after - log.begin()) - 1;
}

// A state as a step left it, or after the last pins of what retires there went: that is a reader's doing.
bool is_state(const Words& left, const Words& words) {
  const auto finished = [](Word word) {
    return word.apply(word.slots_in(Phase::Retiring), Event::Finish).value_or(word);
  };
  return (words.h == left.h || words.h == finished(left.h)) &&
         (words.b == left.b || words.b == finished(left.b));
}

bool between(Word word, Word from, Word to) {
  const auto steps = [&](Word later) { return (later.generation() - from.generation()) & 0xFFFFFF; };
  return steps(word) <= steps(to);
}

// Whether the words can have been there between call and return.
bool existed(const std::vector<Change>& log, const Seen& s) {
  for (std::size_t i = begun_by(log, s.returned) + 1; i-- > 0;) {
    if (log[i].id == s.id && is_state(log[i].left, s.words)) return true;
    // Passed through on the way to this state, in one life; or in a life that it began or ended.
    if (log[i].over >= s.called) {
      const Words& before = i == 0 ? log[0].left : log[i - 1].left;
      const bool goes_on = i > 0 && log[i - 1].id == s.id && log[i].id == s.id;
      if (goes_on && between(s.words.h, before.h, log[i].left.h) &&
          between(s.words.b, before.b, log[i].left.b))
        return true;
      const bool ends = i > 0 && log[i - 1].id == s.id && log[i].id != s.id;
      if (ends && s.words.h.generation() - before.h.generation() <= 2 &&
          s.words.b.generation() - before.b.generation() <= 2)
        return true;
      if (log[i].id == s.id && !goes_on) return true;
    }
    if (log[i].over < s.called) return false;  // what it left is not that, and nothing older lasted so long
  }
  return false;
}

bool usable_after(const Change& change, int group) {
  return change.id != no_descriptor && (group == 0 ? change.left.h : change.left.b).usable_slot(0);
}

// Whether the page was there at the last CAS and until its pin was dropped.
bool lasted(const std::vector<Change>& log, const Held& held, const Held::Page& page) {
  std::size_t i = begun_by(log, held.last_cas_over);
  // Back to the change that made it usable, over those that may have come after the CAS.
  // A retirement takes the page from those who come, not from those who hold it: a page pinned first may retire
  // before the last pin is there.
  const auto retires = [&](const Change& change) {
    return change.id != no_descriptor &&
           (page.group == 0 ? change.left.h : change.left.b).phase(0) == Phase::Retiring;
  };
  const auto there = [&](const Change& change) {
    return usable_after(change, page.group) || retires(change);
  };
  while (i > 0 && !there(log[i]) && log[i].over >= held.last_cas_begun) --i;
  if (!there(log[i])) return false;
  for (; i < log.size() && log[i].begun < page.drop_begun; ++i) {
    if (retires(log[i])) return true;
    if (!there(log[i]) && log[i].over < page.drop_begun) return false;
  }
  return true;
}

struct Tally {
  std::uint64_t steps = 0, seen = 0, leases = 0, changes = 0, never_existed = 0, cut_short = 0;
};

void round(std::uint64_t seed, std::uint64_t steps, Tally& tally) {
  World world;
  std::vector<Writer> writers;
  std::vector<Reader> readers;
  for (int i = 0; i < writer_count; ++i) writers.emplace_back(world, i, seed + static_cast<unsigned>(i));
  for (int i = 0; i < reader_count; ++i) readers.emplace_back(world, seed + 100 + static_cast<unsigned>(i));
  std::vector<std::thread> threads;
  const auto start = [&](auto& who) {
    threads.emplace_back([&who, steps] {
      for (std::uint64_t i = 0; i < steps; ++i) who.step();
    });
  };
  for (Writer& writer : writers) start(writer);
  for (Reader& reader : readers) start(reader);
  for (std::thread& thread : threads) thread.join();
  tally.steps += steps * threads.size();
  for (const std::vector<Change>& log : world.changes) tally.changes += log.size();
  for (const Reader& reader : readers) {
    tally.seen += reader.seen.size(), tally.leases += reader.leases.size();
    for (const Seen& s : reader.seen) tally.never_existed += !existed(world.changes[s.key], s);
    for (const Held& held : reader.leases) {
      for (const Held::Page& page : held.pages)
        tally.cut_short += !lasted(world.changes[page.key], held, page);
    }
  }
}

}  // namespace

HKV_TEST("words of a snapshot existed between call and return, and leases at their last CAS") {
  const std::uint64_t wanted = stress::steps_wanted(2'000'000, 100'000'000), seed = stress::seed_of_run();
  constexpr std::uint64_t steps_a_thread = 20000;
  stress::Clock clock;
  Tally tally;
  for (std::uint64_t n = 0; tally.steps < wanted; ++n) round(seed + n * 1000, steps_a_thread, tally);
  std::printf(
      "     seed %llu, %llu steps (a find, a lease of %d, or a writer's step), %.0f steps/s: %llu sightings, "
      "%llu leases, %llu changes; %llu words that never were, %llu pages cut short\n",
      stress::shown(seed), stress::shown(tally.steps), lease_width, clock.rate(tally.steps),
      stress::shown(tally.seen), stress::shown(tally.leases), stress::shown(tally.changes),
      stress::shown(tally.never_existed), stress::shown(tally.cut_short));
  EXPECT_EQ(tally.never_existed, 0u);
  EXPECT_EQ(tally.cut_short, 0u);
  EXPECT(tally.seen > 0 && tally.leases > 0 && tally.changes > 0);
}

}  // namespace hkv
