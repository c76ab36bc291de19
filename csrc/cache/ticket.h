// SPDX-License-Identifier: Apache-2.0
// A ticket: the right of one running request to memory, and the pages it holds under that right.
//
// Groups are of two classes (layout/residency.h). A *paged* group has a page for each of its blocks, taken when
// the block's first token is grown. A *live* group (a rolling state, or a window whose page holds the trailing
// rows alone) has one live page, which every step overwrites, and a page for each length whose state is kept.
//
// Thread safety: one owner at a time, which is also that of the fills made under its share; what it publishes is seen
// by every thread.
// Invariants:
//  1. Every page here is held once: `Leased` by the lease's pins, `Private` by this ticket alone, `Published` by a
//     pin of this ticket on the word that names it (H: one pin a descriptor; B: one pin a group and block).
//     Why: a page changes its hold in one place each (grow.cpp, advance.cpp), and close() ends all of them.
//  2. advanced <= grown <= max_tokens; a page of a block that begins at or beyond `advanced` is Private, since a
//     block is published only when every token of it has been advanced. Hence rewind gives back Private pages alone.
//  3. A state is published only where it was in memory: at a length whose page a step wrote itself (named in
//     grow and advance), or copied from the live page while `live_at` says that the live page is at that length.
//     Why: live_at is set by an advance that reaches all that was grown, with nothing rewound since the last
//     one, and cleared by every later grow; no step that could move the state on runs in between.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "alloc/admission.h"
#include "block/store.h"
#include "cache/keep.h"
#include "cache/lease.h"
#include "layout/growing_keys.h"

namespace hkv {

// One page to copy before the next step writes: rows from its first; 0: the whole page.
struct PageCopy {
  int group;
  PageId source, target;
  std::int32_t rows;
};

// What a run over a ticket's blocks adds up, to be counted once.
struct PublishRun {
  std::uint32_t tick = 0;  // of all that it publishes
  std::int64_t published = 0;
  std::array<std::int64_t, AdmissionLedger::most_groups> pages{};  // a group: no longer private
};
struct UnpinRun {
  std::uint32_t tick = 0;  // of all that it unpins
  EvictableChange change;
};

// Blocks of one unit and word that a ticket has claimed, or found taken.
struct ClaimedUnit {
  std::int64_t unit;
  Key128 key;
  DescriptorId id = no_descriptor;
  WordClass which = WordClass::B;
  SlotMask mine = 0;        // claimed: Filling
  SlotMask lost = 0;        // another's
  SlotMask wanted[2] = {};  // by class: what the ticket has of the unit
};

// The part of a ticket's share that its fills use. Both hold it, so that either may end first.
// Invariant: pages[g] pages of group g are held by fills made under the share, each counted in its `taken`. Why: a
// fill changes both in one place each (fill.cpp), and the end of the ticket moves them to what is unowned.
struct FillRight {
  AdmissionLedger::Share* share;    // null once the ticket has ended
  std::vector<std::int64_t> pages;  // a group
};

struct Ticket {
  static constexpr std::int64_t never = std::int64_t{1} << 62;
  enum class Hold : std::uint8_t { None, Leased, Private, Published };
  struct Block {
    PageId page = no_page;
    DescriptorId id = no_descriptor;  // where Leased or Published
    Hold hold = Hold::None;
  };
  // A page that keeps the state at a length, not yet published.
  struct State {
    std::int64_t tokens;
    PageId page;
    enum class From : std::uint8_t { Asked, Written, Copied } from;
  };
  // What the ticket holds of one group.
  struct Hand {
    bool used =
        true;  // else nothing is ever taken or published here, and it counts as a live group without a page
    bool live_group = false;
    bool keeps_states = false;  // live: its state is kept at some block boundary of this request
    // paged: blocks[i] is own block `base` + i
    std::int64_t base = 0;
    std::int64_t first_held = 0;    // nothing is held below it
    std::int64_t next_publish = 0;  // below it every block was offered
    std::int64_t next_grow = 0;     // below it every block had its page
    std::int64_t beside = 0;        // pages of the share for what its pins hold beside own ones
    std::vector<Block> blocks;
    // How many of the blocks in [from, end) are Published. Requires: base <= from <= end <= next_grow.
    std::int64_t published_in(std::int64_t from, std::int64_t end) const {
      return std::count_if(blocks.begin() + (from - base), blocks.begin() + (end - base),
                           [](const Block& block) { return block.hold == Hold::Published; });
    }
    // live
    PageId live = no_page, spare = no_page;
    std::vector<State> states;
  };
  // Pages given up whose effect waits: rewound ones.
  struct Parked {
    int group;
    PageId page;
  };

  Ticket(std::shared_ptr<const KeyChain> start, std::int64_t tokens, std::int64_t max_tokens)
      : keys(std::move(start), tokens, max_tokens),
        start_tokens(tokens),
        max_tokens(max_tokens),
        advanced(tokens),
        grown(tokens) {}

  GrowingKeys keys;
  std::int64_t start_tokens;
  std::int64_t max_tokens;
  std::int64_t advanced;         // tokens whose rows are written
  std::int64_t grown;            // tokens that have their pages
  std::int64_t next_event = 0;   // the advanced total at which something is due: a block, a window, the lease
  std::int64_t pages_until = 0;  // grown totals up to it need no page
  std::int64_t live_at = -1;     // the length the live pages are at; -1: not known
  bool rewound = false;          // since the last grow: the live pages went beyond what is grown now
  int eager = -1;              // the first group whose table is wider than graphs were captured for; -1: none
  bool eager_counted = false;  // since it went beyond that width
  std::uint32_t spares_taken = 0;  // groups whose spare the grow under way took
  bool failed = false;
  bool closed = false;
  bool ended = false;
  Lease* lease = nullptr;             // owned by whoever admitted; outlives the ticket
  std::int64_t lease_due = never;     // the advanced total at which the lease's next window page slides out
  std::vector<Hand> hands;            // a group
  std::vector<DescriptorId> history;  // descriptors whose H this ticket pinned, in order
  std::vector<PageCopy> copies;       // before the first write, until the first advance
  std::vector<PageCopy> step_copies;  // of the last advance
  std::vector<Parked> parked;
  std::vector<FormatId> formats;
  KeepPolicy keep;
  AdmissionLedger::Share share;
  std::shared_ptr<FillRight> fills;  // once a fill was made under the share
  std::int64_t born = 0;             // resets of the cache when it was admitted
  std::int64_t handle = -1;
};

}  // namespace hkv
