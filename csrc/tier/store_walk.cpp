// SPDX-License-Identifier: Apache-2.0
#include "tier/store_walk.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <unordered_set>

#include "base/check.h"
#include "tier/read_only_io.h"
#include "tier/region_check.h"
#include "tier/region_scan.h"

namespace hkv {
namespace {

constexpr std::size_t heads_together = 64;

[[noreturn]] void refuse(const std::string& expected, const std::string& got) {
  throw Error(ErrorCode::TierError, "path", expected, got);
}

// As many bytes as the file has there. Throws Error(TierError): the device cannot read.
RecoveryRead read_bytes(Io& io, FileId file, std::uint64_t offset, std::uint64_t bytes,
                        const std::string& name) {
  RecoveryRead read(file, offset, bytes);
  RecoveryRead* const one = &read;
  read_all(io, {&one, 1}, name);
  return read;
}

// Where `found` is not what a writer of the same fields would have left; found.size() where it is.
std::size_t first_difference(std::span<const std::byte> found, std::span<const std::byte> written) {
  return static_cast<std::size_t>(std::mismatch(found.begin(), found.end(), written.begin()).first -
                                  found.begin());
}

std::uint64_t place_number(const RecordPlace& place) { return std::uint64_t{place.region} << 32 | place.at; }

}  // namespace

StoreWalk::StoreWalk(std::unique_ptr<Io> io, const std::string& path)
    : io_(std::move(io)), path_(path), index_(std::make_unique<DiskIndex>()) {
  std::vector<std::string> names;
  if (const int result = io_->list(names); result != 0) {
    refuse("a directory that can be listed", path + ": " + std::strerror(-result));
  }
  if (std::find(names.begin(), names.end(), superblock_name) == names.end()) {
    refuse("a store", path + ": a directory without a superblock");
  }
  DiskOptions options;
  options.path = path;
  options.capacity_bytes = std::numeric_limits<std::uint64_t>::max();  // nothing has to make room
  ReadOnlyIo read_only(*io_);
  std::vector<LeftOut> left_out;
  content_ = recover(read_only, options, *index_, recovered_, &left_out);
  for (const LeftOut& out : left_out) {
    left_out_[place_number(out.place)] =
        out.why == DiskIndex::Left::Removed ? Standing::Removed : Standing::Orphan;
  }
  for (const auto& region : content_.regions) {
    if (region->phase != RegionPhase::Absent) regions_.push_back(region.get());
  }
  list_files();
  check_superblock();
}

StoreWalk::~StoreWalk() = default;

void StoreWalk::list_files() {
  std::vector<std::string> names;
  if (const int result = io_->list(names); result != 0) {
    refuse("a directory that can be listed", path_ + ": " + std::strerror(-result));
  }
  std::sort(names.begin(), names.end());
  for (std::string& name : names) {
    StoreFile out;
    out.kind = name == superblock_name         ? StoreFileKind::Superblock
               : name == superblock_draft_name ? StoreFileKind::Draft
               : read_region_name(name)        ? StoreFileKind::Region
                                               : StoreFileKind::Unknown;
    FileId file = no_file;
    int result = io_->open(name, Io::Mode::Read, file);
    if (result == 0) {
      result = io_->size(file, out.bytes);
      io_->close(file);
    }
    out.error = -result;
    out.name = std::move(name);
    files_.push_back(std::move(out));
  }
}

void StoreWalk::check_superblock() {
  FileId file = no_file;
  if (const int result = io_->open(superblock_name, Io::Mode::Read, file); result != 0) {
    refuse("a store whose superblock can be opened", path_ + ": " + std::strerror(-result));
  }
  const RecoveryRead read = read_bytes(*io_, file, 0, disk_unit, superblock_name);
  io_->close(file);
  std::array<std::byte, disk_unit> written;
  write_superblock(content_.superblock, written);
  const std::size_t at = first_difference(read.bytes(), written);
  if (read.bytes().size() < disk_unit) {
    superblock_flaws_.push_back(
        {FlawAt::Superblock, Damage::Short, 0, none_u32, static_cast<std::uint64_t>(read.bytes().size())});
  } else if (at != disk_unit) {
    superblock_flaws_.push_back({FlawAt::Fill, Damage::Content, 0, none_u32, at});
  }
}

RegionHeader StoreWalk::header_of(const DiskRegion& region) const {
  return {content_.superblock.store, region.number, region.epoch, content_.superblock.region_bytes};
}

// ---- one region -----------------------------------------------------------------------------

void StoreWalk::judge_head(const DiskRegion& region, WalkedRegion& out) {
  const RecoveryRead read = read_bytes(*io_, region.file, 0, region_header_bytes, out.file);
  const std::span<const std::byte> bytes = read.bytes();
  const RegionHeader expected = header_of(region);
  const bool blank = first_set(bytes) == bytes.size();
  out.state = region.epoch != 0 ? RegionState::Open : RegionState::Empty;
  if (read_region_header(bytes, expected)) {
    out.header_bytes = bytes.size();  // fewer where the file is cut
    std::array<std::byte, region_header_bytes> written;
    write_region_header(expected, written);
    const std::size_t at = first_difference(bytes, written);
    if (at != bytes.size()) out.flaws.push_back({FlawAt::Fill, Damage::Content, 0, none_u32, at});
  } else if (!blank || region.epoch != 0) {
    const bool foreign = read_any_region_header(bytes).has_value();
    out.flaws.push_back({FlawAt::Header, foreign ? Damage::Foreign : Damage::Header, 0, none_u32, 0});
    if (region.epoch == 0) out.state = foreign ? RegionState::Foreign : RegionState::Damaged;
  }
  // A crash may leave a file that never got its length; no other is shorter.
  if (out.bytes < content_.superblock.region_bytes && (region.epoch != 0 || !blank)) {
    out.flaws.push_back({FlawAt::File, Damage::Short, 0, none_u32, out.bytes});
  }
}

// Whether a footer that counts for nothing is one of a former life, or damaged. No record reaches the file's last unit.
void StoreWalk::judge_tail(const DiskRegion& region, WalkedRegion& out) {
  const std::uint64_t region_bytes = content_.superblock.region_bytes;
  if (region.cut != 0 || out.state == RegionState::Foreign || out.bytes < region_bytes) return;
  const RecoveryRead read = read_bytes(*io_, region.file, region_bytes - disk_unit, disk_unit, out.file);
  if (read.bytes().size() < disk_unit) return;
  const auto trailer = read_footer_trailer(read.bytes(), header_of(region));
  if (trailer && trailer->epoch < region.epoch) return;
  const auto last = read.bytes().last(footer_trailer_bytes);
  if (!trailer && first_set(last) == last.size()) return;
  const Damage damage = trailer && trailer->epoch > region.epoch ? Damage::Epoch : Damage::Header;
  out.flaws.push_back({FlawAt::Footer, damage, 0, none_u32, region_bytes - footer_trailer_bytes});
}

std::vector<FooterEntry> StoreWalk::list_records(const DiskRegion& region, WalkedRegion& out) {
  std::vector<FooterEntry> entries;
  if (region.epoch == 0) return entries;
  const RegionHeader header = header_of(region);
  const std::uint64_t region_bytes = header.region_bytes;
  if (region.phase == RegionPhase::Sealed) {
    const RecoveryRead tail = read_bytes(*io_, region.file, region_bytes - disk_unit, disk_unit, out.file);
    const auto trailer = read_footer_trailer(tail.bytes(), header);
    const std::uint64_t bytes = trailer ? footer_bytes(trailer->entries) : disk_unit;
    const RecoveryRead footer = read_bytes(*io_, region.file, region_bytes - bytes, bytes, out.file);
    if (trailer && trailer->epoch == region.epoch &&
        read_footer_entries(footer.bytes(), *trailer, region_bytes, entries)) {
      out.state = RegionState::Sealed;
      out.footer_bytes = bytes;
      std::vector<std::byte> written(bytes);
      write_footer(header, entries, written);
      const std::size_t at = first_difference(footer.bytes(), written);
      if (at != bytes) {
        out.flaws.push_back({FlawAt::Fill, Damage::Content, 0, none_u32, region_bytes - bytes + at});
      }
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto& a, const auto& b) { return a.at < b.at; });
      return entries;
    }
    entries.clear();  // recovery read it a moment ago: the device does not say the same twice
  }
  ScanLosses losses;
  const std::uint64_t limit = region.cut != 0 ? std::uint64_t{region.cut} * disk_unit : region_bytes;
  RegionScan scan(*io_, region.file, header, limit, losses);
  std::uint64_t whole = region_header_bytes;
  for (FooterEntry entry; scan.next(entry);) {
    entries.push_back(entry);
    whole += std::uint64_t{entry.units} * disk_unit;
  }
  out.torn = losses.torn;
  out.stale = losses.stale;
  out.torn_bytes = scan.end() - whole;
  out.state = region.cut != 0                       ? RegionState::GivenUp
              : entries.empty() && losses.torn == 0 ? RegionState::Empty
                                                    : RegionState::Open;
  return entries;
}

