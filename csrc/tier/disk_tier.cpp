// SPDX-License-Identifier: Apache-2.0
#include "tier/disk_tier.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <set>
#include <thread>

#include "tier/disk_store.h"
#include "tier/recovery.h"

namespace hkv {

// The thread has everything but what `mutex` guards; `index` is read by all.
struct DiskTier::Engine final : DiskStore::Owner {
  Engine(DiskTier& t, const DiskOptions& o, std::unique_ptr<Io> i) : tier(t), options(o), io(std::move(i)) {
    DiskContent content = recover(*io, options, index, recovered);
    region_bytes = content.superblock.region_bytes;
    store = std::make_unique<DiskStore>(options, *io, index, std::move(content), *this);
  }
  void finished(TierOperation* operation, TierStatus status, Damage damage) override {
    tier.finish(operation, status, damage);
  }

  DiskTier& tier;
  const DiskOptions options;
  std::unique_ptr<Io> io;
  DiskIndex index;
  Recovered recovered;
  std::uint64_t region_bytes = 0;
  std::unique_ptr<DiskStore> store;
  std::set<void*> fixed_arenas;  // the Io took them; under the tier's lock of arenas
  Hint<std::uint64_t> fixed_count;

  std::mutex mutex;  // of what follows
  std::vector<Operation*> inbox;
  bool asleep = false, ending = false;
  std::thread thread;
};

DiskTier::DiskTier(const TierLimits& limits) : Tier(limits) {}

DiskTier::~DiskTier() { close(); }

std::unique_ptr<DiskTier> open_disk_tier(const DiskOptions& options, std::unique_ptr<Io> io) {
  check_options(options);
  if (io == nullptr) io = open_directory(options.path, options.engine, options.direct, options.depth);
  std::unique_ptr<DiskTier> tier(new DiskTier(options.limits));
  tier->engine_ = std::make_unique<DiskTier::Engine>(*tier, options, std::move(io));
  tier->engine_->thread = std::thread([raw = tier.get()] { raw->run(); });
  return tier;
}

TierCaps DiskTier::caps() const {
  TierCaps caps;
  caps.durable = true;
  caps.index = true;
  const DiskOptions& options = engine_->options;
  caps.depth = options.operations != 0 ? options.operations : 4 * options.depth;
  caps.most_bytes = engine_->store->most_record_bytes() - 2 * disk_unit;  // two fills
  return caps;
}

Presence DiskTier::look(const RecordKey& key) const { return engine_->index.look(key); }
void DiskTier::touch(const RecordKey& key) { engine_->index.touch(key); }
std::uint64_t DiskTier::losses() const { return engine_->index.losses(); }
const Recovered& DiskTier::recovered() const { return engine_->recovered; }
const char* DiskTier::engine() const { return engine_->io != nullptr ? engine_->io->name() : "closed"; }

void DiskTier::begin(Operation* operation) {
  bool wake;
  {
    const std::lock_guard lock(engine_->mutex);
    engine_->inbox.push_back(operation);
    wake = std::exchange(engine_->asleep, false);
  }
  if (wake) engine_->io->wake();
}

void DiskTier::run() {
  Engine& engine = *engine_;
  std::vector<Operation*> taken;
  std::array<IoRequest*, 64> done;
  for (;;) {
    bool ending;
    {
      const std::lock_guard lock(engine.mutex);
      taken.swap(engine.inbox);
      ending = engine.ending;
      engine.asleep = taken.empty();
    }
    const Deadline now = TierClock::now();
    for (Operation* operation : taken) engine.store->begin(operation, now);
    const bool any = !taken.empty();
    taken.clear();
    if (ending) engine.store->begin_close();
    engine.store->pump();
    if (ending && !any && engine.store->closed()) return;
    // What is pumped may have finished operations, and so brought new ones.
    const auto at_most = any || engine.store->more() ? std::chrono::nanoseconds(0) : std::chrono::hours(1);
    const std::size_t count = engine.io->wait(done, at_most);
    for (std::size_t i = 0; i < count; ++i) engine.store->complete(done[i]);
  }
}

void DiskTier::end() {
  if (engine_ == nullptr) return;  // it was never opened
  {
    const std::lock_guard lock(engine_->mutex);
    engine_->ending = true;
  }
  engine_->io->wake();
  engine_->thread.join();
  engine_->store->release_memory();
  engine_->io.reset();
}

void DiskTier::begin_arena(void* data, std::size_t bytes) {
  if (!engine_->io->add_arena(data, bytes)) return;
  engine_->fixed_arenas.insert(data);
  engine_->fixed_count.store(engine_->fixed_arenas.size());
}

bool DiskTier::end_arena(void* data) {
  if (engine_->fixed_arenas.erase(data) == 0) return true;
  engine_->io->drop_arena(data);
  engine_->fixed_count.store(engine_->fixed_arenas.size());
  return true;
}

void DiskTier::drop(const Operation& operation) { engine_->store->drop(operation); }

TierUsage DiskTier::engine_usage() const {
  const DiskCounts& counts = engine_->store->counts();
  TierUsage usage;
  usage.records = engine_->index.records();
  usage.bytes = counts.live_bytes.load();
  usage.capacity_bytes = engine_->options.capacity_bytes / engine_->region_bytes * engine_->region_bytes;
  usage.put_known = counts.put_known.load();
  usage.reclaimed = counts.reclaimed.load();
  usage.io_errors = counts.io_errors.load();
  usage.bytes_read = counts.bytes_read.load();
  usage.bytes_written = counts.bytes_written.load();
  usage.read_only = counts.read_only.load();
  usage.arenas_fixed = engine_->fixed_count.load();
  usage.arena_reads = counts.arena_reads.load();
  usage.fixed_requests = counts.fixed_requests.load();
  return usage;
}

}  // namespace hkv
