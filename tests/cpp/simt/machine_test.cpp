// SPDX-License-Identifier: Apache-2.0
// The harness finds what it is there to find, in every order of threads, and is silent about sound kernels.
#include "simt/device.h"
#include "testing.h"

using namespace hkv;
using simt::Fault;

namespace {

constexpr simt::Order orders[] = {simt::Order::Forward, simt::Order::Reverse, simt::Order::Random};

// Runs a kernel of two blocks of 64 threads in each order.
template <class Kernel>
void expect_fault(Fault fault, Kernel kernel) {
  for (const simt::Order order : orders) {
    const simt::Report report = simt::launch(2, 64, kernel, {order, 9, {}});
    EXPECT_EQ(report.fault, fault);
    EXPECT_EQ(report.what.empty(), fault == Fault::None);
  }
}

std::vector<std::uint32_t> items(1024);

}  // namespace

HKV_TEST("a sound reduction gives the sum and no fault") {
  std::vector<std::uint32_t> sums(2);
  const simt::Registered registered(sums);
  expect_fault(Fault::None, [&] {
    HKV_SHARED(std::uint32_t, parts, 2);
    std::uint32_t sum = simt::thread();
    for (unsigned mask = 16; mask != 0; mask /= 2) sum += simt::shuffle_xor(sum, mask);
    if (simt::lane() == 0) parts[simt::thread() / 32] = sum;
    simt::barrier();
    if (simt::thread() == 0) simt::store(&sums[simt::block()], parts[0] + parts[1]);
  });
  EXPECT_EQ(sums[0], 63u * 64 / 2);
  EXPECT_EQ(sums[1], sums[0]);
}

HKV_TEST("memory that is not registered, or read only, is out of bounds") {
  const std::vector<std::uint32_t> read_only(64);
  const simt::Registered registered(items.data(), 64 * sizeof(items[0]));
  const simt::Registered input(read_only);
  expect_fault(Fault::OutOfBounds, [] { simt::load(&items[simt::thread() + 1]); });
  expect_fault(Fault::OutOfBounds, [&] { simt::store(const_cast<std::uint32_t*>(read_only.data()), 1u); });
  expect_fault(Fault::None, [] { simt::load(&items[simt::thread()]); });
}

HKV_TEST("a load that is not aligned to its width is told") {
  const simt::Registered registered(items);
  expect_fault(Fault::Misaligned, [] { simt::load(reinterpret_cast<const std::uint64_t*>(&items[1])); });
}

HKV_TEST("threads of a block race unless a barrier lies between, at any order") {
  const auto swap_halves = [](bool with_barrier) {
    return [with_barrier] {
      HKV_SHARED(std::uint32_t, values, 64);
      values[simt::thread()] = simt::thread();
      if (with_barrier) simt::barrier();
      static_cast<void>(static_cast<std::uint32_t>(values[simt::thread()]));
      if (with_barrier) simt::barrier();
      values[63 - simt::thread()] = 1;
    };
  };
  expect_fault(Fault::Race, swap_halves(false));
  expect_fault(Fault::None, swap_halves(true));
}

HKV_TEST("a write after another thread's read of the same round is a race") {
  expect_fault(Fault::Race, [] {
    HKV_SHARED(std::uint32_t, value, 1);
    if (simt::thread() == 0) value[0] = 1;
    simt::barrier();
    static_cast<void>(static_cast<std::uint32_t>(value[0]));
    if (simt::thread() == 0) value[0] = 2;
  });
}

HKV_TEST("a warp's barrier orders its lanes and nobody else; a shuffle orders nothing") {
  const auto neighbour = [](int how, unsigned distance) {
    return [how, distance] {
      HKV_SHARED(std::uint32_t, values, 64);
      values[simt::thread()] = 1;
      if (how == 1) simt::warp_barrier();
      if (how == 2) simt::shuffle(1, 0);
      static_cast<void>(static_cast<std::uint32_t>(values[simt::thread() ^ distance]));
    };
  };
  expect_fault(Fault::None, neighbour(1, 1));
  expect_fault(Fault::Race, neighbour(2, 1));
  expect_fault(Fault::Race, neighbour(1, 32));
}

