// SPDX-License-Identifier: Apache-2.0
// A descriptor: one 64-byte line that stands for one keyed unit, and how it is read, claimed, pinned.
//
// Thread safety: every operation may run on any thread at any time; the line is type-stable and never
// freed. Fields, by what protects them:
//   key              written by the inserter alone, before the descriptor is opened; see invariant 1
//   H, B             the words of truth; changed by CAS and fetch_sub alone
//   parent, used     hints about order (recency.h), written by whoever publishes or releases
//   pages            page ids, each written by the owner of Filling of its group only, read under a pin or
//                    before the CAS that gives the group up. A tip directory keeps ids of tips there instead.
// Invariants:
//  1. A key read between two loads of H of the same generation is the key of that life. Why: the key is
//     stored after the generation moved (the closing CAS happens before the id is free, hence before
//     the new owner's release store (3)); who reads a new half by (4) therefore re-loads a moved H.
//  2. A pin taken by CAS on the checked generation pins exactly the pages checked (word.h, invariant 1).
//  3. Who gives up a page with 0 pins sees every read made under earlier pins as done: unpin releases
//     (7), the giving-up CAS acquires (8); later pins and unpins are RMWs and keep the release sequence.
//  4. Who sees B as a step after the end of a life left it sees H closed or later: that step (8) releases,
//     the load of B (9) acquires, and sight() loads H again after it. Hence no claim on B follows the erase.
//  5. Of two threads that empty one word each, at least one sees both empty: the CAS (8) that empties a word
//     and the loads (15, 16) after it are seq_cst. Hence an empty descriptor does not stay behind.
//  6. The page id that a retirer read before its CAS (8) is not the next owner's: the claim (17) acquires
//     what that CAS released, so the next owner's store of a page id comes after the retirer's load of it.
//     (On x86-64 every locked CAS orders it; elsewhere a load may be delayed behind a later relaxed CAS. A
//     model checker that runs loads in program order cannot show this reordering.)
//  7. Who reads H as a claim on B left it (18, 15) sees that claim, so no life ends around a claim that holds.
// Edges between threads:
//   (1) open -> (2), (15) sight     a found descriptor shows the words it was opened with
//   (3) key -> (4) key              invariant 1
//   (5) publish -> (2), (6), (9)    page ids and bytes are there for whoever sees the phase usable
//   (7) unpin -> (8) give up        invariant 3
//   (7) unpin -> (2) sight          what was filed in a directory under a pin is there for who sees it unpinned
//   (8) give up -> (9), (17)        invariants 4 and 6;  (8) give up -> (15), (16): invariant 5
//   (18) claim on B -> (15)         invariant 7
#pragma once
#include <cstdint>

#include "base/atomic.h"
#include "base/check.h"
#include "base/hint.h"
#include "base/types.h"
#include "block/word.h"

namespace hkv {

enum class WordClass : std::uint8_t { H = 0, B = 1 };

// A descriptor's words as read once. `found` is false where the key has no life in the table.
struct Sighting {
  DescriptorId id = no_descriptor;
  Word h, b;
  constexpr bool found() const { return id != no_descriptor; }
  constexpr Word word(WordClass which) const { return which == WordClass::H ? h : b; }
};

enum class PinResult : std::uint8_t { Pinned, Raced, Full };

class alignas(cache_line_bytes) Descriptor {
 public:
  static constexpr int inline_pages = 6;
  static constexpr int tips_per_directory = 4;

  Descriptor()
      : words_{Atom<std::uint64_t>(Word::bare(0, Word::pins_closed).bits()), Atom<std::uint64_t>(0)} {}

  // ---- life -----------------------------------------------------------------------------------
  //
  // closed -> tentative (open) -> live (settle) -> closed (Table::erase); tentative -> closed (withdraw).
  // Only a live descriptor is found, pinned, claimed or erased.

  // Gives the line a key. Requires: the caller took the id from the pool, so it is alone.
  // Returns: the tentative H, which names this life to settle(). Progress: wait-free.
  Word open(Key128 key) {
    // (3) release-store synchronizes-with (4)
    key_lo_.store(key.lo, at(3, release));
    // (23) release-store synchronizes-with (24)
    key_hi_.store(key.hi, at(23, release));
    parent_.store(none_u32);
    for (auto& page : pages_) page.store(none_u32);
    const Word tentative = Word::bare(word(WordClass::H).generation(), Word::pins_tentative);
    // (1) release-store synchronizes-with (2, 15)
    atom(WordClass::H).store(tentative.bits(), at(1, release));
    return tentative;
  }

