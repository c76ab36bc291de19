// SPDX-License-Identifier: Apache-2.0
// A small hybrid cache whose pools lie on devices of a stand-in driver, which copies when the test says so.
//
// Thread safety: one thread.
#pragma once
#include <array>
#include <string>

#include "cache/transfer_world.h"
#include "fake_cuda/copy_device.h"
#include "testing.h"

namespace hkv::device_pools {

using fake_cuda::copy_device;
using fake_cuda::CopyDevice;
using transfer_world::hybrid;
using transfer_world::World;

template <class To, class From>
void take(To& to, From* from) {
  to = reinterpret_cast<To>(from);
}

inline const CudaLibrary& stand_in() {
  static CudaApi api;
  static const CudaLibrary library = [] {
    take(api.error_string, &cuGetErrorString);
    take(api.device, &cuDeviceGet);
    take(api.retain_primary, &cuDevicePrimaryCtxRetain);
    take(api.push_current, &cuCtxPushCurrent_v2);
    take(api.pop_current, &cuCtxPopCurrent_v2);
    take(api.exchange_capture_mode, &cuThreadExchangeStreamCaptureMode);
    take(api.pointer_attribute, &cuPointerGetAttribute);
    take(api.host_alloc, &cuMemHostAlloc);
    take(api.host_free, &cuMemFreeHost);
    take(api.stream_create, &cuStreamCreate);
    take(api.stream_destroy, &cuStreamDestroy_v2);
    take(api.event_create, &cuEventCreate);
    take(api.event_record, &cuEventRecord);
    take(api.event_query, &cuEventQuery);
    take(api.event_destroy, &cuEventDestroy_v2);
    take(api.to_host, &cuMemcpyDtoHAsync_v2);
    take(api.to_device, &cuMemcpyHtoDAsync_v2);
    CudaLibrary made;
    made.api = &api;
    made.devices = 2;
    return made;
  }();
  return library;
}

// Around a world: the driver as new before, and left as it must be after.
struct Machine {
  explicit Machine(bool loses = false) : loses(loses) {
    CopyDevice& device = copy_device();
    fake_cuda::devices = 2;
    device.by_itself = 0;
    device.lost = device.no_memory = false;
    device.refuse_copy_in = device.misuses = device.copies = 0;
    device.most_waiting = device.bytes_copied = 0;
  }
  ~Machine() {
    EXPECT_EQ(copy_device().misuses, 0);
    EXPECT(fake_cuda::context_stack.empty());  // the asking thread has the context and the mode that it had
    EXPECT_EQ(fake_cuda::capture_mode, 0);
    EXPECT(copy_device().streams.empty());
    EXPECT(loses == (copy_device().locked_bytes() != 0));  // what a lost device may touch stays
    EXPECT(loses || copy_device().events.empty());
    copy_device().end();
  }
  bool loses;
};

constexpr std::size_t place = 4096;  // what a record of these worlds takes of the host memory

inline TierLink link_of(std::size_t places) {
  TierLink link;
  link.cuda = &stand_in();
  link.staging_bytes = places * place;
  return link;
}

// A world whose groups of `devices` lie there, -1 on the host.
class DeviceWorld : public World {
 public:
  explicit DeviceWorld(std::size_t places = 64, std::array<int, 4> devices = {0, 0, 0, 0},
                       std::int64_t pages = 16)
      : World(hybrid(pages), link_of(places)) {
    for (int g = 0; g < 4; ++g) {
      if (devices[static_cast<std::size_t>(g)] >= 0) move(g, devices[static_cast<std::size_t>(g)]);
    }
  }
  // What a failed test left on its way ends here, or its cache would wait for ever.
  ~DeviceWorld() {
    for (int i = 0; i < 100 && cache.transfers().live() != 0; ++i) {
      copy_device().run();
      tier.end_all();
      cache.transfers().poll();
    }
  }
  void move(int g, int device) {
    const auto at = static_cast<std::size_t>(g);
    const std::uint64_t there = copy_device().allocate(pools[at].size(), device);
    cache.bind(g, {{there, 64, 64, 0}}, false);
    bases[at] = reinterpret_cast<std::uint8_t*>(copy_device().seen(there));
  }
  // Lets everything that can move do so, as often as it takes.
  void settle_all(const Transfer& transfer) {
    for (int i = 0; i < 100 && !state(transfer).finished; ++i) {
      copy_device().run();
      cache.transfers().poll();
      tier.end_all();
      cache.transfers().poll();
    }
    EXPECT(state(transfer).finished);
  }
  TransferState state(const Transfer& transfer) { return cache.transfers().state_of(transfer); }
  std::shared_ptr<Transfer> offload(const std::shared_ptr<const KeyChain>& keys,
                                    const TransferOptions& options = {}) {
    const std::int64_t whole = keys->tokens() / transfer_world::unit * transfer_world::unit;
    return cache.transfers().offload(keys, std::array<std::int64_t, 1>{whole}, options);
  }
  // 16 tokens are in the tier alone; the keys of one token more.
  std::shared_ptr<const KeyChain> in_tier() {
    const auto whole = keys(16);
    write(whole);
    settle_all(*offload(whole));
    forget(*whole);
    return keys(17);
  }
  void expect_reusable(const std::shared_ptr<const KeyChain>& keys, std::int64_t tokens) {
    std::unique_ptr<Lease> lease;
    EXPECT_EQ(match(keys, lease).usable_tokens, tokens);
    if (lease != nullptr) expect_bytes(*keys, *lease);
    let_go(lease);
  }
  std::int64_t counted(Count what) { return cache.counters().read(what); }
};

}  // namespace hkv::device_pools
