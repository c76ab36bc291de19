// SPDX-License-Identifier: Apache-2.0
// What the contract of tiers is tested in: a world that makes a tier and can do things to it, records to put, and a
// collector of reports that checks each against invariant 2 of tier.h.
//
// Thread safety: a Collector is one thread's.
#pragma once
#include <poll.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "testing.h"
#include "tier/tier.h"

namespace hkv::contract {

using namespace std::chrono_literals;
using Status = TierStatus;
using Answer = Presence::Answer;

struct WorldOptions {
  TierLimits limits;
  std::size_t depth = 16;
  bool small = false;  // so little capacity that a few dozen records of 4 KiB fill it
};

// A tier with hands on it. What a world cannot do it says by returning false, and the case that needs it says so too.
class TierWorld {
 public:
  virtual ~TierWorld() = default;
  virtual Tier& tier() = 0;
  // Closes the tier and opens the same store again: `tier()` is another one.
  virtual bool reopen() { return false; }
  // Flips a bit of what the tier keeps of the record's first part.
  virtual bool corrupt(const RecordKey&) { return false; }
  // From now on whatever is begun stays under way, until `thaw`, which the tier's own end implies.
  virtual bool freeze() { return false; }
  virtual void thaw() {}
};

// Each program that includes the contract defines these: how many kinds of its tier there are (engines, say), and a world
// of one of them.
extern const int kinds;
std::unique_ptr<TierWorld> make_world(const WorldOptions& options, int kind);

// Kind that the test which runs now is about.
inline int kind_now = 0;
inline std::unique_ptr<TierWorld> make_world(const WorldOptions& options) {
  return make_world(options, kind_now);
}
#define HKV_CONTRACT(sentence) HKV_CONTRACT_AS("contract: " sentence, HKV_JOIN(contract_, __LINE__))
#define HKV_CONTRACT_AS(sentence, name)                                                              \
  static void name();                                                                                \
  HKV_TEST_AS(sentence, HKV_JOIN(name, _all)) {                                                      \
    for (contract::kind_now = 0; contract::kind_now < contract::kinds; ++contract::kind_now) name(); \
  }                                                                                                  \
  static void name()

inline bool lacks(const char* what) {
  std::printf("     left out: this tier's world cannot %s\n", what);
  return true;
}

inline Deadline in(std::chrono::nanoseconds time) { return TierClock::now() + time; }
inline constexpr Deadline never = Deadline::max();

// A record with memory of its own; every byte follows from the seed.
struct Sample {
  RecordKey key;
  Key128 parent;
  std::vector<std::vector<std::byte>> pages;
  std::vector<Part> parts;
  std::uint8_t flags = 0;
  bool pinned = false, durable = false;

  PutItem put_item() const {
    PutItem item;
    item.key = key;
    item.parent = parent;
    item.identity = {7, 7};
    item.tokens = 256;
    item.parts = parts;
    item.flags = flags;
    item.pinned = pinned;
    item.durable = durable;
    return item;
  }
  GetItem get_item() const { return {key, parts}; }

  void fill(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (auto& page : pages) {
      for (auto& byte : page) byte = static_cast<std::byte>(random());
    }
  }
  void clear() {
    for (auto& page : pages) std::fill(page.begin(), page.end(), std::byte{0xEE});
  }
  bool operator==(const Sample& other) const { return pages == other.pages; }
};

inline constexpr Key128 sample_format{0xF0, 0x0F};

inline Sample sample(std::uint64_t name, std::vector<std::size_t> sizes = {64, 4096, 100}, Key128 parent = {},
                     RecordKind kind = RecordKind::Block) {
  Sample made;
  made.key = {{name, ~name}, sample_format, kind};
  made.parent = parent;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    made.pages.emplace_back(sizes[i]);
    made.parts.push_back({made.pages.back().data(),
                          sizes[i],
                          {static_cast<std::uint16_t>(i), 1, static_cast<std::uint32_t>(name), 0}});
  }
  made.fill(name);
  return made;
}

