// SPDX-License-Identifier: Apache-2.0
#include "tier/recovery.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/check.h"
#include "tier/region_scan.h"

namespace hkv {
namespace {

constexpr std::uint64_t least_regions = 4;

[[noreturn]] void refuse(const std::string& field, const std::string& expected, const std::string& got) {
  throw Error(ErrorCode::TierError, field, expected, got);
}
std::string error_text(int result) { return std::strerror(-result); }

// Who has the store, of which another opener knows at most the process. A child that it forked has it too, until it ends.
std::string opener_text(int process) {
  if (process == 0) return "open in another process, or by another DiskTier or Store of this one";
  if (process == ::getpid()) return "open already in this process, by another DiskTier or Store";
  return "open in process " + std::to_string(process) + ", or in one that it forked";
}

// Does one write or sync and waits for it. Returns: whether all of it went well.
bool do_one(Io& io, IoRequest& request) {
  std::array<IoRequest*, 1> done;
  io.submit(&request);
  while (io.wait(done, std::chrono::hours(1)) == 0) {
  }
  return request.result == static_cast<std::int64_t>(request.op == IoRequest::Op::Write ? request.bytes : 0);
}

void require_alignment(Io& io, FileId file) {
  const IoAlignment unit = io.alignment(file);
  if (disk_unit % unit.offset == 0 && disk_unit % unit.memory == 0) return;
  refuse("path", "a device of blocks of at most " + std::to_string(disk_unit) + " bytes, or no direct I/O",
         std::to_string(std::max(unit.offset, unit.memory)));
}

// ---- superblock -----------------------------------------------------------------------------

std::uint64_t region_bytes_of(const DiskOptions& options) {
  return options.region_bytes != 0 ? options.region_bytes : region_bytes_for(options.capacity_bytes);
}

Superblock draw_superblock(const DiskOptions& options) {
  Superblock out;
  out.region_bytes = region_bytes_of(options);
  if (::getrandom(&out.store, sizeof out.store, 0) != static_cast<ssize_t>(sizeof out.store)) {
    refuse("path", "random bytes for a new store", error_text(-errno));
  }
  return out;
}

// The draft is durable before it gets its name, and the name before anything else is made.
Superblock make_superblock(Io& io, const DiskOptions& options) {
  const Superblock out = draw_superblock(options);
  AlignedBuffer memory(disk_unit);
  write_superblock(out, std::span<std::byte, disk_unit>(memory.data(), disk_unit));
  FileId file = no_file;
  io.remove(superblock_draft_name);  // of a crash before its rename
  if (const int result = io.open(superblock_draft_name, Io::Mode::Create, file); result != 0) {
    refuse("path", "a directory that a store can be made in", error_text(result));
  }
  require_alignment(io, file);
  iovec piece{memory.data(), disk_unit};
  IoRequest write;
  write.op = IoRequest::Op::Write;
  write.file = file;
  write.bytes = disk_unit;
  write.pieces = {&piece, 1};
  IoRequest sync;
  sync.op = IoRequest::Op::Sync;
  sync.file = file;
  const bool whole = do_one(io, write) && do_one(io, sync);
  const std::int64_t failed = write.result < 0 ? write.result : sync.result < 0 ? sync.result : -EIO;
  io.close(file);
  if (!whole) {
    io.remove(superblock_draft_name);
    refuse("path", "room for a store", error_text(static_cast<int>(failed)));
  }
  int result = io.rename(superblock_draft_name, superblock_name);
  if (result == 0) result = io.sync_directory();
  if (result != 0) refuse("path", "a directory that a store can be made in", error_text(result));
  return out;
}

Superblock read_superblock_file(Io& io) {
  FileId file = no_file;
  if (const int result = io.open(superblock_name, Io::Mode::Read, file); result != 0) {
    refuse("path", "a store whose superblock can be opened", error_text(result));
  }
  require_alignment(io, file);
  RecoveryRead read(file, 0, disk_unit);
  RecoveryRead* const one = &read;
  Superblock out;
  try {
    read_all(io, {&one, 1}, superblock_name);
  } catch (...) {
    io.close(file);
    throw;
  }
  io.close(file);
  switch (read_superblock(read.bytes(), out)) {
    case SuperblockFault::None: return out;
    case SuperblockFault::Newer:
      refuse("path", "a store of layout version " + std::to_string(disk_layout_version) + " or older",
             "version " + std::to_string(out.version));
    case SuperblockFault::Damaged: break;
  }
  refuse("path", "a store", "a directory whose superblock is damaged");
}

// ---- regions --------------------------------------------------------------------------------

struct FoundRegion {
  std::unique_ptr<DiskRegion> region;
  std::unique_ptr<RecoveryRead> head, tail;
  std::vector<FooterEntry> entries;
  bool sound_footer = false;
};

class Recovery {
 public:
  Recovery(Io& io, const DiskOptions& options, DiskIndex& index, Recovered& recovered, Superblock superblock,
           std::vector<LeftOut>* left_out)
      : io_(io),
        options_(options),
        index_(index),
        recovered_(recovered),
        superblock_(superblock),
        left_out_(left_out) {}

