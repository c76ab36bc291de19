// SPDX-License-Identifier: Apache-2.0
// What is counted. `lookups = misses + false hits + effective hits + pending + withdrawn`, always, by requests;
// by tokens as well, where a look-up's tokens split into those not matched (misses), those matched but not
// usable (false hits) and those usable (effective, pending or withdrawn).
#pragma once
#include "base/counter.h"
#include "reuse/verdict.h"

namespace hkv {

inline constexpr int kind_count = 5;
inline constexpr int refusal_count = 7;

// Why a request runs without a captured graph.
enum class EagerReason : int { Width };
inline constexpr int eager_count = 1;

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
  kLeaks,
  kQuarantined,
  kPublished,
  kRetired,
  kNotAdmitted,                                         // [Refusal]
  kEager = kNotAdmitted + refusal_count,                // [EagerReason]
  kFalseHits = kEager + eager_count,                    // [check][kind]
  kLostTokens = kFalseHits + check_count * kind_count,  // [check][kind]
  kCountEnd = kLostTokens + check_count * kind_count,
};

constexpr int by_check_and_kind(Count base, Check check, int kind) {
  return base + static_cast<int>(check) * kind_count + kind;
}

using CacheCounters = Counters<kCountEnd>;

}  // namespace hkv
