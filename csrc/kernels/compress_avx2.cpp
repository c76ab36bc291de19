// SPDX-License-Identifier: Apache-2.0
// Tail compression by AVX2 and FMA. No file is built with -mavx2: functions carry the target, and compress_path()
// dispatches.
#if defined(__x86_64__)
#include <immintrin.h>

#define HKV_TARGET __attribute__((target("avx2,fma")))
#include "kernels/window_pool.h"
// What follows needs the target too.
#include "kernels/window_finish.h"

namespace hkv {
namespace {

struct Lanes256 {
  static constexpr int width = 8;
  using F = __m256;
  using I = __m256i;

  HKV_TARGET_INLINE static F load(const float* from) { return _mm256_loadu_ps(from); }
  HKV_TARGET_INLINE static void store(float* to, F x) { _mm256_storeu_ps(to, x); }
  HKV_TARGET_INLINE static F all(float value) { return _mm256_set1_ps(value); }
  HKV_TARGET_INLINE static F add(F a, F b) { return _mm256_add_ps(a, b); }
  HKV_TARGET_INLINE static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  HKV_TARGET_INLINE static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  HKV_TARGET_INLINE static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  HKV_TARGET_INLINE static F fms(F a, F b, F c) { return _mm256_fmsub_ps(a, b, c); }
  HKV_TARGET_INLINE static F larger(F a, F b) { return _mm256_max_ps(a, b); }
  HKV_TARGET_INLINE static F raise(F p, F shifted) {
    const I raised =
        _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(shifted), 23));
    return _mm256_castsi256_ps(raised);
  }
  HKV_TARGET_INLINE static F power(F shifted) {
    const I n =
        _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(static_cast<int>(whole_bits)));
    const I kept = _mm256_max_epi32(n, _mm256_set1_epi32(-127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(kept, _mm256_set1_epi32(127)), 23));
  }
  HKV_TARGET_INLINE static void split(const std::uint16_t* from, F& even, F& odd) {
    const I both = raw(from);
    even = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    odd = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
  }
  HKV_TARGET_INLINE static void join(F& first, F& second) {
    const F low = _mm256_unpacklo_ps(first, second), high = _mm256_unpackhi_ps(first, second);
    first = _mm256_permute2f128_ps(low, high, 0x20);
    second = _mm256_permute2f128_ps(low, high, 0x31);
  }
  HKV_TARGET_INLINE static I none() { return _mm256_setzero_si256(); }
  HKV_TARGET_INLINE static I most(I m, F x) {
    return _mm256_max_epi32(m, _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(magnitude_bits)));
  }
  HKV_TARGET_INLINE static I most16(I m, const std::uint16_t* from) {
    return _mm256_max_epi16(m, _mm256_and_si256(raw(from), _mm256_set1_epi16(0x7fff)));
  }
  HKV_TARGET_INLINE static bool above(I m) {
    return _mm256_movemask_epi8(_mm256_cmpgt_epi32(m, _mm256_set1_epi32(score_limit))) != 0;
  }
  HKV_TARGET_INLINE static bool above16(I m) {
    return _mm256_movemask_epi8(_mm256_cmpgt_epi16(m, _mm256_set1_epi16(score_limit >> 16))) != 0;
  }

 private:
  HKV_TARGET_INLINE static I raw(const std::uint16_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
};

}  // namespace

const CompressPath avx2_compress_path = {&pool<Lanes256>, &scan, &pool_below<Lanes256>, &divide, &finish,
                                         &take_weights,   &widen};

}  // namespace hkv
#endif
