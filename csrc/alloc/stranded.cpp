// SPDX-License-Identifier: Apache-2.0
// Which pages a usable length needs: up the tree for what is whole, down again for what is needed.
#include "alloc/stranded.h"

#include <algorithm>
#include <tuple>

namespace hkv {
namespace {

constexpr std::uint32_t too_long = none_u32;

class Reach {
 public:
  Reach(const Layout& layout, const BlockStore& store) : layout_(layout), store_(store) {}

  std::vector<std::int64_t> stranded() {
    read_words();
    find_parents();
    for (const std::uint32_t id : order_) climb(id);
    std::vector<std::int64_t> pages(layout_.groups.size());
    for (std::size_t i = order_.size(); i-- > 0;) descend(order_[i], pages);
    return pages;
  }

 private:
  enum class Place : std::uint8_t { Nowhere, Node, Between, Tip };
  struct Seen {
    std::uint32_t parent = none_u32, tag = 0, own_tag = 0;
    std::uint32_t end = 0;           // tokens
    std::uint32_t below = too_long;  // least usable length behind it
    SlotMask h = 0, b = 0;           // usable slots
    SlotMask idle_h = 0, idle_b = 0;
    Place place = Place::Nowhere;
    bool whole = false;   // all history up to its end is there
    bool usable = false;  // a resume at its end is possible
    bool begins() const { return tag == 0; }
  };

  const Group& group(int g) const { return layout_.groups[static_cast<std::size_t>(g)]; }
  std::uint32_t& run(std::uint32_t id, int slot) {
    return runs_[std::size_t{id} * Word::slots + static_cast<std::size_t>(slot)];
  }

  void read_words() {
    seen_.resize(store_.blocks());
    runs_.resize(seen_.size() * Word::slots);
    std::vector<std::uint64_t> sorted;
    for (std::uint32_t i = 0; i < seen_.size(); ++i) {
      const DescriptorId id{i};
      const Descriptor& d = store_[id];
      const Word h = d.word(WordClass::H), b = d.word(WordClass::B);
      if (!h.live() || (h.no_phase() && b.no_phase()) || store_.is_directory(id)) continue;
      Seen& seen = seen_[i];
      seen.parent = index(d.parent());
      seen.tag = store_.recency().parent_tag(id);
      seen.own_tag = Recency::tag_of(d.key());
      seen.end = store_.recency().end(id);
      seen.h = h.usable_slots(), seen.b = b.usable_slots();
      seen.idle_h = h.evictable_slots(), seen.idle_b = b.evictable_slots();
      seen.place = place_of(seen.end);
      sorted.push_back(std::uint64_t{seen.end} << 32 | i);
    }
    std::sort(sorted.begin(), sorted.end());
    order_.reserve(sorted.size());
    for (const std::uint64_t entry : sorted) order_.push_back(static_cast<std::uint32_t>(entry));
  }

  // Where history records a block, there is a node: what comes next continues it, whether it holds any now or not.
  Place place_of(std::uint32_t end) const {
    if (end % layout_.unit_tokens != 0) return Place::Tip;
    const auto records = [&](const Group& g) { return g.prefix() && end % layout_.block_tokens(g) == 0; };
    return std::any_of(layout_.groups.begin(), layout_.groups.end(), records) ? Place::Node : Place::Between;
  }

  bool continues(const Seen& seen, std::uint32_t parent) const {
    return parent < seen_.size() && seen_[parent].place == Place::Node && seen_[parent].own_tag == seen.tag &&
           seen_[parent].end < seen.end;
  }

  // Where the hint fails, what it continued may have come back in another place. A parent ends before its child, so
  // that no walk up goes in a circle.
  void find_parents() {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> by_tag;  // nodes, made when first asked
    for (const std::uint32_t id : order_) {
      Seen& seen = seen_[id];
      if (seen.begins()) seen.parent = none_u32;
      if (seen.begins() || continues(seen, seen.parent)) continue;
      if (by_tag.empty()) {
        for (const std::uint32_t other : order_)
          if (seen_[other].place == Place::Node) by_tag.emplace_back(seen_[other].own_tag, other);
        std::sort(by_tag.begin(), by_tag.end());
      }
      seen.parent = none_u32;
      auto at = std::lower_bound(by_tag.begin(), by_tag.end(), std::pair{seen.tag, std::uint32_t{0}});
      for (; at != by_tag.end() && at->first == seen.tag; ++at)
        if (continues(seen, at->second)) seen.parent = at->second;
    }
    for (const std::uint32_t id : order_)
      if (seen_[id].place == Place::Between) between_.emplace_back(seen_[id].parent, seen_[id].end, id);
    std::sort(between_.begin(), between_.end());
  }

