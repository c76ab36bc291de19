// SPDX-License-Identifier: Apache-2.0
// A directory on a disk that is a value: what reads see, and what a power cut leaves of it.
//
// The contract that it holds a tier to is the weakest that POSIX and disks allow:
//  1. A write is seen once it is done, and survives a power cut only once a sync that was begun after it was done has
//     succeeded. Until then each of its sectors survives or not, one by one; a sector is whole.
//  2. The same of a file's length, and of each creation, rename and removal with sync_directory. A sync of a file says
//     nothing of its name.
//  3. A write that was not done when the power went may have reached any of its sectors.
//  4. A sync that failed lost what it was to keep: no later one makes that durable (as Linux marks pages clean). It may
//     still survive by luck.
//
// Cheap to copy: sectors are shared until written.
//
// Thread safety: a value.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace hkv {

struct SimulatedDiskOptions {
  std::size_t sector_bytes = 512;  // what is written whole or not at all
  std::uint32_t alignment = 512;   // of memory, offset and length; 1: through a page cache
  std::uint64_t capacity_bytes = std::uint64_t{1} << 40;
};

// Whether the n-th thing that may or may not have reached the disk did.
using Survives = std::function<bool(std::size_t item)>;

class SimulatedDisk {
 public:
  using Inode = std::uint32_t;
  static constexpr Inode no_inode = 0;

  explicit SimulatedDisk(const SimulatedDiskOptions& options = {}) : options_(options) {}
  const SimulatedDiskOptions& options() const { return options_; }

  // ---- names ----------------------------------------------------------------------------------
  Inode find(const std::string& name) const {
    const auto found = names_.find(name);
    return found == names_.end() ? no_inode : found->second;
  }
  Inode create(const std::string& name) {
    const Inode inode = next_inode_++;
    files_[inode] = {};
    change({.set = name, .inode = inode, .cleared = {}});
    return inode;
  }
  void rename(const std::string& from, const std::string& to) {
    change({.set = to, .inode = find(from), .cleared = from});
  }
  void remove(const std::string& name) { change({.set = {}, .inode = find(name), .cleared = name}); }
  void sync_directory() {
    for (const NameChange& op : name_changes_) apply(op, durable_names_);
    name_changes_.clear();
    drop_unreachable();
  }
  std::vector<std::string> list() const {
    std::vector<std::string> out;
    for (const auto& [name, inode] : names_) out.push_back(name);
    return out;
  }
  // An open file outlives its name.
  void hold(Inode inode) { ++files_.at(inode).held; }
  void release(Inode inode) {
    --files_.at(inode).held;
    drop_unreachable();
  }

  // ---- bytes; `now` orders what is done and what begins -----------------------------------------
  std::uint64_t size(Inode inode) const { return files_.at(inode).size; }
  std::uint64_t used_bytes() const {
    std::uint64_t sum = 0;
    for (const auto& [inode, file] : files_) sum += file.size;
    return sum;
  }
  std::uint64_t free_bytes() const {
    return options_.capacity_bytes - std::min(options_.capacity_bytes, used_bytes());
  }

  // Returns: bytes read, fewer at the end of the file.
  std::size_t read(Inode inode, std::uint64_t offset, void* out, std::size_t bytes) const {
    const File& file = files_.at(inode);
    if (offset >= file.size) return 0;
    bytes = static_cast<std::size_t>(std::min<std::uint64_t>(bytes, file.size - offset));
    each_sector(offset, bytes, [&](std::size_t sector, std::size_t from, std::size_t at, std::size_t count) {
      auto* target = static_cast<std::byte*>(out) + at;
      if (const Sector& data = at_sector(file.seen, sector)) {
        std::memcpy(target, data->data() + from, count);
      } else {
        std::memset(target, 0, count);
      }
    });
    return bytes;
  }

  // A write that is done. Returns whether there was room.
  bool write(Inode inode, std::uint64_t offset, const void* data, std::size_t bytes, std::uint64_t now) {
    if (!grow(inode, offset + bytes, now)) return false;
    File& file = files_.at(inode);
    each_sector(offset, bytes, [&](std::size_t sector, std::size_t from, std::size_t at, std::size_t count) {
      Sector next =
          changed(at_sector(file.seen, sector), from, static_cast<const std::byte*>(data) + at, count);
      put(file.seen, sector, next);
      file.pending.push_back({sector, std::move(next), now, false});
    });
    return true;
  }

