// SPDX-License-Identifier: Apache-2.0
// The memory tier: records in the memory of this process, bounded, the least recently used gone first; what stands
// between a device and a disk, and what the contract of tiers is tested on.
//
// Thread safety: as Tier. One mutex guards the records; bytes are copied and checksummed without it.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "tier/record_forest.h"
#include "tier/tier.h"

namespace hkv {

struct MemoryOptions {
  std::uint64_t capacity_bytes = 0;  // of envelopes and payloads
  // Records are copied by a thread of the tier's own, else by whoever asks, within the ask.
  bool threaded = false;
  std::size_t depth = 16;
  TierLimits limits;
};

// A put that needs room evicts leaves; where what is pinned leaves too little, it is NoSpace and nothing was evicted.
// `touch` and every get count as use. `look`, `touch` and `losses` hold the mutex for a look-up.
class MemoryTier : public Tier {
 public:
  // Throws Error(ArgumentError): no capacity, no depth.
  explicit MemoryTier(const MemoryOptions& options);
  ~MemoryTier() override;

  TierCaps caps() const override;
  Presence look(const RecordKey& key) const override;
  void touch(const RecordKey& key) override;
  std::uint64_t losses() const override;

 protected:
  void begin(Operation* operation) override;
  void end() override;
  TierUsage engine_usage() const override;
  void drop(const Operation& operation) override;
  // Effect: brings a record's envelope, and those parts that it has. (A test's derived class brings something else.)
  virtual void bring(Operation& operation, const MemoryRecord& record);

 private:
  struct Engine;

  void perform(Operation* operation);
  TierStatus answer(Operation& operation);
  TierStatus get(Operation& operation);
  TierStatus put(const Operation& operation);
  std::optional<TierStatus> settled(const Operation& operation, RecordForest::Node*& parent);
  TierStatus file(const Operation& operation, std::shared_ptr<const MemoryRecord> record,
                  RecordForest::Node* parent);
  TierStatus remove(const RecordKey& key);

  const MemoryOptions options_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace hkv
