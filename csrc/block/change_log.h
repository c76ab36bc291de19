// SPDX-License-Identifier: Apache-2.0
// Which descriptors changed since somebody asked: a bit each, from which events are made (cache/events.h).
//
// Thread safety: note() and forget() on any thread, wait-free; take() by one thread at a time.
// Invariants:
//  1. No change is lost: while no step is in flight and a bit is clear, whoever cleared it has read words as new as
//     the last step on them. Why: a step changes its word and then sets the bit (49), whoever takes the bit clears it (50)
//     and then reads the words. Both are RMWs of one bit's word, so one of the two comes first. The step's: then the
//     take reads its RMW, or a later one in its release sequence, and sees the words that preceded it. The take's: then
//     the bit is set again, and the next take finds it.
//  2. It says that something changed and not what: so it cannot overflow, and nothing is told in a wrong order.
// Edges: (49) note -> (50) take
#pragma once
#include <bit>
#include <cstdint>
#include <memory>

#include "base/atomic.h"
#include "base/types.h"

namespace hkv {

class ChangeLog {
 public:
  explicit ChangeLog(std::uint32_t descriptors)
      : words_((descriptors + 63) / 64), bits_(new Atom<std::uint64_t>[words_]) {}

  // What is found and pinned of a descriptor changed. Requires: the word has changed already. Progress: wait-free.
  void note(DescriptorId id) {
    // (49) release-RMW synchronizes-with (50)
    bits_[index(id) / 64].fetch_or(std::uint64_t{1} << (index(id) % 64), at(49, release));
  }

  // All that was published is gone, as far as nobody published meanwhile: a reset, or everything was withdrawn.
  void forget() { forgotten_.store(1); }
  // Whether that happened since the last call. It orders nothing: the bits do.
  bool take_forgotten() { return forgotten_.load() != 0 && forgotten_.exchange(0) != 0; }

  // Calls use(id) for each descriptor that changed since the last call, or, with `all`, for every one; its words are read
  // by `use`. Progress: wait-free but for `use`.
  template <class Use>
  void take(std::uint32_t descriptors, bool all, Use&& use) {
    for (std::uint32_t i = 0; i < words_; ++i) {
      if (!all && bits_[i].load() == 0) continue;
      // (50) acquire-RMW synchronizes-with (49)
      std::uint64_t bits = bits_[i].exchange(0, at(50, acquire));
      if (all) bits = ~std::uint64_t{0};
      for (; bits != 0; bits &= bits - 1) {
        const std::uint32_t id = i * 64 + static_cast<std::uint32_t>(std::countr_zero(bits));
        if (id < descriptors) use(DescriptorId{id});
      }
    }
  }

  std::size_t bytes() const { return std::size_t{words_} * sizeof(std::uint64_t); }

 private:
  std::uint32_t words_;
  std::unique_ptr<Atom<std::uint64_t>[]> bits_;
  Atom<std::uint32_t> forgotten_;
};

}  // namespace hkv
