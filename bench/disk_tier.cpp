// SPDX-License-Identifier: Apache-2.0
// Question: how much of the disk does the disk tier reach, with every byte checksummed, and what do look-ups and opening
// cost?
//
//   disk_tier [--json] [--smoke] [--dir DIRECTORY] [--mib SIZE] [--rounds N]
//
// Every round writes and reads bare O_DIRECT (raw_disk.h) and the tier back to back, in requests and records of 1 MiB and
// of 64 KiB, 16 at a time. The tier's store is full before the first round, so that each put goes where an old record was,
// as the bare writes do. Gets are of random records, into aligned memory, each byte proved. Ratios are of one round.
// Then: a look-up among a million records, and opening a store of many small ones, for a million.
#include <sys/stat.h>

#include <filesystem>
#include <memory>

#include "limits/bench.hpp"
#include "raw_disk.h"
#include "rounds.hpp"
#include "tier/disk_index.h"
#include "tier/disk_tier.h"

namespace {

using namespace hkv;
constexpr std::size_t mib = std::size_t{1} << 20;
constexpr unsigned depth = 16;

struct Sizes {
  std::string directory = ".";
  std::size_t store_bytes = 768 * mib, round_bytes = 128 * mib, records = 1'000'000, small_records = 60'000;
  int rounds = 5;
  bool json = false;
};

RecordKey key_of(std::uint64_t n) {
  return {{n * 0x9E3779B97F4A7C15u + 1, n * 0xD6E8FEB86659FD93u}, {1, 1}, RecordKind::Block};
}

// Asks of one record each, `depth` at a time.
class Asks {
 public:
  Asks(Tier& tier, std::size_t record) : tier_(tier), record_(record) {
    memory_ = static_cast<std::byte*>(arena(record * depth, true));
    for (std::size_t i = 0; i < record * depth; ++i) memory_[i] = static_cast<std::byte>(i * 131 + i / 253);
  }
  template <class NameOf>
  raw_disk::Cost run(bool puts, std::size_t count, NameOf name_of) {
    const raw_disk::Meter meter;
    std::vector<unsigned> free;
    for (unsigned i = 0; i < depth; ++i) free.push_back(i);
    std::map<BatchId, unsigned> flying;
    for (std::size_t begun = 0, done = 0; done < count;) {
      for (; begun < count && !free.empty(); ++begun, free.pop_back()) {
        const Part part{memory_ + free.back() * record_, record_, {0, 0, 0, 0}};
        BatchId batch;
        TierStatus status;
        if (puts) {
          PutItem item;
          item.key = key_of(name_of(begun));
          item.parts = {&part, 1};
          status = tier_.put({&item, 1}, Deadline::max(), batch);
        } else {
          const GetItem item{key_of(name_of(begun)), {&part, 1}};
          status = tier_.get({&item, 1}, Deadline::max(), Priority::Demand, batch);
        }
        if (status != TierStatus::Ok) raw_disk::give_up(name_of_status(status), 0);
        flying[batch] = free.back();
      }
      Done some[64];
      tier_.wait(std::chrono::seconds(10));
      const std::size_t got = tier_.poll(some);
      for (std::size_t i = 0; i < got; ++i, ++done) {
        if (some[i].status != TierStatus::Ok) raw_disk::give_up(name_of_status(some[i].status), 0);
        free.push_back(flying[some[i].batch]);
        flying.erase(some[i].batch);
      }
    }
    if (puts) flush();
    return meter.of(count * record_);
  }