  // A write that was under way when the power went: nothing sees it any more, each sector may be there.
  void write_unfinished(Inode inode, std::uint64_t offset, const void* data, std::size_t bytes) {
    File& file = files_.at(inode);
    each_sector(offset, bytes, [&](std::size_t sector, std::size_t from, std::size_t at, std::size_t count) {
      Sector next =
          changed(at_sector(file.seen, sector), from, static_cast<const std::byte*>(data) + at, count);
      file.pending.push_back({sector, std::move(next), ~std::uint64_t{0}, false});
    });
    if (offset + bytes > file.size) file.sizes.push_back({offset + bytes, ~std::uint64_t{0}, false});
  }

  // The file has at least `size` bytes; new ones are zero. Returns whether there was room.
  bool grow(Inode inode, std::uint64_t size, std::uint64_t now) {
    File& file = files_.at(inode);
    if (size <= file.size) return true;
    if (size - file.size > free_bytes()) return false;
    file.size = size;
    file.sizes.push_back({size, now, false});
    return true;
  }

  // What was done before `begun` survives from now on; where the sync failed, it never will for certain.
  void sync(Inode inode, std::uint64_t begun, bool failed) {
    File& file = files_.at(inode);
    std::vector<Piece> left;
    for (Piece& piece : file.pending) {
      if (piece.done < begun && !piece.doomed && !failed) {
        // Its sector holds it now, whatever older pieces might have become.
        std::erase_if(left, [&](const Piece& older) { return older.sector == piece.sector; });
        put(file.durable, piece.sector, piece.data);
        continue;
      }
      piece.doomed = piece.doomed || (failed && piece.done < begun);
      left.push_back(std::move(piece));
    }
    file.pending = std::move(left);
    for (Length& length : file.sizes) {
      if (length.done >= begun || length.doomed) continue;
      if (failed) length.doomed = true;
      if (!failed) file.durable_size = std::max(file.durable_size, length.size);
    }
    std::erase_if(file.sizes, [&](const Length& length) { return length.size <= file.durable_size; });
  }

  // ---- power cut -------------------------------------------------------------------------------
  // How many things may or may not have reached the disk: changes of names, lengths, sectors.
  std::size_t uncertain() const {
    std::size_t count = name_changes_.size();
    for (const auto& [inode, file] : files_) count += file.sizes.size() + file.pending.size();
    return count;
  }

  // The disk after a power cut. Items are asked about in one order: names, then by file lengths and sectors, each in
  // the order in which they were done.
  SimulatedDisk restart(const Survives& survives) const {
    SimulatedDisk out(options_);
    std::size_t item = 0;
    out.durable_names_ = durable_names_;
    for (const NameChange& op : name_changes_) {
      if (survives(item++)) apply(op, out.durable_names_);
    }
    for (const auto& [inode, file] : files_) {
      File& after = out.files_[inode];
      after.durable = file.durable;
      after.durable_size = file.durable_size;
      for (const Length& length : file.sizes) {
        if (survives(item++)) after.durable_size = std::max(after.durable_size, length.size);
      }
      for (const Piece& piece : file.pending) {
        if (survives(item++)) put(after.durable, piece.sector, piece.data);
      }
      // Beyond the length nothing is kept.
      const std::size_t sectors = (after.durable_size + options_.sector_bytes - 1) / options_.sector_bytes;
      if (after.durable.size() > sectors) after.durable.resize(sectors);
      const std::size_t tail = after.durable_size % options_.sector_bytes;
      if (tail != 0 && after.durable.size() == sectors && after.durable[sectors - 1]) {
        const std::vector<std::byte> zeros(options_.sector_bytes - tail);
        after.durable[sectors - 1] = changed(after.durable[sectors - 1], tail, zeros.data(), zeros.size());
      }
      after.seen = after.durable;
      after.size = after.durable_size;
    }
    out.names_ = out.durable_names_;
    out.next_inode_ = next_inode_;
    out.drop_unreachable();
    return out;
  }
  SimulatedDisk restart_with_all() const {
    return restart([](std::size_t) { return true; });
  }
  SimulatedDisk restart_with_none() const {
    return restart([](std::size_t) { return false; });
  }

  // Flips a bit that is on the disk for good.
  void rot(const std::string& name, std::uint64_t offset, unsigned bit) {
    File& file = files_.at(find(name));
    const std::size_t sector = offset / options_.sector_bytes, from = offset % options_.sector_bytes;
    std::byte byte{};
    read(find(name), offset, &byte, 1);
    byte ^= std::byte{1} << bit;
    const Sector next = changed(at_sector(file.seen, sector), from, &byte, 1);
    put(file.seen, sector, next);
    put(file.durable, sector, next);
  }

