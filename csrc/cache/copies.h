// SPDX-License-Identifier: Apache-2.0
// Whether the tier still has the copies that words claim: what it dropped by itself is found here and told to the words.
//
// A page that is ready with a copy was stored in a record, or loaded from one, and nothing tells when the tier reclaims it
// or finds it damaged. So nobody decides by the claim alone: eviction asks of each page that it would give up as copied,
// and the count of copies is brought up to date by looking for the record of each, once the tier says that it lost some
// (Tier::losses). What a copy counts for is what a put of it would be spared for: of a stack, the slowest tier.
//
// Thread safety: `note` and `check_some` are one at a time, by the lock of Transfers, and so is what makes copies; `still` on any
// thread.
// Invariants:
//  1. Where is_checked, every word that claims a copy has its record in the tier. Why: the turn begins behind a read of the
//     losses, asks of every bit of the index of states, and is begun again until no loss was noted meanwhile. A word that
//     could not be told is asked of again; so is one whose record was gone when it became a copy, which its maker looks up
//     after that step.
//  2. A word is told only while its life and pages are those asked of: one CAS from the word that was read.
// The record of a page of states at a whole unit is not named by its key where a boundary needs pages before it: the last
// that it was stored in or loaded from is kept beside, by page. An older one may be there still when that one is gone;
// then the page counts as lying here alone.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "alloc/eviction.h"
#include "base/hint.h"
#include "block/store.h"
#include "cache/tier_link.h"
#include "layout/group.h"

namespace hkv {

class Copies : public CopyCheck {
 public:
  // Whether a record is stored, as far as the tier knows; one that it cannot tell of is.
  using Stored = std::function<bool(RecordKind, Key128)>;
  // All outlive it. `losses`: moves with what `stored` says no more.
  Copies(const Layout& layout, BlockStore& store, Stored stored, std::function<std::uint64_t()> losses);

  // The pages in those slots, of a boundary's record, have their copy in it. Requires: the caller holds them.
  void note(DescriptorId id, WordClass which, SlotMask slots, Key128 boundary);
  void note_page(int group, PageId page, Key128 boundary);
  // Of the slots, whether all that can be read are copied and the tier has them. Progress: lock-free, and a look a record.
  bool still(DescriptorId id, WordClass which, SlotMask slots) override;
  // Asks of so many copies at most, where the tier lost records since all were asked of. Progress: as still, for each.
  // Returns: whether all were asked of.
  bool check_some(std::int64_t most);
  // Whether all were asked of with no loss since.
  bool is_checked() const { return done_ && !again_ && losses_() == turn_losses_; }
  // A record was gone already when a page became a copy of it.
  void ask_again() { again_ = true; }
  // Words that lost a copy, ever.
  std::uint64_t lost() const { return lost_.load(); }

 private:
  struct Name {
    Hint<std::uint64_t> lo, hi;
  };
  static constexpr int tell_attempts = 8;  // others move the word

  SlotMask gone_of(DescriptorId id, WordClass which, Key128 key, SlotMask copied) const;
  bool tell(DescriptorId id, WordClass which, SlotMask slots, Word& now);
  bool tell_both(DescriptorId id);

  const Layout& layout_;
  BlockStore& store_;
  const Stored stored_;
  const std::function<std::uint64_t()> losses_;
  std::vector<std::vector<Name>>
      names_;  // a group: by page, where its record has another name than its block
  // The turn: what was asked of since it began.
  std::uint64_t turn_losses_ = 0;
  std::uint32_t at_ = 0;
  bool done_ = true;    // nothing is copied yet
  bool again_ = false;  // it must be begun again: some word could not be told, or became a copy too late
  Hint<std::uint64_t> lost_;
};

}  // namespace hkv
