// SPDX-License-Identifier: Apache-2.0
// The paths. All work on the *state*, the complement of the value that callers see.
//
// Bits are reflected: the lowest bit of a 32-bit value is the coefficient of x^31. So the carry-less product of two such
// values, seen as 64 bits, is their product times x, and crc32_u64(0, w) is w times x^32: the constants below say which
// power of x is left to multiply with.
#include "base/crc32c.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/atomic.h"
#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hkv {
namespace {

constexpr std::uint32_t polynomial = 0x82F63B78u;  // reflected

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? polynomial : 0u);
    table[i] = crc;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> table = make_table();

#if defined(__x86_64__)

// x^power modulo the polynomial, reflected.
constexpr std::uint32_t power_of_x(unsigned power) {
  std::uint32_t value = 0x80000000u;  // x^0
  for (unsigned i = 0; i < power; ++i) value = value >> 1 ^ (value & 1 ? polynomial : 0u);
  return value;
}

#define HKV_STREAMS __attribute__((target("sse4.2,pclmul")))
#define HKV_FOLDED __attribute__((target("avx512f,avx512vl,avx512bw,vpclmulqdq,avx512dq,sse4.2,pclmul")))

HKV_STREAMS inline std::uint64_t word_at(const unsigned char* p) {
  std::uint64_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

HKV_STREAMS std::uint32_t one_stream(std::uint32_t start, const unsigned char* p, std::size_t bytes) {
  std::uint64_t state = start;
  for (; bytes >= 8; bytes -= 8, p += 8) state = _mm_crc32_u64(state, word_at(p));
  auto state32 = static_cast<std::uint32_t>(state);
  for (; bytes != 0; --bytes) state32 = _mm_crc32_u8(state32, *p++);
  return state32;
}

// Asks for the line `by` bytes on, which is read soon. May be beyond the end: it is a hint.
inline void ahead(const unsigned char* p, std::size_t by) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(p) + by));
}

// `state` moved on over as many zero bytes as `moved` = x^(8 bytes - 33) stands for, as a word yet to be reduced.
HKV_STREAMS inline __m128i moved_on(std::uint64_t state, std::uint32_t moved) {
  return _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<long long>(state)),
                              _mm_cvtsi32_si128(static_cast<int>(moved)), 0);
}

// Whole triples of `length` bytes.
template <std::size_t length>
HKV_STREAMS void three_streams(std::uint64_t& state, const unsigned char*& p, std::size_t& bytes) {
  static_assert(length % 8 == 0);
  constexpr std::uint32_t over_one = power_of_x(8 * length - 33), over_two = power_of_x(16 * length - 33);
  for (; bytes >= 3 * length; bytes -= 3 * length, p += 3 * length) {
    std::uint64_t a = state, b = 0, c = 0;
    for (std::size_t i = 0; i < length; i += 8) {
      if (i % 64 ==
          0) {  // the same place of the next triple: three streams are beyond what hardware foresees
        for (std::size_t next = 3; next < 6; ++next) ahead(p, next * length + i);
      }
      a = _mm_crc32_u64(a, word_at(p + i));
      b = _mm_crc32_u64(b, word_at(p + length + i));
      c = _mm_crc32_u64(c, word_at(p + 2 * length + i));
    }
    const __m128i joined = _mm_xor_si128(moved_on(a, over_two), moved_on(b, over_one));
    state = c ^ _mm_crc32_u64(0, static_cast<std::uint64_t>(_mm_cvtsi128_si64(joined)));
  }
}

HKV_STREAMS std::uint32_t streams(std::uint32_t start, const unsigned char* p, std::size_t bytes) {
  std::uint64_t state = start;
  three_streams<4096>(state, p, bytes);
  three_streams<256>(state, p, bytes);
  return one_stream(static_cast<std::uint32_t>(state), p, bytes);
}

// Multipliers that move a 128-bit lane on by `bits`: of its lower and of its upper half.
template <unsigned bits>
constexpr long long lower = static_cast<long long>(std::uint64_t{power_of_x(bits + 32)} << 1);
template <unsigned bits>
constexpr long long upper = static_cast<long long>(std::uint64_t{power_of_x(bits - 32)} << 1);

