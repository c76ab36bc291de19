// SPDX-License-Identifier: Apache-2.0
// match: look up, check in order, pin; and the explanation of what was lost.
#include <algorithm>

#include "cache/cache.h"
#include "reuse/checks.h"

namespace hkv {
namespace {

constexpr int match_attempts = 8;

// Whole units below the limit.
std::int64_t units_below(const Question& question, std::int64_t unit_tokens) {
  return question.limit <= 0 ? 0 : std::min(question.keys->end_unit(), (question.limit - 1) / unit_tokens);
}

}  // namespace

Verdict HybridCache::match(const Question& question, const std::shared_ptr<const KeyChain>& keys,
                           std::unique_ptr<Lease>& lease) {
  std::unique_ptr<MatchScratch> scratch = spare_scratch_.take();
  Verdict verdict;
  PinResult result = PinResult::Pinned;
  for (int attempt = 0; attempt < match_attempts; ++attempt) {
    search(question, *scratch);
    verdict = judge(question, *scratch);
    if (verdict.usable_tokens == 0) break;
    if (lease == nullptr) lease = spare_leases_.take();
    lease->clear();
    result = pin(question, *scratch, verdict.usable_tokens, *lease);
    if (result == PinResult::Pinned) break;
    lease->drop(store_);
    counters_.add(kRaced, 1);
  }
  Why wrong;
  const bool raced = verdict.usable_tokens != 0 && result != PinResult::Pinned;
  const bool damaged = verdict.usable_tokens != 0 && !raced && !verify(question, *lease, wrong);
  if (raced || damaged) {
    const Check check = raced ? Check::Raced : Check::Integrity;
    verdict.lost[static_cast<int>(check)] = verdict.usable_tokens;
    verdict.reason[static_cast<int>(check)] =
        raced ? Why{check, result == PinResult::Full ? Code::Pins : Code::Stale, 0, 0, false} : wrong;
    verdict.usable_tokens = 0;
    verdict.outcome = Outcome::FalseHit;
    choose_why(*scratch, verdict);
  }
  if (verdict.usable_tokens != 0) {
    for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
      if (!(lease->replayed >> g & 1)) continue;
      const std::int64_t from = replay_from(layout_.groups[g], layout_.step_tokens(), verdict.usable_tokens);
      verdict.resume_tokens = std::min(verdict.resume_tokens, from);
    }
    lease->resume_tokens = verdict.resume_tokens;
    lease->keys = keys;
    lease->verdict = verdict;
    live_leases_.fetch_add(1);
    own(*lease);
  } else if (lease != nullptr) {
    lease->drop(store_);
    spare_leases_.put(std::move(lease));
  }
  count(question, verdict);
  spare_scratch_.put(std::move(scratch));
  return verdict;
}

Verdict HybridCache::look(const Question& question) {
  std::unique_ptr<MatchScratch> scratch = spare_scratch_.take();
  search(question, *scratch);
  const Verdict verdict = judge(question, *scratch);
  spare_scratch_.put(std::move(scratch));
  return verdict;
}

std::vector<std::int64_t> HybridCache::boundaries(const Question& question) {
  std::unique_ptr<MatchScratch> scratch = spare_scratch_.take();
  search(question, *scratch);
  const Snapshot& s = scratch->snapshot;
  gather_tips(question, *scratch, 0);
  std::vector<std::int64_t> lengths;
  for (std::int64_t t = question.limit - 1; t > 0; --t) {
    t = usable_at_most(s, t);
    if (t > 0 && aligned_at(s, t)) lengths.push_back(t);
  }
  std::reverse(lengths.begin(), lengths.end());
  spare_scratch_.put(std::move(scratch));
  return lengths;
}

// ---- reading words -----------------------------------------------------------------------------

void HybridCache::search(const Question& question, MatchScratch& scratch) const {
  Snapshot& s = scratch.snapshot;
  const KeyChain& keys = *question.keys;
  const std::int64_t units = units_below(question, layout_.unit_tokens);
  scratch.cache = this;
  scratch.question = &question;
  scratch.formats_turn = formats_turn_.load();
  scratch.tips = tips_filed_.load() != 0;
  s.layout = &layout_;
  s.limit = std::min(question.limit, keys.tokens() + 1);
  s.known_end = 0;
  s.asked = -1;
  s.tips.clear();
  s.fill = &HybridCache::fill_planes_of;
  s.context = &scratch;
  s.any_foreign = s.any_misaligned = false;
  s.groups.resize(layout_.groups.size());
  for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
    GroupView& view = s.groups[g];
    const std::uint32_t one_format = page_formats_[g].load();
    view.may_be_foreign = one_format != 0 && one_format != question.formats[g] + 1u;
    view.known_run = view.ready_run = 0;
    view.foreign_first = never;
    view.misaligned = misaligned_[g];
    s.any_foreign |= view.may_be_foreign;
    s.any_misaligned |= view.misaligned != Code::None;
  }
  scratch.positions = layout_.probe_units == 0 ? 0 : units / layout_.probe_units;
  scratch.obtainable = 0;
  scratch.history_comes = false;
  scratch.tier_answers.assign(link_.tier == nullptr ? 0 : static_cast<std::size_t>(scratch.positions),
                              TierAnswer::Unasked);
  scan_history(question, scratch);
  s.proof_end = 0;
  if (layout_.probe_units == 0) find_known_end(question, scratch);
  make_planes(scratch, units);
}

