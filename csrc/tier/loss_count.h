// SPDX-License-Identifier: Apache-2.0
// How often a tier has lost records that it had: who looked at all that it knows need not look again until this moves.
//
// Thread safety: every operation on any thread, wait-free.
// Invariant: whoever reads the count that a loss moved it to, or a later one, finds the record gone. Why: the loss is noted
// after the record went, and the note is a release that the reading acquires.
#pragma once
#include <cstdint>

#include "base/atomic.h"

namespace hkv {

class LossCount {
 public:
  // Requires: what is lost cannot be found any more by a reader that comes after this.
  void note() {
    // (47) release-RMW synchronizes-with (48)
    count_.fetch_add(1, at(47, release));
  }
  std::uint64_t read() const {
    // (48) acquire-load synchronizes-with (47)
    return count_.load(at(48, acquire));
  }

 private:
  Atom<std::uint64_t> count_{0};
};

}  // namespace hkv
