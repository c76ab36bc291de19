// SPDX-License-Identifier: Apache-2.0
// The disk store step by step over a simulated disk, without faults and with the ones that an option or a file makes.
#include "testing.h"
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

}  // namespace
}  // namespace hkv
