// SPDX-License-Identifier: Apache-2.0
// The disk tier with its thread: the contract of tiers over a simulated disk and over directories, and what a second
// opener, foreign files and a directory that goes away do.
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tier/contract.h"
#include "tier/disk_tier.h"
#include "tier/lent_io.h"
#include "tier/region.h"
#include "tier/scratch_directory.h"
#include "tier/simulated_io.h"

namespace hkv {
namespace {

constexpr std::uint64_t region_bytes = 64 * disk_unit;

DiskOptions disk_options(const contract::WorldOptions& options) {
  DiskOptions disk;
  disk.region_bytes = options.small ? 16 * disk_unit : std::uint64_t{4} << 20;
  disk.capacity_bytes = (options.small ? 5 : 8) * disk.region_bytes;
  disk.depth = disk.operations = options.depth;
  disk.limits = options.limits;
  return disk;
}

// Offset of the first part of the record in the bytes of a region file; 0: it is not there. The last life counts.
std::uint64_t find_payload(std::span<const std::byte> file, const RecordKey& key, std::uint64_t& epoch) {
  std::uint64_t found = 0;
  for (std::uint64_t at = 0; at + disk_unit <= file.size(); at += disk_unit) {
    Envelope envelope;
    if (read_envelope(file.subspan(at), envelope) != Damage::None || envelope.key != key) continue;
    if (envelope.epoch < epoch) continue;
    epoch = envelope.epoch;
    found = at + envelope.payload_offset;
  }
  return found;
}

class SimulatedWorld final : public contract::TierWorld {
 public:
  explicit SimulatedWorld(const contract::WorldOptions& options)
      : options_(disk_options(options)), io_(std::make_unique<SimulatedIo>(SimulatedDisk(), options.depth)) {
    open();
  }
  ~SimulatedWorld() override {
    thaw();
    tier_.reset();
  }
  Tier& tier() override { return *tier_; }
  bool reopen() override {
    tier_->close();
    tier_.reset();
    io_ = std::make_unique<SimulatedIo>(io_->disk().restart_with_none(), io_->depth());
    open();
    return true;
  }
  bool corrupt(const RecordKey& key) override {
    io_->change_disk([&](SimulatedDisk& disk) {
      std::string name;
      std::uint64_t at = 0, epoch = 0;
      for (const std::string& each : disk.list()) {
        std::vector<std::byte> bytes(disk.size(disk.find(each)));
        disk.read(disk.find(each), 0, bytes.data(), bytes.size());
        if (const std::uint64_t found = find_payload(bytes, key, epoch)) at = found, name = each;
      }
      disk.rot(name, at + 5, 4);
    });
    return true;
  }
  bool freeze() override {
    SimulatedFault fault;
    fault.kind = SimulatedFault::Kind::Frozen;
    fault.times = ~std::size_t{0};
    io_->add(fault);
    return true;
  }
  void thaw() override {
    io_->clear_faults();
    io_->thaw();
  }

 private:
  void open() {
    options_.path = "simulated";
    tier_ = open_disk_tier(options_, std::make_unique<LentIo>(*io_));
  }
  DiskOptions options_;
  std::unique_ptr<SimulatedIo> io_;
  std::unique_ptr<DiskTier> tier_;
};

class DirectoryWorld final : public contract::TierWorld {
 public:
  DirectoryWorld(const contract::WorldOptions& options, IoEngine engine) : options_(disk_options(options)) {
    options_.path = scratch_ / "store";
    options_.engine = engine;
    tier_ = open_disk_tier(options_);
  }
  Tier& tier() override { return *tier_; }
  bool reopen() override {
    tier_.reset();
    tier_ = open_disk_tier(options_);
    return true;
  }
  bool corrupt(const RecordKey& key) override {
    std::string name;
    std::uint64_t at = 0, epoch = 0;
    for (const auto& entry : std::filesystem::directory_iterator(options_.path)) {
      std::vector<std::byte> bytes(entry.file_size());
      std::ifstream(entry.path(), std::ios::binary)
          .read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
      if (const std::uint64_t found = find_payload(bytes, key, epoch)) at = found, name = entry.path();
    }
    const int fd = ::open(name.c_str(), O_RDWR);
    char byte = 0;
    bool whole = ::pread(fd, &byte, 1, static_cast<off_t>(at + 5)) == 1;
    byte = static_cast<char>(byte ^ 16);
    whole = whole && ::pwrite(fd, &byte, 1, static_cast<off_t>(at + 5)) == 1 && ::fsync(fd) == 0;
    ::close(fd);
    return whole;
  }

