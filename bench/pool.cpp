// SPDX-License-Identifier: Apache-2.0
// Question: what does it cost to take pages and to give them back, 64 at a time and one at a time, on one thread
// and on two, in a fresh pool and in one of which 1.6 % is free?
//
//   pool [--json] [--smoke]
//
// Beside hkv::IdPool, in the same rounds: a vector under a mutex, 64 for one lock, and a Treiber stack with a tagged
// head, one at a time. Figures are ns for a page taken and given back, on two threads by pages of both.
#include "limits/bench.hpp"

#include <mutex>

#include "block/id_pool.h"
#include "rounds.hpp"

namespace {

constexpr std::uint32_t pages = 1 << 16, batch = 64;

class MutexedVector {
 public:
  MutexedVector() {
    for (std::uint32_t i = 0; i < pages; ++i) free_.push_back(i);
  }
  std::size_t take_some(std::span<std::uint32_t> out) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::size_t n = std::min(out.size(), free_.size());
    std::copy(free_.end() - static_cast<std::ptrdiff_t>(n), free_.end(), out.begin());
    free_.resize(free_.size() - n);
    return n;
  }
  void give_back_some(std::span<const std::uint32_t> ids) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.insert(free_.end(), ids.begin(), ids.end());
  }

 private:
  std::mutex mutex_;
  std::vector<std::uint32_t> free_;
};

class TreiberStack {
 public:
  TreiberStack() : next_(pages) {
    for (std::uint32_t i = 0; i < pages; ++i) next_[i].store(i + 1 < pages ? i + 1 : hkv::none_u32);
  }
  std::uint32_t take() {
    std::uint64_t head = head_.load(std::memory_order_acquire);
    for (;;) {
      const auto id = static_cast<std::uint32_t>(head);
      if (id == hkv::none_u32) return id;
      const std::uint64_t next = next_[id].load(std::memory_order_relaxed);
      if (head_.compare_exchange_weak(head, (head >> 32) + 1 << 32 | next, std::memory_order_acquire))
        return id;
    }
  }
  void give_back(std::uint32_t id) {
    std::uint64_t head = head_.load(std::memory_order_relaxed);
    do {
      next_[id].store(static_cast<std::uint32_t>(head), std::memory_order_relaxed);
    } while (!head_.compare_exchange_weak(head, (head >> 32) + 1 << 32 | id, std::memory_order_release));
  }

 private:
  std::atomic<std::uint64_t> head_{0};
  std::vector<std::atomic<std::uint32_t>> next_;
};

// Leaves 1 page in 64 free, at a place of its own in each word.
void fragment(hkv::IdPool& pool) {
  std::vector<std::uint32_t> all(pages);
  pool.take_some(all);
  Rng random(7);
  for (std::uint32_t word = 0; word < pages / 64; ++word) pool.give_back(word * 64 + random() % 64);
}

struct Trial {
  hkv::IdPool fresh{pages}, tight{pages};
  MutexedVector mutexed;
  TreiberStack treiber;
};

void run(Report& report, bool smoke) {
  Trial trial;
  fragment(trial.tight);
  const int times = smoke ? 10 : 4000;
  Rounds all;
  for (int round = 0; round < (smoke ? 2 : 25); ++round) {
    for (const int threads : {1, 2}) {
      const std::string on = threads == 1 ? "_1" : "_2";
      const auto many = [&](auto& pool, int n) {
        return par(threads,
                   [&](int) {
                     std::uint32_t ids[batch];
                     for (int i = 0; i < n; ++i) pool.give_back_some({ids, pool.take_some(ids)});
                   }) /
               n / batch / threads;
      };
      const auto one = [&](auto& pool, int n) {
        return par(threads,
                   [&](int) {
                     for (int i = 0; i < n; ++i) pool.give_back(pool.take());
                   }) /
               n / threads;
      };
      all.add("pool64" + on, many(trial.fresh, times));
      all.add("mutexed64" + on, many(trial.mutexed, times));
      all.add("tight64" + on, many(trial.tight, times / 10 + 1));
      all.add("pool1" + on, one(trial.fresh, times * 16));
      all.add("treiber1" + on, one(trial.treiber, times * 16));
    }
  }
  for (const std::string& name : all.names()) {
    report.line("%-12s %7.2f / %7.2f ns a page (min / median)\n", name.c_str(), all.min(name),
                all.median(name));
    report.figure(name + "_ns", all.median(name));
  }
  report.figure("times_mutexed_2", all.ratio("mutexed64_2", "pool64_2"));
  report.figure("times_treiber_2", all.ratio("treiber1_2", "pool1_2"));
  report.figure("threads_1_to_2", all.ratio("pool64_1", "pool64_2"));
  report.figure("free_at_end", trial.fresh.free_count() == pages && trial.fresh.summary_holds());
}

}  // namespace

int main(int argc, char** argv) {
  bool json = false, smoke = false;
  for (int i = 1; i < argc; ++i) {
    json |= std::string(argv[i]) == "--json";
    smoke |= std::string(argv[i]) == "--smoke";
  }
  Report report(json);
  run(report, smoke);
  return 0;
}
