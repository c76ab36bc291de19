// SPDX-License-Identifier: Apache-2.0
// Admission: who gets the right to memory, so that whoever has it can
// always finish.
//
// A request is admitted with a *share*: for each group the most pages it can ever hold at a time, its cap
// (layout/residency.h). What tickets may still take is *promised*; nobody without a share takes it.
//
// Thread safety: admit, admit_fill, judge, end under one mutex (may lock); took, gave and reads on any
// thread, lock-free. A share has one owner at a time, but took and gave may come from whoever applies an
// effect.
//
// Words: F, pages free or cached without a pin; P, promised: the sum of (cap - taken) over shares, where
// taken are the pages that a share took from the pool and did not let go, those of its fills included; C, the
// sum of caps; U, unowned:
// pages held by fills and leases that have no share, as often as they hold them; a lease counts every group
// that records a block at a unit it pins, since a page filed there later is held too.
// Invariants, while shares live; "since" excepts leases and fills without a share that began after the
// admission:
//  1. taken <= cap in every group. Why: `room` is what a grow may take, and took() checks it. A request that
//     keeps to its own step and max never meets it, since worst_pages is the most over all it can hold.
//  2. Prefix groups: P <= F, since. Why: true at each admission, under the mutex. A take moves both down; a
//     page given back moves both up; publishing moves neither; the end of a share lowers P and can only raise
//     F. What was published stays out of F while anyone pins it, and no promise counts on it.
//  3. Other groups: C + U <= capacity or P <= F, since; either is enough. Why true: as in 2; C only goes
//     down, but for widen, which leaves P <= F. Why enough, C: a page that several hold (a leased window) is
//     in the cap of each, so C counts it more than once and never less; what all hold is at most C - 1 + U
//     where a share holds less than its cap, and the rest is free or can be evicted. P: what a share pins
//     without having taken it (leased, a neighbour's) is in its cap and not in taken, so P is never less than
//     what all may still take; a page that slides out of its taker and stays pinned by another moves P up and
//     F not, within what P had too much for that other.
//  4. A share takes nothing out of F but what it takes from the pool and what its cap has for neighbours
//     (layout/residency.h, 4). That needs a rule of the ticket, since a pin is on a word and so on every page
//     of it: where another's page of a block is there, or may yet be filed, and the request has its own, it
//     pins the word for other groups only if the ledger lets it hold that page too (widen); else all its pages
//     of that word stay private. Of Prefix groups the page is among those taken then, and one filed later is
//     held by its own owner to the end, or was nobody's promise. Of others it is not, so that P keeps what 3
//     asks for when its taker slides on.
//  5. Every admitted request can finish, in any order. Why: by 2 and 3 a take within the cap succeeds, once
//     the leases and fills made since have ended; they wait for nothing (match takes no page, a fill has its
//     pages at once and never those promised, a lease that asks for admission is cancelled where refused), so
//     they do end. Where the cache has no policy of eviction a page that is cached counts in F only once it is:
//     at an admission F is what is free. A take within the cap may find no free page then; a page of the group
//     is cached and under no pin, and the take succeeds when the cache's user has evicted one.
//  6. A holder never waits behind a non-holder. Why: took and gave take no lock and ask no rule; who is
//     refused holds nothing, keeps no place and closes no door but the watermark's, which holders do not
//     pass. A request waits for its own fills alone: they take from what it may take itself.
//  7. Nothing is refused for ever where nothing runs. Why: where no share, lease or fill lives, F = capacity,
//     P = C = U = 0 and neither counts nor watermark apply, so that every request with caps <= capacity is
//     admitted. Where only its own lease stands in the way (the copy of a partial page, the state that it
//     pins), the refusal says so, Lease, and the same request without it is admitted.
//  8. A fill under a share (a ticket's) keeps 1 to 7. It takes within `room`, hence 1, less what the cap has
//     for pages that are pinned and not taken, which 3 counts on; so does the request while its fills hold
//     any. What it holds is in `taken` and not in U, or C + U would count it twice. Publishing lets a page go
//     from the share: P rises, and F with it where nobody pins the word; P first, so that no reader finds the
//     page unpromised. Where somebody does F stays: pass_on lets P rise only within F, else the page stays
//     private, hence 2 and 3. Where the share ends first, U rises by what the fill holds before C falls by the
//     cap: such a page is in one count or the other. A page that a lost fill keeps out of the pool never comes
//     back to F: P stays, C falls with the capacity (lost), and the request that lost it may be short of it;
//     no other is.
#pragma once
#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/atomic.h"
#include "layout/group.h"
#include "layout/residency.h"

