// SPDX-License-Identifier: Apache-2.0
// What is counted. `lookups = misses + false hits + effective hits + pending + withdrawn`, always, by requests;
// by tokens as well, where a look-up's tokens split into those not matched (misses), those matched but not
// usable (false hits) and those usable (effective, pending or withdrawn). The lost ones are told by check and kind of
// state, and, over again, by the code that says what was wrong.
#pragma once
#include "base/counter.h"
#include "reuse/verdict.h"
#include "tier/tier.h"

namespace hkv {

inline constexpr int kind_count = 5;
inline constexpr int refusal_count = 7;

// Why a request runs without a captured graph.
enum class EagerReason : int { Width };
inline constexpr int eager_count = 1;

// What is counted of pages on their way to or from a tier.
enum class Moved : int { Attempts, Successes, Bytes };
inline constexpr int moved_count = 3;

enum Count : int {
  kLookups,
  kLookupsTokens,
  kMisses,
  kMissesTokens,
  kFalseHitsTokens,
  kEffective,
  kEffectiveTokens,
  kPending,
  kPendingTokens,
  kWithdrawn,
  kWithdrawnTokens,
  kRaced,
  kDuplicates,
  kUnplaced,
  kTipsDisplaced,
  kLeaks,
  kQuarantined,
  kPublished,
  kRetired,
  kStagedToHost,                                         // bytes
  kStagedToDevice,                                       // bytes
  kCopyFailures,                                         // records
  kNotAdmitted,                                          // [Refusal]
  kEager = kNotAdmitted + refusal_count,                 // [EagerReason]
  kRestores = kEager + eager_count,                      // [Moved][kind], pages
  kOffloads = kRestores + moved_count * kind_count,      // [Moved][kind], pages
  kLoadFailures = kOffloads + moved_count * kind_count,  // [TierStatus], records
  kStoreFailures = kLoadFailures + tier_status_count,    // [TierStatus], records
  kFalseHits = kStoreFailures + tier_status_count,       // [check][kind]
  kLostTokens = kFalseHits + check_count * kind_count,   // [check][kind]
  kLostByCode = kLostTokens + check_count * kind_count,  // [Code]
  kCountEnd = kLostByCode + code_count,
};

constexpr int by_check_and_kind(Count base, Check check, int kind) {
  return base + static_cast<int>(check) * kind_count + kind;
}

constexpr int by_code(Code code) { return kLostByCode + static_cast<int>(code); }

constexpr int by_moved_and_kind(Count base, Moved what, int kind) {
  return base + static_cast<int>(what) * kind_count + kind;
}

using CacheCounters = Counters<kCountEnd>;

}  // namespace hkv
