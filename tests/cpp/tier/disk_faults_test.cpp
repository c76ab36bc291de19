// SPDX-License-Identifier: Apache-2.0
// The disk store when the power goes at any call, and when any call goes wrong; its reads of several requests.
// One thread: left out under ThreadSanitizer.
#include <cstdlib>

#include "testing.h"
#include "tier/arena_world.h"
#include "tier/disk_history.h"

namespace hkv {
namespace {

// Under sanitizers everything takes ten times as long: fewer moments then.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t sparse = 7;
#else
constexpr std::size_t sparse = 1;
#endif

// HKV_STEPS: more histories.
int histories(int usual) {
  const char* steps = std::getenv("HKV_STEPS");
  return steps != nullptr ? std::max(usual, std::atoi(steps)) : usual;
}

std::string named(std::uint64_t seed, std::size_t cut, bool after, std::size_t way, const std::string& what) {
  return "history " + std::to_string(seed) + ", power cut " + (after ? "after" : "at") + " call " +
         std::to_string(cut) + ", way " + std::to_string(way) + ": " + what;
}

HKV_TEST("the power goes at any call: what was told to be durable is there, what was removed is not") {
  std::size_t states = 0, recovered_records = 0;
  int shown = 0;
  for (std::uint64_t seed = 1; seed <= static_cast<std::uint64_t>(histories(2)); ++seed) {
    const auto steps = random_history(seed, 60);
    HistoryRun whole{SimulatedDisk(), seed};
    EXPECT(whole.run(steps));
    for (std::size_t cut = 0; cut < whole.calls() && shown < 5; cut += sparse) {
      for (const bool after : {false, true}) {
        HistoryRun run{SimulatedDisk(), seed};
        if (run.run(steps, cut, after)) continue;
        for (const std::string& what : run.wrong())
          testing::fail(__FILE__, __LINE__, named(seed, cut, after, 0, what));
        const SimulatedDisk disk = run.disk();
        std::size_t way = 0;
        for (const Survives& survives : ways_to_survive(disk.uncertain(), 6, seed * 1000 + cut)) {
          const std::string what = check_reopened(run, disk.restart(survives), 5, true);
          ++states;
          ++way;
          if (what.empty() || shown++ >= 5) continue;
          testing::fail(__FILE__, __LINE__, named(seed, cut, after, way, what));
        }
      }
    }
    recovered_records += whole.world()->index->records();
  }
  std::printf("     %zu crashed disks opened, %zu records in the whole histories' ends\n", states,
              recovered_records);
  EXPECT(recovered_records > 0);
}

struct FaultKind {
  const char* name;
  SimulatedFault fault;
};

std::vector<FaultKind> fault_kinds() {
  using Kind = SimulatedFault::Kind;
  const auto made = [](Kind kind, std::uint64_t value, std::size_t sectors = 0) {
    SimulatedFault fault;
    fault.kind = kind;
    fault.value = value;
    fault.sectors = sectors;
    return fault;
  };
  return {{"EIO", made(Kind::Error, EIO)},
          {"EIO after three sectors", made(Kind::Error, EIO, 3)},
          {"ENOSPC", made(Kind::Error, ENOSPC)},
          {"short, one sector", made(Kind::Short, 512)},
          {"short, one unit", made(Kind::Short, disk_unit)},
          {"nothing moved", made(Kind::Short, 0)},
          {"torn", made(Kind::Torn, 3)},
          {"lost", made(Kind::Torn, 0)},
          {"misdirected to the start", made(Kind::Misdirected, 0)},
          {"misdirected to the first record", made(Kind::Misdirected, disk_unit)},
          {"a bit of the envelope", made(Kind::Flip, 20 * 8 + 3)},
          {"a bit of the payload", made(Kind::Flip, (disk_unit + 700) * 8 + 1)}};
}

// Whether a fault of this kind lies about what it did, so that what was told to be durable may not be.
bool lies(const SimulatedFault& fault) {
  return fault.kind != SimulatedFault::Kind::Error && fault.kind != SimulatedFault::Kind::Short;
}

HKV_TEST(
    "any call goes wrong: no wrong bytes, then or after a restart, and an honest error loses nothing "
    "durable") {
  std::size_t runs = 0, refused = 0;
  int shown = 0;
  const std::uint64_t seeds = static_cast<std::uint64_t>(histories(2));
  const std::size_t stride =
      seeds > 2 ? 1 : 5 * sparse;  // of calls; each kind begins at another, so that each is met
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const auto steps = random_history(seed, 60);
    HistoryRun whole{SimulatedDisk(), seed};
    whole.run(steps);
    std::size_t first = 0;
    for (const FaultKind& kind : fault_kinds()) {
      for (std::size_t call = first++ % stride; call < whole.calls() && shown < 8; call += stride) {
        SimulatedFault fault = kind.fault;
        fault.first = fault.last = call;
        HistoryRun run{SimulatedDisk(), seed};
        const bool ended = run.run(steps, ~std::size_t{0}, false, {fault}, lies(fault));
        ++runs;
        refused += run.refused();
        std::vector<std::string> wrong = run.wrong();
        if (!ended && !run.refused()) wrong.push_back("came to a stop");
        const SimulatedDisk disk = run.disk();
        for (const bool all : {true, false}) {
          const std::string what =
              check_reopened(run, all ? disk.restart_with_all() : disk.restart_with_none(), 5, !lies(fault));
          if (!what.empty()) wrong.push_back(what);
        }
        for (const std::string& what : wrong) {
          if (shown++ >= 8) break;
          testing::fail(__FILE__, __LINE__,
                        "history " + std::to_string(seed) + ", call " + std::to_string(call) + ", " +
                            kind.name + ": " + what);
        }
      }
    }
  }
  std::printf("     %zu runs with one fault, %zu of them refused to open\n", runs, refused);
}

HKV_TEST(
    "parts in arenas are read by a request each run of them, others and small ones with their envelope") {
  ArenaWorld world;
  const auto reads_of = [&](auto&& ask) {
    const std::size_t before = world.reads();
    EXPECT_EQ(world.wait(ask()), TierStatus::Ok);
    return world.reads() - before;
  };
  const auto all = [&] { return world.get_all(); };
  EXPECT_EQ(reads_of(all), 1u);
  EXPECT(world.right());
  EXPECT_EQ(world.store->counts().arena_reads.load(), 0u);
  world.know();
  world.one.fill(9);
  world.two.fill(9);
  EXPECT_EQ(reads_of(all), 3u);
  EXPECT(world.right());
  EXPECT_EQ(world.store->counts().arena_reads.load(), 2u);
  world.io.drop_arena(world.two.data());
  world.two.fill(9);
  EXPECT_EQ(reads_of(all), 1u);
  EXPECT(world.right());
  AlignedMemory small(4 * disk_unit);
  const std::vector<Part> parts = {{small.data(), disk_unit, {1, 0, 2, 0}},
                                   {small.data() + disk_unit, disk_unit, {1, 1, 2, 0}}};
  EXPECT_EQ(world.wait(world.put_parts(2, parts)), TierStatus::Ok);
  world.io.add_arena(small.data(), small.size());
  EXPECT_EQ(reads_of([&] { return world.get_parts(2, parts); }), 1u);
  EXPECT_EQ(world.store->counts().arena_reads.load(), 2u);
}

HKV_TEST(
    "whatever happens to one of several reads, the get is answered once all are done, and never Ok wrongly") {
  using Kind = SimulatedFault::Kind;
  for (const Kind kind : {Kind::Error, Kind::Short, Kind::Flip, Kind::Misdirected}) {
    for (std::size_t which = 0; which < 3; ++which) {  // envelope, first run, second run
      for (const bool backwards : {false, true}) {
        for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{5}, std::uint64_t{2 * disk_unit}}) {
          ArenaWorld world;
          world.know();
          if (backwards) world.io.choose([](std::size_t count) { return count - 1; });
          SimulatedFault fault;
          fault.kind = kind;
          fault.value = value;
          fault.first = fault.last = world.io.calls() + which;
          fault.only = SimulatedFault::Only::Read;
          world.io.per_wait(1);
          world.io.add(fault);
          const auto get = world.get_all();
          world.store->pump();
          EXPECT_EQ(world.io.in_flight(), 3u);
          world.step();
          EXPECT(!get->status);
          const TierStatus status = world.wait(get);
          EXPECT_EQ(world.io.in_flight(), 0u);
          if (kind == Kind::Error && value != 0) EXPECT_EQ(status, TierStatus::IoError);
          if (kind == Kind::Short) EXPECT_EQ(status, TierStatus::Ok);
          const bool in_fill = which == 0 && value / 8 >= envelope_bytes(3);  // which nobody reads
          if (kind == Kind::Flip) EXPECT_EQ(status, in_fill ? TierStatus::Ok : TierStatus::Corrupt);
          if (status == TierStatus::Ok) EXPECT(world.right());
        }
      }
    }
  }
}

HKV_TEST("the store's own memory is known to the Io while it lasts, and given back") {
  DiskWorld world(SimulatedDisk(), ArenaWorld::roomy());
  world.open();
  for (int key = 0; key < 3; ++key) {
    EXPECT_EQ(world.wait(world.put(key, -1, false, false, 7, 100'000)), TierStatus::Ok);
  }
  const std::size_t pieces = world.io.arenas();
  EXPECT(pieces > 0);
  EXPECT(world.store->counts().fixed_requests.load() > 0);
  for (int turn = 0; turn < 3; ++turn) {  // through a buffer of the store's, known from its second use on
    const std::uint64_t fixed = world.store->counts().fixed_requests.load();
    const auto get = world.get(1, 7, 100'000);
    EXPECT_EQ(world.wait(get), TierStatus::Ok);
    EXPECT(right_bytes(1, get));
    EXPECT_EQ(world.store->counts().fixed_requests.load() - fixed, turn == 0 ? 0u : 1u);
  }
  EXPECT(world.io.arenas() > pieces);
  EXPECT(world.close());
  world.store->release_memory();
  EXPECT_EQ(world.io.arenas(), 0u);
}

}  // namespace
}  // namespace hkv
