// SPDX-License-Identifier: Apache-2.0
// Question: what share of what the disk itself can do does a disk tier reach, checksums, log and index included, and what
// does it cost the CPU?
//
//   disk_tier [--json] [--smoke] [--dir DIRECTORY] [--mib SIZE] [--rounds N]
//
// Each round, beside bare io_uring on the same file system (raw_disk.h): puts with a flush at the end, in regions that had
// a former life, and gets of records at random that the page cache does not know, each verified; the same puts where
// every record was hit, so that a quarter of each region is read and written again before it is used (`kept`: bytes of
// puts alone count); a file per record as others keep them, written under another name and renamed, with and without
// fsync. Then, of the index alone, a look-up at random, and the time to open the store again.
#include <sys/stat.h>

#include <array>
#include <filesystem>
#include <memory>

#include "disk_costs.hpp"
#include "limits/bench.hpp"
#include "raw_disk.h"
#include "rounds.hpp"
#include "tier/disk_index.h"
#include "tier/disk_tier.h"

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

struct Sizes {
  std::string directory = ".";
  std::size_t bytes = 512 * mib;  // moved a round and kind
  int rounds = 7;
  std::uint32_t indexed = 1u << 20;
  std::size_t tiny = 60'000;
  bool json = false;
};

hkv::RecordKey key_of(std::uint64_t n) {
  std::mt19937_64 random(n);
  return {{random(), random()}, {1, 1}, hkv::RecordKind::Block};
}

struct Aligned {
  explicit Aligned(std::size_t bytes) : data(static_cast<char*>(std::aligned_alloc(4096, bytes))) {
    std::mt19937_64 random(7);
    for (std::size_t i = 0; i < bytes; i += 8) {
      const std::uint64_t word = random();
      std::memcpy(data + i, &word, 8);
    }
  }
  ~Aligned() { std::free(data); }
  char* data;
};

// A tier with records of one size, asked `depth` at a time.
class Store {
 public:
  Store(const std::string& directory, std::size_t record, std::size_t parts, std::size_t bytes,
        double keep_share)
      : record_(record), parts_(parts), memory_(most_depth * record) {
    options_.path = directory;
    options_.region_bytes = 64 * mib;
    options_.capacity_bytes = bytes / options_.region_bytes * options_.region_bytes;
    options_.depth = most_depth;
    options_.keep_share = keep_share;
    open();
  }

  void fill() { put(most_depth, options_.capacity_bytes / 4 * 5); }
  // Puts `total` bytes of new records and makes them durable.
  raw_disk::Cost put(unsigned depth, std::size_t total) {
    const raw_disk::Meter meter;
    const std::size_t count = total / record_;
    move(depth, count, [&](unsigned slot) { return put_one(slot); });
    hkv::BatchId batch{};
    expect(tier_->flush(hkv::Deadline::max(), batch));
    wait_for(1);
    return meter.of(count * record_);
  }
  // Gets records at random among the newest that are sure to be there, each into memory of its own.
  raw_disk::Cost get(unsigned depth, std::size_t total, std::uint64_t seed) {
    const double sure =
        0.5 * (1 - 2 * options_.keep_share);  // beside the regions on their way, and what is kept
    const auto there = std::min(
        next_, static_cast<std::uint64_t>(sure * static_cast<double>(options_.capacity_bytes / record_)));
    std::vector<std::uint64_t> names(there);
    std::iota(names.begin(), names.end(), next_ - there);
    std::shuffle(names.begin(), names.end(), std::mt19937_64(seed));
    const std::size_t count = std::min<std::size_t>(total / record_, names.size());
    std::size_t at = 0;
    const raw_disk::Meter meter;
    move(depth, count, [&](unsigned slot) { return get_one(slot, names[at++]); });
    return meter.of(count * record_);
  }
  // The same, while the memory is an arena of the tier.
  raw_disk::Cost get_in_arena(unsigned depth, std::size_t total, std::uint64_t seed) {
    expect(tier_->add_arena(memory_.data, most_depth * record_));
    const raw_disk::Cost cost = get(depth, total, seed);
    expect(tier_->drop_arena(memory_.data));
    return cost;
  }
  std::uint64_t arena_reads() { return tier_->usage().arena_reads; }
  double reopen_seconds_per_million() {
    tier_->close();
    tier_.reset();
    open();
    const hkv::Recovered& found = tier_->recovered();
    return found.seconds / static_cast<double>(found.records) * 1e6;
  }
  std::uint64_t records() { return tier_->usage().records; }

