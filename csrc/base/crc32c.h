// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli), the checksum of page contents and of records on colder tiers, at the speed of memory where the
// CPU has instructions for it.
//
// It finds damage, not malice. All paths give the same results, for every length, alignment, start value and cut.
//
// Thread safety: any thread. The path is one relaxed atomic, read once by every operation.
#pragma once
#include <cstddef>
#include <cstdint>

namespace hkv {

// Continues `crc` (0 to start) over `bytes` bytes. Requires: data readable. Progress: wait-free.
std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t bytes) noexcept;

// The same while it copies the bytes to `to`: each is read from memory once. Requires: no overlap.
std::uint32_t crc32c_copy(std::uint32_t crc, void* to, const void* from, std::size_t bytes) noexcept;

// Portable: a table. Streams: three chains of SSE 4.2's instruction side by side, joined by PCLMUL. Folded: carry-less
// products of 512 bits (AVX-512, VPCLMULQDQ).
enum class Crc32cPath : int { Portable = 0, Streams = 1, Folded = 2 };

// Whether this machine has the instructions of `path`. Progress: wait-free.
bool crc32c_supported(Crc32cPath path) noexcept;

// The path in use. First call: HYBRIDKV_CRC32C=portable, streams or folded in the environment where it can be honoured,
// else the fastest supported one. Progress: wait-free after the first call.
Crc32cPath crc32c_path() noexcept;

// Sets the path for the whole process (tests and benchmarks). Throws: ArgumentError if not supported.
void crc32c_choose(Crc32cPath path);

// Name as in HYBRIDKV_CRC32C.
const char* crc32c_name(Crc32cPath path) noexcept;

// One path, whatever is in use.
std::uint32_t crc32c_portable(std::uint32_t crc, const void* data, std::size_t bytes) noexcept;

}  // namespace hkv
