// SPDX-License-Identifier: Apache-2.0
// The instruction set that kernels use on this CPU, and the copies that it offers.
//
// Thread safety: any thread. The choice is one relaxed atomic, read once by every operation; all levels move the same
// bytes, hence a race on the choice changes speed only.
#pragma once
#include <cstddef>

namespace hkv {

enum class CpuLevel : int { Portable = 0, Avx2 = 1, Avx512 = 2 };

// Copies that one level offers. Lanes are copies of equal length that run side by side: pages scattered over memory
// keep more of its banks busy so than one after another. `stream`: past the caches, for what is not read soon.
struct CopyPath {
  static constexpr int lanes = 4;
  // Copies `bytes` of each of `count` lanes, 1 <= count <= lanes. Requires: no overlap.
  void (*copy)(std::byte* const* to, const std::byte* const* from, int count, std::size_t bytes, bool stream);
  void (*zero)(std::byte* to, std::size_t bytes, bool stream);
  // Makes streamed stores visible in the order of ordinary ones. Owed before anybody is told of them.
  void (*fence)();
};

// Whether this machine has the instructions of `level`. Progress: wait-free.
bool cpu_level_supported(CpuLevel level) noexcept;

// The level in use. First call: HYBRIDKV_CPU=portable, avx2 or avx512 in the environment where it can be honoured, else
// the fastest supported one. Progress: wait-free after the first call.
CpuLevel cpu_level() noexcept;

// Sets the level for the whole process (tests and benchmarks). Throws: ArgumentError if not supported.
void cpu_level_choose(CpuLevel level);

// Name as in HYBRIDKV_CPU.
const char* cpu_level_name(CpuLevel level) noexcept;

// Copies of the level in use.
const CopyPath& copy_path() noexcept;

extern const CopyPath portable_copy_path;
#if defined(__x86_64__)
extern const CopyPath avx2_copy_path;
extern const CopyPath avx512_copy_path;
#endif

}  // namespace hkv
