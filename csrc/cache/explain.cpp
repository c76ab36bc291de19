// SPDX-License-Identifier: Apache-2.0
// Of what a match lost: why, what would remedy it, and how it is counted.
#include <algorithm>

#include "cache/cache.h"
#include "reuse/checks.h"

namespace hkv {

// Names the loss that costs most, ties to the earlier check, and what would remedy it.
void HybridCache::choose_why(const MatchScratch& scratch, Verdict& verdict) const {
  verdict.has_why = false;
  std::int64_t most = 0;
  explain_losses(scratch, verdict);
  for (int check = 0; check < check_count; ++check) {
    if (verdict.lost[check] > most) {
      most = verdict.lost[check];
      verdict.why = verdict.reason[check];
      verdict.has_why = true;
    }
  }
  if (!verdict.has_why) {
    // Nothing known was lost; but where another request is filling the next block, waiting pays.
    const Snapshot& s = scratch.snapshot;
    for (std::size_t g = 0; g < layout_.groups.size() && !verdict.has_why; ++g) {
      const std::int64_t block_tokens = layout_.block_tokens(layout_.groups[g]);
      const std::int64_t block =
          layout_.groups[g].prefix() ? s.groups[g].known_run : verdict.matched_tokens / block_tokens;
      if (block * block_tokens != verdict.matched_tokens || (block + 1) * block_tokens >= s.limit) continue;
      Why next{Check::Complete, Code::None, static_cast<int>(g), block, false};
      explain(scratch, 0, next);
      if (next.code != Code::Filling) continue;
      verdict.why = next;
      verdict.has_why = true;
    }
  }
  verdict.remedy = verdict.has_why ? remedy_of(verdict.why) : Remedy::None;
  if (verdict.remedy == Remedy::Recompute && verdict.restore_tokens > verdict.usable_tokens)
    verdict.remedy = Remedy::Restore;
  if (verdict.remedy == Remedy::Restore && verdict.restore_tokens <= verdict.usable_tokens)
    verdict.remedy = Remedy::Recompute;  // what rests in the tier leads to no length
}

// Explains each loss; what a tier has in another format, or could not give back, is lost to another check.
void HybridCache::explain_losses(const MatchScratch& scratch, Verdict& verdict) const {
  for (int check = 0; check < check_count; ++check) {
    if (verdict.lost[check] == 0) continue;
    Why& reason = verdict.reason[check];
    explain(scratch, verdict.restore_tokens, reason);
    if (reason.code == Code::InTier && verdict.restore_tokens <= verdict.usable_tokens)
      explain_dead_end(scratch, verdict.usable_tokens, reason);
    const int is = static_cast<int>(reason.check);
    if (is == check) continue;
    if (verdict.lost[is] <= verdict.lost[check]) verdict.reason[is] = reason;
    verdict.lost[is] += verdict.lost[check];
    verdict.lost[check] = 0;
  }
}

// Tells missing from stale from expired from lagging from filling, where a check only found "not ready".
void HybridCache::explain(const MatchScratch& scratch, std::int64_t restore_tokens, Why& why) const {
  if (why.in_tier || (why.code != Code::None && why.code != Code::Format)) return;
  const Group& group = layout_.groups[why.group];
  const GroupSlot& at = store_.slot_of(why.group);
  Sighting seen;
  if (why.tip_tokens == 0) seen = sight_block(scratch, why.group, why.block);
  for (const Tip& tip : scratch.snapshot.tips) {
    if (tip.tokens == why.tip_tokens && !tip.in_tier) seen = {DescriptorId{tip.id}, Word(tip.h), Word(tip.b)};
  }
  if (why.code == Code::Format) {
    const PageId page = seen.found() ? store_.page(seen.id, why.group) : no_page;
    if (index(page) < store_.pool(why.group).count())
      why.writer_format = store_.pool(why.group)[page].format.load();
    return;
  }
  const Phase phase = seen.found() ? seen.word(at.which).phase(at.slot) : Phase::Absent;
  const bool once = seen.found() && store_.once_held(seen.id) >> why.group & 1;
  const bool slides = group.kind == static_cast<int>(StateKind::Window);
  if (in_making(phase)) {
    why.code = Code::Filling;
  } else if (phase == Phase::Retiring || once) {
    why.code = slides ? Code::Expired : Code::Stale;
  } else {
    why.code = group.in_step_with >= 0 ? Code::Lagging : Code::Missing;
  }
  if (link_.tier != nullptr && why.code != Code::Filling) explain_by_tier(scratch, restore_tokens, why);
}

// ---- counting ----------------------------------------------------------------------------------

void HybridCache::count(const Question& question, const Verdict& verdict) {
  const std::int64_t tokens = question.keys->tokens();
  const auto kind = [&](const Why& why) {
    return why.in_tier ? static_cast<int>(StateKind::Disk) : layout_.groups[why.group].kind;
  };
  auto counters = counters_.mine();
  counters.add(kLookups, 1);
  counters.add(kLookupsTokens, tokens);
  if (verdict.matched_tokens < tokens) counters.add(kMissesTokens, tokens - verdict.matched_tokens);
  if (verdict.outcome == Outcome::Miss) {
    counters.add(kMisses, 1);
    return;
  }
  if (verdict.matched_tokens > verdict.usable_tokens) {
    counters.add(kFalseHitsTokens, verdict.matched_tokens - verdict.usable_tokens);
    for (int check = 0; check < check_count; ++check) {
      const std::int64_t lost = verdict.lost[check];
      if (lost == 0) continue;
      const Why& why = verdict.reason[check];
      counters.add(by_check_and_kind(kLostTokens, why.check, kind(why)), lost);
      counters.add(by_code(why.code), lost);
    }
  }
  if (verdict.outcome == Outcome::FalseHit) {
    counters.add(by_check_and_kind(kFalseHits, verdict.why.check, kind(verdict.why)), 1);
  } else {
    counters.add(kPending, 1);
    counters.add(kPendingTokens, verdict.usable_tokens);
  }
}

}  // namespace hkv
