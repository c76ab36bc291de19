// SPDX-License-Identifier: Apache-2.0
#include "tier/disk_store.h"

#include <algorithm>

#include "base/check.h"

namespace hkv {

DiskStore::DiskStore(const DiskOptions& options, Io& io, DiskIndex& index, DiskContent content, Owner& owner)
    : options_(options),
      io_(io),
      index_(index),
      owner_(owner),
      queue_(io),
      stock_(std::size_t{64} << 20, io),
      admitter_(options),
      superblock_(content.superblock),
      regions_(std::move(content.regions)),
      next_epoch_(content.next_epoch),
      region_limit_(static_cast<std::uint32_t>(options.capacity_bytes / content.superblock.region_bytes)) {
  for (auto& region : regions_) {
    for (const DiskIndex::Number n : region->numbers) {
      counts_.add(counts_.live_bytes, std::uint64_t{index.place(n).units} * disk_unit);
    }
    if (region->phase == RegionPhase::Open) dirty_.push_back(region.get());
  }
  // What a crash left without a footer gets one. What was found there is not known to be durable.
  std::sort(dirty_.begin(), dirty_.end(), [](const auto* a, const auto* b) { return a->epoch < b->epoch; });
  for (DiskRegion* region : dirty_) {
    published_epoch_ = region->epoch;
    published_end_ = region->published;
    start_seal(*region);
  }
}

DiskStore::~DiskStore() = default;

void DiskStore::release_memory() {
  HKV_CHECK(closed());
  free_pieces_.clear();
  pieces_.clear();
  for (auto& copy : copies_) copy->memory = {};
  stock_.clear();
}

std::uint64_t DiskStore::most_record_bytes() const {
  // What a reclaim keeps, at most a quarter, and the footer must fit beside it.
  return superblock_.region_bytes / 8 * 5 / disk_unit * disk_unit;
}

std::uint64_t DiskStore::lingering() const {
  std::uint64_t sum = 0;
  for (const auto& region : regions_) sum += region->lingering;
  return sum;
}

void DiskStore::begin(TierOperation* operation, Deadline now) {
  switch (operation->kind) {
    case TierOperation::Kind::Get: return begin_get(operation);
    case TierOperation::Kind::Put: return begin_put(operation, now);
    case TierOperation::Kind::Remove: return begin_remove(operation);
    case TierOperation::Kind::Flush: return begin_flush(operation);
    case TierOperation::Kind::Probe:
      return answer(operation, index_.find(operation->key) == none_u32 ? TierStatus::Miss : TierStatus::Ok);
  }
}

void DiskStore::complete(IoRequest* request) {
  queue_.done();
  if (request->fixed) counts_.add(counts_.fixed_requests, 1);
  Job& job = *static_cast<Job*>(request->owner);
  switch (job.kind) {
    case JobKind::Piece: return written(static_cast<Piece&>(job));
    case JobKind::Get: return got(static_cast<Get&>(job), *request);
    case JobKind::Run: return got(*static_cast<Run&>(job).get, *request);
    case JobKind::Sync: return synced(static_cast<SyncJob&>(job));
    case JobKind::Footer: return footer_done(static_cast<Seal&>(job));
    case JobKind::Prepare: return prepared(request->result);
    case JobKind::Copy: return copy_read(static_cast<CopyRead&>(job));
  }
}

void DiskStore::pump() {
  turn_over_ = false;
  for (std::uint64_t before = ~progress(); before != progress();) {
    before = progress();
    publish_all();
    place_all();
    pump_seals();
    go_on_reclaiming();
    if (current_ != nullptr && !closing_) prepare_next();
    request_syncs();
    answer_waiters();
    if (closing_ && current_ != nullptr && nothing_to_do()) start_seal(*std::exchange(current_, nullptr));
  }
  queue_.pump();
}

// Another value whenever something happened that may let something else go on.
std::uint64_t DiskStore::progress() const {
  std::uint64_t mixed = queue_.added() + removed_files_;
  for (const std::uint64_t each :
       {std::uint64_t{unplaced_.size()}, std::uint64_t{placed_.size()}, std::uint64_t{waiters_.size()},
        std::uint64_t{seals_.size()}, std::uint64_t{preparation_.next}, std::uint64_t{preparation_.unsettled},
        static_cast<std::uint64_t>(preparation_.step), std::uint64_t{current_ == nullptr},
        std::uint64_t{ready_ == nullptr}, std::uint64_t{filling_ == nullptr}}) {
    mixed = mixed * 0x9E3779B97F4A7C15u + each;
  }
  return mixed;
}

bool DiskStore::nothing_to_do() const {
  return gets_.empty() && unplaced_.empty() && filling_ == nullptr && placed_.empty() && waiters_.empty() &&
         preparation_.step == Step::None;
}

bool DiskStore::closed() const {
  return nothing_to_do() && current_ == nullptr && seals_.empty() && queue_.idle();
}

}  // namespace hkv
