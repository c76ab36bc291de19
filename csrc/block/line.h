// SPDX-License-Identifier: Apache-2.0
// One bucket line of the table: seven 64-bit slots and a count of keys that went past it, and its scan for a tag.
//
// Thread safety: slots are atomics; the scan reads each slot once, as a hint. The descriptor decides.
#pragma once
#include <bit>
#include <cstdint>

#include "base/atomic.h"
#include "base/types.h"

#if defined(__SSE2__) && !defined(HKV_RELACY) && !defined(HKV_SCHEDULE) && !defined(__SANITIZE_THREAD__)
#define HKV_LINE_SSE2 1
#include <emmintrin.h>
#endif

namespace hkv {

// A slot's value: tag 31 | tentative 1 | descriptor 32. The tag is never 0, so 0 is an empty slot.
class Slot {
 public:
  constexpr explicit Slot(std::uint64_t bits = 0) : bits_(bits) {}
  static constexpr Slot tentative_of(std::uint32_t tag, DescriptorId id) {
    return Slot(std::uint64_t{tag} << 33 | tentative_bit | index(id));
  }
  // From the half of the key that does not choose the first line.
  static constexpr std::uint32_t tag_of(Key128 key) {
    return static_cast<std::uint32_t>(key.hi & 0x7FFFFFFF) | 1u;
  }
  constexpr std::uint64_t bits() const { return bits_; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool tentative() const { return bits_ & tentative_bit; }
  constexpr std::uint32_t tag() const { return static_cast<std::uint32_t>(bits_ >> 33); }
  constexpr DescriptorId id() const { return DescriptorId{static_cast<std::uint32_t>(bits_)}; }
  constexpr Slot final() const { return Slot(bits_ & ~tentative_bit); }
  // The upper half of a final slot with this tag.
  static constexpr std::uint32_t upper(std::uint32_t tag) { return tag << 1; }

 private:
  static constexpr std::uint64_t tentative_bit = std::uint64_t{1} << 32;
  std::uint64_t bits_;
};

struct alignas(cache_line_bytes) Line {
#ifdef HKV_TABLE_SLOTS  // reduced geometry for the model checker
  static constexpr int slots = HKV_TABLE_SLOTS;
#else
  static constexpr int slots = 7;
#endif
  Atom<std::uint64_t> slot[slots];
  // Keys that found every slot taken and stand in a line behind this one, or are about to; below 2^32.
  Atom<std::uint64_t> passed;

  // Empties the line. Requires: no other call in flight.
  void reset() {
    for (auto& s : slot) s.store(0);
    passed.store(0);
  }

  // Bit i: slot i is final and has the tag. Progress: wait-free.
  unsigned match(std::uint32_t tag) const {
#ifdef HKV_LINE_SSE2
    // Four 16-byte loads instead of seven 8-byte ones. x86-64 does each aligned 8-byte half in one
    // access, and a slot read torn from its neighbour is still only a hint. The compiler sees an opaque
    // load (asm), not a data race; sanitizer builds take the portable form below.
    const auto* pairs = reinterpret_cast<const __m128*>(this);
    __m128 pair[4];
    for (int i = 0; i < 4; ++i) asm volatile("movaps %1, %0" : "=x"(pair[i]) : "m"(pairs[i]));
    // Dword 2i+1 is the upper half of slot i; the eighth is the count's, which is no tag's.
    const __m128i want = _mm_set1_epi32(static_cast<int>(Slot::upper(tag)));
    const __m128i low = _mm_castps_si128(_mm_shuffle_ps(pair[0], pair[1], 0xDD));
    const __m128i high = _mm_castps_si128(_mm_shuffle_ps(pair[2], pair[3], 0xDD));
    const __m128i same = _mm_packs_epi32(_mm_cmpeq_epi32(low, want), _mm_cmpeq_epi32(high, want));
    return static_cast<unsigned>(_mm_movemask_epi8(_mm_packs_epi16(same, _mm_setzero_si128())));
#else
    unsigned bits = 0;
    for (int i = 0; i < slots; ++i) {
      if (static_cast<std::uint32_t>(slot[i].load() >> 32) == Slot::upper(tag)) bits |= 1u << i;
    }
    return bits;
#endif
  }
};
#if !defined(HKV_RELACY) && !defined(HKV_TABLE_SLOTS)
static_assert(sizeof(Line) == cache_line_bytes);
#endif

}  // namespace hkv
