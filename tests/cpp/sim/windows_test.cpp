// SPDX-License-Identifier: Apache-2.0
// The four windows between check and use over block/, each with the guard that closes it; fills_test.cpp has them
// through HybridCache. tests/mutants.py takes each guard out and expects the test of that window to fail.
#include "sim/world.h"

namespace hkv::sim {
namespace {

// Find to acquire: between reading a block's words and pinning it, its life ends and its page holds another key.
// Guard: the pin's CAS compares the generation.
struct FindToAcquire : World {
  FindToAcquire() : World(1, 1, h_alone) {}
  void before() override { HKV_MUST(fill(key_a, 0)); }
  void thread(int self) override {
    if (self == 0) {
      read(key_a, 0);
    } else if (evict(key_a, 0)) {
      fill(key_b, 0);
    }
  }
};
// The same in one word and one life: the page of the second slot goes and comes back with other bytes. A neighbour
// keeps the descriptor alive, so that nothing but the generation tells.
struct FindToAcquireOneLife : World {
  FindToAcquireOneLife() : World(2, 2, two_of_h) {}
  void before() override { HKV_MUST(fill(key_a, 0) && fill(key_a, 1)); }
  void thread(int self) override {
    if (self == 0) {
      // A reader that takes page ids from its snapshot, as a match does for its four checks.
      const Sighting seen = store.table().find(key_a);
      if (!seen.found() || !seen.h.usable(3)) return;
      const PageId page = store.page(seen.id, 1);
      const Busy busy(*this);
      if (store.pin(seen.id, WordClass::H, seen.h, 3) != PinResult::Pinned) return;
      HKV_MUST(store.page(seen.id, 1) == page);
      store.unpin(seen.id, WordClass::H);
    } else if (evict(key_a, 1)) {
      const Busy busy(*this);
      const PageId kept = store.pool(1).take();  // so that the block gets another page
      fill(key_a, 1);
      store.pool(1).give_back(kept);
    }
  }
};

// Acquire to read: the block is pinned and somebody wants its page. Guard: evict needs 0 pins.
struct AcquireToRead : World {
  Pin pin;
  AcquireToRead() : World(2, 1, h_alone) {}
  void before() override { HKV_MUST(fill(key_a, 0) && acquire_page(key_a, 0, pin)); }
  void thread(int self) override {
    if (self == 0) {
      read_page(pin);
      read_page(pin);
      release_page(pin);
    } else {
      evict(key_a, 0);
      fill(key_b, 0);
    }
  }
};

// Free to last launched write: a claim is given up while a copy that was launched for it still writes. Guard: where
// asked, the page stays out of the pool.
struct FreeToLastWrite : World {
  DescriptorId id{};
  PageId target{};
  FreeToLastWrite() : World(2, 1, h_alone) {}
  int threads() const override { return 3; }
  void before() override {
    target = store.pool(0).take();
    id = claim(key_a, 0, target);
    HKV_MUST(id != no_descriptor);
    standing_claims = 1;
  }
  void thread(int self) override {
    if (self == 0) {
      const Busy busy(*this);
      store.abort(id, key_a, 0, true);
    } else if (self == 1) {
      fill(key_b, 0);
    } else {
      for (int i = 0; i < page_words; ++i) word(0, target, i).set(0);  // the copy engine
    }
  }
  void after() override {
    HKV_MUST(!store.pool(0).is_free(target));
    quarantined_ = 1;
    World::after();
  }
};
// What left the process cannot be kept from reading a page that went on to somebody else, but it can tell: it
// carries the page's hand-out count and compares it after the read. Guard: each hand-out counts.
struct FreeToLastRead : World {
  PageId page{};
  std::uint64_t count = 0;
  FreeToLastRead() : World(1, 1, h_alone) {}
  void before() override {
    HKV_MUST(fill(key_a, 0));
    page = store.page(store.table().find(key_a).id, 0);
    count = store.pool(0)[page].handouts.load();
  }
  void thread(int self) override {
    if (self == 0) {
      bool same = true;
      for (int i = 0; i < page_words; ++i) same &= word(0, page, i).get() == content(key_a, 0, i);
      const bool still_ours = store.pool(0)[page].handouts.load() == count;
      HKV_MUST(same || !still_ours);
    } else if (evict(key_a, 0)) {
      fill(key_b, 0);
    }
  }
};

// Late publish after removal: a page is published when the block it was written for has gone and come back under
// another writer. Guard: only the owner of a claim publishes, and who lost the claim keeps a private page.
struct LatePublish : World {
  LatePublish() : World(1, 2, h_alone) {}
  void thread(int self) override {
    const Busy busy(*this);
    const PageId page = store.pool(0).take();
    write(page, key_a, 0);
    DescriptorId id = claim(key_a, 0, page);
    if (id != no_descriptor && self == 0) {
      store.abort(id, key_a, 0, true);  // removed; the page is kept to be published late
      id = claim(key_a, 0, page);
    }
    if (id == no_descriptor) {
      store.pool(0).give_back(page);
    } else {
      store.publish(id, 0);
    }
  }
};

}  // namespace

HKV_TEST("find to acquire: a pin holds only what was checked") {
  search_all<FindToAcquire>("find to acquire");
  search_all<FindToAcquireOneLife>("find to acquire, one life");
}
HKV_TEST("acquire to read: what is pinned is not evicted") { search_all<AcquireToRead>("acquire to read"); }
HKV_TEST("free to last launched write: a kept page is nobody's") {
  search_all<FreeToLastWrite>("free to last write");
}
HKV_TEST("free to last launched read: the hand-out count tells") {
  search_all<FreeToLastRead>("free to last read");
}
HKV_TEST("late publish after removal: who lost a claim publishes nothing") {
  sample<LatePublish>("late publish", 30000);
}

}  // namespace hkv::sim
