// SPDX-License-Identifier: Apache-2.0
// Reads of recovery: batches that wait for each other, and a region without a footer, record by record.
//
// Thread safety: one thread, which waits for the device.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tier/aligned_buffer.h"
#include "tier/io.h"
#include "tier/region.h"

namespace hkv {

// One read of recovery and the memory it goes to.
struct RecoveryRead {
  RecoveryRead(FileId file, std::uint64_t offset, std::size_t bytes);
  std::span<const std::byte> bytes() const;  // as many as the file had

  AlignedBuffer memory;
  IoRequest request;
  iovec piece{};
};

// Effect: does them all, as many at a time as the Io takes, each up to twice.
// Throws Error(TierError): the device could not read. `name` tells of which file the i-th is.
void read_all(Io& io, std::span<RecoveryRead* const> reads, const std::string& name);

// What a scan found beside records.
struct ScanLosses {
  std::uint64_t torn = 0;   // a record of this life that is not whole
  std::uint64_t stale = 0;  // one of a former life
};

// The records of one life of a region, in the order in which they were written, each proved by its CRCs. It ends where
// no record of this life follows; one whose payload is not whole is passed over, since its envelope says how long it is.
class RegionScan {
 public:
  // Requires: io and losses outlive it. Nothing counts from `limit` on.
  RegionScan(Io& io, FileId file, const RegionHeader& header, std::uint64_t limit, ScanLosses& losses);
  // Throws Error(TierError): the device could not read.
  bool next(FooterEntry& out);
  // Where the next record would go.
  std::uint64_t end() const { return end_; }

 private:
  enum class Found : std::uint8_t { Record, Damaged, Torn, Stale, End };
  Found look(FooterEntry& out);
  bool payload_is_whole(std::uint64_t at, const Envelope& envelope);
  std::span<const std::byte> view(std::uint64_t offset, std::uint64_t bytes);

  Io& io_;
  FileId file_;
  const RegionHeader header_;
  const std::uint64_t limit_;
  ScanLosses& losses_;
  std::uint64_t end_ = region_header_bytes;
  AlignedBuffer window_;
  std::uint64_t window_at_ = 0, window_bytes_ = 0;
};

}  // namespace hkv