namespace hkv {

struct AdmissionLimits {
  std::int64_t max_requests = 0;        // live at a time; 0: any number
  std::int64_t max_combinations = 0;    // sets of groups in which live requests may hold pages; 0: any number
  std::int64_t watermark_low_ppm = 0;   // of every pool: what an admission must leave; 0: no watermark
  std::int64_t watermark_high_ppm = 0;  // once refused for it: what must be there again; at least low
  std::int64_t step_tokens = 0;         // most tokens a request has in flight; 0: its max_tokens
};

enum class Refusal : std::uint8_t { None, Requests, Combinations, Watermark, Pages, Never, Lease };

enum class Preempt : std::uint8_t { Youngest, Largest };

class AdmissionLedger {
 public:
  static constexpr int most_groups = 16;  // two words of 8

  // A group as the cache sees it now.
  struct Room {
    std::int64_t capacity = 0;            // pages of its pool, but for those out of use until a reset
    std::int64_t free_and_evictable = 0;  // F; read after `takes` was
    std::int64_t unowned = 0;             // U; of Prefix groups it is not read
    std::int64_t takes = -1;  // takes(group) before the rest was read; -1: nothing moved meanwhile
  };
  // The right of one request. Lies still while it lives: not copied.
  struct Share {
    std::array<std::int64_t, most_groups> cap{};
    std::array<Atom<std::int64_t>, most_groups> taken;  // pages it took and did not yet let go
    std::uint32_t combination = 0;                      // bit a group that the request uses
    bool live = false;
    bool counted = false;      // a request; a fill is not
    std::uint64_t number = 0;  // of its admission, ascending
  };
  // What a request asks for.
  struct Demand {
    std::int64_t max_tokens = 1;
    std::int64_t start_tokens = 0;          // of the lease that it holds already; 0: none
    std::int64_t states = 0;                // checkpoint pages asked for at a time, beyond the spare
    std::span<const std::int64_t> extra{};  // a group, or empty: more pages because of its lease or of groups
    std::uint32_t groups = ~0u;             // bit a group that it uses; of another it takes no page
  };

  // Requires: at most 16 groups; low <= high.
  AdmissionLedger(const Layout& layout, AdmissionLimits limits);

  // Grants the share, or says why not and in which group (-1: no one group's fault). A refusal changes
  // nothing but the watermark. Requires: demand as residency.h has it; one room a group, without the pins of
  // the request's own lease in `unowned`; the share does not live. Progress: may lock.
  // A refusal for Pages where there is a lease: cancel it and ask `judge` without it; None then means Lease.
  Refusal admit(Share& share, const Demand& demand, std::span<const Room> rooms, int& group);
  Refusal admit(Share& share, std::int64_t max_tokens, std::int64_t start_tokens, std::int64_t states,
                std::span<const std::int64_t> extra, std::span<const Room> rooms, int& group) {
    return admit(share, Demand{max_tokens, start_tokens, states, extra}, rooms, group);
  }
  // The answer that admit would give, granting nothing and leaving the watermark. Progress: may lock.
  Refusal judge(const Demand& demand, std::span<const Room> rooms, int& group) const;
  // A share of exactly these pages for a fill without ticket, which takes no page that is promised. Counts
  // neither as a request nor for the watermark. end() it once the pages are taken: what it holds is `unowned`
  // then. Returns: false, and which group is short. Progress: may lock.
  bool admit_fill(Share& share, std::span<const std::int64_t> pages, std::span<const Room> rooms, int& group);
  // The share ends; it must have let go of its pages, or let them go in the same step. Progress: may lock.
  void end(Share& share);

