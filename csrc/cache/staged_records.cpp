// SPDX-License-Identifier: Apache-2.0
// Records with parts in device pools: through host memory on their way to a tier and back.
#include <algorithm>

#include "cache/transfers.h"

namespace hkv {
namespace {

constexpr auto look_at_copies = std::chrono::microseconds(200);

}  // namespace

PageStaging& Transfers::staging() {
  const TierLink& link = cache_.link_;
  if (staging_ == nullptr) {
    staging_ =
        std::make_unique<PageStaging>(link.cuda != nullptr ? *link.cuda : cuda_library(), link.staging_bytes);
  }
  return *staging_;
}

void Transfers::check_pools() {
  const std::lock_guard guard(lock_);
  for (std::size_t g = 0; g < cache_.layout_.groups.size(); ++g) {
    const PoolMemory& memory = cache_.memory_[g];
    const std::string& name = cache_.layout_.groups[g].name;
    if (!memory.bound()) {
      throw Error(ErrorCode::ArgumentError, "pools[" + name + "]",
                  "a pool in host memory, or in memory of a CUDA device", "none");
    }
    if (!memory.host()) staging().check(g, name, memory);
  }
}

void Transfers::pool_bound(int group) {
  const auto g = static_cast<std::size_t>(group);
  if (staging_ != nullptr) staging_->forget(g);
  if (!cache_.memory_[g].host()) staging().prepare(cache_.memory_[g]);
}

void Transfers::open(Transfer& transfer) {
  const std::lock_guard guard(lock_);
  transfer.options.gated = false;
  for (const auto& each : live_) {
    if (each.get() == &transfer) send(each);
  }
}

void Transfers::wait(std::chrono::nanoseconds at_most) {
  const Deadline until = TierClock::now() + at_most;
  for (;;) {
    bool copying = false;
    {
      const std::lock_guard guard(lock_);
      copying = !copying_.empty();
      if (copying) staging_->poll();
      for (const Copying& each : copying_) {
        if (!each.transfer->records[each.record].staged->moving()) return;
      }
    }
    const std::chrono::nanoseconds left = until - TierClock::now();
    if (!copying) return static_cast<void>(cache_.link_.tier->wait(left));
    if (cache_.link_.tier->wait(std::min<std::chrono::nanoseconds>(left, look_at_copies))) return;
    if (left <= std::chrono::nanoseconds(0)) return;
  }
}

// Whether a record may go to the tier.
bool Transfers::placed(const Transfer::Record& record) const {
  if (staging_ == nullptr) return true;
  return record.placed && !record.copying;
}

// Finds places for the records that go next, as far ahead as may be on their way, and begins to copy those of an offload.
void Transfers::stage(const std::shared_ptr<Transfer>& transfer) {
  if (staging_ == nullptr) return;
  const bool storing = transfer->kind == TransferKind::Offload;
  const bool patient = storing || transfer->options.priority == Priority::Prefetch;
  std::int64_t ahead = transfer->bytes_in_flight;
  for (std::size_t i = transfer->sent; i < transfer->records.size(); ++i) {
    Transfer::Record& record = transfer->records[i];
    if (ahead != 0 && ahead + record.bytes > most_bytes_in_flight) return;
    ahead += record.bytes;
    if (record.placed) continue;
    auto staged = std::make_unique<StagedParts>();
    std::string error;
    const std::vector<std::size_t> room = storing ? std::vector<std::size_t>() : room_of(record);
    const PageStaging::Taken taken =
        staging_->take(record.parts, room, cache_.memory_, patient, *staged, error);
    if (taken == PageStaging::Taken::Later) return;
    if (taken == PageStaging::Taken::Never) {
      transfer->device_error = error;
      fail(*transfer, i, TierStatus::Unavailable, Damage::None);
      return finish_if_over(*transfer);
    }
    record.placed = true;
    if (taken == PageStaging::Taken::Unneeded) continue;
    record.staged = std::move(staged);
    if (!storing) continue;
    begin_copy(transfer, i);
  }
}

// What the parts of a record that is restored take in their pages: of a tip's page all of it.
std::vector<std::size_t> Transfers::room_of(const Transfer::Record& record) const {
  std::vector<std::size_t> out;
  for (const Part& part : record.parts) {
    const bool partial = part.label.rows != 0;
    out.push_back(partial ? static_cast<std::size_t>(piece_bytes(part.label)) : part.bytes);
  }
  return out;
}

std::int64_t Transfers::piece_bytes(const PartLabel& label) const {
  const PoolMemory& memory = cache_.memory_[label.group];
  const std::int64_t array = memory.rows() == 1 ? 0 : label.layer;
  return memory.bytes_of_page(array) / memory.layers_in(cache_.layout_.groups[label.group], array);
}

void Transfers::begin_copy(const std::shared_ptr<Transfer>& transfer, std::size_t index) {
  Transfer::Record& record = transfer->records[index];
  const bool storing = transfer->kind == TransferKind::Offload;
  staging_->begin(*record.staged, storing ? CopyWay::ToHost : CopyWay::ToDevice);
  record.copying = true;
  copying_.push_back({transfer, index});
}

// The tier has verified the record where it is: it is copied to its pages, which are published when that is over.
void Transfers::land(const std::shared_ptr<Transfer>& transfer, std::size_t index) {
  Transfer::Record& record = transfer->records[index];
  for (const Part& part : record.parts) {
    if (cache_.memory_[part.label.group].host()) continue;  // cleared in its page
    clear_unattested(cache_.layout_.groups[part.label.group], part.label.rows,
                     static_cast<std::byte*>(part.data), piece_bytes(part.label));
  }
  record.state = Transfer::Record::State::Landing;
  begin_copy(transfer, index);
}

// Returns: records settled.
std::int64_t Transfers::end_copies() {
  if (copying_.empty()) return 0;
  staging_->poll();
  const auto moves = [](const Copying& each) { return each.transfer->records[each.record].staged->moving(); };
  const auto first = std::stable_partition(copying_.begin(), copying_.end(), moves);
  const std::vector<Copying> over(first, copying_.end());
  copying_.erase(first, copying_.end());
  std::int64_t settled = 0;
  for (const Copying& each : over) settled += end_copy(*each.transfer, each.record) ? 1 : 0;
  return settled;
}

// Returns: whether it settled the record.
bool Transfers::end_copy(Transfer& transfer, std::size_t index) {
  Transfer::Record& record = transfer.records[index];
  record.copying = false;
  const DeviceCopy& copy = *record.staged->copy;
  const bool storing = transfer.kind == TransferKind::Offload;
  const bool done = copy.state() == DeviceCopy::State::Done;
  if (done) {
    std::int64_t bytes = 0;
    for (const CopyRun& run : record.staged->runs) bytes += static_cast<std::int64_t>(run.bytes);
    cache_.counters_.add(storing ? kStagedToHost : kStagedToDevice, bytes);
  } else {
    cache_.counters_.add(kCopyFailures, 1);
    if (transfer.device_error.empty()) transfer.device_error = copy.error();
  }
  const Transfer::Record::State state = record.state;
  if (state == Transfer::Record::State::Landing) {
    Done report;
    report.status = done ? TierStatus::Ok : TierStatus::Unavailable;
    settle(transfer, index, report);
  } else if (state == Transfer::Record::State::Late) {  // dropped meanwhile
    record.state = Transfer::Record::State::Settled;
    --transfer.late;
    release(transfer, record, false);
  } else if (!done) {
    fail(transfer, index, TierStatus::Unavailable, Damage::None);
  }
  finish_if_over(transfer);
  return state == Transfer::Record::State::Landing || (state == Transfer::Record::State::Waiting && !done);
}

}  // namespace hkv
