// SPDX-License-Identifier: Apache-2.0
// The lengths that a restore would make usable, and what each of them takes.
#include "cache/restore_options.h"

#include <algorithm>

#include "cache/cache.h"
#include "reuse/planes.h"

namespace hkv {
namespace {

// Counts pages of history that are not here, block by block, as the lengths that are asked about grow.
class MissingHistory {
 public:
  explicit MissingHistory(const Layout& layout) : layout_(layout), next_(layout.groups.size()) {}

  template <class IsMissing>
  void count(std::int64_t tokens, IsMissing&& is_missing, std::vector<std::int64_t>& pages) {
    for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
      const Group& group = layout_.groups[g];
      if (!group.prefix()) continue;
      const std::int64_t end = tokens / layout_.block_tokens(group);
      for (std::int64_t& block = next_[g].block; block < end; ++block)
        next_[g].missing += is_missing(static_cast<int>(g), block) ? 1 : 0;
      pages[g] = next_[g].missing;
    }
  }

 private:
  struct Next {
    std::int64_t block = 0, missing = 0;
  };
  const Layout& layout_;
  std::vector<Next> next_;
};

// Pages that a resume exactly at the length needs and that are not here: in the boundary record, or to be computed again.
// Of a tip those are its partial pages too, history's with them. `is_missing` goes by keys of exactly that length.
template <class IsMissing>
void count_states(const Layout& layout, std::uint8_t left_out, IsMissing&& is_missing,
                  RestoreOption& option) {
  for (int g = 0; g < static_cast<int>(layout.groups.size()); ++g) {
    const Group& group = layout.groups[static_cast<std::size_t>(g)];
    const std::int64_t block_tokens = layout.block_tokens(group);
    if (group.prefix()) {
      const bool partial = option.tokens % block_tokens != 0;
      option.pages[static_cast<std::size_t>(g)] +=
          partial && is_missing(g, option.tokens / block_tokens) ? 1 : 0;
      continue;
    }
    const BlockSpan need = needed_blocks(group.coverage, block_tokens, option.tokens);
    std::int64_t missing = 0;
    for (std::int64_t block = need.from; block < need.to; ++block) missing += is_missing(g, block) ? 1 : 0;
    if (missing == 0) continue;
    if (group.rebuildable && (left_out & left_out_flag(layout, g)) != 0) {
      option.resume_tokens =
          std::min(option.resume_tokens, replay_from(group, layout.step_tokens(), option.tokens));
    } else {
      option.pages[static_cast<std::size_t>(g)] = missing;
    }
  }
}

}  // namespace

std::vector<RestoreOption> HybridCache::restore_options(const KeyChain& keys, std::int64_t limit) {
  std::vector<RestoreOption> options;
  judge_restorable(keys, limit, [&](const Question& question, MatchScratch& scratch, const Verdict& verdict) {
    const auto add = [&](std::int64_t t) {
      if (t > verdict.usable_tokens && restorable_at(question, scratch, t)) options.push_back({t, {}, t});
    };
    for (const Tip& tip : scratch.snapshot.tips) {
      if (tip.tokens <= verdict.restore_tokens) add(tip.tokens);
    }
    const std::int64_t step = layout_.step_tokens();
    for (std::int64_t t = verdict.restore_tokens / step * step; t > verdict.usable_tokens; t -= step) add(t);
  });
  const auto by_tokens = [](const RestoreOption& a, const RestoreOption& b) { return a.tokens < b.tokens; };
  std::sort(options.begin(), options.end(), by_tokens);
  const auto same = [](const RestoreOption& a, const RestoreOption& b) { return a.tokens == b.tokens; };
  options.erase(std::unique(options.begin(), options.end(), same), options.end());
  const auto is_missing = [&](const KeyChain& prefix, int g, std::int64_t block) {
    std::int64_t tip_unit = -1;
    const Sighting seen = store_.table().find(key_of_block(prefix, g, block, tip_unit));
    const GroupSlot& at = store_.slot_of(g);
    return !seen.found() || !seen.word(at.which).usable_slot(at.slot);
  };
  MissingHistory history(layout_);
  for (RestoreOption& option : options) {
    option.pages.assign(layout_.groups.size(), 0);
    const auto whole_missing = [&](int g, std::int64_t block) { return is_missing(keys, g, block); };
    history.count(option.tokens, whole_missing, option.pages);
    // The partial pages of a tip go by the key of exactly that length.
    const std::shared_ptr<const KeyChain> tip =
        is_tip(layout_, option.tokens) ? keys.head(option.tokens) : nullptr;
    const KeyChain& prefix = tip == nullptr ? keys : *tip;
    const auto state_missing = [&](int g, std::int64_t block) { return is_missing(prefix, g, block); };
    const RecordKey boundary = link_.record(RecordKind::Boundary, key_at(layout_, keys, option.tokens));
    const Presence stored = link_.tier->look(boundary);
    count_states(layout_, stored.answer == Presence::Answer::Here ? stored.flags : 0xFF, state_missing,
                 option);
  }
  return options;
}

}  // namespace hkv
