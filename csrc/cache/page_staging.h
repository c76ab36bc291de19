// SPDX-License-Identifier: Apache-2.0
// Page staging: host memory in which the pages of device pools stop over between their pool and a tier, which takes host
// memory alone.
//
// A record's parts in device pools get one place in it, one behind the other, and their part of the record points there
// from then on; parts in host pools stay where they are and are never copied. Memory is taken from the driver once, a
// slab of `most_bytes` (or of one record that is larger: then a slab of its own size), page-locked, and kept.
//
// Thread safety: none of its own; the cache's transfer lock.
// Invariants, and why each holds:
//  1. A place is given to another only after its copy is over and the tier let go of it: give_back demands the first, and
//     who calls it has the second from the tier's report. The place of a lost copy is never given to another.
//  2. Whoever must wait for a place gets one, or is told that nobody will give one back: every place is with a copy or
//     with the tier; a tier's time is bounded by the record's deadline, and places that are past it are counted as stuck.
//  3. Loads that somebody waits for are not kept out by stores and prefetches: those have three quarters at most.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/pool_memory.h"
#include "kernels/device_copies.h"
#include "tier/record.h"

namespace hkv {

// The place of one record's device parts.
struct StagedParts {
  std::byte* place = nullptr;
  std::size_t bytes = 0;
  std::vector<CopyRun> runs;
  std::shared_ptr<const DeviceCopy> copy;  // the last one begun
  bool patient = false;                    // of a store or a prefetch
  bool stuck = false;                      // with a tier that does not let go of it in time

  bool moving() const { return copy != nullptr && copy->state() == DeviceCopy::State::Moving; }
  bool lost() const { return copy != nullptr && copy->state() == DeviceCopy::State::Lost; }
};

class PageStaging {
 public:
  // Requires: the library outlives it.
  PageStaging(const CudaLibrary& library, std::size_t most_bytes);
  ~PageStaging();

  // Throws Error(ArgumentError) naming the pool: where its memory is no device's, or there is no driver.
  // Requires: a pool not bound to host memory. `group` numbers it.
  void check(std::size_t group, const std::string& name, const PoolMemory& memory);
  // Effect: takes memory for pages of this pool, where that can be done; a failure is told by check and take.
  void prepare(const PoolMemory& memory);
  // The group's pool is another from now on.
  void forget(std::size_t group);

  enum class Taken : std::uint8_t { Unneeded, Yes, Later, Never };
  // Effect: gives the parts that lie in device pools a place, and lets them point there. `room`, one a part or empty: so
  // many bytes there, and copied, where a part is followed by bytes that its caller writes. Requires: check passed for
  // every group of the parts; room is no less than the part. Returns: Later where others must give back first; Never where nobody will, with `error` where
  // the driver gave no memory. Progress: as DeviceCopies::take_memory the first time, then takes no memory.
  Taken take(std::span<Part> parts, std::span<const std::size_t> room, std::span<const PoolMemory> memory,
             bool patient, StagedParts& staged, std::string& error);
  // Requires: no copy of it is moving.
  void begin(StagedParts& staged, CopyWay way);
  // The tier keeps the place beyond the record's time.
  void note_stuck(StagedParts& staged);
  // Effect: the place is free, unless its copy was lost. Requires: its copy is over, the tier let go.
  void give_back(StagedParts& staged);

  void poll() { copies_->poll(); }
  std::size_t taken_bytes() const { return taken_bytes_; }

 private:
  struct Slab {
    std::byte* data;
    std::size_t bytes;
    std::map<std::size_t, std::size_t> taken;  // offset -> bytes
  };
  bool on_device(const Part& part, std::span<const PoolMemory> memory) const {
    return !memory[part.label.group].host();
  }
  int device_of(const Part& part, const PoolMemory& memory) const {
    return devices_[part.label.group][memory.rows() == 1 ? 0u : part.label.layer];
  }
  std::byte* find_place(std::size_t bytes);
  bool add_slab(std::size_t bytes, int device, std::string& error);

  const CudaLibrary& library_;
  std::size_t most_bytes_;
  std::unique_ptr<DeviceCopies> copies_;
  std::vector<std::vector<int>> devices_;  // a group, a device an array; empty: not checked
  std::vector<Slab> slabs_;
  std::size_t taken_bytes_ = 0, patient_bytes_ = 0, stuck_bytes_ = 0;
};

}  // namespace hkv
