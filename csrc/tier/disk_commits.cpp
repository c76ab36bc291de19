// SPDX-License-Identifier: Apache-2.0
// Of the disk store: what is written is published, in order; what is published becomes durable, in order; and what an
// I/O error takes with it.
#include <algorithm>

#include "tier/disk_store.h"

namespace hkv {
namespace {

constexpr std::uint32_t most_failures = 3;  // one after another; then nothing is written any more

}  // namespace

RecordPlace DiskStore::place_of(const Pending& pending) const {
  return {pending.region->number, static_cast<std::uint32_t>(pending.offset / disk_unit),
          static_cast<std::uint32_t>(pending.bytes / disk_unit), pending.payload_units};
}

void DiskStore::gone(const RecordPlace& place) {
  DiskRegion& region = *regions_[place.region];
  --region.live;
  ++region.lingering;
  counts_.live_bytes.store(counts_.live_bytes.load() - std::uint64_t{place.units} * disk_unit);
}

void DiskStore::erase(DiskIndex::Number number) {
  index_.erase(number, [this](const RecordPlace& place) { gone(place); });
}

// ---- published ------------------------------------------------------------------------------

void DiskStore::publish_all() {
  while (!placed_.empty() && placed_.front()->writes == 0) {
    std::unique_ptr<Pending> pending = std::move(placed_.front());
    placed_.pop_front();
    publish(std::move(pending));
  }
}

void DiskStore::publish(std::unique_ptr<Pending> pending) {
  DiskRegion* const region = pending->region;
  if (region != nullptr) --region->unpublished;
  if (pending->kind == Pending::Kind::Put) forget(*pending);
  if (pending->kind == Pending::Kind::Flush) {
    if (std::exchange(unreported_loss_, false)) {
      return answer(pending->operations.front(), TierStatus::IoError);
    }
    return wait_for(*pending, pending->operations.front());
  }
  if (pending->failure != TierStatus::Ok) return publish_failed(*pending);
  region->published = published_end_ = pending->end();
  published_epoch_ = pending->epoch;
  list(*pending);
  switch (pending->kind) {
    case Pending::Kind::Put: return publish_record(*pending);
    case Pending::Kind::Tombstone:
      ++region->tombstones;
      return wait_for(*pending, pending->operations.front());
    case Pending::Kind::Copy: {
      Waiter waiter;
      waiter.own = region;
      waiter.own_end = pending->end();
      waiter.copied = std::move(pending);
      return wait_durable(std::move(waiter));
    }
    case Pending::Kind::Flush: return;
  }
}

void DiskStore::publish_failed(Pending& pending) {
  if (pending.region != nullptr) ++pending.region->lingering;  // the write may have reached the disk
  if (pending.kind == Pending::Kind::Copy) return copy_settled(pending, false);
  for (TierOperation* operation : pending.operations) answer(operation, pending.failure);
}

void DiskStore::publish_record(Pending& pending) {
  DiskRegion& region = *pending.region;
  const RecordPlace place = place_of(pending);
  DiskIndex::Number n = none_u32;
  TierStatus status = TierStatus::Ok;
  if (!pending.doomed) {
    switch (index_.insert(pending.key, pending.parent, pending.flags, pending.pinned, place, n)) {
      case DiskIndex::Insert::Done: break;
      case DiskIndex::Insert::NoParent: status = TierStatus::Miss; break;
      case DiskIndex::Insert::Full: status = TierStatus::NoSpace; break;
    }
  }
  if (n == none_u32) {
    ++region.lingering;
    for (TierOperation* operation : pending.operations) answer(operation, status);
    return;
  }
  region.numbers.push_back(n);
  ++region.live;
  counts_.add(counts_.live_bytes, pending.bytes);
  for (TierOperation* operation : pending.operations) {
    if (operation->durable) {
      wait_for(pending, operation);
    } else {
      answer(operation, TierStatus::Ok);
    }
  }
}

void DiskStore::list(const Pending& pending) {
  const RecordPlace place = place_of(pending);
  pending.region->entries.push_back({pending.key, pending.parent, place.at, place.units,
                                     pending.payload_units, pending.flags, pending.pinned});
}

// ---- durable --------------------------------------------------------------------------------

void DiskStore::wait_for(Pending& pending, TierOperation* operation) {
  Waiter waiter;
  waiter.operation = operation;
  waiter.key = pending.key;
  waiter.answer = pending.answer;
  waiter.is_put = pending.kind == Pending::Kind::Put;
  waiter.is_flush = pending.kind == Pending::Kind::Flush;
  waiter.own = pending.region;
  waiter.own_end = pending.end();
  wait_durable(std::move(waiter));
}

void DiskStore::wait_durable(Waiter waiter) {
  waiter.epoch = published_epoch_;
  waiter.end = published_end_;
  waiter.losses = losses_;
  waiter.failed = waiter.own != nullptr && waiter.own->phase == RegionPhase::GivenUp &&
                  waiter.own_end > waiter.own->synced;
  waiters_.push_back(std::move(waiter));
}

bool DiskStore::durable(const Waiter& waiter) const {
  return std::all_of(dirty_.begin(), dirty_.end(), [&](const DiskRegion* region) {
    if (region->epoch > waiter.epoch) return true;
    return region->synced >= (region->epoch == waiter.epoch ? waiter.end : region->published);
  });
}

// Records are synced when somebody waits for it or their region is full. A footer can wait for that: a sync costs what
// the device has not written yet, whoever wrote it, so that two at a time cost little more than one.
void DiskStore::request_syncs() {
  const auto full = [](const DiskRegion* region) {
    return region->phase == RegionPhase::Sealing && region->unpublished == 0;
  };
  const auto behind = [&](const DiskRegion* region) {
    return region->synced < region->published && (full(region) || !waiters_.empty());
  };
  const bool footers =
      closing_ || pieces_under_way_ == 0 || std::any_of(dirty_.begin(), dirty_.end(), behind);
  for (DiskRegion* region : dirty_) {
    const bool wanted = behind(region) || (footers && full(region) && region->footer_written);
    if (!wanted || region->syncing) continue;
    std::unique_ptr<SyncJob>& job = syncs_[region];
    if (job == nullptr) job = std::make_unique<SyncJob>();
    job->region = region;
    job->of_footer = region->footer_written;
    job->request.op = IoRequest::Op::Sync;
    job->request.file = region->file;
    region->syncing = true;
    region->sync_covers = region->published;
    queue_.add(&job->request, Priority::Write);
  }
}

void DiskStore::synced(SyncJob& job) {
  DiskRegion& region = *job.region;
  region.syncing = false;
  if (region.phase == RegionPhase::GivenUp) return;
  if (job.request.result < 0) return give_up(region, false);
  failures_ = 0;
  region.synced = region.sync_covers;
  if (job.of_footer) sealed(region);
}

void DiskStore::answer_waiters() {
  std::deque<Waiter> still;
  for (; !waiters_.empty(); waiters_.pop_front()) {
    Waiter& waiter = waiters_.front();
    if (waiter.failed || durable(waiter)) {
      answer_waiter(waiter);
    } else {
      still.push_back(std::move(waiter));
    }
  }
  waiters_ = std::move(still);
}

void DiskStore::answer_waiter(Waiter& waiter) {
  if (waiter.copied != nullptr) return copy_settled(*waiter.copied, !waiter.failed);
  // What it is a child of may have been lost with another region.
  const bool lost = waiter.is_put && waiter.losses != losses_ && index_.find(waiter.key) == none_u32;
  answer(waiter.operation, waiter.failed || lost ? TierStatus::IoError : waiter.answer);
}

// ---- errors ---------------------------------------------------------------------------------

void DiskStore::give_up(DiskRegion& region, bool full) {
  if (region.phase == RegionPhase::GivenUp) return;
  counts_.add(counts_.io_errors, 1);
  fail_placed(region, full ? TierStatus::NoSpace : TierStatus::IoError);
  if (full) {  // what is written stays, and may be synced
    if (++full_writes_ >= most_failures) counts_.read_only.store(true);
    if (current_ == &region) {
      current_ = nullptr;
      start_seal(region);
    }
    return;
  }
  count_failure();
  region.phase = RegionPhase::GivenUp;
  if (current_ == &region) current_ = nullptr;
  std::erase(dirty_, &region);
  mark_cut(region);
  const bool lost = lose_unsynced(region);
  fail_waiters(region);
  if (!lost) return;
  ++losses_;
  bool told = false;
  for (Waiter& waiter : waiters_) {
    if (waiter.is_flush) told = waiter.failed = true;
  }
  unreported_loss_ = unreported_loss_ || !told;
}

// A system that lost writes may say at the next sync that all is well, and show them to a later opener as long as its
// memory does. So the name says what counts.
void DiskStore::mark_cut(DiskRegion& region) {
  const std::string before = region.name();
  region.cut = static_cast<std::uint32_t>(region.synced / disk_unit);
  if (io_.rename(before, region.name()) == 0 && io_.sync_directory() == 0) return;
  counts_.read_only.store(true);
}

void DiskStore::fail_placed(DiskRegion& region, TierStatus status) {
  if (open_piece_ != nullptr && open_piece_->region == &region) {
    settle_piece(*std::exchange(open_piece_, nullptr));
  }
  const auto fail = [&](Pending& pending) {
    if (pending.region == &region && pending.failure == TierStatus::Ok) pending.failure = status;
  };
  for (auto& pending : placed_) fail(*pending);
  if (filling_ != nullptr) fail(*filling_);
}

void DiskStore::fail_waiters(const DiskRegion& region) {
  for (Waiter& waiter : waiters_) {
    if (waiter.own == &region && waiter.own_end > region.synced) waiter.failed = true;
  }
}

// What was published and is not durable goes, with what needs it: nothing that is told to be durable may need it.
bool DiskStore::lose_unsynced(DiskRegion& region) {
  bool lost = region.synced < region.published;
  for (const DiskIndex::Number n : region.numbers) {
    if (!index_.holds(n)) continue;
    const RecordPlace place = index_.place(n);
    if (place.region != region.number) continue;
    if (std::uint64_t{place.at + place.units} * disk_unit <= region.synced) continue;
    counts_.add(counts_.dropped, 1);
    erase(n);
  }
  region.published = region.synced;
  return lost;
}

void DiskStore::count_failure() {
  if (++failures_ >= most_failures) counts_.read_only.store(true);
}

}  // namespace hkv
