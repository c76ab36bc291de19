// SPDX-License-Identifier: Apache-2.0
// The tier stack: tiers over one another, the fastest first, seen as one; as a rule host memory over a disk.
//
// A put goes to all of them, so that the slowest has everything and those above hold copies. A get is asked of the first
// that has the record, and of the next one where that fails; what was found below is copied up.
//
// Thread safety: as Tier. Operations are moved on by one thread of the stack's own, which alone asks and polls the tiers
// and owns all else; `begin` and `cancel_begun` leave word for it under a mutex that guards nothing but that. `look` and
// `touch` ask the tiers on the caller's thread, without a lock where the tiers take none.
//
// Invariants, and why each holds:
//  1. While a tier may still write or read an item's memory, nobody else is given it. A get is with one tier at a time, and
//     goes on to the next one only after a report that releases it: a Timeout that does not is waited out, until the late
//     report. An operation is finished only when none of its asks is out.
//  2. A deadline is everybody's: it goes to the tiers as it is, and once it passed no further tier is asked. So what a
//     frozen tier costs is the deadline, as often as that tier's own breaker needs to open; from then on it answers
//     Unavailable at once and the next one is asked. The stack has no breaker unless limits say so: it would shut a
//     sound tier for a frozen one's sake.
//  3. What fails above hides nothing below: every status but Ok and Cancelled is asked of the next tier that may have the
//     record. The answer is that of the last one asked, but a Miss does not cover Corrupt, Mismatch or IoError.
//  4. Prefix order: a tier is asked in the order in which operations began, one priority at a time. What a full queue
//     refuses stays first and is sent before anything else. So a tier is not given a block before its parent, and a
//     flush follows what it is for.
//  5. What was removed does not come back: a record is copied up only where no remove was under way, from the time the
//     get began until its copy was in line for the faster tier, before every later remove.
//  6. What is copied up is a whole record, the one that was proved: the get asked for every part, and the copy has the
//     parts that the envelope attests. It is a copy of the bytes, so that the get waits for no faster tier.
//
// A tier that is given to a stack is used through it alone: somebody else who polled it would take the stack's reports.
// Each tier is prefix-closed by itself, hence the stack is.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "tier/tier.h"

namespace hkv {

struct StackOptions {
  std::size_t depth = 0;  // operations under way at a time; 0: as many as the tiers take together
  std::uint64_t promotion_bytes = 64u << 20;  // of copies on their way up at a time; 0: nothing is copied up
  TierLimits limits = {.breaker_after = 0};   // (2)
};

// What the stack made of one of its tiers.
struct StackCounts {
  std::uint64_t hits = 0;    // gets that it answered
  std::uint64_t failed = 0;  // gets and probes that it was asked, and that the next one was asked then
  std::uint64_t copies_refused = 0;  // puts that it did not take, of a tier that is not the slowest
  std::uint64_t promoted = 0, not_promoted = 0;  // records copied up into it, and those that it did not take
};

// put: into all, parent, flags and pins as given, durable where the tier is. Its status is that of the slowest tier; what a
// faster one says of its copy is counted (a full one, one that has evicted the parent). A put that failed may be found
// all the same, as a copy, until a faster tier evicts it.
// remove: of all. The last failure, else Ok where any had the record, else Miss. flush: of all durable tiers, of the slowest
// where none is. probe: as get. close: closes the tiers, the fastest first.
// look: Here before OtherFormat before Unknown before Absent. look_lasting: the slowest tier's; what the others hold is copies.
// arenas: registered with every tier, but one that has an arena of its own there keeps that.
// usage: records, bytes, capacity, fixed arenas and what is known of puts are the slowest tier's, of which the others
// hold copies;
// bytes read and written and reclaimed records are sums; what was asked and answered is the stack's own.
//
// A tier that works within the ask (a MemoryTier without its thread) works on the stack's thread, and others wait for that.
class TierStack final : public Tier {
 public:
  // Throws Error(ArgumentError): fewer than two tiers, none, or one twice.
  explicit TierStack(std::vector<std::shared_ptr<Tier>> tiers, const StackOptions& options = {});
  ~TierStack() override;

  TierCaps caps() const override;
  Presence look(const RecordKey& key) const override;
  Presence look_lasting(const RecordKey& key) const override;
  std::uint64_t losses() const override;
  void touch(const RecordKey& key) override;

  std::size_t tiers() const;
  // Of one tier, 0 the fastest. Requires: tier < tiers().
  TierUsage usage_of(std::size_t tier) const;
  StackCounts counts_of(std::size_t tier) const;

 protected:
  void begin(Operation* operation) override;
  void end() override;
  TierUsage engine_usage() const override;
  void cancel_begun(BatchId batch) override;
  void begin_arena(void* data, std::size_t bytes) override;
  bool end_arena(void* data) override;

 private:
  struct Ask;
  struct Job;
  struct Lane;
  struct Engine;

  std::unique_ptr<Engine> engine_;
};

}  // namespace hkv
