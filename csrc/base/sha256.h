// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4): a stream, and the choice between the SHA instructions and portable code.
//
// Thread safety: a Sha256 belongs to one thread; the choice of path is one relaxed atomic, read once by
// every operation, so changing it never mixes two paths within one compression. Both paths give the
// same digests, hence a race on the choice changes speed only.
#pragma once
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace hkv {

static_assert(std::endian::native == std::endian::little, "keys are read from memory as little endian");

// Digest or chaining value as the eight words H0..H7 of the standard, in the machine's byte order.
using Sha256Words = std::array<std::uint32_t, 8>;
using Sha256Digest = std::array<std::uint8_t, 32>;

inline constexpr std::size_t sha256_block_bytes = 64;
inline constexpr Sha256Words sha256_start = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                             0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

enum class Sha256Path : int { Portable = 0, ShaNi = 1 };

// Whether this machine has the instructions of `path`. Progress: wait-free.
bool sha256_supported(Sha256Path path) noexcept;

// The path in use. First call: HYBRIDKV_SHA256=portable or sha_ni in the environment where it can be
// honoured, else the fastest supported one. Progress: wait-free after the first call.
Sha256Path sha256_path() noexcept;

// Sets the path for the whole process (tests and benchmarks). Throws: ArgumentError if not supported.
void sha256_choose(Sha256Path path);

// Name as in HYBRIDKV_SHA256.
const char* sha256_name(Sha256Path path) noexcept;

// Absorbs whole 64-byte blocks into a chaining value. Progress: wait-free.
void sha256_blocks(Sha256Words& state, const void* data, std::size_t blocks) noexcept;

// The 32 bytes of a digest given as words.
Sha256Digest sha256_bytes(const Sha256Words& words) noexcept;

// One message, fed in pieces of any size.
class Sha256 {
 public:
  Sha256() noexcept = default;
  // Goes on from the chaining value after `absorbed` bytes. Requires: absorbed % 64 == 0.
  Sha256(const Sha256Words& midstate, std::uint64_t absorbed) noexcept : state_(midstate), bytes_(absorbed) {}

  Sha256& update(const void* data, std::size_t bytes) noexcept;
  Sha256& update_u64(std::uint64_t value) noexcept { return update(&value, sizeof value); }

  // Pads and gives the digest. The object may not be fed afterwards.
  Sha256Words finish() noexcept;

 private:
  Sha256Words state_ = sha256_start;
  std::uint64_t bytes_ = 0;
  std::array<std::uint8_t, sha256_block_bytes> pending_{};
};

}  // namespace hkv
