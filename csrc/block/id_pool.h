// SPDX-License-Identifier: Apache-2.0
// A pool of ids as a bitmap: descriptors and pages are handed out and come back here.
//
// Thread safety: all operations on any thread.
// Invariants:
//  1. A set bit is a free id; an id is handed out by the one CAS that clears its bit.
//  2. What the last owner did with an id happens before what the next one does: give back releases
//     (10), take acquires (11).
#pragma once
#include <bit>
#include <cstdint>
#include <memory>

#include "base/atomic.h"
#include "base/check.h"
#include "base/types.h"

namespace hkv {

class IdPool {
 public:
  // Requires: 0 < count < 2^32 - 1.
  explicit IdPool(std::uint32_t count)
      : count_(count), word_count_((count + 63) / 64), words_(new Atom<std::uint64_t>[word_count_]) {
    reset();
  }

  // Makes every id free. Requires: no other call in flight.
  void reset() {
    for (std::uint32_t i = 0; i < word_count_; ++i) words_[i].store(full_word(i));
    free_.store(count_);
    hint_.store(0);
  }

  std::uint32_t count() const { return count_; }
  // A count that was true at some moment; exact when idle. Progress: wait-free.
  std::uint32_t free_count() const { return free_.load(); }
  bool is_free(std::uint32_t id) const { return words_[id / 64].load() >> (id % 64) & 1; }

  // Takes a free id, or none_u32 where a whole scan saw none. Progress: lock-free (a lost CAS means
  // that another thread took or gave back an id).
  std::uint32_t take() {
    const std::uint32_t start = hint_.load();
    for (std::uint32_t step = 0; step < word_count_; ++step) {
      std::uint32_t at_word = start + step;
      if (at_word >= word_count_) at_word -= word_count_;
      std::uint64_t bits = words_[at_word].load();
      while (bits != 0) {
        const std::uint64_t rest = bits & (bits - 1);
        // (11) acquire-CAS synchronizes-with (10)
        if (words_[at_word].compare_exchange(bits, rest, at(11, acquire))) {
          if (step != 0) hint_.store(at_word);
          free_.fetch_sub(1);
          return at_word * 64 + static_cast<std::uint32_t>(std::countr_zero(bits));
        }
      }
    }
    return none_u32;
  }

  // Gives an id back. Requires: the caller owns it. Progress: wait-free.
  void give_back(std::uint32_t id) {
    const std::uint64_t bit = std::uint64_t{1} << (id % 64);
    free_.fetch_add(1);  // before the id can be taken and counted off again: the count never wraps below 0
    // (10) release-RMW synchronizes-with (11)
    const std::uint64_t before = words_[id / 64].fetch_or(bit, at(10, release));
    HKV_CHECK((before & bit) == 0);
    hint_.store(id / 64);  // in a full pool the one free id is where one came back last
  }

  std::size_t bytes() const { return word_count_ * sizeof(std::uint64_t); }

 private:
  std::uint64_t full_word(std::uint32_t i) const {
    const std::uint32_t left = count_ - i * 64;
    return left >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << left) - 1;
  }

  std::uint32_t count_, word_count_;
  std::unique_ptr<Atom<std::uint64_t>[]> words_;
  Atom<std::uint32_t> free_;
  Atom<std::uint32_t> hint_;
};

}  // namespace hkv
