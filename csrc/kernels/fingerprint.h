// SPDX-License-Identifier: Apache-2.0
// Fingerprints of page contents, in place: 64 bits that tell damage and wrong pages, and nothing against malice.
//
// docs/kernels.md section 5 defines the value and its bound. It is a sum of terms that can be made in any order: NH on
// 64-bit words within chunks of 1 KiB, a polynomial modulo 2^61 - 1 over chunks. One 64-bit multiplication for 16
// bytes keeps pace with memory on any x86-64, so that all levels of the CPU share one implementation.
//
// Thread safety: pure functions of memory that nobody writes meanwhile.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/paged_copy.h"

namespace hkv {

// Fingerprint of bytes in one piece. Requires: `bytes` readable at `data`. Returns: never 0.
std::uint64_t fingerprint_of(const void* data, std::int64_t bytes) noexcept;

// One group: fingerprints [layer_count, pieces.count] of packed pages, 0 where a piece is missing.
struct FingerprintGroup {
  const PoolLayer* layers = nullptr;
  std::int32_t layer_count = 0;
  PageRows page;
  PieceList pieces;  // without rows
  std::uint64_t* out = nullptr;
};

// Requires: addresses, strides and, where a page is not in one piece, bytes of rows and footers multiples of 8.
// Progress: finishes by itself; no allocation after the first call with as many threads.
void fingerprint(const FingerprintGroup* groups, int group_count, int threads) noexcept;

}  // namespace hkv
