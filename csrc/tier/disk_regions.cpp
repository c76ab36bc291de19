// SPDX-License-Identifier: Apache-2.0
// Of the disk store: the lives of region files. The next one is prepared while one is filled, and one that is full is
// sealed while the next is filled.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "tier/disk_store.h"

namespace hkv {
namespace {

// Regions there must be, or a put finds no space rather than evicts.
constexpr std::uint32_t least_to_reclaim = 3;

}  // namespace

RegionHeader DiskStore::header_of(const DiskRegion& region) const {
  return {superblock_.store, region.number, region.epoch, superblock_.region_bytes};
}

std::uint32_t DiskStore::region_count() const {
  return static_cast<std::uint32_t>(std::count_if(regions_.begin(), regions_.end(), [](const auto& region) {
    return region->phase != RegionPhase::Absent;
  }));
}

// ---- the next region ------------------------------------------------------------------------

// One at a time, and only while no more than the region before the open one waits for its sync: so what is not durable
// lies in three regions at most.
// Returns: whether one is there, is on its way or may be later.
bool DiskStore::prepare_next() {
  if (preparation_.step != Step::None || ready_ != nullptr || unsynced_seals() > 1) return true;
  return !counts_.read_only.load() && (prepare_free() || prepare_new() || prepare_reclaimed());
}

std::size_t DiskStore::unsynced_seals() const {
  return static_cast<std::size_t>(std::count_if(seals_.begin(), seals_.end(), [](const auto& seal) {
    return seal->region->unpublished != 0 || seal->region->synced < seal->region->published;
  }));
}

bool DiskStore::prepare_free() {
  for (const auto& region : regions_) {
    const bool over = region->phase == RegionPhase::Sealed ||
                      (region->phase == RegionPhase::GivenUp && region->unpublished == 0);
    const bool empty = over && region->live == 0 && region->tombstones == 0;
    if (region->phase != RegionPhase::Free && !empty) continue;
    preparation_.region = region.get();
    preparation_.fresh = false;
    preparation_.kept.clear();
    preparation_.next = 0;
    preparation_.reserved = 0;
    preparation_.failed = false;
    if (empty) {
      preparation_.step = Step::Copying;  // of nothing; readers may still be there
    } else {
      allocate(*region, false);
    }
    return true;
  }
  return false;
}

bool DiskStore::prepare_new() {
  std::uint32_t number = 0;
  while (number < regions_.size() && regions_[number]->phase != RegionPhase::Absent) ++number;
  if (region_count() >= region_limit_ || number >= most_regions) return false;
  // Where there was no room, not again before there is more.
  const std::uint64_t free = io_.free_bytes();
  if (free < superblock_.region_bytes || free < free_wanted_) return false;
  if (number == regions_.size()) {
    regions_.push_back(std::make_unique<DiskRegion>());
    regions_.back()->number = number;
    regions_.back()->phase = RegionPhase::Absent;
  }
  DiskRegion& region = *regions_[number];
  if (io_.open(region.name(), Io::Mode::Create, region.file) != 0) {
    counts_.add(counts_.io_errors, 1);
    free_wanted_ = free + superblock_.region_bytes;
    return false;
  }
  region.phase = RegionPhase::Free;
  allocate(region, true);
  return true;
}

void DiskStore::allocate(DiskRegion& region, bool fresh) {
  preparation_.region = &region;
  preparation_.fresh = fresh;
  preparation_.step = Step::Allocate;
  IoRequest& request = preparation_.request;
  request.op = IoRequest::Op::Allocate;
  request.file = region.file;
  request.offset = 0;
  request.bytes = superblock_.region_bytes;
  request.pieces = {};
  queue_.add(&request, Priority::Write);
}

// The oldest life: nothing that is older needs its tombstones.
DiskRegion* DiskStore::oldest() const {
  DiskRegion* out = nullptr;
  for (const auto& region : regions_) {
    if (region->phase != RegionPhase::Sealed && region->phase != RegionPhase::GivenUp) continue;
    if (region->unpublished != 0) continue;
    if (out == nullptr || region->epoch < out->epoch) out = region.get();
  }
  return out;
}

// Whether the next region, which is not on its way yet, will be a reclaimed one with something to keep.
bool DiskStore::will_reclaim() const {
  const DiskRegion* const region = oldest();
  if (region == nullptr || region->live == 0 || region_count() < least_to_reclaim) return false;
  if (counts_.read_only.load() || region_count() < std::min(region_limit_, most_regions)) return false;
  return std::none_of(regions_.begin(), regions_.end(),
                      [](const auto& each) { return each->phase == RegionPhase::Free; });
}

// A file system that is full before the capacity is used is no reason to give up what is stored, unless asked to.
bool DiskStore::may_reclaim() const {
  const bool all_used = region_count() >= std::min(region_limit_, most_regions);
  return region_count() >= least_to_reclaim && (all_used || options_.reclaim_when_full);
}

bool DiskStore::prepare_reclaimed() {
  DiskRegion* const region = may_reclaim() ? oldest() : nullptr;
  if (region == nullptr) return false;
  preparation_.region = region;
  preparation_.fresh = false;
  preparation_.step = Step::Copying;
  choose_kept(*region);
  return true;
}

void DiskStore::prepared(std::int64_t result) {
  const IoRequest& done = preparation_.request;
  const bool is_write = done.op == IoRequest::Op::Write;
  if (result < 0 || (is_write && result != static_cast<std::int64_t>(done.bytes))) {
    return preparation_failed(result);
  }
  switch (preparation_.step) {
    case Step::Allocate: return write_header();
    case Step::Header:
      if (!preparation_.fresh) return erase_footer();
      [[fallthrough]];
    case Step::OldFooter: {
      preparation_.step = Step::HeaderSync;
      preparation_.request.op = IoRequest::Op::Sync;
      preparation_.request.pieces = {};
      return queue_.add(&preparation_.request, Priority::Write);
    }
    case Step::HeaderSync: return header_durable();
    default: HKV_CHECK(false);
  }
}

void DiskStore::write_header() {
  DiskRegion& region = *preparation_.region;
  HKV_CHECK(region.live == 0 && region.readers == 0);
  region.phase = RegionPhase::Preparing;
  region.epoch = next_epoch_++;
  write_region_header(header_of(region), std::span<std::byte, region_header_bytes>(preparation_.header.data(),
                                                                                   region_header_bytes));
  preparation_.step = Step::Header;
  write_unit(0);
}

// So that where the new header rots, no footer stands for the old life.
void DiskStore::erase_footer() {
  std::memset(preparation_.header.data(), 0, disk_unit);
  preparation_.step = Step::OldFooter;
  write_unit(superblock_.region_bytes - disk_unit);
}

void DiskStore::write_unit(std::uint64_t offset) {
  preparation_.piece = {preparation_.header.data(), disk_unit};
  IoRequest& request = preparation_.request;
  request.op = IoRequest::Op::Write;
  request.file = preparation_.region->file;
  request.offset = offset;
  request.bytes = disk_unit;
  request.pieces = {&preparation_.piece, 1};
  queue_.add(&request, Priority::Write);
}

void DiskStore::header_durable() {
  DiskRegion& region = *preparation_.region;
  // The name of a new file must survive as its content does.
  if (preparation_.fresh && io_.sync_directory() != 0) return preparation_failed(-EIO);
  region.tail = region.published = region.synced = region_header_bytes;
  region.entries.clear();
  region.numbers.clear();
  region.lingering = region.tombstones = 0;
  region.footer_written = false;
  region.phase = RegionPhase::Ready;
  ready_ = &region;
  preparation_.step = Step::None;
}

// A region whose header cannot be written holds nothing that is needed: the file goes.
void DiskStore::preparation_failed(std::int64_t result) {
  const bool full = result == -ENOSPC || result == -EDQUOT;
  const bool allocating = preparation_.step == Step::Allocate;
  counts_.add(counts_.io_errors, 1);
  preparation_.step = Step::None;
  remove_file(*preparation_.region);
  if (!full) return count_failure();
  if (allocating) free_wanted_ = io_.free_bytes() + superblock_.region_bytes;
  if (counts_.read_only.load() || (allocating && prepare_reclaimed())) return;
  if (stalled()) fail_unplaced(TierStatus::NoSpace);
}

void DiskStore::remove_file(DiskRegion& region) {
  ++removed_files_;
  io_.close(std::exchange(region.file, no_file));
  const int removed = io_.remove(region.name());
  const bool sure = (removed == 0 || removed == -ENOENT) && io_.sync_directory() == 0;
  region.phase = RegionPhase::Absent;
  region.cut = 0;
  region.numbers.clear();
  region.entries.clear();
  region.tombstones = 0;
  if (sure) {
    region.lingering = 0;
  } else {
    counts_.read_only.store(true);  // its old life may come back, so nothing that is newer may go
  }
}

// ---- sealing --------------------------------------------------------------------------------

void DiskStore::start_seal(DiskRegion& region) {
  region.phase = RegionPhase::Sealing;
  seals_.push_back(std::make_unique<Seal>());
  seals_.back()->region = &region;
}

// Sync, footer, sync: a footer that is there lists what is durable.
void DiskStore::pump_seals() {
  for (auto& seal : seals_) {
    DiskRegion& region = *seal->region;
    if (region.phase != RegionPhase::Sealing || seal->under_way || region.footer_written) continue;
    if (region.unpublished != 0 || region.syncing || region.synced < region.published) continue;
    if (region.entries.empty()) {
      region.phase = RegionPhase::Free;
      std::erase(dirty_, &region);
      continue;
    }
    const std::uint64_t bytes = footer_bytes(region.entries.size());
    seal->memory = stock_.take(bytes);
    write_footer(header_of(region), region.entries, {seal->memory.data(), bytes});
    seal->piece = {seal->memory.data(), bytes};
    seal->request.op = IoRequest::Op::Write;
    seal->request.file = region.file;
    seal->request.offset = superblock_.region_bytes - bytes;
    seal->request.bytes = bytes;
    seal->request.pieces = {&seal->piece, 1};
    seal->under_way = true;
    queue_.add(&seal->request, Priority::Write);
  }
  std::erase_if(seals_, [](const auto& seal) {
    return seal->region->phase != RegionPhase::Sealing && !seal->under_way;
  });
}

void DiskStore::footer_done(Seal& seal) {
  DiskRegion& region = *seal.region;
  seal.under_way = false;
  stock_.give_back(std::move(seal.memory));
  if (seal.request.result != static_cast<std::int64_t>(seal.request.bytes)) return give_up(region, false);
  region.footer_written = true;
}

void DiskStore::sealed(DiskRegion& region) {
  region.phase = RegionPhase::Sealed;
  region.entries = {};
  std::erase(dirty_, &region);
}

}  // namespace hkv
