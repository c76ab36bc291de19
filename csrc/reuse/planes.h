// SPDX-License-Identifier: Apache-2.0
// Bit planes of one match and the largest length at which every group can resume, word-parallel.
//
// A plane has one bit for each of a group's own blocks, in prefix order. It is scratch, filled from words
// read once; it decides nothing that a pin does not confirm.
// Thread safety: a plane belongs to one match. Functions here are pure but for the fill callback.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>
#include <vector>

#include "layout/group.h"

namespace hkv {

class Plane {
 public:
  // Makes `size` clear bits; keeps its memory.
  void reset(std::int64_t size) {
    size_ = size;
    bits_.assign(static_cast<std::size_t>((size + 63) / 64), 0);
  }
  std::int64_t size() const { return size_; }
  bool get(std::int64_t i) const { return bits_[static_cast<std::size_t>(i >> 6)] >> (i & 63) & 1; }
  void set(std::int64_t i, bool on = true) {
    const std::uint64_t bit = std::uint64_t{1} << (i & 63);
    std::uint64_t& word = bits_[static_cast<std::size_t>(i >> 6)];
    word = on ? word | bit : word & ~bit;
  }
  std::uint64_t& word(std::int64_t i) { return bits_[i]; }
  const std::uint64_t* words() const { return bits_.data(); }

  // Highest index in [from, to) whose bit is `value`, or -1. Requires: 0 <= from, to <= size().
  template <bool value>
  std::int64_t last(std::int64_t from, std::int64_t to) const {
    while (from < to) {
      const std::int64_t word = (to - 1) >> 6, low = word << 6;
      std::uint64_t bits = bits_[word];
      if (!value) bits = ~bits;
      bits &= ~std::uint64_t{0} >> (63 - ((to - 1) & 63));
      if (from > low) bits &= ~std::uint64_t{0} << (from - low);
      if (bits != 0) return low + 63 - std::countl_zero(bits);
      to = low;
    }
    return -1;
  }

  // Length of the run of ones from 0. Four words a step, so that the compiler can use wide registers.
  std::int64_t first_zero() const {
    const std::size_t n = bits_.size();
    std::size_t i = 0;
    while (i + 4 <= n && (bits_[i] & bits_[i + 1] & bits_[i + 2] & bits_[i + 3]) == ~std::uint64_t{0}) i += 4;
    while (i < n && bits_[i] == ~std::uint64_t{0}) ++i;
    if (i == n) return size_;
    return std::min(size_, static_cast<std::int64_t>(i * 64) + std::countr_one(bits_[i]));
  }