  // Makes a tentative descriptor live; also done for a stopped inserter by whoever meets its final slot.
  // An RMW: it stays in the release sequence of (1). Requires: the slot is final. Progress: wait-free.
  void settle(Word tentative) {
    std::uint64_t bits = tentative.bits();
    atom(WordClass::H).compare_exchange(bits, Word::bare(tentative.generation(), 0).bits());
  }

  // Ends a life that never got a final slot. Requires: the caller opened it. Progress: wait-free.
  void withdraw() {
    const Word h = word(WordClass::H);
    HKV_CHECK(h.tentative());
    atom(WordClass::H).store(h.closed_next().bits());
  }

  // Ends whatever life there is. Requires: no other call in flight.
  void reset() {
    atom(WordClass::H).store(word(WordClass::H).closed_next().bits());
    atom(WordClass::B).store(Word::bare(word(WordClass::B).next_generation().generation(), 0).bits());
  }

  // ---- reading --------------------------------------------------------------------------------

  // Reads both words if the line lives under `key`. Stores nothing.
  // Returns: false where it does not, or where its life moved on at each of a few attempts: a miss that
  // was true when read. Progress: wait-free.
  bool sight(Key128 key, Word& h, Word& b) const {
    Look seen = Look::Moved;
    for (int attempt = 0; seen == Look::Moved && attempt < sight_attempts; ++attempt) seen = look(key, h, b);
    return seen == Look::Yes && h.live();
  }

  // The same for a life that the caller knows to go on, or wants to know over: it ends only with an answer.
  // Progress: lock-free (the life's words move meanwhile).
  bool sight_steadily(Key128 key, Word& h, Word& b) const {
    Look seen = Look::Moved;
    while (seen == Look::Moved) seen = look(key, h, b);
    return seen == Look::Yes && h.live();
  }

  // One look at both words, of a tentative life as well. Moved: they changed meanwhile, which says nothing.
  enum class Look : std::uint8_t { No, Yes, Moved };
  Look look(Key128 key, Word& h, Word& b) const {
    // (2) acquire-load synchronizes-with (1, 5, 7)
    h = Word(atom(WordClass::H).load(at(2, acquire)));
    if (h.closed()) return Look::No;
    // (9) acquire-load synchronizes-with (5, 8)
    b = Word(atom(WordClass::B).load(at(9, acquire)));
    // (4) acquire-load synchronizes-with (3)
    const std::uint64_t lo = key_lo_.load(at(4, acquire));
    // (24) acquire-load synchronizes-with (23)
    const std::uint64_t hi = key_hi_.load(at(24, acquire));
    if (lo != key.lo || hi != key.hi) return Look::No;
    return word(WordClass::H).generation() == h.generation() ? Look::Yes : Look::Moved;
  }

  // Whether both words are empty, read after the caller's own step emptied one of them (invariant 5). The key
  // needs no re-load of H: a CAS on H from `h` follows, which fails if that life is over. Progress: wait-free.
  bool sight_empty(Key128 key, Word& h, Word& b) const {
    // (15) seq_cst-load synchronizes-with (1, 8, 18)
    h = Word(atom(WordClass::H).load(at(15, seq_cst)));
    // (16) seq_cst-load synchronizes-with (8)
    b = Word(atom(WordClass::B).load(at(16, seq_cst)));
    return h.empty() && b.empty() && this->key() == key;
  }

  Word word(WordClass which) const { return Word(atom(which).load()); }

  // The key as it is now; meaningful for the owner of a life (a pin, a claim) only.
  Key128 key() const { return {key_lo_.load(), key_hi_.load()}; }

  // ---- pins -----------------------------------------------------------------------------------

  // Pins the word if its generation and the required phases are still the ones checked. A CAS lost only
  // to another pin repeats. `seen` may come from any load of the word, however old: the pin itself acquires.
  // `before`, where given, is the word that a successful pin was added to. Progress: lock-free.
  PinResult pin(WordClass which, Word seen, SlotMask required, Word* before = nullptr) {
    std::uint64_t bits = seen.bits();
    for (;;) {
      const Word now(bits);
      if (now.generation() != seen.generation() || !now.live() || !now.usable(required)) {
        return PinResult::Raced;
      }
      if (now.pins() == Word::pins_max) return PinResult::Full;
      // (6) acquire-CAS synchronizes-with (5)
      if (!atom(which).compare_exchange(bits, bits + Word::pin_one, at(6, acquire))) continue;
      if (before != nullptr) *before = now;
      return PinResult::Pinned;
    }
  }