template <unsigned bits>
HKV_FOLDED inline __m512i multipliers() {
  return _mm512_set_epi64(upper<bits>, lower<bits>, upper<bits>, lower<bits>, upper<bits>, lower<bits>,
                          upper<bits>, lower<bits>);
}
HKV_FOLDED inline __m512i folded(__m512i lanes, __m512i by, __m512i next) {
  const __m512i low = _mm512_clmulepi64_epi128(lanes, by, 0x00),
                high = _mm512_clmulepi64_epi128(lanes, by, 0x11);
  return _mm512_ternarylogic_epi64(low, high, next, 0x96);
}
template <unsigned bits>
HKV_FOLDED inline __m128i folded_lane(__m128i lane, __m128i next) {
  const __m128i by = _mm_set_epi64x(upper<bits>, lower<bits>);
  const __m128i low = _mm_clmulepi64_si128(lane, by, 0x00), high = _mm_clmulepi64_si128(lane, by, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

// Loads the 64 bytes at `at`, and where `copied` stores them as well.
template <bool copied>
HKV_FOLDED inline __m512i loaded(const unsigned char* from, unsigned char* to, std::size_t at) {
  const __m512i bytes = _mm512_loadu_si512(from + at);
  if constexpr (copied) _mm512_storeu_si512(to + at, bytes);
  return bytes;
}

// At least one line of 64 bytes; the rest of less than that is left to one stream.
template <bool copied>
HKV_FOLDED std::uint32_t fold(std::uint32_t start, const unsigned char* p, unsigned char* to,
                              std::size_t bytes) {
  constexpr std::size_t line = 64;
  const __m512i by_line = multipliers<8 * line>();
  __m512i sum = _mm512_xor_si512(loaded<copied>(p, to, 0),
                                 _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(start))));
  std::size_t at = line;
  if (bytes >= 8 * line) {
    constexpr std::size_t wide = 4 * line;
    const __m512i by_four = multipliers<8 * wide>();
    __m512i b = loaded<copied>(p, to, line), c = loaded<copied>(p, to, 2 * line);
    __m512i d = loaded<copied>(p, to, 3 * line);
    for (at = wide; at + wide <= bytes; at += wide) {
      for (std::size_t i = 0; i < wide; i += line) ahead(p, at + 8 * wide + i);
      sum = folded(sum, by_four, loaded<copied>(p, to, at));
      b = folded(b, by_four, loaded<copied>(p, to, at + line));
      c = folded(c, by_four, loaded<copied>(p, to, at + 2 * line));
      d = folded(d, by_four, loaded<copied>(p, to, at + 3 * line));
    }
    sum = folded(folded(folded(sum, by_line, b), by_line, c), by_line, d);
  }
  for (; at + line <= bytes; at += line) sum = folded(sum, by_line, loaded<copied>(p, to, at));
  // By memory: what GCC 12 makes of an extract warns of itself (GCC bug 105593).
  alignas(64) __m128i lanes[4];
  _mm512_store_si512(lanes, sum);
  __m128i lane = lanes[0];
  for (int i = 1; i < 4; ++i) lane = folded_lane<128>(lane, lanes[i]);
  std::uint64_t state = _mm_crc32_u64(0, static_cast<std::uint64_t>(_mm_cvtsi128_si64(lane)));
  state = _mm_crc32_u64(state, static_cast<std::uint64_t>(_mm_extract_epi64(lane, 1)));
  if constexpr (copied) std::memcpy(to + at, p + at, bytes - at);
  return one_stream(static_cast<std::uint32_t>(state), p + at, bytes - at);
}

constexpr std::size_t fold_from = 256;  // bytes; below, the end costs more than it saves

#endif

constexpr Crc32cPath fastest_first[] = {Crc32cPath::Folded, Crc32cPath::Streams, Crc32cPath::Portable};

Crc32cPath first_choice() noexcept {
  const char* wish = std::getenv("HYBRIDKV_CRC32C");
  for (const Crc32cPath path : fastest_first) {
    if (wish != nullptr && std::string_view(wish) == crc32c_name(path) && crc32c_supported(path)) return path;
  }
  for (const Crc32cPath path : fastest_first) {
    if (crc32c_supported(path)) return path;
  }
  return Crc32cPath::Portable;
}

Atom<int>& chosen() noexcept {
  static Atom<int> path(static_cast<int>(first_choice()));
  return path;
}

}  // namespace

std::uint32_t crc32c_portable(std::uint32_t crc, const void* data, std::size_t bytes) noexcept {
  const auto* p = static_cast<const unsigned char*>(data);
  crc = ~crc;
  while (bytes-- != 0) crc = crc >> 8 ^ table[(crc ^ *p++) & 0xFF];
  return ~crc;
}

bool crc32c_supported(Crc32cPath path) noexcept {
#if defined(__x86_64__)
  if (path == Crc32cPath::Streams)
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
  if (path == Crc32cPath::Folded) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("vpclmulqdq") && crc32c_supported(Crc32cPath::Streams);
  }
#endif
  return path == Crc32cPath::Portable;
}

Crc32cPath crc32c_path() noexcept { return static_cast<Crc32cPath>(chosen().load()); }

void crc32c_choose(Crc32cPath path) {
  if (!crc32c_supported(path)) {
    throw Error{ErrorCode::ArgumentError, "path", "a CRC-32C path of this machine", crc32c_name(path)};
  }
  chosen().store(static_cast<int>(path));
}

const char* crc32c_name(Crc32cPath path) noexcept {
  switch (path) {
    case Crc32cPath::Streams: return "streams";
    case Crc32cPath::Folded: return "folded";
    case Crc32cPath::Portable: break;
  }
  return "portable";
}

std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t bytes) noexcept {
#if defined(__x86_64__)
  const auto* p = static_cast<const unsigned char*>(data);
  const Crc32cPath path = crc32c_path();
  if (path == Crc32cPath::Folded && bytes >= fold_from) return ~fold<false>(~crc, p, nullptr, bytes);
  if (path != Crc32cPath::Portable) return ~streams(~crc, p, bytes);
#endif
  return crc32c_portable(crc, data, bytes);
}

std::uint32_t crc32c_copy(std::uint32_t crc, void* to, const void* from, std::size_t bytes) noexcept {
#if defined(__x86_64__)
  if (crc32c_path() == Crc32cPath::Folded && bytes >= fold_from) {
    return ~fold<true>(~crc, static_cast<const unsigned char*>(from), static_cast<unsigned char*>(to), bytes);
  }
#endif
  if (bytes != 0) std::memcpy(to, from, bytes);
  return crc32c(crc, to, bytes);
}

}  // namespace hkv