 private:
  std::vector<std::uint64_t> bits_;
  std::int64_t size_ = 0;
};

// Where a replay would have to start so that a rebuildable group is whole again at t, rounded down to a
// step; 0 where it would be the whole prefix, which is no reuse. L layers push a window's dependency back
// L * (window - 1) tokens; a chunk and a tail start anew at their own boundary. That is enough where no rows of other
// groups are what its own are made from; else `replay_tokens` says how many it takes, which whoever describes the groups
// has to see to. Of several groups that are missing together the earliest start holds for all (Lease::resume_tokens).
constexpr std::int64_t replay_from(const Group& g, std::int64_t step_tokens, std::int64_t t) {
  std::int64_t from = 0;
  if (g.replay_tokens > 0) return std::max<std::int64_t>(0, t - g.replay_tokens) / step_tokens * step_tokens;
  switch (g.coverage.rule) {
    case Rule::Window: from = t - g.layers * (g.coverage.tokens - 1); break;
    case Rule::Chunk: from = needed_span(g.coverage, t).from; break;
    case Rule::Checkpoint:
      from = g.coverage.tokens == 0 ? 0 : t / g.coverage.tokens * g.coverage.tokens;
      break;
    case Rule::Prefix: break;
  }
  return from <= 0 ? 0 : from / step_tokens * step_tokens;
}

// Whether the group's own stored blocks let it resume at t. `fill(from, to)` brings the plane up to date on
// that range first. Requires: t >= 0; the plane reaches to t.
template <class Fill>
bool stored_at(const Group& g, std::int64_t block_tokens, const Plane& ready, std::int64_t t, Fill&& fill) {
  const BlockSpan need = needed_blocks(g.coverage, block_tokens, t);
  if (need.empty()) return true;
  if (t % block_tokens != 0) return false;
  fill(need.from, need.to);
  return ready.last<false>(need.from, need.to) < 0;
}

// The next length to try for a group whose block is the step, where block `hole` is missing at t: the end of
// the next block below that is there, or a length that needs none.
template <class Fill>
std::int64_t next_below(const Group& g, std::int64_t step, const Plane& ready, std::int64_t t,
                        std::int64_t hole, Fill&& fill) {
  std::int64_t there = -1;
  for (std::int64_t to = hole; to > 0 && there < 0; to = (to - 1) / 64 * 64) {
    const std::int64_t from = (to - 1) / 64 * 64;
    fill(from, to);
    there = ready.last<true>(from, to);
  }
  std::int64_t needless = 0;
  if (g.coverage.rule == Rule::Chunk) needless = hole * step / g.coverage.tokens * g.coverage.tokens;
  if (g.coverage.rule == Rule::Checkpoint && g.coverage.tokens != 0) {
    needless = (t - 1) / g.coverage.tokens * g.coverage.tokens;
  }
  return std::max((there + 1) * step, needless / step * step);
}

// The largest multiple of `step` at or below t at which the group can resume by its own; 0 if none.
// Requires: t is a multiple of `step`, step a multiple of the block unless the group is rebuildable.
// Work: O(t / 64 / block) words, and one step of the loop for each hole met.
template <class Fill>
std::int64_t resume_at_most(const Group& g, std::int64_t block_tokens, std::int64_t step, const Plane& ready,
                            std::int64_t t, Fill&& fill) {
  while (t > 0) {
    if (g.rebuildable && replay_from(g, step, t) > 0) return t;
    const BlockSpan need = needed_blocks(g.coverage, block_tokens, t);
    if (need.empty()) return t;
    if (g.rebuildable && t % block_tokens != 0) {
      t -= step;
      continue;
    }
    fill(need.to - 1, need.to);  // the block that ends at t alone tells most failures
    std::int64_t hole = ready.get(need.to - 1) ? -1 : need.to - 1;
    if (hole < 0 && need.to - need.from > 1) {
      fill(need.from, need.to);
      hole = ready.last<false>(need.from, need.to - 1);
    }
    if (hole < 0) return t;
    // A window or chunk that needs the missing block at t needs it at every step above that block as well;
    // a checkpoint that lacks its own block may have any earlier one.
    if (g.rebuildable) {
      t -= step;
    } else if (block_tokens == step) {
      t = next_below(g, step, ready, t, hole, fill);
    } else {
      t = g.coverage.rule == Rule::Checkpoint ? t - step : hole * block_tokens / step * step;
    }
  }
  return 0;
}

// The largest multiple of the step at or below `bound` at which every group can resume; 0 if none.
// Usable lengths are a set, not a range: each group takes the current length down to its own next one,
// until all agree. run_of(g): own blocks ready from 0, for Prefix groups; plane_of(g) for the others.
template <class Run, class PlaneOf, class Fill>
std::int64_t longest(const Layout& layout, std::int64_t bound, Run&& run_of, PlaneOf&& plane_of,
                     Fill&& fill) {
  const std::int64_t step = layout.step_tokens();
  std::int64_t t = bound <= 0 ? 0 : bound / step * step;
  const int n = static_cast<int>(layout.groups.size());
  for (int g = 0; g < n; ++g) {
    const Group& group = layout.groups[g];
    if (group.prefix()) t = std::min(t, run_of(g) * layout.block_tokens(group) / step * step);
  }
  for (int agreed = 0, g = 0; agreed < n && t > 0; g = g + 1 == n ? 0 : g + 1) {
    const Group& group = layout.groups[g];
    ++agreed;
    if (group.prefix()) continue;
    const std::int64_t lower = resume_at_most(group, layout.block_tokens(group), step, plane_of(g), t,
                                              [&](std::int64_t from, std::int64_t to) { fill(g, from, to); });
    if (lower != t) agreed = 1;
    t = lower;
  }
  return t;
}

}  // namespace hkv
