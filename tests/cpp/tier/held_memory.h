// SPDX-License-Identifier: Apache-2.0
// A memory tier that can be stopped before an operation begins, and whose records can be damaged.
//
// Thread safety: as Tier; `corrupt` while nothing is asked.
#pragma once
#include <mutex>
#include <vector>

#include "tier/memory_tier.h"

namespace hkv::contract {

class HeldMemory : public MemoryTier {
 public:
  using MemoryTier::MemoryTier;
  ~HeldMemory() override { close(); }

  void freeze() {
    const std::lock_guard lock(mutex_);
    frozen_ = true;
  }
  void thaw() {
    const std::lock_guard thawing(thaw_mutex_);  // the end waits for a thaw that is under way
    std::vector<Operation*> held;
    {
      const std::lock_guard lock(mutex_);
      frozen_ = false;
      held.swap(held_);
    }
    for (Operation* operation : held) MemoryTier::begin(operation);
  }
  void corrupt(const RecordKey& key) { corrupt_ = key; }

 protected:
  void begin(Operation* operation) override {
    {
      const std::lock_guard lock(mutex_);
      if (frozen_) {
        held_.push_back(operation);
        return;
      }
    }
    MemoryTier::begin(operation);
  }
  void end() override {
    thaw();
    MemoryTier::end();
  }
  void bring(Operation& operation, const MemoryRecord& record) override {
    if (record.envelope.key == corrupt_) {
      const_cast<MemoryRecord&>(record).payload[5] ^= std::byte{16};  // as memory that decays would
      corrupt_ = {};
    }
    MemoryTier::bring(operation, record);
  }

 private:
  std::mutex mutex_, thaw_mutex_;
  std::vector<Operation*> held_;
  bool frozen_ = false;
  RecordKey corrupt_;
};

}  // namespace hkv::contract
