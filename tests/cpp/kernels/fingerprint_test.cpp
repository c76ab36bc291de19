// SPDX-License-Identifier: Apache-2.0
#include "kernels/fingerprint.h"

#include <algorithm>
#include <set>

#include "kernels/paged_world.h"
#include "testing.h"

namespace hkv {
namespace {

using namespace kernel_test;

// docs/kernels.md section 5, word for word and slowly: powers by repeated multiplication, sums from the last chunk on.
std::uint64_t mix(std::uint64_t z) {
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}
std::uint64_t specified(const std::vector<std::byte>& content) {
  using Wide = unsigned __int128;
  constexpr std::uint64_t p = (std::uint64_t{1} << 61) - 1;
  std::vector<std::byte> bytes = content;
  bytes.resize((content.size() + 15) / 16 * 16);
  const auto t = [](std::uint64_t i) { return mix(0x6879627269646b76 + (i + 1) * 0x9e3779b97f4a7c15); };
  const std::uint64_t r = t(128) % p;
  std::vector<Wide> chunks((bytes.size() + 1023) / 1024);
  for (std::size_t i = 0; i < bytes.size() / 8; i += 2) {
    std::uint64_t w[2];
    std::memcpy(w, bytes.data() + 8 * i, 16);
    chunks[i / 128] += Wide{w[0] + t(i % 128)} * (w[1] + t(i % 128 + 1));
  }
  Wide sum = content.size();
  for (std::size_t j = chunks.size(); j-- > 0;) {
    Wide power = 1;
    for (std::size_t k = 0; k < 3 * j; ++k) power = power * r % p;
    const Wide parts[] = {chunks[j] & ((Wide{1} << 43) - 1), chunks[j] >> 43 & ((Wide{1} << 43) - 1),
                          chunks[j] >> 86};
    for (const Wide part : parts) {
      power = power * r % p;
      sum = (sum + part * power) % p;
    }
  }
  return mix(static_cast<std::uint64_t>(sum % p) + 1);
}

std::vector<std::byte> random_bytes(std::mt19937_64& random, std::size_t n) {
  std::vector<std::byte> bytes(n);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

std::uint64_t of(const std::vector<std::byte>& bytes) {
  return fingerprint_of(bytes.data(), static_cast<std::int64_t>(bytes.size()));
}

}  // namespace

HKV_TEST("values of docs/kernels.md") {
  std::vector<std::byte> bytes(24);
  for (int i = 0; i < 24; ++i) bytes[i] = static_cast<std::byte>(i);
  EXPECT_EQ(of(bytes), 0xc1397df85856003du);
  EXPECT_EQ(of({}), 0x5692161d100b05e5u);
  EXPECT_EQ(of(std::vector<std::byte>(4096)), 0x360a884996368365u);
  bytes.resize(37376);
  for (int i = 0; i < 37376; ++i) bytes[i] = static_cast<std::byte>(i * 7 % 251);
  EXPECT_EQ(of(bytes), 0x2766caaa62c17491u);
}

HKV_TEST("the definition, slowly, gives the same at every length") {
  std::mt19937_64 random(1);
  int wrong = 0;
  for (std::size_t n = 0; n < 2200; n += 1 + random() % 3) {
    const auto bytes = random_bytes(random, n);
    wrong += of(bytes) != specified(bytes);
  }
  for (const std::size_t n : {4096, 37376, 65536}) {
    const auto bytes = random_bytes(random, n);
    wrong += of(bytes) != specified(bytes);
    const std::vector<std::byte> ones(n, std::byte{0xff});
    wrong += of(ones) != specified(ones);
  }
  EXPECT_EQ(wrong, 0);
}

HKV_TEST("every flipped bit is found") {
  std::mt19937_64 random(2);
  for (const bool empty : {false, true}) {
    auto bytes = empty ? std::vector<std::byte>(2360) : random_bytes(random, 2360);
    const std::uint64_t before = of(bytes);
    int unseen = 0;
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      unseen += of(bytes) == before;
      bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    }
    EXPECT_EQ(unseen, 0);
  }
}

HKV_TEST("swapped words, pairs and chunks, content moved on, and zeros of any length are told apart") {
  std::mt19937_64 random(3);
  const auto bytes = random_bytes(random, 4096);
  const std::uint64_t before = of(bytes);
  int unseen = 0;
  for (const std::size_t size : {1, 8, 16, 1024}) {
    for (std::size_t from = 0; from + size <= bytes.size(); from += size) {
      for (const std::size_t other :
           {from + size, (from + 1024) % bytes.size(), random() % (4096 / size) * size}) {
        if (other + size > bytes.size()) continue;
        auto swapped = bytes;
        std::swap_ranges(swapped.begin() + from, swapped.begin() + from + size, swapped.begin() + other);
        unseen += swapped != bytes && of(swapped) == before;
      }
    }
  }
  for (std::size_t by = 1; by < 4096; by += 7) {
    auto moved = bytes;
    std::rotate(moved.begin(), moved.begin() + by, moved.end());
    unseen += of(moved) == before;
  }
  std::set<std::uint64_t> zeros;
  for (std::size_t n = 0; n < 3000; ++n) zeros.insert(of(std::vector<std::byte>(n)));
  EXPECT_EQ(zeros.size(), 3000u);
  EXPECT_EQ(unseen, 0);
}

HKV_TEST("top bits of two words do not cancel, nor words that differ by the prime") {
  std::mt19937_64 random(4);
  auto bytes = random_bytes(random, 1024);
  const std::uint64_t before = of(bytes);
  bytes[7] ^= std::byte{0x80};
  bytes[23] ^= std::byte{0x80};
  EXPECT(of(bytes) != before);
  std::uint64_t words[2] = {5, 9};
  const std::uint64_t small = fingerprint_of(words, 16);
  words[0] += (std::uint64_t{1} << 61) - 1;
  EXPECT(fingerprint_of(words, 16) != small);
}

HKV_TEST("pages in place: packed content decides, wherever it lies, with any number of threads") {
  std::mt19937_64 random(5);
  int wrong = 0;
  for (int round = 0; round < 60; ++round) {
    World w = random_world(random, false, false, false);
    const std::int64_t n = w.copy.pieces.count, layers = w.copy.layer_count;
    w.copy.zero_missing = true;
    std::vector<std::uint64_t> found(n * layers, 1);
    const FingerprintGroup group{w.layers.data(), w.copy.layer_count, w.page, w.copy.pieces, found.data()};
    fingerprint(&group, 1, 1 + round % 3);
    gather(&w.copy, 1, 1);
    const std::int64_t bytes = w.page.packed_bytes();
    for (std::int64_t i = 0; i < n * layers; ++i) {
      const std::byte* const packed = w.buffer->data() + i * bytes;
      const bool missing = w.copy.pieces.is_missing(i % n);
      wrong += found[i] != (missing ? 0 : specified({packed, packed + bytes}));
    }
  }
  EXPECT_EQ(wrong, 0);
}

}  // namespace hkv
