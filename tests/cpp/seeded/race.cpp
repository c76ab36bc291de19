// SPDX-License-Identifier: Apache-2.0
// A data race that ThreadSanitizer must report: proof that the tsan preset watches.
#include <cstdio>
#include <thread>

int main() {
  int shared = 0;
  std::thread other([&shared] {
    for (int i = 0; i < 100000; ++i) ++shared;
  });
  for (int i = 0; i < 100000; ++i) ++shared;
  other.join();
  std::printf("%d\n", shared);
}
