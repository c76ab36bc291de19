// SPDX-License-Identifier: Apache-2.0
// A chain of SHA-256 digests over equally long records, the inner loop of prefix keys.
//
//   local(r) = SHA-256(r || trailer)
//   chain(i) = SHA-256(chain(i-1)[0:28] || local(record i)[0:27])          (exactly 55 bytes)
//
// Both are SHA-256 as published, of whole messages with their padding: every value can be recomputed
// with any library. The two levels exist for speed. One SHA-256 stream is bound by the latency of its
// instruction (bench/sha256_chain.cpp: four compressions, a 64-token unit without any padding, take longer
// than our limit for the whole step), whereas local digests do not depend on one another and run four
// at a time. 55 bytes is the longest message that SHA-256 handles in one compression, so the sequential
// part is one compression per record, and it rides along with the local digests of the next four.
//
// Collision resistance: two different record sequences with equal chain(i) need a collision of SHA-256
// truncated to 224 bits (chain), to 216 bits (local), or of SHA-256 itself; the cheapest costs 2^108.
// Truncating SHA-256 to its leftmost bits is what NIST SP 800-107 provides for.
//
// Thread safety: pure functions. Progress: wait-free.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/sha256.h"
#include "base/types.h"

namespace hkv {

inline constexpr std::size_t sha256_link_parent_bytes = 28;
inline constexpr std::size_t sha256_link_local_bytes = 27;

// What all records of a chain share: their length and the trailer, with the padding worked out.
struct Sha256Record {
  // Requires: trailer_bytes <= 55.
  Sha256Record(std::size_t record_bytes, const void* trailer, std::size_t trailer_bytes);

  std::size_t bytes;       // of one record, trailer not included
  std::size_t whole;       // 64-byte blocks read straight from the record
  std::size_t end_blocks;  // 1 or 2 blocks: rest of the record, trailer, padding
  std::array<std::uint8_t, 2 * sha256_block_bytes> end{};  // those blocks, the record's rest left zero
  // Where the record has no rest, its last block is the same for all: round constants + schedule.
  bool end_is_constant;
  alignas(64) std::array<std::uint32_t, 64> end_rounds{};
};

// chain(i) from chain(i-1) and local(record i).
Sha256Words sha256_link(const Sha256Words& chain, const Sha256Words& local) noexcept;

// Appends `count` records that lie one after another from `records` on.
// Effect: heads[i], tails[i] are the first and the last 16 bytes of chain(i); `chain` is the last one.
// Nothing is allocated.
void sha256_chain(const Sha256Record& record, const void* records, std::size_t count, Sha256Words& chain,
                  Key128* heads, Key128* tails) noexcept;

// The 32 bytes of a digest in two halves, and back.
void sha256_split(const Sha256Words& words, Key128& head, Key128& tail) noexcept;
Sha256Words sha256_join(const Key128& head, const Key128& tail) noexcept;

}  // namespace hkv
