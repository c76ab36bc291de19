// SPDX-License-Identifier: Apache-2.0
// Where each descriptor stands: parents, ends and forks of branches, targets and what they need.
#include <algorithm>

#include "alloc/usability.h"

namespace hkv {
namespace {

// Steps of one pass that may go up the tree again and again; what is left undone costs a worse order only.
constexpr std::uint64_t steps_a_node = 8;
constexpr int strand_rounds = 8;

std::uint32_t reach_of(const Layout& layout) {
  std::int64_t reach = 0;
  for (const Group& g : layout.groups) {
    if (g.coverage.rule == Rule::Window || g.coverage.rule == Rule::Chunk)
      reach = std::max(reach, g.coverage.tokens);
  }
  return static_cast<std::uint32_t>(std::min<std::int64_t>(reach, none_u32 - 1));
}

}  // namespace

Standing::Standing(const Layout& layout, const BlockStore& store)
    : layout_(layout),
      store_(store),
      node_tokens_((layout.probe_units != 0 ? layout.probe_units : layout.step_units) * layout.unit_tokens),
      reach_tokens_(reach_of(layout)),
      any_prefix_(layout.probe_units != 0) {}

void Standing::read() {
  nodes_.resize(store_.blocks());
  horizon_ = store_.recency().horizon();
  read_words();
  find_parents();
  if (any_orphan_) spread_strandedness();
  // From the end of the array, where ends of prefixes mostly are: then each walk up to tell of a use is one step.
  std::uint64_t steps = steps_a_node * nodes_.size();
  for (std::size_t i = nodes_.size(); i-- > 0;) {
    const Node& node = nodes_[i];
    if (!node.is(kLive) || !(node.is(kNode) || node.is(kTip))) continue;
    tell_use(node, steps);
    tell_alone(node);
    if (!node.is(kStranded)) find_target(static_cast<std::uint32_t>(i));
  }
}

void Standing::read_words() {
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    const DescriptorId id{i};
    const Descriptor& d = store_[id];
    Node& node = nodes_[i];
    const Word h = d.word(WordClass::H), b = d.word(WordClass::B);
    node.flags = node.h = node.b = node.copies = 0;
    if (!h.live() || (h.no_phase() && b.no_phase()) || store_.is_directory(id)) continue;
    const Recency& recency = store_.recency();
    node = {};
    node.parent = index(d.parent());
    node.tag = Recency::tag_of(d.key());
    node.end = recency.end(id);
    node.tick = recency.tick(id, WordClass::H);
    node.states_used = ~Recency::age(horizon_, b.no_phase() ? node.tick : recency.tick(id, WordClass::B));
    node.used = any_prefix_ ? ~Recency::age(horizon_, node.tick) : node.states_used;
    node.below = recency.parent_tag(id);  // until find_parents has used it
    node.h = h.usable_slots(), node.b = b.usable_slots();
    node.copies = b.slots_in(Phase::ReadyCopy);
    node.flags = kLive;
    if ((node.h & ~h.slots_in(Phase::ReadyCopy)) != 0) node.set(kAlone);
    if (h.pins() != 0) node.set(kPinnedH);
    if (b.pins() != 0) node.set(kPinnedB);
    if (!h.no_phase()) node.set(kHistory);
    if (node.end % layout_.unit_tokens != 0) {
      node.set(kTip);
    } else if (any_prefix_ ? node.h != 0 : node.b != 0 && node.end % node_tokens_ == 0) {
      node.set(kNode);
    }
  }
}

// A parent ends before its child, so that no walk up goes in a circle, whatever the hints say.
void Standing::find_parents() {
  any_orphan_ = false;
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    if (!node.is(kLive)) continue;
    const std::uint32_t tag = node.below, parent = node.parent;
    node.parent = node.below = none_u32;
    if (tag == 0) continue;  // it begins its prefix
    if (parent < nodes_.size() && nodes_[parent].is(kLive) && nodes_[parent].tag == tag &&
        nodes_[parent].end < node.end) {
      node.parent = parent;
      if (node.is(kNode)) ++nodes_[parent].kids;
      if (node.is(kTip)) ++nodes_[parent].tips;
      if (!any_prefix_ || nodes_[parent].is(kHistory)) continue;
    }
    if (!any_prefix_) continue;
    node.set(kStranded);
    any_orphan_ = true;
  }
}

void Standing::spread_strandedness() {
  bool more = true;
  for (int round = 0; more && round < strand_rounds; ++round) {
    more = false;
    for (Node& node : nodes_) {
      if (!node.is(kLive) || node.is(kStranded) || node.parent == none_u32) continue;
      if (!nodes_[node.parent].is(kStranded)) continue;
      node.set(kStranded);
      more = true;
    }
  }
}

void Standing::tell_use(const Node& node, std::uint64_t& steps) {
  for (std::uint32_t at = node.parent; at != none_u32 && nodes_[at].used < node.used && steps > 0; --steps) {
    nodes_[at].used = node.used;
    at = nodes_[at].parent;
  }
}

// What something that only lies here continues counts as lying only here: each node is told once.
void Standing::tell_alone(const Node& node) {
  if (!node.is(kAlone)) return;
  for (std::uint32_t at = node.parent; at != none_u32 && !nodes_[at].is(kAlone); at = nodes_[at].parent)
    nodes_[at].set(kAlone);
}

