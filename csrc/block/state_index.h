// SPDX-License-Identifier: Apache-2.0
// The five state bitmaps: for scans, counts and metrics. Derived from the words; they never decide.
//
// Thread safety: refresh() on any thread; reads see bits that may lag behind the words.
// Invariant: when no transition is in flight every bit equals what its words say. Why: whoever changed a
// word refreshes the bit afterwards, and after setting it reads the words again until they have not moved.
// Of two refreshers the later one in the order of the bit's RMWs (20) reads the earlier one's RMW, hence
// sees the word change that preceded it, so the last bit written is derived from the last words.
#pragma once
#include <array>
#include <bit>
#include <cstdint>
#include <memory>

#include "base/atomic.h"
#include "base/types.h"
#include "block/descriptor.h"

namespace hkv {

enum class StateKind : std::uint8_t { Compressed = 0, Tail = 1, Window = 2, Indexer = 3, Disk = 4 };
inline constexpr int state_kind_count = 5;

// For each kind, the slots of H and of B whose group is of that kind (Disk: every slot).
struct KindSlots {
  SlotMask h = 0, b = 0;
};
using KindMap = std::array<KindSlots, state_kind_count>;

class StateIndex {
 public:
  StateIndex(std::uint32_t descriptors, const KindMap& kinds)
      : words_per_kind_((descriptors + 63) / 64),
        kinds_(kinds),
        bits_(new Atom<std::uint64_t>[std::size_t{words_per_kind_} * state_kind_count]) {}

  // Kinds whose bits a step on these slots of one word can change; Disk where a record comes or goes, too.
  // The five bits, where nothing is known.
  static constexpr std::uint32_t all_kinds = (1u << state_kind_count) - 1;
  std::uint32_t kinds_of(WordClass which, SlotMask slots, bool records) const {
    std::uint32_t kinds = records ? 1u << static_cast<int>(StateKind::Disk) : 0;
    for (int kind = 0; kind < static_cast<int>(StateKind::Disk); ++kind) {
      const SlotMask of_kind = which == WordClass::H ? kinds_[kind].h : kinds_[kind].b;
      if ((of_kind & slots) != 0) kinds |= 1u << kind;
    }
    return kinds;
  }

  // Brings those bits of one descriptor in step with its words: all that the caller's step can have changed; whoever
  // changed others refreshes them. Progress: lock-free.
  void refresh(DescriptorId id, const Descriptor& d, std::uint32_t kinds = all_kinds) {
    Word h = d.word(WordClass::H), b = d.word(WordClass::B);
    for (;;) {
      for (int kind = 0; kind < state_kind_count; ++kind) {
        if (kinds >> kind & 1) set(kind, id, derive(kind, h, b));
      }
      const Word h_now = d.word(WordClass::H), b_now = d.word(WordClass::B);
      if (same_phases(h, h_now) && same_phases(b, b_now)) return;
      h = h_now;
      b = b_now;
    }
  }

  bool get(StateKind kind, DescriptorId id) const {
    return word(static_cast<int>(kind), id).load() >> (index(id) % 64) & 1;
  }

  // Whether any of the 64 descriptors from `first` on has it. Requires: first a multiple of 64.
  bool any(StateKind kind, DescriptorId first) const {
    return word(static_cast<int>(kind), first).load() != 0;
  }

  // Descriptors with a usable page of that kind (Disk: with a record in a tier), as far as the bits tell.
  std::uint64_t count(StateKind kind) const {
    std::uint64_t total = 0;
    for (std::uint32_t i = 0; i < words_per_kind_; ++i) {
      total += static_cast<std::uint64_t>(
          std::popcount(bits_[static_cast<std::size_t>(kind) * words_per_kind_ + i].load()));
    }
    return total;
  }

  // Whether the bits of one descriptor are what its words say. Exact when idle.
  bool verify(DescriptorId id, const Descriptor& d) const {
    for (int kind = 0; kind < state_kind_count; ++kind) {
      const bool want = derive(kind, d.word(WordClass::H), d.word(WordClass::B));
      if (get(static_cast<StateKind>(kind), id) != want) return false;
    }
    return true;
  }

  // Clears every bit. Requires: no other call in flight.
  void reset() {
    for (std::size_t i = 0; i < std::size_t{words_per_kind_} * state_kind_count; ++i) bits_[i].store(0);
  }

  // Flips one bit: for tests of verify() alone.
  void corrupt(StateKind kind, DescriptorId id) {
    auto& bits = word(static_cast<int>(kind), id);
    bits.store(bits.load() ^ std::uint64_t{1} << (index(id) % 64));
  }

  std::size_t bytes() const {
    return std::size_t{words_per_kind_} * state_kind_count * sizeof(std::uint64_t);
  }

 private:
  static bool same_phases(Word a, Word b) { return ((a.bits() ^ b.bits()) & Word::phase_mask) == 0; }

  bool derive(int kind, Word h, Word b) const {
    const std::uint32_t h_slots = word_detail::spread[kinds_[kind].h],
                        b_slots = word_detail::spread[kinds_[kind].b];
    if (kind == static_cast<int>(StateKind::Disk)) {
      return (tiered(h) & h_slots) != 0 || (tiered(b) & b_slots) != 0;
    }
    return (h.usable_spread() & h_slots) != 0 || (b.usable_spread() & b_slots) != 0;
  }
  // TierOnly, Restoring, ReadyCopy: a record rests in a tier.
  static std::uint32_t tiered(Word w) {
    return w.spread_in(Phase::TierOnly) | w.spread_in(Phase::Restoring) | w.spread_in(Phase::ReadyCopy);
  }

  void set(int kind, DescriptorId id, bool on) {
    const std::uint64_t bit = std::uint64_t{1} << (index(id) % 64);
    // (20) acq_rel-RMW synchronizes-with (20, 21); acquire: the word change behind the last refresh; release: ours
    if (on) word(kind, id).fetch_or(bit, at(20, acq_rel));
    // (21) acq_rel-RMW synchronizes-with (20, 21)
    if (!on) word(kind, id).fetch_and(~bit, at(21, acq_rel));
  }
  Atom<std::uint64_t>& word(int kind, DescriptorId id) {
    return bits_[std::size_t{words_per_kind_} * kind + index(id) / 64];
  }
  const Atom<std::uint64_t>& word(int kind, DescriptorId id) const {
    return bits_[std::size_t{words_per_kind_} * kind + index(id) / 64];
  }

  std::uint32_t words_per_kind_;
  KindMap kinds_;
  std::unique_ptr<Atom<std::uint64_t>[]> bits_;
};

}  // namespace hkv
