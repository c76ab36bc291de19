// SPDX-License-Identifier: Apache-2.0
// What a tier adds to a match: blocks that only it knows, and the length that a restore would make usable.
//
// Nothing here does I/O or stores anything but scratch: the tier answers from its index, read when asked. A record may go
// between the answer and the restore, which then says so.
#include <algorithm>

#include "cache/cache.h"
#include "reuse/checks.h"

namespace hkv {
namespace {

constexpr int most_boundaries_asked = 1024;  // of those that one state is part of

}  // namespace

TierAnswer HybridCache::ask_tier(Key128 digest, RecordKind kind) const {
  if (link_.tier == nullptr || tier_closed_.load() != 0) return TierAnswer::Absent;
  if (failed_loads_.has(kind, digest)) return TierAnswer::Failed;
  switch (link_.tier->look(link_.record(kind, digest)).answer) {
    case Presence::Answer::Here: return TierAnswer::Here;
    case Presence::Answer::OtherFormat: return TierAnswer::OtherFormat;
    default: return TierAnswer::Absent;
  }
}

// The same of a block record, asked once a match.
TierAnswer HybridCache::ask_tier_at(MatchScratch& scratch, std::int64_t position) const {
  if (link_.tier == nullptr) return TierAnswer::Absent;
  TierAnswer& answer = scratch.tier_answers[static_cast<std::size_t>(position)];
  if (answer == TierAnswer::Unasked) {
    const std::int64_t unit = (position + 1) * layout_.probe_units;
    answer = ask_tier(scratch.question->keys->keys()[unit - 1], RecordKind::Block);
  }
  return answer;
}

// Whether all Prefix groups that record a block at the position have it, or can have it back: a restore takes the place
// of no page, not even of one in another format, and writes into no pool that is read-only.
void HybridCache::note_obtainable(MatchScratch& scratch, std::int64_t position) const {
  const std::int64_t end = (position + 1) * layout_.probe_units;
  const Sighting& seen = scratch.history[static_cast<std::size_t>(position)];
  bool all = true;
  for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
    const Group& group = layout_.groups[g];
    if (!group.prefix() || end % group.block_units != 0) continue;
    const int slot = store_.slot_of(static_cast<int>(g)).slot;
    const Phase phase = seen.found() ? seen.h.phase(slot) : Phase::Absent;
    if (phase == Phase::Absent) {
      if (!memory_[g].writable()) return;
      all = false;
    } else if (phase == Phase::Restoring) {
      scratch.history_comes = true;
      return;
    } else if (!usable(phase) || (scratch.snapshot.groups[g].may_be_foreign &&
                                  foreign_page(*scratch.question, static_cast<int>(g), seen.id))) {
      return;
    }
  }
  if (all || ask_tier_at(scratch, position) == TierAnswer::Here) ++scratch.obtainable;
}

// Whether every group could resume at a length, a step or a tip: its history is obtainable, and the states are here, or in
// the boundary record, or on their way from it.
Obtainable HybridCache::obtainable_at(const Question& question, MatchScratch& scratch,
                                      std::int64_t tokens) const {
  const Snapshot& s = scratch.snapshot;
  const std::int64_t probe_tokens = layout_.probe_units * layout_.unit_tokens;
  if (probe_tokens != 0 && tokens / probe_tokens > scratch.obtainable) return Obtainable::No;
  // What came back into a pool that its kernels cannot take could not be used, and would be asked for again.
  if (!aligned_at(s, tokens)) return Obtainable::No;
  const Key128 key = key_at(layout_, *question.keys, tokens);
  bool asked = false;
  Obtainable found = Obtainable::Yes;
  std::uint8_t left_out = 0;
  for (int g = 0; g < static_cast<int>(layout_.groups.size()); ++g) {
    const Group& group = layout_.groups[g];
    const BlockSpan need = needed_blocks(group.coverage, layout_.block_tokens(group), tokens);
    if ((group.prefix() && !is_tip(layout_, tokens)) || need.empty()) continue;
    if (here_at(s, g, tokens)) continue;
    if (group.rebuildable && replay_from(group, layout_.step_tokens(), tokens) > 0) continue;
    if (!memory_[static_cast<std::size_t>(g)].writable()) return Obtainable::No;
    if (foreign_in_place(s, g, tokens)) return Obtainable::No;
    const Phase made = making_at(scratch, g, tokens);
    if (made == Phase::Filling) return Obtainable::No;
    if (made == Phase::Restoring) {
      found = Obtainable::Coming;
      continue;
    }
    if (!asked) {
      if (ask_tier(key, RecordKind::Boundary) != TierAnswer::Here) return Obtainable::No;
      left_out = link_.tier->look(link_.record(RecordKind::Boundary, key)).flags;
      asked = true;
    }
    if (group.rebuildable && (left_out & left_out_flag(layout_, g)) != 0) return Obtainable::No;
  }
  return found;
}

bool HybridCache::restorable_at(const Question& question, MatchScratch& scratch, std::int64_t tokens) const {
  return obtainable_at(question, scratch, tokens) == Obtainable::Yes;
}

