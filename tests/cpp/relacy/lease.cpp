// SPDX-License-Identifier: Apache-2.0
// Leases: pins on two descriptors, all or none, against eviction, reuse and retirement.
#define HKV_TABLE_SLOTS 2
#include "relacy/world.h"

namespace hkv::relacy {
namespace {

// What HybridCache does: read all words, pin all, or unwind in reverse.
template <class World>
bool lease(World& world, const Key128* keys, DescriptorId* held) {
  Sighting seen[2];
  for (int i = 0; i < 2; ++i) {
    seen[i] = world.store.table().find(keys[i]);
    if (!seen[i].found() || !seen[i].h.usable(1)) return false;
  }
  for (int i = 0; i < 2; ++i) {
    if (world.store.pin(seen[i].id, WordClass::H, seen[i].h, 1) == PinResult::Pinned) {
      held[i] = seen[i].id;
      continue;
    }
    while (i-- > 0) world.store.unpin(held[i], WordClass::H);
    return false;
  }
  return true;
}

// While a lease holds, both its pages are there and whole; the evictor gets none of them.
struct LeaseAgainstEvict : rl::test_suite<LeaseAgainstEvict, 2>, StoreWorld<2, 2> {
  static constexpr Key128 keys[2] = {key_a, key_b};
  bool evicted[2] = {false, false};
  LeaseAgainstEvict() : StoreWorld(one_group) {}
  void before() {
    fill(key_a, 0);
    fill(key_b, 0);
  }
  void thread(unsigned t) {
    if (t == 0) {
      DescriptorId held[2];
      if (!lease(*this, keys, held)) return;
      for (int i = 0; i < 2; ++i) read(held[i], keys[i], 0);
      for (int i = 1; i >= 0; --i) store.unpin(held[i], WordClass::H);
    } else if (store.evict(key_b, 0)) {
      overwrite(0);
    }
  }
  void after() {
    for (std::uint32_t i = 0; i < 2; ++i)
      RL_ASSERT(store[DescriptorId{i}].word(WordClass::H).pins() == 0 ||
                store[DescriptorId{i}].word(WordClass::H).closed());
    check_idle(1);
  }
};

// The second key loses its life to a third one between check and pin: nothing is held then.
struct LeaseAgainstReuse : rl::test_suite<LeaseAgainstReuse, 2>, StoreWorld<2, 2> {
  static constexpr Key128 keys[2] = {key_a, key_b};
  LeaseAgainstReuse() : StoreWorld(one_group) {}
  void before() {
    fill(key_a, 0);
    fill(key_b, 0);
  }
  void thread(unsigned t) {
    if (t == 0) {
      DescriptorId held[2];
      if (!lease(*this, keys, held)) return;
      for (int i = 0; i < 2; ++i) read(held[i], keys[i], 0);
      for (int i = 1; i >= 0; --i) store.unpin(held[i], WordClass::H);
    } else if (store.evict(key_b, 0)) {
      fill(key_c, 0);
    }
  }
  void after() { check_idle(1); }
};

// A lease retires the page it found damaged while another lease drops the last but one pin.
struct QuarantineAgainstDrop : rl::test_suite<QuarantineAgainstDrop, 2>, StoreWorld<2, 1> {
  static constexpr GroupSlot groups[] = {{WordClass::H, 0, StateKind::Compressed},
                                         {WordClass::H, 1, StateKind::Indexer}};
  DescriptorId id{};
  QuarantineAgainstDrop() : StoreWorld(groups) {}
  void before() {
    fill(key_a, 0);
    id = fill(key_a, 1);
    pin(key_a, 0);
    pin(key_a, 0);
  }
  void thread(unsigned t) {
    read(id, key_a, 0);
    if (t == 0) store.retire(id, 0);
    store.unpin(id, WordClass::H);
  }
  void after() {
    RL_ASSERT(store.pool(0).free_count() == 1 && store.pool(1).free_count() == 0);
    RL_ASSERT(store.table().find(key_a).h.usable(2));  // the neighbour stays
    check_idle(2);
  }
};

// A directory is filed into under a pin and ended when seen empty: an entry that was filed is not lost.
struct DirectoryFileAgainstEnd : rl::test_suite<DirectoryFileAgainstEnd, 2>, TableWorld<1, 1> {
  static constexpr std::uint32_t none = none_u32, entry = 7;
  bool filed = false;
  void before() {
    const DescriptorId id = insert(key_a);
    bool lives = true;
    table.claim_h(id, key_a, 1, Event::Claim, lives);
    Word seen = descriptors[0].word(WordClass::H);
    RL_ASSERT(descriptors[0].try_publish(WordClass::H, seen, *seen.apply(1, Event::Publish)));
  }
  void thread(unsigned t) {
    Descriptor& d = descriptors[0];
    const Sighting seen = table.find(key_a);
    if (!seen.found() || !seen.h.usable(1)) return;
    if (t == 0) {
      if (d.pin(WordClass::H, seen.h, 1) != PinResult::Pinned) return;
      std::uint32_t there = none;
      filed = d.tip(1).compare_exchange(there, entry);
      Word now = d.word(WordClass::H);
      while (!d.try_apply(WordClass::H, now, now.next_generation())) {
      }
      d.unpin(WordClass::H);
    } else {
      if (d.tip(1).load() != none) return;
      Word h = seen.h;
      const auto next = h.apply(1, Event::Evict);
      if (next && d.try_give_up(WordClass::H, h, *next)) table.erase_if_empty(DescriptorId{0}, key_a);
    }
  }
  void after() {
    check_idle();
    RL_ASSERT(filed == (lives_of(key_a) == 1));
  }
};

}  // namespace
}  // namespace hkv::relacy

int main() {
  using namespace hkv::relacy;
  bool ok = search<QuarantineAgainstDrop>("quarantine against drop");
  ok &= search<DirectoryFileAgainstEnd>("directory, file against end");
  ok &= search<LeaseAgainstEvict>("lease against evict");
  ok &= search<LeaseAgainstReuse>("lease against reuse");
  return !ok;
}
