// SPDX-License-Identifier: Apache-2.0
// One thread: left out under ThreadSanitizer.
#include "reuse/planes.h"

#include <random>
#include <vector>

#include "testing.h"

using namespace hkv;

namespace {

Group group_of(Rule rule, std::int64_t parameter, std::int64_t block_units) {
  Group g;
  g.coverage = {rule, parameter};
  g.block_units = block_units;
  return g;
}

// The definition of a usable length, one length at a time.
bool resumes(const Layout& layout, const std::vector<std::vector<bool>>& ready, std::int64_t t) {
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    const std::int64_t block = layout.block_tokens(layout.groups[g]);
    if (t % block != 0) return false;
    const BlockSpan need = needed_blocks(layout.groups[g].coverage, block, t);
    for (std::int64_t b = need.from; b < need.to; ++b) {
      if (!ready[g][static_cast<std::size_t>(b)]) return false;
    }
  }
  return true;
}

struct Scene {
  Layout layout;
  std::vector<std::vector<bool>> ready;
  std::vector<Plane> planes;
  std::vector<std::int64_t> runs;
  std::int64_t tokens = 0;
};

Scene draw(std::mt19937& rng) {
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng); };
  Scene s;
  std::vector<Group> groups;
  const int n = pick(1, 6);
  for (int i = 0; i < n; ++i) {
    static constexpr int sizes[] = {1, 1, 1, 2, 3, 4};
    const auto rule = static_cast<Rule>(pick(0, 3));
    const int parameter = rule == Rule::Checkpoint ? pick(0, 9)
                          : rule == Rule::Window   ? pick(1, 200)
                                                   : pick(1, 40);
    groups.push_back(group_of(rule, parameter, sizes[pick(0, 5)]));
  }
  s.layout = make_layout(pick(1, 3), groups);
  s.tokens = s.layout.unit_tokens * pick(1, 300);
  const int density = pick(1, 60);
  for (const Group& g : s.layout.groups) {
    const std::int64_t blocks = s.tokens / s.layout.block_tokens(g);
    std::vector<bool> row;
    Plane plane;
    plane.reset(blocks);
    for (std::int64_t b = 0; b < blocks; ++b) {
      row.push_back(pick(0, density) != 0);
      if (row.back()) plane.set(b);
    }
    s.runs.push_back(plane.first_zero());
    s.ready.push_back(row);
    s.planes.push_back(plane);
  }
  return s;
}

std::int64_t longest_of(const Scene& s, std::int64_t bound) {
  return longest(
      s.layout, bound, [&](int g) { return s.runs[static_cast<std::size_t>(g)]; },
      [&](int g) -> const Plane& { return s.planes[static_cast<std::size_t>(g)]; },
      [](int, std::int64_t, std::int64_t) {});
}

}  // namespace

HKV_TEST("the longest length is the largest that every group can resume at, on random planes") {
  std::mt19937 rng(20261129);
  int nonzero = 0, cut = 0;
  for (int round = 0; round < 4000; ++round) {
    const Scene s = draw(rng);
    for (std::int64_t bound = s.tokens; bound > 0; bound -= 1 + bound / 3) {
      std::int64_t want = bound;
      while (want > 0 && !resumes(s.layout, s.ready, want)) --want;
      EXPECT_EQ(longest_of(s, bound), want);
      nonzero += want > 0;
      cut += want < bound / s.layout.step_tokens() * s.layout.step_tokens();
    }
  }
  EXPECT(nonzero > 1000 && cut > 1000);
}

HKV_TEST("last and first_zero agree with a walk over the bits") {
  std::mt19937_64 rng(7);
  for (int round = 0; round < 2000; ++round) {
    const auto size = static_cast<std::int64_t>(rng() % 400);
    Plane plane;
    plane.reset(size);
    for (std::int64_t i = 0; i < size; ++i) plane.set(i, rng() % 8 != 0);
    std::int64_t run = 0;
    while (run < size && plane.get(run)) ++run;
    EXPECT_EQ(plane.first_zero(), run);
    const std::int64_t from = size == 0 ? 0 : static_cast<std::int64_t>(rng()) % (size + 1);
    const std::int64_t low = from < 0 ? 0 : from;
    std::int64_t one = -1, zero = -1;
    for (std::int64_t i = low; i < size; ++i) (plane.get(i) ? one : zero) = i;
    EXPECT_EQ(plane.last<true>(low, size), one);
    EXPECT_EQ(plane.last<false>(low, size), zero);
  }
}

HKV_TEST("a rebuildable window is usable where its replay starts behind the beginning") {
  Group window = group_of(Rule::Window, 128, 1);
  window.rebuildable = true;
  EXPECT_EQ(replay_from(window, 1, 128), 1);
  EXPECT_EQ(replay_from(window, 1, 127), 0);
  EXPECT_EQ(replay_from(window, 64, 4096), (4096 - 127) / 64 * 64);
  window.layers = 43;
  EXPECT_EQ(replay_from(window, 256, 43 * 127 + 255), 0);  // rounded down to nothing
  EXPECT_EQ(replay_from(window, 256, 43 * 127 + 256), 256);
}

HKV_TEST("a rebuildable tail replays as many tokens as it declares, and none by itself") {
  Group tail = group_of(Rule::Checkpoint, 0, 1);
  tail.rebuildable = true;
  EXPECT_EQ(replay_from(tail, 16, 4096), 0);
  tail.replay_tokens = 75;
  EXPECT_EQ(replay_from(tail, 16, 144), 64);  // 69, rounded down
  EXPECT_EQ(replay_from(tail, 16, 91), 16);
  EXPECT_EQ(replay_from(tail, 16, 90), 0);  // 15, rounded down to nothing
  EXPECT_EQ(replay_from(tail, 16, 70), 0);
}
