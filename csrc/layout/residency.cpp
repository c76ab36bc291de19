// SPDX-License-Identifier: Apache-2.0
#include "layout/residency.h"

#include <algorithm>
#include <numeric>

namespace hkv {
namespace {

// Lengths with every default filled in, so that the arithmetic below need not ask.
struct Lengths {
  std::int64_t max, start, step, states;
  explicit Lengths(const RequestLengths& r)
      : max(r.max_tokens),
        start(r.start_tokens),
        step(r.step_tokens <= 0 ? r.max_tokens : std::min(r.step_tokens, r.max_tokens)),
        states(std::max<std::int64_t>(r.states, 0)) {}
  std::int64_t grown(std::int64_t computed) const { return computed >= max - step ? max : computed + step; }
};

// Blocks of [needed_span(c).from, g) at computed length c, g as far ahead as it can be.
std::int64_t span_blocks(Coverage coverage, std::int64_t block, const Lengths& r, std::int64_t c) {
  return blocks_for(r.grown(c), block) - needed_span(coverage, c).from / block;
}

// The largest of it over c. It falls only where `from` comes into another block, so that it is largest at the
// last c before that, or at the end. A window's falls come once a block and look alike, but for what max cuts
// off of the later ones: the first stands for all.
std::int64_t most_of_window(Coverage coverage, std::int64_t block, const Lengths& r) {
  const std::int64_t rows = coverage.tokens - 1, sliding = std::max(r.start, rows);
  const std::int64_t before_fall = sliding + (block - 1 - (sliding - rows) % block);
  return span_blocks(coverage, block, r, std::min(before_fall, r.max));
}

// A chunk's falls are at its multiples. Where the block divides the chunk they look alike as well. Where it
// does not, this is the bound of a chunk that starts at the last token of a block it can start at: at most
// one page more than is reached.
std::int64_t most_of_chunk(Coverage coverage, std::int64_t block, const Lengths& r) {
  const std::int64_t chunk = coverage.tokens, first = r.start / chunk * chunk;
  const std::int64_t before_fall = first + chunk - 1;
  const std::int64_t most = span_blocks(coverage, block, r, std::min(before_fall, r.max));
  if (chunk % block == 0 || before_fall >= r.max) return most;
  const std::int64_t shift = block - std::gcd(block, chunk);
  const std::int64_t all = blocks_for(r.max, block) - first / block;
  return std::max(most, std::min(all, blocks_for(shift + chunk - 1 + r.step, block)));
}

std::int64_t most_blocks(Coverage coverage, std::int64_t block, const Lengths& r) {
  if (coverage.rule == Rule::Prefix) return blocks_for(r.max, block) - r.start / block;
  const std::int64_t most =
      coverage.rule == Rule::Window ? most_of_window(coverage, block, r) : most_of_chunk(coverage, block, r);
  const bool copies = r.start % block != 0 && !needed_span(coverage, r.start).empty();
  return copies ? std::max(most, span_blocks(coverage, block, r, r.start) + 1) : most;
}

// Every how many of its own boundaries a live group needs no state: 0: it needs one at all; 1: at none.
std::int64_t stateless_period(const Group& group, std::int64_t block) {
  const Coverage coverage = group.coverage;
  if (coverage.rule == Rule::Window) return coverage.tokens == 1 ? 1 : 0;
  return coverage.tokens == 0 ? 0 : coverage.tokens / std::gcd(coverage.tokens, block);
}

// Most boundaries that need a state among (c, g], besides one at c for which the spare is.
std::int64_t most_states(const Lengths& r, std::int64_t block, std::int64_t period) {
  const std::int64_t most = std::min(r.states, r.max / block - r.start / block);
  if (period == 1 || most == 0) return 0;
  // Boundaries are counted in blocks: n of them fit into a step. What is asked for at once lies in one step.
  const std::int64_t n = blocks_for(r.step, block), last = r.max / block, first = r.start / block + 1;
  if (period == 0) return std::min(most, n);
  std::int64_t best = 0;  // fewest stateless ones: right behind one of those, or from the first on
  const std::int64_t behind = (first - 1 + period - 1) / period * period + 1;
  for (const std::int64_t from : {first, first % period == 0 ? first + 1 : first, behind}) {
    const std::int64_t to = std::min(last, from + n - 1);
    if (to >= from) best = std::max(best, (to - from + 1) - (to / period - (from - 1) / period));
  }
  return std::min(most, best);
}

// Units that a pinned window of another group can keep pages of this one at. See 4 in the header.
std::int64_t pages_beside(const Layout& layout, int group, const Lengths& r, std::int64_t& widest) {
  const std::int64_t block = layout.block_tokens(layout.groups[group]);
  std::int64_t pages = 0;
  for (int other = 0; other < static_cast<int>(layout.groups.size()); ++other) {
    const Group& g = layout.groups[other];
    const std::int64_t other_block = layout.block_tokens(g);
    if (other == group || g.prefix() || is_live_group(g, other_block) || g.coverage.tokens == 1) continue;
    widest = std::max(widest, g.coverage.tokens);
    // Units recorded by both, whose pages end in a span of rows and step: every `common` tokens.
    const std::int64_t times = other_block / std::gcd(block, other_block);
    if (times > r.max / block) continue;  // none up to max, and the product might overflow
    const std::int64_t common = block * times;
    const std::int64_t span = std::min(g.coverage.tokens - 1, r.max) + r.step;
    pages += std::min(blocks_for(span, common), r.max / common);
  }
  return pages;
}

}  // namespace

bool is_live_group(const Group& group, std::int64_t block_tokens) {
  switch (group.coverage.rule) {
    case Rule::Prefix: return false;
    case Rule::Checkpoint: return true;
    default: return group.rows_per_page != 0 && group.rows_per_page < block_tokens / group.tokens_per_row;
  }
}

bool keeps_states(const Group& group, std::int64_t block_tokens, const RequestLengths& request) {
  const std::int64_t period = stateless_period(group, block_tokens);
  const std::int64_t first = request.start_tokens / block_tokens + 1,
                     last = request.max_tokens / block_tokens;
  if (period == 1 || first > last) return false;
  return period == 0 || first % period != 0 || first < last;
}

std::int64_t neighbour_pages(const Layout& layout, int group, const RequestLengths& request) {
  if (layout.groups[group].prefix()) return 0;
  std::int64_t widest = 0;
  return pages_beside(layout, group, Lengths(request), widest);
}

std::int64_t worst_pages(const Layout& layout, int group, const RequestLengths& request) {
  const Group& g = layout.groups[group];
  const std::int64_t block = layout.block_tokens(g);
  const Lengths r(request);
  if (g.prefix()) return most_blocks(g.coverage, block, r);
  std::int64_t widest = g.coverage.tokens;
  const std::int64_t neighbours = pages_beside(layout, group, r, widest);
  if (is_live_group(g, block)) {
    const std::int64_t spare = keeps_states(g, block, request) ? 1 : 0;
    return 1 + spare + most_states(r, block, stateless_period(g, block)) + neighbours;
  }
  const std::int64_t own = most_blocks(g.coverage, block, r);
  if (neighbours == 0) return own;
  return std::min(own + neighbours, std::max(own, most_blocks({Rule::Window, widest}, block, r)));
}

}  // namespace hkv
