// SPDX-License-Identifier: Apache-2.0
// A key may stand in its second line while its first one gets room again: lines of one slot.
#define HKV_TABLE_SLOTS 1
#include "relacy/world.h"

namespace hkv::relacy {
namespace {

inline constexpr Key128 filler{0x20, 0x31};  // the same first line, another tag

// The first line is full. One thread inserts meanwhile; the other opens a hole in the first line and inserts
// the same key: they stand in different lines, and one at most gets a life.
struct InsertInsertHole : rl::test_suite<InsertInsertHole, 2>, TableWorld<3, 2> {
  Placement placed[2];
  void before() { insert(filler); }
  void thread(unsigned t) {
    if (t == 0) table.erase_if_empty(DescriptorId{0}, filler);
    placed[t] = table.get_or_insert(key_a);
  }
  void after() {
    check_idle();
    RL_ASSERT(lives_of(key_a) == 1);
    RL_ASSERT((placed[0].how == Placed::Inserted) != (placed[1].how == Placed::Inserted));
    for (const Placement& p : placed) {
      if (p.how == Placed::Found) RL_ASSERT(table.find(key_a).id == p.id);
    }
  }
};

// The life in the second line ends while the key is inserted again into the first.
struct EraseBeyondInsert : rl::test_suite<EraseBeyondInsert, 2>, TableWorld<2, 2> {
  Placement placed{};
  void before() {
    insert(filler);
    insert(key_a);
    table.erase_if_empty(DescriptorId{0}, filler);  // a hole in front of the key
  }
  void thread(unsigned t) {
    if (t == 0) {
      table.erase_if_empty(DescriptorId{1}, key_a);
    } else {
      placed = table.get_or_insert(key_a);
    }
  }
  void after() {
    check_idle();
    RL_ASSERT(placed.how == Placed::Found || placed.how == Placed::Inserted);
    RL_ASSERT(lives_of(key_a) == (placed.how == Placed::Inserted ? 1 : 0));
  }
};

// Every candidate line is full while one slot comes free: the insert lands there or stays private.
struct FullLines : rl::test_suite<FullLines, 2>, TableWorld<3, 2> {
  Placement placed{};
  void before() {
    insert(filler);
    insert(key_b);
  }
  void thread(unsigned t) {
    if (t == 0) {
      table.erase_if_empty(DescriptorId{1}, key_b);
    } else {
      placed = table.get_or_insert(key_a);
    }
  }
  void after() {
    check_idle();
    RL_ASSERT(placed.how == Placed::Inserted || placed.how == Placed::Private);
    RL_ASSERT(lives_of(key_a) == (placed.how == Placed::Inserted ? 1 : 0));
  }
};

// An insert that returned is found, in whichever line it stands.
struct FoundOnceInserted : rl::test_suite<FoundOnceInserted, 2>, TableWorld<3, 2> {
  void before() { insert(filler); }
  void thread(unsigned t) {
    if (t == 0) {
      const Placement placed = table.get_or_insert(key_a);
      RL_ASSERT(placed.how == Placed::Inserted && table.find(key_a).id == placed.id);
    } else {
      table.erase_if_empty(DescriptorId{0}, filler);
      table.get_or_insert(key_b);
    }
  }
  void after() {
    check_idle();
    RL_ASSERT(lives_of(key_a) == 1 && lives_of(key_b) <= 1);
  }
};

}  // namespace
}  // namespace hkv::relacy

int main() {
  using namespace hkv::relacy;
  bool ok = search<EraseBeyondInsert>("erase beyond, insert before");
  ok &= search<FullLines>("full lines");
  ok &= search<FoundOnceInserted>("found once inserted", Search::Random);
  ok &= search<InsertInsertHole>("insert, insert, hole");
  return !ok;
}
