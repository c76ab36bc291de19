// SPDX-License-Identifier: Apache-2.0
// The choice of level, and the copies that every machine can make.
#include "kernels/cpu_level.h"

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/atomic.h"
#include "base/check.h"

namespace hkv {
namespace {

constexpr CpuLevel levels[] = {CpuLevel::Avx512, CpuLevel::Avx2, CpuLevel::Portable};  // the fastest first

CpuLevel first_choice() noexcept {
  const char* wish = std::getenv("HYBRIDKV_CPU");
  for (const CpuLevel level : levels) {
    if (wish != nullptr && std::string_view(wish) == cpu_level_name(level) && cpu_level_supported(level)) {
      return level;
    }
  }
  for (const CpuLevel level : levels) {
    if (cpu_level_supported(level)) return level;
  }
  return CpuLevel::Portable;
}

Atom<int>& chosen() noexcept {
  static Atom<int> level(static_cast<int>(first_choice()));
  return level;
}

// The C library's memcpy has levels of its own, which no environment variable of ours reaches; what is portable is
// that nothing here asks for an instruction.
void portable_copy(std::byte* const* to, const std::byte* const* from, int count, std::size_t bytes, bool) {
  for (int lane = 0; lane < count; ++lane) std::memcpy(to[lane], from[lane], bytes);
}
void portable_zero(std::byte* to, std::size_t bytes, bool) { std::memset(to, 0, bytes); }
void portable_fence() {}

}  // namespace

const CopyPath portable_copy_path = {&portable_copy, &portable_zero, &portable_fence};

bool cpu_level_supported(CpuLevel level) noexcept {
#if defined(__x86_64__)
  if (level == CpuLevel::Avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (level == CpuLevel::Avx512) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           cpu_level_supported(CpuLevel::Avx2);
  }
#endif
  return level == CpuLevel::Portable;
}

CpuLevel cpu_level() noexcept { return static_cast<CpuLevel>(chosen().load()); }

void cpu_level_choose(CpuLevel level) {
  if (!cpu_level_supported(level)) {
    throw Error{ErrorCode::ArgumentError, "level", "a level that this CPU has", cpu_level_name(level)};
  }
  chosen().store(static_cast<int>(level));
}

const char* cpu_level_name(CpuLevel level) noexcept {
  switch (level) {
    case CpuLevel::Avx2: return "avx2";
    case CpuLevel::Avx512: return "avx512";
    case CpuLevel::Portable: break;
  }
  return "portable";
}

const CopyPath& copy_path() noexcept {
#if defined(__x86_64__)
  const CpuLevel level = cpu_level();
  if (level == CpuLevel::Avx512) return avx512_copy_path;
  if (level == CpuLevel::Avx2) return avx2_copy_path;
#endif
  return portable_copy_path;
}

}  // namespace hkv