 private:
  using Sector = std::shared_ptr<const std::vector<std::byte>>;  // empty: zeros
  using Sectors = std::vector<Sector>;
  struct Piece {
    std::size_t sector;
    Sector data;
    std::uint64_t done;  // when
    bool doomed;         // a sync of it failed
  };
  struct Length {
    std::uint64_t size, done;
    bool doomed;
  };
  struct File {
    Sectors seen, durable;
    std::uint64_t size = 0, durable_size = 0;
    std::vector<Piece> pending;
    std::vector<Length> sizes;
    std::uint32_t held = 0;
  };
  // One change of names: `set` is the inode's, `cleared` no longer.
  struct NameChange {
    std::string set;
    Inode inode;
    std::string cleared;
  };

  static void apply(const NameChange& op, std::map<std::string, Inode>& names) {
    const auto old = names.find(op.cleared);
    if (old != names.end() && old->second == op.inode) names.erase(old);
    if (!op.set.empty()) names[op.set] = op.inode;
  }
  void change(NameChange op) {
    apply(op, names_);
    name_changes_.push_back(std::move(op));
    drop_unreachable();
  }
  void drop_unreachable() {
    std::erase_if(files_, [this](const auto& entry) {
      const auto named = [&](const auto& names) {
        return std::any_of(names.begin(), names.end(),
                           [&](const auto& n) { return n.second == entry.first; });
      };
      const auto changing = [&] {
        return std::any_of(name_changes_.begin(), name_changes_.end(),
                           [&](const NameChange& op) { return op.inode == entry.first; });
      };
      return entry.second.held == 0 && !named(names_) && !named(durable_names_) && !changing();
    });
  }

  static const Sector& at_sector(const Sectors& sectors, std::size_t at) {
    static const Sector zeros;
    return at < sectors.size() ? sectors[at] : zeros;
  }
  static void put(Sectors& sectors, std::size_t at, Sector data) {
    if (at >= sectors.size()) sectors.resize(at + 1);
    sectors[at] = std::move(data);
  }
  Sector changed(const Sector& old, std::size_t from, const std::byte* data, std::size_t count) const {
    auto next = old ? std::make_shared<std::vector<std::byte>>(*old)
                    : std::make_shared<std::vector<std::byte>>(options_.sector_bytes);
    std::memcpy(next->data() + from, data, count);
    return next;
  }
  template <class F>
  void each_sector(std::uint64_t offset, std::size_t bytes, F f) const {
    for (std::size_t at = 0; at < bytes;) {
      const std::size_t from = (offset + at) % options_.sector_bytes;
      const std::size_t count = std::min(options_.sector_bytes - from, bytes - at);
      f(static_cast<std::size_t>((offset + at) / options_.sector_bytes), from, at, count);
      at += count;
    }
  }

  SimulatedDiskOptions options_;
  std::map<Inode, File> files_;
  std::map<std::string, Inode> names_, durable_names_;
  std::vector<NameChange> name_changes_;
  Inode next_inode_ = 1;
};

// At most `most` ways in which `items` uncertain things come out: all of them where they are so few, else none, all,
// each alone, all but each, each prefix, and random ones.
inline std::vector<Survives> ways_to_survive(std::size_t items, std::size_t most, std::uint64_t seed) {
  std::vector<Survives> out;
  if (items < 20 && (std::size_t{1} << items) <= most) {
    for (std::uint64_t bits = 0; bits < std::uint64_t{1} << items; ++bits) {
      out.push_back([bits](std::size_t item) { return (bits >> item & 1) != 0; });
    }
    return out;
  }
  out.push_back([](std::size_t) { return false; });
  out.push_back([](std::size_t) { return true; });
  for (std::size_t i = 0; i < items && out.size() + 3 <= most; ++i) {
    const std::size_t one =
        3 * items <= most ? i : (i * 7919 + seed) % items;  // spread where not all have room
    out.push_back([one](std::size_t item) { return item == one; });
    out.push_back([one](std::size_t item) { return item != one; });
    out.push_back([one](std::size_t item) { return item < one; });
    if (out.size() >= most / 2 && 3 * items > most) break;
  }
  for (std::mt19937_64 random(seed); out.size() < most;) {
    const std::uint64_t key = random();
    out.push_back([key](std::size_t item) {
      std::uint64_t z = key + (item + 1) * 0x9e3779b97f4a7c15ull;
      z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
      return (z >> 33 & 1) != 0;
    });
  }
  return out;
}

}  // namespace hkv
