// SPDX-License-Identifier: Apache-2.0
// Who is admitted: each rule by hand, and all of them against a naive model on random demands.
#include "alloc/admission.h"

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "testing.h"

namespace hkv {
namespace {

using Room = AdmissionLedger::Room;
using Share = AdmissionLedger::Share;
using Demand = AdmissionLedger::Demand;

Group group_of(Coverage coverage, std::int64_t block_units, std::int64_t page_bytes = 1) {
  Group g;
  g.coverage = coverage;
  g.block_units = block_units;
  g.page_bytes = page_bytes;
  return g;
}

Layout full_and_window(std::int64_t block, std::int64_t window) {
  return make_layout(block, {group_of({Rule::Prefix, 0}, 1), group_of({Rule::Window, window}, 1)});
}

// What admit says of a demand where nobody else holds anything but what the ledger knows.
Refusal ask(AdmissionLedger& ledger, Share& share, const Demand& demand, std::vector<Room> rooms,
            int& group) {
  for (int g = 0; g < static_cast<int>(rooms.size()); ++g) {
    std::int64_t held = ledger.caps(g) - ledger.promised(g);
    rooms[g].free_and_evictable = std::min(rooms[g].free_and_evictable, rooms[g].capacity - held);
  }
  return ledger.admit(share, demand, rooms, group);
}

Room all_free(std::int64_t pages) { return {pages, pages, 0, -1}; }

HKV_TEST("a pool of 5 for 3 + 3 pages: refused, nothing touched") {  // one pool of each group here: 3 and 2
  const Layout layout = full_and_window(4, 10);
  AdmissionLedger ledger(layout, {});
  Share share;
  int group = -2;
  EXPECT_EQ(ledger.cap_of(0, {12}), 3);
  EXPECT_EQ(ledger.cap_of(1, {12}), 3);
  EXPECT(ask(ledger, share, {12}, {all_free(3), all_free(2)}, group) == Refusal::Never);
  EXPECT_EQ(group, 1);
  EXPECT(!share.live);
  EXPECT_EQ(ledger.promised(0) + ledger.promised(1) + ledger.live_requests(), 0);
  EXPECT(ask(ledger, share, {12}, {all_free(3), all_free(3)}, group) == Refusal::None);
}

HKV_TEST("a hit of 6 pages in a pool of 10, 3 new needed, 2 left: refused") {
  const Layout layout = make_layout(16, {group_of({Rule::Prefix, 0}, 1)});
  AdmissionLedger ledger(layout, {});
  Share share;
  int group = -2;
  const Demand nine_blocks{9 * 16, 6 * 16};
  EXPECT_EQ(ledger.cap_of(0, nine_blocks), 3);
  EXPECT(ledger.admit(share, nine_blocks, std::vector<Room>{{10, 2, 8}}, group) == Refusal::Pages);
  EXPECT_EQ(group, 0);
  EXPECT(ledger.admit(share, nine_blocks, std::vector<Room>{{10, 3, 7}}, group) == Refusal::None);
}

HKV_TEST("77 pages: 512 tokens are admitted with 32 + 13, and in a pool of 4 no prompt of 256") {
  const Layout layout = full_and_window(16, 64);
  AdmissionLedger ledger(layout, {.step_tokens = 128});
  Share share, other;
  int group = -2;
  EXPECT(ask(ledger, share, {512}, {all_free(77 - 13), all_free(13)}, group) == Refusal::None);
  EXPECT_EQ(share.cap[0], 32);
  EXPECT_EQ(share.cap[1], 13);
  EXPECT(ask(ledger, other, {256}, {all_free(4), all_free(13)}, group) == Refusal::Never);
  EXPECT_EQ(group, 0);
  ledger.end(share);
}

HKV_TEST("an empty pool of just the worst case admits, and one page less never does") {
  std::mt19937 random(3);
  for (int turn = 0; turn < 4000; ++turn) {
    const auto any = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    const Layout layout = make_layout(
        1,
        {group_of({Rule::Prefix, 0}, any(1, 4)), group_of({Rule::Window, any(1, 20)}, any(1, 4)),
         group_of({Rule::Checkpoint, any(0, 6)}, any(1, 4)), group_of({Rule::Chunk, any(1, 9)}, any(1, 4))});
    AdmissionLedger ledger(layout, {.max_requests = 1,
                                    .max_combinations = 1,
                                    .watermark_low_ppm = 500'000,
                                    .watermark_high_ppm = 900'000,
                                    .step_tokens = any(0, 9)});
    const Demand demand{any(1, 50), 0, any(0, 3)};
    std::vector<Room> rooms;
    for (int g = 0; g < 4; ++g) rooms.push_back(all_free(ledger.cap_of(g, demand)));
    Share share;
    int group = -2;
    EXPECT(ask(ledger, share, demand, rooms, group) == Refusal::None);
    ledger.end(share);
    const int less = any(0, 3);
    rooms[less] = all_free(rooms[less].capacity - 1);
    EXPECT(ask(ledger, share, demand, rooms, group) == Refusal::Never);
    EXPECT_EQ(group, less);
  }
}

HKV_TEST("the caps on requests and on combinations") {
  const Layout layout = full_and_window(4, 8);
  AdmissionLedger ledger(layout, {.max_requests = 3, .max_combinations = 1});
  const std::vector<Room> rooms{all_free(100), all_free(100)};
  Share a, b, c, d;
  int group = -2;
  EXPECT(ask(ledger, a, {8}, rooms, group) == Refusal::None);
  EXPECT(ask(ledger, b, {8}, rooms, group) == Refusal::None);  // the same groups
  EXPECT_EQ(ledger.live_combinations(), 1);
  EXPECT(ask(ledger, c, {8, 0, 0, {}, 1u}, rooms, group) == Refusal::Combinations);  // history alone
  EXPECT_EQ(group, -1);
  ledger.end(a);
  EXPECT(ask(ledger, c, {8, 0, 0, {}, 1u}, rooms, group) == Refusal::Combinations);
  ledger.end(b);  // the last of its combination
  EXPECT_EQ(ledger.live_combinations(), 0);
  EXPECT(ask(ledger, c, {8, 0, 0, {}, 1u}, rooms, group) == Refusal::None);
  EXPECT_EQ(c.cap[1], 0);
  EXPECT(ask(ledger, a, {8, 0, 0, {}, 1u}, rooms, group) == Refusal::None);
  EXPECT(ask(ledger, b, {8, 0, 0, {}, 1u}, rooms, group) == Refusal::None);
  EXPECT(ask(ledger, d, {8, 0, 0, {}, 1u}, rooms, group) == Refusal::Requests);
  EXPECT_EQ(ledger.live_requests(), 3);
}

HKV_TEST("the watermark: not below low; then not before high; and not where nothing runs") {
  const Layout layout = make_layout(1, {group_of({Rule::Prefix, 0}, 1)});
  AdmissionLedger ledger(layout, {.watermark_low_ppm = 200'000, .watermark_high_ppm = 500'000});
  const std::vector<Room> rooms{all_free(100)};
  Share a, b, c, d;
  int group = -2;
  EXPECT(ask(ledger, a, {95}, rooms, group) == Refusal::None);  // nothing runs: one large request is admitted
  EXPECT(ask(ledger, b, {1}, rooms, group) == Refusal::Watermark);
  EXPECT_EQ(group, 0);
  ledger.end(a);
  EXPECT(ask(ledger, a, {40}, rooms, group) == Refusal::None);
  EXPECT(ask(ledger, b, {41}, rooms, group) == Refusal::Watermark);  // would leave 19
  EXPECT(ask(ledger, b, {1}, rooms, group) == Refusal::None);        // 60 >= 50: back at high already
  EXPECT(ask(ledger, c, {39}, rooms, group) == Refusal::None);       // leaves just 20
  EXPECT(ask(ledger, d, {1}, rooms, group) == Refusal::Watermark);   // leaves 19
  ledger.end(b);
  EXPECT(ask(ledger, b, {1}, rooms, group) ==
         Refusal::Watermark);  // 21: would be admitted but for the refusal
  ledger.end(c);
  EXPECT(ask(ledger, c, {35}, rooms, group) == Refusal::None);  // 60 >= 50; leaves 25
  EXPECT(ask(ledger, b, {5}, rooms, group) == Refusal::None);   // leaves 20: open again
  EXPECT(ask(ledger, d, {1}, rooms, group) == Refusal::Watermark);
  int unchanged = -2;
  EXPECT(ledger.judge({1}, rooms, unchanged) == Refusal::Watermark);
  ledger.end(a);
  ledger.end(b);
  ledger.end(c);
  EXPECT(ask(ledger, a, {100}, rooms, group) == Refusal::None);
}

HKV_TEST("a watermark is a share of each pool, rounded up") {
  const Layout layout = make_layout(1, {group_of({Rule::Prefix, 0}, 1)});
  AdmissionLedger ledger(layout, {.watermark_low_ppm = 10'000, .watermark_high_ppm = 10'000});
  Share a, b;
  int group = -2;
  EXPECT(ask(ledger, a, {50}, {all_free(150)}, group) == Refusal::None);
  EXPECT(ask(ledger, b, {99}, {all_free(150)}, group) == Refusal::Watermark);  // 1 left, 1.5 asked for
  Share c;
  ledger.end(a);
  EXPECT(ask(ledger, a, {50}, {all_free(150)}, group) == Refusal::None);
  EXPECT(ask(ledger, c, {98}, {all_free(150)}, group) == Refusal::None);
}

HKV_TEST("a request that only its own lease keeps out is told so") {
  const Layout layout = full_and_window(16, 17);
  AdmissionLedger ledger(layout, {.step_tokens = 2});
  Share share;
  int group = -2;
  EXPECT_EQ(ledger.cap_of(1, {100}), 3);
  EXPECT_EQ(ledger.cap_of(1, {100, 31}), 4);  // rows of three blocks, and the copy of the shared one
  const std::vector<Room> rooms{all_free(10), all_free(3)};
  EXPECT(ledger.admit(share, {100, 31}, rooms, group) == Refusal::Lease);
  EXPECT_EQ(group, 1);
  EXPECT(ledger.judge({100}, rooms, group) == Refusal::None);
  // Pinned history is no saving: 7 pages in a pool of 6 can never be had, however much of them is leased.
  EXPECT(ledger.admit(share, {100, 48}, std::vector<Room>{{6, 3, 0}, all_free(9)}, group) == Refusal::Never);
  const std::vector<std::int64_t> extra{0, 6};
  EXPECT(ledger.admit(share, Demand{100, 48, 0, extra}, std::vector<Room>{all_free(9), all_free(8)}, group) ==
         Refusal::Lease);
}

HKV_TEST("what fills without ticket may take") {
  const Layout layout = full_and_window(4, 8);
  AdmissionLedger ledger(layout, {.max_requests = 1});
  Share share, fill;
  int group = -2;
  EXPECT(ask(ledger, share, {40}, {all_free(15), all_free(15)}, group) == Refusal::None);
  ledger.took(share, 0, 4);
  const std::vector<Room> rooms{{15, 11, 0}, {15, 15, 0}};
  const std::vector<std::int64_t> six{6, 1}, five{5, 1};
  EXPECT(!ledger.admit_fill(fill, six, rooms, group));
  EXPECT_EQ(group, 0);
  EXPECT(ledger.admit_fill(fill, five, rooms, group));
  EXPECT_EQ(ledger.live_requests(), 1);
  EXPECT_EQ(ledger.promised(0), 6 + 5);
  ledger.took(fill, 0, 5);
  ledger.took(fill, 1, 1);
  ledger.end(fill);
  EXPECT_EQ(ledger.promised(0), 6);
  EXPECT_EQ(ledger.caps(0), 10);
  ledger.gave(share, 0, 4);
  EXPECT_EQ(ledger.promised(0), 10);
}

HKV_TEST("a page of another owner beside an own one is in the share") {
  const Layout layout = full_and_window(1, 4);
  AdmissionLedger ledger(layout, {});
  Share share;
  int group = -2;
  EXPECT(ask(ledger, share, {5}, {all_free(9), all_free(9)}, group) == Refusal::None);
  EXPECT(!ledger.widen(share, 1, {5, 5}, false));  // all that is there is promised
  EXPECT(ledger.widen(share, 1, {5, 5}, true));    // it is pinned, so that it is not among the five
  ledger.narrow(share, 1);
  EXPECT(!ledger.widen(share, 1, {4, 4}, true));
  EXPECT_EQ(ledger.caps(1), 5);
  EXPECT(ledger.widen(share, 1, {6, 6}, false));
  EXPECT_EQ(ledger.caps(1), 6);
  EXPECT_EQ(ledger.promised(1), 6);  // until the pin is there
  ledger.took(share, 1, 1);
  EXPECT_EQ(ledger.promised(1), 5);
  ledger.end(share);
  EXPECT_EQ(ledger.caps(1) + ledger.promised(1), 0);
}

HKV_TEST("a page taken while the pool was read is not promised twice") {
  const Layout layout = make_layout(1, {group_of({Rule::Prefix, 0}, 1)});
  AdmissionLedger ledger(layout, {});
  Share a, b;
  int group = -2;
  EXPECT(ask(ledger, a, {6}, {all_free(10)}, group) == Refusal::None);
  Room room{10, 10, 0, ledger.takes(0)};  // read; then the other takes its pages
  ledger.took(a, 0, 6);
  EXPECT(ledger.admit(b, {5}, std::vector<Room>{room}, group) == Refusal::Pages);
  EXPECT(ledger.admit(b, {4}, std::vector<Room>{room}, group) == Refusal::None);
}

HKV_TEST("who is preempted first") {
  const Layout layout =
      make_layout(1, {group_of({Rule::Prefix, 0}, 1, 10), group_of({Rule::Window, 9}, 1, 100)});
  AdmissionLedger ledger(layout, {});
  Share old, young;
  int group = -2;
  const std::vector<Room> rooms{all_free(100), all_free(100)};
  EXPECT(ask(ledger, old, {20}, rooms, group) == Refusal::None);
  EXPECT(ask(ledger, young, {20}, rooms, group) == Refusal::None);
  ledger.took(old, 0, 9);
  EXPECT(preempted_before(Preempt::Youngest, layout, young, old));
  EXPECT(!preempted_before(Preempt::Youngest, layout, old, young));
  EXPECT(preempted_before(Preempt::Largest, layout, old, young));
  ledger.took(young, 1, 1);  // 100 bytes against 90
  EXPECT(preempted_before(Preempt::Largest, layout, young, old));
  ledger.took(old, 0, 1);
  EXPECT(preempted_before(Preempt::Largest, layout, young, old));  // equal: the younger
}

// The rules once more, over plain lists and without the ledger's sums.
struct Naive {
  struct Request {
    std::vector<std::int64_t> cap, taken;
    std::uint32_t groups;
  };
  std::vector<const Request*> live;
  std::set<int> below;

