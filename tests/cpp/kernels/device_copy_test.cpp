// SPDX-License-Identifier: Apache-2.0
// Device gather, scatter and fingerprint under the harness against the CPU's: equal bytes, equal codes, no fault.
#include "simt/device_calls.h"
#include "simt/registered_world.h"
#include "testing.h"

using namespace hkv;
using namespace hkv::testing;
using simt::Fault;

namespace {

constexpr std::int64_t units[] = {1, 2, 4, 8, 8, 16, 16};
constexpr int worlds = 60;

unsigned blocks_of(int number) { return number % 2 == 0 ? 1u << 20 : 1u + static_cast<unsigned>(number) % 3; }

void expect_sound(const simt::Report& report, int number) {
  EXPECT_EQ(report.what, std::string());
  if (report.fault != Fault::None) std::fprintf(stderr, "world %d\n", number);
}

// One world on both sides, from the same bytes.
void compare(DeviceDirection direction, int number) {
  Random random(static_cast<std::uint64_t>(number) + 1000);
  const bool scatters = direction == DeviceDirection::Scatter;
  const World world = random_world(random, units[number % 7], scatters);
  Memory host(world, 5), device(world, 5);
  const PagedCopy on_host = host.copy(world), on_device = device.copy(world);
  scatters ? scatter(&on_host, 1, 1) : gather(&on_host, 1, 1);
  const simt::RegisteredWorld registered(world, device, scatters, !scatters);
  const simt::Options options{simt::orders[number % 3], static_cast<std::uint64_t>(number), {}};
  expect_sound(simt::run_copy(direction, &on_device, 1, options, blocks_of(number)), number);
  EXPECT(host == device);
  if (!(host == device)) std::fprintf(stderr, "world %d differs\n", number);
}

}  // namespace

HKV_TEST("gather gives the CPU's bytes and codes in random worlds") {
  for (int number = 0; number < worlds; ++number) compare(DeviceDirection::Gather, number);
}

HKV_TEST("scatter gives the CPU's bytes and codes in random worlds, padding untouched") {
  for (int number = 0; number < worlds; ++number) compare(DeviceDirection::Scatter, number);
}

HKV_TEST("fingerprints are the CPU's in random worlds") {
  for (int number = 0; number < worlds; ++number) {
    Random random(static_cast<std::uint64_t>(number) + 2000);
    World world = random_world(random, number % 2 == 0 ? 8 : 16, false);
    world.by_row = false;
    if (number % 5 == 0) {  // in one piece, of any length
      world.page = {1, between(random, 1, 5000), 0, 0, 0};
      world.page.row_stride = world.page.footer_offset = world.page.row_bytes;
      world.page_stride = (world.page.row_bytes + 7) / 8 * 8;
    }
    Memory host(world, 5), device(world, 5);
    const FingerprintGroup on_host = host.fingerprint(world), on_device = device.fingerprint(world);
    fingerprint(&on_host, 1, 1);
    const simt::RegisteredWorld registered(world, device, false, false);
    const simt::Options options{simt::orders[number % 3], static_cast<std::uint64_t>(number), {}};
    expect_sound(simt::run_fingerprint(&on_device, 1, options, blocks_of(number)), number);
    EXPECT(host.fingerprints == device.fingerprints);
  }
}

HKV_TEST("several groups go in one launch, and more than fit in several") {
  Random random(7);
  std::vector<World> made;
  for (int number = 0; number < 11; ++number) made.push_back(random_world(random, units[number % 7], true));
  std::vector<std::unique_ptr<Memory>> host, device;
  std::vector<std::unique_ptr<simt::RegisteredWorld>> registered;
  std::vector<PagedCopy> on_host, on_device;
  for (const World& world : made) {
    host.push_back(std::make_unique<Memory>(world, 5));
    device.push_back(std::make_unique<Memory>(world, 5));
    registered.push_back(std::make_unique<simt::RegisteredWorld>(world, *device.back(), true, true));
    on_host.push_back(host.back()->copy(world));
    on_device.push_back(device.back()->copy(world));
  }
  int launches = 0;
  plan_launches(on_device.data(), 8, [&](const CopyLaunch&, LaunchSize) { ++launches; });
  EXPECT_EQ(launches, 1);
  for (const DeviceDirection direction : {DeviceDirection::Gather, DeviceDirection::Scatter}) {
    direction == DeviceDirection::Gather ? gather(on_host.data(), 11, 1) : scatter(on_host.data(), 11, 1);
    expect_sound(simt::run_copy(direction, on_device.data(), 11), 0);
    for (std::size_t k = 0; k < made.size(); ++k) EXPECT(*host[k] == *device[k]);
  }
}

