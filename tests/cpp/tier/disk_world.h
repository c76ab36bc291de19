// SPDX-License-Identifier: Apache-2.0
// A disk store over a simulated disk, driven step by step on one thread, and a model of what it must still have.
//
// Thread safety: a value of one thread.
#pragma once
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "tier/disk_store.h"
#include "tier/recovery.h"
#include "tier/simulated_io.h"

namespace hkv {

inline constexpr std::uint64_t world_region_bytes = 16 * disk_unit;

inline DiskOptions world_options(std::uint64_t regions = 5) {
  DiskOptions options;
  options.path = "simulated";
  options.region_bytes = world_region_bytes;
  options.capacity_bytes = regions * world_region_bytes;
  options.depth = 8;
  return options;
}

// Key number `n`: its bytes follow from it. Numbers from 100 on are boundaries.
inline RecordKey world_key(int n, std::uint64_t format = 7) {
  const auto kind = n >= 100 ? RecordKind::Boundary : RecordKind::Block;
  return {{static_cast<std::uint64_t>(n % 100) + 1, 0xABCD}, {format, 1}, kind};
}
inline Key128 world_digest(int n) { return n < 0 ? Key128{} : world_key(n).digest; }

// Two parts, `bytes` in all, whose content names key and life.
struct WorldBytes {
  WorldBytes(int key, std::size_t bytes, bool filled) : data(bytes) {
    for (std::size_t i = 0; filled && i < bytes; ++i) {
      data[i] = static_cast<std::byte>((i * 131 + i / 251 + static_cast<std::size_t>(key) * 29) & 0xFF);
    }
    const std::size_t first = bytes / 3 + 1;
    parts = {{data.data(), first, {1, 0, static_cast<std::uint32_t>(key), 0}},
             {data.data() + first, bytes - first, {2, 1, static_cast<std::uint32_t>(key), 3}}};
  }
  std::vector<std::byte> data;
  std::vector<Part> parts;
};

class DiskWorld : public DiskStore::Owner {
 public:
  struct Asked {
    std::unique_ptr<TierOperation> operation;
    std::unique_ptr<WorldBytes> bytes;
    std::optional<TierStatus> status;
    Damage damage = Damage::None;
    bool is(TierStatus s) const { return status == s; }
  };
  using Ask = std::shared_ptr<Asked>;

  DiskWorld(SimulatedDisk disk, const DiskOptions& given = world_options(), std::size_t depth = 8)
      : options(given), io(std::move(disk), depth) {}
  // As a process that begins: the first, or, of the same Io, one after the other. Throws as recovery.
  void open() {
    store.reset();
    index = std::make_unique<DiskIndex>();
    recovered = {};
    DiskContent content = recover(io, options, *index, recovered);
    store = std::make_unique<DiskStore>(options, io, *index, std::move(content), *this);
  }

  static std::size_t bytes_of(int key) { return 5000 + static_cast<std::size_t>(key % 7) * 700; }

  Ask put(int key, int parent = -1, bool durable = false, bool pinned = false, std::uint64_t format = 7,
          std::size_t bytes = 0) {
    Ask ask = make(TierOperation::Kind::Put, key, format);
    ask->bytes = std::make_unique<WorldBytes>(key, bytes != 0 ? bytes : bytes_of(key), true);
    ask->operation->parts = ask->bytes->parts;
    ask->operation->parent = world_digest(parent);
    ask->operation->durable = durable;
    ask->operation->pinned = pinned;
    return begin(ask);
  }
  Ask get(int key, std::uint64_t format = 7, std::size_t bytes = 0) {
    Ask ask = make(TierOperation::Kind::Get, key, format);
    ask->bytes = std::make_unique<WorldBytes>(key, bytes != 0 ? bytes : bytes_of(key), false);
    ask->operation->parts = ask->bytes->parts;
    return begin(ask);
  }
  // Into memory of the caller's.
  Ask get_parts(int key, std::vector<Part> parts) {
    Ask ask = make(TierOperation::Kind::Get, key, 7);
    ask->operation->parts = std::move(parts);
    return begin(ask);
  }
  Ask put_parts(int key, std::vector<Part> parts) {
    Ask ask = make(TierOperation::Kind::Put, key, 7);
    ask->operation->parts = std::move(parts);
    return begin(ask);
  }
  Ask remove(int key) { return begin(make(TierOperation::Kind::Remove, key, 7)); }
  Ask flush() { return begin(make(TierOperation::Kind::Flush, 0, 7)); }

  // One round: what the disk has done, and what follows from it. Returns: whether anything was done.
  bool step() {
    IoRequest* done[16];
    const std::size_t count = io.wait(done, std::chrono::nanoseconds(0));
    for (std::size_t i = 0; i < count; ++i) store->complete(done[i]);
    store->pump();
    return count != 0;
  }
  // Goes on until nothing is under way, or what is does not move.
  void settle() {
    store->pump();
    while (!store->idle() && step()) {
    }
  }
  TierStatus wait(const Ask& ask) {
    store->pump();
    while (!ask->status && step()) {
    }
    return ask->status.value_or(TierStatus::Busy);
  }
  bool close() {
    store->begin_close();
    store->pump();
    while (!store->closed() && step()) {
    }
    return store->closed();
  }
  bool here(int key, std::uint64_t format = 7) const {
    return index->look(world_key(key, format)).answer == Presence::Answer::Here;
  }

  // What the tier's shared half does with an answer.
  void finished(TierOperation* operation, TierStatus status, Damage damage) override {
    const auto at = asked_.find(operation);
    HKV_CHECK(at != asked_.end());
    const Ask ask = at->second;
    if (status == TierStatus::Ok && operation->kind == TierOperation::Kind::Get) {
      Envelope envelope;
      damage = read_envelope(operation->envelope, envelope);
      status = TierStatus::Corrupt;
      if (damage == Damage::None) {
        damage = match_envelope(envelope, operation->key, operation->parts);
        if (damage != Damage::None) status = TierStatus::Mismatch;
        if (damage == Damage::None) damage = check_parts(envelope, operation->parts);
      }
      if (damage == Damage::None) status = TierStatus::Ok;
      if (damage != Damage::None && damage != Damage::Parts) store->drop(*operation);
    }
    HKV_CHECK(!ask->status);
    ask->status = status;
    ask->damage = damage;
    asked_.erase(at);
  }

  DiskOptions options;
  SimulatedIo io;
  std::unique_ptr<DiskIndex> index;
  Recovered recovered;
  std::unique_ptr<DiskStore> store;
  Deadline now = Deadline(std::chrono::seconds(1000));

 private:
  static Ask make(TierOperation::Kind kind, int key, std::uint64_t format) {
    Ask ask = std::make_shared<Asked>();
    ask->operation = std::make_unique<TierOperation>();
    ask->operation->kind = kind;
    ask->operation->key = world_key(key, format);
    ask->operation->priority = kind == TierOperation::Kind::Get ? Priority::Demand : Priority::Write;
    return ask;
  }
  Ask begin(const Ask& ask) {
    asked_.emplace(ask->operation.get(), ask);
    store->begin(ask->operation.get(), now);
    return ask;
  }
  std::map<TierOperation*, Ask> asked_;
};

// Whether a get gave what was put.
inline bool right_bytes(int key, const DiskWorld::Ask& get) {
  return get->bytes->data == WorldBytes(key, get->bytes->data.size(), true).data;
}

}  // namespace hkv
