// SPDX-License-Identifier: Apache-2.0
#include "base/crc32c.h"

#include <random>
#include <vector>

#include "testing.h"

namespace hkv {

HKV_TEST("CRC-32C of known strings") {  // RFC 3720, B.4
  EXPECT_EQ(crc32c_portable(0, "123456789", 9), 0xE3069283u);
  EXPECT_EQ(crc32c(0, "123456789", 9), 0xE3069283u);
  const std::vector<unsigned char> zeros(32, 0), ones(32, 0xFF);
  EXPECT_EQ(crc32c(0, zeros.data(), 32), 0x8A9136AAu);
  EXPECT_EQ(crc32c(0, ones.data(), 32), 0x62A8AB43u);
  EXPECT_EQ(crc32c(7, nullptr, 0), 7u);
}

HKV_TEST("the fast path equals the portable one at every length, alignment and cut") {
  std::mt19937_64 random(1);
  std::vector<unsigned char> bytes(300);
  for (auto& byte : bytes) byte = static_cast<unsigned char>(random());
  int mismatches = 0;
  for (std::size_t from = 0; from < 16; ++from) {
    for (std::size_t n = 0; n + from <= 280; ++n) {
      const auto start = static_cast<std::uint32_t>(random());
      const std::uint32_t want = crc32c_portable(start, bytes.data() + from, n);
      mismatches += crc32c(start, bytes.data() + from, n) != want;
      const std::size_t cut = n == 0 ? 0 : random() % n;
      mismatches +=
          crc32c(crc32c(start, bytes.data() + from, cut), bytes.data() + from + cut, n - cut) != want;
    }
  }
  EXPECT_EQ(mismatches, 0);
}

HKV_TEST("every flipped bit is found") {
  unsigned char bytes[64];
  for (int i = 0; i < 64; ++i) bytes[i] = static_cast<unsigned char>(i * 7);
  const std::uint32_t before = crc32c(0, bytes, 64);
  for (int bit = 0; bit < 512; ++bit) {
    bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ 1 << bit % 8);
    EXPECT(crc32c(0, bytes, 64) != before);
    bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ 1 << bit % 8);
  }
}

}  // namespace hkv
