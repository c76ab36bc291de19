// SPDX-License-Identifier: Apache-2.0
// Tips that only a tier knows: found by the listings beside their records (tier_link.h), without any I/O.
//
// What it costs: a hash and a look-up for each unit above what is usable, most_listings at most; where a listing says so,
// a hash and a look-up for each length that the prompt's own tokens reach, most_lengths at most in one match. The first
// tip that could come back ends the search, and the longest is asked for first: so a conversation that goes on where it
// was left pays for one unit. Beyond the bounds a shorter boundary is found, or none: never a wrong one.
#include <algorithm>

#include "cache/cache.h"
#include "reuse/checks.h"

namespace hkv {
namespace {

constexpr std::int64_t most_listings = 4096, most_lengths = 1024;

}  // namespace

struct HybridCache::TipBudget {
  std::int64_t listings = most_listings, lengths = most_lengths;
};

// Adds what the tier has between what is usable and the limit. Records are in the spec's formats: who reads others has
// nothing from them.
void HybridCache::gather_tier_tips(const Question& question, MatchScratch& scratch) const {
  Snapshot& s = scratch.snapshot;
  const KeyChain& keys = *question.keys;
  if (!keys.has_tokens() || question.limit <= 0) return;
  if (!std::equal(question.formats.begin(), question.formats.end(), spec_formats_.begin())) return;
  if (question.exactly >= 0) {
    if (is_tip(layout_, question.exactly) && question.exactly <= keys.tokens())
      add_tier_tip(question, scratch, question.exactly);
    return;
  }
  const std::int64_t above = s.any_misaligned ? 0 : usable_at_most(s, question.limit - 1);
  std::int64_t unit = std::min(keys.end_unit(), (question.limit - 1) / layout_.unit_tokens);
  if (layout_.probe_units != 0) unit = std::min(unit, (scratch.obtainable + 1) * layout_.probe_units - 1);
  TipBudget left;
  for (; unit >= keys.first_tip_unit() && (unit + 1) * layout_.unit_tokens > above && left.listings > 0;
       --unit) {
    if (find_tier_tips(question, scratch, unit, above, left)) break;
  }
}

// Adds the tips behind one whole unit, longest first. Returns: whether the last of them could come back, so that no
// shorter one matters.
bool HybridCache::find_tier_tips(const Question& question, MatchScratch& scratch, std::int64_t unit,
                                 std::int64_t above, TipBudget& left) const {
  const KeyChain& keys = *question.keys;
  const std::int64_t start = unit * layout_.unit_tokens, least = std::max(above - start + 1, std::int64_t{1});
  std::int64_t length =
      std::min({layout_.unit_tokens - 1, question.limit - 1 - start, keys.tokens() - start});
  while (length >= least && left.listings-- > 0) {
    const std::int64_t listed_from = length / lengths_per_listing * lengths_per_listing;
    if (ask_tier(listing_key(keys, unit, length), RecordKind::Boundary) != TierAnswer::Absent) {
      for (; length >= std::max(listed_from, least) && left.lengths-- > 0; --length) {
        if (add_tier_tip(question, scratch, start + length) == TierAnswer::Here &&
            restorable_at(question, scratch, start + length))
          return true;
      }
    }
    length = listed_from - 1;
  }
  return false;
}

// Adds a tip if the tier knows it. Returns: what the tier says.
TierAnswer HybridCache::add_tier_tip(const Question& question, MatchScratch& scratch,
                                     std::int64_t tokens) const {
  Snapshot& s = scratch.snapshot;
  const TierAnswer answer = ask_tier(key_at(layout_, *question.keys, tokens), RecordKind::Boundary);
  if (answer == TierAnswer::Absent) return answer;
  Tip tip;
  tip.tokens = tokens;
  tip.unit = tokens / layout_.unit_tokens;
  tip.known = ~std::uint32_t{0};
  tip.in_tier = true;
  s.tips.insert(std::upper_bound(s.tips.begin(), s.tips.end(), tip,
                                 [](const Tip& a, const Tip& b) { return a.tokens > b.tokens; }),
                tip);
  s.proof_end = std::max(s.proof_end, tokens);  // a known tip proves that its history was here (snapshot.h)
  s.asked = -1;
  // A prompt that nothing else is known of has no planes yet.
  scratch.tips = true;
  for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
    const Group& group = layout_.groups[g];
    if (group.prefix() || s.groups[g].ours.size() >= tip.unit / group.block_units) continue;
    make_planes(scratch, std::min(question.keys->end_unit(), (question.limit - 1) / layout_.unit_tokens));
    break;
  }
  return answer;
}

}  // namespace hkv
