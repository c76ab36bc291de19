// SPDX-License-Identifier: Apache-2.0
// Question: what can this file system and this CPU do at most for a tier on disk?
//
//   disk_limits [--json] [--smoke] [--dir DIRECTORY] [--mib SIZE] [--rounds N]
//
// Direct I/O on one file through bare io_uring (raw_disk.h), in requests of 64 KiB, 1 MiB and 8 MiB, 1, 8 and 16 at a
// time: sequential writes with fdatasync every 64 MiB, and reads at random places, which the page cache does not know.
// Beside them what a tier does to each byte besides: CRC-32C, memcpy, both one after the other, and both in one pass;
// per 64 KiB, from memory that is not in the caches into a buffer that is. Every round runs all of it once.
#include "disk_costs.hpp"
#include "raw_disk.h"

#include <memory>

#include "base/crc32c.h"
#include "limits/bench.hpp"
#include "rounds.hpp"

namespace {

struct Sizes {
  std::string directory = ".";
  std::size_t bytes = std::size_t{1} << 30;
  int rounds = 7;
  bool json = false;
};

std::string label(std::size_t request, unsigned depth) {
  const bool whole = request >= (std::size_t{1} << 20);
  return std::to_string(whole ? request >> 20 : request >> 10) + (whole ? "M" : "K") + "_x" +
         std::to_string(depth);
}

constexpr std::size_t mib = std::size_t{1} << 20;
constexpr std::size_t chunk = std::size_t{64} << 10;

// ns a byte of `work(offset)` over every chunk of the source.
template <class F>
double pass(std::size_t bytes, F work) {
  return par(1,
             [&](int) {
               for (std::size_t at = 0; at < bytes; at += chunk) work(at);
             }) /
         static_cast<double>(bytes);
}

void measure_memory(Rounds& rounds, const unsigned char* from, unsigned char* to, std::size_t bytes) {
  rounds.add("memcpy", pass(bytes, [&](std::size_t at) {
               std::memcpy(to, from + at, chunk);
               keep(to[0]);
             }));
  for (const hkv::Crc32cPath path : {hkv::Crc32cPath::Streams, hkv::Crc32cPath::Folded}) {
    if (!hkv::crc32c_supported(path)) continue;
    hkv::crc32c_choose(path);
    const std::string name = std::string("crc32c_") + hkv::crc32c_name(path);
    rounds.add(name, pass(bytes, [&](std::size_t at) { keep(hkv::crc32c(0, from + at, chunk)); }));
    rounds.add(name + "_after_memcpy", pass(bytes, [&](std::size_t at) {
                 std::memcpy(to, from + at, chunk);
                 keep(hkv::crc32c(0, to, chunk));
               }));
    rounds.add(name + "_copy",
               pass(bytes, [&](std::size_t at) { keep(hkv::crc32c_copy(0, to, from + at, chunk)); }));
  }
}

void measure_disk(DiskCosts& disks, raw_disk::Disk& disk, const Sizes& sizes, int round) {
  for (const std::size_t request : {64 * mib / 1024, mib, 8 * mib}) {
    if (request > sizes.bytes) continue;
    const std::size_t total = std::min<std::size_t>(sizes.bytes, request < mib ? 64 * mib : 256 * mib);
    for (const unsigned depth : {1u, 8u, 16u}) {
      disks.add("write_" + label(request, depth), disk.write(request, depth, total));
      disks.add("read_" + label(request, depth),
                disk.read(request, depth, total, static_cast<std::uint64_t>(round) * 100 + depth));
    }
  }
}

void run(const Sizes& sizes) {
  Report report(sizes.json);
  const std::string reason = raw_disk::reason_not_to(sizes.directory);
  std::unique_ptr<raw_disk::Disk> disk;
  if (reason.empty()) {
    disk = std::make_unique<raw_disk::Disk>(sizes.directory, sizes.bytes);
  } else {
    std::fprintf(stderr, "the disk is not measured: %s\n", reason.c_str());
  }
  const std::size_t memory_bytes = std::min<std::size_t>(sizes.bytes, 32 * mib);
  auto* from = static_cast<unsigned char*>(arena(memory_bytes, true));
  auto* to = static_cast<unsigned char*>(arena(chunk, true));
  DiskCosts disks;
  Rounds memory;
  for (int round = 0; round < sizes.rounds; ++round) {
    if (disk) measure_disk(disks, *disk, sizes, round);
    measure_memory(memory, from, to, memory_bytes);
  }
  report.line("best / median of %d rounds\n", sizes.rounds);
  if (disk) {
    report.line("first write of a preallocated file of %zu MiB: %.2f GB/s\n", sizes.bytes / mib,
                disk->first_write().gb_per_second());
    report.figure("first_write_gbs", disk->first_write().gb_per_second());
    disks.say(report);
  }
  for (const std::string& name : memory.names()) {
    report.line("%-30s %6.1f / %6.1f GB/s\n", name.c_str(), 1 / memory.min(name), 1 / memory.median(name));
    report.figure(name + "_gbs", 1 / memory.median(name));
  }
}

}  // namespace

int main(int argc, char** argv) {
  Sizes sizes;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json") sizes.json = true;
    if (word == "--smoke") sizes.bytes = std::size_t{8} << 20, sizes.rounds = 1;
    if (word == "--dir" && i + 1 < argc) sizes.directory = argv[++i];
    if (word == "--mib" && i + 1 < argc) sizes.bytes = std::strtoull(argv[++i], nullptr, 10) << 20;
    if (word == "--rounds" && i + 1 < argc) sizes.rounds = std::max(1, std::atoi(argv[++i]));
  }
  run(sizes);
}
