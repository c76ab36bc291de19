// SPDX-License-Identifier: Apache-2.0
// A pool of ids as a bitmap with summary words: descriptors and pages are handed out and come back here.
//
// Thread safety: all operations on any thread.
// Invariants:
//  1. A set bit is a free id; an id is handed out by the one CAS that clears its bit.
//  2. What the last owner did with an id happens before what the next one does: give back releases
//     (10), take acquires (11).
//  3. A word with a free id has its summary bit set when all is quiet. Whoever takes the last id of a word leaves
//     the bit; a taker that finds the word empty clears it (19) and looks at the word once more (22); whoever gives
//     an id back (10) looks at the bit afterwards (14) and sets it where it is clear. All four are in one order, so
//     that of a giver and a clearer who meet at least one sees the other, and sets the bit. Until then take finds the
//     id by looking at every word, which it does before it says that there is none.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <span>

#include "base/atomic.h"
#include "base/check.h"
#include "base/thread_slot.h"
#include "base/types.h"

namespace hkv {

class IdPool {
 public:
  // Requires: 0 < count < 2^32 - 1.
  explicit IdPool(std::uint32_t count)
      : count_(count),
        word_count_((count + 63) / 64),
        summary_count_((word_count_ + 63) / 64),
        words_(new Atom<std::uint64_t>[word_count_]),
        summary_(new Atom<std::uint64_t>[summary_count_]) {
    reset();
  }

  // Makes every id free. Requires: no other call in flight.
  void reset() {
    for (std::uint32_t i = 0; i < word_count_; ++i) words_[i].store(full_word(count_, i));
    for (std::uint32_t i = 0; i < summary_count_; ++i) summary_[i].store(full_word(word_count_, i));
    // Threads begin apart, so that they meet only where ids run short.
    for (std::uint32_t i = 0; i < thread_slots; ++i) {
      own_[i].hint.store(static_cast<std::uint32_t>(std::uint64_t{i} * word_count_ / thread_slots));
      own_[i].given.store(0);
    }
  }

  std::uint32_t count() const { return count_; }
  // Exact when idle; else near the truth, and never outside [0, count()]. Progress: wait-free.
  std::uint32_t free_count() const {
    std::int64_t free = count_;
    for (const Own& own : own_) free += own.given.load();
    return static_cast<std::uint32_t>(std::clamp<std::int64_t>(free, 0, count_));
  }
  bool is_free(std::uint32_t id) const { return words_[id / 64].load() >> (id % 64) & 1; }

  // Takes a free id, or none_u32 where a whole scan saw none. Progress: lock-free.
  std::uint32_t take() {
    std::uint32_t id = none_u32;
    take_some({&id, 1});
    return id;
  }

  // Fills `out` from the front with free ids. Returns: how many; fewer than asked where a whole scan saw no
  // more. Progress: lock-free (a lost CAS means that another thread took or gave back an id).
  std::size_t take_some(std::span<std::uint32_t> out) {
    std::size_t taken = take_by_summary(out);
    for (std::uint32_t i = 0; i < word_count_ && taken < out.size(); ++i)
      taken += take_from(i, out.subspan(taken));
    note_given(-static_cast<std::int64_t>(taken));
    return taken;
  }

  // Gives an id back. Requires: the caller owns it. Progress: wait-free.
  void give_back(std::uint32_t id) {
    give_back_word(id / 64, std::uint64_t{1} << (id % 64));
    note_given(1);
  }

  // Gives ids back, neighbours of one word at once. Requires: the caller owns them. Progress: wait-free.
  void give_back_some(std::span<const std::uint32_t> ids) {
    for (std::size_t i = 0; i < ids.size();) {
      const std::uint32_t word = ids[i] / 64;
      std::uint64_t bits = 0;
      for (; i < ids.size() && ids[i] / 64 == word; ++i) {
        const std::uint64_t bit = std::uint64_t{1} << (ids[i] % 64);
        HKV_CHECK((bits & bit) == 0);
        bits |= bit;
      }
      give_back_word(word, bits);
    }
    note_given(static_cast<std::int64_t>(ids.size()));
  }

