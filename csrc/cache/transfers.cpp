// SPDX-License-Identifier: Apache-2.0
// What offload and restore share: sending records, and settling what the tier reports.
#include "cache/transfers.h"

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>
#include <utility>

namespace hkv {
namespace {

constexpr std::size_t most_records_in_flight = 256;

}  // namespace

Transfers::~Transfers() {
  {
    const std::lock_guard guard(lock_);
    for (const auto& transfer : live_) {
      transfer->cancelled = true;
      for (const BatchId batch : transfer->batches) cache_.link_.tier->cancel(batch);
      drop_waiting(*transfer, TierStatus::Cancelled);
      finish_if_over(*transfer);
    }
  }
  // The tier still writes into pages, or reads them, until it says otherwise.
  while (live() != 0) {
    if (poll() == 0) wait(std::chrono::milliseconds(50));
  }
}

std::int64_t Transfers::live() const {
  const std::lock_guard guard(lock_);
  return std::count_if(live_.begin(), live_.end(), [](const auto& each) { return !each->finished; });
}

std::int64_t Transfers::poll() {
  const std::lock_guard guard(lock_);
  return poll_locked();
}

std::int64_t Transfers::poll_locked() {
  std::array<Done, 64> reports;
  std::int64_t settled = 0;
  for (;;) {
    const std::size_t n = cache_.link_.tier->poll(reports);
    for (std::size_t i = 0; i < n; ++i) {
      settled += take(reports[i]) ? 1 : 0;
    }
    if (n < reports.size()) break;
  }
  settled += end_copies();
  for (const auto& transfer : live_) {
    send(transfer);
    finish_if_over(*transfer);
  }
  std::erase_if(live_, [](const auto& transfer) { return transfer->finished; });
  copies_.check_some(copies_a_poll);
  return settled;
}

void Transfers::change_identity(Key128 identity) {
  const std::lock_guard guard(lock_);
  cache_.link_.identity = identity;
}

void Transfers::begin(const std::shared_ptr<Transfer>& transfer) {
  if (transfer->keys != nullptr) transfer->identity = transfer->keys->identity();
  if (transfer->identity == Key128{}) transfer->identity = cache_.link_.identity;
  for (const Transfer::Record& record : transfer->records) transfer->bytes_total += record.bytes;
  finish_if_over(*transfer);
  if (transfer->finished) return;
  live_.push_back(transfer);
  send(transfer);
}

std::shared_ptr<Transfer> Transfers::flush(const TransferOptions& options) {
  auto transfer = std::make_shared<Transfer>();
  transfer->kind = TransferKind::Flush;
  transfer->options = options;
  transfer->records.emplace_back();
  transfer->records.back().is_sync = true;
  const std::lock_guard guard(lock_);
  for (const auto& each : live_) {
    if (each->kind == TransferKind::Offload) transfer->awaited.push_back(each);
  }
  begin(transfer);
  return transfer;
}

// ---- sending -----------------------------------------------------------------------------------

// Sends records in order, as many as may be in the tier at a time. A full queue is tried again by the next poll.
void Transfers::send(const std::shared_ptr<Transfer>& transfer) {
  std::vector<std::size_t> chosen;
  if (transfer->options.gated) return;
  stage(transfer);
  while (!transfer->finished && choose(*transfer, chosen) != 0) {
    BatchId batch{};
    const TierStatus taken = submit(*transfer, chosen, batch);
    if (taken == TierStatus::Busy) return;
    if (taken != TierStatus::Ok) {
      if (taken == TierStatus::Closed) cache_.tier_closed_.store(1);
      fail(*transfer, chosen.front(), taken, Damage::None);
      drop_waiting(*transfer, taken);
      finish_if_over(*transfer);
      return;
    }
    transfer->awaited.clear();
    const bool storing = transfer->kind == TransferKind::Offload;
    for (const std::size_t i : chosen) {
      Transfer::Record& record = transfer->records[i];
      record.state = Transfer::Record::State::Sent;
      transfer->bytes_in_flight += record.bytes;
      count_pages(storing ? kOffloads : kRestores, Moved::Attempts, record);
    }
    transfer->sent += chosen.size();
    transfer->batches.push_back(batch);
    sent_.emplace(static_cast<std::uint64_t>(batch), Sent{transfer, chosen});
    stage(transfer);
  }
}

std::size_t Transfers::choose(const Transfer& transfer, std::vector<std::size_t>& chosen) const {
  chosen.clear();
  const auto settled = [](const auto& each) { return each->settled == each->records.size(); };
  if (!std::all_of(transfer.awaited.begin(), transfer.awaited.end(), settled)) return 0;
  std::int64_t bytes = transfer.bytes_in_flight;
  const std::size_t in_flight = transfer.sent - transfer.settled;
  for (std::size_t i = transfer.sent; i < transfer.records.size(); ++i) {
    if (!placed(transfer.records[i])) break;
    const std::int64_t next = transfer.records[i].bytes;
    if (transfer.records[i].is_sync) {  // alone, once all before it have their status
      if (chosen.empty() && transfer.settled == i) chosen.push_back(i);
      break;
    }
    const bool first = bytes == 0;
    if (in_flight + chosen.size() >= most_records_in_flight ||
        (!first && bytes + next > most_bytes_in_flight))
      break;
    bytes += next;
    chosen.push_back(i);
  }
  return chosen.size();
}

TierStatus Transfers::submit(const Transfer& transfer, std::span<const std::size_t> chosen,
                             BatchId& batch) const {
  Tier& tier = *cache_.link_.tier;
  const Deadline deadline = TierClock::now() + transfer.options.timeout;
  if (transfer.records[chosen.front()].is_sync) return tier.flush(deadline, batch);
  if (transfer.kind == TransferKind::Restore) {
    std::vector<GetItem> items;
    for (const std::size_t i : chosen) items.push_back({transfer.records[i].key, transfer.records[i].parts});
    return tier.get(items, deadline, transfer.options.priority, batch);
  }
  std::vector<PutItem> items;
  for (const std::size_t i : chosen) {
    const Transfer::Record& record = transfer.records[i];
    PutItem item;
    item.key = record.key;
    item.parent = record.parent;
    item.identity = transfer.identity;
    item.tokens = static_cast<std::uint64_t>(record.tokens);
    item.parts = record.parts;
    item.flags = record.flags;
    item.pinned = transfer.options.pinned;
    item.durable = transfer.options.durable;
    items.push_back(item);
  }
  return tier.put(items, deadline, batch);
}

// ---- settling ----------------------------------------------------------------------------------

// Returns: whether it settled a record.
bool Transfers::take(const Done& done) {
  const auto found = sent_.find(static_cast<std::uint64_t>(done.batch));
  if (found == sent_.end()) return false;  // of somebody who used the tier before
  Transfer& transfer = *found->second.transfer;
  const std::size_t index = found->second.records[done.item];
  Transfer::Record& record = transfer.records[index];
  if (done.late) {
    record.state = Transfer::Record::State::Settled;
    --transfer.late;
    release(transfer, record, false);
  } else if (transfer.kind == TransferKind::Restore && done.status == TierStatus::Ok &&
             record.staged != nullptr) {
    land(found->second.transfer, index);
  } else {
    settle(transfer, index, done);
  }
  const bool settled = !done.late && record.state != Transfer::Record::State::Landing;
  const auto& records = found->second.records;
  const bool over = std::all_of(records.begin(), records.end(), [&](std::size_t i) {
    const Transfer::Record::State state = transfer.records[i].state;
    return state == Transfer::Record::State::Settled || state == Transfer::Record::State::Landing;
  });
  const std::shared_ptr<Transfer> kept = found->second.transfer;
  if (over) {
    std::erase(kept->batches, done.batch);
    sent_.erase(found);
  }
  finish_if_over(*kept);
  return settled;
}

void Transfers::settle(Transfer& transfer, std::size_t index, const Done& done) {
  Transfer::Record& record = transfer.records[index];
  const bool storing = transfer.kind == TransferKind::Offload;
  const bool ok = done.status == TierStatus::Ok;
  ++transfer.settled;
  transfer.bytes_in_flight -= record.bytes;
  record.state = Transfer::Record::State::Settled;
  const TierStatus cause = cause_of(transfer, done.status);
  note_written(transfer, record, cause);
  if (ok) {
    transfer.ok += transfer.kind == TransferKind::Flush || !record.is_sync ? 1 : 0;
    transfer.bytes_moved += record.bytes;
    const Count base = storing ? kOffloads : kRestores;
    count_pages(base, Moved::Successes, record);
    count_pages(base, Moved::Bytes, record);
    cache_.failed_loads_.forget(record.key.kind, record.key.digest);
  } else {
    fail(transfer, index, transfer.status == TierStatus::Ok ? cause : done.status, done.damage);
  }
  if (!done.released) {
    record.state = Transfer::Record::State::Late;
    ++transfer.late;
    if (!storing) make_private(transfer, record);
    if (record.staged != nullptr) staging_->note_stuck(*record.staged);
    return;
  }
  release(transfer, record, ok);
}

// What was taken back, and not by its caller, came to the status of the record because of which it was; or the tier is
// being closed. What is stored and stands on one that was not has no parent.
TierStatus Transfers::cause_of(const Transfer& transfer, TierStatus status) {
  const bool failed = transfer.status != TierStatus::Ok;
  if (status == TierStatus::Miss && failed && transfer.kind == TransferKind::Offload) return transfer.status;
  if (status != TierStatus::Cancelled || transfer.cancelled) return status;
  return failed && transfer.status != TierStatus::Declined ? transfer.status : TierStatus::Closed;
}

// What a flush will tell of.
void Transfers::note_written(Transfer& transfer, Transfer::Record& record, TierStatus status) {
  record.status = status;
  const bool heard =
      status != TierStatus::Timeout && status != TierStatus::Cancelled;  // else its caller gave up
  if (transfer.kind == TransferKind::Flush && heard) transfer.written = std::exchange(since_flush_, {});
  if (transfer.kind != TransferKind::Offload || record.is_sync) return;
  if (status != TierStatus::Ok) {
    ++since_flush_.failed[static_cast<std::size_t>(status)];
    return;
  }
  ++since_flush_.records;
  since_flush_.bytes += record.bytes;
}

// The tier has let go of the record's pages, and so has every copy; a lost device may write them still.
void Transfers::release(Transfer& transfer, Transfer::Record& record, bool ok) {
  if (transfer.kind == TransferKind::Flush) return;
  if (transfer.kind == TransferKind::Offload) {
    unpin(record, ok);
  } else if (ok) {
    publish(transfer, record);
  } else {
    const bool lost = record.staged != nullptr && record.staged->lost();
    for (const Transfer::Page& page : record.pages)
      cache_.give_back(*transfer.fill, page.group, transfer.fill->entries[page.group][page.entry], lost);
  }
  if (record.staged == nullptr) return;
  staging_->give_back(*record.staged);
  record.staged.reset();
}

// A block that cannot be had makes those above it useless: they are not asked for any more. Write admission says nothing
// of those: they are to be seen by it as well.
void Transfers::fail(Transfer& transfer, std::size_t index, TierStatus status, Damage damage) {
  const Transfer::Record& record = transfer.records[index];
  const bool storing = transfer.kind != TransferKind::Restore;
  cache_.counters_.add((storing ? kStoreFailures : kLoadFailures) + static_cast<int>(status), 1);
  // A tier that is slow or out of reach may have the record all the same; of one that answers so, it is lost.
  const bool lost = status == TierStatus::Miss || status == TierStatus::Corrupt ||
                    status == TierStatus::Mismatch || status == TierStatus::IoError;
  if (!storing && lost) cache_.failed_loads_.note(record.key.kind, record.key.digest);
  if (transfer.status != TierStatus::Ok) return;
  transfer.status = status;
  transfer.damage = damage;
  transfer.failed_record = static_cast<std::int64_t>(index);
  if (status == TierStatus::Declined) return;
  drop_waiting(transfer, status);
  for (const BatchId batch : transfer.batches) cache_.link_.tier->cancel(batch);
}

void Transfers::drop_waiting(Transfer& transfer, TierStatus because) {
  for (Transfer::Record& record : transfer.records) {
    if (record.state != Transfer::Record::State::Waiting) continue;
    record.state = Transfer::Record::State::Settled;
    note_written(transfer, record, because);
    ++transfer.sent;
    ++transfer.settled;
    if (record.copying) {
      record.state = Transfer::Record::State::Late;
      ++transfer.late;
      continue;
    }
    release(transfer, record, false);
  }
}

void Transfers::finish_if_over(Transfer& transfer) {
  if (transfer.finished || transfer.settled != transfer.records.size() || transfer.late != 0) return;
  if (transfer.fill != nullptr) cache_.abort(*transfer.fill, false);
  transfer.finished = !waits_for_others(transfer);
}

// Of a restore that left pages to others: whether one of them is still at it. Work: each page once, and one a call.
bool Transfers::waits_for_others(Transfer& transfer) const {
  for (; transfer.elsewhere_over < transfer.elsewhere.size(); ++transfer.elsewhere_over) {
    const auto [group, block] = transfer.elsewhere[transfer.elsewhere_over];
    const GroupSlot& at = cache_.store_.slot_of(group);
    std::int64_t tip_unit = -1;
    const Sighting seen =
        cache_.store_.table().find(cache_.key_of_block(*transfer.keys, group, block, tip_unit));
    const Phase phase = seen.found() ? seen.word(at.which).phase(at.slot) : Phase::Absent;
    if (usable(phase) || transfer.status != TierStatus::Ok || transfer.cancelled) continue;
    if (in_making(phase) && TierClock::now() < transfer.elsewhere_until) return true;
    transfer.status = TierStatus::Busy;
    transfer.missing = {group, block};
  }
  return false;
}

void Transfers::count_pages(Count base, Moved what, const Transfer::Record& record) {
  std::size_t part = 0;
  for (const auto& [group, block] : record.blocks) {
    const int kind = cache_.layout_.groups[group].kind;
    std::int64_t bytes = 0;
    for (; part < record.parts.size() && record.parts[part].label.group == group &&
           record.parts[part].label.block == block;
         ++part) {
      bytes += static_cast<std::int64_t>(record.parts[part].bytes);
    }
    cache_.counters_.add(by_moved_and_kind(base, what, kind), what == Moved::Bytes ? bytes : 1);
  }
}

void Transfers::cancel(Transfer& transfer) {
  const std::lock_guard guard(lock_);
  if (transfer.finished) return;
  transfer.cancelled = true;
  if (transfer.status == TierStatus::Ok) transfer.status = TierStatus::Cancelled;
  drop_waiting(transfer, TierStatus::Cancelled);
  for (const BatchId batch : transfer.batches) cache_.link_.tier->cancel(batch);
  finish_if_over(transfer);
  std::erase_if(live_, [](const auto& each) { return each->finished; });
}

TransferState Transfers::state_of(const Transfer& transfer) const {
  const std::lock_guard guard(lock_);
  TransferState state;
  state.finished = transfer.finished;
  state.cancelled = transfer.cancelled;
  state.tokens = transfer.tokens;
  const bool synced = transfer.kind == TransferKind::Offload && transfer.options.durable;
  state.records = std::ssize(transfer.records) - (synced ? 1 : 0);
  state.settled = std::min(static_cast<std::int64_t>(transfer.settled), state.records);
  state.ok = static_cast<std::int64_t>(transfer.ok);
  state.bytes_total = transfer.bytes_total;
  state.bytes_moved = transfer.bytes_moved;
  state.elsewhere = std::ssize(transfer.elsewhere);
  state.status = transfer.status;
  state.damage = transfer.damage;
  for (const Transfer::Boundary& each : transfer.boundaries) {
    if (each.lack != Transfer::Boundary::Lack::Nothing) state.left_out.push_back(each.tokens);
  }
  state.device_error = transfer.device_error;
  std::tie(state.failed_group, state.failed_block) = transfer.missing;
  if (transfer.failed_record >= 0) {
    const auto& blocks = transfer.records[static_cast<std::size_t>(transfer.failed_record)].blocks;
    if (!blocks.empty())
      std::tie(state.failed_group, state.failed_block) = blocks.front();  // a listing has none
  }
  return state;
}

TransferOutcome Transfers::outcome_of(const Transfer& transfer) const {
  const std::lock_guard guard(lock_);
  TransferOutcome outcome;
  outcome.written = transfer.written;
  outcome.blocks.resize(cache_.layout_.groups.size());
  std::int64_t history =
      std::numeric_limits<std::int64_t>::max();  // stored or published up to the first that is not
  for (const Transfer::Record& record : transfer.records) {
    if (record.status != TierStatus::Ok) {
      if (record.key.kind == RecordKind::Block) history = std::min(history, record.tokens - 1);
      continue;
    }
    for (const auto& [group, block] : record.blocks) ++outcome.blocks[static_cast<std::size_t>(group)];
  }
  const bool storing = transfer.kind == TransferKind::Offload;
  for (const Transfer::Boundary& each : transfer.boundaries) {
    using Lack = Transfer::Boundary::Lack;
    bool moved = storing ? history_below(each.tokens) <= history : transfer.status == TierStatus::Ok;
    for (std::size_t i = each.from; i < each.to; ++i) moved &= transfer.records[i].status == TierStatus::Ok;
    if (each.lack != Lack::Nothing) {
      outcome.missed.emplace_back(
          each.tokens, each.lack == Lack::States ? TransferOutcome::no_states : TransferOutcome::no_history);
    } else if (moved) {
      outcome.boundaries.push_back(each.tokens);
    } else {
      outcome.missed.emplace_back(each.tokens, static_cast<int>(transfer.status));
    }
  }
  return outcome;
}

}  // namespace hkv
