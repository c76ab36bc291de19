// SPDX-License-Identifier: Apache-2.0
// Which cached pages go when a pool runs short: the interface of an order, and the two orders that are there.
//
// Lru: the least recently released page of the pool goes first; of one release the tail before the head. Pages that
// hold nothing known are free already and are taken before. Usability (usability.h): what makes nothing usable
// goes first, and no history goes from under what continues it.
//
// Thread safety: choose is called under a lock of the caller's. Words change meanwhile: a choice is a hint, and the
// CAS that evicts (0 pins, same generation) decides.
// Cost: a choice is made for a part of the pool at once (eviction_batch), in one pass over all descriptors. An order
// is exact all the same: whatever is released after a pass is newer than all that the pass chose, and what was used
// since is passed over when it comes up.
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "block/store.h"
#include "layout/group.h"

namespace hkv {

enum class EvictionOrder : std::uint8_t { None = 0, Lru = 1, Usability = 2 };

// Why a page went: nothing can reach it; nothing resumes there any more; states of a boundary where the next prompt
// may come; history, or whatever was oldest.
enum class EvictionClass : std::uint8_t { Stranded = 0, Superseded = 1, Tail = 2, History = 3 };
inline constexpr int eviction_class_count = 4;

struct Victim {
  DescriptorId id = no_descriptor;
  EvictionClass why = EvictionClass::History;
  SlotMask h = 0, b = 0;  // what of it goes, where it can
};

// In place of a group where it is descriptors that are short.
inline constexpr int descriptor_pool = -1;

// What knows whether a tier has what words say that it has a copy of.
class CopyCheck {
 public:
  virtual ~CopyCheck() = default;
  // Whether all pages in those slots of a word that can be read are copied, and the tier has the copies: those that it has
  // not are without one from then on. Progress: lock-free.
  virtual bool still(DescriptorId id, WordClass which, SlotMask slots) = 0;
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // From now on, whether a copy is there is asked before a page goes first for it; nullptr: no longer.
  // Requires: as choose; it outlives its use.
  void check_copies(CopyCheck* check) { copies_ = check; }
  // The next victims for a group's pool, or for descriptor_pool, first to go first. Each is handed out once a pass.
  // Returns: how many of `out` were filled; 0 where nothing can go. Progress: one thread at a time.
  virtual std::size_t choose(int pool, std::span<Victim> out) = 0;
  // Forgets what was chosen. Requires: as choose.
  virtual void reset() = 0;

 protected:
  CopyCheck* copies_ = nullptr;
};

// Both must outlive it. None: nullptr.
std::unique_ptr<EvictionPolicy> make_eviction(EvictionOrder order, const Layout& layout,
                                              const BlockStore& store);

// How many candidates a pass keeps for a pool of `count`: half of it, which saves as many tokens as a sixteenth did
// (bench/test_bench_eviction.py), and a pass over all descriptors serves eight times as many. 16 bytes a page, from the
// first pass on.
constexpr std::size_t eviction_batch(std::size_t count) { return count / 2 < 16 ? 16 : count / 2; }

// Whether all that the descriptor holds could be evicted, so that it would be free: it holds something, nothing is
// pinned, and no page is in a phase that only its owner leaves. An empty tip directory is such a one.
bool can_go_whole(const BlockStore& store, DescriptorId id);

}  // namespace hkv