  // Whether every word with a free id is in the summary. Requires: idle.
  bool summary_holds() const {
    for (std::uint32_t i = 0; i < word_count_; ++i) {
      if (words_[i].load() != 0 && (summary_[i / 64].load() >> (i % 64) & 1) == 0) return false;
    }
    return true;
  }

  std::size_t bytes() const { return (word_count_ + summary_count_) * sizeof(std::uint64_t); }

 private:
  // What a thread keeps on a line of its own: where it looks first, and what it gave back less what it took.
  struct alignas(cache_line_bytes) Own {
    Atom<std::uint32_t> hint;
    Atom<std::int64_t> given;
  };

  void note_given(std::int64_t ids) { add_at_thread_slot(own_[thread_slot()].given, ids); }

  static std::uint64_t full_word(std::uint32_t count, std::uint32_t i) {
    const std::uint32_t left = count - i * 64;
    return left >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << left) - 1;
  }

  std::size_t take_by_summary(std::span<std::uint32_t> out) {
    Atom<std::uint32_t>& hint = own_[thread_slot()].hint;
    const std::uint32_t start = hint.load();
    std::size_t taken = 0;
    // The summary word of the hint comes twice: from the hint on, and at the end the part before it.
    for (std::uint32_t step = 0; step <= summary_count_; ++step) {
      std::uint32_t at_word = start / 64 + step;
      if (at_word >= summary_count_) at_word -= summary_count_;
      std::uint64_t some = summary_[at_word].load();
      if (step == 0) some &= ~std::uint64_t{0} << (start % 64);
      for (; some != 0; some &= some - 1) {
        const std::uint32_t word = at_word * 64 + static_cast<std::uint32_t>(std::countr_zero(some));
        taken += take_from(word, out.subspan(taken));
        if (taken == out.size()) {
          if (word != start) hint.store(word);
          return taken;
        }
      }
    }
    return taken;
  }

  // Takes as many ids of one word as `out` wants, in one CAS.
  std::size_t take_from(std::uint32_t word, std::span<std::uint32_t> out) {
    std::uint64_t bits = words_[word].load();
    for (;;) {
      if (bits == 0) {
        clear_summary(word);
        return 0;
      }
      std::uint64_t rest = bits;
      const std::size_t n = std::min<std::size_t>(out.size(), static_cast<std::size_t>(std::popcount(bits)));
      if (n == static_cast<std::size_t>(std::popcount(bits))) {
        rest = 0;
      } else {
        for (std::size_t i = 0; i < n; ++i) rest &= rest - 1;
      }
      // (11) acquire-CAS synchronizes-with (10)
      if (!words_[word].compare_exchange(bits, rest, at(11, acquire))) continue;
      std::uint64_t mine = bits & ~rest;
      for (std::size_t i = 0; i < n; ++i, mine &= mine - 1)
        out[i] = word * 64 + static_cast<std::uint32_t>(std::countr_zero(mine));
      return n;
    }
  }

  void clear_summary(std::uint32_t word) {
    const std::uint64_t bit = std::uint64_t{1} << (word % 64);
    // (19) seq_cst-RMW synchronizes-with (14), in one order with (10) and (22)
    summary_[word / 64].fetch_and(~bit, at(19, seq_cst));
    // (22) seq_cst-load synchronizes-with (10), in one order with (14) and (19)
    if (words_[word].load(at(22, seq_cst)) != 0) summary_[word / 64].fetch_or(bit);
  }

  void give_back_word(std::uint32_t word, std::uint64_t bits) {
    // (10) seq_cst-RMW synchronizes-with (11, 22), in one order with (14) and (19)
    const std::uint64_t before = words_[word].fetch_or(bits, at(10, seq_cst));
    HKV_CHECK((before & bits) == 0);
    if (before != 0) return;  // whoever made it non-zero has seen to the summary
    const std::uint64_t bit = std::uint64_t{1} << (word % 64);
    // (14) seq_cst-load synchronizes-with (19), in one order with (10) and (22)
    if ((summary_[word / 64].load(at(14, seq_cst)) & bit) == 0) summary_[word / 64].fetch_or(bit);
  }

  std::uint32_t count_, word_count_, summary_count_;
  std::unique_ptr<Atom<std::uint64_t>[]> words_, summary_;
  std::array<Own, thread_slots> own_;
};

}  // namespace hkv
