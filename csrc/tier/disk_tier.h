// SPDX-License-Identifier: Apache-2.0
// The disk tier: a log of records in region files, an index of them in memory, one thread that runs it.
//
// Thread safety: as Tier. `look` and `touch` read the index without a lock, beside the thread that changes it.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "tier/io.h"
#include "tier/tier.h"

namespace hkv {

// What may be written. Always: every put. SecondTouch: a record whose key was put before (and refused, remembered for
// a while). Budget: bytes a second at most, a bucket of `budget_burst_bytes`. Refused puts are NoSpace and counted;
// pinned puts are never refused.
enum class WriteAdmission : std::uint8_t { Always, SecondTouch, Budget };

struct DiskOptions {
  std::string path;                        // a directory of this tier alone
  std::uint64_t capacity_bytes = 0;        // of all region files; whole regions, at least 4
  std::uint64_t region_bytes = 64u << 20;  // of a new store; an old one keeps its own
  IoEngine engine = IoEngine::Auto;
  bool direct = true;  // around the page cache, where the file system can
  std::size_t depth = 16;
  WriteAdmission admission = WriteAdmission::Always;
  std::uint64_t budget_bytes_per_second = 0, budget_burst_bytes = 0;
  double keep_share =
      0.25;  // of a region: how much of it a reclaim may write again because it was hit or is pinned
  TierLimits limits;
};

// What opening found.
struct Recovered {
  std::uint64_t regions = 0, records = 0, bytes = 0;
  std::uint64_t scanned_regions = 0;  // without a sound footer: read record by record
  std::uint64_t torn = 0, stale = 0, orphans = 0,
                removed = 0;  // records left out: not whole, of a former life of
                              // their region, without their parent, tombstoned
  double seconds = 0;
};

// Opens the store, made where there is none, and recovers what a crash left.
// Throws Error(TierError): the path cannot be had, another opener holds it, it is no store or one of a newer version,
// or the capacity does not fit. Nothing on disk has changed then.
class DiskTier;
std::unique_ptr<DiskTier> open_disk_tier(const DiskOptions& options, std::unique_ptr<Io> io = nullptr);

}  // namespace hkv
