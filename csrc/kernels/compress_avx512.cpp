// SPDX-License-Identifier: Apache-2.0
// Tail compression by AVX-512 F and BW. No file is built with -mavx512f: functions carry the target, and
// compress_path() dispatches.
#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the deliberately undefined sources of its own intrinsics for a mistake (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#define HKV_TARGET __attribute__((target("avx512f,avx512bw,avx2,fma,prefer-vector-width=512")))
#include "kernels/window_pool.h"
// What follows needs the target too.
#include "kernels/window_finish.h"

namespace hkv {
namespace {

struct Lanes512 {
  static constexpr int width = 16;
  using F = __m512;
  using I = __m512i;

  HKV_TARGET_INLINE static F load(const float* from) { return _mm512_loadu_ps(from); }
  HKV_TARGET_INLINE static void store(float* to, F x) { _mm512_storeu_ps(to, x); }
  HKV_TARGET_INLINE static F all(float value) { return _mm512_set1_ps(value); }
  HKV_TARGET_INLINE static F add(F a, F b) { return _mm512_add_ps(a, b); }
  HKV_TARGET_INLINE static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  HKV_TARGET_INLINE static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  HKV_TARGET_INLINE static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  HKV_TARGET_INLINE static F fms(F a, F b, F c) { return _mm512_fmsub_ps(a, b, c); }
  HKV_TARGET_INLINE static F larger(F a, F b) { return _mm512_max_ps(a, b); }
  HKV_TARGET_INLINE static F raise(F p, F shifted) {
    const I raised =
        _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(shifted), 23));
    return _mm512_castsi512_ps(raised);
  }
  HKV_TARGET_INLINE static F power(F shifted) {
    const I n =
        _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(static_cast<int>(whole_bits)));
    const I kept = _mm512_max_epi32(n, _mm512_set1_epi32(-127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(kept, _mm512_set1_epi32(127)), 23));
  }
  HKV_TARGET_INLINE static void split(const std::uint16_t* from, F& even, F& odd) {
    const I both = _mm512_loadu_si512(from);
    even = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    odd = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
  }
  HKV_TARGET_INLINE static void join(F& first, F& second) {
    const I low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const I high = _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
    const F even = first, odd = second;
    first = _mm512_permutex2var_ps(even, low, odd);
    second = _mm512_permutex2var_ps(even, high, odd);
  }
  HKV_TARGET_INLINE static I none() { return _mm512_setzero_si512(); }
  HKV_TARGET_INLINE static I most(I m, F x) {
    return _mm512_max_epi32(m, _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(magnitude_bits)));
  }
  HKV_TARGET_INLINE static I most16(I m, const std::uint16_t* from) {
    return _mm512_max_epu16(m, _mm512_and_si512(_mm512_loadu_si512(from), _mm512_set1_epi16(0x7fff)));
  }
  HKV_TARGET_INLINE static bool above(I m) {
    return _mm512_cmpgt_epi32_mask(m, _mm512_set1_epi32(score_limit)) != 0;
  }
  HKV_TARGET_INLINE static bool above16(I m) {
    return _mm512_cmpgt_epu16_mask(m, _mm512_set1_epi16(score_limit >> 16)) != 0;
  }
};

}  // namespace

const CompressPath avx512_compress_path = {&pool<Lanes512>, &scan, &pool_below<Lanes512>, &divide, &finish,
                                           &take_weights,   &widen};

}  // namespace hkv
#endif