// A place for the parts of another sample: the same labels, other memory.
inline Sample room_for(const Sample& like) {
  Sample room = like;
  for (std::size_t i = 0; i < room.pages.size(); ++i) room.parts[i].data = room.pages[i].data();
  room.clear();
  return room;
}

class Collector {
 public:
  explicit Collector(Tier& tier) : tier_(tier) {}

  // Takes what there is. Each report is checked: one status an item, one release, a late one only behind a Timeout.
  std::size_t take() {
    Done done[16];
    const std::size_t count = tier_.poll(done);
    for (std::size_t i = 0; i < count; ++i) {
      auto& seen = seen_[{done[i].batch, done[i].item}];
      if (done[i].late) {
        EXPECT(seen.size() == 1 && seen[0].status == Status::Timeout && !seen[0].released);
        EXPECT(done[i].released);
      } else {
        EXPECT(seen.empty());
        EXPECT(done[i].released || done[i].status == Status::Timeout);
      }
      seen.push_back(done[i]);
    }
    return count;
  }

  // The item's first report; waits for it.
  Done done(BatchId batch, std::uint32_t item = 0) { return wait_for(batch, item, 1); }
  // Its last: the one that released it.
  Done released(BatchId batch, std::uint32_t item = 0) {
    const Done first = done(batch, item);
    return first.released ? first : wait_for(batch, item, 2);
  }
  bool reported(BatchId batch, std::uint32_t item = 0) const { return seen_.contains({batch, item}); }
  std::size_t reports() const {
    std::size_t count = 0;
    for (const auto& [name, seen] : seen_) count += seen.size();
    return count;
  }

 private:
  Done wait_for(BatchId batch, std::uint32_t item, std::size_t reports) {
    for (const Deadline end = in(60s); TierClock::now() < end; tier_.wait(100ms)) {
      while (take() != 0) {
      }
      const auto seen = seen_.find({batch, item});
      if (seen != seen_.end() && seen->second.size() >= reports) return seen->second[reports - 1];
    }
    EXPECT(!"a report within a minute");
    return {};
  }

  Tier& tier_;
  std::map<std::pair<BatchId, std::uint32_t>, std::vector<Done>> seen_;
};

// One ask at a time, and its answer.
class Asker {
 public:
  explicit Asker(Tier& tier) : tier_(tier), reports(tier) {}

  Done put(const Sample& record) { return put(record.put_item()); }
  Done put(const PutItem& item) {
    BatchId batch;
    EXPECT_EQ(tier_.put({&item, 1}, never, batch), Status::Ok);
    return reports.released(batch);
  }
  Done get(const RecordKey& key, std::span<const Part> parts) {
    const GetItem item{key, parts};
    BatchId batch;
    EXPECT_EQ(tier_.get({&item, 1}, never, Priority::Demand, batch), Status::Ok);
    return reports.released(batch);
  }
  Done get(const Sample& room) { return get(room.key, room.parts); }
  Done remove(const RecordKey& key) {
    BatchId batch;
    EXPECT_EQ(tier_.remove({&key, 1}, never, batch), Status::Ok);
    return reports.released(batch);
  }
  Done probe(const RecordKey& key) {
    BatchId batch;
    EXPECT_EQ(tier_.probe({&key, 1}, never, batch), Status::Ok);
    return reports.released(batch);
  }
  Done flush() {
    BatchId batch;
    EXPECT_EQ(tier_.flush(never, batch), Status::Ok);
    return reports.released(batch);
  }
  // Whether the record is there and every byte of it is as it was put.
  bool has(const Sample& record) {
    Sample room = room_for(record);
    return get(room).status == Status::Ok && room == record;
  }

 private:
  Tier& tier_;

 public:
  Collector reports;
};

inline bool readable(int fd, int milliseconds) {
  pollfd interest{fd, POLLIN, 0};
  return ::poll(&interest, 1, milliseconds) == 1;
}

}  // namespace hkv::contract
