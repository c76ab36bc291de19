// SPDX-License-Identifier: Apache-2.0
// A read past the end that AddressSanitizer must report: proof that the asan-ubsan preset watches.
#include <cstdio>
#include <memory>

int main(int argc, char**) {
  const auto bytes = std::make_unique<char[]>(16);
  std::printf("%d\n", bytes[15 + argc]);
}
