// SPDX-License-Identifier: Apache-2.0
// The contract of tiers, third part: invariant 2 under threads. Every item gets one status and one release; an Ok get has
// its own bytes; and memory that was released stays as its owner leaves it.
#pragma once
#include <atomic>
#include <mutex>
#include <thread>

#include "stress/steps.h"
#include "tier/contract_world.h"

namespace hkv::contract::threads {

// Asks of several threads and what was reported of each. An ask is filed once it has its batch; the report may have come
// before that and waits for it.
class Ledger {
 public:
  explicit Ledger(Tier& tier) : tier_(tier) {}

  void ask(std::mt19937_64& random) {
    const std::uint64_t name = 1 + random() % 24;
    const unsigned kind = random() % 8;
    const bool cancelled = random() % 8 == 0;
    const Deadline deadline = random() % 4 == 0 ? in(std::chrono::microseconds(random() % 300)) : never;
    Ask ask;
    ask.name = name;
    ask.get = kind >= 3;
    ask.room = std::make_unique<Sample>(ask.get ? room_for(sample(name)) : sample(name));
    BatchId batch{};
    Status status;
    if (ask.get) {
      const GetItem item = ask.room->get_item();
      status = tier_.get({&item, 1}, deadline, static_cast<Priority>(random() % 3), batch);
    } else if (kind < 2) {
      const PutItem item = ask.room->put_item();
      status = tier_.put({&item, 1}, deadline, batch);
    } else {
      status = tier_.remove({&ask.room->key, 1}, deadline, batch);
    }
    if (status != Status::Ok) {
      EXPECT_EQ(status, Status::Busy);
      return;
    }
    if (cancelled) tier_.cancel(batch);
    const std::lock_guard lock(mutex_);
    ++taken_;
    asks_[batch] = std::move(ask);
    settle(batch);
  }

  bool poll() {
    Done done[8];
    const std::size_t count = tier_.poll(done);
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < count; ++i) {
      reports_[done[i].batch].push_back(done[i]);
      settle(done[i].batch);
    }
    return count != 0;
  }

  void check() {
    EXPECT_EQ(statuses_, taken_);
    EXPECT_EQ(releases_, taken_);
    EXPECT(asks_.empty() && reports_.empty());
  }
  std::uint64_t hits() const { return hits_; }

 private:
  struct Ask {
    std::unique_ptr<Sample> room;
    std::uint64_t name = 0;
    bool get = false;
  };

  // Two threads may have polled a Timeout and its late report, and file them in either order.
  void settle(BatchId batch) {
    const auto ask = asks_.find(batch);
    const auto reports = reports_.find(batch);
    if (ask == asks_.end() || reports == reports_.end()) return;
    const std::vector<Done>& seen = reports->second;
    int statuses = 0, releases = 0;
    for (const Done& done : seen) {
      statuses += !done.late;
      releases += done.released;
      EXPECT(done.released || done.status == Status::Timeout);
    }
    EXPECT(statuses <= 1 && releases <= 1 && seen.size() <= 2);
    if (statuses != 1 || releases != 1) return;
    statuses_ += 1;
    releases_ += 1;
    for (const Done& done : seen) {
      if (!ask->second.get || done.status != Status::Ok) continue;
      EXPECT(*ask->second.room == sample(ask->second.name));
      ++hits_;
    }
    ask->second.room->clear();  // an engine that still wrote it would be seen to race
    asks_.erase(ask);
    reports_.erase(reports);
  }

  Tier& tier_;
  std::mutex mutex_;
  std::map<BatchId, Ask> asks_;
  std::map<BatchId, std::vector<Done>> reports_;
  std::uint64_t taken_ = 0, statuses_ = 0, releases_ = 0, hits_ = 0;
};

HKV_CONTRACT("under threads each item has one status and one release, and an Ok get its own bytes") {
  WorldOptions options;
  options.depth = 3;
  options.limits.most_items = 64;
  options.limits.breaker_first = 1ms;
  options.limits.breaker_most = 2ms;
  const auto world = make_world(options);
  Ledger ledger(world->tier());
  const std::uint64_t steps = stress::steps_wanted(20000, 1000000);
  std::atomic<int> asking{3};
  std::vector<std::thread> threads;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937_64 random(seed);
      for (std::uint64_t step = 0; step < steps / 3; ++step) ledger.ask(random);
      --asking;
    });
  }
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (asking != 0) {
        if (!ledger.poll()) world->tier().wait(1ms);
      }
    });
  }
  threads.emplace_back([&] {  // stops the engine now and then, so that calls become late
    while (asking != 0) {
      world->freeze();
      std::this_thread::sleep_for(1ms);
      world->thaw();
      std::this_thread::sleep_for(1ms);
    }
  });
  for (std::thread& thread : threads) thread.join();
  world->thaw();
  EXPECT(world->tier().drain(in(120s)));
  world->tier().close();
  while (ledger.poll()) {
  }
  ledger.check();
  EXPECT(ledger.hits() > 0);
}

}  // namespace hkv::contract::threads