HKV_TEST("an id out of range is told and touches nothing") {
  World world;
  world.page = {2, 32, 32, 0, 64};
  world.page_stride = 64;
  world.unit = 16;
  world.pages = 3;
  world.ids = {0, 3, -2, 2, 1 << 30};
  world.rows = {0, 0, 0, 2, -1};
  world.count = 5;
  world.wide = true;
  for (const bool by_row : {false, true}) {
    world.by_row = by_row;
    Memory memory(world, 5), before(world, 5);
    const PagedCopy copy = memory.copy(world);
    const simt::RegisteredWorld registered(world, memory, false, true);
    expect_sound(simt::run_copy(DeviceDirection::Gather, &copy, 1), 0);
    const std::vector<std::int32_t> whole{0, 4, 4, 0, 4}, rows{0, 4, 4, 4, 3};
    EXPECT(memory.status == (by_row ? rows : whole));
    EXPECT(std::all_of(memory.buffer.data() + world.piece_bytes(),
                       memory.buffer.data() + 2 * world.piece_bytes(),
                       [](std::byte byte) { return byte == std::byte{0}; }));
    const simt::RegisteredWorld writable(world, memory, true, false);
    expect_sound(simt::run_copy(DeviceDirection::Scatter, &copy, 1), 0);
    EXPECT(memory.pools[0] == before.pools[0]);
  }
}

HKV_TEST("a page handed out during the copy is changed, and none of its bytes get out") {
  for (const std::int64_t row_bytes : {64, 4096}) {  // a warp's, a block's
    World world;
    world.page = {1, row_bytes, row_bytes, 0, row_bytes};
    world.page_stride = row_bytes;
    world.unit = 16;
    world.pages = world.count = 3;
    world.layers = 2;
    world.ids = {0, 1, 2};
    world.wide = world.verified = true;
    int changed = 0;
    for (std::uint64_t when = 0; when < 1600; when += 13) {
      world.handouts = world.expected = {1, 1, 1};
      Memory memory(world, 5);
      const PagedCopy copy = memory.copy(world);
      const simt::RegisteredWorld registered(world, memory, false, true);
      simt::Options options;
      options.before_load = [&](std::uint64_t load) {
        if (load != when) return;
        world.handouts[1] = 2;  // the new owner writes after it
        std::fill_n(memory.pools[0].data() + row_bytes, row_bytes, std::byte{0xee});
        std::fill_n(memory.pools[1].data() + row_bytes, row_bytes, std::byte{0xee});
      };
      expect_sound(simt::run_copy(DeviceDirection::Gather, &copy, 1, options), 0);
      const bool told = memory.status[1] == 1 || memory.status[1] == 2;
      changed += memory.status[1] == 2;
      for (int layer = 0; layer < 2; ++layer) {
        const std::byte* out = memory.buffer.data() + (layer * 3 + 1) * row_bytes;
        const std::byte wanted = told ? std::byte{0} : out[0];
        EXPECT(!told || std::count(out, out + row_bytes, wanted) == row_bytes);
        EXPECT(std::count(out, out + row_bytes, std::byte{0xee}) < row_bytes / 2);
      }
    }
    EXPECT(changed > 0);
  }
}

HKV_TEST("an aligned page moves by 16 bytes, and each byte of it once") {
  World world;
  world.page = {64, 576, 576, 8, 64 * 576};
  world.page_stride = 37376;
  world.unit = 16;
  world.pages = world.count = 2;
  world.ids = {1, 0};
  world.wide = true;
  Memory memory(world, 5);
  const PagedCopy copy = memory.copy(world);
  const simt::RegisteredWorld registered(world, memory, false, true);
  const simt::Report report = simt::run_copy(DeviceDirection::Gather, &copy, 1);
  EXPECT_EQ(report.wide_loads * 16, std::uint64_t{2 * 37376});
  EXPECT_EQ(report.stored_bytes, std::uint64_t{2 * 37376 + 2 * 4});
}
