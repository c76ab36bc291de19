// SPDX-License-Identifier: Apache-2.0
#include "tier/memory_tier.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <thread>

#include "base/check.h"

namespace hkv {

struct MemoryTier::Engine {
  mutable std::mutex mutex;  // of forest and usage
  RecordForest forest;
  TierUsage usage;

  std::mutex queue_mutex;  // of what follows; never taken with the other
  std::condition_variable wake;
  std::deque<Operation*> queue;
  bool ending = false;
  std::thread thread;
};

MemoryTier::MemoryTier(const MemoryOptions& options)
    : Tier(options.limits), options_(options), engine_(std::make_unique<Engine>()) {
  if (options.capacity_bytes == 0) throw Error(ErrorCode::ArgumentError, "capacity_bytes", "at least 1", "0");
  if (options.depth == 0) throw Error(ErrorCode::ArgumentError, "depth", "at least 1", "0");
  if (!options.threaded) return;
  engine_->thread = std::thread([this] {
    Engine& engine = *engine_;
    std::unique_lock lock(engine.queue_mutex);
    for (;;) {
      engine.wake.wait(lock, [&] { return engine.ending || !engine.queue.empty(); });
      if (engine.queue.empty()) return;
      Operation* const operation = engine.queue.front();
      engine.queue.pop_front();
      lock.unlock();
      perform(operation);
      lock.lock();
    }
  });
}

MemoryTier::~MemoryTier() { close(); }

TierCaps MemoryTier::caps() const {
  TierCaps caps;
  caps.index = true;
  caps.depth = options_.depth;
  caps.most_bytes = options_.capacity_bytes;
  return caps;
}

Presence MemoryTier::look(const RecordKey& key) const {
  const std::lock_guard lock(engine_->mutex);
  const RecordForest& forest = engine_->forest;
  if (const RecordForest::Node* node = forest.find(key)) {
    return {Presence::Answer::Here, node->record->envelope.flags};
  }
  return {forest.has_other_format(key) ? Presence::Answer::OtherFormat : Presence::Answer::Absent, 0};
}

void MemoryTier::touch(const RecordKey& key) {
  const std::lock_guard lock(engine_->mutex);
  if (RecordForest::Node* node = engine_->forest.find(key)) engine_->forest.touch(node);
}

std::uint64_t MemoryTier::losses() const {
  const std::lock_guard lock(engine_->mutex);
  return engine_->forest.losses();
}

void MemoryTier::begin(Operation* operation) {
  if (!options_.threaded) return perform(operation);
  const std::lock_guard lock(engine_->queue_mutex);
  engine_->queue.push_back(operation);
  engine_->wake.notify_one();
}

void MemoryTier::end() {
  if (!engine_->thread.joinable()) return;
  {
    const std::lock_guard lock(engine_->queue_mutex);
    engine_->ending = true;
    engine_->wake.notify_one();
  }
  engine_->thread.join();
}

TierUsage MemoryTier::engine_usage() const {
  const std::lock_guard lock(engine_->mutex);
  TierUsage usage = engine_->usage;
  usage.records = engine_->forest.records();
  usage.bytes = engine_->forest.bytes();
  usage.capacity_bytes = options_.capacity_bytes;
  return usage;
}

void MemoryTier::drop(const Operation& operation) { remove(operation.key); }

void MemoryTier::perform(Operation* operation) {
  TierStatus status;
  try {
    status = answer(*operation);
  } catch (const std::bad_alloc&) {
    status = TierStatus::NoSpace;
  }
  finish(operation, status);
}

TierStatus MemoryTier::answer(Operation& operation) {
  switch (operation.kind) {
    case Operation::Kind::Get: return get(operation);
    case Operation::Kind::Put: return put(operation);
    case Operation::Kind::Remove: return remove(operation.key);
    case Operation::Kind::Probe:
      return look(operation.key).answer == Presence::Answer::Here ? TierStatus::Ok : TierStatus::Miss;
    case Operation::Kind::Flush: return TierStatus::Ok;  // what was put is where it will be
  }
  return TierStatus::Invalid;
}

TierStatus MemoryTier::get(Operation& operation) {
  std::shared_ptr<const MemoryRecord> record;
  {
    const std::lock_guard lock(engine_->mutex);
    RecordForest::Node* const node = engine_->forest.find(operation.key);
    if (node == nullptr) return TierStatus::Miss;
    engine_->forest.touch(node);
    record = node->record;
  }
  bring(operation, *record);
  std::uint64_t bytes = operation.envelope.size();
  for (const Part& part : operation.parts) bytes += part.bytes;
  const std::lock_guard lock(engine_->mutex);
  engine_->usage.bytes_read += bytes;
  return TierStatus::Ok;
}

void MemoryTier::bring(Operation& operation, const MemoryRecord& record) {
  operation.envelope = record.envelope_bytes;
  for (const Part& part : operation.parts) {
    const PartEntry* const entry = find_part(record.envelope, part.label);
    if (entry == nullptr || entry->bytes != part.bytes) return;  // which the shared half tells
    std::memcpy(part.data, record.payload.data() + entry->offset, part.bytes);
  }
}

// What is known of a put before its bytes are: its record is there, or its parent is not. Requires: the mutex.
std::optional<TierStatus> MemoryTier::settled(const Operation& operation, RecordForest::Node*& parent) {
  RecordForest& forest = engine_->forest;
  if (RecordForest::Node* const node = forest.find(operation.key)) {
    forest.touch(node);
    ++engine_->usage.put_known;
    return TierStatus::Ok;
  }
  if (operation.parent == Key128{}) return std::nullopt;
  parent = forest.parent_of(operation.key, operation.parent);
  if (parent == nullptr) return TierStatus::Miss;
  return std::nullopt;
}

TierStatus MemoryTier::put(const Operation& operation) {
  RecordForest::Node* parent = nullptr;
  {
    const std::lock_guard lock(engine_->mutex);
    if (const auto status = settled(operation, parent)) return *status;
  }
  auto record = std::make_shared<MemoryRecord>();
  const std::size_t front = envelope_bytes(operation.parts.size());
  record->envelope = seal(operation, 0, static_cast<std::uint32_t>(front));
  record->envelope_bytes.resize(front);
  write_envelope(record->envelope, record->envelope_bytes);
  record->payload.reserve(record->envelope.payload_bytes);
  for (const Part& part : operation.parts) {
    const auto* const data = static_cast<const std::byte*>(part.data);
    record->payload.insert(record->payload.end(), data, data + part.bytes);
  }
  const std::lock_guard lock(engine_->mutex);
  if (const auto status = settled(operation, parent)) return *status;  // while the bytes were copied
  return file(operation, std::move(record), parent);
}

TierStatus MemoryTier::file(const Operation& operation, std::shared_ptr<const MemoryRecord> record,
                            RecordForest::Node* parent) {
  const std::uint64_t bytes = record->bytes();
  RecordForest& forest = engine_->forest;
  const auto evicted = forest.make_room(bytes, options_.capacity_bytes, parent);
  if (!evicted) return TierStatus::NoSpace;
  forest.add(operation.key, std::move(record), parent, operation.pinned);
  engine_->usage.reclaimed += *evicted;
  engine_->usage.bytes_written += bytes;
  return TierStatus::Ok;
}

TierStatus MemoryTier::remove(const RecordKey& key) {
  const std::lock_guard lock(engine_->mutex);
  RecordForest::Node* const node = engine_->forest.find(key);
  if (node == nullptr) return TierStatus::Miss;
  engine_->forest.drop(node);
  return TierStatus::Ok;
}

}  // namespace hkv
