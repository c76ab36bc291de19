// SPDX-License-Identifier: Apache-2.0
#include "alloc/admission.h"

#include <algorithm>

#include "base/check.h"

namespace hkv {
namespace {

constexpr std::int64_t million = 1'000'000;

// Pages that a fraction of a pool means, rounded up: a watermark is never less than was asked for.
std::int64_t pages_of(std::int64_t ppm, std::int64_t capacity) {
  return capacity / million * ppm + (capacity % million * ppm + million - 1) / million;
}

}  // namespace

AdmissionLedger::AdmissionLedger(const Layout& layout, AdmissionLimits limits)
    : layout_(layout), limits_(limits), group_count_(static_cast<int>(layout.groups.size())) {
  HKV_CHECK(group_count_ <= most_groups);
  HKV_CHECK(limits.watermark_low_ppm <= limits.watermark_high_ppm);
}

std::int64_t AdmissionLedger::cap_of(int group, const Demand& demand) const {
  const std::int64_t extra = demand.extra.empty() ? 0 : demand.extra[static_cast<std::size_t>(group)];
  if ((demand.groups >> group & 1) == 0) return extra;
  return extra + worst_pages(layout_, group,
                             {demand.max_tokens, demand.start_tokens, limits_.step_tokens, demand.states});
}

// A page taken after F was read is in F still, and in P no more where P is read later still: hence P before the takes.
std::int64_t AdmissionLedger::spare(int group, const Room& room) const {
  const std::int64_t promised = promised_[group].load();
  const std::int64_t moved = room.takes < 0 ? 0 : takes_[group].load() - room.takes;
  return room.free_and_evictable - promised - moved;
}

// Pages that are neither held by anybody nor promised. A shared window page is in the cap of each of its
// holders and in U as often as it is leased, so that for groups without Prefix coverage either count may see
// more room; each is enough by itself (invariant 3).
std::int64_t AdmissionLedger::left(int group, const Room& room) const {
  const std::int64_t by_pages = spare(group, room);
  if (layout_.groups[group].prefix()) return by_pages;
  return std::max(by_pages, room.capacity - caps_[group].load() - room.unowned);
}

Refusal AdmissionLedger::never(const Demand& demand, std::span<const Room> rooms, int& group) const {
  Demand alone = demand;
  alone.start_tokens = 0;
  alone.extra = {};
  for (group = 0; group < group_count_; ++group) {
    const std::int64_t capacity = rooms[group].capacity, cap = cap_of(group, demand);
    const std::int64_t without = demand.start_tokens == 0 ? cap : cap_of(group, alone);
    // What a lease saves of history it pins instead.
    if (without > capacity && (cap > capacity || layout_.groups[group].prefix())) return Refusal::Never;
    if (cap > capacity) return Refusal::Lease;
  }
  group = -1;
  return Refusal::None;
}

Refusal AdmissionLedger::counts(std::uint32_t combination) const {
  if (limits_.max_requests > 0 && live_requests_.load() >= limits_.max_requests) return Refusal::Requests;
  const bool known = combinations_.contains(combination);
  if (limits_.max_combinations > 0 && !known && live_combinations_.load() >= limits_.max_combinations)
    return Refusal::Combinations;
  return Refusal::None;
}

Refusal AdmissionLedger::short_of(const Demand& demand, std::span<const Room> rooms, int& group) const {
  for (group = 0; group < group_count_; ++group) {
    const std::int64_t cap = cap_of(group, demand);
    // Where it takes nothing, a lease still pins what was promised, and longer than a lease may.
    if ((cap > 0 || demand.start_tokens > 0) && cap > left(group, rooms[group])) return Refusal::Pages;
  }
  group = -1;
  return counts(used(demand));
}

// The groups that keep the request out by the watermark, as bits: those an admission would take below low,
// and those that were refused for it before and are not back at high. Where nothing is admitted nothing can
// come back, so that there it does not apply.
std::uint32_t AdmissionLedger::under(const Demand& demand, std::span<const Room> rooms) const {
  if (limits_.watermark_high_ppm == 0 || live_requests_.load() == 0) return 0;
  std::uint32_t under = 0;
  for (int g = 0; g < group_count_; ++g) {
    const std::int64_t now = left(g, rooms[g]), cap = cap_of(g, demand);
    const bool waits =
        (below_ >> g & 1) != 0 && now < pages_of(limits_.watermark_high_ppm, rooms[g].capacity);
    if (waits || now - cap < pages_of(limits_.watermark_low_ppm, rooms[g].capacity)) under |= 1u << g;
  }
  return under;
}

void AdmissionLedger::grant(Share& share, std::span<const std::int64_t> caps, std::uint32_t combination) {
  HKV_CHECK(!share.live);
  share.live = true;
  share.combination = combination;
  for (int g = 0; g < group_count_; ++g) {
    share.cap[g] = caps[static_cast<std::size_t>(g)];
    share.taken[g].store(0);
    caps_[g].fetch_add(share.cap[g]);
    promised_[g].fetch_add(share.cap[g]);
  }
}

Refusal AdmissionLedger::admit(Share& share, const Demand& demand, std::span<const Room> rooms, int& group) {
  const std::lock_guard<std::mutex> guard(mutex_);
  Refusal refusal = never(demand, rooms, group);
  if (refusal == Refusal::None) refusal = short_of(demand, rooms, group);
  if (refusal != Refusal::None) return refusal;
  if (const std::uint32_t below = under(demand, rooms); below != 0) {
    below_ = below;
    while ((below >> ++group & 1) == 0) {
    }
    return Refusal::Watermark;
  }
  below_ = 0;
  std::array<std::int64_t, most_groups> caps{};
  for (int g = 0; g < group_count_; ++g) caps[g] = cap_of(g, demand);
  grant(share, caps, used(demand));
  share.counted = true;
  share.number = ++numbers_;
  live_requests_.fetch_add(1);
  live_combinations_.store(
      (++combinations_[share.combination], static_cast<std::int64_t>(combinations_.size())));
  return Refusal::None;
}

Refusal AdmissionLedger::judge(const Demand& demand, std::span<const Room> rooms, int& group) const {
  const std::lock_guard<std::mutex> guard(mutex_);
  Refusal refusal = never(demand, rooms, group);
  if (refusal == Refusal::None) refusal = short_of(demand, rooms, group);
  return refusal == Refusal::None && under(demand, rooms) != 0 ? Refusal::Watermark : refusal;
}

bool AdmissionLedger::admit_fill(Share& share, std::span<const std::int64_t> pages,
                                 std::span<const Room> rooms, int& group) {
  const std::lock_guard<std::mutex> guard(mutex_);
  for (group = 0; group < group_count_; ++group) {
    if (pages[group] > 0 && pages[group] > spare(group, rooms[group])) return false;
  }
  group = -1;
  grant(share, pages, 0);
  share.counted = false;
  return true;
}

void AdmissionLedger::end(Share& share) {
  const std::lock_guard<std::mutex> guard(mutex_);
  HKV_CHECK(share.live);
  for (int g = 0; g < group_count_; ++g) {
    promised_[g].fetch_sub(room(share, g));
    caps_[g].fetch_sub(share.cap[g]);
    share.cap[g] = 0;
    share.taken[g].store(0);
  }
  share.live = false;
  if (!share.counted) return;
  const auto at = combinations_.find(share.combination);
  if (--at->second == 0) combinations_.erase(at);
  live_combinations_.store(static_cast<std::int64_t>(combinations_.size()));
  live_requests_.fetch_sub(1);
}

bool AdmissionLedger::widen(Share& share, int group, const Room& room, bool pinned) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (spare(group, room) < (pinned ? 0 : 1)) return false;
  ++share.cap[group];
  caps_[group].fetch_add(1);
  promised_[group].fetch_add(1);
  return true;
}