 private:
  ScratchDirectory scratch_;
  DiskOptions options_;
  std::unique_ptr<DiskTier> tier_;
};

bool has_uring() {
  ScratchDirectory scratch;
  try {
    open_directory(scratch.path(), IoEngine::Uring, true, 4);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

// A simulated disk, a directory by threads, a directory by io_uring where it is to be had; ThreadSanitizer does not see
// what a kernel writes.
#ifdef __SANITIZE_THREAD__
const int contract::kinds = 2;
#else
const int contract::kinds = 3;
#endif
std::unique_ptr<contract::TierWorld> contract::make_world(const WorldOptions& options, int kind) {
  if (kind == 0) return std::make_unique<SimulatedWorld>(options);
  static const bool uring = has_uring();
  return std::make_unique<DirectoryWorld>(options, kind == 2 && uring ? IoEngine::Uring : IoEngine::Threads);
}

namespace {

DiskOptions at(const std::string& path) {
  DiskOptions options;
  options.path = path;
  options.region_bytes = region_bytes;
  options.capacity_bytes = 5 * region_bytes;
  options.engine = IoEngine::Threads;
  return options;
}

template <class F>
std::string refusal(F open) {
  try {
    open();
  } catch (const Error& error) {
    return error.field;
  }
  return {};
}

}  // namespace

HKV_TEST("a second opener is told, and the first goes on") {
  ScratchDirectory scratch;
  const auto first = open_disk_tier(at(scratch / "store"));
  EXPECT_EQ(refusal([&] { open_disk_tier(at(scratch / "store")); }), "path");
  contract::Asker ask(*first);
  const auto record = contract::sample(1);
  EXPECT_EQ(ask.put(record).status, TierStatus::Ok);
  EXPECT(ask.has(record));
  first->close();
  const auto next = open_disk_tier(at(scratch / "store"));
  contract::Asker again(*next);
  EXPECT(again.has(record));
}

HKV_TEST("a directory that is no store, or not wholly one, is left as it is") {
  ScratchDirectory scratch;
  std::filesystem::create_directory(scratch / "full");
  std::filesystem::permissions(scratch / "full", std::filesystem::perms::owner_all);
  std::ofstream(scratch / "full/thesis.txt") << "mine";
  EXPECT_EQ(refusal([&] { open_disk_tier(at(scratch / "full")); }), "path");
  EXPECT(std::filesystem::exists(scratch / "full/thesis.txt"));
  {
    open_disk_tier(at(scratch / "store"));
  }
  std::ofstream(scratch / "store/notes") << "mine";
  {
    const auto tier = open_disk_tier(at(scratch / "store"));
    EXPECT_EQ(tier->recovered().unknown_files, 1u);
  }
  EXPECT(std::filesystem::exists(scratch / "store/notes"));
  std::filesystem::remove(scratch / "store/superblock");
  EXPECT_EQ(refusal([&] { open_disk_tier(at(scratch / "store")); }), "path");
}

HKV_TEST("options that cannot be are refused by name") {
  ScratchDirectory scratch;
  const auto refused = [&](auto change) {
    DiskOptions options = at(scratch / "store");
    change(options);
    return refusal([&] { open_disk_tier(options); });
  };
  EXPECT_EQ(refused([](DiskOptions& o) { o.capacity_bytes = 3 * region_bytes; }), "capacity_bytes");
  EXPECT_EQ(refused([](DiskOptions& o) { o.region_bytes = 5000; }), "region_bytes");
  EXPECT_EQ(refused([](DiskOptions& o) { o.depth = 0; }), "depth");
  EXPECT_EQ(refused([](DiskOptions& o) { o.keep_share = 0.5; }), "keep_share");
  EXPECT_EQ(refused([](DiskOptions& o) { o.admission = WriteAdmission::Budget; }), "budget_bytes_per_second");
}

HKV_TEST(
    "gets into arenas go by fixed requests where the engine has them, and all that was said of arenas is "
    "counted") {
  for (const IoEngine engine : {IoEngine::Threads, IoEngine::Uring}) {
    ScratchDirectory scratch;
    DiskOptions options = at(scratch / "store");
    options.region_bytes = std::uint64_t{4} << 20;
    options.capacity_bytes = 5 * options.region_bytes;
    options.engine = engine;
    const bool fixes = engine == IoEngine::Uring;
#ifdef __SANITIZE_THREAD__
    if (fixes) continue;
#endif
    if (fixes && !has_uring()) continue;
    const auto tier = open_disk_tier(options);
    contract::Asker ask(*tier);
    contract::arenas::Aligned put(1), got(1);
    put.memory.fill(3);
    EXPECT_EQ(ask.put(put.record).status, TierStatus::Ok);
    EXPECT_EQ(tier->add_arena(got.memory.data(), got.memory.size()), TierStatus::Ok);
    AlignedMemory odd(3);
    EXPECT_EQ(tier->add_arena(odd.data(), 3), TierStatus::Ok);
    EXPECT_EQ(tier->usage().arenas, 2u);
    EXPECT_EQ(tier->usage().arenas_fixed, fixes ? 2u : 0u);
    EXPECT_EQ(tier->usage().arena_reads, 0u);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(ask.get(got.record).status, TierStatus::Ok);
    EXPECT(std::memcmp(got.memory.data(), put.memory.data(), put.memory.size()) == 0);
    EXPECT_EQ(tier->usage().arena_reads, fixes ? 3u : 0u);
    EXPECT_EQ(tier->usage().fixed_requests > 3, fixes);  // the write of the record, from memory of the tier
    EXPECT_EQ(tier->drop_arena(odd.data()), TierStatus::Ok);
    EXPECT_EQ(tier->usage().arenas_fixed, fixes ? 1u : 0u);
    tier->close();
    EXPECT_EQ(tier->usage().arena_reads, fixes ? 3u : 0u);
  }
}

HKV_TEST("a directory deleted under the tier: what is open goes on, nothing is wrong") {
  ScratchDirectory scratch;
  const auto tier = open_disk_tier(at(scratch / "store"));
  contract::Asker ask(*tier);
  const auto record = contract::sample(1);
  EXPECT_EQ(ask.put(record).status, TierStatus::Ok);
  std::filesystem::remove_all(scratch / "store");
  EXPECT(ask.has(record));
  for (std::uint64_t name = 2; name < 200; ++name) {
    const auto more = contract::sample(name);
    const TierStatus status = ask.put(more).status;
    EXPECT(status == TierStatus::Ok || status == TierStatus::NoSpace || status == TierStatus::ReadOnly);
    EXPECT_EQ(ask.has(more), tier->look(more.key).answer == Presence::Answer::Here);
  }
  tier->close();
}

}  // namespace hkv
