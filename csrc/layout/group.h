// SPDX-License-Identifier: Apache-2.0
// A cache group as the core sees it: where it lives, what it covers, how its pages lie. Values only.
#pragma once
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "layout/coverage.h"

namespace hkv {

struct Group {
  std::string name;
  int kind = 0;  // StateKind, as in Python
  Coverage coverage;
  std::int64_t block_units = 1;  // own block, in units
  std::int64_t pages = 0;        // size of its pool
  std::int64_t page_bytes = 0;   // bytes that one page must offer in one array
  std::int64_t layers = 1;       // rows of `addresses`
  std::int64_t tokens_per_row = 1;
  std::int64_t row_bytes = 0;       // 0: not declared
  std::int64_t rows_per_page = 0;   // 0: every row of the block
  std::int64_t alignment = 1;       // of a page's base
  std::int64_t page_stride = 0;     // 0: any
  std::int64_t footer_offset = -1;  // of a page, where its format has a footer
  int in_step_with = -1;            // group that it indexes
  bool rows_in_order = true;  // rows lie one after another from the first byte of a layer's piece of the page
  bool rebuildable = false;   // may be computed again instead of stored; does not coarsen the step
  std::int64_t replay_tokens = 0;  // tokens to compute again for that; 0: what the rule implies is enough
  // Of rows that can be told apart in a page that holds some; 0: none can.
  std::int64_t ordered_row_bytes() const { return rows_in_order ? row_bytes : 0; }
  bool prefix() const { return coverage.rule == Rule::Prefix; }
};

// The groups of a model over one unit, with what follows from them.
struct Layout {
  std::int64_t unit_tokens = 1;
  std::vector<Group> groups;
  std::int64_t step_units = 1;  // step of usable lengths: LCM of the blocks of groups not rebuildable
  std::int64_t probe_units =
      0;                // distance of units at which some Prefix group records a block; 0: no Prefix group
  bool uniform = true;  // every block is one step: planes of all groups line up

  std::int64_t block_tokens(const Group& g) const { return g.block_units * unit_tokens; }
  std::int64_t step_tokens() const { return step_units * unit_tokens; }
};

// Requires: at least one group.
inline Layout make_layout(std::int64_t unit_tokens, std::vector<Group> groups) {
  Layout layout;
  layout.unit_tokens = unit_tokens;
  layout.groups = std::move(groups);
  for (const Group& g : layout.groups) {
    if (!g.rebuildable) layout.step_units = std::lcm(layout.step_units, g.block_units);
    if (g.prefix()) layout.probe_units = std::gcd(layout.probe_units, g.block_units);
  }
  for (const Group& g : layout.groups) layout.uniform &= g.block_units == layout.step_units;
  return layout;
}

}  // namespace hkv