 private:
  static constexpr unsigned most_depth = 16;

  void open() { tier_ = hkv::open_disk_tier(options_); }
  static void expect(hkv::TierStatus status) {
    if (status == hkv::TierStatus::Ok) return;
    std::fprintf(stderr, "a tier said %s\n", hkv::name_of(status));
    std::exit(1);
  }
  void parts_of(unsigned slot, std::vector<hkv::Part>& parts) {
    parts.clear();
    const std::size_t size = record_ / parts_;
    for (std::size_t i = 0; i < parts_; ++i) {
      parts.push_back(
          {memory_.data + slot * record_ + i * size, size, {0, static_cast<std::uint16_t>(i), 0, 0}});
    }
  }
  hkv::BatchId put_one(unsigned slot) {
    std::vector<hkv::Part> parts;
    parts_of(slot, parts);
    hkv::PutItem item;
    item.key = key_of(next_++);
    item.parts = parts;
    hkv::BatchId batch{};
    expect(tier_->put({&item, 1}, hkv::Deadline::max(), batch));
    return batch;
  }
  hkv::BatchId get_one(unsigned slot, std::uint64_t name) {
    std::vector<hkv::Part> parts;
    parts_of(slot, parts);
    const hkv::GetItem item{key_of(name), parts};
    hkv::BatchId batch{};
    expect(tier_->get({&item, 1}, hkv::Deadline::max(), hkv::Priority::Demand, batch));
    return batch;
  }
  // Keeps `depth` asks under way until `count` are done.
  template <class Ask>
  void move(unsigned depth, std::size_t count, Ask ask) {
    std::vector<std::pair<hkv::BatchId, unsigned>> flying;
    std::vector<unsigned> free(depth);
    std::iota(free.begin(), free.end(), 0u);
    std::size_t begun = 0;
    while (begun < count || !flying.empty()) {
      while (begun < count && !free.empty()) {
        flying.emplace_back(ask(free.back()), free.back());
        free.pop_back();
        ++begun;
      }
      tier_->wait(std::chrono::seconds(10));
      std::array<hkv::Done, 64> done;
      const std::size_t n = tier_->poll(done);
      for (std::size_t i = 0; i < n; ++i) {
        expect(done[i].status);
        const auto found = std::find_if(flying.begin(), flying.end(),
                                        [&](const auto& each) { return each.first == done[i].batch; });
        free.push_back(found->second);
        flying.erase(found);
      }
    }
  }
  void wait_for(std::size_t reports) {
    std::array<hkv::Done, 4> done;
    while (reports != 0) {
      tier_->wait(std::chrono::seconds(10));
      const std::size_t n = tier_->poll(done);
      for (std::size_t i = 0; i < n; ++i) expect(done[i].status);
      reports -= n;
    }
  }

  hkv::DiskOptions options_;
  std::size_t record_, parts_;
  Aligned memory_;
  std::unique_ptr<hkv::DiskTier> tier_;
  std::uint64_t next_ = 1;
};

