// SPDX-License-Identifier: Apache-2.0
// The arithmetic of fingerprints (docs/kernels.md section 5), for every implementation of them.
//
// Thread safety: pure functions.
#pragma once
#include <cstdint>

namespace hkv::fingerprint_math {

using U128 = unsigned __int128;

inline constexpr std::int64_t chunk_bytes = 1024;
inline constexpr int chunk_words = chunk_bytes / 8;
inline constexpr std::uint64_t prime = (std::uint64_t{1} << 61) - 1;

constexpr std::uint64_t mix(std::uint64_t z) {
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

// t[i] of the definition: the key of word i of a chunk.
constexpr std::uint64_t term(std::uint64_t i) {
  return mix(0x6879627269646b76 + (i + 1) * 0x9e3779b97f4a7c15);
}

// Of a product below 2^122, or of any sum of such below 2^125: the remainder, fully reduced.
constexpr std::uint64_t reduced(U128 value) {
  U128 folded = (value & prime) + (value >> 61);
  folded = (folded & prime) + (folded >> 61);
  const auto small = static_cast<std::uint64_t>(folded);
  return small >= prime ? small - prime : small;
}
constexpr std::uint64_t times(std::uint64_t a, std::uint64_t b) { return reduced(U128{a} * b); }

constexpr std::uint64_t power_of(std::uint64_t base, int exponent) {
  std::uint64_t power = 1;
  for (int i = 0; i < exponent; ++i) power = times(power, base);
  return power;
}
inline constexpr std::uint64_t base = term(chunk_words) % prime;
inline constexpr std::uint64_t base2 = power_of(base, 2), base3 = power_of(base, 3);

// The sum of step 3 for the first chunk; that of chunk j is base3^j times as much.
constexpr std::uint64_t chunk_value(U128 sum) {
  constexpr std::uint64_t low43 = (std::uint64_t{1} << 43) - 1;
  const std::uint64_t parts[] = {static_cast<std::uint64_t>(sum) & low43,
                                 static_cast<std::uint64_t>(sum >> 43) & low43,
                                 static_cast<std::uint64_t>(sum >> 86)};
  return reduced(U128{parts[0]} * base + U128{parts[1]} * base2 + U128{parts[2]} * base3);
}

}  // namespace hkv::fingerprint_math
