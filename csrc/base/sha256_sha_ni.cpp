// SPDX-License-Identifier: Apache-2.0
// SHA-256 by the x86 SHA instructions: one lane, and several independent lanes at a time.
//
// The instruction has a latency of four cycles and one lane waits for itself, so lanes are interleaved:
// four local digests, and in a fifth lane the link of the previous four (see sha256_chain.h). Functions
// carry the target attribute themselves: no file is built with -msha, and the caller dispatches.
// Measured by bench/sha256_chain.cpp.
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#include <cstring>

#include "base/sha256_paths.h"

#define HKV_SHA __attribute__((target("sha,sse4.1,ssse3")))
#define HKV_SHA_INLINE HKV_SHA __attribute__((always_inline)) inline
// Loops over lanes must vanish: left as loops they keep the lanes in memory, a quarter slower.
#define HKV_UNROLL _Pragma("GCC unroll 16")

namespace hkv {
namespace {

constexpr int lanes = 4;
constexpr int link_lane = lanes;

// A chaining value in the order that the instructions want: A, B, E, F in one register, C, D, G, H in
// the other, the first named in the highest word.
struct State {
  __m128i abef, cdgh;
};
struct Block {
  __m128i word[4];  // sixteen words of the message
};

HKV_SHA_INLINE State from_halves(__m128i dcba, __m128i hgfe) {
  const __m128i cdab = _mm_shuffle_epi32(dcba, 0xB1), efgh = _mm_shuffle_epi32(hgfe, 0x1B);
  return {_mm_alignr_epi8(cdab, efgh, 8), _mm_blend_epi16(efgh, cdab, 0xF0)};
}
HKV_SHA_INLINE __m128i first_half(const State& s) {  // words A, B, C, D from the lowest up
  return _mm_shuffle_epi32(_mm_unpackhi_epi64(s.cdgh, s.abef), 0x1B);
}
HKV_SHA_INLINE __m128i second_half(const State& s) {  // words E, F, G, H
  return _mm_shuffle_epi32(_mm_unpacklo_epi64(s.cdgh, s.abef), 0x1B);
}
HKV_SHA_INLINE State load_state(const Sha256Words& words) {
  const auto* half = reinterpret_cast<const __m128i*>(words.data());
  return from_halves(_mm_loadu_si128(half), _mm_loadu_si128(half + 1));
}
HKV_SHA_INLINE void store_state(const State& s, Sha256Words& words) {
  auto* half = reinterpret_cast<__m128i*>(words.data());
  _mm_storeu_si128(half, first_half(s));
  _mm_storeu_si128(half + 1, second_half(s));
}
HKV_SHA_INLINE __m128i swap_bytes(__m128i words) {
  return _mm_shuffle_epi8(words, _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203));
}
HKV_SHA_INLINE void load_block(const std::uint8_t* bytes, Block& block) {
  const auto* quarter = reinterpret_cast<const __m128i*>(bytes);
  HKV_UNROLL
  for (int i = 0; i < 4; ++i) block.word[i] = swap_bytes(_mm_loadu_si128(quarter + i));
}

// The link's message: 28 bytes of the chain, 27 of the local digest, padding, its length of 440 bits.
HKV_SHA_INLINE void link_block(const State& chain, const State& local, Block& block) {
  const __m128i l0 = first_half(local), l1 = second_half(local);
  block.word[0] = first_half(chain);
  block.word[1] = _mm_blend_epi16(second_half(chain), _mm_slli_si128(l0, 12), 0xC0);
  block.word[2] = _mm_alignr_epi8(l1, l0, 4);
  const __m128i last = _mm_and_si128(_mm_srli_si128(l1, 4), _mm_set_epi32(0, 0, ~0xFF, ~0));
  block.word[3] = _mm_or_si128(last, _mm_set_epi32(440, 0, 0x80, 0));
}

// One compression in each of N lanes. The blocks are used up.
template <int N>
HKV_SHA_INLINE void compress(State* state, Block* m) {
  State v[N];
  HKV_UNROLL
  for (int s = 0; s < N; ++s) v[s] = state[s];
  HKV_UNROLL
  for (int r = 0; r < 16; ++r) {
    const __m128i k = _mm_load_si128(reinterpret_cast<const __m128i*>(sha256_round_constants + 4 * r));
    HKV_UNROLL
    for (int s = 0; s < N; ++s) {
      __m128i* const word = m[s].word;
      const __m128i w = word[r & 3], w3 = word[(r + 3) & 3], sum = _mm_add_epi32(w, k);
      v[s].cdgh = _mm_sha256rnds2_epu32(v[s].cdgh, v[s].abef, sum);
      v[s].abef = _mm_sha256rnds2_epu32(v[s].abef, v[s].cdgh, _mm_shuffle_epi32(sum, 0x0E));
      if (r < 12) {  // four more words of the schedule, in place of the ones just used
        const __m128i x = _mm_add_epi32(_mm_sha256msg1_epu32(w, word[(r + 1) & 3]),
                                        _mm_alignr_epi8(w3, word[(r + 2) & 3], 4));
        word[r & 3] = _mm_sha256msg2_epu32(x, w3);
      }
    }
  }
  HKV_UNROLL
  for (int s = 0; s < N; ++s) {
    state[s].abef = _mm_add_epi32(state[s].abef, v[s].abef);
    state[s].cdgh = _mm_add_epi32(state[s].cdgh, v[s].cdgh);
  }
}

// One compression in each of N lanes of a block whose schedule is known.
template <int N>
HKV_SHA_INLINE void compress_constant(State* state, const std::uint32_t* rounds) {
  State v[N];
  HKV_UNROLL
  for (int s = 0; s < N; ++s) v[s] = state[s];
  HKV_UNROLL
  for (int r = 0; r < 16; ++r) {
    const __m128i sum = _mm_load_si128(reinterpret_cast<const __m128i*>(rounds + 4 * r));
    const __m128i upper = _mm_shuffle_epi32(sum, 0x0E);
    HKV_UNROLL
    for (int s = 0; s < N; ++s) {
      v[s].cdgh = _mm_sha256rnds2_epu32(v[s].cdgh, v[s].abef, sum);
      v[s].abef = _mm_sha256rnds2_epu32(v[s].abef, v[s].cdgh, upper);
    }
  }
  HKV_UNROLL
  for (int s = 0; s < N; ++s) {
    state[s].abef = _mm_add_epi32(state[s].abef, v[s].abef);
    state[s].cdgh = _mm_add_epi32(state[s].cdgh, v[s].cdgh);
  }
}

HKV_SHA_INLINE State start_state() { return load_state(sha256_start); }

HKV_SHA_INLINE void store_keys(const State& chain, Key128* head, Key128* tail) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(head), swap_bytes(first_half(chain)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(tail), swap_bytes(second_half(chain)));
}

