// SPDX-License-Identifier: Apache-2.0
// Whether the bytes of a region are what its list of records says: of one record, or of the whole file as it streams by.
//
// Thread safety: one thread, which waits for the device.
#pragma once
#include <span>

#include "tier/region_stream.h"
#include "tier/store_walk.h"

namespace hkv {

// Effect: fills what the envelope tells of `record`, and its flaws. `bytes` is what lies between the record's start and
// its payload. Returns: the parts; none where the envelope is no use.
std::vector<PartEntry> check_head(const FooterEntry& entry, std::uint64_t epoch,
                                  std::span<const std::byte> bytes, WalkedRecord& record);

// The first byte that is not zero; bytes.size() where all are.
std::size_t first_set(std::span<const std::byte> bytes);

class RegionCheck {
 public:
  // Requires: io outlives it; `region.records` are those of `entries`, in ascending order.
  RegionCheck(Io& io, FileId file, std::span<const FooterEntry> entries, WalkedRegion& region);
  // Effect: reads the file from its header to its end and adds what is wrong to the region and to its records.
  void run();

 private:
  // Effect: goes on to `to`. Every readable piece goes to `use`. Returns: where it was unreadable or the file ended
  // before, the flaw; `None` and no error otherwise.
  template <class F>
  Flaw pass(FlawAt at, std::uint64_t to, F&& use);
  Flaw pass_zeros(std::uint64_t to);
  void check(const FooterEntry& entry, WalkedRecord& record);

  RegionStream stream_;
  const std::span<const FooterEntry> entries_;
  WalkedRegion& region_;
  std::vector<std::byte> head_;
};

}  // namespace hkv
