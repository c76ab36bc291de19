// SPDX-License-Identifier: Apache-2.0
// A descriptor's life under two threads: what a sight may report while the line gets another key.
#define HKV_TABLE_SLOTS 1
#include "relacy/world.h"

namespace hkv::relacy {
namespace {

// The line lives under `before_key` in generation g and then under `after_key` in g + 1. A look-up of either
// key that finds it must report the generation of that key's life, and the words it was opened with.
template <int n>
struct SightAgainstReuse : rl::test_suite<SightAgainstReuse<n>, 2>, TableWorld<1, 1> {
  static constexpr Key128 keys[4][3] = {// before, after, looked up
                                        {key_a, key_b, key_a},
                                        {key_a, key_b, key_b},
                                        {key_a, key_c, key_a},
                                        {key_a, key_c, key_c}};
  static constexpr Key128 first = keys[n][0], second = keys[n][1], wanted = keys[n][2];
  std::uint32_t h_generation = 0, b_generation = 0;
  void before() {
    const DescriptorId id = insert(first);
    h_generation = table[id].word(WordClass::H).generation();
    b_generation = table[id].word(WordClass::B).generation();
  }
  void thread(unsigned t) {
    if (t == 0) {
      table.erase_if_empty(DescriptorId{0}, first);
      RL_ASSERT(table.get_or_insert(second).how == Placed::Inserted);
    } else {
      const Sighting seen = table.find(wanted);
      if (!seen.found()) return;
      const std::uint32_t life = wanted == first ? 0 : 1;
      RL_ASSERT(seen.h.generation() == h_generation + life);
      RL_ASSERT(seen.b.generation() >= b_generation + life);
    }
  }
  void after() { check_idle(); }
};

// The same key again: the words of a sighting belong to one life, and none is seen before it was opened.
struct SightAgainstSameKey : rl::test_suite<SightAgainstSameKey, 2>, TableWorld<1, 1> {
  std::uint32_t h_generation = 0, b_generation = 0;
  void before() {
    const DescriptorId id = insert(key_a);
    h_generation = table[id].word(WordClass::H).generation();
    b_generation = table[id].word(WordClass::B).generation();
  }
  void thread(unsigned t) {
    if (t == 0) {
      table.erase_if_empty(DescriptorId{0}, key_a);
      RL_ASSERT(table.get_or_insert(key_a).how == Placed::Inserted);
    } else {
      const Sighting seen = table.find(key_a);
      if (!seen.found()) return;
      RL_ASSERT(seen.b.generation() >= b_generation + (seen.h.generation() - h_generation));
    }
  }
  void after() { check_idle(); }
};

// A late pin of the first life does not pin the second one.
struct PinAgainstReuse : rl::test_suite<PinAgainstReuse, 2>, StoreWorld<1, 1> {
  PinAgainstReuse() : StoreWorld(one_group) {}
  void before() { fill(key_a, 0); }
  void thread(unsigned t) {
    if (t == 0) {
      if (store.evict(key_a, 0)) fill(key_b, 0);
    } else if (const DescriptorId id = pin(key_a, 0); id != no_descriptor) {
      read(id, key_a, 0);
      store.unpin(id, WordClass::H);
    }
  }
  void after() { check_idle(1); }
};

}  // namespace
}  // namespace hkv::relacy

int main() {
  using namespace hkv::relacy;
  bool ok = search<SightAgainstReuse<0>>("old key, halves lo differ");
  ok &= search<SightAgainstReuse<1>>("new key, halves lo differ");
  ok &= search<SightAgainstReuse<2>>("old key, halves hi differ");
  ok &= search<SightAgainstReuse<3>>("new key, halves hi differ");
  ok &= search<SightAgainstSameKey>("the same key again");
  ok &= search<PinAgainstReuse>("pin against reuse");
  return !ok;
}