void Standing::find_target(std::uint32_t id) {
  const Node& node = nodes_[id];
  const bool came_back = store_.recency().hits(DescriptorId{id}) >= 2;
  if (node.is(kTip)) {
    if (passed_by(node) && !came_back) return;
    is_whole_tip(node) ? make_target(id) : search(node.parent);
    return;
  }
  const bool one_goes_on = node.kids == 1 || (node.kids == 0 && node.tips != 0);
  if (!one_goes_on || (came_back && is_boundary(node))) search(id);
}

// The last boundary at or before a place where the next prompt may come.
void Standing::search(std::uint32_t at) {
  for (; at != none_u32; at = nodes_[at].parent) {
    Node& node = nodes_[at];
    if (node.is(kSearched)) return;  // what that search found stands for this one as well
    node.set(kSearched);
    if (!is_boundary(node)) continue;
    make_target(at);
    return;
  }
}

// All history before a target is useful; blocks within reach may be in its tail.
void Standing::make_target(std::uint32_t at) {
  nodes_[at].set(kTarget), nodes_[at].set(kUseful);
  const std::uint32_t tokens = nodes_[at].end, used = nodes_[at].states_used;
  for (at = nodes_[at].parent; at != none_u32; at = nodes_[at].parent) {
    Node& node = nodes_[at];
    bool more = !node.is(kUseful);
    node.set(kUseful);
    if (tokens - std::min(tokens, node.end) < reach_tokens_ + node_tokens_) {
      more |= node.below > tokens || node.tail_used < used;
      node.below = std::min(node.below, tokens);
      node.tail_used = std::max(node.tail_used, used);
    }
    if (!more) return;
  }
}

bool Standing::is_boundary(const Node& node) const {
  if (node.end % layout_.step_tokens() != 0) return false;
  for (int g = 0; g < store_.group_count(); ++g) {
    const Group& group = layout_.groups[g];
    if (group.rebuildable || needed_span(group.coverage, node.end).empty()) continue;
    const GroupSlot& at = store_.slot_of(g);
    if (((at.which == WordClass::H ? node.h : node.b) >> at.slot & 1) == 0) return false;
  }
  return true;
}

bool Standing::is_whole_tip(const Node& node) const {
  for (int g = 0; g < store_.group_count(); ++g) {
    const Group& group = layout_.groups[g];
    const std::int64_t block_tokens = layout_.block_tokens(group);
    const BlockSpan need = needed_blocks(group.coverage, block_tokens, node.end);
    if (group.rebuildable || need.empty() || need.to * block_tokens <= node.end) continue;
    const GroupSlot& at = store_.slot_of(g);
    if (((at.which == WordClass::H ? node.h : node.b) >> at.slot & 1) == 0) return false;
  }
  return true;
}

// A branch that goes on behind the unit of a tip holds the tip's tokens, as a rule; of two branches nothing can be
// said.
bool Standing::passed_by(const Node& tip) const {
  const Node* parent = parent_of(tip);
  return parent != nullptr && parent->kids == 1;
}

bool Standing::needs(int group, std::uint32_t tokens, std::uint32_t end) const {
  const TokenSpan span = needed_span(layout_.groups[group].coverage, tokens);
  return !span.empty() && end > span.from && end <= tokens;
}

EvictionClass Standing::of_history(std::uint32_t id) const {
  const Node& node = nodes_[id];
  if (node.is(kStranded)) return EvictionClass::Stranded;
  return node.is(kUseful) ? EvictionClass::History : EvictionClass::Superseded;
}

EvictionClass Standing::of_state(std::uint32_t id, int group) const {
  const Node& node = nodes_[id];
  const bool at_node = node.end % node_tokens_ == 0 && !node.is(kTip);
  if (node.is(kStranded) || (any_prefix_ && at_node && !node.is(kHistory))) return EvictionClass::Stranded;
  if (node.is(kTip)) return node.is(kTarget) ? EvictionClass::Tail : EvictionClass::Superseded;
  // A block between two nodes is in the tail of what comes next behind the node before it.
  const std::uint32_t below = at_node                   ? node.below
                              : node.parent == none_u32 ? none_u32
                                                        : nodes_[node.parent].below;
  const bool needed = (node.is(kTarget) && needs(group, node.end, node.end)) ||
                      (below != none_u32 && needs(group, below, node.end));
  return needed ? EvictionClass::Tail : EvictionClass::Superseded;
}

std::uint32_t Standing::tail_used(std::uint32_t id) const {
  const Node& node = nodes_[id];
  const Node* before = node.is(kNode) || node.is(kTip) ? nullptr : parent_of(node);
  return std::max(node.is(kTarget) ? node.states_used : 0,
                  before != nullptr ? before->tail_used : node.tail_used);
}

void Standing::take(std::uint32_t id) {
  const Node& node = nodes_[id];
  if (node.parent == none_u32) return;
  Node& parent = nodes_[node.parent];
  std::uint32_t& count = node.is(kTip) ? parent.tips : parent.kids;
  if ((node.is(kTip) || node.is(kNode)) && count != 0) --count;
}

std::int64_t Standing::stranded_tokens() const {
  std::int64_t tokens = 0;
  for (const Node& node : nodes_)
    tokens += node.is(kLive) && node.is(kStranded) && node.is(kNode) ? node_tokens_ : 0;
  return tokens;
}

}  // namespace hkv