// Whether what a group needs at the length besides whole blocks of history is here.
bool HybridCache::here_at(const Snapshot& s, int group, std::int64_t tokens) const {
  if (!is_tip(layout_, tokens)) return stored_at_length(s, group, tokens, nullptr);
  for (const Tip& tip : s.tips) {
    if (tip.tokens != tokens || tip.in_tier) continue;
    if (layout_.groups[group].prefix() ? tip.ours(group) : stored_at_length(s, group, tokens, &tip))
      return true;
  }
  return false;
}

// Whether a page of another format stands where a restore would put one: it takes the place of none.
bool HybridCache::foreign_in_place(const Snapshot& s, int group, std::int64_t tokens) const {
  const Group& g = layout_.groups[group];
  if (!s.groups[group].may_be_foreign) return false;
  const std::int64_t block_tokens = layout_.block_tokens(g);
  const BlockSpan need = needed_blocks(g.coverage, block_tokens, tokens);
  const std::int64_t to = g.prefix() ? 0 : std::min(need.to, tokens / block_tokens);
  s.need(group, need.from, to);
  for (std::int64_t block = need.from; block < to; ++block) {
    if (s.groups[group].foreign.get(block)) return true;
  }
  return std::any_of(s.tips.begin(), s.tips.end(),
                     [&](const Tip& tip) { return tip.tokens == tokens && (tip.foreign >> group & 1) != 0; });
}

// The phase of a page that a restore would load, where somebody else makes it: it is for that one to publish it.
// Returns: Filling before Restoring before Absent.
Phase HybridCache::making_at(const MatchScratch& scratch, int group, std::int64_t tokens) const {
  const Group& g = layout_.groups[static_cast<std::size_t>(group)];
  const GroupSlot& at = store_.slot_of(group);
  const std::int64_t block_tokens = layout_.block_tokens(g), whole = tokens / block_tokens;
  Phase made = Phase::Absent;
  const auto look = [&](const Sighting& seen) {
    const Phase phase = seen.found() ? seen.word(at.which).phase(at.slot) : Phase::Absent;
    if (in_making(phase) && made != Phase::Filling) made = phase;
  };
  const BlockSpan need = needed_blocks(g.coverage, block_tokens, tokens);
  for (std::int64_t block = g.prefix() ? whole : need.from; block < std::min(need.to, whole); ++block)
    look(sight_block(scratch, group, block));
  if (need.to > whole && is_tip(layout_, tokens))
    look(store_.table().find(key_at(layout_, *scratch.question->keys, tokens)));
  return made;
}

// How far history is here or in the tier; without a Prefix group, how far anything is.
std::int64_t HybridCache::obtainable_tokens(const MatchScratch& scratch) const {
  if (layout_.probe_units == 0) return scratch.snapshot.known_end;
  return scratch.obtainable * layout_.probe_units * layout_.unit_tokens;
}

// The longest length that a restore would make usable. 0 where there is none beyond `above`, or a restore that brings more
// is under way: that is waited for.
std::int64_t HybridCache::restorable_above(const Question& question, MatchScratch& scratch,
                                           std::int64_t above) const {
  if (scratch.history_comes) return 0;
  const std::int64_t step = layout_.step_tokens();
  const std::int64_t history = std::min(obtainable_tokens(scratch), scratch.snapshot.limit - 1);
  std::int64_t best = above, coming = above;
  const auto ask = [&](std::int64_t tokens) {
    const Obtainable found = obtainable_at(question, scratch, tokens);
    if (found == Obtainable::No) return false;
    std::int64_t& longest = found == Obtainable::Yes ? best : coming;
    longest = std::max(longest, tokens);
    return true;
  };
  for (const Tip& tip : scratch.snapshot.tips) {
    if (tip.tokens > best) ask(tip.tokens);
  }
  for (std::int64_t t = history / step * step; t > std::max(best, coming) && !ask(t);) t -= step;
  return best > coming ? best : 0;
}

std::int64_t HybridCache::restorable(const KeyChain& keys, std::int64_t limit) {
  std::int64_t tokens = 0;
  judge_restorable(keys, limit, [&](const Question&, MatchScratch&, const Verdict& verdict) {
    tokens = verdict.restore_tokens;
  });
  return tokens;
}

void HybridCache::judge_restorable(
    const KeyChain& keys, std::int64_t limit,
    const std::function<void(const Question&, MatchScratch&, const Verdict&)>& use) {
  if (link_.tier == nullptr) return;
  Question question;
  question.keys = &keys;
  question.limit = limit;
  question.formats = spec_formats_;
  std::unique_ptr<MatchScratch> scratch = spare_scratch_.take();
  search(question, *scratch);
  use(question, *scratch, judge(question, *scratch));
  spare_scratch_.put(std::move(scratch));
}

