// SPDX-License-Identifier: Apache-2.0
// The four checks, in order: complete, ABI, groups, aligned. Each takes a snapshot and the length that the
// earlier ones left, and returns the largest length it can stand for and why not more.
//
// Thread safety: pure functions of a snapshot.
#pragma once
#include <cstdint>

#include "reuse/snapshot.h"
#include "reuse/verdict.h"

namespace hkv {

// What a homogeneous manager would call the hit: the end of the longest run of known blocks of one Prefix
// group (without one: of the last known block), or a tip whose history is known. Below the limit.
std::int64_t matched_length(const Snapshot& s);

// Every page of every Prefix group in [0, length) is there and whole.
Finding check_complete(const Snapshot& s, std::int64_t length);
// No page that a resume at the length needs was written in another format than the reader's.
Finding check_abi(const Snapshot& s, std::int64_t length);
// Every group can resume at the length. Returns the largest member of the set at or below it.
Finding check_groups(const Snapshot& s, std::int64_t length);
// No page that a resume at the length needs lies in a pool whose layout the kernel cannot take.
Finding check_aligned(const Snapshot& s, std::int64_t length);

// The tip at exactly this length whose pages fit best, or nullptr.
const Tip* usable_tip_at(const Snapshot& s, std::int64_t tokens);
// Whether a resume at the length needs no page of a misaligned pool.
bool aligned_at(const Snapshot& s, std::int64_t tokens);
// Whether what a (rebuildable) group needs at the length is stored, so that no replay is due.
bool stored_at_length(const Snapshot& s, int g, std::int64_t tokens, const Tip* tip);
// Whether every group can resume at the length exactly: a step or a tip.
bool usable_at(const Snapshot& s, std::int64_t tokens);
// The largest usable length at or below `bound`; 0 if none.
std::int64_t usable_at_most(const Snapshot& s, std::int64_t bound);
// The same of multiples of the step alone.
std::int64_t aligned_at_most(const Snapshot& s, std::int64_t bound);

}  // namespace hkv
