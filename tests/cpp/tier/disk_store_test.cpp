// SPDX-License-Identifier: Apache-2.0
// The disk store step by step over a simulated disk, without faults and with the ones that an option or a file makes.
// One thread: left out under ThreadSanitizer.
#include "testing.h"
#include "tier/disk_openings.h"
#include "tier/disk_world.h"

namespace hkv {
namespace {

HKV_TEST("what is put is found, read and found again by the next opener") {
  DiskWorld world{SimulatedDisk()};
  world.open();
  EXPECT_EQ(world.wait(world.put(1)), TierStatus::Ok);
  EXPECT_EQ(world.wait(world.put(2, 1)), TierStatus::Ok);
  EXPECT_EQ(world.wait(world.put(101, 1)), TierStatus::Ok);
  for (const int key : {1, 2, 101}) {
    const auto get = world.get(key);
    EXPECT_EQ(world.wait(get), TierStatus::Ok);
    EXPECT(right_bytes(key, get));
  }
  EXPECT_EQ(world.wait(world.get(3)), TierStatus::Miss);
  EXPECT(world.close());
  DiskWorld again(world.io.disk());
  again.open();
  EXPECT_EQ(again.recovered.records, 3u);
  EXPECT_EQ(again.recovered.scanned_regions, 0u);
  for (const int key : {1, 2, 101}) {
    const auto get = again.get(key);
    EXPECT_EQ(again.wait(get), TierStatus::Ok);
    EXPECT(right_bytes(key, get));
  }
}

HKV_TEST("an old region gives way to new records, oldest first, with what stands on it") {
  DiskWorld world{SimulatedDisk()};
  world.open();
  for (int key = 0; key < 60; ++key) {
    EXPECT_EQ(world.wait(world.put(key, key % 10 == 0 ? -1 : key - 1)), TierStatus::Ok);
    world.settle();
  }
  EXPECT(!world.here(0));
  EXPECT(world.here(59));
  for (int key = 0; key < 60; ++key) {
    const auto get = world.get(key);
    const TierStatus status = world.wait(get);
    EXPECT_EQ(status, world.here(key) ? TierStatus::Ok : TierStatus::Miss);
    if (status == TierStatus::Ok) EXPECT(right_bytes(key, get));
    if (world.here(key) && key % 10 != 0) EXPECT(world.here(key - 1));
  }
  EXPECT(world.close());
}

// Puts records without parents from `key` on, each settled, until `done`.
template <class F>
int put_until(DiskWorld& world, int key, F done) {
  for (; !done() && key < 10'000; ++key) {
    world.wait(world.put(key % 90 + 10));
    world.settle();
  }
  return key;
}

HKV_TEST("what was hit or is pinned is written again, with its parents; what was not is gone") {
  for (const bool hit : {false, true}) {
    DiskOptions options = world_options();
    options.region_bytes *= 4;
    options.capacity_bytes *= 4;
    DiskWorld world(SimulatedDisk(), options);
    world.open();
    for (const int key : {0, 1, 2, 3}) {
      EXPECT_EQ(world.wait(world.put(key, key == 3 ? 2 : -1, false, key == 0)), TierStatus::Ok);
    }
    if (hit) EXPECT_EQ(world.wait(world.get(3)), TierStatus::Ok);
    const auto reclaimed = [&] { return world.store->counts().reclaimed.load() != 0; };
    put_until(world, 0, reclaimed);
    EXPECT(world.here(0));
    EXPECT(!world.here(1));
    EXPECT_EQ(world.here(2), hit);  // nobody asked for it, but 3 stands on it
    EXPECT_EQ(world.here(3), hit);
    const auto get = world.get(0);
    EXPECT_EQ(world.wait(get), TierStatus::Ok);
    EXPECT(right_bytes(0, get));
    EXPECT(world.close());
    world.open();
    EXPECT(world.here(0));
    EXPECT_EQ(world.here(3), hit);
  }
}

HKV_TEST("no more is written again than a quarter of a region") {
  DiskWorld world{SimulatedDisk()};
  world.open();
  for (int key = 0; key < 4; ++key) world.wait(world.put(key, -1, false, true));
  put_until(world, 0, [&] { return world.store->counts().reclaimed.load() != 0; });
  int kept = 0;
  for (int key = 0; key < 4; ++key) kept += world.here(key);
  EXPECT_EQ(kept, 1);  // of three units each, where four may stay
}

HKV_TEST("a read under way keeps its region; one that goes wrong there is found out") {
  DiskWorld world{SimulatedDisk()};
  world.open();
  EXPECT_EQ(world.wait(world.put(0)), TierStatus::Ok);
  world.settle();
  SimulatedFault frozen;
  frozen.kind = SimulatedFault::Kind::Frozen;
  frozen.only = SimulatedFault::Only::Read;
  world.io.add(frozen);
  const auto get = world.get(0);
  for (int i = 0; i < 60; ++i) {
    world.put(10 + i);
    world.settle();
  }
  EXPECT(!get->status);
  const DiskRegion* region = world.store->region(0);
  EXPECT_EQ(region->epoch, 1u);  // not written over
  EXPECT_EQ(region->readers, 1u);
  world.io.thaw();
  world.settle();
  EXPECT_EQ(get->status.value_or(TierStatus::Busy), TierStatus::Ok);
  EXPECT(right_bytes(0, get));
  EXPECT(region->epoch != 1u);
}

HKV_TEST("a put whose parent is neither there nor coming is a Miss; one whose parent is coming is taken") {
  DiskWorld world{SimulatedDisk()};
  world.open();
  EXPECT_EQ(world.wait(world.put(2, 1)), TierStatus::Miss);
  EXPECT_EQ(world.store->counts().bytes_written.load(), 0u);
  const auto parent = world.put(1), child = world.put(2, 1), boundary = world.put(102, 2);
  world.settle();
  for (const auto& ask : {parent, child, boundary}) EXPECT(ask->is(TierStatus::Ok));
  EXPECT_EQ(world.wait(world.put(3, 2, false, false, 8)), TierStatus::Miss);  // a parent of another format
  EXPECT_EQ(world.index->look(world_key(2, 8)).answer, Presence::Answer::OtherFormat);
}

HKV_TEST("a remove takes what stands above along, now and after a restart") {
  DiskWorld world{SimulatedDisk()};
  world.open();
  for (const int key : {1, 2, 3}) world.wait(world.put(key, key == 1 ? -1 : key - 1, true));
  EXPECT_EQ(world.wait(world.remove(2)), TierStatus::Ok);
  EXPECT(world.here(1) && !world.here(2) && !world.here(3));
  EXPECT_EQ(world.wait(world.put(2, 1, true)), TierStatus::Ok);
  DiskWorld again(world.io.disk().restart_with_none());
  again.open();
  EXPECT(again.here(1) && again.here(2) && !again.here(3));  // 3 was written before the tombstone of 2
  EXPECT_EQ(again.recovered.removed, 1u);
  EXPECT_EQ(again.wait(again.remove(50)), TierStatus::Miss);
}

HKV_TEST("admission: a second touch, a budget, and pins that pass") {
  DiskOptions second = world_options();
  second.admission = WriteAdmission::SecondTouch;
  DiskWorld world(SimulatedDisk(), second);
  world.open();
  EXPECT_EQ(world.wait(world.put(1)), TierStatus::Declined);
  EXPECT_EQ(world.wait(world.put(2, -1, false, true)), TierStatus::Ok);
  EXPECT_EQ(world.wait(world.put(1)), TierStatus::Ok);
  for (const TierStatus status :
       {TierStatus::Declined, TierStatus::Ok}) {  // a prefix as a whole, the second time
    for (const int key : {11, 12, 13})
      EXPECT_EQ(world.wait(world.put(key, key == 11 ? -1 : key - 1)), status);
  }
  DiskOptions budget = world_options();
  budget.admission = WriteAdmission::Budget;
  budget.budget_bytes_per_second = 30'000;
  DiskWorld slow(SimulatedDisk(), budget);
  slow.open();
  EXPECT_EQ(slow.wait(slow.put(1)), TierStatus::Ok);
  EXPECT_EQ(slow.wait(slow.put(2)), TierStatus::Ok);
  EXPECT_EQ(slow.wait(slow.put(3)), TierStatus::Declined);
  slow.now += std::chrono::milliseconds(500);
  EXPECT_EQ(slow.wait(slow.put(3)), TierStatus::Ok);
  EXPECT_EQ(slow.wait(slow.put(4)), TierStatus::Declined);
  slow.now -=
      std::chrono::hours(1);  // no clock that the store would read, and time that goes back gives nothing
  EXPECT_EQ(slow.wait(slow.put(4)), TierStatus::Declined);
}

HKV_TEST("of keys asked for once the last ones are remembered, all of them, and no others") {
  TouchedKeys touched;
  const auto key_of = [](std::uint64_t i) {
    RecordKey key{{i, i * i}, {7, 7}, i % 2 == 0 ? RecordKind::Block : RecordKind::Boundary};
    return key;
  };
  constexpr std::uint64_t all = TouchedKeys::remembered;
  std::uint64_t known = 0;
  for (std::uint64_t i = 0; i < all; ++i) known += touched.touch(key_of(i)) ? 1 : 0;
  EXPECT_EQ(known, 0u);
  for (std::uint64_t i = 0; i < all; ++i) known += touched.touch(key_of(i)) ? 1 : 0;
  EXPECT_EQ(known, all);
  for (std::uint64_t i = all; i < 2 * all; ++i) known += touched.touch(key_of(i)) ? 1 : 0;
  EXPECT_EQ(known, all);
  EXPECT(touched.touch(key_of(0)));  // of the generation before
  EXPECT(!touched.touch(key_of(2 * all)));
  EXPECT(!touched.touch(key_of(1)));  // two generations old
  EXPECT(touched.bytes() <= std::size_t{8} << 20);
}

HKV_TEST("no room for another region: fewer are used where that is asked for, and else what is there stays") {
  SimulatedDiskOptions small;
  small.capacity_bytes = 3 * world_region_bytes + 2 * disk_unit;
  DiskOptions smaller = world_options();
  smaller.reclaim_when_full = true;
  DiskWorld world(SimulatedDisk(small), smaller);
  world.open();
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(world.wait(world.put(10 + i)), TierStatus::Ok);
    world.settle();
    EXPECT(world.here(10 + i));
  }
  EXPECT(world.store->region(3) == nullptr || world.store->region(3)->phase == RegionPhase::Absent);
  const auto fill = [&small](std::uint64_t regions, const DiskOptions& options) {
    small.capacity_bytes = regions * world_region_bytes + 2 * disk_unit;
    DiskWorld full(SimulatedDisk(small), options);
    full.open();
    std::vector<int> kept;
    for (int i = 0; i < 40; ++i) {
      const TierStatus status = full.wait(full.put(10 + i));
      full.settle();
      EXPECT(status == TierStatus::Ok || status == TierStatus::NoSpace);
      if (status == TierStatus::Ok) kept.push_back(10 + i);
    }
    EXPECT(kept.size() < 40);
    for (const int key : kept) EXPECT(full.here(key));
    return kept.size();
  };
  EXPECT(fill(2, smaller) >= 6);           // too few to reclaim any
  EXPECT(fill(4, world_options()) >= 12);  // enough, but nobody asked for it
}

HKV_TEST("what a reclaim keeps is read several at a time, and each is where it was asked for") {
  DiskWorld world{SimulatedDisk()};
  world.open();
  for (const int key : {1, 2}) EXPECT_EQ(world.wait(world.put(key, -1, true, true, 7, 2000)), TierStatus::Ok);
  std::size_t most = 0;
  for (int i = 0; i < 60; ++i) {
    const DiskWorld::Ask put = world.put(10 + i);
    world.store->pump();
    do {
      for (std::uint32_t r = 0; const DiskRegion* region = world.store->region(r); ++r) {
        most = std::max(most, std::size_t{region->readers});
      }
    } while (world.step());
    EXPECT(put->is(TierStatus::Ok));
    for (const int key : {1, 2}) EXPECT_EQ(world.wait(world.get(key, 7, 2000)), TierStatus::Ok);
  }
  EXPECT_EQ(most, std::size_t{2});
}

HKV_TEST("a pump hands over one full piece and says that there is more") {
  DiskWorld world{SimulatedDisk()};
  world.open();
  std::vector<DiskWorld::Ask> puts;
  EXPECT_EQ(world.wait(world.put(1)), TierStatus::Ok);
  world.settle();
  for (int key = 2; key < 4; ++key) puts.push_back(world.put(key, -1, false, false, 7, 4 * disk_unit));
  std::size_t turns = 0;
  do {
    world.store->pump();
    ++turns;
  } while (world.store->more());
  EXPECT(turns > 2);
  for (const DiskWorld::Ask& put : puts) EXPECT_EQ(world.wait(put), TierStatus::Ok);
}

HKV_TEST("regions grow with the capacity, so that they are no more than 512 files") {
  const std::uint64_t least = std::uint64_t{64} << 20;
  EXPECT_EQ(region_bytes_for(least * 4), least);
  EXPECT_EQ(region_bytes_for(least * 512), least);
  EXPECT_EQ(region_bytes_for(least * 513), least * 2);
  EXPECT_EQ(region_bytes_for(std::uint64_t{1} << 62), std::uint64_t{4} << 30);
}

HKV_TEST("three errors one after another: nothing is written any more, reads go on") {
  DiskWorld world{SimulatedDisk()};
  world.open();
  EXPECT_EQ(world.wait(world.put(1, -1, true)), TierStatus::Ok);
  SimulatedFault broken;
  broken.value = EIO;
  broken.only = SimulatedFault::Only::Sync;
  broken.times = 100;
  world.io.add(broken);
  int errors = 0, read_only = 0;
  for (int key = 10; key < 30; ++key) {
    const TierStatus status = world.wait(world.put(key, -1, true));
    errors += status == TierStatus::IoError;
    read_only += status == TierStatus::ReadOnly;
    world.settle();
  }
  EXPECT(errors >= 1 && errors <= 3);
  EXPECT(read_only >= 15);
  EXPECT(world.store->counts().read_only.load());
  const auto get = world.get(1);
  EXPECT_EQ(world.wait(get), TierStatus::Ok);
  EXPECT_EQ(world.wait(world.remove(1)), TierStatus::ReadOnly);
  EXPECT(world.here(1));
  EXPECT(world.close());
}

HKV_TEST(
    "a failed sync takes what was not durable, tells a flush once, and is never tried again on that region") {
  DiskWorld world{SimulatedDisk()};
  world.open();
  EXPECT_EQ(world.wait(world.put(1, -1, true)), TierStatus::Ok);
  EXPECT_EQ(world.wait(world.put(2, 1)), TierStatus::Ok);
  world.settle();
  SimulatedFault broken;
  broken.value = EIO;
  broken.only = SimulatedFault::Only::Sync;
  world.io.add(broken);
  EXPECT_EQ(world.wait(world.flush()), TierStatus::IoError);
  EXPECT(world.here(1) && !world.here(2));
  EXPECT_EQ(world.store->region(0)->phase, RegionPhase::GivenUp);
  EXPECT_EQ(world.wait(world.flush()), TierStatus::Ok);
  EXPECT_EQ(world.wait(world.put(2, 1, true)), TierStatus::Ok);
  DiskWorld again(world.io.disk().restart_with_none());
  again.open();
  EXPECT(again.here(1) && again.here(2));
}

HKV_TEST(
    "what a failed sync made doubtful counts no more for the next opener, whatever the system shows it") {
  DiskWorld world{SimulatedDisk()};
  world.open();
  EXPECT_EQ(world.wait(world.put(1, -1, true)), TierStatus::Ok);
  EXPECT_EQ(world.wait(world.put(2, 1)), TierStatus::Ok);
  SimulatedFault broken;
  broken.value = EIO;
  broken.only = SimulatedFault::Only::Sync;
  world.io.add(broken);
  EXPECT_EQ(world.wait(world.flush()), TierStatus::IoError);
  world.open();  // another process, no power cut
  EXPECT(world.here(1) && !world.here(2));
  EXPECT_EQ(world.wait(world.put(3, 1, true)), TierStatus::Ok);
  world.settle();
  EXPECT(world.close());
  DiskWorld again(world.io.disk().restart_with_none());
  again.open();
  EXPECT(again.here(1) && !again.here(2) && again.here(3));
}

HKV_TEST("a record is durable only when what is older is, in other regions too") {
  DiskWorld world{SimulatedDisk()};
  world.open();
  int key = 0;
  for (; world.store->region(0) == nullptr || world.store->region(0)->tail < 11 * disk_unit; ++key) {
    EXPECT_EQ(world.wait(world.put(key, key == 0 ? -1 : key - 1)), TierStatus::Ok);
    world.settle();
  }
  SimulatedFault frozen;  // the first sync, which is of the older region
  frozen.kind = SimulatedFault::Kind::Frozen;
  frozen.only = SimulatedFault::Only::Sync;
  world.io.add(frozen);
  const auto child = world.put(key, key - 1, true, false, 7, 9000);
  world.settle();
  EXPECT(!child->status);
  EXPECT(world.here(key));  // written and found, not durable
  EXPECT_EQ(world.store->region(1)->phase, RegionPhase::Open);
  EXPECT(world.store->region(1)->synced == world.store->region(1)->published);
  world.io.thaw();
  world.settle();
  EXPECT(child->is(TierStatus::Ok));
}

HKV_TEST("what no index knows and the disk still has is removed too") {
  DiskWorld world{SimulatedDisk()};
  world.open();
  EXPECT_EQ(world.wait(world.put(1, -1, true)), TierStatus::Ok);
  world.settle();
  SimulatedFault flip;
  flip.kind = SimulatedFault::Kind::Flip;
  flip.value = (disk_unit + 100) * 8;
  flip.only = SimulatedFault::Only::Read;
  world.io.add(flip);
  EXPECT_EQ(world.wait(world.get(1)), TierStatus::Corrupt);
  EXPECT(!world.here(1));
  EXPECT_EQ(world.wait(world.get(1)), TierStatus::Miss);
  EXPECT_EQ(world.wait(world.remove(1)), TierStatus::Miss);
  DiskWorld again(world.io.disk().restart_with_none());
  again.open();
  EXPECT(!again.here(1));
}

HKV_TEST("parts go straight into aligned memory, in any order and any selection through a buffer") {
  SimulatedDiskOptions page_cache;
  page_cache.alignment = 1;
  for (const bool direct : {true, false}) {
    DiskWorld world{direct ? SimulatedDisk() : SimulatedDisk(page_cache)};
    world.open();
    EXPECT_EQ(world.wait(world.put(1, -1, false, false, 7, 9000)), TierStatus::Ok);
    world.settle();
    const WorldBytes put(1, 9000, true);
    for (const int mask : {1, 2, 3, 7}) {  // 7: both, the other way round
      const auto get = std::make_unique<WorldBytes>(1, 9000, false);
      std::vector<Part> parts;
      if (mask & 1) parts.push_back(get->parts[0]);
      if (mask & 2) parts.push_back(get->parts[1]);
      if (mask == 7) std::swap(parts[0], parts[1]);
      const auto ask = world.get_parts(1, parts);
      EXPECT_EQ(world.wait(ask), TierStatus::Ok);
      for (int i = 0; i < 2; ++i) {
        const bool wanted = mask >> i & 1;
        const auto* at = static_cast<const std::byte*>(put.parts[static_cast<std::size_t>(i)].data);
        const auto* got = static_cast<const std::byte*>(get->parts[static_cast<std::size_t>(i)].data);
        const bool same = std::equal(at, at + put.parts[static_cast<std::size_t>(i)].bytes, got);
        EXPECT_EQ(same, wanted);
      }
    }
    EXPECT_EQ(world.wait(world.get_parts(1, {})), TierStatus::Ok);
  }
}

HKV_TEST("a miss does no I/O, and a put of what is there writes nothing") {
  DiskWorld world{SimulatedDisk()};
  world.open();
  EXPECT_EQ(world.wait(world.get(1)), TierStatus::Miss);
  EXPECT_EQ(world.wait(world.put(1)), TierStatus::Ok);
  world.settle();
  const std::uint64_t written = world.store->counts().bytes_written.load();
  const std::size_t calls = world.io.calls();
  EXPECT_EQ(world.wait(world.get(2)), TierStatus::Miss);
  EXPECT_EQ(world.wait(world.put(1)), TierStatus::Ok);
  EXPECT_EQ(world.io.calls(), calls);
  EXPECT_EQ(world.store->counts().bytes_written.load(), written);
}

HKV_TEST("a record of any size that fits, and none that does not") {
  DiskWorld world{SimulatedDisk()};
  world.open();
  const std::size_t most = world.store->most_record_bytes() - disk_unit;
  for (const std::size_t bytes : {std::size_t{2}, std::size_t{4096}, std::size_t{4097}, most - 1, most}) {
    const int key = static_cast<int>(bytes % 88);
    EXPECT_EQ(world.wait(world.put(key, -1, false, false, 7, bytes)), TierStatus::Ok);
    const auto get = world.get(key, 7, bytes);
    EXPECT_EQ(world.wait(get), TierStatus::Ok);
    EXPECT(right_bytes(key, get));
  }
  EXPECT_EQ(world.wait(world.put(90, -1, false, false, 7, most + 1)), TierStatus::Invalid);
}

HKV_TEST("a sound record of another life, key or place is not taken for the one that was asked for") {
  DiskWorld world{SimulatedDisk()};
  world.open();
  for (const int key : {1, 2, 3}) EXPECT_EQ(world.wait(world.put(key)), TierStatus::Ok);
  world.settle();
  const std::uint64_t at = region_header_bytes;
  world.io.change_disk([&](SimulatedDisk& disk) {
    const auto file = disk.find("000000.region");
    std::vector<std::byte> unit(disk_unit);
    disk.read(file, at, unit.data(), unit.size());
    Envelope envelope;
    EXPECT_EQ(read_envelope(unit, envelope), Damage::None);
    envelope.epoch += 1;
    write_envelope(envelope, unit);
    disk.write(file, at, unit.data(), unit.size(), 0);
    std::vector<std::byte> third(3 * disk_unit);  // and the third record where the second should be
    const std::uint64_t second_at = at + record_bytes(2, DiskWorld::bytes_of(1));
    disk.read(file, second_at + record_bytes(2, DiskWorld::bytes_of(2)), third.data(), third.size());
    disk.write(file, second_at, third.data(), third.size(), 0);
  });
  const auto first = world.get(1), second = world.get(2), third = world.get(3);
  world.settle();
  EXPECT(first->is(TierStatus::Corrupt));
  EXPECT_EQ(first->damage, Damage::Epoch);
  EXPECT(second->is(TierStatus::Corrupt));
  EXPECT_EQ(second->damage, Damage::Foreign);
  EXPECT(third->is(TierStatus::Ok));
  EXPECT(!world.here(1) && !world.here(2) && world.here(3));
}

}  // namespace
}  // namespace hkv
