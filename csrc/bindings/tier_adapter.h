// SPDX-License-Identifier: Apache-2.0
// A tier whose engine is a Python callable that blocks: it runs on threads of the tier's own, one operation each.
//
// The callable is engine(kind, (digest, format, kind of record), detail) -> (status, envelope, buffers):
//   "put": detail is (envelope, [read-only memoryview a part], pinned); nothing is asked back but the status.
//   "get": detail is the list of labels (group, layer, block, rows); envelope and one buffer a label come back.
//   "remove", "probe", "flush": detail is None.
// Whatever it raises, returns or keeps is the item's IoError and nothing else's.
//
// Thread safety: as Tier. Threads take the interpreter lock for the call and the copies alone. Invariants:
//  1. The engine never sees the memory of a get: bytes are copied out of what it returned, and only where the sizes are
//     those asked for. The views of a put's memory end with the call (lent_memory.h); where something of them is left
//     the put is IoError.
//  2. No thread enters the interpreter once `abandon` returned or the engine ended: `ask` counts itself in `entering_`
//     until it has the lock, and `abandon` waits for that count. What is inside then stays there; the tier, and the memory
//     of its items, must never be freed (the owner's part).
#pragma once
#include <pybind11/pybind11.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tier/known_records.h"
#include "tier/tier.h"

namespace hkv {

struct AdapterOptions {
  std::size_t threads = 1;
  std::size_t most_bytes = 0;
  bool durable = false;
  TierLimits limits;
};

class AdapterTier : public Tier {
 public:
  // Requires: the GIL. Throws Error(ArgumentError): no threads, no bytes.
  AdapterTier(pybind11::object engine, const AdapterOptions& options);
  // Requires: closed. (It does not close itself: it would wait for Python while its thread may hold the GIL.)
  ~AdapterTier() override = default;

  TierCaps caps() const override;
  // What was lately put, got or probed here; Progress: wait-free.
  Presence look(const RecordKey& key) const override { return known_->look(key); }
  std::uint64_t losses() const override { return known_->losses(); }
  // For a process that ends while the engine does not return. Requires: no GIL; the tier is leaked.
  void abandon();

 protected:
  void begin(Operation* operation) override;
  void end() override;
  TierUsage engine_usage() const override;
  void drop(const Operation& operation) override;

 private:
  struct Answer {
    TierStatus status = TierStatus::IoError;
    Damage damage = Damage::None;
  };

  void run();
  void note(const Operation& operation, TierStatus status);
  Answer ask(Operation& operation);
  Answer asked(Operation& operation);
  Answer take(Operation& operation, pybind11::handle envelope, pybind11::handle buffers);
  void count(std::uint64_t read, std::uint64_t written);

  const AdapterOptions options_;
  const std::unique_ptr<KnownRecords> known_ = std::make_unique<KnownRecords>();
  PyObject* engine_;  // a reference of ours, given back by `end`
  mutable std::mutex mutex_;
  std::condition_variable wake_, entered_;
  std::deque<Operation*> queue_;
  bool ending_ = false, abandoned_ = false;
  std::size_t entering_ = 0;
  TierUsage usage_;
  std::vector<std::thread> threads_;
};

}  // namespace hkv
