// SPDX-License-Identifier: Apache-2.0
// One thread: left out under ThreadSanitizer.
#include "base/crc32c.h"

#include <algorithm>
#include <random>
#include <vector>

#include "base/check.h"
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

namespace {

// Calls body with each path of this machine in use.
template <class F>
void each_path(F body) {
  const Crc32cPath before = crc32c_path();
  for (const Crc32cPath path : {Crc32cPath::Portable, Crc32cPath::Streams, Crc32cPath::Folded}) {
    if (!crc32c_supported(path)) {
      std::printf("skipped: this machine has not what %s needs\n", crc32c_name(path));
      continue;
    }
    crc32c_choose(path);
    EXPECT(crc32c_path() == path);
    body(crc32c_name(path));
  }
  crc32c_choose(before);
}

std::vector<unsigned char> random_bytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<unsigned char> out(count);
  for (auto& byte : out) byte = static_cast<unsigned char>(random());
  return out;
}

}  // namespace

HKV_TEST(
    "every path equals the portable one at every length, alignment, start and cut, and copies what it read") {
  const std::vector<unsigned char> bytes = random_bytes(70000, 1);
  std::vector<std::size_t> lengths;
  for (std::size_t n = 0; n <= 1100; ++n) lengths.push_back(n);
  for (const std::size_t n : {12288, 24576, 65536}) {  // where the long loops begin and end
    for (std::size_t d = 0; d < 20; ++d) lengths.insert(lengths.end(), {n - d, n + d, n + 768 * (d % 3) + d});
  }
  each_path([&](const char* name) {
    std::mt19937_64 random(2);
    std::vector<unsigned char> copy(70000);
    int mismatches = 0, miscopied = 0;
    for (const std::size_t n : lengths) {
      const std::size_t from = random() % 70, to = 1 + random() % 70;
      const auto start = static_cast<std::uint32_t>(random());
      const std::uint32_t want = crc32c_portable(start, bytes.data() + from, n);
      mismatches += crc32c(start, bytes.data() + from, n) != want;
      const std::size_t cut = n == 0 ? 0 : random() % n;
      mismatches +=
          crc32c(crc32c(start, bytes.data() + from, cut), bytes.data() + from + cut, n - cut) != want;
      copy[to - 1] = copy[to + n] = 0xA5;
      mismatches += crc32c_copy(start, copy.data() + to, bytes.data() + from, n) != want;
      miscopied += !std::equal(copy.begin() + to, copy.begin() + to + n, bytes.begin() + from);
      miscopied += copy[to - 1] != 0xA5 || copy[to + n] != 0xA5;
    }
    if (mismatches != 0) testing::fail(__FILE__, __LINE__, std::string(name) + " differs");
    if (miscopied != 0) testing::fail(__FILE__, __LINE__, std::string(name) + " copies something else");
  });
}

HKV_TEST("a read ends with the bytes given, on every path") {  // the sanitizers look at the heap's edges
  each_path([](const char*) {
    for (const std::size_t n : {1, 63, 64, 255, 256, 257, 511, 767, 1000, 12289}) {
      const std::vector<unsigned char> exact = random_bytes(n, n);
      std::vector<unsigned char> copy(n);
      EXPECT_EQ(crc32c(0, exact.data(), n), crc32c_portable(0, exact.data(), n));
      EXPECT_EQ(crc32c_copy(0, copy.data(), exact.data(), n), crc32c_portable(0, exact.data(), n));
    }
  });
}

HKV_TEST("a path that this machine has not is refused") {
  int refused = 0;
  for (const Crc32cPath path : {Crc32cPath::Streams, Crc32cPath::Folded}) {
    if (crc32c_supported(path)) continue;
    try {
      crc32c_choose(path);
    } catch (const Error& error) {
      refused += error.field == "path";
    }
    EXPECT_EQ(refused, 1);
    refused = 0;
  }
  EXPECT(crc32c_supported(Crc32cPath::Portable));
  EXPECT_EQ(std::string(crc32c_name(Crc32cPath::Folded)), "folded");
}

HKV_TEST("every flipped bit is found, on every path") {
  each_path([](const char*) {
    std::vector<unsigned char> bytes = random_bytes(600, 3);
    const std::uint32_t before = crc32c(0, bytes.data(), bytes.size());
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ 1 << bit % 8);
      EXPECT(crc32c(0, bytes.data(), bytes.size()) != before);
      bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ 1 << bit % 8);
    }
  });
}

}  // namespace hkv
