// SPDX-License-Identifier: Apache-2.0
// A shift that is too wide, which UndefinedBehaviorSanitizer must report and stop at.
#include <cstdio>

int main(int argc, char**) {
  std::printf("%d\n", 1 << (31 + argc));
  std::printf("went on\n");
}
