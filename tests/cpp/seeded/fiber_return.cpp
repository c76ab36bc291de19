// SPDX-License-Identifier: Apache-2.0
// A kernel that reads a local of a function that has returned, in fibers that were started before: AddressSanitizer must
// report it, or what it puts locals on did not come along from start to start.
#include <cstdio>

#include "simt/machine.h"

namespace {

const int* volatile left_behind;

[[gnu::noinline]] void leave_behind() {
  int local[16] = {};
  left_behind = local;
  asm volatile("" : : "r"(local) : "memory");
}

}  // namespace

int main() {
  using namespace hkv;
  for (int start = 0; start < 600; ++start) {
    static_cast<void>(simt::launch(1, 2, [&] {
      leave_behind();
      if (start == 599) std::printf("%d\n", left_behind[3]);
    }));
  }
  std::printf("went on\n");
}
