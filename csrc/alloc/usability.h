// SPDX-License-Identifier: Apache-2.0
// The order by usability: the value of a page is what becomes unusable without it.
//
// What the descriptors are, as nodes of trees of prefixes: a node holds history; what a node continues is its parent;
// blocks of states that end between two nodes, and tips, hang at the node before them. A boundary is a length at
// which everything lies in the cache that a resume there needs and that ends there. The next prompt comes to the
// end of a branch or to a fork, and resumes at the last boundary on the way there: that is a *target*, and so is
// a boundary where leases resumed twice (a fork whose other side is gone, or not seen yet).
//
// Pages of history, one order for all Prefix groups: the stranded ones (something that they continue is gone), then
// those with no target at or behind them, then the others; in each class the least recently used first, where what
// continues a node was a use of the node as well; never a node that something continues, unless nothing else is
// left. States stay when their history goes: should the prompt come again, they make it usable at once.
// Of what was used about as long ago, within a factor of two, a page of which a tier has a copy goes before one that it
// has not, since that one can only be computed again; history counts as copied where all that continues it does, so that
// it does not come up before what has to go first. What is older by more goes first all the same: what was just loaded
// has a copy, too. A copy is asked for (CopyCheck) when a page comes up for it: one that the tier dropped since is none.
// Pages of states, an order for each group: those whose history is gone; those that no target needs (boundaries
// inside a branch, tips that a branch has passed by), the least recently used first; the tails of targets, the one
// whose target was used least recently first, so that a tail goes as a whole.
//
// Thread safety: as EvictionPolicy; the tree is read from words and hints that move, once a pass.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "alloc/eviction.h"
#include "block/store.h"
#include "layout/group.h"

namespace hkv {

// Where each descriptor stands, as read in one pass. Memory: 48 bytes a descriptor, taken at the first pass.
class Standing {
 public:
  Standing(const Layout& layout, const BlockStore& store);

  // Reads everything anew. Cost: a few passes over all descriptors (bench/eviction.cpp).
  void read();

  bool stranded(std::uint32_t id) const { return nodes_[id].is(kStranded); }
  // Class of the descriptor's history page, or tip.
  EvictionClass of_history(std::uint32_t id) const;
  // Class of a page of a Window, Chunk or Checkpoint group.
  EvictionClass of_state(std::uint32_t id, int group) const;
  // When its history, or what continues it, was used last: the greater the later.
  std::uint32_t used(std::uint32_t id) const { return nodes_[id].used; }
  // The same of the targets that its pages of states are the tails of.
  std::uint32_t tail_used(std::uint32_t id) const;
  // How many nodes and tips continue it, less those taken since.
  std::uint32_t continued(std::uint32_t id) const { return nodes_[id].kids + nodes_[id].tips; }
  void take(std::uint32_t id);
  // Tokens of stranded history.
  std::int64_t stranded_tokens() const;
  // The tick, as read, of a descriptor that holds history, or states.
  std::uint32_t tick(std::uint32_t id, WordClass which) const {
    return which == WordClass::H ? nodes_[id].tick : horizon_ - ~nodes_[id].states_used;
  }
  // When its pages of states themselves were used last: the greater the later.
  std::uint32_t states_used(std::uint32_t id) const { return nodes_[id].states_used; }
  std::uint32_t end(std::uint32_t id) const { return nodes_[id].end; }
  std::uint32_t horizon() const { return horizon_; }
  // Whether a tier has a copy: of its history and of all that continues it; of its page of states in a slot; of all such.
  bool copied_history(std::uint32_t id) const { return !nodes_[id].is(kAlone); }
  bool copied_state(std::uint32_t id, int slot) const { return (nodes_[id].copies >> slot & 1) != 0; }
  bool copied_states(std::uint32_t id) const { return (nodes_[id].b & ~nodes_[id].copies) == 0; }
  // A tier turned out not to have a copy of its history.
  void lose_copy(std::uint32_t id) {
    nodes_[id].set(kAlone);
    tell_alone(nodes_[id]);
  }
  bool evictable_history(std::uint32_t id) const { return nodes_[id].h != 0 && !nodes_[id].is(kPinnedH); }
  bool evictable_state(std::uint32_t id, int slot) const {
    return (nodes_[id].b >> slot & 1) != 0 && !nodes_[id].is(kPinnedB);
  }

 private:
  enum Flag : std::uint16_t {
    kLive = 1,  // not closed, and no directory
    kNode = 2,  // holds history that can be read; without Prefix groups: states at a step
    kTip = 4,
    kStranded = 8,
    kSearched = 16,  // a search for a target came by
    kTarget = 32,
    kUseful = 64,    // a target is here or behind it
    kHistory = 128,  // some page of history is there, or coming or leaving
    kPinnedH = 256,
    kPinnedB = 512,
    kAlone = 1024,  // no tier has a copy of its history, or of that of something that continues it
  };
  struct Node {
    std::uint32_t parent, tag;  // parent: none_u32 where unknown or gone
    std::uint32_t end;          // tokens
    std::uint32_t tick;         // of H, as read
    std::uint32_t used, states_used;
    std::uint32_t tail_used;   // latest states_used of the targets behind it within reach
    std::uint32_t kids, tips;  // nodes and tips that continue it
    std::uint32_t below;       // nearest target behind it, in tokens; none_u32: none within reach
    SlotMask h, b;             // usable slots
    SlotMask copies;           // of b, those that a tier has too
    std::uint16_t flags;
    bool is(Flag flag) const { return (flags & flag) != 0; }
    void set(Flag flag) { flags = static_cast<std::uint16_t>(flags | flag); }
  };

  void read_words();
  void find_parents();
  void spread_strandedness();
  void tell_use(const Node& node, std::uint64_t& steps);
  void tell_alone(const Node& node);
  void find_target(std::uint32_t id);
  void search(std::uint32_t at);
  void make_target(std::uint32_t at);
  bool is_boundary(const Node& node) const;
  bool is_whole_tip(const Node& node) const;
  bool passed_by(const Node& tip) const;
  bool needs(int group, std::uint32_t tokens, std::uint32_t end) const;
  const Node* parent_of(const Node& node) const {
    return node.parent == none_u32 ? nullptr : &nodes_[node.parent];
  }

  const Layout& layout_;
  const BlockStore& store_;
  std::int64_t node_tokens_;    // distance of nodes
  std::uint32_t reach_tokens_;  // no window or chunk needs more before a boundary
  bool any_prefix_ = false;
  bool any_orphan_ = false;
  std::uint32_t horizon_ = 0;
  std::vector<Node> nodes_;
};

std::unique_ptr<EvictionPolicy> make_usability(const Layout& layout, const BlockStore& store);

}  // namespace hkv