// A file a record, as SGLang's HiCacheFile and vLLM's fs tier keep them: written under another name, renamed.
class Files {
 public:
  Files(std::string directory, std::size_t record, bool sync)
      : directory_(std::move(directory)), record_(record), sync_(sync), memory_(record) {
    std::filesystem::create_directories(directory_);
  }
  raw_disk::Cost put(std::size_t total) {
    const raw_disk::Meter meter;
    for (std::size_t i = 0; i < total / record_; ++i) {
      const std::string name = name_of(i), temporary = name + ".tmp";
      const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
      if (file < 0 || ::write(file, memory_.data, record_) != static_cast<ssize_t>(record_))
        raw_disk::give_up("a file", errno);
      if (sync_ && ::fdatasync(file) != 0) raw_disk::give_up("fdatasync", errno);
      ::close(file);
      if (::rename(temporary.c_str(), name.c_str()) != 0) raw_disk::give_up("rename", errno);
    }
    return meter.of(total);
  }
  raw_disk::Cost get(std::size_t total, std::uint64_t seed) {
    std::vector<std::size_t> order(total / record_);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
    for (const std::size_t i : order) {  // the page cache knows nothing of them
      const int file = ::open(name_of(i).c_str(), O_RDONLY | O_CLOEXEC);
      ::fdatasync(file);
      ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
      ::close(file);
    }
    const raw_disk::Meter meter;
    for (const std::size_t i : order) {
      const int file = ::open(name_of(i).c_str(), O_RDONLY | O_CLOEXEC);
      if (::read(file, memory_.data, record_) != static_cast<ssize_t>(record_))
        raw_disk::give_up("a file", errno);
      ::close(file);
    }
    return meter.of(total);
  }

 private:
  std::string name_of(std::size_t i) const { return directory_ + "/" + std::to_string(i); }
  std::string directory_;
  std::size_t record_;
  bool sync_;
  Aligned memory_;
};

void measure_index(Report& report, std::uint32_t records) {
  hkv::DiskIndex index;
  for (std::uint32_t n = 0; n < records; ++n) {
    hkv::DiskIndex::Number out;
    index.insert(key_of(n), {}, 0, false, {}, out);
  }
  std::vector<hkv::RecordKey> asked;
  std::mt19937_64 random(3);
  for (int i = 0; i < 1 << 16; ++i) asked.push_back(key_of(random() % (2 * records)));
  std::size_t here = 0;
  double best = 1e9;
  for (int round = 0; round < 9; ++round) {
    best = std::min(best, par(1, [&](int) {
                            for (const hkv::RecordKey& key : asked)
                              here += index.look(key).answer == hkv::Presence::Answer::Here;
                          }) / static_cast<double>(asked.size()));
  }
  keep(here);
  report.line("look-up among %u records: %.0f ns, half of them misses; %.1f bytes a record\n", records, best,
              static_cast<double>(index.bytes()) / records);
  report.figure("look_ns", best);
  report.figure("index_bytes", static_cast<double>(index.bytes()) / records);
}

// Many small records, so that what an opening costs anyway is little beside them.
void measure_reopening(Report& report, const Sizes& sizes, const std::string& path) {
  constexpr std::size_t record = 4096;
  Store tiny(path, record, 1, 768 * mib, 0);
  tiny.put(16, sizes.tiny * record);
  double best = 1e9;
  for (int i = 0; i < 3; ++i) best = std::min(best, tiny.reopen_seconds_per_million());
  report.line("reopened: %.3f s per million records, of %llu\n", best,
              static_cast<unsigned long long>(tiny.records()));
  report.figure("reopen_s_per_million", best);
}

