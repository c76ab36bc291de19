// SPDX-License-Identifier: Apache-2.0
// A kernel without its barrier, which ThreadSanitizer must report where the harness itself looks away: proof that it
// sees the threads of a kernel.
#define HKV_SIMT_WITHOUT_STAMPS
#include <cstdio>

#include "simt/device.h"

int main() {
  using namespace hkv;
  const simt::Report report = simt::launch(1, 64, [] {
    HKV_SHARED(std::uint32_t, values, 64);
    values[simt::thread()] = simt::thread();
    values[63 - simt::thread()] = values[simt::thread()] + 1;  // of another thread, no barrier between
  });
  std::printf("%d\n", static_cast<int>(report.fault));
}
