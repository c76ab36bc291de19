// SPDX-License-Identifier: Apache-2.0
// Copies by AVX-512. No file is built with -mavx512f: functions carry the target, and copy_path() dispatches.
#if defined(__x86_64__)
#include <immintrin.h>

#define HKV_TARGET __attribute__((target("avx512f")))
#include "kernels/vector_copy.h"

namespace hkv {
namespace {

struct Vector512 {
  static constexpr std::size_t width = 64;
  __m512i bits;
  HKV_TARGET_INLINE static Vector512 load(const std::byte* from) { return {_mm512_loadu_si512(from)}; }
  HKV_TARGET_INLINE static Vector512 zero() { return {_mm512_setzero_si512()}; }
  HKV_TARGET_INLINE void store(std::byte* to) const { _mm512_storeu_si512(to, bits); }
  HKV_TARGET_INLINE void stream(std::byte* to) const {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), bits);
  }
};

void fence() { _mm_sfence(); }

}  // namespace

const CopyPath avx512_copy_path = {&vector_copy<Vector512>, &vector_zero<Vector512>, &fence};

}  // namespace hkv
#endif