  DiskContent run(const std::vector<std::string>& names) {
    open_files(names);
    read_heads();
    std::sort(living_.begin(), living_.end(),
              [](const auto* a, const auto* b) { return a->region->epoch < b->region->epoch; });
    const std::size_t together = std::max<std::size_t>(1, io_.depth());
    for (std::size_t at = 0; at < living_.size(); at += together) {
      read_regions(std::span(living_).subspan(at, std::min(together, living_.size() - at)));
    }
    link();
    DiskContent out = content();
    shrink(out);
    return out;
  }

 private:
  RegionHeader header_of(const DiskRegion& region) const {
    return {superblock_.store, region.number, region.epoch, superblock_.region_bytes};
  }
  std::unique_ptr<RecoveryRead> tail_read(const DiskRegion& region, std::uint64_t bytes) const {
    return std::make_unique<RecoveryRead>(region.file, superblock_.region_bytes - bytes, bytes);
  }

  void open_files(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      if (name == superblock_draft_name) io_.remove(name);
      const auto of_region = read_region_name(name);
      if (!of_region) {
        recovered_.unknown_files += name != superblock_name && name != superblock_draft_name;
        continue;
      }
      FoundRegion found;
      found.region = std::make_unique<DiskRegion>();
      found.region->number = of_region->number;
      found.region->cut = of_region->cut;
      if (of_region->cut != 0) found.region->phase = RegionPhase::GivenUp;
      for (const FoundRegion& other : found_) {
        if (other.region->number == of_region->number)
          refuse("path", "one file of a region", name + " is another");
      }
      if (const int result = io_.open(name, Io::Mode::Write, found.region->file); result != 0) {
        refuse("path", "a store whose regions can be opened", name + ": " + error_text(result));
      }
      require_alignment(io_, found.region->file);
      found_.push_back(std::move(found));
    }
    recovered_.regions = found_.size();
  }

  void read(std::vector<RecoveryRead*> reads, const std::string& name) { read_all(io_, reads, name); }

  // The epoch of each region's life, from its header; where that is damaged, from its footer: the one of a former life is
  // erased before a new life's header counts.
  void read_heads() {
    std::vector<RecoveryRead*> heads;
    for (FoundRegion& found : found_) {
      found.head = std::make_unique<RecoveryRead>(found.region->file, 0, region_header_bytes);
      heads.push_back(found.head.get());
    }
    read(heads, "a region");
    std::uint64_t headless = 0;
    for (FoundRegion& found : found_) {
      std::optional<std::uint64_t> epoch = epoch_of_header(found);
      if (!epoch) {
        ++headless;
        epoch = epoch_of_footer(found);
      }
      if (!epoch) continue;
      found.region->epoch = *epoch;
      next_epoch_ = std::max(next_epoch_, *epoch + 1);
      living_.push_back(&found);
    }
    next_epoch_ += headless;  // a life whose header is lost had an epoch that no other may get
  }
  std::optional<std::uint64_t> epoch_of_header(FoundRegion& found) {
    const auto read_it = [&] { return read_region_header(found.head->bytes(), header_of(*found.region)); };
    std::optional<std::uint64_t> epoch = read_it();
    if (!epoch) {
      found.head = std::make_unique<RecoveryRead>(found.region->file, 0, region_header_bytes);
      read({found.head.get()}, found.region->name());
      epoch = read_it();
    }
    found.head.reset();
    return epoch;
  }
  std::optional<std::uint64_t> epoch_of_footer(const FoundRegion& found) {
    const auto tail = tail_read(*found.region, disk_unit);
    read({tail.get()}, found.region->name());
    const auto trailer = read_footer_trailer(tail->bytes(), header_of(*found.region));
    return trailer ? std::optional(trailer->epoch) : std::nullopt;
  }

  void read_regions(std::span<FoundRegion* const> some) {
    const std::uint64_t usual =
        std::min<std::uint64_t>(std::uint64_t{64} << 10, footer_bytes(superblock_.region_bytes / disk_unit));
    std::vector<RecoveryRead*> reads;
    for (FoundRegion* found : some) {
      found->tail = tail_read(*found->region, usual);
      reads.push_back(found->tail.get());
    }
    read(reads, some.front()->region->name());
    for (FoundRegion* found : some) {
      read_footer(*found);
      if (!found->sound_footer) scan(*found);
      found->tail.reset();
      load(*found);
      found->entries = {};
    }
  }