  std::int64_t left(int g, bool prefix, const Room& room) const {
    std::int64_t by_pages = room.free_and_evictable, by_caps = room.capacity - room.unowned;
    for (const Request* r : live) by_pages -= r->cap[g] - r->taken[g], by_caps -= r->cap[g];
    return prefix ? by_pages : std::max(by_pages, by_caps);
  }
  Refusal admit(const Request& asked, const Layout& layout, const AdmissionLimits& limits,
                const std::vector<Room>& rooms) {
    const int groups = static_cast<int>(rooms.size());
    for (int g = 0; g < groups; ++g)
      if (asked.cap[g] > rooms[g].capacity) return Refusal::Never;
    for (int g = 0; g < groups; ++g)
      if (asked.cap[g] > left(g, layout.groups[g].prefix(), rooms[g])) return Refusal::Pages;
    if (limits.max_requests && static_cast<std::int64_t>(live.size()) >= limits.max_requests)
      return Refusal::Requests;
    std::set<std::uint32_t> sets{asked.groups};
    for (const Request* r : live) sets.insert(r->groups);
    bool known = false;
    for (const Request* r : live) known |= r->groups == asked.groups;
    if (limits.max_combinations && !known && static_cast<std::int64_t>(sets.size()) > limits.max_combinations)
      return Refusal::Combinations;
    std::set<int> now;
    for (int g = 0; g < groups && !live.empty() && limits.watermark_high_ppm; ++g) {
      const double free = static_cast<double>(left(g, layout.groups[g].prefix(), rooms[g]));
      const double pages = static_cast<double>(rooms[g].capacity) / 1e6;
      if (free - static_cast<double>(asked.cap[g]) < pages * static_cast<double>(limits.watermark_low_ppm) ||
          (below.contains(g) && free < pages * static_cast<double>(limits.watermark_high_ppm)))
        now.insert(g);
    }
    below = now;
    return now.empty() ? Refusal::None : Refusal::Watermark;
  }
};

HKV_TEST("random admissions agree with a naive model") {
  std::mt19937 random(7);
  const auto any = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  std::map<Refusal, int> seen;
  for (int turn = 0; turn < 300; ++turn) {
    const Layout layout =
        make_layout(2, {group_of({Rule::Prefix, 0}, 1), group_of({Rule::Window, any(1, 12)}, 2),
                        group_of({Rule::Checkpoint, 0}, 2)});
    AdmissionLimits limits{any(0, 1) * any(2, 6), any(0, 1) * any(1, 2), any(0, 1) * any(1, 300'000), 0,
                           any(0, 6)};
    limits.watermark_high_ppm = limits.watermark_low_ppm + any(0, 1) * any(0, 300'000);
    AdmissionLedger ledger(layout, limits);
    struct Both : Naive::Request, Share {};
    std::vector<std::unique_ptr<Both>> live;
    Naive naive;
    const std::vector<std::int64_t> sizes{any(20, 60), any(10, 40), any(6, 20)};
    for (int event = 0; event < 200; ++event) {
      if (any(0, 2) != 0 || live.empty()) {
        std::vector<Room> rooms;
        for (int g = 0; g < 3; ++g) {
          const std::int64_t unowned = any(0, 3);
          rooms.push_back(
              {sizes[g], sizes[g] - (ledger.caps(g) - ledger.promised(g)) - any(0, 3), unowned, -1});
        }
        const Demand demand{any(1, 60), 0, any(0, 2), {}, any(0, 3) == 0 ? 5u : 7u};
        auto both = std::make_unique<Both>();
        both->groups = demand.groups;
        for (int g = 0; g < 3; ++g) {
          const bool used = demand.groups >> g & 1;
          both->Naive::Request::cap.push_back(
              used ? worst_pages(layout, g, {demand.max_tokens, 0, limits.step_tokens, demand.states}) : 0);
          both->Naive::Request::taken.push_back(0);
        }
        int group = -2, judged_group = -2;
        const Refusal expected = naive.admit(*both, layout, limits, rooms);
        const Refusal judged = ledger.judge(demand, rooms, judged_group);
        const Refusal got = ledger.admit(*both, demand, rooms, group);
        EXPECT_EQ(static_cast<int>(got), static_cast<int>(expected));
        EXPECT_EQ(static_cast<int>(judged), static_cast<int>(expected));
        ++seen[got];
        if (got == Refusal::None) live.push_back(std::move(both)), naive.live.push_back(live.back().get());
      } else if (any(0, 1) != 0) {
        Both& one = *live[any(0, static_cast<int>(live.size()) - 1)];
        const int g = any(0, 2);
        const std::int64_t room = AdmissionLedger::room(one, g), back = one.Naive::Request::taken[g];
        if (room > 0 && any(0, 1) != 0) {
          ledger.took(one, g, 1), ++one.Naive::Request::taken[g];
        } else if (back > 0) {
          ledger.gave(one, g, back), one.Naive::Request::taken[g] = 0;
        }
      } else {
        const int at = any(0, static_cast<int>(live.size()) - 1);
        ledger.end(*live[at]);
        live.erase(live.begin() + at);
        naive.live.erase(naive.live.begin() + at);
        if (live.empty()) naive.below.clear();
      }
    }
    for (auto& both : live) ledger.end(*both);
    for (int g = 0; g < 3; ++g) EXPECT_EQ(ledger.promised(g) + ledger.caps(g), 0);
    EXPECT_EQ(ledger.live_requests() + ledger.live_combinations(), 0);
  }
  for (const Refusal refusal : {Refusal::None, Refusal::Requests, Refusal::Combinations, Refusal::Watermark,
                                Refusal::Pages, Refusal::Never})
    EXPECT(seen[refusal] > 100);  // every answer was given
}

HKV_TEST("two threads admit, take and end: never more promised than there is") {
  const Layout layout = full_and_window(1, 4);
  AdmissionLedger ledger(layout, {.step_tokens = 3});
  const std::int64_t pages = 60;
  Atom<std::int64_t> free[2] = {Atom<std::int64_t>(pages), Atom<std::int64_t>(pages)};
  Atom<int> admitted;
  const auto run = [&](unsigned seed) {
    std::mt19937 random(seed);
    for (int turn = 0; turn < 20'000; ++turn) {
      Share share;
      std::vector<Room> rooms;
      for (int g = 0; g < 2; ++g) {
        const std::int64_t takes = ledger.takes(g);
        rooms.push_back({pages, free[g].load(), 0, takes});
      }
      int group = -2;
      const Demand demand{1 + static_cast<std::int64_t>(random() % 50)};
      if (ledger.admit(share, demand, rooms, group) != Refusal::None) continue;
      admitted.fetch_add(1);
      for (int g = 0; g < 2; ++g) {
        const std::int64_t wanted = AdmissionLedger::room(share, g);
        EXPECT(free[g].fetch_sub(wanted) >= wanted);  // what was promised is there
        ledger.took(share, g, wanted);
      }
      for (int g = 0; g < 2; ++g) {
        const std::int64_t held = share.taken[g].load();
        ledger.gave(share, g, held);
        free[g].fetch_add(held);
      }
      ledger.end(share);
    }
  };
  std::thread other(run, 1u);
  run(2u);
  other.join();
  EXPECT(admitted.load() > 0);
  for (int g = 0; g < 2; ++g) EXPECT_EQ(ledger.promised(g) + ledger.caps(g) + pages - free[g].load(), 0);
}

}  // namespace
}  // namespace hkv
