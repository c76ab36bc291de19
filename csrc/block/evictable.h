// SPDX-License-Identifier: Apache-2.0
// How many pages of each group could be evicted now: those that are Ready or ReadyCopy under no pin.
//
// Thread safety: add and read on any thread, wait-free; exact when idle.
// Invariant: the count of a slot is the sum over all words of Word::evictable_spread(). Why: it is a function of
// one word, and whoever changes a word from one value to another adds the difference of the two, once.
#pragma once
#include <bit>
#include <cstdint>

#include "base/counter.h"
#include "block/descriptor.h"
#include "block/word.h"

namespace hkv {

// By how much the counts change over the many pins, or the many unpins, of one caller: added in one go.
class EvictableChange {
 public:
  // The evictable slots of a word that a pin took, or that an unpin left. A prefix's words are alike, so a run of
  // equal ones costs an increment each.
  void note(WordClass which, std::uint32_t spread) {
    Run& run = runs_[static_cast<int>(which)];
    if (spread != run.spread) {
      settle(run);
      run.spread = spread;
    }
    ++run.length;
  }

  // Calls add(which, slot, count) for every slot that changed, and forgets.
  template <class Add>
  void drain(Add&& add) {
    for (int which = 0; which < 2; ++which) {
      Run& run = runs_[which];
      settle(run);
      for (int slot = 0; slot < Word::slots; ++slot) {
        if (run.count[slot] != 0) add(static_cast<WordClass>(which), slot, run.count[slot]);
        run.count[slot] = 0;
      }
    }
  }

 private:
  struct Run {
    std::uint32_t spread = 0;
    std::int64_t length = 0;
    std::int64_t count[Word::slots] = {};
  };
  static void settle(Run& run) {
    for (std::uint32_t bits = run.spread; bits != 0; bits &= bits - 1)
      run.count[std::countr_zero(bits) / 3] += run.length;
    run.length = 0;
  }
  Run runs_[2];
};

class Evictable {
 public:
  std::int64_t read(WordClass which, int slot) const { return counts_.read(place(which, slot)); }
  void add(WordClass which, int slot, std::int64_t by) { counts_.add(place(which, slot), by); }

  // One word changed from `before` to `after`.
  void changed(WordClass which, Word before, Word after) {
    const std::uint32_t was = before.evictable_spread(), is = after.evictable_spread();
    for (std::uint32_t bits = was ^ is; bits != 0; bits &= bits - 1) {
      const int at_bit = std::countr_zero(bits);
      add(which, at_bit / 3, (is >> at_bit & 1) != 0 ? 1 : -1);
    }
  }
  // Requires: no other call in flight.
  void reset() { counts_.reset(); }

 private:
  static int place(WordClass which, int slot) { return static_cast<int>(which) * Word::slots + slot; }
  Counters<2 * Word::slots> counts_;
};

}  // namespace hkv
