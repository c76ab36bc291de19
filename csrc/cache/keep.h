// SPDX-License-Identifier: Apache-2.0
// Which boundaries of a running request keep their window, tail and recurrent states, as data. Values only.
//
// History is always kept. A state costs the bytes of many units of history, and most boundaries are passed for good;
// those where the next prompt is likely to come are the ends of prompt and answer, and where a known prefix was left.
#pragma once
#include <cstdint>

#include "layout/coverage.h"

namespace hkv {

struct KeepPolicy {
  bool all = true;              // every boundary that a step ends at
  bool output_end = true;       // the last boundary at close
  std::int64_t every = 0;       // multiples of it, in tokens; 0: none
  std::int64_t prompt_end = 0;  // these lengths, 0: none
  std::int64_t junction = 0;

  constexpr bool keeps(std::int64_t tokens) const {
    return all || tokens == prompt_end || tokens == junction || (every > 0 && tokens % every == 0);
  }
  // Whether a kept boundary needs an own block of a window or chunk that no running token needs any more.
  constexpr bool keeps_block(Coverage coverage, std::int64_t block_tokens, std::int64_t block) const {
    if (all) return true;
    const std::int64_t from = (block + 1) * block_tokens;  // boundaries that could need it:
    const std::int64_t to = slides_out_at(coverage, block_tokens, block) - 1;  // [from, to]
    const auto inside = [&](std::int64_t length) { return length >= from && length <= to; };
    return inside(prompt_end) || inside(junction) || (every > 0 && to / every * every >= from);
  }
};

}  // namespace hkv
