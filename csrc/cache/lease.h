// SPDX-License-Identifier: Apache-2.0
// A lease: pins on exactly the pages that a resume needs. Page ids and addresses come from here alone.
//
// Thread safety: one owner at a time; the pins it holds are seen by every thread.
// Invariants:
//  1. Every pin listed here is held: `add` after the CAS, dropped once by `drop`.
//  2. A lease as a whole is true at its last successful pin: every earlier pin still holds then, so at that
//     moment all that was checked is true at once (the linearization point of a match).
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "block/store.h"
#include "layout/key_chain.h"
#include "reuse/verdict.h"

namespace hkv {

enum class Settlement : std::uint8_t { Open, Released, Failed, Withdrawn };

struct Lease {
  static constexpr std::ptrdiff_t unpin_ahead = 16;  // pins of one lease lie apart in memory
  // A page held for a Window, Chunk or Checkpoint group, or a tip's partial page of any group.
  struct Held {
    int group;
    std::int64_t block;
    DescriptorId id;
  };
  struct Pin {
    DescriptorId id;
    WordClass which;
  };

  std::int64_t tokens = 0;
  std::shared_ptr<const KeyChain> keys;  // what it was matched with
  std::vector<DescriptorId> history;  // one a probe position below `tokens`; no_descriptor where none records
  std::vector<Held> held;
  std::vector<Pin> pins;       // in the order taken
  std::uint32_t replayed = 0;  // groups that are not held but computed again
  // Where computing starts, at or below `tokens`: of all replayed groups at the earliest that one of them needs, since
  // that is where layers run from, and the rows of each are read by the queries of its own layers.
  std::int64_t resume_tokens = 0;
  Verdict verdict;  // for the counters, when it is settled
  Settlement settlement = Settlement::Open;
  bool unowned = false;  // counted among the pins that no ticket answers for

  // Empties it for the next user; keeps its memory.
  void clear() {
    tokens = resume_tokens = 0;
    keys.reset();
    history.clear();
    held.clear();
    pins.clear();
    replayed = 0;
    settlement = Settlement::Open;
  }

  // Drops every pin, newest first: one use of all that nobody else pins. Progress: lock-free.
  void drop(BlockStore& store) {
    if (pins.empty()) return;
    const std::uint32_t tick = store.recency().next();
    EvictableChange change;
    for (auto pin = pins.rbegin(); pin != pins.rend(); ++pin) {
      if (pins.rend() - pin > unpin_ahead) store.prefetch_unpin((pin + unpin_ahead)->id);
      store.unpin(pin->id, pin->which, tick, change);
    }
    store.count_unpins(change);
    pins.clear();
  }
};

// Whether the keys begin with the tokens that the lease covers.
bool continues(const Lease& lease, const KeyChain& keys);

}  // namespace hkv