// Clear planes for every block of the prefix; none where it is a miss already, whose time must not grow with it.
void HybridCache::make_planes(MatchScratch& scratch, std::int64_t units) const {
  Snapshot& s = scratch.snapshot;
  bool needed = layout_.probe_units == 0 || scratch.tips;
  for (const GroupView& view : s.groups) needed |= view.known_run != 0;
  for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
    if (layout_.groups[g].prefix()) continue;
    GroupView& view = s.groups[g];
    const std::int64_t blocks = needed ? units / layout_.groups[g].block_units : 0;
    view.ours.reset(blocks);
    view.read.reset(blocks);
    if (view.may_be_foreign) view.foreign.reset(blocks);
  }
}

// Reads the descriptors at which Prefix groups record blocks, in order, until no group's run goes on. The
// first is read alone, so that a miss costs one line.
void HybridCache::scan_history(const Question& question, MatchScratch& scratch) const {
  constexpr std::int64_t chunk = 256;
  if (static_cast<std::int64_t>(scratch.history.size()) < scratch.positions) {
    scratch.history.resize(static_cast<std::size_t>(scratch.positions));
  }
  const Key128* first_key = question.keys->keys() + (layout_.probe_units - 1);
  const Table& table = store_.table();
  bool plain = one_prefix_block_;
  for (const GroupView& view : scratch.snapshot.groups) plain &= !view.may_be_foreign;
  bool alive = true;
  std::int64_t at = 0;
  while (at < scratch.positions && alive) {
    const std::int64_t n = at == 0 ? 1 : std::min(chunk, scratch.positions - at);
    table.find_batch(first_key + at * layout_.probe_units, static_cast<std::size_t>(layout_.probe_units),
                     static_cast<std::size_t>(n), &scratch.history[at]);
    std::int64_t i = at;
    if (plain) {
      while (i < at + n && scratch.history[i].h.usable(prefix_slots_)) ++i;
      for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
        if (layout_.groups[g].prefix())
          scratch.snapshot.groups[g].known_run = scratch.snapshot.groups[g].ready_run = i;
      }
      scratch.obtainable = i;
      plain = i == at + n;
    }
    for (; i < at + n && alive; ++i) alive = note_position(scratch, i);
    at += n;
  }
  scratch.read_positions = at;
}

// Extends the runs of the Prefix groups that record a block at the position.
// Returns: whether some run may go on.
bool HybridCache::note_position(MatchScratch& scratch, std::int64_t position) const {
  const Sighting& seen = scratch.history[position];
  const std::int64_t end = (position + 1) * layout_.probe_units;
  bool alive = false;
  for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
    const Group& group = layout_.groups[g];
    if (!group.prefix()) continue;
    GroupView& view = scratch.snapshot.groups[g];
    if (end % group.block_units != 0) {
      alive |= view.known_run == end / group.block_units;
      continue;
    }
    const std::int64_t block = end / group.block_units - 1;
    if (view.known_run != block) continue;
    const int slot = store_.slot_of(static_cast<int>(g)).slot;
    const bool here = seen.found() && seen.h.known_slot(slot);
    if (!here && ask_tier_at(scratch, position) == TierAnswer::Absent) continue;
    alive = true;
    ++view.known_run;
    if (!here || view.ready_run != block || !seen.h.usable_slot(slot)) continue;
    ++view.ready_run;
    if (view.may_be_foreign && view.foreign_first == never &&
        foreign_page(*scratch.question, static_cast<int>(g), seen.id)) {
      view.foreign_first = block;
    }
  }
  if (scratch.obtainable == position) note_obtainable(scratch, position);
  return alive;
}