 private:
  static const char* name_of_status(TierStatus status) { return hkv::name_of(status); }
  void flush() {
    BatchId batch;
    tier_.flush(Deadline::max(), batch);
    for (Done done; tier_.poll({&done, 1}) == 0;) tier_.wait(std::chrono::seconds(10));
  }
  Tier& tier_;
  std::size_t record_;
  std::byte* memory_;
};

DiskOptions store_at(const std::string& path, std::uint64_t bytes) {
  DiskOptions options;
  options.path = path;
  options.capacity_bytes = bytes;
  options.depth = depth;
  return options;
}

void measure_moves(const Sizes& sizes, Rounds& speed, Rounds& cpu, raw_disk::Disk& disk,
                   const std::string& path) {
  const auto tier = open_disk_tier(store_at(path, sizes.store_bytes));
  std::uint64_t named = 0;
  std::mt19937_64 random(3);
  for (const std::size_t record : {mib, mib / 16}) {
    const std::string label = record == mib ? "1M" : "64K";
    Asks asks(*tier, record);
    const std::size_t count = sizes.round_bytes / record;
    const auto put = [&](std::size_t of) {
      const std::uint64_t first = named;
      named += of;
      return asks.run(true, of, [&](std::size_t i) { return first + i; });
    };
    put(sizes.store_bytes / record);  // full
    for (int round = 0; round < sizes.rounds; ++round) {
      const auto add = [&](const std::string& name, const raw_disk::Cost& cost) {
        speed.add(name + label, cost.ns_per_byte());
        cpu.add(name + label, cost.cpu_per_gb());
      };
      add("raw_write_", disk.write(record, depth, sizes.round_bytes));
      add("put_", put(count));
      add("raw_read_", disk.read(record, depth, sizes.round_bytes, static_cast<std::uint64_t>(round) + 5));
      const std::uint64_t last = named;
      add("get_", asks.run(false, count, [&](std::size_t) { return last - 1 - random() % (2 * count); }));
    }
  }
}

double look_ns(const Sizes& sizes) {
  DiskIndex index;
  for (std::uint64_t n = 0; n < sizes.records; ++n) {
    DiskIndex::Number out;
    index.insert(key_of(n), n % 64 == 0 ? Key128{} : key_of(n - 1).digest, 0, false, {1, 1, 3, 1}, out);
  }
  std::mt19937_64 random(1);
  std::vector<RecordKey> keys;
  for (int i = 0; i < 1 << 18; ++i)
    keys.push_back(key_of(random() % (2 * sizes.records)));  // half of them there
  double best = 1e9;
  for (int turn = 0; turn < 5; ++turn) {
    const auto begun = std::chrono::steady_clock::now();
    std::uint64_t there = 0;
    for (const RecordKey& key : keys) there += index.look(key).answer == Presence::Answer::Here;
    keep(there);
    const std::chrono::duration<double, std::nano> passed = std::chrono::steady_clock::now() - begun;
    best = std::min(best, passed.count() / static_cast<double>(keys.size()));
  }
  std::fprintf(stderr, "%zu bytes a record in the index\n", index.bytes() / sizes.records);
  return best;
}

double open_seconds_per_million(const Sizes& sizes, const std::string& path) {
  const std::uint64_t bytes =
      sizes.small_records * 2 * std::uint64_t{4096} * 5 / 4 + 6 * (std::uint64_t{64} << 20);
  {
    const auto tier = open_disk_tier(store_at(path, bytes));
    Asks asks(*tier, 2048);
    asks.run(true, sizes.small_records, [](std::size_t i) { return i; });
  }
  double best = 1e9;
  for (int turn = 0; turn < 3; ++turn) {
    const auto tier = open_disk_tier(store_at(path, bytes));
    if (tier->recovered().records < sizes.small_records) raw_disk::give_up("records are missing", 0);
    best = std::min(best, tier->recovered().seconds);
  }
  return best * 1e6 / static_cast<double>(sizes.small_records);
}

int run(const Sizes& sizes) {
  const std::string reason = raw_disk::reason_not_to(sizes.directory);
  if (!reason.empty()) {
    std::fprintf(stderr, "not measured: %s\n", reason.c_str());
    return 0;
  }
  Report report(sizes.json);
  std::string path = sizes.directory + "/hkv-bench-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) raw_disk::give_up("a directory", errno);
  Rounds speed, cpu;
  {
    raw_disk::Disk disk(sizes.directory, std::max(sizes.round_bytes, 256 * mib));
    measure_moves(sizes, speed, cpu, disk, path + "/moves");
  }
  for (const std::string& name : speed.names()) {
    report.line("%-16s %6.2f / %6.2f GB/s best / median   %5.3f CPU-s per GB\n", name.c_str(),
                1 / speed.min(name), 1 / speed.median(name), cpu.median(name));
    report.figure(name + "_gbs", 1 / speed.median(name));
    report.figure(name + "_cpu", cpu.median(name));
  }
  for (const std::string& label : {std::string("1M"), std::string("64K")}) {
    const double put = speed.ratio("raw_write_" + label, "put_" + label);
    const double get = speed.ratio("raw_read_" + label, "get_" + label);
    report.line("of bare O_DIRECT at %s: put %.2f, get %.2f\n", label.c_str(), put, get);
    report.figure("put_" + label + "_of_raw", put);
    report.figure("get_" + label + "_of_raw", get);
  }
  const double look = look_ns(sizes), opening = open_seconds_per_million(sizes, path + "/small");
  report.line("look-up %.0f ns, opening %.2f s for a million records\n", look, opening);
  report.figure("look_ns", look);
  report.figure("open_s_per_million", opening);
  std::filesystem::remove_all(path);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Sizes sizes;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json") sizes.json = true;
    if (word == "--smoke") {
      sizes.store_bytes = 320 * mib;
      sizes.round_bytes = 8 * mib;
      sizes.records = sizes.small_records = 2000;
      sizes.rounds = 1;
    }
    if (word == "--dir" && i + 1 < argc) sizes.directory = argv[++i];
    if (word == "--mib" && i + 1 < argc) sizes.store_bytes = std::strtoull(argv[++i], nullptr, 10) << 20;
    if (word == "--rounds" && i + 1 < argc) sizes.rounds = std::max(1, std::atoi(argv[++i]));
  }
  return run(sizes);
}
