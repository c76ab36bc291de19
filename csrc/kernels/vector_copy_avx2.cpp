// SPDX-License-Identifier: Apache-2.0
// Copies by AVX2. No file is built with -mavx2: functions carry the target, and copy_path() dispatches.
#if defined(__x86_64__)
#include <immintrin.h>

#define HKV_TARGET __attribute__((target("avx2")))
#include "kernels/vector_copy.h"

namespace hkv {
namespace {

struct Vector256 {
  static constexpr std::size_t width = 32;
  __m256i bits;
  HKV_TARGET_INLINE static Vector256 load(const std::byte* from) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))};
  }
  HKV_TARGET_INLINE static Vector256 zero() { return {_mm256_setzero_si256()}; }
  HKV_TARGET_INLINE void store(std::byte* to) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bits);
  }
  HKV_TARGET_INLINE void stream(std::byte* to) const {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), bits);
  }
};

void fence() { _mm_sfence(); }

}  // namespace

const CopyPath avx2_copy_path = {&vector_copy<Vector256>, &vector_zero<Vector256>, &fence};

}  // namespace hkv
#endif