HKV_TEST("blocks race over global memory whatever barriers they pass, but not with atomics") {
  const simt::Registered registered(items);
  items[0] = 0;
  expect_fault(Fault::Race, [] {
    if (simt::thread() == 0) simt::store(&items[0], 1u);
    simt::barrier();
  });
  items[0] = 0;
  expect_fault(Fault::None, [] { simt::atomic_add(&items[0], 1u); });
  EXPECT_EQ(items[0], 3u * 128);
}

HKV_TEST("shared memory out of bounds, or never written, is told") {
  expect_fault(Fault::SharedOutOfBounds, [] {
    HKV_SHARED(std::uint32_t, values, 64);
    values[simt::thread() + 1] = 1;
  });
  expect_fault(Fault::UnsetShared, [] {
    HKV_SHARED(std::uint32_t, values, 64);
    if (simt::thread() < 60) values[simt::thread()] = 1;
    simt::barrier();
    static_cast<void>(static_cast<std::uint32_t>(values[63 - simt::thread()]));
  });
}

HKV_TEST("a barrier that not all threads reach is told") {
  expect_fault(Fault::DivergentBarrier, [] {
    if (simt::thread() < 32) simt::barrier();
  });
  expect_fault(Fault::DivergentBarrier, [] {
    if (simt::thread() < 32) {
      simt::barrier();
    } else {
      simt::barrier();
    }
  });
}

HKV_TEST("a collective in half a warp, and a shuffle from no lane, are told") {
  expect_fault(Fault::DivergentWarp, [] {
    if (simt::lane() < 16) simt::shuffle(1, 0);
  });
  expect_fault(Fault::DivergentWarp, [] { simt::lane() < 16 ? simt::ballot(true) : simt::shuffle(1u, 0); });
  expect_fault(Fault::LaneOutside, [] { simt::shuffle(1, simt::lane() + 1); });
}

HKV_TEST("a ballot tells which lanes said yes") {
  expect_fault(Fault::None, [] { EXPECT_EQ(simt::ballot(simt::lane() % 2 == 1), 0xaaaaaaaau); });
}

HKV_TEST("an asynchronous copy lands at its wait and not before") {
  const simt::Registered registered(items);
  const auto through_shared = [](int wait, bool barrier) {
    return [wait, barrier] {
      HKV_SHARED(std::uint32_t, values, 256);
      if (!barrier) {
        for (unsigned k = 0; k < 4; ++k) values[simt::thread() * 4 + k] = 0;
        simt::barrier();
      }
      simt::copy_async(values, simt::thread() * 4, items.data() + simt::thread() * 4, 4);
      simt::copies_commit();
      if (wait == 1) simt::copies_wait(0);
      if (barrier) simt::barrier();
      static_cast<void>(static_cast<std::uint32_t>(values[252 - simt::thread() * 4]));
      if (wait == 2) simt::copies_wait(0);
    };
  };
  expect_fault(Fault::None, through_shared(1, true));
  expect_fault(Fault::UnsetShared, through_shared(2, true));
  expect_fault(Fault::Race, through_shared(1, false));
  expect_fault(Fault::CopyInFlight, [] {
    HKV_SHARED(std::uint32_t, values, 4);
    if (simt::thread() == 0) simt::copy_async(values, 0, items.data(), 4);
  });
  expect_fault(Fault::BadCopy, [] {
    HKV_SHARED(std::uint32_t, values, 4);
    simt::copy_async(values, 0, items.data(), 3);
  });
}

HKV_TEST("1024 threads of a block run") {
  const simt::Report report = simt::launch(1, 1024, [] { simt::barrier(); });
  EXPECT_EQ(report.fault, Fault::None);
}
