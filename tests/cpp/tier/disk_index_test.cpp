// SPDX-License-Identifier: Apache-2.0
// The index of a disk tier against a model, beside readers; and the bytes of superblock, header and footer.
#include "tier/disk_index.h"

#include <map>
#include <random>
#include <set>
#include <thread>

#include "testing.h"
#include "tier/region.h"

namespace hkv {
namespace {

using Answer = Presence::Answer;

RecordKey block(std::uint64_t n, std::uint64_t format = 1) {
  return {{n, ~n}, {format, 2}, RecordKind::Block};
}
RecordKey boundary(std::uint64_t n) { return {{n, ~n}, {9, 2}, RecordKind::Boundary}; }
RecordPlace place_of(std::uint64_t n) {
  return {static_cast<std::uint32_t>(n % 1000), static_cast<std::uint32_t>(n % 900 + 1), 3, 1};
}

DiskIndex::Number add(DiskIndex& index, std::uint64_t n, Key128 parent = {}) {
  DiskIndex::Number out = none_u32;
  return index.insert(block(n), parent, static_cast<std::uint8_t>(n), false, place_of(n), out) ==
                 DiskIndex::Insert::Done
             ? out
             : none_u32;
}

HKV_TEST("the index is its model through inserts and erases of whole trees") {
  DiskIndex index;
  std::mt19937_64 random(1);
  std::map<std::uint64_t, std::uint64_t> parents;  // 0: none
  const auto above = [&](std::uint64_t n) {
    std::set<std::uint64_t> out = {n};
    for (bool more = true; more;) {
      more = false;
      for (const auto& [child, parent] : parents) more |= out.contains(parent) && out.insert(child).second;
    }
    return out;
  };
  for (int step = 0; step < 6000; ++step) {
    const std::uint64_t n = random() % 400 + 1;
    const bool there = parents.contains(n);
    EXPECT_EQ(index.find(block(n)) != none_u32, there);
    EXPECT_EQ(index.look(block(n)).answer, there ? Answer::Here : Answer::Absent);
    if (there && random() % 4 == 0) {
      std::set<std::uint64_t> gone;
      index.erase(index.find(block(n)), [&](const RecordPlace& place) { gone.insert(place.region); });
      EXPECT(gone == above(n));
      for (const std::uint64_t each : gone) parents.erase(each);
    } else if (!there) {
      const std::uint64_t parent = random() % 2 == 0 ? 0 : random() % 400 + 1;
      const bool takes = parent == 0 || parents.contains(parent);
      EXPECT_EQ(index.has_parent(block(n), parent == 0 ? Key128{} : block(parent).digest), takes);
      const auto number = add(index, n, parent == 0 ? Key128{} : block(parent).digest);
      EXPECT_EQ(number != none_u32, takes);
      if (takes) {
        parents[n] = parent;
        EXPECT(index.place(number) == place_of(n));
        EXPECT_EQ(index.look(block(n)).flags, static_cast<std::uint8_t>(n));
        EXPECT_EQ(index.key(number) == block(n), true);
      }
    }
    EXPECT_EQ(index.records(), parents.size());
  }
  EXPECT(index.records() > 50);
}

HKV_TEST("formats and kinds are other records; a boundary stands on a block of any format") {
  DiskIndex index;
  EXPECT(add(index, 1) != none_u32);
  EXPECT_EQ(index.look(block(1, 3)).answer, Answer::OtherFormat);
  EXPECT_EQ(index.look(boundary(1)).answer, Answer::Absent);
  DiskIndex::Number n = none_u32;
  EXPECT(index.insert(boundary(1), block(1).digest, 0, false, place_of(5), n) == DiskIndex::Insert::Done);
  EXPECT(index.insert(block(2, 3), block(1).digest, 0, false, place_of(6), n) == DiskIndex::Insert::NoParent);
  EXPECT_EQ(index.look(boundary(1)).answer, Answer::Here);
  index.erase(index.find(block(1)), [](const RecordPlace&) {});
  EXPECT_EQ(index.look(boundary(1)).answer, Answer::Absent);
  EXPECT_EQ(index.records(), 0u);
}

HKV_TEST("uses count up to three, a move forgets them, and a pin stays") {
  DiskIndex index;
  const auto n = add(index, 1);
  for (std::uint32_t use = 1; use <= 5; ++use) {
    index.touch(block(1));
    EXPECT_EQ(index.word(n).hits(), std::min(use, 3u));
  }
  index.touch(block(2));
  index.pin(n);
  index.move(n, place_of(7));
  EXPECT_EQ(index.word(n).hits(), 0u);
  EXPECT(index.word(n).pinned());
  EXPECT(index.place(n) == place_of(7));
}

HKV_TEST("what was loaded becomes a forest: no orphans, no cycles, nothing under a later tombstone") {
  DiskIndex index;
  std::vector<DiskIndex::Loaded> loaded;
  const auto load = [&](std::uint64_t n, std::uint64_t parent, std::uint64_t order,
                        std::uint64_t removed = 0) {
    const auto number = index.load(block(n), 0, false, place_of(n));
    loaded.resize(number + 1);
    loaded[number] = {parent == 0 ? Key128{} : block(parent).digest, order, removed};
  };
  load(3, 2, 10);  // before what it stands on
  load(2, 1, 20);
  load(1, 0, 30);
  load(5, 4, 40);  // an orphan, and one above it
  load(6, 5, 50);
  load(7, 8, 60);  // a cycle
  load(8, 7, 70);
  load(10, 0, 80, 85);  // removed
  load(11, 0, 95, 85);  // removed and put again
  load(12, 11, 82);     // which stood on it before
  load(13, 11, 97);
  std::map<std::uint32_t, DiskIndex::Left> left;
  index.link_loaded(loaded,
                    [&](DiskIndex::Number n, DiskIndex::Left why) { left[index.place(n).region] = why; });
  for (const std::uint64_t n : {1, 2, 3, 11, 13}) EXPECT_EQ(index.look(block(n)).answer, Answer::Here);
  for (const std::uint32_t n : {5u, 6u, 7u, 8u})
    EXPECT(left.contains(n) && left[n] == DiskIndex::Left::Orphan);
  for (const std::uint32_t n : {10u, 12u}) EXPECT(left.contains(n) && left[n] == DiskIndex::Left::Removed);
  EXPECT_EQ(left.size(), 6u);
  EXPECT_EQ(index.records(), 5u);
  index.erase(index.find(block(1)), [](const RecordPlace&) {});
  EXPECT_EQ(index.records(), 2u);
}

HKV_TEST(
    "beside one that inserts and erases, readers find what is there throughout and nothing that never was") {
  DiskIndex index;
  for (std::uint64_t n = 1; n <= 500; ++n) add(index, n);
  std::atomic<bool> over{false};
  std::atomic<std::uint64_t> looks{0};
  std::vector<std::thread> readers;
  for (int t = 0; t < 2; ++t) {
    readers.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<std::uint64_t>(t) + 7);
      while (!over) {
        const std::uint64_t n = random() % 500 + 1;
        const Presence seen = index.look(block(n));
        EXPECT_EQ(seen.answer, Answer::Here);
        EXPECT_EQ(seen.flags, static_cast<std::uint8_t>(n));
        index.touch(block(n));
        EXPECT_EQ(index.look(block(n + 1'000'000)).answer, Answer::Absent);
        ++looks;
      }
    });
  }
  std::mt19937_64 random(3);
  for (std::uint64_t round = 0; round < 20 || looks < 2000;
       ++round) {  // buckets split in the first, cells live again in all
    for (std::uint64_t n = 1000; n < 3000; ++n)
      add(index, n + round * 10'000, round % 2 == 0 ? Key128{} : block(n % 500 + 1).digest);
    for (std::uint64_t n = 1000; n < 3000; ++n) {
      const auto number = index.find(block(n + round * 10'000));
      if (number != none_u32) index.erase(number, [](const RecordPlace&) {});
    }
  }
  over = true;
  for (auto& reader : readers) reader.join();
  EXPECT_EQ(index.records(), 500u);
}

// ---- what the files look like -----------------------------------------------------------------

constexpr RegionHeader header{{11, 12}, 3, 77, 64 * disk_unit};

HKV_TEST("superblock: read back as written; a flipped bit is damage; a newer layout is told") {
  std::vector<std::byte> bytes(disk_unit);
  const std::span<std::byte, disk_unit> out(bytes.data(), disk_unit);
  write_superblock({.version = disk_layout_version, .store = {5, 6}, .region_bytes = 1 << 20}, out);
  Superblock back;
  EXPECT(read_superblock(bytes, back) == SuperblockFault::None);
  EXPECT(back.store == (Key128{5, 6}) && back.region_bytes == 1u << 20);
  for (std::size_t bit = 0; bit < 36 * 8; ++bit) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT(read_superblock(bytes, back) == SuperblockFault::Damaged);
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  for (std::size_t n = 0; n < 36; ++n) {
    EXPECT(read_superblock(std::span(bytes).first(n), back) == SuperblockFault::Damaged);
  }
  write_superblock({.version = disk_layout_version + 1, .store = {5, 6}, .region_bytes = 3}, out);
  EXPECT(read_superblock(bytes, back) == SuperblockFault::Newer);
  EXPECT_EQ(back.version, disk_layout_version + 1);
}

HKV_TEST("header: of this store, file and size alone; a flipped bit is none") {
  std::vector<std::byte> bytes(region_header_bytes);
  write_region_header(header, std::span<std::byte, region_header_bytes>(bytes.data(), region_header_bytes));
  EXPECT_EQ(read_region_header(bytes, header).value_or(0), 77u);
  for (std::size_t bit = 0; bit < 48 * 8; ++bit) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT(!read_region_header(bytes, header));
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  for (std::size_t n = 0; n < 48; ++n) EXPECT(!read_region_header(std::span(bytes).first(n), header));
  RegionHeader other = header;
  other.number = 4;
  EXPECT(!read_region_header(bytes, other));
  other = header;
  other.store.lo ^= 1;
  EXPECT(!read_region_header(bytes, other));
  other = header;
  other.region_bytes *= 2;
  EXPECT(!read_region_header(bytes, other));
}

HKV_TEST("footer: read back from the end of the region as written; a flipped bit is none") {
  std::vector<FooterEntry> entries;
  for (std::uint32_t i = 0; i < 5; ++i) {
    entries.push_back(
        {block(i), block(i + 1).digest, 1 + 2 * i, 2, 1, static_cast<std::uint8_t>(i), i % 2 == 0});
  }
  std::vector<std::byte> bytes(footer_bytes(entries.size()));
  write_footer(header, entries, bytes);
  const auto read = [&](std::vector<FooterEntry>& out) {
    const auto trailer = read_footer_trailer(bytes, header);
    return trailer && trailer->epoch == header.epoch &&
           read_footer_entries(bytes, *trailer, header.region_bytes, out);
  };
  std::vector<FooterEntry> back;
  EXPECT(read(back));
  EXPECT(back == entries);
  const std::size_t used = entries.size() * footer_entry_bytes + footer_trailer_bytes;
  for (std::size_t bit = (bytes.size() - used) * 8; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT(!read(back));
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  RegionHeader other = header;
  other.number = 9;
  EXPECT(!read_footer_trailer(bytes, other));
}

HKV_TEST("names of region files, and what is none") {
  for (const RegionName& name :
       {RegionName{0, 0}, RegionName{123456, 0}, RegionName{7, 12}, RegionName{7, 1048575}}) {
    EXPECT(read_region_name(text_of(name)) == name);
  }
  EXPECT_EQ(text_of({7, 12}), "000007.region-12");
  for (const char* other :
       {"", "superblock", "00001.region", "0000010.region", "00000a.region", "000001.regions",
        "000001.region-", "000001.region-0", "000001.region-01", "000001.region-x", "000001.region.bak"}) {
    EXPECT(!read_region_name(other));
  }
}

}  // namespace
}  // namespace hkv
