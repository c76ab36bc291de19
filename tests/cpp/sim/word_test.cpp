// SPDX-License-Identifier: Apache-2.0
// The words of one or two blocks under scheduled threads: reserve, publish, abort; pin, unpin, evict; retire.
#include "sim/world.h"

namespace hkv::sim {
namespace {

// One publishes or aborts, the other reads, evicts and fills the block itself.
template <bool give_up>
struct ReservePublishAbort : World {
  ReservePublishAbort() : World(1, 1, h_alone) {}
  void thread(int self) override {
    if (self == 0) {
      fill(key_a, 0, give_up);
    } else {
      read(key_a, 0);
      evict(key_a, 0);
    }
  }
};

// The page that a reader holds is wanted by an evictor who refills it at once under another key.
struct PinUnpinEvict : World {
  PinUnpinEvict() : World(1, 1, h_alone) {}
  void before() override { HKV_MUST(fill(key_a, 0)); }
  void thread(int self) override {
    if (self == 0) {
      read(key_a, 0);
      read(key_b, 0);
    } else if (evict(key_a, 0)) {
      fill(key_b, 0);
    }
  }
};

// Three holders; two of them let go while the third retires the page. It goes once, with the last pin.
struct RetireAgainstUnpin : World {
  Pin pins[3];
  RetireAgainstUnpin() : World(1, 1, h_alone) {}
  int threads() const override { return 3; }
  void before() override {
    HKV_MUST(fill(key_a, 0));
    for (Pin& pin : pins) HKV_MUST(acquire_page(key_a, 0, pin));
  }
  void thread(int self) override {
    read_page(pins[self]);
    if (self == 0) HKV_MUST(store.retire(pins[0].id, 0));
    release_page(pins[self]);
  }
  void after() override {
    World::after();
    HKV_MUST(store.pool(0).free_count() == 1 && store.ids().free_count() == 1);
  }
};

// From a retirement on nobody pins the page any more, whatever he read before; who holds it reads on.
struct RetireStopsPins : World {
  Pin pin;
  Atom<int> retired;
  RetireStopsPins() : World(1, 1, h_alone) {}
  void before() override { HKV_MUST(fill(key_a, 0) && acquire_page(key_a, 0, pin)); }
  void thread(int self) override {
    if (self == 0) {
      const Word seen = store.table().find(key_a).h;
      const bool late = retired.load() == 1;
      const Busy busy(*this);
      if (!seen.usable(1) || store.pin(pin.id, WordClass::H, seen, 1) != PinResult::Pinned) return;
      HKV_MUST(!late);
      store.unpin(pin.id, WordClass::H);
    } else {
      HKV_MUST(store.retire(pin.id, 0));
      retired.store(1);
      read_page(pin);
      release_page(pin);
    }
  }
};

// A neighbour in the same word is retired and refilled while a holder of the word reads its own page.
struct RetireNeighbour : World {
  Pin pin;
  RetireNeighbour() : World(1, 2, two_of_h) {}
  void before() override { HKV_MUST(fill(key_a, 0) && fill(key_a, 1) && acquire_page(key_a, 0, pin)); }
  void thread(int self) override {
    if (self == 0) {
      read_page(pin);
      release_page(pin);
    } else {
      HKV_MUST(retire(key_a, 1));
      fill(key_a, 1);
    }
  }
  void after() override {
    World::after();
    HKV_MUST(store.table().find(key_a).h.usable(1));
  }
};

// Pages of B are published before those of H. Who finds H ready finds B ready, unless it was taken again.
struct PublishOverTwoWords : World {
  PublishOverTwoWords() : World(1, 1, h_and_b) {}
  void thread(int self) override {
    if (self == 0) {
      const Busy busy(*this);
      const PageId h = store.pool(0).take(), b = store.pool(1).take();
      const DescriptorId id = claim(key_a, 0, h);
      HKV_MUST(claim(key_a, 1, b) == id);
      write(h, key_a, 0), write(b, key_a, 1);
      store.publish(id, 1);
      store.publish(id, 0);
    } else {
      const Sighting seen = store.table().find(key_a);
      if (seen.found() && seen.h.usable_slot(0)) HKV_MUST(read(key_a, 1));
      lease({{key_a, 0}, {key_a, 1}});
    }
  }
  void after() override {
    World::after();
    HKV_MUST(lease({{key_a, 0}, {key_a, 1}}));
  }
};

// A lease of two blocks is all or none, while the second is evicted and its page filled for a third key.
struct LeaseAgainstEvict : World {
  LeaseAgainstEvict() : World(2, 2, h_alone) {}
  void before() override { HKV_MUST(fill(key_a, 0) && fill(key_b, 0)); }
  void thread(int self) override {
    if (self == 0) {
      lease({{key_a, 0}, {key_b, 0}});
    } else if (evict(key_b, 0)) {
      fill(key_c, 0);
    }
  }
};

// The same from three sides; too large to be searched whole.
struct LeaseFromThreeSides : World {
  LeaseFromThreeSides() : World(3, 2, h_and_b) {}
  int threads() const override { return 3; }
  void before() override { HKV_MUST(fill(key_a, 0) && fill(key_a, 1) && fill(key_b, 0)); }
  void thread(int self) override {
    if (self == 0) {
      lease({{key_a, 0}, {key_b, 0}, {key_a, 1}});
      fill(key_c, 1);
    } else if (self == 1) {
      evict(key_b, 0);
      fill(key_c, 0);
      lease({{key_a, 0}, {key_c, 0}});
    } else {
      retire(key_a, 1);
      fill(key_a, 1);
      evict(key_a, 0);
    }
  }
};

}  // namespace

HKV_TEST("a block is reserved, published and aborted beside a reader and an evictor") {
  search_all<ReservePublishAbort<false>>("reserve, publish");
  search_all<ReservePublishAbort<true>>("reserve, abort");
}
HKV_TEST("a pinned page stays, an evicted one goes to one owner") {
  search_all<PinUnpinEvict>("pin, unpin, evict");
  search_all<LeaseAgainstEvict>("lease against evict");
}
HKV_TEST("a retiring page goes once, with its last pin") {
  search_all<RetireAgainstUnpin>("retire against unpin");
  search_all<RetireStopsPins>("retire stops pins");
  search_all<RetireNeighbour>("retire a neighbour");
}
HKV_TEST("publishing over two words shows B before H") {
  search_all<PublishOverTwoWords>("publish over two words");
}
HKV_TEST("three threads over leases, eviction and retirement") {
  sample<LeaseFromThreeSides>("lease from three sides", 60000);
}

}  // namespace hkv::sim