WalkedRecord StoreWalk::place(const DiskRegion& region, const FooterEntry& entry) const {
  WalkedRecord out;
  out.key = entry.key;
  out.parent = entry.parent;
  out.offset = std::uint64_t{entry.at} * disk_unit;
  out.bytes = std::uint64_t{entry.units} * disk_unit;
  out.flags = entry.flags;
  out.pinned = entry.pinned;
  if (entry.key.kind == RecordKind::Tombstone) {
    out.standing = Standing::Tombstone;
    out.removes = static_cast<RecordKind>(entry.flags);
    return out;
  }
  const RecordPlace here{region.number, entry.at, entry.units, entry.payload_units};
  const DiskIndex::Number n = index_->find(entry.key);
  if (n != none_u32 && index_->place(n) == here) return out;
  const auto left = left_out_.find(place_number(here));
  out.standing = left != left_out_.end() ? left->second : Standing::Superseded;
  return out;
}

WalkedRegion StoreWalk::read(std::size_t at, bool every_byte) {
  const DiskRegion& region = *regions_.at(at);
  WalkedRegion out;
  out.file = region.name();
  out.number = region.number;
  out.cut = region.cut;
  out.epoch = region.epoch;
  if (const int result = io_->size(region.file, out.bytes); result != 0) {
    refuse("a store whose regions can be read", out.file + ": " + std::strerror(-result));
  }
  judge_head(region, out);
  const std::vector<FooterEntry> entries = list_records(region, out);
  if (out.state != RegionState::Sealed) judge_tail(region, out);
  for (const FooterEntry& entry : entries) out.records.push_back(place(region, entry));
  if (every_byte) {
    RegionCheck(*io_, region.file, entries, out).run();
  } else {
    check_heads(region.file, entries, out);
  }
  for (WalkedRecord& record : out.records) {
    if (record.flaws.empty() || record.standing != Standing::Live) continue;
    record.above = index_->tree_size(index_->find(record.key), none_u32) - 1;
  }
  return out;
}