// Rest of the record, trailer and padding of one lane.
HKV_SHA_INLINE void fill_end(const Sha256Record& record, const std::uint8_t* bytes, std::uint8_t* end) {
  std::memcpy(end, bytes + record.whole * sha256_block_bytes, record.bytes % sha256_block_bytes);
}

// Links `count` local digests to the chain, one after another.
HKV_SHA void link_all(State& chain, const State* local, std::size_t count, Key128* heads, Key128* tails) {
  for (std::size_t i = 0; i < count; ++i) {
    Block block;
    link_block(chain, local[i], block);
    chain = start_state();
    compress<1>(&chain, &block);
    store_keys(chain, heads + i, tails + i);
  }
}

// Local digests of four records, and meanwhile the links of the four before them, as far as they fit.
// Returns: how many of those were linked; lane[link_lane] is the chain.
HKV_SHA std::size_t four_records(const Sha256Record& record, const std::uint8_t* records,
                                 std::uint8_t (*ends)[2 * sha256_block_bytes], State* lane,
                                 const State* before, std::size_t to_link, Key128* heads, Key128* tails) {
  const std::size_t varying = record.whole + (record.end_is_constant ? 0 : record.end_blocks);
  std::size_t linked = 0;
  if (!record.end_is_constant) {
    for (int s = 0; s < lanes; ++s) fill_end(record, records + s * record.bytes, ends[s]);
  }
  for (std::size_t b = 0; b < varying; ++b) {
    Block m[lanes + 1];
    HKV_UNROLL
    for (int s = 0; s < lanes; ++s) {
      const std::uint8_t* bytes = b < record.whole ? records + s * record.bytes + b * sha256_block_bytes
                                                   : ends[s] + (b - record.whole) * sha256_block_bytes;
      load_block(bytes, m[s]);
    }
    if (linked < to_link) {
      link_block(lane[link_lane], before[linked], m[link_lane]);
      lane[link_lane] = start_state();
      compress<lanes + 1>(lane, m);
      store_keys(lane[link_lane], heads + linked, tails + linked);
      ++linked;
    } else {
      compress<lanes>(lane, m);
    }
  }
  if (record.end_is_constant) compress_constant<lanes>(lane, record.end_rounds.data());
  return linked;
}

