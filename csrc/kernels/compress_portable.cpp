// SPDX-License-Identifier: Apache-2.0
// Tail compression by what every machine has. An fma without its instruction is the C library's, slow and exact.
#include "kernels/cpu_level.h"

#define HKV_TARGET
#include "kernels/window_pool.h"
// What follows needs the target too.
#include "kernels/window_finish.h"

namespace hkv {
namespace {

struct PlainLanes {
  static constexpr int width = 4;
  struct F {
    float lane[width];
  };
  struct I {
    std::uint32_t most;
  };

  static F load(const float* from) {
    F x;
    std::memcpy(x.lane, from, sizeof x.lane);
    return x;
  }
  static void store(float* to, F x) { std::memcpy(to, x.lane, sizeof x.lane); }
  static F all(float value) { return {{value, value, value, value}}; }
  static F add(F a, F b) {
    for (int i = 0; i < width; ++i) a.lane[i] += b.lane[i];
    return a;
  }
  static F sub(F a, F b) {
    for (int i = 0; i < width; ++i) a.lane[i] -= b.lane[i];
    return a;
  }
  static F mul(F a, F b) {
    for (int i = 0; i < width; ++i) a.lane[i] *= b.lane[i];
    return a;
  }
  static F fma(F a, F b, F c) {
    for (int i = 0; i < width; ++i) a.lane[i] = std::fma(a.lane[i], b.lane[i], c.lane[i]);
    return a;
  }
  static F fms(F a, F b, F c) {
    for (int i = 0; i < width; ++i) a.lane[i] = std::fma(a.lane[i], b.lane[i], -c.lane[i]);
    return a;
  }
  static F larger(F a, F b) {
    for (int i = 0; i < width; ++i) a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
    return a;
  }
  static F raise(F p, F shifted) {
    for (int i = 0; i < width; ++i) p.lane[i] = raised(p.lane[i], shifted.lane[i]);
    return p;
  }
  static F power(F shifted) {
    F x;
    for (int i = 0; i < width; ++i) x.lane[i] = whole_power(shifted.lane[i]);
    return x;
  }
  static void split(const std::uint16_t* from, F& even, F& odd) {
    for (int i = 0; i < width; ++i) {
      even.lane[i] = float_of(static_cast<std::uint32_t>(from[2 * i]) << 16);
      odd.lane[i] = float_of(static_cast<std::uint32_t>(from[2 * i + 1]) << 16);
    }
  }
  static void join(F& first, F& second) {
    const F even = first, odd = second;
    first = {{even.lane[0], odd.lane[0], even.lane[1], odd.lane[1]}};
    second = {{even.lane[2], odd.lane[2], even.lane[3], odd.lane[3]}};
  }
  static I none() { return {0}; }
  static I most(I m, F x) {
    for (int i = 0; i < width; ++i) m.most = std::max(m.most, bits_of(x.lane[i]) & magnitude_bits);
    return m;
  }
  static I most16(I m, const std::uint16_t* from) {
    for (int i = 0; i < 2 * width; ++i) m.most = std::max(m.most, (from[i] & 0x7fffu) << 16);
    return m;
  }
  static bool above(I m) { return m.most > score_limit; }
  static bool above16(I m) { return above(m); }
};

}  // namespace

const CompressPath portable_compress_path = {
    &pool<PlainLanes>, &scan, &pool_below<PlainLanes>, &divide, &finish, &take_weights, &widen};

const CompressPath& compress_path() noexcept {
#if defined(__x86_64__)
  const CpuLevel level = cpu_level();
  if (level == CpuLevel::Avx512) return avx512_compress_path;
  if (level == CpuLevel::Avx2) return avx2_compress_path;
#endif
  return portable_compress_path;
}

}  // namespace hkv
