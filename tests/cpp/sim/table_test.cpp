// SPDX-License-Identifier: Apache-2.0
// Lives in the table under scheduled threads: claim against claim, insert against erase, erase and insert again.
#include "sim/world.h"

namespace hkv::sim {
namespace {

// Two writers of one block: one publishes it, the other keeps its page.
template <WordClass first, WordClass second>
struct ClaimAgainstClaim : World {
  bool published[2] = {};
  ClaimAgainstClaim() : World(2, 2, h_and_b) {}
  void thread(int self) override {
    published[self] = fill(key_a, static_cast<int>(self == 0 ? first : second));
  }
  void after() override {
    World::after();
    // An insert that met an unfinished one stays private: then the other one publishes.
    HKV_MUST(published[0] || published[1]);
    if (first == second) HKV_MUST(published[0] != published[1]);
    HKV_MUST(published[0] ? read(key_a, static_cast<int>(first)) : read(key_a, static_cast<int>(second)));
  }
};

// The same at a descriptor that is there already, so that only the claims meet.
template <int group>
struct ClaimAgainstClaimThere : World {
  bool published[2] = {};
  ClaimAgainstClaimThere() : World(1, 2, h_and_b) {}
  void before() override { HKV_MUST(fill(key_a, 1 - group)); }
  void thread(int self) override { published[self] = fill(key_a, group, self == 1); }
  void after() override {
    World::after();
    HKV_MUST(published[0] == store.table().find(key_a).word(store.slot_of(group).which).usable_slot(0));
  }
};

// The last page goes while another writer takes the block up again, in the other word.
template <int group>
struct InsertAgainstErase : World {
  bool published = false;
  InsertAgainstErase() : World(2, 1, h_and_b) {}
  void before() override { HKV_MUST(fill(key_a, group)); }
  void thread(int self) override {
    if (self == 0) {
      published = fill(key_a, 1 - group);
    } else {
      evict(key_a, group);
    }
  }
  void after() override {
    World::after();
    HKV_MUST(published && read(key_a, 1 - group) && !read(key_a, group));
  }
};

// The line gets another key and then the first one again while a reader looks for it, once or more often.
template <int times>
struct FindAgainstReinsert : World {
  FindAgainstReinsert() : World(1, 1, h_alone) {}
  void before() override { HKV_MUST(fill(key_a, 0)); }
  void thread(int self) override {
    if (self == 0) {
      for (int i = 0; i < times; ++i) read(key_a, 0);
    } else {
      HKV_MUST(evict(key_a, 0) || !read(key_b, 0));
      if (fill(key_b, 0)) evict(key_b, 0);
      fill(key_a, 0);
    }
  }
};

// Lives that nobody takes up come and go beside one that somebody does.
struct TouchBesideFill : World {
  TouchBesideFill() : World(2, 1, h_alone) {}
  void thread(int self) override {
    if (self == 0) {
      touch(key_a);
    } else {
      fill(key_a, 0);
      evict(key_a, 0);
    }
  }
};

struct ThreeWriters : World {
  bool published[3] = {};
  ThreeWriters() : World(3, 3, h_and_b) {}
  int threads() const override { return 3; }
  void thread(int self) override {
    published[self] = fill(key_a, self == 2 ? 1 : 0);
    if (self == 2) evict(key_a, 0);
    touch(key_b);
  }
  void after() override {
    World::after();
    HKV_MUST(!(published[0] && published[1]) || !store.table().find(key_b).found());
  }
};

}  // namespace

HKV_TEST("of two claims of one block one holds") {
  search_all<ClaimAgainstClaimThere<0>>("claim against claim and abort, H");
  search_all<ClaimAgainstClaimThere<1>>("claim against claim and abort, B");
  sample<ClaimAgainstClaim<WordClass::H, WordClass::H>>("claim against claim, anew, H", 50000);
  sample<ClaimAgainstClaim<WordClass::H, WordClass::B>>("claim against claim, anew, H and B", 50000);
}
HKV_TEST("a life that ends and a claim on it agree") {
  search_all<InsertAgainstErase<0>>("insert against erase, H goes");
  search_all<InsertAgainstErase<1>>("insert against erase, B goes");
  search_all<TouchBesideFill>("touch beside fill");
}
HKV_TEST("a reader never takes one life for another") {
  search_all<FindAgainstReinsert<1>>("find against erase and reinsert");
  sample<FindAgainstReinsert<3>>("three finds against erase and reinsert", 30000);
}
HKV_TEST("three writers of one key") { sample<ThreeWriters>("three writers", 60000); }

}  // namespace hkv::sim