void run(const Sizes& sizes) {
  Report report(sizes.json);
  measure_index(report, sizes.indexed);
  const std::string reason = raw_disk::reason_not_to(sizes.directory);
  if (!reason.empty()) {
    std::fprintf(stderr, "the disk is not measured: %s\n", reason.c_str());
    return;
  }
  const std::string root = sizes.directory + "/disk_tier." + std::to_string(getpid());
  std::filesystem::create_directory(root);
  {
    raw_disk::Disk disk(root, 2 * sizes.bytes);
    const std::size_t capacity = std::max(2 * sizes.bytes, 512 * mib);
    Store whole(root + "/whole", mib, 1, capacity, 0), cut(root + "/cut", mib, 16, capacity, 0),
        small(root + "/small", mib / 16, 1, capacity, 0), kept(root + "/kept", mib, 1, capacity, 0.25);
    Files renamed(root + "/renamed", mib, false), synced(root + "/synced", mib, true);
    for (Store* store : {&whole, &cut, &small, &kept}) store->fill();  // every region has had a life
    DiskCosts costs;
    for (int round = 0; round < sizes.rounds; ++round) {
      const auto seed = static_cast<std::uint64_t>(round);
      for (const unsigned depth : {8u, 16u}) {
        const std::string at = "_x" + std::to_string(depth);
        costs.add("raw_write_1M" + at, disk.write(mib, depth, sizes.bytes));
        costs.add("tier_write_1M" + at, whole.put(depth, sizes.bytes));
        costs.add("raw_read_1M" + at, disk.read(mib, depth, sizes.bytes, seed));
        costs.add("tier_read_1M" + at, whole.get(depth, sizes.bytes, seed));
        costs.add("tier_read_1M_arena" + at, whole.get_in_arena(depth, sizes.bytes, seed));
        costs.add("tier_read_16x64K" + at, cut.get(depth, sizes.bytes, seed));
        costs.add("tier_read_16x64K_arena" + at, cut.get_in_arena(depth, sizes.bytes, seed));
        costs.add("raw_write_64K" + at, disk.write(mib / 16, depth, sizes.bytes / 4));
        costs.add("tier_write_64K" + at, small.put(depth, sizes.bytes / 4));
        costs.add("raw_read_64K" + at, disk.read(mib / 16, depth, sizes.bytes / 4, seed));
        costs.add("tier_read_64K" + at, small.get(depth, sizes.bytes / 4, seed));
        costs.add("tier_read_64K_arena" + at, small.get_in_arena(depth, sizes.bytes / 4, seed));
      }
      kept.get(16, sizes.bytes, seed);
      costs.add("tier_write_1M_kept_x16", kept.put(16, sizes.bytes));
      costs.add("files_write_1M", renamed.put(sizes.bytes / 4));
      costs.add("files_read_1M", renamed.get(sizes.bytes / 4, seed));
      costs.add("files_fsync_write_1M", synced.put(sizes.bytes / 8));
    }
    report.line("best / median of %d rounds\n", sizes.rounds);
    costs.say(report);
    for (const char* at : {"_x8", "_x16"}) {
      for (const char* what : {"write_1M", "read_1M", "write_64K", "read_64K"})
        costs.compare(report, std::string("tier_") + what + at, std::string("raw_") + what + at);
      costs.compare(report, std::string("tier_read_16x64K") + at, std::string("raw_read_1M") + at);
      for (const char* what : {"tier_read_1M", "tier_read_16x64K", "tier_read_64K"})
        costs.compare_cpu(report, std::string(what) + "_arena" + at, std::string(what) + at);
    }
    costs.compare(report, "tier_write_1M_kept_x16", "raw_write_1M_x16");
    report.line("reads into arenas: %llu of 1M, %llu of 16x64K, %llu of 64K\n",
                static_cast<unsigned long long>(whole.arena_reads()),
                static_cast<unsigned long long>(cut.arena_reads()),
                static_cast<unsigned long long>(small.arena_reads()));
    report.figure("arena_reads_1M", static_cast<double>(whole.arena_reads()));
    costs.compare(report, "tier_write_1M_x16", "files_write_1M");
    costs.compare(report, "tier_write_1M_x16", "files_fsync_write_1M");
    costs.compare(report, "tier_read_1M_x16", "files_read_1M");
  }
  measure_reopening(report, sizes, root + "/tiny");
  std::filesystem::remove_all(root);
}

}  // namespace

int main(int argc, char** argv) {
  Sizes sizes;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json") sizes.json = true;
    if (word == "--smoke")
      sizes.bytes = 16 * mib, sizes.rounds = 1, sizes.indexed = 1u << 14, sizes.tiny = 2000;
    if (word == "--dir" && i + 1 < argc) sizes.directory = argv[++i];
    if (word == "--mib" && i + 1 < argc) sizes.bytes = std::strtoull(argv[++i], nullptr, 10) << 20;
    if (word == "--rounds" && i + 1 < argc) sizes.rounds = std::max(1, std::atoi(argv[++i]));
  }
  run(sizes);
}
