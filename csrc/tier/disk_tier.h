// SPDX-License-Identifier: Apache-2.0
// The disk tier: a log of records in region files, an index of them in memory, one thread that runs it.
//
// Thread safety: as Tier. `look` and `touch` read the index without a lock, beside the thread that changes it.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tier/io.h"
#include "tier/tier.h"

namespace hkv {

// What may be written. Always: every put. SecondTouch: a record that was asked for before and is remembered
// (touched_keys.h). Budget: bytes a second at most, a bucket of `budget_burst_bytes`. What is left out is Declined and
// counted; what is pinned never is.
enum class WriteAdmission : std::uint8_t { Always, SecondTouch, Budget };

struct DiskOptions {
  std::string path;                  // a directory of this tier alone
  std::uint64_t capacity_bytes = 0;  // of all region files; whole regions, at least 4
  // Of a new store; an old one keeps its own. 0: by the capacity. Each region is an open file.
  std::uint64_t region_bytes = 0;
  IoEngine engine = IoEngine::Auto;
  bool direct = true;      // around the page cache, where the file system can
  std::size_t depth = 16;  // requests at the device at a time
  std::size_t operations =
      0;  // under way at a time; 0: four times the depth, so that durable puts share a sync
  WriteAdmission admission = WriteAdmission::Always;
  std::uint64_t budget_bytes_per_second = 0, budget_burst_bytes = 0;
  // Of a region, at most 0.25: how much a reclaim may write again because it was hit or is pinned.
  double keep_share = 0.25;
  // Where the file system is full before the capacity is used: false: new records are NoSpace, until there is room, and
  // what is stored stays; true: the oldest region makes room, as if the capacity were what there is.
  bool reclaim_when_full = false;
  TierLimits limits;
};

// What opening found.
struct Recovered {
  std::uint64_t regions = 0, records = 0, bytes = 0;
  std::uint64_t scanned_regions = 0;  // without a sound footer: read record by record
  // Records left out: not whole, of a former life of their region, without their parent, tombstoned.
  std::uint64_t torn = 0, stale = 0, orphans = 0, removed = 0;
  std::uint64_t unknown_files = 0;  // neither of the store nor touched
  double seconds = 0;
  std::vector<Key128> formats;  // of the records
};

// Puts: a record whose parent is neither there nor on its way is a Miss; one that is there is Ok and not written again.
// Ok says that it will be found; with `durable`, and after a flush, that it survives a power cut. An I/O error may take
// what was not durable yet: then it is gone from the index, and a flush says IoError once.
// Gets: what cannot be read or is not what it says is dropped from the index. A miss does no I/O.
// Removes: Ok once the record cannot come back, with everything above it.
class DiskTier : public Tier {
 public:
  ~DiskTier() override;

  TierCaps caps() const override;
  Presence look(const RecordKey& key) const override;  // Progress: disk_index.h
  void touch(const RecordKey& key) override;
  std::uint64_t losses() const override;

  const Recovered& recovered() const;
  const char* engine() const;  // "io_uring", "threads"

 protected:
  void begin(Operation* operation) override;
  // Finishes what was begun, seals the region that is open, and lets go of the directory: a next opener scans nothing.
  // Waits for the device as long as that takes.
  void end() override;
  TierUsage engine_usage() const override;
  void drop(const Operation& operation) override;
  void begin_arena(void* data, std::size_t bytes) override;
  bool end_arena(void* data) override;

 private:
  friend std::unique_ptr<DiskTier> open_disk_tier(const DiskOptions& options, std::unique_ptr<Io> io);
  struct Engine;
  explicit DiskTier(const TierLimits& limits);
  void run();

  std::unique_ptr<Engine> engine_;
};

// The size of regions for a capacity: 64 MiB, doubled until there are no more than 512 of them, at most 4 GiB.
std::uint64_t region_bytes_for(std::uint64_t capacity_bytes);

// Opens the store, made where there is none, and recovers what a crash left. `io`: instead of the directory at the path.
// Throws Error(TierError): the path cannot be had, another opener holds it, it is no store or one of a newer version,
// the capacity does not fit, a region cannot be read; Error(ArgumentError): an option. Nothing that was stored has
// changed then.
std::unique_ptr<DiskTier> open_disk_tier(const DiskOptions& options, std::unique_ptr<Io> io = nullptr);

}  // namespace hkv
