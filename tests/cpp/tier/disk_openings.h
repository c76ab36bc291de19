// SPDX-License-Identifier: Apache-2.0
// Tests of what an opener of a disk store finds, at any moment and whatever a read brings.
#pragma once
#include <cerrno>
#include <vector>

#include "testing.h"
#include "tier/disk_world.h"

namespace hkv {
namespace {

HKV_TEST("at every moment of going round, the pinned stays and the removed stays away") {
  DiskWorld world{SimulatedDisk()};
  world.open();
  const auto check = [&] {
    DiskWorld crashed(world.io.disk().restart_with_none());
    crashed.open();
    EXPECT(crashed.here(1) && !crashed.here(0));
  };
  // The same where the header rots of the region where the removed was: what else is there may be lost, but its footer of
  // a life that is over brings nothing back.
  const auto check_without_header = [&] {
    SimulatedDisk disk = world.io.disk().restart_with_none();
    const auto inode = disk.find("000000.region");
    const std::vector<std::byte> zeros(disk_unit);
    disk.write(inode, 0, zeros.data(), zeros.size(), 0);
    DiskWorld crashed(std::move(disk));
    crashed.open();
    EXPECT(!crashed.here(0));
  };
  const auto done = [&](const DiskWorld::Ask& ask) {
    world.store->pump();
    while (world.step()) {
      check();
      check_without_header();
    }
    EXPECT(ask->is(TierStatus::Ok));
  };
  EXPECT_EQ(world.wait(world.put(0, -1, true)), TierStatus::Ok);
  EXPECT_EQ(world.wait(world.put(1, -1, true, true)), TierStatus::Ok);
  for (const int key : {2, 3, 4}) EXPECT_EQ(world.wait(world.put(key)), TierStatus::Ok);
  EXPECT_EQ(world.wait(world.remove(0)), TierStatus::Ok);
  done(world.remove(4));
  for (const int key : {5, 6}) {  // the region of the tombstones is left without a record
    done(world.put(key));
    done(world.remove(key));
  }
  EXPECT_EQ(world.store->region(1)->live, 0u);
  EXPECT(world.store->region(1)->tombstones >= 3);
  for (int key = 10; key < 40; ++key) done(world.put(key));
  EXPECT(world.store->region(0)->epoch != 1u);
}

HKV_TEST("any read of an opening goes wrong once: what is found is the same") {
  DiskWorld world{SimulatedDisk()};
  world.open();
  EXPECT_EQ(world.wait(world.put(1, -1, true, true)), TierStatus::Ok);
  for (int key = 10; key < 40; ++key) EXPECT_EQ(world.wait(world.put(key)), TierStatus::Ok);
  const SimulatedDisk disk = world.io.disk().restart_with_all();
  const auto found = [](const DiskWorld& opened) {
    std::vector<int> out;
    for (int key = 0; key < 40; ++key) {
      if (opened.here(key)) out.push_back(key);
    }
    return out;
  };
  DiskWorld clean{disk};
  clean.open();
  const std::vector<int> all = found(clean);
  EXPECT(all.size() > 5 && all.size() < 31);
  SimulatedFault short_read, flip, error;
  short_read.kind = SimulatedFault::Kind::Short;
  flip.kind = SimulatedFault::Kind::Flip;
  flip.value = 2;  // of the magic
  error.value = EIO;
  error.only = SimulatedFault::Only::Read;
  int refused = 0;
  for (SimulatedFault fault : {short_read, flip, error}) {
    for (fault.first = 0; fault.first < clean.io.calls(); ++fault.first) {
      DiskWorld opened{disk};
      fault.last = fault.first;
      opened.io.add(fault);
      try {
        opened.open();
        EXPECT(found(opened) == all);
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  EXPECT_EQ(refused, 1);  // a flipped bit of its superblock
}

HKV_TEST("more capacity and less: regions are added, or the oldest go") {
  DiskWorld world(SimulatedDisk(), world_options(8));
  world.open();
  for (int key = 0; key < 40; ++key) world.wait(world.put(key));
  world.settle();
  EXPECT(world.close());
  DiskWorld less(world.io.disk(), world_options(4));
  less.open();
  EXPECT_EQ(less.io.disk().list().size(), 5u);
  EXPECT(less.here(39) && less.index->records() < world.index->records());
  for (int key = 0; key < 40; ++key) {
    const auto get = less.get(key);
    EXPECT_EQ(less.wait(get), less.here(key) ? TierStatus::Ok : TierStatus::Miss);
  }
  DiskWorld more(world.io.disk(), world_options(9));
  more.open();
  EXPECT_EQ(more.index->records(), world.index->records());
  for (int key = 40; key < 60; ++key) EXPECT_EQ(more.wait(more.put(key)), TierStatus::Ok);
  EXPECT(more.here(39));
}

}  // namespace
}  // namespace hkv
