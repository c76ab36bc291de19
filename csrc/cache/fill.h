// SPDX-License-Identifier: Apache-2.0
// A fill: pages of one reserve on their way to being published, written by their owner or restored from a tier.
//
// Thread safety: one owner at a time.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "alloc/admission.h"
#include "block/store.h"
#include "cache/ticket.h"
#include "layout/key_chain.h"

namespace hkv {

// Blocks of one group that a fill, an insert or an evict names.
struct Selection {
  bool all = false;
  std::vector<std::int64_t> blocks;  // own blocks, where not all; ascending
};

// Pages of one reserve, in phase filling until published. One owner.
struct Fill {
  enum class State : std::uint8_t { Claimed, Private, Published, Given };
  struct Entry {
    std::int64_t block;
    PageId page;
    Key128 key;       // of the unit (or tip) that records the block
    DescriptorId id;  // where claimed
    State state;
    std::int64_t tip_unit;  // whole units before the tip; -1: a whole block
    std::uint32_t rows;     // rows attested; 0: the whole block
    bool counted = false;   // could not be published (another had the key, say): the page stays private
  };
  struct Copy {
    PageId source, target;
    std::int32_t rows;
  };
  // A block that was ready: no page is taken, but its prefix is used. Held: it must not make room for the rest.
  struct Ready {
    DescriptorId id;
    int group;
    std::int64_t unit;  // the block ends there; of a tip: the unit that it begins
    Word seen;
    bool held = false;
  };
  std::shared_ptr<const KeyChain> keys;
  std::vector<Ready> ready;
  std::vector<std::vector<Entry>> entries;              // a group
  std::vector<std::vector<Copy>> copies;                // a group
  std::vector<FormatId> formats;                        // writer's, a group
  bool closed = false;                                  // aborted
  std::int64_t born = 0;                                // resets of the cache when it was made
  bool done = false;                                    // nothing is left to publish
  std::shared_ptr<FillRight> right;                     // of a ticket's fill
  bool restoring = false;                               // its blocks are being restored, not written
  std::vector<std::pair<int, std::int64_t>> elsewhere;  // of a restore: (group, block) that another is making

  // The share that answers for its pages; nullptr: nobody does.
  AdmissionLedger::Share* share() const { return right == nullptr ? nullptr : right->share; }
};

}  // namespace hkv