void StoreWalk::check_heads(FileId file, std::span<const FooterEntry> entries, WalkedRegion& out) {
  for (std::size_t at = 0; at < entries.size(); at += heads_together) {
    const std::size_t count = std::min(heads_together, entries.size() - at);
    std::vector<std::unique_ptr<RecoveryRead>> reads;
    std::vector<RecoveryRead*> all;
    for (std::size_t i = at; i < at + count; ++i) {
      const std::uint64_t bytes = std::uint64_t{entries[i].payload_units} * disk_unit;
      reads.push_back(std::make_unique<RecoveryRead>(file, out.records[i].offset, bytes));
      all.push_back(reads.back().get());
    }
    try {
      read_all(*io_, all, out.file);
    } catch (const Error&) {  // each says for itself
    }
    for (std::size_t i = 0; i < count; ++i) {
      WalkedRecord& record = out.records[at + i];
      const std::int64_t result = reads[i]->request.result;
      if (result < 0) {
        record.flaws.push_back(
            {FlawAt::Envelope, Damage::None, static_cast<int>(-result), none_u32, record.offset});
      } else {
        check_head(entries[at + i], out.epoch, reads[i]->bytes(), record);
      }
    }
  }
}

// ---- one record -----------------------------------------------------------------------------

std::vector<PartEntry> StoreWalk::parts(std::size_t at, std::uint64_t offset) {
  const DiskRegion& region = *regions_.at(at);
  const RecoveryRead fixed = read_bytes(*io_, region.file, offset, disk_unit, region.name());
  const std::size_t bytes = envelope_bytes_at(fixed.bytes());
  if (bytes == 0) return {};
  const RecoveryRead head = read_bytes(*io_, region.file, offset, round_up_to_unit(bytes), region.name());
  Envelope envelope;
  if (read_envelope(head.bytes(), envelope) != Damage::None) return {};
  return std::move(envelope.parts);
}

std::uint64_t StoreWalk::lost_with(std::span<const RecordKey> keys) const {
  std::unordered_set<DiskIndex::Number> gone;
  for (const RecordKey& key : keys) {
    if (const DiskIndex::Number n = index_->find(key); n != none_u32) gone.insert(n);
  }
  std::uint64_t lost = 0;
  for (const DiskIndex::Number n : gone) {
    DiskIndex::Number below = index_->parent(n);
    while (below != none_u32 && !gone.contains(below)) below = index_->parent(below);
    if (below == none_u32) lost += index_->tree_size(n, none_u32);
  }
  return lost;
}

std::unique_ptr<StoreWalk> open_store_walk(const std::string& path, IoEngine engine, bool direct,
                                           std::size_t depth) {
  struct stat status{};  // open_directory would make one
  if (::stat(path.c_str(), &status) != 0)
    refuse("the directory of a store", path + ": " + std::strerror(errno));
  if (!S_ISDIR(status.st_mode)) refuse("the directory of a store", path + ": no directory");
  return std::make_unique<StoreWalk>(open_directory(path, engine, direct, depth), path);
}

}  // namespace hkv