  // How many blocks of a group follow one another up to the one that ends at `end`, before whatever hangs at the node.
  std::uint32_t run_at(std::uint32_t node, std::int64_t end, int slot) {
    while (node != none_u32 && seen_[node].end > end) node = seen_[node].parent;
    if (node != none_u32 && seen_[node].end == end) return run(node, slot);
    std::uint32_t longest = 0;
    auto at = std::lower_bound(between_.begin(), between_.end(),
                               std::tuple{node, static_cast<std::uint32_t>(end), std::uint32_t{0}});
    for (; at != between_.end() && std::get<0>(*at) == node && std::get<1>(*at) == end; ++at)
      longest = std::max(longest, run(std::get<2>(*at), slot));
    return longest;
  }

  // Upwards, shorter lengths first: what is whole, and which lengths are usable.
  void climb(std::uint32_t id) {
    Seen& seen = seen_[id];
    if (seen.place != Place::Tip) {
      for (int g = 0; g < store_.group_count(); ++g) {
        const GroupSlot& at = store_.slot_of(g);
        if (at.which != WordClass::B || (seen.b >> at.slot & 1) == 0) continue;
        const std::int64_t before = seen.end - layout_.block_tokens(group(g));
        run(id, at.slot) = 1 + (before > 0 ? run_at(seen.parent, before, at.slot) : 0);
      }
    }
    if (seen.place == Place::Between) return;
    seen.whole = is_whole(seen);
    if (!seen.whole || (seen.place == Place::Node && seen.end % layout_.step_tokens() != 0)) return;
    seen.usable = true;
    for (int g = 0; g < store_.group_count() && seen.usable; ++g) seen.usable = resumes(id, seen, g);
  }

  bool is_whole(const Seen& seen) const {
    const Seen* const parent = seen.parent == none_u32 ? nullptr : &seen_[seen.parent];
    if (parent == nullptr && !seen.begins()) return false;
    if (parent != nullptr && !parent->whole) return false;
    const std::int64_t from = parent == nullptr ? 0 : parent->end;
    for (int g = 0; g < store_.group_count(); ++g) {
      if (!group(g).prefix() || group(g).rebuildable) continue;
      const std::int64_t block = layout_.block_tokens(group(g));
      if ((seen.end - 1) / block * block > from) return false;  // a node between them is gone
      const bool ends_here = seen.end % block == 0 || seen.place == Place::Tip;
      if (ends_here && (seen.h >> store_.slot_of(g).slot & 1) == 0) return false;
    }
    return true;
  }

  // Whether a group of states can resume there; history is whole.
  bool resumes(std::uint32_t id, const Seen& seen, int g) {
    if (group(g).prefix() || group(g).rebuildable) return true;
    const int slot = store_.slot_of(g).slot;
    const std::int64_t block = layout_.block_tokens(group(g));
    const BlockSpan need = needed_blocks(group(g).coverage, block, seen.end);
    if (need.empty()) return true;
    if (seen.place == Place::Node) return run(id, slot) >= need.to - need.from;
    const std::int64_t last = seen.end / block;
    if (need.to > last && (seen.b >> slot & 1) == 0) return false;
    return need.from >= last || run_at(seen.parent, last * block, slot) >= last - need.from;
  }

  // Downwards, longer lengths first, so that all that is behind a descriptor has told its least usable length.
  void descend(std::uint32_t id, std::vector<std::int64_t>& pages) {
    Seen& seen = seen_[id];
    std::uint32_t& behind = seen.parent != none_u32 ? seen_[seen.parent].below
                            : seen.begins()         ? below_begin_
                                                    : below_nothing_;
    std::uint32_t resumed = seen.place == Place::Between ? behind : seen.below;
    if (seen.usable) resumed = seen.end;
    if (seen.place != Place::Between) behind = std::min(behind, resumed);
    for (int g = 0; g < store_.group_count(); ++g) {
      const GroupSlot& at = store_.slot_of(g);
      const SlotMask idle = at.which == WordClass::H ? seen.idle_h : seen.idle_b;
      if ((idle >> at.slot & 1) == 0) continue;
      pages[static_cast<std::size_t>(g)] += resumed == too_long || !needs(seen, g, resumed);
    }
  }

  bool needs(const Seen& seen, int g, std::uint32_t tokens) const {
    if (seen.place == Place::Tip) return true;
    const TokenSpan span = needed_span(group(g).coverage, tokens);
    return !span.empty() && seen.end > span.from;
  }

  const Layout& layout_;
  const BlockStore& store_;
  std::vector<Seen> seen_;
  std::vector<std::uint32_t> runs_;   // [[descriptors, slots of B]]
  std::vector<std::uint32_t> order_;  // descriptors by length
  std::vector<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>> between_;  // parent, end, descriptor
  std::uint32_t below_begin_ = too_long;    // least usable length so far of what begins its prefix
  std::uint32_t below_nothing_ = too_long;  // of what continues something that is gone: never one
};

}  // namespace

std::vector<std::int64_t> stranded_pages(const Layout& layout, const BlockStore& store) {
  return Reach(layout, store).stranded();
}

}  // namespace hkv