// Without a Prefix group nothing bounds the search from below: the last known block of any group is looked
// for from the end. match_at asks of a length that was agreed on below the end of the keys, so that blocks
// behind its limit still prove that the history was here.
void HybridCache::find_known_end(const Question& question, MatchScratch& scratch) const {
  Snapshot& s = scratch.snapshot;
  const std::int64_t proof_limit = question.exactly >= 0 ? question.keys->tokens() : question.limit;
  for (std::int64_t unit = question.keys->end_unit(); unit > 0 && s.known_end == 0; --unit) {
    bool recorded = false;
    for (const Group& group : layout_.groups) recorded |= unit % group.block_units == 0;
    if (!recorded) continue;
    const Key128 key = question.keys->keys()[unit - 1];
    const Sighting seen = store_.table().find(key);
    const bool in_tier = link_.tier != nullptr && unit % layout_.step_units == 0 &&
                         ask_tier(key, RecordKind::Boundary) != TierAnswer::Absent;
    if (!seen.found() && !in_tier) continue;
    for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
      const bool here = unit % layout_.groups[g].block_units == 0;
      if (!here || !(in_tier || seen.b.known_slot(store_.slot_of(static_cast<int>(g)).slot))) continue;
      const std::int64_t end = unit * layout_.unit_tokens;
      if (end < proof_limit) s.proof_end = std::max(s.proof_end, end);
      if (end < question.limit) s.known_end = end;
    }
  }
}

bool HybridCache::foreign_page(const Question& question, int group, DescriptorId id) const {
  const PageId page = store_.page(id, group);
  if (page == no_page || index(page) >= store_.pool(group).count()) return true;  // moved: the pin will tell
  return store_.pool(group)[page].format.load() != question.formats[group];
}

Sighting HybridCache::sight_block(const MatchScratch& scratch, int group, std::int64_t block) const {
  const std::int64_t end = (block + 1) * layout_.groups[group].block_units;
  if (layout_.probe_units != 0 && end % layout_.probe_units == 0 &&
      end / layout_.probe_units <= scratch.read_positions) {
    return scratch.history[static_cast<std::size_t>(end / layout_.probe_units - 1)];
  }
  return end <= scratch.question->keys->end_unit()
             ? store_.table().find(scratch.question->keys->keys()[end - 1])
             : Sighting{};
}

void HybridCache::fill_planes_of(void* context, int group, std::int64_t from, std::int64_t to) {
  auto& scratch = *static_cast<MatchScratch*>(context);
  scratch.cache->fill_planes(scratch, group, from, to);
}

// Blocks that end where a Prefix group records one lie in the history read already: of those a whole word of
// the plane at a time. The others are looked up.
void HybridCache::fill_planes(MatchScratch& scratch, int group, std::int64_t from, std::int64_t to) const {
  GroupView& view = scratch.snapshot.groups[group];
  const std::int64_t block_units = layout_.groups[group].block_units;
  const std::int64_t probe = layout_.probe_units;
  to = std::min(to, view.ours.size());
  if (probe != 0 && block_units % probe == 0 && to * block_units <= scratch.read_positions * probe) {
    const std::int64_t stride = block_units / probe,
                       end = std::min(view.ours.size(), scratch.read_positions / stride);
    for (std::int64_t word = from / 64; word * 64 < to; ++word) fill_word(scratch, group, word, stride, end);
    return;
  }
  while (from < to) {
    if (view.read.get(from)) {
      ++from;
      continue;
    }
    constexpr std::int64_t chunk = 32;
    const std::int64_t n = std::min(chunk, to - from);
    Sighting seen[chunk];
    if (n == 1) {
      seen[0] = sight_block(scratch, group, from);
    } else {
      store_.table().find_batch(scratch.question->keys->keys() + (from + 1) * block_units - 1,
                                static_cast<std::size_t>(block_units), static_cast<std::size_t>(n), seen);
    }
    for (std::int64_t i = 0; i < n; ++i) note_block(scratch, group, from + i, seen[i]);
    from += n;
  }
}

void HybridCache::note_block(MatchScratch& scratch, int group, std::int64_t block,
                             const Sighting& seen) const {
  GroupView& view = scratch.snapshot.groups[group];
  view.read.set(block);
  if (!seen.found() || !seen.b.usable_slot(store_.slot_of(group).slot)) return;
  const bool foreign = view.may_be_foreign && foreign_page(*scratch.question, group, seen.id);
  (foreign ? view.foreign : view.ours).set(block);
}

