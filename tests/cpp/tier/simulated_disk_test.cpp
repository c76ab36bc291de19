// SPDX-License-Identifier: Apache-2.0
// The simulated disk itself: what must be lost is lost, what must survive survives, and every fault happens.
// One thread: left out under ThreadSanitizer.
#include "tier/simulated_disk.h"

#include <set>

#include "testing.h"
#include "tier/aligned_memory.h"
#include "tier/io_calls.h"
#include "tier/simulated_io.h"

namespace hkv {
namespace {

using Mode = Io::Mode;
using Op = IoRequest::Op;
using Fault = SimulatedFault;

constexpr std::size_t sector = 512;

SimulatedFault fault(Fault::Kind kind, std::uint64_t value, Fault::Only only = Fault::Only::Any) {
  SimulatedFault out;
  out.kind = kind;
  out.value = value;
  out.only = only;
  return out;
}

// A file of `sectors` whose name, length and zeros are durable.
FileId prepared(SimulatedIo& io, const char* name, std::size_t sectors) {
  const FileId file = created(io, name);
  EXPECT_EQ(allocated(io, file, 0, sectors * sector), 0);
  EXPECT_EQ(synced(io, file), 0);
  EXPECT_EQ(io.sync_directory(), 0);
  EXPECT_EQ(io.disk().uncertain(), 0u);
  return file;
}

// Sectors that hold one letter each.
std::int64_t wrote(SimulatedIo& io, FileId file, std::size_t at, const std::string& letters) {
  AlignedMemory memory(letters.size() * sector);
  for (std::size_t i = 0; i < letters.size(); ++i)
    std::memset(memory.data() + i * sector, letters[i], sector);
  return moved(io, Op::Write, file, at * sector, {memory.piece(0, memory.size())});
}
// The letters of a file as they are read; '.' zeros, '?' a sector of more than one letter.
std::string letters(const SimulatedDisk& disk, const char* name) {
  const SimulatedDisk::Inode inode = disk.find(name);
  if (inode == 0) return "none";
  std::vector<char> bytes(disk.size(inode));
  disk.read(inode, 0, bytes.data(), bytes.size());
  std::string out;
  for (std::size_t at = 0; at < bytes.size(); at += sector) {
    const char first = bytes[at];
    const std::size_t end = std::min(bytes.size(), at + sector);
    const bool same =
        std::all_of(bytes.begin() + at, bytes.begin() + end, [&](char c) { return c == first; });
    out += !same ? '?' : first == 0 ? '.' : first;
  }
  return out;
}
// Everything that a file can be after a power cut now.
std::set<std::string> outcomes(const SimulatedDisk& disk, const char* name) {
  std::set<std::string> out;
  for (const Survives& way : ways_to_survive(disk.uncertain(), 4096, 1))
    out.insert(letters(disk.restart(way), name));
  return out;
}
using Outcomes = std::set<std::string>;

}  // namespace

HKV_TEST("a write survives or not, sector by sector, until a sync; then it survives") {
  SimulatedIo io{SimulatedDisk()};
  const FileId file = prepared(io, "f", 3);
  EXPECT_EQ(wrote(io, file, 0, "ab"), std::int64_t{2 * sector});
  EXPECT_EQ(letters(io.disk(), "f"), std::string("ab."));
  EXPECT(outcomes(io.disk(), "f") == (Outcomes{"...", "a..", ".b.", "ab."}));
  EXPECT_EQ(synced(io, file), 0);
  EXPECT(outcomes(io.disk(), "f") == Outcomes{"ab."});
  EXPECT_EQ(wrote(io, file, 0, "c"), std::int64_t{sector});
  EXPECT_EQ(wrote(io, file, 0, "d"), std::int64_t{sector});
  EXPECT(outcomes(io.disk(), "f") == (Outcomes{"ab.", "cb.", "db."}));
}

HKV_TEST("a sync keeps what was done before it began, and nothing else") {
  SimulatedIo io{SimulatedDisk()};
  const FileId file = prepared(io, "f", 2);
  AlignedMemory memory(sector);
  std::memset(memory.data(), 'a', sector);
  const iovec piece = memory.piece(0, sector);
  IoRequest write{Op::Write, file, 0, sector, {&piece, 1}, nullptr, 0},
      sync{Op::Sync, file, 0, 0, {}, nullptr, 0};
  io.submit(&write);
  io.submit(&sync);  // begun while the write is under way
  IoRequest* out[2] = {};
  EXPECT_EQ(io.wait(out, {}), 2u);
  EXPECT_EQ(sync.result, 0);
  EXPECT_EQ(letters(io.disk(), "f"), std::string("a."));
  EXPECT(outcomes(io.disk(), "f") == (Outcomes{"..", "a."}));
  EXPECT_EQ(synced(io, file), 0);
  EXPECT(outcomes(io.disk(), "f") == Outcomes{"a."});
  const FileId other = prepared(io, "g", 1);
  EXPECT_EQ(wrote(io, other, 0, "b"), std::int64_t{sector});
  EXPECT_EQ(synced(io, file), 0);  // of another file
  EXPECT(outcomes(io.disk(), "g") == (Outcomes{".", "b"}));
}

HKV_TEST("a write under way when the power goes may be there in part, and nobody has seen it") {
  SimulatedIo io{SimulatedDisk()};
  const FileId file = prepared(io, "f", 2);
  AlignedMemory memory(2 * sector);
  std::memset(memory.data(), 'a', 2 * sector);
  const iovec piece = memory.piece(0, 2 * sector);
  IoRequest write{Op::Write, file, 0, 2 * sector, {&piece, 1}, nullptr, 0};
  io.submit(&write);
  EXPECT_EQ(letters(io.disk(), "f"), std::string(".."));
  EXPECT(outcomes(io.disk(), "f") == Outcomes{".."});
  io.cut_now();
  EXPECT(outcomes(io.disk(), "f") == (Outcomes{"..", "a.", ".a", "aa"}));
  IoRequest* out[1] = {};
  EXPECT_EQ(io.wait(out, {}), 1u);
  EXPECT_EQ(write.result, std::int64_t{-EIO});
}

HKV_TEST("a failed sync: what it was to keep is never sure again, what comes after it is") {
  SimulatedIo io{SimulatedDisk()};
  const FileId file = prepared(io, "f", 2);
  EXPECT_EQ(wrote(io, file, 0, "a"), std::int64_t{sector});
  io.add(fault(Fault::Kind::Error, EIO, Fault::Only::Sync));
  EXPECT_EQ(synced(io, file), std::int64_t{-EIO});
  EXPECT_EQ(synced(io, file), 0);
  EXPECT_EQ(letters(io.disk(), "f"), std::string("a."));
  EXPECT(outcomes(io.disk(), "f") == (Outcomes{"..", "a."}));
  EXPECT_EQ(wrote(io, file, 1, "b"), std::int64_t{sector});
  EXPECT_EQ(synced(io, file), 0);
  EXPECT(outcomes(io.disk(), "f") == (Outcomes{".b", "ab"}));
  EXPECT_EQ(wrote(io, file, 0, "c"), std::int64_t{sector});
  EXPECT_EQ(synced(io, file), 0);
  EXPECT(outcomes(io.disk(), "f") == Outcomes{"cb"});  // the lost one does not come back over it
}

HKV_TEST("names: a creation, a rename and a removal are sure after sync_directory alone") {
  SimulatedIo io{SimulatedDisk()};
  const FileId file = created(io, "new");
  EXPECT_EQ(wrote(io, file, 0, "a"), std::int64_t{sector});
  EXPECT_EQ(synced(io, file), 0);
  EXPECT(outcomes(io.disk(), "new") == (Outcomes{"none", "a"}));
  EXPECT_EQ(io.sync_directory(), 0);
  EXPECT(outcomes(io.disk(), "new") == Outcomes{"a"});
  prepared(io, "old", 1);
  EXPECT_EQ(io.rename("new", "old"), 0);
  EXPECT_EQ(letters(io.disk(), "old"), std::string("a"));
  EXPECT(outcomes(io.disk(), "old") == (Outcomes{".", "a"}));
  EXPECT(outcomes(io.disk(), "new") == (Outcomes{"a", "none"}));
  EXPECT_EQ(io.sync_directory(), 0);
  EXPECT(outcomes(io.disk(), "old") == Outcomes{"a"});
  EXPECT(outcomes(io.disk(), "new") == Outcomes{"none"});
  EXPECT_EQ(io.remove("old"), 0);
  EXPECT_EQ(letters(io.disk(), "old"), std::string("none"));
  EXPECT(outcomes(io.disk(), "old") == (Outcomes{"a", "none"}));
  EXPECT_EQ(io.sync_directory(), 0);
  EXPECT(outcomes(io.disk(), "old") == Outcomes{"none"});
}

HKV_TEST("a length is sure after a sync; what lies beyond it is gone with it") {
  SimulatedIo io{SimulatedDisk()};
  const FileId file = created(io, "f");
  EXPECT_EQ(io.sync_directory(), 0);
  EXPECT_EQ(allocated(io, file, 0, 2 * sector), 0);
  EXPECT(outcomes(io.disk(), "f") == (Outcomes{"", ".."}));
  EXPECT_EQ(wrote(io, file, 0, "a"), std::int64_t{sector});
  EXPECT(outcomes(io.disk(), "f") == (Outcomes{"", "..", "a."}));
  EXPECT_EQ(synced(io, file), 0);
  EXPECT(outcomes(io.disk(), "f") == Outcomes{"a."});
  EXPECT_EQ(wrote(io, file, 2, "b"), std::int64_t{sector});  // grows
  EXPECT(outcomes(io.disk(), "f") == (Outcomes{"a.", "a..", "a.b"}));
}

HKV_TEST("a disk that was copied goes its own way") {
  SimulatedIo io{SimulatedDisk()};
  const FileId file = prepared(io, "f", 1);
  const SimulatedDisk before = io.disk();
  EXPECT_EQ(wrote(io, file, 0, "a"), std::int64_t{sector});
  EXPECT_EQ(letters(before, "f"), std::string("."));
  SimulatedDisk after = io.disk();
  after.rot("f", 3, 2);
  EXPECT_EQ(letters(after, "f"), std::string("?"));
  EXPECT_EQ(letters(io.disk(), "f"), std::string("a"));
  SimulatedIo again{io.disk().restart_with_all()};
  EXPECT_EQ(letters(again.disk(), "f"), std::string("a"));
  EXPECT_EQ(letters(io.disk().restart_with_none(), "f"), std::string("."));
}

HKV_TEST("faults: error, short, torn, misdirected, flipped, each at its time and no longer") {
  SimulatedIo io{SimulatedDisk()};
  const FileId file = prepared(io, "f", 4);
  SimulatedFault error = fault(Fault::Kind::Error, ENOSPC, Fault::Only::Write);
  error.sectors = 1;
  io.add(error);
  AlignedMemory memory(4 * sector);
  EXPECT_EQ(moved(io, Op::Read, file, 0, {memory.piece(0, sector)}), std::int64_t{sector});  // not a write
  EXPECT_EQ(wrote(io, file, 0, "ab"), std::int64_t{-ENOSPC});
  EXPECT_EQ(letters(io.disk(), "f"), std::string("a..."));
  EXPECT_EQ(wrote(io, file, 0, "ab"), std::int64_t{2 * sector});
  io.add(fault(Fault::Kind::Short, sector));
  EXPECT_EQ(wrote(io, file, 0, "cd"), std::int64_t{sector});
  EXPECT_EQ(letters(io.disk(), "f"), std::string("cb.."));
  io.add(fault(Fault::Kind::Torn, 1));
  EXPECT_EQ(moved(io, Op::Read, file, 0, {memory.piece(0, sector)}),
            std::int64_t{sector});  // reads do not tear
  EXPECT_EQ(wrote(io, file, 0, "ef"), std::int64_t{2 * sector});
  EXPECT_EQ(letters(io.disk(), "f"), std::string("eb.."));
  io.add(fault(Fault::Kind::Misdirected, 3 * sector));
  EXPECT_EQ(wrote(io, file, 0, "g"), std::int64_t{sector});
  EXPECT_EQ(letters(io.disk(), "f"), std::string("eb.g"));
  io.add(fault(Fault::Kind::Misdirected, 3 * sector));
  EXPECT_EQ(moved(io, Op::Read, file, 0, {memory.piece(0, sector)}), std::int64_t{sector});
  EXPECT_EQ(static_cast<char>(memory.data()[7]), 'g');
  io.add(fault(Fault::Kind::Flip, 8 * 5 + 1));
  EXPECT_EQ(moved(io, Op::Read, file, 0, {memory.piece(0, sector)}), std::int64_t{sector});
  EXPECT_EQ(static_cast<char>(memory.data()[5]), 'e' ^ 2);
  EXPECT_EQ(letters(io.disk(), "f"), std::string("eb.g"));
  io.add(fault(Fault::Kind::Flip, 8 * 5 + 1, Fault::Only::Write));
  EXPECT_EQ(wrote(io, file, 2, "h"), std::int64_t{sector});
  EXPECT_EQ(letters(io.disk(), "f"), std::string("eb?g"));
  io.add(fault(Fault::Kind::Short, sector));
  EXPECT_EQ(moved(io, Op::Read, file, 0, {memory.piece(0, 4 * sector)}), std::int64_t{sector});
  EXPECT_EQ(moved(io, Op::Read, file, 0, {memory.piece(0, 4 * sector)}), std::int64_t{4 * sector});
}

HKV_TEST("faults: on names, twice, within a span of calls, until taken back") {
  SimulatedIo io{SimulatedDisk()};
  SimulatedFault names = fault(Fault::Kind::Error, EACCES, Fault::Only::Names);
  names.times = 2;
  names.first = io.calls() + 1;
  io.add(names);
  FileId file = no_file;
  EXPECT_EQ(io.open("a", Mode::Create, file), 0);
  EXPECT_EQ(io.rename("a", "b"), -EACCES);
  EXPECT_EQ(io.sync_directory(), -EACCES);
  EXPECT(io.disk().uncertain() != 0);
  EXPECT_EQ(io.rename("a", "b"), 0);
  names.last = io.calls();
  io.add(names);
  EXPECT_EQ(io.sync_directory(), -EACCES);
  EXPECT_EQ(io.sync_directory(), 0);
  names.last = names.times = 1000;
  io.add(names);
  EXPECT_EQ(io.lock(), -EACCES);
  io.clear_faults();
  EXPECT_EQ(io.lock(), 0);
}

HKV_TEST("a frozen request is never done, until it thaws; others pass it") {
  SimulatedIo io{SimulatedDisk()};
  const FileId file = prepared(io, "f", 2);
  AlignedMemory memory(sector);
  std::memset(memory.data(), 'a', sector);
  const iovec piece = memory.piece(0, sector);
  io.add(fault(Fault::Kind::Frozen, 0));
  IoRequest frozen{Op::Write, file, 0, sector, {&piece, 1}, nullptr, 0};
  io.submit(&frozen);
  IoRequest* out[2] = {};
  EXPECT_EQ(io.wait(out, std::chrono::milliseconds(5)), 0u);
  EXPECT_EQ(wrote(io, file, 1, "b"), std::int64_t{sector});
  EXPECT_EQ(letters(io.disk(), "f"), std::string(".b"));
  EXPECT_EQ(io.in_flight(), 1u);
  io.thaw();
  EXPECT_EQ(io.wait(out, {}), 1u);
  EXPECT_EQ(out[0], &frozen);
  EXPECT_EQ(letters(io.disk(), "f"), std::string("ab"));
}

HKV_TEST("requests are done in the order that the test chooses, as many at a time as it says") {
  SimulatedIo io{SimulatedDisk()};
  const FileId file = prepared(io, "f", 4);
  AlignedMemory memory(sector);
  const iovec piece = memory.piece(0, sector);
  std::vector<IoRequest> requests(4, IoRequest{Op::Read, file, 0, sector, {&piece, 1}, nullptr, 0});
  io.choose([](std::size_t count) { return count - 1; });
  io.per_wait(3);
  for (IoRequest& request : requests) io.submit(&request);
  IoRequest* out[4] = {};
  EXPECT_EQ(io.wait(out, {}), 3u);
  EXPECT(out[0] == &requests[3] && out[1] == &requests[2] && out[2] == &requests[1]);
  EXPECT_EQ(io.wait(out, {}), 1u);
  EXPECT_EQ(out[0], &requests[0]);
}

HKV_TEST("the power goes before or after any call; nothing that comes later changes the disk") {
  // Its calls: 0 create, 1 and 2 write, 3 and 4 sync, 5 sync_directory, 6 rename, 7 sync_directory.
  const auto history = [](SimulatedIo& io) {
    FileId file = no_file;
    int failed = io.open("a", Mode::Create, file) != 0;
    AlignedMemory memory(sector);
    std::memset(memory.data(), 'a', sector);
    const iovec piece = memory.piece(0, sector);
    IoRequest write{Op::Write, file, 0, sector, {&piece, 1}, nullptr, 0},
        sync{Op::Sync, file, 0, 0, {}, nullptr, 0};
    for (IoRequest* request : {&write, &sync}) {
      io.submit(request);
      IoRequest* out[1] = {};
      io.wait(out, {});
      failed += request->result < 0;
    }
    failed += io.sync_directory() != 0;
    failed += io.rename("a", "b") != 0;
    failed += io.sync_directory() != 0;
    return failed;
  };
  SimulatedIo whole{SimulatedDisk()};
  EXPECT_EQ(history(whole), 0);
  EXPECT_EQ(whole.calls(), 8u);
  EXPECT(outcomes(whole.disk(), "b") == Outcomes{"a"});
  const Outcomes unsure = {"none", "", ".", "a"};
  const std::vector<Outcomes> before = {{"none"},      {"none", ""}, unsure,        unsure,  unsure,
                                        {"none", "a"}, {"a"},        {"none", "a"}, {"none"}};
  for (std::size_t n = 0; n <= whole.calls(); ++n) {
    for (const bool after : {false, true}) {
      SimulatedIo io{SimulatedDisk()};
      io.cut_at(n, after);
      const int failed = history(io);
      EXPECT_EQ(failed == 0, n == whole.calls());
      EXPECT_EQ(io.dead(), n < whole.calls());
      const Outcomes& want = before[std::min(n + (after ? 1 : 0), whole.calls())];
      if (outcomes(io.disk(), "a") != want) {
        std::string got;
        for (const std::string& one : outcomes(io.disk(), "a")) got += "'" + one + "' ";
        testing::fail(__FILE__, __LINE__,
                      "cut at " + std::to_string(n) + (after ? " after: " : " before: ") + got);
      }
    }
  }
}

HKV_TEST("misaligned requests are refused, full disks too") {
  SimulatedDiskOptions options;
  options.capacity_bytes = 4 * sector;
  SimulatedIo io{SimulatedDisk(options)};
  const FileId file = created(io, "f");
  AlignedMemory memory(8 * sector);
  EXPECT_EQ(moved(io, Op::Write, file, 1, {memory.piece(0, sector)}), std::int64_t{-EINVAL});
  EXPECT_EQ(moved(io, Op::Write, file, 0, {memory.piece(0, sector - 1)}), std::int64_t{-EINVAL});
  EXPECT_EQ(moved(io, Op::Write, file, 0, {memory.piece(8, sector)}), std::int64_t{-EINVAL});
  EXPECT_EQ(allocated(io, file, 0, 5 * sector), std::int64_t{-ENOSPC});
  EXPECT_EQ(allocated(io, file, 0, 4 * sector), 0);
  EXPECT_EQ(io.free_bytes(), 0u);
  EXPECT_EQ(wrote(io, file, 0, "abcd"), std::int64_t{4 * sector});
  EXPECT_EQ(wrote(io, file, 4, "e"), std::int64_t{-ENOSPC});
  EXPECT_EQ(io.remove("f"), 0);
  EXPECT_EQ(io.free_bytes(), 0u);  // still open, and the removal not sure
  EXPECT_EQ(io.close(file), 0);
  EXPECT_EQ(io.sync_directory(), 0);
  EXPECT_EQ(io.free_bytes(), std::uint64_t{4 * sector});
}

HKV_TEST("ways to survive: all of few, and of many none, all, and each alone") {
  const auto shown = [](std::size_t items, std::size_t most) {
    std::set<std::string> out;
    for (const Survives& way : ways_to_survive(items, most, 7)) {
      std::string bits;
      for (std::size_t i = 0; i < items; ++i) bits += way(i) ? '1' : '0';
      out.insert(bits);
    }
    return out;
  };
  EXPECT(shown(0, 1) == std::set<std::string>{""});
  EXPECT_EQ(shown(4, 16).size(), 16u);
  const std::set<std::string> some = shown(30, 200);
  EXPECT(some.size() > 100 && some.size() <= 200);
  EXPECT(some.count(std::string(30, '0')) == 1 && some.count(std::string(30, '1')) == 1);
  for (std::size_t i = 0; i < 30; ++i) {
    std::string one(30, '0');
    one[i] = '1';
    EXPECT_EQ(some.count(one), 1u);
  }
  EXPECT_EQ(ways_to_survive(1000, 50, 7).size(), 50u);
}

}  // namespace hkv