  // Drops one pin. Returns: the word after it; pins 0 with a slot in Retiring is the caller's to finish.
  // Requires: the caller holds a pin. Progress: wait-free.
  Word unpin(WordClass which) {
    // (7) release-RMW synchronizes-with (2, 8)
    return Word(atom(which).fetch_sub(Word::pin_one, at(7, release)) - Word::pin_one);
  }

  // ---- transitions ----------------------------------------------------------------------------

  // One CAS of `event` on `mask` from `seen`; `seen` is the value now on failure. The order fits events
  // that neither publish nor give up. Progress: wait-free (one attempt).
  bool try_apply(WordClass which, Word& seen, Word next) { return replace(which, seen, next, relaxed); }

  // As try_apply, for Publish, Restored: page ids and bytes written before become visible.
  bool try_publish(WordClass which, Word& seen, Word next) {
    // (5) release-CAS synchronizes-with (2, 6, 9)
    return replace(which, seen, next, at(5, release));
  }

  // As try_apply, for events that take a slot out of Absent: invariant 6.
  bool try_claim(WordClass which, Word& seen, Word next) {
    // (17) acquire-CAS synchronizes-with (8)
    return replace(which, seen, next, at(17, acquire));
  }

  // Moves the generation of H after a claim on B: an eraser who read H before fails, and one who reads it
  // from now on sees the claim (invariant 7).
  bool try_outlive(Word& h) {
    // (18) release-CAS synchronizes-with (15)
    return replace(WordClass::H, h, h.next_generation(), at(18, release));
  }

  // As try_apply, for events that give a page up or end a life. acquire: every read under an earlier pin is
  // over (invariant 3); release: invariants 4 and 6; seq_cst: invariant 5.
  bool try_give_up(WordClass which, Word& seen, Word next) {
    // (8) seq_cst-CAS synchronizes-with (7, 9, 15, 16, 17)
    return replace(which, seen, next, at(8, seq_cst));
  }

  // ---- page ids, order, directory -------------------------------------------------------------

  PageId page(int group) const { return PageId{pages_[group].load()}; }
  // Requires: the caller owns Filling or Restoring of that group. Progress: wait-free.
  void set_page(int group, PageId page) { pages_[group].store(index(page)); }
  // The descriptor of what this unit continues, as far as its writer knew: a hint, checked against the tag of that
  // one's key (recency.h), since the id may have another life by now.
  DescriptorId parent() const { return DescriptorId{parent_.load()}; }
  void set_parent(DescriptorId id) { parent_.store(index(id)); }
  // The tick of the last use of H, on the line that a release writes anyway.
  std::uint32_t used() const { return used_.load(); }
  void set_used(std::uint32_t tick) { used_.store(tick); }

  // Entry `slot` of a tip directory: the index of a tip's descriptor; none_u32: none.
  Atom<std::uint32_t>& tip(int slot) { return pages_[slot]; }
  const Atom<std::uint32_t>& tip(int slot) const { return pages_[slot]; }

 private:
  static constexpr int sight_attempts = 4;

  // One CAS from `seen`, which becomes the value now where it fails.
  bool replace(WordClass which, Word& seen, Word next, Order order) {
    std::uint64_t bits = seen.bits();
    const bool done = atom(which).compare_exchange(bits, next.bits(), order);
    seen = Word(bits);
    return done;
  }

  Atom<std::uint64_t>& atom(WordClass which) { return words_[static_cast<int>(which)]; }
  const Atom<std::uint64_t>& atom(WordClass which) const { return words_[static_cast<int>(which)]; }

  Atom<std::uint64_t> key_lo_, key_hi_;
  Atom<std::uint64_t> words_[2];
  Hint<std::uint32_t> parent_, used_;
  Atom<std::uint32_t> pages_[inline_pages];
};
#ifndef HKV_RELACY
static_assert(sizeof(Descriptor) == cache_line_bytes);
#endif

}  // namespace hkv
