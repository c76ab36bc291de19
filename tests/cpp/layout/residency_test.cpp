// SPDX-License-Identifier: Apache-2.0
// The worst case of a request against one that walks: every computed
// length, every step, counted page by page.
// One thread: left out under ThreadSanitizer.
#include "layout/residency.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "testing.h"

namespace hkv {
namespace {

Group group_of(Coverage coverage, std::int64_t block_units, std::int64_t rows_per_page = 0,
               std::int64_t tokens_per_row = 1) {
  Group g;
  g.coverage = coverage;
  g.block_units = block_units;
  g.rows_per_page = rows_per_page;
  g.tokens_per_row = tokens_per_row;
  return g;
}

std::string text_of(Coverage c, std::int64_t block, const RequestLengths& r) {
  std::string text = "rule " + std::to_string(static_cast<int>(c.rule)) + " of " + std::to_string(c.tokens);
  for (const std::int64_t n : {block, r.max_tokens, r.start_tokens, r.step_tokens, r.states})
    text += ", " + std::to_string(n);
  return text;
}

// Own blocks that hold a token of [from, to), found token by token.
std::set<std::int64_t> blocks_in(std::int64_t from, std::int64_t to, std::int64_t block) {
  std::set<std::int64_t> blocks;
  for (std::int64_t token = from; token < to; ++token) blocks.insert(token / block);
  return blocks;
}

// Pages of a paged group that a request holds at (c, g).
std::int64_t paged_at(Coverage coverage, std::int64_t block, const RequestLengths& r, std::int64_t c,
                      std::int64_t g) {
  if (coverage.rule == Rule::Prefix) {  // own ones: whole blocks below the start are a lease's
    std::int64_t own = 0;
    for (const std::int64_t b : blocks_in(0, g, block)) own += (b + 1) * block > r.start_tokens ? 1 : 0;
    return g == r.start_tokens ? 0 : own;
  }
  const auto pages = static_cast<std::int64_t>(blocks_in(needed_span(coverage, c).from, g, block).size());
  // Before the first advance the shared page of the first block is still held beside the own one.
  const auto shared = blocks_in(needed_span(coverage, c).from, c, block);
  const bool twice = c == r.start_tokens && g > c && c % block != 0 && shared.contains(c / block);
  return pages + (twice ? 1 : 0);
}

std::int64_t live_at(const Group& group, std::int64_t block, const RequestLengths& r, std::int64_t c,
                     std::int64_t g) {
  std::int64_t asked = 0, ever = 0;
  for (std::int64_t t = r.start_tokens + 1; t <= r.max_tokens; ++t) {
    if (t % block != 0 || needed_span(group.coverage, t).empty()) continue;
    ever = 1;
    asked += t > c && t <= g ? 1 : 0;
  }
  return 1 + ever + std::min(asked, r.states);
}

std::int64_t walked(const Group& group, std::int64_t block, const RequestLengths& r) {
  const std::int64_t step = r.step_tokens == 0 ? r.max_tokens : r.step_tokens;
  std::int64_t most = 0;
  for (std::int64_t c = r.start_tokens; c <= r.max_tokens; ++c) {
    for (std::int64_t g = c; g <= std::min(c + step, r.max_tokens); ++g) {
      most = std::max(most, is_live_group(group, block) ? live_at(group, block, r, c, g)
                                                        : paged_at(group.coverage, block, r, c, g));
    }
  }
  return most;
}

void compare(const Group& group, std::int64_t max_tokens, std::int64_t most_states, std::int64_t over = 0) {
  const Layout layout = make_layout(1, {group});
  const std::int64_t block = layout.block_tokens(group);
  for (std::int64_t max = 1; max <= max_tokens; ++max) {
    for (std::int64_t start = 0; start < max; ++start) {
      for (const std::int64_t step : {0, 1, 2, 3, 4, 5, 7, 8, 11, 64}) {
        for (std::int64_t states = 0; states <= most_states; ++states) {
          const RequestLengths r{max, start, step, states};
          const std::int64_t predicted = worst_pages(layout, 0, r), real = walked(group, block, r);
          if (predicted < real || predicted > real + over) {
            testing::fail(__FILE__, __LINE__,
                          text_of(group.coverage, block, r) + ": predicted " + std::to_string(predicted) +
                              ", walked " + std::to_string(real));
            return;
          }
        }
      }
    }
  }
}

HKV_TEST("a walk through a prefix needs just the predicted pages") {
  for (const std::int64_t block : {1, 2, 4, 6}) compare(group_of({Rule::Prefix, 0}, block), 14, 0);
  compare(group_of({Rule::Prefix, 0}, 8, 2, 4), 14, 0);  // a row stands for 4 tokens: pages go by blocks
}

HKV_TEST("a walk through a window needs just the predicted pages") {
  for (const std::int64_t block : {1, 2, 4, 5})
    for (const std::int64_t window : {1, 2, 3, 4, 5, 6, 9, 13, 40})
      compare(group_of({Rule::Window, window}, block), 22, 0);
}

HKV_TEST("a walk through chunks needs just the predicted pages") {
  for (const std::int64_t block : {1, 2, 4})
    for (const std::int64_t times : {1, 2, 3}) compare(group_of({Rule::Chunk, block * times}, block), 22, 0);
}

HKV_TEST("where a block does not divide the chunk the prediction is at most one page above") {
  for (const std::int64_t block : {3, 4, 6})
    for (const std::int64_t chunk : {2, 5, 7, 10}) compare(group_of({Rule::Chunk, chunk}, block), 26, 0, 1);
}

HKV_TEST("a walk with a live page needs just the predicted pages") {
  for (const std::int64_t block : {1, 2, 4})
    for (const std::int64_t every : {0, 1, 2, 3, 4, 6})
      compare(group_of({Rule::Checkpoint, every}, block), 18, 4);
  compare(group_of({Rule::Window, 3}, 4, 2), 18, 3);
  compare(group_of({Rule::Window, 1}, 4, 1), 18, 2);  // needs no row: no state is kept
  compare(group_of({Rule::Chunk, 6}, 4, 3), 18, 3);   // two boundaries of three need a state
}

HKV_TEST("which groups are live") {
  EXPECT(is_live_group(group_of({Rule::Checkpoint, 0}, 4), 4));
  EXPECT(is_live_group(group_of({Rule::Window, 128}, 1, 128), 256));
  EXPECT(!is_live_group(group_of({Rule::Window, 128}, 1, 256), 256));
  EXPECT(!is_live_group(group_of({Rule::Window, 128}, 1), 256));
  EXPECT(!is_live_group(group_of({Rule::Window, 512}, 1, 64, 4), 256));
  EXPECT(is_live_group(group_of({Rule::Chunk, 64}, 1, 32), 256));
  EXPECT(!is_live_group(group_of({Rule::Prefix, 0}, 1, 2, 128), 256));
}

HKV_TEST("a window in steps of 4: what is predicted is what is held at its fullest step") {
  // Block 2, window 8, steps to 4, 8, 12, 16: two new pages a step; 7 rows and 4 tokens lie in 6 blocks.
  const Layout layout = make_layout(2, {group_of({Rule::Window, 8}, 1)});
  std::set<std::int64_t> held;
  std::size_t most = 0;
  for (std::int64_t c = 0; c < 16; c += 4) {
    std::size_t taken = 0;
    for (std::int64_t token = c; token < c + 4; ++token) taken += held.insert(token / 2).second ? 1 : 0;
    EXPECT_EQ(taken, 2u);
    most = std::max(most, held.size());
    const std::int64_t from = needed_span({Rule::Window, 8}, c + 4).from;
    std::erase_if(held, [&](std::int64_t block) { return (block + 1) * 2 <= from; });
  }
  EXPECT_EQ(static_cast<std::int64_t>(most), worst_pages(layout, 0, {16, 0, 4, 0}));
}

HKV_TEST("the published numbers: full 16 and window 16,64, 128 in flight, prompt of 512") {
  const Layout layout = make_layout(16, {group_of({Rule::Prefix, 0}, 1), group_of({Rule::Window, 64}, 1)});
  EXPECT_EQ(worst_pages(layout, 0, {512, 0, 128, 0}), 32);
  EXPECT_EQ(worst_pages(layout, 1, {512, 0, 128, 0}), 13);
  EXPECT_EQ(worst_pages(layout, 1, {512, 0, 0, 0}), 32);  // all at once
  EXPECT_EQ(worst_pages(layout, 0, {256, 0, 128, 0}), 16);
}

HKV_TEST("never more than the published formula, and one page less where it counts a page that is not") {
  for (std::int64_t block = 1; block <= 6; ++block) {
    const Layout layout = make_layout(block, {group_of({Rule::Window, 9}, 1)});
    for (std::int64_t max = 1; max <= 60; ++max) {
      for (std::int64_t step = 1; step <= max; ++step) {
        const std::int64_t formula = (std::min(8 + step, max) + block - 1) / block + 1;
        const std::int64_t exact = worst_pages(layout, 0, {max, 0, step, 0});
        EXPECT(exact <= formula && exact >= formula - 1);
      }
    }
  }
}

// A pin for the wide window keeps pages of the narrow one that others filed, where the request has none of
// its own.
HKV_TEST("pages kept by the pins of a wider window are counted") {
  for (const std::int64_t wide_block : {2, 4, 6}) {
    for (const std::int64_t block : {2, 3, 4}) {
      for (const std::int64_t wide : {3, 8, 13}) {
        const Layout layout =
            make_layout(1, {group_of({Rule::Window, 4}, block), group_of({Rule::Window, wide}, wide_block),
                            group_of({Rule::Checkpoint, 0}, block)});
        for (const std::int64_t step : {1, 3, 8}) {
          std::int64_t paged = 0, live = 0;
          for (std::int64_t c = 0; c <= 40; ++c) {
            const std::int64_t g = std::min<std::int64_t>(c + step, 40);
            std::set<std::int64_t> pinned, own = blocks_in(needed_span({Rule::Window, 4}, c).from, g, block);
            for (const std::int64_t b : blocks_in(needed_span({Rule::Window, wide}, c).from, c, wide_block)) {
              const std::int64_t end = (b + 1) * wide_block;
              if (end <= c && end % block == 0) pinned.insert(end / block - 1);
            }
            live = std::max<std::int64_t>(live, 2 + static_cast<std::int64_t>(pinned.size()));
            pinned.insert(own.begin(), own.end());
            paged = std::max(paged, static_cast<std::int64_t>(pinned.size()));
          }
          EXPECT(worst_pages(layout, 0, {40, 0, step, 0}) >= paged);
          EXPECT(worst_pages(layout, 2, {40, 0, step, 0}) >= live);
        }
      }
    }
  }
}

HKV_TEST("the largest lengths do not overflow") {
  const std::int64_t huge = (std::int64_t{1} << 62) - 1, window = (std::int64_t{1} << 48) - 1;
  const Layout layout =
      make_layout(1, {group_of({Rule::Window, window}, window - 1), group_of({Rule::Prefix, 0}, 1),
                      group_of({Rule::Window, window}, window), group_of({Rule::Chunk, window}, 3)});
  EXPECT_EQ(worst_pages(layout, 1, {huge, 0, 0, 0}), huge);
  for (int g = 0; g < 4; ++g) EXPECT(worst_pages(layout, g, {huge, huge - 5, 0, 9}) > 0);
}

HKV_TEST("a request may hold a page of every group, however short it is") {
  // Hence requests differ in the groups that they hold pages of only where they say so: AdmissionLedger::Demand.
  const Coverage rules[] = {{Rule::Prefix, 0},     {Rule::Window, 1},    {Rule::Window, 5},
                            {Rule::Chunk, 1},      {Rule::Chunk, 6},     {Rule::Checkpoint, 0},
                            {Rule::Checkpoint, 1}, {Rule::Checkpoint, 4}};
  for (const Coverage rule : rules) {
    for (const std::int64_t block : {1, 3, 4}) {
      const Layout layout = make_layout(1, {group_of(rule, block), group_of({Rule::Window, 7}, 2)});
      for (std::int64_t max = 1; max <= 14; ++max) {
        for (std::int64_t start = 0; start < max; ++start) {
          for (std::int64_t step = 0; step <= 4; ++step)
            EXPECT(worst_pages(layout, 0, {max, start, step, 0}) >= 1);
        }
      }
    }
  }
}

}  // namespace
}  // namespace hkv
