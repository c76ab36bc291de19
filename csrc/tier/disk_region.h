// SPDX-License-Identifier: Apache-2.0
// One region file as the running store sees it.
//
// Thread safety: the store's thread.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tier/aligned_buffer.h"
#include "tier/disk_index.h"
#include "tier/io.h"
#include "tier/region.h"

namespace hkv {

enum class RegionPhase : std::uint8_t {
  Absent,     // no file
  Free,       // a file of which nothing is needed
  Preparing,  // its next life's header is on the way
  Ready,      // header durable, no record yet
  Open,       // takes records
  Sealing,    // takes no more; sync, footer, sync
  Sealed,     // footer durable
  GivenUp,    // an I/O error: read, never appended to or synced again; reclaimed in its turn
};

struct DiskRegion {
  std::uint32_t number = 0;
  std::uint32_t cut = 0;  // of its name
  FileId file = no_file;
  RegionPhase phase = RegionPhase::Free;
  std::uint64_t epoch = 0;  // 0: never had a life

  // Offsets: tail: where the next record goes; published: the end of what the index may know; synced: the end of what
  // survives a power cut. synced <= published <= tail.
  std::uint64_t tail = region_header_bytes;
  std::uint64_t published = region_header_bytes;
  std::uint64_t synced = region_header_bytes;
  std::uint32_t unpublished = 0;  // records placed and not published yet

  std::vector<FooterEntry> entries;        // published, until the footer is durable
  std::vector<DiskIndex::Number> numbers;  // whose record is here, or was
  std::uint32_t live = 0;                  // of the index
  std::uint32_t lingering = 0;             // on disk and not in the index
  std::uint32_t tombstones = 0;
  std::uint32_t readers = 0;  // reads under way

  std::string name() const { return text_of(RegionName{number, cut}); }

  bool syncing = false;
  std::uint64_t sync_covers = 0;  // of the sync under way
  bool footer_written = false;
};

}  // namespace hkv
