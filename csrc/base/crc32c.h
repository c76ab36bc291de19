// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli), the checksum of page contents: SSE 4.2 where the build has it, else a table.
//
// It finds damage, not malice. Thread safety: pure.
#pragma once
#include <array>
#include <cstdint>
#include <cstring>

#ifdef __SSE4_2__
#include <nmmintrin.h>
#endif

namespace hkv {

namespace crc32c_detail {
constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0u);
    table[i] = crc;
  }
  return table;
}
inline constexpr std::array<std::uint32_t, 256> table = make_table();
}  // namespace crc32c_detail

// Continues `crc` (0 to start) over `bytes` bytes. Requires: data readable.
inline std::uint32_t crc32c_portable(std::uint32_t crc, const void* data, std::size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  crc = ~crc;
  while (bytes-- != 0) crc = crc >> 8 ^ crc32c_detail::table[(crc ^ *p++) & 0xFF];
  return ~crc;
}

inline std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t bytes) {
#ifdef __SSE4_2__
  const auto* p = static_cast<const unsigned char*>(data);
  std::uint64_t state = static_cast<std::uint32_t>(~crc);
  for (; bytes >= 8; bytes -= 8, p += 8) {
    std::uint64_t word;
    std::memcpy(&word, p, 8);
    state = _mm_crc32_u64(state, word);
  }
  auto state32 = static_cast<std::uint32_t>(state);
  for (; bytes != 0; --bytes) state32 = _mm_crc32_u8(state32, *p++);
  return ~state32;
#else
  return crc32c_portable(crc, data, bytes);
#endif
}

}  // namespace hkv