void HybridCache::fill_word(MatchScratch& scratch, int group, std::int64_t word, std::int64_t stride,
                            std::int64_t end) const {
  GroupView& view = scratch.snapshot.groups[group];
  const std::int64_t first = word * 64, n = std::min<std::int64_t>(64, end - first);
  const std::uint64_t all = ~std::uint64_t{0} >> (64 - n);
  if (view.read.word(word) == all) return;
  if (view.may_be_foreign) {
    for (std::int64_t i = 0; i < n; ++i) {
      note_block(scratch, group, first + i,
                 scratch.history[static_cast<std::size_t>((first + i + 1) * stride - 1)]);
    }
    return;
  }
  const int shift = 3 * store_.slot_of(group).slot;
  const Sighting* seen = &scratch.history[static_cast<std::size_t>((first + 1) * stride - 1)];
  std::uint64_t bits = 0;
  for (std::int64_t i = 0; i < n; ++i)
    bits |= static_cast<std::uint64_t>(seen[i * stride].b.usable_spread() >> shift & 1) << i;
  view.ours.word(word) = bits;
  view.read.word(word) = all;
}

// ---- deciding ----------------------------------------------------------------------------------

Verdict HybridCache::judge(const Question& question, MatchScratch& scratch) const {
  const Snapshot& s = scratch.snapshot;
  if (scratch.tips) {
    if (question.exactly >= 0 &&
        layout_.probe_units == 0) {  // tips behind the limit prove as blocks there do
      Question whole = question;
      whole.limit = question.keys->tokens();
      gather_tips(whole, scratch, 0);
    }
    // Tips below what whole blocks give at least can play no part.
    const std::int64_t least = s.any_misaligned ? 0 : aligned_at_most(s, question.limit - 1);
    gather_tips(question, scratch,
                question.drop_tokens == 0 ? least : aligned_at_most(s, least - question.drop_tokens));
  }
  if (link_.tier != nullptr) gather_tier_tips(question, scratch);
  Verdict verdict;
  verdict.limit_tokens = question.limit;
  verdict.matched_tokens = matched_length(s);
  std::int64_t length = verdict.matched_tokens;
  const auto apply = [&](Finding found) {
    const int check = static_cast<int>(found.why.check);
    if (found.tokens < length) {
      verdict.lost[check] += length - found.tokens;
      verdict.reason[check] = found.why;
    }
    length = found.tokens;
  };
  std::int64_t undropped = 0;
  if (question.exactly >= 0) {
    judge_exactly(question, s, verdict);
    undropped = verdict.usable_tokens;
  } else {
    apply(check_complete(s, length));
    apply(check_abi(s, length));
    apply(check_groups(s, length));
    apply(check_aligned(s, length));
    undropped = length;
    if (question.drop_tokens > 0 && length > 0) {
      const std::int64_t kept = check_aligned(s, usable_at_most(s, length - question.drop_tokens)).tokens;
      const bool alone = verdict.lost[static_cast<int>(Check::Groups)] == 0;
      verdict.lost[static_cast<int>(Check::Groups)] += length - kept;
      if (alone) verdict.reason[static_cast<int>(Check::Groups)] = {Check::Groups, Code::Drop, 0, 0, false};
      length = kept;
    }
    verdict.usable_tokens = length;
  }
  verdict.outcome = verdict.usable_tokens > 0    ? Outcome::Reusable
                    : verdict.matched_tokens > 0 ? Outcome::FalseHit
                                                 : Outcome::Miss;
  verdict.resume_tokens = verdict.usable_tokens;
  if (link_.tier != nullptr) note_restorable(question, scratch, undropped, verdict);
  choose_why(scratch, verdict);
  return verdict;
}

// match_at: every check answers for this one length, and the first that cannot takes all.
void HybridCache::judge_exactly(const Question& question, const Snapshot& s, Verdict& verdict) const {
  const std::int64_t want = question.exactly;
  Finding found;
  found.tokens = want;
  if (want == 0) {
    found.tokens = 0;
  } else if (verdict.matched_tokens < want && layout_.probe_units == 0) {
    found = check_groups(s, want);
  } else if (verdict.matched_tokens < want) {
    found = {0, {Check::Complete, Code::Missing, 0, 0, false}};
    std::int64_t start = never;
    for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
      const std::int64_t end = s.groups[g].known_run * layout_.block_tokens(layout_.groups[g]);
      if (!layout_.groups[g].prefix() || end >= start) continue;
      start = end;
      found.why.group = static_cast<int>(g);
      found.why.block = s.groups[g].known_run;
      found.why.code = Code::None;
    }
  } else {
    for (const auto check : {check_complete, check_abi, check_groups, check_aligned}) {
      found = check(s, want);
      if (found.tokens != want) break;
    }
  }
  if (found.tokens == want) {
    verdict.usable_tokens = want;
    verdict.matched_tokens = std::max(verdict.matched_tokens, want);
    return;
  }
  verdict.lost[static_cast<int>(found.why.check)] = verdict.matched_tokens;
  verdict.reason[static_cast<int>(found.why.check)] = found.why;
}

}  // namespace hkv
