// SPDX-License-Identifier: Apache-2.0
// Offload and restore of pools that lie on devices, over a stand-in driver whose every copy the test lets go: what is
// read, written, published and given back when. Part of cache.transfers_test.
//
// Thread safety: one thread.
#pragma once
#include <array>
#include <string>
#include <thread>

#include "cache/device_pool_world.h"

namespace hkv::device_pools {

HKV_TEST(
    "pages of device pools go to the tier and come back through host memory, every byte, and no sooner") {
  const Machine machine;
  DeviceWorld w;
  const auto keys = w.keys(16);
  w.write(keys);
  auto out = w.offload(keys);
  w.cache.transfers().poll();
  EXPECT_EQ(w.tier.waiting.size(), 0u);  // nothing is there yet to be stored
  EXPECT_EQ(w.phase(*keys, 0, 0), Phase::Offloading);
  EXPECT_EQ(w.look(keys).usable_tokens, 16);
  copy_device().run();
  w.cache.transfers().poll();
  EXPECT_EQ(w.tier.waiting.size(), 5u);
  EXPECT_EQ(w.evict(*keys), 4);  // states that the boundary does not need; pins hold the rest
  w.tier.end_all();
  EXPECT_EQ(w.cache.transfers().poll(), 5);
  EXPECT_EQ(w.state(*out).status, TierStatus::Ok);
  w.forget(*keys);
  w.expect_idle();
  auto back = w.restore(keys, 16);
  EXPECT_EQ(w.tier.waiting.size(), 5u);
  w.tier.end_all();
  EXPECT_EQ(w.cache.transfers().poll(), 0);  // verified, and not in its pages
  EXPECT_EQ(w.phase(*keys, 0, 0), Phase::Restoring);
  EXPECT_EQ(w.look(keys).usable_tokens, 0);
  copy_device().run();
  EXPECT_EQ(w.cache.transfers().poll(), 5);
  EXPECT_EQ(w.state(*back).status, TierStatus::Ok);
  w.expect_reusable(keys, 16);
  const std::int64_t bytes = 64 * (4 * 2 + 2 + 1);
  EXPECT_EQ(w.counted(kStagedToHost), bytes);
  EXPECT_EQ(w.counted(kStagedToDevice), bytes);
  EXPECT_EQ(w.counted(kCopyFailures), 0);
  w.expect_idle();
}

HKV_TEST("each record is published when its own copy is over, in the order of the stream") {
  const Machine machine;
  DeviceWorld w;
  const auto keys = w.in_tier();
  auto back = w.restore(keys, 16);
  w.tier.end_all();
  w.cache.transfers().poll();
  copy_device().run(3);  // two pages of the first block, and the event behind them
  EXPECT_EQ(w.cache.transfers().poll(), 1);
  EXPECT_EQ(w.phase(*keys, 0, 0), Phase::ReadyCopy);
  EXPECT_EQ(w.phase(*keys, 0, 1), Phase::Restoring);
  copy_device().run(2);  // the pages of the second, not its event
  EXPECT_EQ(w.cache.transfers().poll(), 0);
  EXPECT_EQ(w.phase(*keys, 0, 1), Phase::Restoring);
  w.settle_all(*back);
  w.expect_reusable(keys, 16);
}

HKV_TEST(
    "of groups on the host and on two devices only those on devices are copied, and a record waits for "
    "both") {
  const Machine machine;
  DeviceWorld w(64, {0, 1, -1, -1});
  const auto keys = w.keys(16);
  w.write(keys);
  auto out = w.offload(keys);
  EXPECT_EQ(copy_device().streams.size(), 2u);
  copy_device().run(~std::size_t{0}, copy_device().streams[1].get());
  w.cache.transfers().poll();
  EXPECT_EQ(w.tier.waiting.size(), 0u);
  w.settle_all(*out);
  EXPECT_EQ(w.counted(kStagedToHost), 64 * 4 * 2);
  w.forget(*keys);
  auto back = w.restore(keys, 16);
  w.tier.end_all();
  EXPECT_EQ(w.cache.transfers().poll(), 1);  // the boundary lies on the host
  EXPECT_EQ(copy_device().streams.size(), 4u);
  copy_device().run(~std::size_t{0}, copy_device().streams[3].get());
  EXPECT_EQ(w.cache.transfers().poll(), 0);
  w.settle_all(*back);
  EXPECT_EQ(w.counted(kStagedToDevice), 64 * 4 * 2);
  w.expect_reusable(keys, 16);
  w.expect_idle();
}

HKV_TEST("what is dropped while it is copied keeps its pages and its place until the copy is over") {
  const Machine machine;
  DeviceWorld w(5);
  const auto keys = w.keys(8), other = w.keys(8, 100);
  w.write(keys);
  w.write(other);
  auto out = w.offload(keys);  // two blocks and a boundary: as much as stores may have
  w.cache.transfers().cancel(*out);
  w.cache.transfers().poll();
  EXPECT(!w.state(*out).finished);
  EXPECT_EQ(w.phase(*keys, 0, 1), Phase::Offloading);
  EXPECT_EQ(w.evict(*keys), 0);
  auto next = w.offload(other);
  EXPECT_EQ(copy_device().copies, 3 * 2);  // of the boundary two pages lie side by side; the other waits
  copy_device().run();
  w.cache.transfers().poll();
  EXPECT(w.state(*out).finished);
  EXPECT_EQ(w.state(*out).status, TierStatus::Cancelled);
  EXPECT_EQ(w.evict(*keys), 8);
  w.settle_all(*next);
  EXPECT_EQ(w.state(*next).status, TierStatus::Ok);
  EXPECT_EQ(w.tier.count(RecordKind::Block), 2u);
  w.expect_idle();
}

HKV_TEST("a place is not another record's before its copy is over") {
  const Machine machine;
  DeviceWorld w(1);
  const auto keys = w.in_tier();  // one record after another already on the way out
  EXPECT_EQ(w.tier.count(RecordKind::Block), 4u);
  EXPECT(copy_device().locked_bytes() <= place);
  auto back = w.restore(keys, 16);
  EXPECT_EQ(w.tier.waiting.size(), 1u);
  w.tier.end_all();
  w.cache.transfers().poll();
  EXPECT_EQ(w.tier.waiting.size(), 0u);  // the only place is on its way to the device
  w.settle_all(*back);
  EXPECT_EQ(w.state(*back).status, TierStatus::Ok);
  w.expect_reusable(keys, 16);
  w.expect_idle();
}

HKV_TEST("a copy that the driver refuses ends the transfer, and nothing is lost or published") {
  for (const bool out : {true, false}) {
    const Machine machine;
    DeviceWorld w;
    const auto keys = out ? w.keys(17) : w.in_tier();
    if (out) w.write(w.keys(16));
    copy_device().refuse_copy_in = 4;  // of the second record; those that follow it go
    auto failed = out ? w.offload(keys) : w.restore(keys, 16);
    w.settle_all(*failed);
    const TransferState state = w.state(*failed);
    EXPECT_EQ(state.status, TierStatus::Unavailable);
    EXPECT_EQ(state.device_error, std::string(out ? "cuMemcpyDtoHAsync: invalid argument"
                                                  : "cuMemcpyHtoDAsync: invalid argument"));
    EXPECT_EQ(state.failed_block, 1);
    EXPECT_EQ(w.counted(kCopyFailures), 1);
    w.expect_idle();
    EXPECT_EQ(w.look(keys).outcome == Outcome::Reusable, out);
    if (!out) EXPECT_EQ(w.look(keys).remedy, Remedy::Restore);  // the tier's record is as good as before
    auto again = out ? w.offload(keys) : w.restore(keys, 16);
    w.settle_all(*again);
    EXPECT_EQ(w.state(*again).status, TierStatus::Ok);
    w.expect_reusable(keys, 16);
    w.expect_idle();
  }
}

HKV_TEST("a lost device ends offloads with its error, and the pages are the cache's again") {
  const Machine machine(true);
  DeviceWorld w;
  const auto keys = w.keys(16);
  w.write(keys);
  auto out = w.offload(keys);
  copy_device().lost = true;
  w.cache.transfers().poll();
  EXPECT(w.state(*out).finished);
  EXPECT_EQ(w.state(*out).status, TierStatus::Unavailable);
  EXPECT_EQ(w.state(*out).device_error,
            std::string("cuEventQuery: an illegal memory access was encountered"));
  EXPECT_EQ(w.tier.stored.size(), 0u);
  w.expect_idle();
  auto next = w.offload(keys);  // nobody waits for it any more
  w.cache.transfers().poll();
  EXPECT(w.state(*next).finished);
  EXPECT_EQ(w.state(*next).status, TierStatus::Unavailable);
  w.expect_idle();
}

HKV_TEST("pages that a lost device may still write are not handed out, nor is the memory that it may read") {
  const Machine machine(true);
  DeviceWorld w(2);
  const auto keys = w.in_tier();
  auto back = w.restore(keys, 16);
  w.tier.end_all();
  w.cache.transfers().poll();  // two records land
  copy_device().lost = true;
  w.cache.transfers().poll();
  EXPECT(w.state(*back).finished);
  EXPECT_EQ(w.state(*back).status, TierStatus::Unavailable);
  EXPECT_EQ(w.cache.quarantined_pages(0), 2);
  EXPECT_EQ(w.cache.quarantined_pages(1), 2);
  EXPECT_EQ(w.look(keys).usable_tokens, 0);
  EXPECT_EQ(w.look(keys).remedy, Remedy::Restore);  // another process with this tier can
  auto next = w.restore(keys, 16);                  // no memory is left that anybody will give back
  EXPECT(w.state(*next).finished);
  EXPECT_EQ(w.state(*next).status, TierStatus::Unavailable);
  EXPECT_EQ(w.cache.quarantined_pages(0), 2);
}

HKV_TEST(
    "a tier that keeps places past the deadline makes others fail and not wait, and gives them back at "
    "last") {
  const Machine machine;
  DeviceWorld w(2);
  const auto keys = w.in_tier();
  TransferOptions options;
  options.timeout = std::chrono::milliseconds(1);
  auto late = w.cache.transfers().restore(keys, 16, options, nullptr);
  EXPECT_EQ(w.tier.waiting.size(), 2u);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  w.cache.transfers().poll();
  EXPECT_EQ(w.state(*late).status, TierStatus::Timeout);
  auto next = w.restore(keys, 16);
  EXPECT(w.state(*next).finished);
  EXPECT_EQ(w.state(*next).status, TierStatus::Unavailable);
  EXPECT_EQ(w.state(*next).device_error, std::string());
  w.tier.end_all();
  w.cache.transfers().poll();
  EXPECT(w.state(*late).finished);
  EXPECT_EQ(copy_device().copies, 5 * 2);  // those of the offload: what came late goes nowhere
  auto again = w.restore(keys, 16);
  w.settle_all(*again);
  w.expect_reusable(keys, 16);
  w.expect_idle();
}

HKV_TEST("stores leave a quarter of the memory to loads that somebody waits for") {
  const Machine machine;
  DeviceWorld w(4);
  const auto keys = w.in_tier();
  const auto other = w.keys(32, 1000);
  w.write(w.keys(8, 1000));
  auto out = w.offload(w.keys(8, 1000));
  w.write(w.keys(8, 2000));
  auto more = w.offload(w.keys(8, 2000));
  auto back = w.restore(keys, 16);
  EXPECT_EQ(w.tier.waiting.size(), 1u);
  w.settle_all(*back);
  w.settle_all(*out);
  w.settle_all(*more);
  EXPECT_EQ(w.state(*more).status, TierStatus::Ok);
  w.expect_reusable(keys, 16);
  w.expect_idle();
}

HKV_TEST("a record that is larger than the memory gets memory of its own size, once") {
  const Machine machine;
  std::vector<Group> groups = hybrid(16);
  groups.resize(1);
  groups[0].page_bytes = 3 * static_cast<std::int64_t>(place);
  World w(groups, link_of(1));
  const std::uint64_t there = copy_device().allocate(w.pools[0].size(), 0);
  w.cache.bind(0, {{there, groups[0].page_bytes, groups[0].page_bytes, 0}}, false);
  const auto keys = w.keys(12);
  std::memset(copy_device().seen(there), 0x5A, w.pools[0].size());
  auto fill =
      w.cache.reserve(keys, std::vector<Selection>(1, Selection{true, {}}), w.cache.spec_formats(), nullptr);
  w.cache.publish(*fill, std::vector<Selection>(1, Selection{true, {}}));
  w.cache.abort(*fill, false);
  auto out = w.cache.transfers().offload(keys, {}, {});
  for (int i = 0; i < 10; ++i) {
    copy_device().run();
    w.cache.transfers().poll();
    w.tier.end_all();
  }
  EXPECT_EQ(w.cache.transfers().state_of(*out).status, TierStatus::Ok);
  EXPECT_EQ(w.cache.transfers().state_of(*out).ok, 3);
  EXPECT_EQ(copy_device().locked_bytes(), 4 * place);
  for (const auto& [name, record] : w.tier.stored) EXPECT_EQ(record.payload[5], std::byte{0x5A});
}

HKV_TEST("without page-locked memory a transfer fails with what the driver said") {
  const Machine machine;
  copy_device().no_memory = true;
  DeviceWorld w;
  const auto keys = w.keys(16);
  w.write(keys);
  auto out = w.offload(keys);
  EXPECT(w.state(*out).finished);
  EXPECT_EQ(w.state(*out).status, TierStatus::Unavailable);
  EXPECT_EQ(w.state(*out).device_error, std::string("cuMemHostAlloc: out of memory"));
  w.expect_idle();
  copy_device().no_memory = false;
  w.settle_all(*w.offload(keys));
  EXPECT_EQ(w.tier.count(RecordKind::Block), 4u);
}

HKV_TEST("a gated offload reads nothing before it is opened, and can be cancelled") {
  for (const int device : {-1, 0}) {
    const Machine machine;
    DeviceWorld w(64, {device, device, device, device});
    const auto keys = w.keys(16);
    w.write(keys);
    TransferOptions options;
    options.gated = true;
    auto dropped = w.offload(keys, options);
    w.cache.transfers().cancel(*dropped);
    EXPECT(w.state(*dropped).finished);
    w.expect_idle();
    auto out = w.offload(keys, options);
    copy_device().run();
    w.cache.transfers().poll();
    EXPECT_EQ(copy_device().copies, 0);
    EXPECT_EQ(w.tier.waiting.size(), 0u);
    EXPECT_EQ(w.phase(*keys, 0, 0), Phase::Offloading);
    w.cache.transfers().open(*out);
    w.settle_all(*out);
    EXPECT_EQ(w.state(*out).status, TierStatus::Ok);
    w.expect_idle();
  }
}

HKV_TEST("pools that can be neither read nor copied are refused by name") {
  const auto refusal = [](DeviceWorld& w) -> std::string {
    const auto keys = w.keys(16);
    w.write(keys);
    try {
      w.offload(keys);
    } catch (const Error& error) {
      w.expect_idle();
      EXPECT_EQ(error.code, ErrorCode::ArgumentError);
      return error.field + ": " + error.got;
    }
    return "";
  };
  alignas(64) static std::byte memory[3][16 * 64];
  const auto bound_to = [](DeviceWorld& w, std::byte* start) {
    w.cache.bind(1, {{reinterpret_cast<std::uint64_t>(start), 64, 64, 0}}, false);
    w.bases[1] = reinterpret_cast<std::uint8_t*>(start);
  };
  const Machine machine;
  copy_device().add(memory[0], sizeof memory[0], CopyDevice::Kind::Managed, 0);
  copy_device().add(memory[1], sizeof memory[1], CopyDevice::Kind::Host, 0);
  const std::array<std::string, 3> got = {"managed memory, which lies on no device for good",
                                          "memory of the host",
                                          "memory that the CUDA driver does not know (invalid argument)"};
  for (std::size_t i = 0; i < got.size(); ++i) {
    DeviceWorld w;
    bound_to(w, memory[i]);
    EXPECT_EQ(refusal(w), "pools[idx]: " + got[i]);
    w.move(1, 0);  // bound anew to what can be copied
    EXPECT_EQ(refusal(w), std::string());
    w.settle_all(*w.offload(w.keys(16)));
    w.evict(*w.keys(16));
    w.move(1, 1);  // and to another device
    w.write(w.keys(16, 500));
    w.settle_all(*w.offload(w.keys(16, 500)));
    w.expect_reusable(w.keys(17, 500), 16);
  }
  static CudaLibrary none;
  none.reason = "no NVIDIA driver: it is elsewhere";
  TierLink link;
  link.cuda = &none;
  World w(hybrid(16), link);
  w.cache.bind(0, {{1 << 20, 64, 64, 0}}, false);
  try {
    w.restore(w.keys(16), 16);
    EXPECT(false);
  } catch (const Error& error) {
    EXPECT_EQ(error.field, std::string("pools[kv]"));
    EXPECT_EQ(error.got, "device memory, and CUDA is not available: " + none.reason);
  }
}

HKV_TEST("who waits is woken by a copy, and by a tier, whichever comes first") {
  const Machine machine;
  DeviceWorld w;
  const auto keys = w.keys(16);
  w.write(keys);
  auto out = w.offload(keys);
  const auto long_time = std::chrono::seconds(60);
  copy_device().by_itself = 1;
  w.cache.transfers().wait(long_time);
  EXPECT(w.cache.transfers().poll() == 0);
  EXPECT(w.tier.waiting.size() >= 1u);
  w.tier.end_one();
  w.cache.transfers().wait(long_time);
  w.settle_all(*out);
  copy_device().by_itself = 0;
  w.cache.transfers().wait(std::chrono::milliseconds(1));  // nothing is under way: the time is over
}

HKV_TEST("a lane has no more with the driver than its queue takes, and copies every run in order") {
  const Machine machine;
  DeviceCopies copies(*stand_in().api);
  constexpr std::size_t runs = 1500, bytes = 24;
  const std::uint64_t there = copy_device().allocate(runs * bytes, 1);
  std::string error;
  std::byte* const here = copies.take_memory(1, runs * bytes, error);
  std::vector<CopyRun> list;
  for (std::size_t i = 0; i < runs; ++i) {
    std::memset(here + i * bytes, static_cast<int>(i * 7), bytes);
    list.push_back({there + (runs - 1 - i) * bytes, here + i * bytes, bytes, 1});
  }
  const auto copy = copies.begin(CopyWay::ToDevice, list);
  const auto none = copies.begin(CopyWay::ToDevice, {});
  EXPECT_EQ(none->state(), DeviceCopy::State::Done);
  const std::size_t events = DeviceCopies::most_runs_moving / DeviceCopies::most_runs_of_piece;
  int rounds = 0;
  for (; copy->state() == DeviceCopy::State::Moving && rounds < 100; ++rounds) {
    copy_device().run(200);
    copies.poll();
  }
  EXPECT_EQ(copy->state(), DeviceCopy::State::Done);
  EXPECT(copy_device().most_waiting <= DeviceCopies::most_runs_moving + events);
  EXPECT(copy_device().events.size() <= events);
  for (std::size_t i = 0; i < runs; ++i)
    EXPECT_EQ(copy_device().seen(there)[(runs - 1 - i) * bytes + 3], static_cast<std::byte>(i * 7));
  const auto refused = [&] {
    copy_device().refuse_copy_in = 130;  // in the second piece: the third is not even begun
    return copies.begin(CopyWay::ToHost, list);
  }();
  EXPECT_EQ(refused->state(), DeviceCopy::State::Moving);
  EXPECT_EQ(copy_device().streams[1]->waiting.size(), 129u + 2);
  copy_device().run();
  copies.poll();
  EXPECT_EQ(refused->state(), DeviceCopy::State::Failed);
}

}  // namespace hkv::device_pools
