// SPDX-License-Identifier: Apache-2.0
#include "tier/tier.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/crc32c.h"
#include "tier/tier_core.h"

namespace hkv {
namespace {

bool labels_differ(std::span<const Part> parts) {
  const auto label = [](const Part& part) {
    return std::tie(part.label.group, part.label.layer, part.label.block, part.label.rows);
  };
  const auto not_before = [&](const Part& a, const Part& b) { return label(a) >= label(b); };
  if (std::adjacent_find(parts.begin(), parts.end(), not_before) == parts.end()) return true;
  std::vector<Part> sorted(parts.begin(), parts.end());
  std::sort(sorted.begin(), sorted.end(), [&](const Part& a, const Part& b) { return label(a) < label(b); });
  return std::adjacent_find(sorted.begin(), sorted.end(), not_before) == sorted.end();
}

bool names_a_record(const RecordKey& key) {
  return (key.kind == RecordKind::Block || key.kind == RecordKind::Boundary) && key.digest != Key128{};
}

bool is_sound(std::span<const Part> parts, std::size_t most_bytes) {
  if (parts.size() > most_parts || envelope_bytes(parts.size()) > most_bytes) return false;
  std::size_t left = most_bytes - envelope_bytes(parts.size());
  for (const Part& part : parts) {
    if (part.data == nullptr || part.bytes == 0 || part.bytes > left) return false;
    left -= part.bytes;
  }
  return labels_differ(parts);
}

// What a get that claims to be Ok is, from the envelope and the bytes that the engine brought.
std::pair<TierStatus, Damage> proved(std::span<const std::byte> bytes, const RecordKey& key,
                                     std::span<const Part> parts) {
  Envelope envelope;
  if (const Damage damage = read_envelope(bytes, envelope); damage != Damage::None) {
    return {TierStatus::Corrupt, damage};
  }
  if (const Damage damage = match_envelope(envelope, key, parts); damage != Damage::None) {
    return {TierStatus::Mismatch, damage};
  }
  if (const Damage damage = check_parts(envelope, parts); damage != Damage::None) {
    return {TierStatus::Corrupt, damage};
  }
  return {TierStatus::Ok, Damage::None};
}

void check_limits(const TierLimits& limits) {
  const auto require = [](bool met, const char* field, const char* expected, long long got) {
    if (!met) throw Error(ErrorCode::ArgumentError, field, expected, std::to_string(got));
  };
  require(limits.most_items != 0, "most_items", "at least 1", 0);
  require(limits.breaker_first.count() > 0, "breaker_first", "more than 0 ns", limits.breaker_first.count());
  require(limits.breaker_most >= limits.breaker_first, "breaker_most", "at least breaker_first",
          limits.breaker_most.count());
}

}  // namespace

const char* name_of(TierStatus status) {
  switch (status) {
    case TierStatus::Ok: return "Ok";
    case TierStatus::Miss: return "Miss";
    case TierStatus::Busy: return "Busy";
    case TierStatus::NoSpace: return "NoSpace";
    case TierStatus::Corrupt: return "Corrupt";
    case TierStatus::Mismatch: return "Mismatch";
    case TierStatus::Timeout: return "Timeout";
    case TierStatus::Unavailable: return "Unavailable";
    case TierStatus::IoError: return "IoError";
    case TierStatus::Invalid: return "Invalid";
    case TierStatus::Cancelled: return "Cancelled";
    case TierStatus::Closed: return "Closed";
    case TierStatus::ReadOnly: return "ReadOnly";
    case TierStatus::Declined: return "Declined";
  }
  return "?";
}

Tier::Tier(const TierLimits& limits) {
  check_limits(limits);
  core_ = std::make_unique<Core>(limits);
}

Tier::~Tier() {
  HKV_CHECK(core_->alive() == 0 &&
            core_->life != Core::Life::Ending);  // its engine could still finish something
}

// ---- asks ---------------------------------------------------------------------------------------

TierStatus Tier::get(std::span<const GetItem> items, Deadline deadline, Priority priority, BatchId& batch) {
  const std::size_t most_bytes = caps().most_bytes;
  Operations operations;
  operations.reserve(items.size());
  for (const GetItem& item : items) {
    auto operation = std::make_unique<Operation>();
    operation->kind = Operation::Kind::Get;
    operation->priority = priority;
    operation->key = item.key;
    operation->parts.assign(item.parts.begin(), item.parts.end());
    operation->envelope_to = item.envelope;
    operation->deadline = deadline;
    operation->refused = !names_a_record(item.key) || !is_sound(item.parts, most_bytes);
    operations.push_back(std::move(operation));
  }
  return submit(std::move(operations), batch);
}

TierStatus Tier::put(std::span<const PutItem> items, Deadline deadline, BatchId& batch) {
  const TierCaps able = caps();
  Operations operations;
  operations.reserve(items.size());
  for (const PutItem& item : items) {
    auto operation = std::make_unique<Operation>();
    operation->kind = Operation::Kind::Put;
    operation->priority = Priority::Write;
    operation->key = item.key;
    operation->parent = item.parent;
    operation->identity = item.identity;
    operation->tokens = item.tokens;
    operation->flags = item.flags;
    operation->pinned = item.pinned;
    operation->durable = item.durable;
    operation->parts.assign(item.parts.begin(), item.parts.end());
    operation->deadline = deadline;
    const bool own_parent = item.key.kind == RecordKind::Block && item.parent == item.key.digest;
    const bool too_much = item.durable && !able.durable;
    operation->refused =
        !names_a_record(item.key) || own_parent || too_much || !is_sound(item.parts, able.most_bytes);
    operations.push_back(std::move(operation));
  }
  return submit(std::move(operations), batch);
}

TierStatus Tier::remove(std::span<const RecordKey> keys, Deadline deadline, BatchId& batch) {
  return submit_keys(Operation::Kind::Remove, Priority::Write, keys, deadline, batch);
}

TierStatus Tier::probe(std::span<const RecordKey> keys, Deadline deadline, BatchId& batch) {
  return submit_keys(Operation::Kind::Probe, Priority::Demand, keys, deadline, batch);
}

TierStatus Tier::flush(Deadline deadline, BatchId& batch) {
  Operations operations(1);
  operations[0] = std::make_unique<Operation>();
  operations[0]->kind = Operation::Kind::Flush;
  operations[0]->priority = Priority::Write;  // behind the writes that it is for
  operations[0]->deadline = deadline;
  return submit(std::move(operations), batch);
}

TierStatus Tier::submit_keys(Operation::Kind kind, Priority priority, std::span<const RecordKey> keys,
                             Deadline deadline, BatchId& batch) {
  Operations operations;
  operations.reserve(keys.size());
  for (const RecordKey& key : keys) {
    auto operation = std::make_unique<Operation>();
    operation->kind = kind;
    operation->priority = priority;
    operation->key = key;
    operation->deadline = deadline;
    operation->refused = !names_a_record(key);
    operations.push_back(std::move(operation));
  }
  return submit(std::move(operations), batch);
}

TierStatus Tier::submit(Operations operations, BatchId& batch) {
  const std::size_t places = depth();
  std::unique_lock lock(core_->mutex);
  if (core_->life != Core::Life::Open) return TierStatus::Closed;
  if (operations.size() > core_->limits.most_items) return TierStatus::Invalid;
  if (!core_->has_room(operations.size())) return TierStatus::Busy;
  core_->reserve(operations.size());
  batch = BatchId{++core_->batches};
  const Deadline now = TierClock::now();
  for (std::size_t i = 0; i < operations.size(); ++i) {
    operations[i]->batch = batch;
    operations[i]->item = static_cast<std::uint32_t>(i);
    core_->enter(std::move(operations[i]), now);
  }
  core_->expire(now);
  core_->signal();
  dispatch(lock, places);
  return TierStatus::Ok;
}

void Tier::cancel(BatchId batch) {
  {
    const std::lock_guard lock(core_->mutex);
    core_->answer_queued(TierStatus::Cancelled, [&](const Operation& each) { return each.batch == batch; });
    core_->signal();
  }
  cancel_begun(batch);
}

void Tier::hasten(BatchId batch) {
  const std::size_t places = depth();
  std::unique_lock lock(core_->mutex);
  core_->ready.each([&](Operation* each) {
    if (each->batch != batch || each->kind != Operation::Kind::Get || each->priority == Priority::Demand)
      return;
    core_->ready.remove(each);
    each->priority = Priority::Demand;
    core_->ready.push(each);
  });
  dispatch(lock, places);
}

Presence Tier::look(const RecordKey&) const { return {Presence::Answer::Unknown, 0}; }

void Tier::touch(const RecordKey&) {}

void Tier::drop(const Operation&) {}

void Tier::cancel_begun(BatchId) {}

// ---- answers ------------------------------------------------------------------------------------

std::size_t Tier::poll(std::span<Done> out) {
  const std::lock_guard lock(core_->mutex);
  const Deadline now = TierClock::now();
  core_->expire(now);
  const std::size_t count = core_->reports.take(out);
  core_->rearm(now);
  core_->signal();
  return count;
}

int Tier::event_fd() const { return core_->wake.fd(); }

bool Tier::wait(std::chrono::nanoseconds at_most) const {
  const Deadline begun = TierClock::now();
  for (std::chrono::nanoseconds waited{0};; waited = TierClock::now() - begun) {
    WakeFds::wait(core_->wake.fd(), at_most - waited);
    const std::lock_guard lock(core_->mutex);
    const Deadline now = TierClock::now();
    core_->expire(now);
    core_->rearm(now);
    core_->signal();
    if (!core_->reports.empty()) return true;
    if (now - begun >= at_most) return false;
  }
}

bool Tier::drain(Deadline deadline) {
  std::unique_lock lock(core_->mutex);
  for (;;) {
    const Deadline now = TierClock::now();
    core_->expire(now);
    core_->signal();
    if (core_->idle()) return true;
    if (now >= deadline) return false;
    const Operation* const earliest = core_->deadlines.earliest();
    core_->changed.wait_until(lock, earliest == nullptr ? deadline : std::min(deadline, earliest->deadline));
  }
}

void Tier::close() {
  std::unique_lock lock(core_->mutex);
  refuse();
  end_once(lock);
}

bool Tier::close_by(Deadline deadline) {
  std::unique_lock lock(core_->mutex);
  refuse();
  while (core_->life == Core::Life::Refusing && core_->running != 0) {
    if (TierClock::now() >= deadline) return false;
    core_->changed.wait_until(lock, deadline);
  }
  end_once(lock);
  return true;
}

void Tier::refuse() {
  if (core_->life != Core::Life::Open) return;
  core_->life = Core::Life::Refusing;
  core_->answer_queued(TierStatus::Cancelled, [](const Operation&) { return true; });
  core_->signal();
}

// One caller ends the engine, the others wait for it.
void Tier::end_once(std::unique_lock<std::mutex>& lock) {
  if (core_->life == Core::Life::Refusing) {
    core_->life = Core::Life::Ending;
    core_->signal();
    core_->changed.wait(lock, [&] { return !core_->dispatching; });  // else something could still begin
    lock.unlock();
    {
      const std::lock_guard arenas(core_->arena_mutex);
    }  // an arena that the engine is at; later ones see the end
    end();
    lock.lock();
    HKV_CHECK(core_->alive() == 0);
    core_->changed.wait(lock, [&] { return !core_->dispatching; });
    core_->life = Core::Life::Closed;
    core_->signal();
  }
  core_->changed.wait(lock, [&] { return core_->life == Core::Life::Closed; });
}

TierUsage Tier::usage() const {
  TierUsage usage = engine_usage();
  const std::lock_guard lock(core_->mutex);
  const TierUsage& counted = core_->counted;
  usage.queued = core_->ready.size();
  usage.running = core_->running - core_->late.size();
  usage.quarantined = core_->late.size();
  usage.arenas = core_->arenas.size();
  usage.hits += counted.hits;
  usage.misses += counted.misses;
  usage.corrupt += counted.corrupt;
  usage.mismatched += counted.mismatched;
  usage.timeouts += counted.timeouts;
  usage.puts += counted.puts;
  usage.removed += counted.removed;
  usage.refused += counted.refused;
  usage.io_errors += counted.io_errors;
  usage.breaker_opened += counted.breaker_opened;
  usage.breaker_open = core_->breaker.open();
  return usage;
}

// ---- the engine ---------------------------------------------------------------------------------

std::size_t Tier::depth() const { return std::max<std::size_t>(1, caps().depth); }

// One thread at a time, so that operations begin in order, and so that an engine which finishes inside begin does not
// call itself deeper and deeper: the loop that called begin goes on.
void Tier::dispatch(std::unique_lock<std::mutex>& lock, std::size_t depth) noexcept {
  if (core_->dispatching) return;
  core_->dispatching = true;
  while (Operation* const operation = core_->next(depth)) {
    lock.unlock();
    begin(operation);
    lock.lock();
  }
  core_->dispatching = false;
  core_->changed.notify_all();  // close waits for this
}

void Tier::finish(Operation* operation, TierStatus status, Damage damage) {
  if (operation->kind == Operation::Kind::Get && status == TierStatus::Ok) {
    std::tie(status, damage) = proved(operation->envelope, operation->key, operation->parts);
    if (damage != Damage::None && damage != Damage::Parts) drop(*operation);
    if (status == TierStatus::Ok && operation->envelope_to != nullptr) {
      operation->envelope_to->swap(operation->envelope);
    }
  }
  const std::size_t places = depth();
  std::unique_ptr<Operation> done;  // freed behind the lock
  std::unique_lock lock(core_->mutex);
  done = core_->settle(operation, status, damage);
  core_->signal();
  dispatch(lock, places);
}

Envelope Tier::seal(const Operation& operation, std::uint64_t epoch, std::uint32_t payload_offset) {
  Envelope envelope;
  envelope.key = operation.key;
  envelope.parent = operation.parent;
  envelope.identity = operation.identity;
  envelope.epoch = epoch;
  envelope.tokens = operation.tokens;
  envelope.payload_offset = payload_offset;
  envelope.flags = operation.flags;
  envelope.parts.reserve(operation.parts.size());
  for (const Part& part : operation.parts) {
    envelope.parts.push_back(
        {part.label, crc32c(0, part.data, part.bytes), envelope.payload_bytes, part.bytes});
    envelope.payload_bytes += part.bytes;
  }
  return envelope;
}

}  // namespace hkv