  void read_footer(FoundRegion& found) {
    if (found.region->cut != 0) return;
    const auto trailer = read_footer_trailer(found.tail->bytes(), header_of(*found.region));
    if (!trailer || trailer->epoch != found.region->epoch) return;
    const std::uint64_t bytes = footer_bytes(trailer->entries);
    if (bytes > superblock_.region_bytes - region_header_bytes) return;
    if (bytes > found.tail->bytes().size()) {
      found.tail = tail_read(*found.region, bytes);
      read({found.tail.get()}, found.region->name());
    }
    found.sound_footer =
        read_footer_entries(found.tail->bytes(), *trailer, superblock_.region_bytes, found.entries);
    if (!found.sound_footer) found.entries.clear();
  }

  void scan(FoundRegion& found) {
    ScanLosses losses;
    const std::uint64_t limit =
        found.region->cut != 0 ? std::uint64_t{found.region->cut} * disk_unit : superblock_.region_bytes;
    RegionScan scan(io_, found.region->file, header_of(*found.region), limit, losses);
    for (FooterEntry entry; scan.next(entry);) found.entries.push_back(entry);
    recovered_.scanned_regions += !found.entries.empty() || losses.torn != 0;
    recovered_.torn += losses.torn;
    recovered_.stale += losses.stale;
    if (found.entries.empty()) return;
    const FooterEntry& last = found.entries.back();
    found.region->tail = found.region->published = std::uint64_t{last.at + last.units} * disk_unit;
    found.region->lingering += losses.torn;
  }

  // Of one key, the last record counts. Regions come in the order of their epochs.
  void load(FoundRegion& found) {
    DiskRegion& region = *found.region;
    const std::uint64_t rank = ++ranks_ << 32;
    for (const FooterEntry& entry : found.entries) {
      const std::uint64_t order = rank | entry.at;
      if (entry.key.kind == RecordKind::Tombstone) {
        ++region.tombstones;
        RecordKey key = entry.key;
        key.kind = static_cast<RecordKind>(entry.flags);
        tombstones_.emplace_back(key, order);
        continue;
      }
      ++region.lingering;  // until it is found to be the one that counts
      const RecordPlace place{region.number, entry.at, entry.units, entry.payload_units};
      DiskIndex::Number n = index_.find(entry.key);
      if (n == none_u32) {
        n = index_.load(entry.key, entry.flags, entry.pinned, place);
        if (n == none_u32) continue;
        loaded_.resize(std::max<std::size_t>(loaded_.size(), n + 1));
      } else {
        index_.reload(n, entry.flags, entry.pinned, place);
      }
      loaded_[n] = {entry.parent, order, 0};
    }
    region.phase = region.cut != 0         ? RegionPhase::GivenUp
                   : found.sound_footer    ? RegionPhase::Sealed
                   : found.entries.empty() ? RegionPhase::Free
                                           : RegionPhase::Open;
    if (region.cut != 0) region.synced = region.published;
    if (region.phase == RegionPhase::Open) region.entries = std::move(found.entries);
  }

  void link() {
    for (const auto& [key, order] : tombstones_) {  // ascending
      if (const DiskIndex::Number n = index_.find(key); n != none_u32) loaded_[n].removed_at = order;
    }
    index_.link_loaded(loaded_, [&](DiskIndex::Number n, DiskIndex::Left why) {
      ++(why == DiskIndex::Left::Removed ? recovered_.removed : recovered_.orphans);
      if (left_out_ != nullptr) left_out_->push_back({index_.place(n), why});
    });
  }

  DiskContent content() {
    DiskContent out;
    out.superblock = superblock_;
    out.next_epoch = next_epoch_;
    for (FoundRegion& found : found_) {
      const std::uint32_t number = found.region->number;
      while (out.regions.size() <= number) {
        out.regions.push_back(std::make_unique<DiskRegion>());
        out.regions.back()->number = static_cast<std::uint32_t>(out.regions.size() - 1);
        out.regions.back()->phase = RegionPhase::Absent;
      }
      out.regions[number] = std::move(found.region);
    }
    for (DiskIndex::Number n = 0; n < loaded_.size(); ++n) {
      if (!index_.holds(n)) continue;
      DiskRegion& region = *out.regions[index_.place(n).region];
      region.numbers.push_back(n);
      ++region.live;
      --region.lingering;
      ++recovered_.records;
      recovered_.bytes += std::uint64_t{index_.place(n).units} * disk_unit;
    }
    return out;
  }

