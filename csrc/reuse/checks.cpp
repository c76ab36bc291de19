// SPDX-License-Identifier: Apache-2.0
#include "reuse/checks.h"

#include <algorithm>

namespace hkv {
namespace {

int group_count(const Snapshot& s) { return static_cast<int>(s.layout->groups.size()); }
const Group& group(const Snapshot& s, int g) { return s.layout->groups[g]; }
std::int64_t block_of(const Snapshot& s, int g) { return s.layout->block_tokens(group(s, g)); }

// The first own block that keeps a group from resuming at a length; `start` orders failures of groups.
struct Failure {
  int group = -1;
  std::int64_t block = 0;
  std::int64_t start = never;
  void take(const Snapshot& s, int g, std::int64_t block_index) {
    const std::int64_t at = block_index * block_of(s, g);
    if (at < start) *this = {g, block_index, at};
  }
};

// What a check found at `length`: it keeps `tokens` of it.
Finding finding(const Snapshot& s, std::int64_t length, std::int64_t tokens, Check check, Code code,
                const Failure& failure, bool at_tip) {
  // No group fails where nothing proves that a length which needs no page was ever here: the first is named.
  if (failure.group < 0) return {tokens, {check, Code::Missing, 0, length / block_of(s, 0), false}};
  Finding found{tokens, {check, code, failure.group, failure.block, false}};
  if (at_tip && failure.block == length / block_of(s, failure.group)) found.why.tip_tokens = length;
  return found;
}

// ---- tips --------------------------------------------------------------------------------------

// Whole blocks below a tip that the group needs, and whether it needs the tip's partial page as well.
struct TipNeed {
  BlockSpan whole;
  bool partial;
};
TipNeed tip_need(const Snapshot& s, int g, std::int64_t tokens) {
  const BlockSpan need = needed_blocks(group(s, g).coverage, block_of(s, g), tokens);
  const std::int64_t whole_end = tokens / block_of(s, g);
  if (need.empty()) return {{whole_end, whole_end}, false};
  const bool partial = need.to > whole_end;
  if (group(s, g).coverage.rule == Rule::Checkpoint) return {{whole_end, whole_end}, partial};
  return {{need.from, std::min(need.to, whole_end)}, partial};
}

bool replayable(const Snapshot& s, int g, std::int64_t tokens) {
  return group(s, g).rebuildable && replay_from(group(s, g), s.layout->step_tokens(), tokens) > 0;
}

// First own block whose absence keeps group g from resuming at the tip from what is stored, or -1.
std::int64_t tip_hole(const Snapshot& s, int g, const Tip& tip) {
  const TipNeed need = tip_need(s, g, tip.tokens);
  const GroupView& view = s.groups[g];
  if (group(s, g).prefix()) {
    if (view.ours_run() < need.whole.to) return view.ours_run();
  } else {
    s.need(g, need.whole.from, need.whole.to);
    for (std::int64_t block = need.whole.from; block < need.whole.to; ++block) {
      if (!view.ours.get(block)) return block;
    }
  }
  return need.partial && !tip.ours(g) ? tip.tokens / block_of(s, g) : -1;
}

std::int64_t tip_failure(const Snapshot& s, int g, const Tip& tip) {
  return replayable(s, g, tip.tokens) ? -1 : tip_hole(s, g, tip);
}

bool tip_usable(const Snapshot& s, const Tip& tip) {
  for (int g = 0; g < group_count(s); ++g) {
    if (tip_failure(s, g, tip) >= 0) return false;
  }
  return true;
}

// A tip counts as matched when every Prefix group knows its whole blocks below it and its partial page.
bool tip_known(const Snapshot& s, const Tip& tip) {
  bool any = false;
  for (int g = 0; g < group_count(s); ++g) {
    if (!group(s, g).prefix()) continue;
    any = true;
    if (s.groups[g].known_run < tip.tokens / block_of(s, g) || !(tip.known >> g & 1)) {
      return false;
    }
  }
  return any || tip.known != 0;
}

// Every Prefix group has its whole blocks below the tip and its partial page, in whatever format.
bool tip_complete(const Snapshot& s, const Tip& tip) {
  for (int g = 0; g < group_count(s); ++g) {
    if (!group(s, g).prefix()) continue;
    const bool whole = s.groups[g].ready_run >= tip.tokens / block_of(s, g);
    if (!whole || !(tip.ready >> g & 1)) return false;
  }
  return true;
}

const Tip* best_tip_at(const Snapshot& s, std::int64_t tokens) {
  const Tip* best = nullptr;
  for (const Tip& tip : s.tips) {
    if (tip.tokens != tokens) continue;
    if (best == nullptr || tip_usable(s, tip)) best = &tip;
  }
  return best;
}

// ---- foreign pages -----------------------------------------------------------------------------

// First own block of another format among those that group g needs at the length and that are whole below
// it, or the tip's partial page; -1 if none.
std::int64_t foreign_block(const Snapshot& s, int g, std::int64_t length, const Tip* tip) {
  const GroupView& view = s.groups[g];
  if (group(s, g).rebuildable || !view.may_be_foreign) return -1;
  const std::int64_t whole_end = length / block_of(s, g);
  if (group(s, g).prefix()) {
    if (view.foreign_first < whole_end) return view.foreign_first;
  } else {
    const BlockSpan need = needed_blocks(group(s, g).coverage, block_of(s, g), length);
    const std::int64_t to = std::min(need.to, whole_end);
    if (!need.empty()) s.need(g, need.from, to);
    for (std::int64_t block = need.from; block < to; ++block) {
      if (view.foreign.get(block)) return block;
    }
  }
  const bool partial = tip != nullptr && tip->foreign >> g & 1 && tip_need(s, g, length).partial;
  return partial ? whole_end : -1;
}

Failure foreign_at(const Snapshot& s, std::int64_t length, const Tip* tip) {
  Failure failure;
  for (int g = 0; g < group_count(s); ++g) {
    const std::int64_t block = foreign_block(s, g, length, tip);
    if (block >= 0) failure.take(s, g, block);
  }
  return failure;
}

// ---- groups ------------------------------------------------------------------------------------

// Why the length is not usable: the group whose failing block starts lowest. `code` tells a length that is
// no multiple of a group's block (Partial) from a block that is not there (None: to be explained).
Failure failure_at(const Snapshot& s, std::int64_t length, Code& code) {
  Failure failure;
  code = Code::None;
  if (const Tip* tip = best_tip_at(s, length)) {
    for (int g = 0; g < group_count(s); ++g) {
      const std::int64_t block = tip_failure(s, g, *tip);
      if (block >= 0) failure.take(s, g, block);
    }
    return failure;
  }
  for (int g = 0; g < group_count(s); ++g) {
    const std::int64_t block_tokens = block_of(s, g);
    if (replayable(s, g, length)) continue;
    std::int64_t block = -1;
    bool partial = false;
    const BlockSpan need = needed_blocks(group(s, g).coverage, block_tokens, length);
    const std::int64_t whole_end = length / block_tokens;
    if (!group(s, g).prefix()) {
      s.need(g, need.from, std::min(need.to, whole_end));
      for (std::int64_t i = need.from; i < std::min(need.to, whole_end) && block < 0; ++i) {
        if (!s.groups[g].ours.get(i)) block = i;
      }
    }
    if (block < 0 && length % block_tokens != 0 && !(group(s, g).rebuildable && need.empty())) {
      block = whole_end;
      partial = true;
    }
    if (block < 0) continue;
    const Failure before = failure;
    failure.take(s, g, block);
    if (failure.group != before.group) code = partial ? Code::Partial : Code::None;
  }
  return failure;
}

bool misaligned_at(const Snapshot& s, std::int64_t length, Failure& failure, Code& code) {
  for (int g = 0; g < group_count(s); ++g) {
    const Code bad = s.groups[g].misaligned;
    if (bad == Code::None || replayable(s, g, length)) continue;
    const BlockSpan need = needed_blocks(group(s, g).coverage, block_of(s, g), length);
    if (need.empty()) continue;
    const Failure before = failure;
    failure.take(s, g, need.from);
    if (failure.group != before.group) code = bad;
  }
  return failure.group >= 0;
}

}  // namespace

std::int64_t matched_length(const Snapshot& s) {
  std::int64_t matched = s.known_end;
  for (int g = 0; g < group_count(s); ++g) {
    if (group(s, g).prefix()) matched = std::max(matched, s.groups[g].known_run * block_of(s, g));
  }
  for (const Tip& tip : s.tips) {
    if (tip.tokens > matched && (tip_known(s, tip) || tip_usable(s, tip))) matched = tip.tokens;
  }
  return std::max(matched, usable_at_most(s, s.limit - 1));
}

Finding check_complete(const Snapshot& s, std::int64_t length) {
  Failure failure;
  const Tip* tip = best_tip_at(s, length);
  for (int g = 0; g < group_count(s); ++g) {
    if (!group(s, g).prefix()) continue;
    const std::int64_t whole_end = length / block_of(s, g);
    const std::int64_t run = s.groups[g].ready_run;
    if (run < whole_end) {
      failure.take(s, g, run);
    } else if (tip != nullptr && !(tip->ready >> g & 1)) {
      failure.take(s, g, whole_end);
    }
  }
  if (failure.group < 0) return {length, {}};
  // A tip inside the block that fails may be whole all the same: it has pages of its own.
  std::int64_t kept = failure.start;
  for (const Tip& inside : s.tips) {
    if (inside.tokens < length && inside.tokens > kept && tip_complete(s, inside)) kept = inside.tokens;
  }
  return finding(s, length, kept, Check::Complete, Code::None, failure, tip != nullptr);
}

Finding check_abi(const Snapshot& s, std::int64_t length) {
  if (!s.any_foreign || length == 0) return {length, {}};
  const Tip* at_tip = best_tip_at(s, length);
  const Failure first = foreign_at(s, length, at_tip);
  if (first.group < 0) return {length, {}};
  const std::int64_t step = s.layout->step_tokens();
  std::int64_t t = (length - 1) / step * step;
  for (int g = 0; g < group_count(s); ++g) {
    const std::int64_t foreign = s.groups[g].foreign_first;
    if (group(s, g).prefix() && foreign != never) t = std::min(t, foreign * block_of(s, g) / step * step);
  }
  while (t > 0 && foreign_at(s, t, nullptr).group >= 0) t -= step;
  for (const Tip& tip : s.tips) {
    if (tip.tokens < length && tip.tokens > t && foreign_at(s, tip.tokens, &tip).group < 0) t = tip.tokens;
  }
  return finding(s, length, t, Check::Abi, Code::Format, first, at_tip != nullptr);
}

namespace {

std::int64_t find_aligned_at_most(const Snapshot& s, std::int64_t bound) {
  for (;;) {
    const std::int64_t t = longest(
        *s.layout, bound, [&](int g) { return s.groups[g].ours_run(); },
        [&](int g) -> const Plane& { return s.groups[g].ours; },
        [&](int g, std::int64_t from, std::int64_t to) { s.need(g, from, to); });
    // Without a Prefix group a length that needs no page at all proves nothing beyond what is known.
    if (s.layout->probe_units != 0 || t <= s.proof_end) return t;
    bool needs_page = false;
    for (int g = 0; g < group_count(s); ++g) {
      needs_page |= !replayable(s, g, t) && !needed_blocks(group(s, g).coverage, block_of(s, g), t).empty();
    }
    if (needs_page) return t;
    bound = t - 1;
  }
}

}  // namespace

std::int64_t aligned_at_most(const Snapshot& s, std::int64_t bound) {
  bound = std::min(bound, s.limit - 1);
  if (s.answer <= bound && bound <= s.asked) return s.answer;
  const std::int64_t found = find_aligned_at_most(s, bound);
  s.asked = bound;
  s.answer = found;
  return found;
}

std::int64_t usable_at_most(const Snapshot& s, std::int64_t bound) {
  std::int64_t best = aligned_at_most(s, bound);
  for (const Tip& tip : s.tips) {
    if (tip.tokens <= bound && tip.tokens > best && tip_usable(s, tip)) best = tip.tokens;
  }
  return best;
}

bool usable_at(const Snapshot& s, std::int64_t tokens) {
  return tokens > 0 && (usable_tip_at(s, tokens) != nullptr || aligned_at_most(s, tokens) == tokens);
}

bool aligned_at(const Snapshot& s, std::int64_t tokens) {
  Failure failure;
  Code code = Code::None;
  return !s.any_misaligned || !misaligned_at(s, tokens, failure, code);
}

bool stored_at_length(const Snapshot& s, int g, std::int64_t tokens, const Tip* tip) {
  if (tip != nullptr) return tip_hole(s, g, *tip) < 0;
  return stored_at(group(s, g), block_of(s, g), s.groups[g].ours, tokens,
                   [&](std::int64_t from, std::int64_t to) { s.need(g, from, to); });
}

const Tip* usable_tip_at(const Snapshot& s, std::int64_t tokens) {
  const Tip* tip = best_tip_at(s, tokens);
  return tip != nullptr && tip_usable(s, *tip) ? tip : nullptr;
}

Finding check_groups(const Snapshot& s, std::int64_t length) {
  const std::int64_t usable = usable_at_most(s, length);
  if (usable == length) return {length, {}};
  Code code = Code::None;
  const Failure failure = failure_at(s, length, code);
  return finding(s, length, usable, Check::Groups, code, failure, best_tip_at(s, length) != nullptr);
}

Finding check_aligned(const Snapshot& s, std::int64_t length) {
  if (!s.any_misaligned || length == 0) return {length, {}};
  Failure first;
  Code code = Code::None;
  if (!misaligned_at(s, length, first, code)) return {length, {}};
  std::int64_t t = length;
  for (;;) {
    t = usable_at_most(s, t - 1);
    Failure failure;
    Code ignored = Code::None;
    if (t == 0 || !misaligned_at(s, t, failure, ignored)) break;
  }
  return finding(s, length, t, Check::Aligned, code, first, false);
}

}  // namespace hkv
