// SPDX-License-Identifier: Apache-2.0
// A transfer: records of one prefix on their way to a tier (offload) or back (restore); or the wait until all that was
// offloaded before is durable (flush).
//
// Thread safety: its fields belong to whoever holds the cache's transfer lock; `finished` and the numbers that
// `TransferState` copies are read through HybridCache::state_of, which takes it.
// Invariants:
//  1. Pages of a record that moves are held: of an offload by a pin a descriptor and word, dropped when the record is
//     settled and released; of a restore by the fill, whose entries are Restoring until then.
//  2. A page of a restore is published only in the step that settles its record Ok, and all pages of a record together:
//     pages of B first. A record that timed out keeps its pages, private, until the tier lets go.
//  3. Records are sent in prefix order, so that a tier never holds a block without those before it.
//  4. Of a record with parts in device pools the tier knows the place in host memory alone: an offload is sent once its
//     copy there is over, a restore lands, which is copied to its pages, once the tier has verified it there. A copy that
//     is under way holds the record's pages and its place, whatever becomes of the record meanwhile.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "block/store.h"
#include "cache/fill.h"
#include "cache/page_staging.h"
#include "layout/key_chain.h"
#include "tier/tier.h"

namespace hkv {

enum class TransferKind : std::uint8_t { Offload, Restore, Flush };

struct TransferOptions {
  Priority priority = Priority::Demand;                         // of a restore
  std::chrono::nanoseconds timeout = std::chrono::seconds(10);  // of each record, from when it is sent
  bool durable = false;  // of an offload: done once it survives a power cut
  bool pinned = false;   // of an offload: the tier keeps it as long as it can
  bool gated = false;    // of an offload: no page is read before it is opened
};

// What offloads came to: records and bytes that are stored, and by its status each record that is not.
struct Written {
  std::int64_t records = 0, bytes = 0;
  std::array<std::int64_t, tier_status_count> failed{};
};

struct Transfer {
  struct Pin {
    DescriptorId id;
    WordClass which;
    SlotMask marked;        // slots in Offloading
    std::uint32_t counted;  // bit a group: its page counts as held by nobody who could finish for it
  };
  struct Page {  // entry of the fill that a part of the record is loaded into
    int group;
    std::size_t entry;
  };
  struct Record {
    enum class State : std::uint8_t { Waiting, Sent, Landing, Late, Settled };
    RecordKey key;
    Key128 parent;
    std::int64_t tokens = 0;
    std::uint8_t flags = 0;
    State state = State::Waiting;
    std::vector<Part> parts;
    std::vector<Pin> pins;
    std::vector<Page> pages;
    std::vector<std::pair<int, std::int64_t>> blocks;  // (group, own block), for reports
    std::int64_t bytes = 0;
    bool placed = false;                  // its parts are where a tier may reach them, or will be
    bool is_sync = false;                 // of no pages: the tier's own flush
    bool copying = false;                 // on their way between device and host
    std::unique_ptr<StagedParts> staged;  // the place of those in device pools
    TierStatus status = TierStatus::Ok;   // once settled
  };
  // A length asked for, and the records of this transfer that it needs: from the listing on where it is a tip. None where
  // it was in the tier, or needs none.
  struct Boundary {
    enum class Lack : std::uint8_t { Nothing, States, History };
    std::int64_t tokens;
    Lack lack = Lack::Nothing;  // in memory, when it was to be stored
    std::size_t from = 0, to = 0;
  };

  TransferKind kind = TransferKind::Offload;
  TransferOptions options;
  std::shared_ptr<const KeyChain> keys;
  Key128 identity;  // of the keys, or of the cache when it was begun: for who looks into a store
  std::int64_t tokens =
      0;  // length that a restore makes usable, or the longest boundary that an offload stores
  std::vector<Record> records;
  std::unique_ptr<Fill> fill;
  std::vector<BatchId> batches;
  std::vector<Boundary> boundaries;
  std::vector<std::shared_ptr<Transfer>> awaited;  // of a flush: offloads before it, until they are settled
  Written written;                                 // of a flush: since the one before

  std::size_t sent = 0, settled = 0, ok = 0, late = 0;
  std::int64_t bytes_total = 0, bytes_moved = 0, bytes_in_flight = 0;
  // (group, own block) of pages that another fill or restore had claimed: not loaded here, and waited for in this order.
  std::vector<std::pair<int, std::int64_t>> elsewhere;
  std::size_t elsewhere_over = 0;  // of them
  Deadline elsewhere_until{};
  bool cancelled = false, finished = false;
  TierStatus status = TierStatus::Ok;  // of the first record that failed
  Damage damage = Damage::None;
  std::int64_t failed_record = -1;
  std::pair<int, std::int64_t> missing{-1, -1};  // the first that whoever had claimed it has not published
  std::string device_error;                      // what the driver said of a copy that failed
};

// What became of the lengths asked for, and of pages.
struct TransferOutcome {
  // Why a length cannot be resumed from what was to be moved: a status, or what was lacking in memory.
  static constexpr int no_states = -1, no_history = -2;
  std::vector<std::int64_t> boundaries;              // stored, or usable by what was published
  std::vector<std::pair<std::int64_t, int>> missed;  // (tokens, status or one of the above)
  std::vector<std::int64_t> blocks;                  // a group: own blocks moved
  Written written;                                   // of a flush
};

// A copy of what a transfer has come to.
struct TransferState {
  bool finished = false, cancelled = false;
  std::int64_t tokens = 0, records = 0, settled = 0, ok = 0, bytes_total = 0, bytes_moved = 0, elsewhere = 0;
  TierStatus status = TierStatus::Ok;
  Damage damage = Damage::None;
  int failed_group = -1;
  std::int64_t failed_block = -1;
  std::vector<std::int64_t> left_out;
  std::string device_error;
};

}  // namespace hkv
