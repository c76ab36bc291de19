// SPDX-License-Identifier: Apache-2.0
// A look at a store from outside: every file, region and record of its directory, what opening it would say of each, and
// whether the bytes are what they should be. It changes nothing.
//
// What can be asked for is what recovery, run over an Io that cannot write, puts into an index: so this never says
// anything else than the next opener will find, given room for the regions that are there.
//
// Thread safety: one thread at a time, which waits for the device. It holds the store's lock: no tier has it open
// meanwhile, so nothing that is read here is being written. Beside an open tier records would be torn that are merely
// under way, and regions would change under the walk.
//
// Invariants, and why each holds:
//  1. Nothing is written, made, renamed or removed: recovery runs over a ReadOnlyIo, the rest reads.
//  2. With `every_byte` each byte of a region's file is read, and every one that a CRC or a rule covers is compared:
//     the header, each record of the footer (or of the scan where there is none), fills, the footer. What is left is room
//     that nothing of this life was written to.
//  3. A record is Live exactly if the index holds that place for its key.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "tier/disk_store.h"
#include "tier/disk_tier.h"
#include "tier/recovery.h"

namespace hkv {

enum class StoreFileKind : std::uint8_t { Superblock, Draft, Region, Unknown, Writers, SetAside };
struct StoreFile {
  std::string name;
  StoreFileKind kind = StoreFileKind::Unknown;
  std::uint64_t bytes = 0;  // its length
  int error = 0;            // why it could not be opened: ELOOP a link, EINVAL no regular file
};

// Where bytes are not what they should be.
enum class FlawAt : std::uint8_t {
  Superblock,
  File,      // shorter than a region, or unreadable outside of records
  Header,    // of the region
  Footer,    // its trailer or its list
  Envelope,  // of a record: its header or part table
  Part,      // of a record: the bytes of one part
  Fill       // zeros that are none: of a record, header or footer; no content is touched
};
struct Flaw {
  FlawAt at = FlawAt::File;
  Damage damage = Damage::None;  // None: the device could not read it
  int error = 0;                 // errno of what could not be read
  std::uint32_t part = none_u32;
  std::uint64_t offset = 0;  // in the file: where what is wrong begins
};

enum class Standing : std::uint8_t {
  Live,        // can be asked for
  Superseded,  // the same key was written again later
  Removed,     // a tombstone of it, or of a record below it, is later
  Orphan,      // the block record that it stands on is not there
  Tombstone    // is one
};

struct WalkedRecord {
  RecordKey key;
  RecordKind removes = RecordKind::Block;  // of a tombstone
  Key128 parent, identity;
  std::uint64_t tokens = 0, payload_bytes = 0;  // where the envelope is sound
  std::uint32_t parts = 0;
  std::uint64_t offset = 0, bytes = 0;  // in the file; fills included
  std::uint8_t flags = 0;
  bool pinned = false;
  Standing standing = Standing::Live;
  std::uint32_t above = 0;  // of a live one with flaws: records that stand on it, all the way up
  std::vector<Flaw> flaws;
};

enum class RegionState : std::uint8_t {
  Sealed,   // with a footer
  Open,     // without: a crash, or its footer is damaged; read record by record
  GivenUp,  // after an I/O error: what lies behind its cut does not count
  Empty,    // no record of this life
  Foreign,  // a sound header, of another store, number or size
  Damaged   // no header, no footer: nothing of it can be found
};

struct WalkedRegion {
  std::string file;
  std::uint32_t number = 0, cut = 0;
  std::uint64_t epoch = 0, bytes = 0;
  RegionState state = RegionState::Empty;
  std::uint64_t header_bytes = 0, footer_bytes = 0, torn_bytes = 0;
  std::uint64_t torn = 0, stale = 0;  // of a scan
  std::vector<WalkedRecord> records;  // by offset
  std::vector<Flaw> flaws;            // outside of records
};

class StoreWalk {
 public:
  // Throws Error(TierError): as open_disk_tier, and where there is no store. `path` is for its words.
  StoreWalk(std::unique_ptr<Io> io, const std::string& path);
  ~StoreWalk();

  const Superblock& superblock() const { return content_.superblock; }
  const std::vector<Flaw>& superblock_flaws() const { return superblock_flaws_; }
  const Recovered& recovered() const { return recovered_; }
  std::size_t index_bytes() const { return index_->bytes(); }
  const std::vector<StoreFile>& files() const { return files_; }  // by name
  std::size_t regions() const { return regions_.size(); }

  // The region at that place, by number. Not `every_byte`: its header, footer and envelopes alone.
  WalkedRegion read(std::size_t at, bool every_byte);
  // The part table of the record at that offset; empty where its envelope is damaged.
  std::vector<PartEntry> parts(std::size_t at, std::uint64_t offset);
  // Records that can be asked for no more without these: themselves and what stands on them, each once.
  std::uint64_t lost_with(std::span<const RecordKey> keys) const;

 private:
  void list_files();
  void check_superblock();
  RegionHeader header_of(const DiskRegion& region) const;
  std::vector<FooterEntry> list_records(const DiskRegion& region, WalkedRegion& out);
  void judge_head(const DiskRegion& region, WalkedRegion& out);
  void judge_tail(const DiskRegion& region, WalkedRegion& out);
  WalkedRecord place(const DiskRegion& region, const FooterEntry& entry) const;
  void check_heads(FileId file, std::span<const FooterEntry> entries, WalkedRegion& out);

  std::unique_ptr<Io> io_;
  std::string path_;
  std::unique_ptr<DiskIndex> index_;
  Recovered recovered_;
  DiskContent content_;
  std::vector<DiskRegion*> regions_;
  std::vector<StoreFile> files_;
  std::vector<Flaw> superblock_flaws_;
  std::unordered_map<std::uint64_t, Standing> left_out_;  // by region and unit
};

// The walk of a directory that is there. Throws as StoreWalk.
std::unique_ptr<StoreWalk> open_store_walk(const std::string& path, IoEngine engine, bool direct,
                                           std::size_t depth);

}  // namespace hkv