  // More regions than the capacity has now: what is free goes, then the oldest, and each before the next, so that no
  // tombstone goes before what it removes.
  void shrink(DiskContent& content) {
    const std::uint64_t limit = options_.capacity_bytes / superblock_.region_bytes;
    for (std::uint64_t left = recovered_.regions; left > limit; --left) {
      DiskRegion* out = nullptr;
      for (const auto& region : content.regions) {
        if (region->phase == RegionPhase::Absent) continue;
        const auto rank = [](const DiskRegion& r) { return r.phase == RegionPhase::Free ? 0 : r.epoch; };
        if (out == nullptr || rank(*region) < rank(*out)) out = region.get();
      }
      for (const DiskIndex::Number n : out->numbers) {
        if (!index_.holds(n) || index_.place(n).region != out->number) continue;
        index_.erase(n, [&](const RecordPlace& place) {
          --content.regions[place.region]->live;
          ++content.regions[place.region]->lingering;
        });
      }
      io_.close(std::exchange(out->file, no_file));
      const int removed = io_.remove(out->name());
      if (removed != 0 || io_.sync_directory() != 0) {
        refuse("capacity_bytes", "a directory whose regions can be removed",
               error_text(removed != 0 ? removed : -EIO));
      }
      const std::uint32_t number = out->number;
      *out = DiskRegion();
      out->number = number;
      out->phase = RegionPhase::Absent;
    }
    for (const auto& region : content.regions) {
      std::erase_if(region->numbers, [&](DiskIndex::Number n) {
        return !index_.holds(n) || index_.place(n).region != region->number;
      });
    }
  }

  Io& io_;
  const DiskOptions& options_;
  DiskIndex& index_;
  Recovered& recovered_;
  const Superblock superblock_;
  std::vector<LeftOut>* const left_out_;
  std::vector<FoundRegion> found_;
  std::vector<FoundRegion*> living_;
  std::vector<DiskIndex::Loaded> loaded_;
  std::vector<std::pair<RecordKey, std::uint64_t>> tombstones_;
  std::uint64_t next_epoch_ = 1, ranks_ = 0;
};

void require_capacity(const DiskOptions& options, std::uint64_t region_bytes) {
  if (options.capacity_bytes / region_bytes < least_regions) {
    refuse("capacity_bytes",
           "at least " + std::to_string(least_regions) + " regions of " + std::to_string(region_bytes),
           std::to_string(options.capacity_bytes));
  }
}

}  // namespace

std::uint64_t region_bytes_for(std::uint64_t capacity_bytes) {
  std::uint64_t bytes = std::uint64_t{64} << 20;
  while (bytes < most_region_bytes && capacity_bytes / bytes > 512) bytes *= 2;
  return bytes;
}

void check_options(const DiskOptions& options) {
  const auto require = [](bool met, const char* field, const char* expected, const std::string& got) {
    if (!met) throw Error(ErrorCode::ArgumentError, field, expected, got);
  };
  const bool by_capacity = options.region_bytes == 0;
  require(
      by_capacity || (options.region_bytes % disk_unit == 0 && options.region_bytes >= least_region_bytes &&
                      options.region_bytes <= most_region_bytes),
      "region_bytes", "a multiple of 4096 from 65536 to 4 GiB", std::to_string(options.region_bytes));
  require(options.depth >= 1, "depth", "at least 1", "0");
  require(options.keep_share >= 0 && options.keep_share <= 0.25, "keep_share", "0 to 0.25",
          std::to_string(options.keep_share));
  require(options.admission != WriteAdmission::Budget || options.budget_bytes_per_second > 0,
          "budget_bytes_per_second", "at least 1", "0");
}

DiskContent recover(Io& io, const DiskOptions& options, DiskIndex& index, Recovered& recovered,
                    std::vector<LeftOut>* left_out) {
  const auto begun = std::chrono::steady_clock::now();
  check_options(options);
  if (const int result = io.lock(); result != 0) {
    refuse("path", "a store that no other has open",
           options.path + ": " + (result == -EWOULDBLOCK ? opener_text(io.locked_by()) : error_text(result)));
  }
  std::vector<std::string> names;
  if (const int result = io.list(names); result != 0) {
    refuse("path", "a directory that can be listed", error_text(result));
  }
  const bool is_store = std::find(names.begin(), names.end(), superblock_name) != names.end();
  Superblock superblock;
  if (is_store) {
    superblock = read_superblock_file(io);
    require_capacity(options, superblock.region_bytes);
  } else {
    std::erase(names, superblock_draft_name);
    if (!names.empty())
      refuse("path", "a store, or an empty directory to make one in", "one with " + names.front());
    require_capacity(options, region_bytes_of(options));
    superblock = make_superblock(io, options);
  }
  Recovery recovery(io, options, index, recovered, superblock, left_out);
  DiskContent out = recovery.run(names);
  recovered.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  return out;
}

}  // namespace hkv
