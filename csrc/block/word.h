// SPDX-License-Identifier: Apache-2.0
// The word of truth: generation, pins and eight phases in 64 bits, as a value with pure transitions.
//
//   63            40 39          24 23                                  0
//   | generation 24 |   pins 16    | phase of slot 7 .. phase of slot 0  |   3 bits a slot
//
// A descriptor has two: H (Prefix groups) and B (Window, Chunk and Checkpoint groups).
//
// Thread safety: values; the atomics are in descriptor.h.
// Invariants:
//  1. Equal generation means same key, same pages: the generation moves in every step that lets go of
//     a page and in every change of life. It wraps after 2^24 such steps on one descriptor: a match
//     would have to sleep through exactly a multiple of 16,777,216 of them between check and pin.
//  2. pins never wraps: a pin is refused at pins_max.
//  3. In H, pins == pins_closed means that the descriptor has no life, pins == pins_tentative that its
//     slot in the table is not final yet; no phase is set in either.
#pragma once
#include <array>
#include <bit>
#include <cstdint>
#include <optional>

#include "block/phase.h"

namespace hkv {

// Slots of one word, one bit each.
using SlotMask = std::uint8_t;

namespace word_detail {
constexpr std::array<std::uint32_t, 256> make_spread() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t mask = 0; mask < 256; ++mask) {
    for (int slot = 0; slot < 8; ++slot) table[mask] |= (mask >> slot & 1u) << (3 * slot);
  }
  return table;
}
inline constexpr std::array<std::uint32_t, 256> spread = make_spread();
// The slots of a spread, which has no other bits.
constexpr SlotMask slots_of(std::uint32_t spread_bits) {
  std::uint32_t mask = 0;
  for (std::uint32_t bits = spread_bits; bits != 0; bits &= bits - 1)
    mask |= 1u << std::countr_zero(bits) / 3;
  return static_cast<SlotMask>(mask);
}
}  // namespace word_detail

class Word {
 public:
  static constexpr int slots = 8;
  static constexpr int phase_bits = 24, pin_bits = 16, generation_bits = 24;
  static_assert(phase_bits + pin_bits + generation_bits == 64 && phase_bits == 3 * slots);
  static constexpr std::uint64_t pin_one = std::uint64_t{1} << phase_bits;
  static constexpr std::uint64_t generation_one = std::uint64_t{1} << (phase_bits + pin_bits);
  static constexpr std::uint64_t phase_mask = pin_one - 1;
  static constexpr std::uint32_t pins_closed = 0xFFFF;
  static constexpr std::uint32_t pins_tentative = 0xFFFE;
  static constexpr std::uint32_t pins_max = 0xFFFD;

  constexpr Word() = default;
  constexpr explicit Word(std::uint64_t bits) : bits_(bits) {}
  // The word of that generation and pin count without any phase.
  static constexpr Word bare(std::uint32_t generation, std::uint32_t pins) {
    return Word(std::uint64_t{generation} << 40 | std::uint64_t{pins} << phase_bits);
  }

  constexpr std::uint64_t bits() const { return bits_; }
  constexpr std::uint32_t generation() const { return static_cast<std::uint32_t>(bits_ >> 40); }
  constexpr std::uint32_t pins() const { return static_cast<std::uint32_t>(bits_ >> phase_bits) & 0xFFFF; }
  constexpr Phase phase(int slot) const { return static_cast<Phase>(bits_ >> (3 * slot) & 7); }
  constexpr bool closed() const { return pins() == pins_closed; }
  constexpr bool tentative() const { return pins() == pins_tentative; }
  constexpr bool live() const { return pins() <= pins_max; }
  // No page, no claim, no pin: a descriptor whose two words are so can end its life.
  constexpr bool empty() const { return (bits_ << generation_bits) == 0; }
  constexpr bool no_phase() const { return (bits_ & phase_mask) == 0; }

