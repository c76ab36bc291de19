// SPDX-License-Identifier: Apache-2.0
// The word of truth under two threads: pin, publish, evict, retire, unpin of one block.
#define HKV_TABLE_SLOTS 1
#include "relacy/world.h"

namespace hkv::relacy {
namespace {

// A reader pins, reads and unpins while the page is evicted and written by its next owner.
struct PinAgainstEvict : rl::test_suite<PinAgainstEvict, 2>, StoreWorld<1, 1> {
  PinAgainstEvict() : StoreWorld(one_group) {}
  void before() { fill(key_a, 0); }
  void thread(unsigned t) {
    if (t == 0) {
      if (const DescriptorId id = pin(key_a, 0); id != no_descriptor) {
        read(id, key_a, 0);
        store.unpin(id, WordClass::H);
      }
    } else if (store.evict(key_a, 0)) {
      overwrite(0);
    }
  }
  void after() { check_idle(1); }
};

// The reader's page goes to another thread through the pool: give back releases, take acquires.
struct ReadThenReuse : rl::test_suite<ReadThenReuse, 2>, StoreWorld<1, 1> {
  ReadThenReuse() : StoreWorld(one_group) {}
  void before() { fill(key_a, 0); }
  void thread(unsigned t) {
    if (t == 0) {
      const DescriptorId id = pin(key_a, 0);
      read(id, key_a, 0);
      store.unpin(id, WordClass::H);
      RL_ASSERT(store.evict(key_a, 0));
    } else {
      overwrite(0);
    }
  }
  void after() { check_idle(1); }
};

// A published page shows its id and its bytes to who sees it ready, before any pin as well.
template <int group>
struct PublishSeen : rl::test_suite<PublishSeen<group>, 2>, StoreWorld<1, 1> {
  DescriptorId id{};
  PublishSeen() : StoreWorld(two_groups) {}
  void before() {
    bool lives = true;
    const Placement placed = store.table().get_or_insert(key_a);
    id = placed.id;
    store.claim(id, key_a, 1 - group, store.pool(1 - group).take(), lives);  // the life goes on
  }
  void thread(unsigned t) {
    if (t == 0) {
      bool lives = true;
      const PageId page = store.pool(group).take();
      bytes[group][index(page)].set(content(key_a, group));
      RL_ASSERT(store.claim(id, key_a, group, page, lives));
      store.publish(id, group);
    } else {
      const Sighting seen = store.table().find(key_a);
      if (!seen.found() || !seen.word(store.slot_of(group).which).usable_slot(0)) return;
      RL_ASSERT(index(store.page(id, group)) == 0);
      read(id, key_a, group);
    }
  }
};

// A pin from a word that was read without order: the pin itself acquires.
struct PinAcquires : rl::test_suite<PinAcquires, 2>, StoreWorld<1, 1> {
  DescriptorId id{};
  PageId page{};
  PinAcquires() : StoreWorld(one_group) {}
  void before() {
    bool lives = true;
    id = store.table().get_or_insert(key_a).id;
    page = store.pool(0).take();
    RL_ASSERT(store.claim(id, key_a, 0, page, lives));
  }
  void thread(unsigned t) {
    if (t == 0) {
      bytes[0][0].set(content(key_a, 0));
      store.publish(id, 0);
    } else {
      const Word seen = store[id].word(WordClass::H);
      if (seen.usable(1) && store.pin(id, WordClass::H, seen, 1) == PinResult::Pinned) {
        read(id, key_a, 0);
        store.unpin(id, WordClass::H);
      }
    }
  }
};

// Two holders, one of them retires: the page goes once, with the last pin, and the descriptor with it.
struct RetireAgainstUnpin : rl::test_suite<RetireAgainstUnpin, 2>, StoreWorld<1, 1> {
  DescriptorId id{};
  RetireAgainstUnpin() : StoreWorld(one_group) {}
  void before() {
    fill(key_a, 0);
    id = pin(key_a, 0);
    pin(key_a, 0);
  }
  void thread(unsigned t) {
    read(id, key_a, 0);
    if (t == 0) RL_ASSERT(store.retire(id, 0));
    store.unpin(id, WordClass::H);
    if (t == 1 && !store.table().find(key_a).found()) overwrite(0);
  }
  void after() {
    RL_ASSERT(nothing_left());
    RL_ASSERT(store.pool(0).free_count() == 1);
    check_idle(1);
  }
};

// Retire against evict against a pin of another group's neighbour: one winner.
struct RetireAgainstEvict : rl::test_suite<RetireAgainstEvict, 2>, StoreWorld<1, 1> {
  RetireAgainstEvict() : StoreWorld(one_group) {}
  void before() { fill(key_a, 0); }
  bool gone[2] = {false, false};
  void thread(unsigned t) { gone[t] = t == 0 ? store.retire_of(key_a, 0) : store.evict(key_a, 0); }
  void after() {
    RL_ASSERT(gone[0] || gone[1]);
    RL_ASSERT(nothing_left());
    check_idle(1);
  }
};

// Publish of one group beside abort of another in the same word, and beside a pin.
struct PublishBesideAbort : rl::test_suite<PublishBesideAbort, 2>, StoreWorld<1, 1> {
  static constexpr GroupSlot groups[] = {{WordClass::H, 0, StateKind::Compressed},
                                         {WordClass::H, 1, StateKind::Indexer}};
  DescriptorId id{};
  PublishBesideAbort() : StoreWorld(groups) {}
  void before() {
    bool lives = true;
    id = store.table().get_or_insert(key_a).id;
    for (int g = 0; g < 2; ++g) RL_ASSERT(store.claim(id, key_a, g, store.pool(g).take(), lives));
    bytes[0][0].set(content(key_a, 0));
  }
  void thread(unsigned t) {
    if (t == 0) {
      store.publish(id, 0);
      if (const DescriptorId pinned = pin(key_a, 0); pinned != no_descriptor) {
        read(pinned, key_a, 0);
        store.unpin(pinned, WordClass::H);
      }
    } else {
      store.abort(id, key_a, 1);
    }
  }
  void after() {
    RL_ASSERT(store.pool(1).free_count() == 1);
    RL_ASSERT(store.table().find(key_a).h.phase(0) == Phase::Ready);
    check_idle(2);
  }
};

// Refill while a late evictor of the earlier page looks on: it may not give the new page back. The life goes
// on by another group's claim.
struct EvictEvictRefill : rl::test_suite<EvictEvictRefill, 2>, StoreWorld<1, 1> {
  static constexpr GroupSlot groups[] = {{WordClass::H, 0, StateKind::Compressed},
                                         {WordClass::H, 1, StateKind::Indexer}};
  DescriptorId id{};
  EvictEvictRefill() : StoreWorld(groups) {}
  void before() {
    bool lives = true;
    id = fill(key_a, 0);
    RL_ASSERT(store.claim(id, key_a, 1, store.pool(1).take(), lives));
  }
  void thread(unsigned t) {
    store.evict(key_a, 0);
    if (t == 0) return;
    bool lives = true;
    const PageId page = store.pool(0).take();
    if (page != no_page && store.claim(id, key_a, 0, page, lives)) store.publish(id, 0);
  }
  void after() { check_idle(2); }
};

// The last pin of a retiring page of B goes while H moves on again and again: the page goes all the same.
struct FinishIsNotLost : rl::test_suite<FinishIsNotLost, 2>, StoreWorld<1, 1> {
  DescriptorId id{};
  FinishIsNotLost() : StoreWorld(two_groups) {}
  void before() {
    fill(key_a, 0);
    id = fill(key_a, 1);
    pin(key_a, 1);
    RL_ASSERT(store.retire(id, 1));
  }
  void thread(unsigned t) {
    if (t == 0) {
      store.unpin(id, WordClass::B);
      return;
    }
    for (int i = 0; i < 5; ++i) {
      Word now = store[id].word(WordClass::H);
      store[id].try_apply(WordClass::H, now, now.next_generation());
    }
  }
  void after() {
    RL_ASSERT(store.pool(1).free_count() == 1);
    check_idle(2);
  }
};

}  // namespace
}  // namespace hkv::relacy

int main() {
  using namespace hkv::relacy;
  bool ok = search<PinAgainstEvict>("pin against evict");
  ok &= search<ReadThenReuse>("read, then reuse");
  ok &= search<PublishSeen<0>>("publish seen in H");
  ok &= search<PublishSeen<1>>("publish seen in B");
  ok &= search<PinAcquires>("pin acquires");
  ok &= search<RetireAgainstUnpin>("retire against unpin");
  ok &= search<RetireAgainstEvict>("retire against evict");
  ok &= search<PublishBesideAbort>("publish beside abort");
  ok &= search<EvictEvictRefill>("evict, evict, refill");
  ok &= search<FinishIsNotLost>("finish is not lost");
  return !ok;
}
