// SPDX-License-Identifier: Apache-2.0
// An engine that does what a test says: it keeps what was begun until the test ends it, or answers within begin.
//
// Thread safety: `begun` and `end_one` on the test's thread; begin and finish on any.
#pragma once
#include <atomic>
#include <functional>
#include <mutex>
#include <vector>

#include "testing.h"
#include "tier/tier.h"

namespace hkv::contract {

class ScriptedTier : public Tier {
 public:
  using Op = Operation;
  // Called within begin; nullptr: the operation is kept.
  using Script = std::function<void(ScriptedTier&, Op*)>;

  explicit ScriptedTier(const TierLimits& limits = {}, std::size_t depth = 1) : Tier(limits), depth_(depth) {}
  ~ScriptedTier() override { close(); }

  TierCaps caps() const override {
    TierCaps caps;
    caps.depth = depth_;
    caps.most_bytes = 1u << 20;
    return caps;
  }
  void script(Script script) { script_ = std::move(script); }
  void answer(Op* operation, TierStatus status, Damage damage = Damage::None) {
    finish(operation, status, damage);
  }

  // Operations that are with the engine, oldest first.
  std::vector<Op*> begun() const {
    const std::lock_guard lock(mutex_);
    return begun_;
  }
  std::size_t total() const {
    const std::lock_guard lock(mutex_);
    return total_;
  }
  // Ends the oldest, or one of those behind it. A get that ends Ok has the envelope of what stands in its memory.
  void end_one(TierStatus status, std::size_t behind = 0) {
    Op* const operation = take(behind);
    if (status == TierStatus::Ok && operation->kind == Op::Kind::Get) bring(*operation);
    finish(operation, status);
  }
  // Says Ok of the oldest, with whatever the test made of it.
  void end_one_as_it_is() { finish(take(0), TierStatus::Ok); }
  // The envelope of what stands in the caller's memory already.
  static void bring(Op& operation) {
    const auto front = static_cast<std::uint32_t>(envelope_bytes(operation.parts.size()));
    operation.envelope.resize(front);
    write_envelope(seal(operation, 0, front), operation.envelope);
  }

  std::vector<RecordKey> dropped;  // by `drop`

 protected:
  void begin(Op* operation) override {
    EXPECT(!in_begin_.exchange(true));  // one at a time, and never within itself
    {
      const std::lock_guard lock(mutex_);
      ++total_;
      EXPECT(begun_.size() < depth_);
      if (!script_) begun_.push_back(operation);
    }
    if (script_) script_(*this, operation);
    in_begin_ = false;
  }
  void end() override {
    while (!begun().empty()) end_one(TierStatus::Cancelled);
  }
  void drop(const Operation& operation) override { dropped.push_back(operation.key); }

 private:
  Op* take(std::size_t behind) {
    const std::lock_guard lock(mutex_);
    const auto at = begun_.begin() + static_cast<std::ptrdiff_t>(behind);
    Op* const operation = *at;
    begun_.erase(at);
    return operation;
  }

  mutable std::mutex mutex_;
  const std::size_t depth_;
  std::vector<Op*> begun_;
  std::size_t total_ = 0;
  std::atomic<bool> in_begin_{false};
  Script script_;
};

}  // namespace hkv::contract