HKV_SHA State one_record(const Sha256Record& record, const std::uint8_t* bytes, std::uint8_t* end) {
  State local = start_state();
  fill_end(record, bytes, end);
  for (std::size_t b = 0; b < record.whole + record.end_blocks; ++b) {
    Block block;
    load_block(
        b < record.whole ? bytes + b * sha256_block_bytes : end + (b - record.whole) * sha256_block_bytes,
        block);
    compress<1>(&local, &block);
  }
  return local;
}

}  // namespace

bool sha_ni_supported() noexcept {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return false;
  const bool shuffles = (c & bit_SSSE3) != 0 && (c & bit_SSE4_1) != 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  return shuffles && (b & bit_SHA) != 0;
}

HKV_SHA void sha256_blocks_sha_ni(Sha256Words& state, const std::uint8_t* data, std::size_t blocks) noexcept {
  State s = load_state(state);
  for (std::size_t i = 0; i < blocks; ++i) {
    Block block;
    load_block(data + i * sha256_block_bytes, block);
    compress<1>(&s, &block);
  }
  store_state(s, state);
}

HKV_SHA void sha256_chain_sha_ni(const Sha256Record& record, const std::uint8_t* records, std::size_t count,
                                 Sha256Words& chain, Key128* heads, Key128* tails) noexcept {
  alignas(64) std::uint8_t ends[lanes][2 * sha256_block_bytes];
  for (auto& end : ends) std::memcpy(end, record.end.data(), sizeof end);
  State lane[lanes + 1], before[lanes];
  lane[link_lane] = load_state(chain);
  std::size_t done = 0,
              to_link = 0;  // records whose local digest is taken; of these, not yet linked
  for (; done + lanes <= count; done += lanes) {
    HKV_UNROLL
    for (int s = 0; s < lanes; ++s) lane[s] = start_state();
    const std::size_t from = done - to_link;
    const std::size_t linked = four_records(record, records + done * record.bytes, ends, lane, before,
                                            to_link, heads + from, tails + from);
    link_all(lane[link_lane], before + linked, to_link - linked, heads + from + linked,
             tails + from + linked);
    HKV_UNROLL
    for (int s = 0; s < lanes; ++s) before[s] = lane[s];
    to_link = lanes;
  }
  link_all(lane[link_lane], before, to_link, heads + done - to_link, tails + done - to_link);
  for (; done < count; ++done) {
    const State local = one_record(record, records + done * record.bytes, ends[0]);
    link_all(lane[link_lane], &local, 1, heads + done, tails + done);
  }
  store_state(lane[link_lane], chain);
}

}  // namespace hkv
#endif
