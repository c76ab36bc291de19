// SPDX-License-Identifier: Apache-2.0
// The index of a disk tier against a model, beside readers; the bytes of superblock, header and footer; and a store
// looked at from outside.
#include "tier/disk_index.h"

#include <map>
#include <random>
#include <set>
#include <thread>

#include "testing.h"
#include "tier/disk_world.h"
#include "tier/region.h"
#include "tier/store_walk.h"

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

HKV_TEST("formats in use are those of the records that are there, whatever was there before") {
  DiskIndex index;
  EXPECT(index.formats_in_use().empty());
  DiskIndex::Number n = none_u32;
  add(index, 1);
  EXPECT(index.insert(block(2, 3), {}, 0, false, place_of(5), n) == DiskIndex::Insert::Done);
  EXPECT(index.insert(boundary(1), block(1).digest, 0, false, place_of(6), n) == DiskIndex::Insert::Done);
  EXPECT(index.formats_in_use() ==
         std::vector<Key128>({block(1).format, block(2, 3).format, boundary(1).format}));
  index.erase(index.find(block(2, 3)), [](const RecordPlace&) {});
  EXPECT(index.formats_in_use() == std::vector<Key128>({block(1).format, boundary(1).format}));
  index.erase(index.find(block(1)), [](const RecordPlace&) {});
  EXPECT(index.formats_in_use().empty());
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

HKV_TEST("footer: a tombstone removes a block or a boundary; one of anything else is none") {
  for (int flags = 0; flags < 256; ++flags) {
    RecordKey removed = block(1);
    removed.kind = RecordKind::Tombstone;
    const FooterEntry entry{removed, Key128{}, 1, 1, 1, static_cast<std::uint8_t>(flags), false};
    std::vector<std::byte> bytes(footer_bytes(1));
    write_footer(header, {&entry, 1}, bytes);
    const auto trailer = read_footer_trailer(bytes, header);
    EXPECT(trailer.has_value());
    std::vector<FooterEntry> back;
    EXPECT_EQ(read_footer_entries(bytes, *trailer, header.region_bytes, back), flags == 1 || flags == 2);
  }
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

// ---- looked at from outside -----------------------------------------------------------------

std::unique_ptr<StoreWalk> walk_of(const SimulatedDisk& disk) {
  return std::make_unique<StoreWalk>(std::make_unique<SimulatedIo>(disk, 4), "simulated");
}

// Three blocks and a boundary on the second in region 0, sealed.
SimulatedDisk four_records() {
  DiskWorld world{SimulatedDisk()};
  world.open();
  for (const int key : {1, 2, 3})
    EXPECT_EQ(world.wait(world.put(key, key - 2 < 0 ? -1 : key - 1)), TierStatus::Ok);
  EXPECT_EQ(world.wait(world.put(102, 2)), TierStatus::Ok);
  EXPECT(world.close());
  return world.io.disk();
}

HKV_TEST("a walk says of each record what an opener finds, after every history, and writes nothing") {
  DiskWorld world{SimulatedDisk()};
  world.open();
  for (int round = 0; round < 24; ++round) {
    world.wait(world.put(round, round % 5 == 0 ? -1 : round - 1, round % 3 == 0));
    if (round % 7 == 6) world.wait(world.remove(round - 2));
    world.settle();
    SimulatedDisk disk = world.io.disk();
    disk.create(superblock_draft_name);  // of a crash
    auto io = std::make_unique<SimulatedIo>(disk, 4);
    SimulatedIo& seen = *io;
    StoreWalk walk(std::move(io), "simulated");
    std::uint64_t live = 0;
    for (std::size_t at = 0; at < walk.regions(); ++at) {
      for (const WalkedRecord& record : walk.read(at, true).records) {
        live += record.standing == Standing::Live;
        EXPECT(record.flaws.empty());
      }
    }
    using What = SimulatedCall::What;
    for (const SimulatedCall& call : seen.log()) {
      EXPECT(call.what != What::Submit || call.op == IoRequest::Op::Read);
      EXPECT(call.what != What::Create && call.what != What::Remove && call.what != What::Rename);
    }
    DiskWorld next(world.io.disk(), world_options(16));
    next.open();
    EXPECT_EQ(live, next.index->records());
    EXPECT_EQ(walk.recovered().removed, next.recovered.removed);
  }
}

HKV_TEST("a flipped bit is a flaw wherever something was written, and nowhere else") {
  const SimulatedDisk disk = four_records();
  const std::uint64_t end = region_header_bytes + 4 * 3 * disk_unit, footer = world_region_bytes - disk_unit;
  for (std::uint64_t at = 0; at < world_region_bytes; at += 61) {
    SimulatedDisk rotten = disk;
    rotten.rot("000000.region", at, 3);
    const WalkedRegion region = walk_of(rotten)->read(0, true);
    std::size_t flaws = region.flaws.size();
    for (const WalkedRecord& record : region.records) {
      flaws += record.flaws.size();
      const bool there = record.offset <= at && at < record.offset + record.bytes;
      EXPECT_EQ(record.flaws.empty(), !there);
    }
    EXPECT_EQ(region.records.size(), 4u);
    EXPECT_EQ(flaws, at < end || at >= footer ? 1u : 0u);
  }
}

HKV_TEST(
    "what stands on a flawed record is counted once; where nothing can be read all is told, and nothing "
    "more") {
  const SimulatedDisk disk = four_records();
  const RecordKey both[] = {world_key(2), world_key(102)};
  EXPECT_EQ(walk_of(disk)->lost_with(both), 3u);  // with block 3
  for (const std::size_t failures : {2u, 4u, 1000u}) {
    auto io = std::make_unique<SimulatedIo>(disk, 4);
    SimulatedIo& device = *io;
    StoreWalk walk(std::move(io), "simulated");
    const std::size_t before = device.calls();
    EXPECT(walk.read(0, true).flaws.empty());
    const std::size_t reads_of_lists = 6;  // header, tail, footer: submit and wait
    SimulatedFault fault;
    fault.value = EIO;
    fault.only = SimulatedFault::Only::Read;
    fault.first = device.calls() + (device.log()[before].what == SimulatedCall::What::Size) + reads_of_lists;
    fault.times = failures;
    device.add(fault);
    const WalkedRegion region = walk.read(0, true);
    // A chunk is tried twice, then each unit of it: of four failures two are the first unit's, the header's.
    EXPECT_EQ(region.flaws.size(), failures == 2 ? 0u : failures == 4 ? 1u : 2u);
    for (const Flaw& flaw : region.flaws) EXPECT_EQ(flaw.error, EIO);
    for (const WalkedRecord& record : region.records) {
      EXPECT_EQ(record.flaws.size(), failures == 1000 ? 1u : 0u);
      if (!record.flaws.empty()) EXPECT_EQ(record.flaws.front().error, EIO);
    }
  }
}

HKV_TEST("a flaw is told of its own record, wherever chunks that are read ahead begin and end") {
  DiskOptions options = world_options();
  options.region_bytes = 11 << 20;
  options.capacity_bytes = 4 * options.region_bytes;
  DiskWorld world(SimulatedDisk(), options);
  world.open();
  const std::size_t bytes = (1 << 20) - 5000;
  for (int key = 0; key < 10; ++key) {
    EXPECT_EQ(world.wait(world.put(key, -1, false, false, 7, bytes)), TierStatus::Ok);
  }
  EXPECT(world.close());
  const auto flawed = [](const SimulatedDisk& disk) {
    std::vector<std::size_t> out;
    const WalkedRegion region = walk_of(disk)->read(0, true);
    EXPECT_EQ(region.records.size(), std::size_t{10});
    for (std::size_t i = 0; i < region.records.size(); ++i) {
      if (!region.records[i].flaws.empty()) out.push_back(i);
    }
    return out;
  };
  EXPECT(flawed(world.io.disk()).empty());
  const std::uint64_t whole = record_bytes(2, bytes);
  for (std::size_t i = 0; i < 10; ++i) {
    for (const std::uint64_t within : {std::uint64_t{0}, std::uint64_t{disk_unit}, whole / 2, whole - 1}) {
      SimulatedDisk rotten = world.io.disk();
      rotten.rot("000000.region", region_header_bytes + i * whole + within, 6);
      EXPECT(flawed(rotten) == std::vector<std::size_t>{i});
    }
  }
}

}  // namespace
}  // namespace hkv