void AdmissionLedger::narrow(Share& share, int group) {
  const std::lock_guard<std::mutex> guard(mutex_);
  HKV_CHECK(room(share, group) >= 1);
  --share.cap[group];
  caps_[group].fetch_sub(1);
  promised_[group].fetch_sub(1);
}

void AdmissionLedger::took(Share& share, int group, std::int64_t pages) {
  HKV_CHECK(pages <= room(share, group));
  takes_[group].fetch_add(pages);
  share.taken[group].fetch_add(pages);
  promised_[group].fetch_sub(pages);
}

void AdmissionLedger::gave(Share& share, int group, std::int64_t pages) {
  HKV_CHECK(pages <= share.taken[group].load());
  promised_[group].fetch_add(pages);
  share.taken[group].fetch_sub(pages);
}

bool AdmissionLedger::pass_on(Share& share, int group, const Room& room) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (spare(group, room) < 1) return false;
  gave(share, group, 1);
  return true;
}

void AdmissionLedger::lost(Share& share, int group) {
  const std::lock_guard<std::mutex> guard(mutex_);
  HKV_CHECK(share.taken[group].load() >= 1);
  share.taken[group].fetch_sub(1);
  --share.cap[group];
  caps_[group].fetch_sub(1);
}

bool preempted_before(Preempt how, const Layout& layout, const AdmissionLedger::Share& a,
                      const AdmissionLedger::Share& b) {
  if (how == Preempt::Largest) {
    std::int64_t more = 0;
    for (std::size_t g = 0; g < layout.groups.size(); ++g)
      more += (a.taken[g].load() - b.taken[g].load()) * layout.groups[g].page_bytes;
    if (more != 0) return more > 0;
  }
  return a.number > b.number;
}

}  // namespace hkv
