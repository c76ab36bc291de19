// SPDX-License-Identifier: Apache-2.0
// What became of a lease: effective, failed or withdrawn; and making one longer.
#include "cache/cache.h"
#include "reuse/checks.h"

namespace hkv {
namespace {

constexpr int extend_attempts = 8;

}  // namespace

bool continues(const Lease& lease, const KeyChain& keys) {
  const std::int64_t unit_tokens = keys.unit_tokens(), units = lease.tokens / unit_tokens;
  const std::int64_t rest = lease.tokens % unit_tokens;
  if (lease.keys->unit_tokens() != unit_tokens || keys.end_unit() < units || keys.tokens() < lease.tokens)
    return false;
  if (units > 0 && keys.keys()[units - 1] != lease.keys->keys()[units - 1]) return false;
  if (rest == 0) return true;
  return keys.has_tokens() && keys.tip_key(units, rest) == lease.keys->tip_key(units, rest);
}

void HybridCache::settle(Lease& lease, Settlement how, int failed_kind) {
  HKV_CHECK(lease.settlement == Settlement::Open);
  lease.settlement = how;
  const std::int64_t tokens = lease.verdict.usable_tokens;
  auto counters = counters_.mine();
  counters.add(kPending, -1);
  counters.add(kPendingTokens, -tokens);
  if (how == Settlement::Released) {
    counters.add(kEffective, 1);
    counters.add(kEffectiveTokens, tokens);
    note_hit(lease);
  } else if (how == Settlement::Withdrawn) {
    counters.add(kWithdrawn, 1);
    counters.add(kWithdrawnTokens, tokens);
  } else {
    counters.add(by_check_and_kind(kFalseHits, Check::Integrity, failed_kind), 1);
    counters.add(by_check_and_kind(kLostTokens, Check::Integrity, failed_kind), tokens);
    counters.add(by_code(Code::Content), tokens);
    counters.add(kFalseHitsTokens, tokens);
  }
}

// Somebody resumed at the boundary, or the tip, where the lease ends.
void HybridCache::note_hit(const Lease& lease) {
  const std::int64_t units = lease.tokens / layout_.unit_tokens;
  if (lease.tokens % layout_.unit_tokens == 0 && layout_.probe_units != 0 &&
      units % layout_.probe_units == 0) {
    const DescriptorId last = lease.history.empty() ? no_descriptor : lease.history.back();
    if (last != no_descriptor) store_.recency().note_hit(last);
    return;
  }
  for (const Lease::Held& held : lease.held) {
    if (store_.recency().end(held.id) != lease.tokens) continue;
    store_.recency().note_hit(held.id);
    return;
  }
}

void HybridCache::drop(std::unique_ptr<Lease> lease) {
  HKV_CHECK(lease->settlement != Settlement::Open);
  disown(*lease);
  lease->drop(store_);
  lease->keys.reset();
  live_leases_.fetch_sub(1);
  spare_leases_.put(std::move(lease));
}

std::int64_t HybridCache::extend(Lease& lease, const Question& question,
                                 const std::shared_ptr<const KeyChain>& keys) {
  std::unique_ptr<MatchScratch> scratch = spare_scratch_.take();
  std::unique_ptr<Lease> longer = spare_leases_.take();
  for (int attempt = 0; attempt < extend_attempts; ++attempt) {
    search(question, *scratch);
    const Verdict verdict = judge(question, *scratch);
    if (verdict.usable_tokens <= lease.tokens) break;
    longer->clear();
    // What both hold is pinned twice for a moment, so that nothing is ever held by neither.
    Why wrong;
    // A replay needs a plan, which only a verdict carries: such lengths are for match to find.
    const PinResult pinned = pin(question, *scratch, verdict.usable_tokens, *longer);
    if (pinned == PinResult::Pinned && longer->replayed != 0) {
      longer->drop(store_);
      break;
    }
    if (pinned == PinResult::Pinned && verify(question, *longer, wrong)) {
      disown(lease);
      lease.drop(store_);
      lease.history.swap(longer->history);
      lease.held.swap(longer->held);
      lease.pins.swap(longer->pins);
      lease.tokens = lease.resume_tokens = longer->tokens;
      lease.replayed = longer->replayed;
      lease.keys = keys;
      own(lease);
      break;
    }
    longer->drop(store_);
  }
  spare_leases_.put(std::move(longer));
  spare_scratch_.put(std::move(scratch));
  return lease.tokens;
}

}  // namespace hkv
