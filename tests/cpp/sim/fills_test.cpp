// SPDX-License-Identifier: Apache-2.0
// The windows between check and use (windows_test.cpp) through HybridCache: leases and fills.
#include "sim/cache_world.h"

namespace hkv::sim {
namespace {

// Find to acquire: between reading a block's words and pinning it, its life ends and its page holds another key.
// Guard: the pin's CAS compares the generation.
struct FindToAcquire : CacheWorld {
  FindToAcquire() : CacheWorld(1, 1) {}
  void before() override { HKV_MUST(fill_all(a)); }
  void thread(int self) override {
    if (self == 0) {
      std::unique_ptr<Lease> lease = match(a);
      if (lease == nullptr) return;
      read_lease(*lease);
      drop(std::move(lease));
    } else {
      evict(a);
      fill_all(b);
    }
  }
};
// Acquire to read: the block is pinned and somebody wants its pages. Guard: evict needs 0 pins.
struct AcquireToRead : CacheWorld {
  std::unique_ptr<Lease> lease;
  AcquireToRead() : CacheWorld(2, 1) {}
  void before() override {
    HKV_MUST(fill_all(a));
    lease = match(a);
    HKV_MUST(lease != nullptr);
  }
  void thread(int self) override {
    if (self == 0) {
      read_lease(*lease);
      read_lease(*lease);
      drop(std::move(lease));
    } else {
      evict(a);
      fill_all(b);
    }
  }
};

// Free to last launched write: a fill is given up while a copy that was launched for it still writes. Guard: with
// quarantine the page stays out of the pool.
struct FreeToLastWrite : CacheWorld {
  std::unique_ptr<Fill> given_up;
  PageId target{};
  FreeToLastWrite() : CacheWorld(2, 1) {}
  int threads() const override { return 3; }
  void before() override {
    given_up = reserve(a);
    HKV_MUST(given_up != nullptr);
    target = given_up->entries[0][0].page;
  }
  void thread(int self) override {
    if (self == 0) {
      abort(*given_up, true);
    } else if (self == 1) {
      fill_all(b);
    } else {
      for (int i = 0; i < page_words; ++i) word(0, target, i).set(0);  // the copy engine
    }
  }
  void after() override {
    HKV_MUST(cache.quarantined_pages(0) == 1 && cache.quarantined_pages(1) == 1);
    HKV_MUST(!store.pool(0).is_free(target));
    quarantined_ = 1;
    World::after();
  }
};

// Late publish after removal: a fill that was aborted publishes when another one has claimed the block. Guard: an
// entry that was given back publishes nothing.
struct LatePublish : CacheWorld {
  std::unique_ptr<Fill> late;
  LatePublish() : CacheWorld(1, 1) {}
  void before() override {
    late = reserve(a);
    HKV_MUST(late != nullptr);
  }
  void thread(int self) override {
    if (self == 0) {
      abort(*late);
      publish(*late);
    } else {
      fill_all(a);
    }
  }
};

// A directory without a tip is chosen to make room; by the time it is looked at, its line is a unit's. Guard: the
// victim's key is looked up again, and what is found must be a directory.
struct DirectoryVictim : CacheWorld {
  const Chain tip = chain(3, 2);
  DirectoryVictim() : CacheWorld(2, 2) {}
  void before() override {
    HKV_MUST(fill_all(tip));
    for (int g = 0; g < groups; ++g) store.retire_of(tip->tip_key(0, 2), g);
    HKV_MUST(store.ids().free_count() == 1);  // the directory is left
  }
  void thread(int self) override {
    const Busy busy(*this);
    if (self == 0) {
      cache.make_room(descriptor_pool, 1);
    } else {
      cache.evict(*tip, everything());  // ends the directory
      fill_all(a);
      fill_all(b);  // one of the two has its line
    }
  }
};

}  // namespace

HKV_TEST("a directory that is chosen to go may be a unit when it is looked at") {
  search_interrupted<DirectoryVictim>("directory victim", 2);
}
HKV_TEST("find to acquire: a lease holds only what was checked") {
  search_all<FindToAcquire>("match beside evict");
}
HKV_TEST("acquire to read: what a lease pins is not evicted") {
  search_all<AcquireToRead>("lease beside evict");
}
HKV_TEST("free to last launched write: a quarantined page is nobody's") {
  search_all<FreeToLastWrite>("write beside quarantine");
}
HKV_TEST("late publish after removal: an aborted fill publishes nothing") {
  search_all<LatePublish>("late publish");
}
HKV_TEST("late publish after removal: a fill older than the last reset publishes nothing") {
  CacheWorld world(2, 2);
  const std::unique_ptr<Fill> first = world.reserve(world.a), second = world.reserve(world.a);
  world.publish(*first);
  world.publish(*second);  // too late: its pages stay private
  world.cache.abort(*first, false);
  world.cache.evict(*world.a, CacheWorld::everything());
  world.cache.reset();
  bool refused = false;
  try {
    world.publish(*second);
  } catch (const Error& error) {
    refused = error.code == ErrorCode::FillClosed;
  }
  EXPECT(refused);
  EXPECT_EQ(world.store.pool(0).free_count(), 2u);
}

}  // namespace hkv::sim