  // Slots whose phase is Ready, ReadyCopy or Offloading: bit 2 set and not both others.
  constexpr std::uint32_t usable_spread() const {
    const auto p = static_cast<std::uint32_t>(bits_ & phase_mask);
    return p >> 2 & ~(p >> 1 & p) & every_slot;
  }
  // Slots whose bytes exist somewhere: usable, TierOnly or Restoring; that is odd below 4, or usable.
  constexpr std::uint32_t known_spread() const {
    const auto p = static_cast<std::uint32_t>(bits_ & phase_mask);
    return usable_spread() | (p & ~(p >> 2) & every_slot);
  }
  // Slots whose page Evict could take now: Ready or ReadyCopy, bit 2 set and bit 1 not, and nobody pins the word.
  constexpr std::uint32_t evictable_spread() const {
    const auto p = static_cast<std::uint32_t>(bits_ & phase_mask);
    return pins() != 0 ? 0 : p >> 2 & ~(p >> 1) & every_slot;
  }
  constexpr SlotMask usable_slots() const { return word_detail::slots_of(usable_spread()); }
  constexpr SlotMask evictable_slots() const { return word_detail::slots_of(evictable_spread()); }
  constexpr bool usable(SlotMask required) const {
    const std::uint32_t need = word_detail::spread[required];
    return (usable_spread() & need) == need;
  }
  constexpr bool usable_slot(int slot) const { return usable_spread() >> (3 * slot) & 1; }
  constexpr bool known_slot(int slot) const { return known_spread() >> (3 * slot) & 1; }
  constexpr std::uint32_t spread_in(Phase phase) const {  // all slots at once: unpin asks this every time
    const auto p = static_cast<std::uint32_t>(bits_ & phase_mask);
    const auto v = static_cast<std::uint32_t>(phase);
    return (v & 1 ? p : ~p) & (v & 2 ? p >> 1 : ~(p >> 1)) & (v & 4 ? p >> 2 : ~(p >> 2)) & every_slot;
  }
  constexpr bool any(Phase phase) const { return spread_in(phase) != 0; }
  constexpr SlotMask slots_in(Phase phase) const { return word_detail::slots_of(spread_in(phase)); }

  // Requires: pins() + n <= pins_max.
  constexpr Word pinned(std::uint32_t n) const { return Word(bits_ + n * pin_one); }
  constexpr Word unpinned() const { return Word(bits_ & ~(std::uint64_t{pins_closed} << phase_bits)); }
  constexpr Word next_generation() const { return Word(bits_ + generation_one); }
  constexpr Word closed_next() const { return bare(next_generation().generation(), pins_closed); }

  // Applies one event to every slot of `mask`, all or none; the generation moves once if any page is
  // given up. Returns nothing where the table has no such row, or the pins forbid it.
  constexpr std::optional<Word> apply(SlotMask mask, Event event) const {
    if (!live()) return std::nullopt;
    std::uint64_t bits = bits_;
    bool gives_up = false;
    for (std::uint32_t left = mask; left != 0; left &= left - 1) {
      const int slot = std::countr_zero(left);
      const Transition* row = find_transition(phase(slot), event);
      if (row == nullptr || (row->pins == PinRule::ZeroOnly && pins() != 0)) return std::nullopt;
      bits = (bits & ~(std::uint64_t{7} << (3 * slot))) | static_cast<std::uint64_t>(row->to) << (3 * slot);
      gives_up |= row->gives_up;
    }
    return gives_up ? Word(bits).next_generation() : Word(bits);
  }

  // The same without the tier's answers: slots that are tier-only become absent. No word keeps one beyond the step that
  // uses it, since what a tier holds is asked of the tier, whose index is in memory and never stale. Part of a step that
  // gives a page up, so that the generation has moved already, once.
  constexpr Word without_tier_only() const {
    const SlotMask kept = slots_in(Phase::TierOnly);
    return kept == 0 ? *this : Word(apply(kept, Event::RecordGone)->bits() - generation_one);
  }

  friend constexpr bool operator==(const Word&, const Word&) = default;

 private:
  static constexpr std::uint32_t every_slot = word_detail::spread[255];
  std::uint64_t bits_ = 0;
};

}  // namespace hkv