// `undropped`: the largest usable length, of which a draft head's drop is taken. Records are in the spec's formats: who
// reads others has nothing from them.
void HybridCache::note_restorable(const Question& question, MatchScratch& scratch, std::int64_t undropped,
                                  Verdict& verdict) const {
  if (verdict.matched_tokens <= undropped) return;
  if (!std::equal(question.formats.begin(), question.formats.end(), spec_formats_.begin())) return;
  const std::int64_t want = question.exactly;
  if (want < 0) {
    verdict.restore_tokens = restorable_above(question, scratch, undropped);
  } else if (verdict.usable_tokens == 0 && want > 0 && want <= question.keys->tokens() &&
             (is_tip(layout_, want)
                  ? question.keys->has_tokens()
                  : want % layout_.step_tokens() == 0 && want <= obtainable_tokens(scratch)) &&
             restorable_at(question, scratch, want)) {
    verdict.restore_tokens = want;
  }
}

// What is not here may rest in the tier, in this format or in another, or have been lost there.
void HybridCache::explain_by_tier(const MatchScratch& scratch, std::int64_t restore_tokens, Why& why) const {
  const Group& group = layout_.groups[static_cast<std::size_t>(why.group)];
  const KeyChain& keys = *scratch.question->keys;
  const std::int64_t end =
      why.tip_tokens != 0 ? why.tip_tokens : (why.block + 1) * layout_.block_tokens(group);
  if (end > keys.tokens() - (why.tip_tokens != 0 ? 0 : keys.rest_tokens())) return;
  TierAnswer answer = TierAnswer::Absent;
  if (why.tip_tokens != 0) {
    answer = ask_tier(key_at(layout_, keys, end), RecordKind::Boundary);
  } else if (group.prefix()) {
    answer = ask_tier(key_at(layout_, keys, end), RecordKind::Block);
  } else {
    answer = ask_tier_for_state(scratch, group, why.block);
    if (answer == TierAnswer::Absent && restore_tokens > 0)
      answer = TierAnswer::Here;  // in a boundary record further up
  }
  note_answer(answer, why);
}

void HybridCache::note_answer(TierAnswer answer, Why& why) {
  if (answer == TierAnswer::Absent) return;
  why.in_tier = true;
  why.code = Code::InTier;
  if (answer == TierAnswer::OtherFormat) {
    why.check = Check::Abi;
    why.code = Code::Format;
  } else if (answer == TierAnswer::Failed) {
    why.check = Check::Integrity;
    why.code = Code::Load;
  }
}

// A block of a window or another state lies in the records of all boundaries that need it. Returns: what tells most of
// their answers, a load that failed before another format before a record that is there.
TierAnswer HybridCache::ask_tier_for_state(const MatchScratch& scratch, const Group& group,
                                           std::int64_t block) const {
  const KeyChain& keys = *scratch.question->keys;
  const std::int64_t step = layout_.step_tokens(), block_tokens = layout_.block_tokens(group);
  TierAnswer told = TierAnswer::Absent;
  const auto ask = [&](std::int64_t tokens) {
    const BlockSpan need = needed_blocks(group.coverage, block_tokens, tokens);
    if (block < need.from || block >= need.to) return need.from <= block;
    told = std::max(told, ask_tier(key_at(layout_, keys, tokens), RecordKind::Boundary));
    return true;
  };
  for (const Tip& tip : scratch.snapshot.tips) ask(tip.tokens);
  const std::int64_t most = std::min(scratch.snapshot.limit - 1, keys.end_unit() * layout_.unit_tokens);
  std::int64_t tokens = (block * block_tokens / step + 1) * step;
  for (int asked = 0; tokens <= most && asked < most_boundaries_asked && ask(tokens); ++asked) tokens += step;
  return told;
}

// History that rests in the tier and leads to no length above what is usable is not what was lost: the states are, of the
// longest such length that the tier knows anything of, or else of the longest there could be.
void HybridCache::explain_dead_end(const MatchScratch& scratch, std::int64_t above, Why& why) const {
  const Snapshot& s = scratch.snapshot;
  const std::int64_t step = layout_.step_tokens(), exactly = scratch.question->exactly;
  if (exactly % step != 0 && exactly >= 0) return;  // a tip's own record was asked for
  const std::int64_t longest = std::min(obtainable_tokens(scratch), s.limit - 1) / step * step;
  if (exactly >= 0) above = std::max<std::int64_t>(std::min(longest, exactly) - step, 0);  // no key ends at 0
  std::int64_t at = longest;
  for (std::int64_t t = longest; t > above; t -= step) {
    if (ask_tier(key_at(layout_, *scratch.question->keys, t), RecordKind::Boundary) == TierAnswer::Absent)
      continue;
    at = t;
    break;
  }
  for (int g = 0; at > above && g < static_cast<int>(layout_.groups.size()); ++g) {
    const Group& group = layout_.groups[static_cast<std::size_t>(g)];
    const BlockSpan need = needed_blocks(group.coverage, layout_.block_tokens(group), at);
    if (group.prefix() || need.empty() || here_at(s, g, at)) continue;
    if (group.rebuildable && replay_from(group, step, at) > 0) continue;
    Why states{Check::Groups, Code::None, g, need.to - 1, false};
    explain(scratch, 0, states);
    if (states.code != Code::InTier) why = states;
    return;
  }
}

}  // namespace hkv