  // Pages that the share may take now. Progress: wait-free.
  static std::int64_t room(const Share& share, int group) {
    return share.cap[group] - share.taken[group].load();
  }
  // The share took pages of the group's pool: called after they were taken. Requires: pages <= room.
  // Progress: wait-free.
  void took(Share& share, int group, std::int64_t pages);
  // It let go of pages: called before they go back. Requires: pages <= taken. Progress: wait-free.
  void gave(Share& share, int group, std::int64_t pages);
  // It would let go of a page that others hold from then on: it does not come into F, so that the share gets the
  // right to another only if that takes nothing that is promised. Returns: whether it did. Requires: taken >= 1.
  // Progress: may lock.
  bool pass_on(Share& share, int group, const Room& room);
  // A page that it took never comes back, and is out of the capacity by now: the right to it is gone as well.
  // Requires: taken >= 1. Progress: may lock.
  void lost(Share& share, int group);

  // Room in the share for a page of another owner that a pin will hold beside its own: the cap grows by one,
  // if that takes nothing that is promised. Then pin, and of a Prefix group took(); or narrow() where nothing
  // came of it. It stays till the end. pinned: of a Prefix group, and somebody holds the page already, so that
  // it is not in F (a lease that ends, perhaps, hence the question). Returns: whether it may. Progress: may lock.
  bool widen(Share& share, int group, const Room& room, bool pinned);
  void narrow(Share& share, int group);
  // F - P: pages that nobody holds and no share was promised; below 0 while leases and fills made since hold
  // what was. What shares took since F was read counts as taken. Progress: wait-free.
  std::int64_t spare(int group, const Room& room) const;

  // P: what a fill without ticket may not take. Progress: wait-free.
  std::int64_t promised(int group) const { return promised_[group].load(); }
  // C. Progress: wait-free.
  std::int64_t caps(int group) const { return caps_[group].load(); }
  // Pages ever taken by shares. What moved while F was read is not in P and F alike: Room::takes bounds it.
  std::int64_t takes(int group) const { return takes_[group].load(); }
  std::int64_t live_requests() const { return live_requests_.load(); }
  std::int64_t live_combinations() const { return live_combinations_.load(); }
  const AdmissionLimits& limits() const { return limits_; }
  // Cap of a group for a demand, extra pages included. Pure.
  std::int64_t cap_of(int group, const Demand& demand) const;

 private:
  std::int64_t left(int group, const Room& room) const;
  Refusal never(const Demand& demand, std::span<const Room> rooms, int& group) const;
  Refusal short_of(const Demand& demand, std::span<const Room> rooms, int& group) const;
  Refusal counts(std::uint32_t combination) const;
  std::uint32_t under(const Demand& demand, std::span<const Room> rooms) const;
  void grant(Share& share, std::span<const std::int64_t> caps, std::uint32_t combination);
  std::uint32_t used(const Demand& demand) const { return demand.groups & ((1u << group_count_) - 1); }

  const Layout& layout_;
  AdmissionLimits limits_;
  int group_count_;
  mutable std::mutex mutex_;
  std::array<Atom<std::int64_t>, most_groups> promised_, caps_, takes_;
  Atom<std::int64_t> live_requests_, live_combinations_;
  std::unordered_map<std::uint32_t, std::int64_t> combinations_;  // requests of each
  std::uint32_t below_ = 0;  // bit a group: was refused for the watermark, and not yet back at high
  std::uint64_t numbers_ = 0;
};

// Whether `a` is preempted before `b`. Youngest: the later admission, so that who has waited longest finishes
// first. Largest: who holds more bytes now, and of equals the younger.
bool preempted_before(Preempt how, const Layout& layout, const AdmissionLedger::Share& a,
                      const AdmissionLedger::Share& b);

}  // namespace hkv
