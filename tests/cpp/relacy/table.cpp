// SPDX-License-Identifier: Apache-2.0
// The table under two threads: insert against insert, against erase, claims against erase.
#define HKV_TABLE_SLOTS 2
#include "relacy/world.h"

namespace hkv::relacy {
namespace {

// Two inserts of one key: one life at most; who does not own it found it or stays private.
struct InsertInsert : rl::test_suite<InsertInsert, 2>, TableWorld<2, 1> {
  Placement placed[2];
  void thread(unsigned t) { placed[t] = table.get_or_insert(key_a); }
  void after() {
    check_idle();
    RL_ASSERT(lives_of(key_a) == 1);
    RL_ASSERT((placed[0].how == Placed::Inserted) != (placed[1].how == Placed::Inserted));
    for (const Placement& p : placed) {
      if (p.how != Placed::Private) RL_ASSERT(table.find(key_a).id == p.id);
    }
  }
};

// The other inserter's life moves on while it is looked at: it must not be taken for another key's.
struct InsertAgainstMoves : rl::test_suite<InsertAgainstMoves, 2>, TableWorld<2, 1> {
  Placement placed[2];
  void thread(unsigned t) {
    placed[t] = table.get_or_insert(key_a);
    if (t == 0 || placed[1].how != Placed::Inserted) return;
    Descriptor& d = table[placed[1].id];
    Word now = d.word(WordClass::H);
    for (int i = 0; i < 5; ++i) {
      if (d.try_apply(WordClass::H, now, now.next_generation())) now = now.next_generation();
    }
  }
  void after() {
    check_idle();
    RL_ASSERT(lives_of(key_a) == 1);
  }
};

// Three at once, with room for two in a line: whoever stands lowest gets the life.
struct ThreeInserts : rl::test_suite<ThreeInserts, 3>, TableWorld<3, 2> {
  Placement placed[3];
  void thread(unsigned t) { placed[t] = table.get_or_insert(key_a); }
  void after() {
    check_idle();
    RL_ASSERT(lives_of(key_a) == 1);
    for (const Placement& p : placed) {
      if (p.how != Placed::Private) RL_ASSERT(table.find(key_a).id == p.id);
    }
  }
};

// The same while a hole opens in front: one inserter may stand in the second line and one in the first.
struct InsertInsertHole : rl::test_suite<InsertInsertHole, 2>, TableWorld<3, 2> {
  static constexpr Key128 other{key_a.lo, std::uint64_t{0xF0} << 56 | 0x31};  // the same first line
  Placement placed[2];
  void before() {
    insert(Key128{key_a.lo, std::uint64_t{0xF0} << 56 | 0x41});
    insert(other);  // the first line is full
  }
  void thread(unsigned t) {
    if (t == 0) {
      const Sighting seen = table.find(other);
      table.erase_if_empty(seen.id, other);
    }
    placed[t] = table.get_or_insert(key_a);
  }
  void after() { check(); }
  void check() {
    check_idle();
    RL_ASSERT(lives_of(key_a) <= 1);
    for (const Placement& p : placed) {
      if (p.how == Placed::Found || p.how == Placed::Inserted) RL_ASSERT(table.find(key_a).id == p.id);
    }
  }
};

// One key has a life already and loses it while it is asked for.
struct InsertErase : rl::test_suite<InsertErase, 2>, TableWorld<2, 1> {
  Placement placed{};
  void before() { insert(key_a); }
  void thread(unsigned t) {
    if (t == 0) {
      placed = table.get_or_insert(key_a);
    } else {
      table.erase_if_empty(DescriptorId{0}, key_a);
    }
  }
  void after() {
    check_idle();
    RL_ASSERT(placed.how == Placed::Found || placed.how == Placed::Inserted);
    RL_ASSERT(lives_of(key_a) == (placed.how == Placed::Inserted ? 1 : 0));
  }
};

// Insert of one key beside the erase of another whose slot and descriptor it may take over.
struct InsertTakesOver : rl::test_suite<InsertTakesOver, 2>, TableWorld<1, 1> {
  Placement placed{};
  void before() { insert(key_a); }
  void thread(unsigned t) {
    if (t == 0) {
      placed = table.get_or_insert(key_b);
    } else {
      table.erase_if_empty(DescriptorId{0}, key_a);
    }
  }
  void after() {
    check_idle();
    RL_ASSERT(lives_of(key_a) == 0 && lives_of(key_b) == (placed.how == Placed::Inserted ? 1 : 0));
  }
};

// A claim on B against the end of the life: the claim holds, or one of the two cleans up.
struct ClaimAgainstErase : rl::test_suite<ClaimAgainstErase, 2>, TableWorld<1, 1> {
  SlotMask mine = 0;
  bool lives = true;
  void before() { insert(key_a); }
  void thread(unsigned t) {
    if (t == 0) {
      mine = table.claim_b(DescriptorId{0}, key_a, 1, Event::Claim, lives);
    } else {
      table.erase_if_empty(DescriptorId{0}, key_a);
    }
  }
  void after() {
    check_idle();
    RL_ASSERT((mine != 0) == lives && lives_of(key_a) == (lives ? 1 : 0));
    if (mine != 0) RL_ASSERT(descriptors[0].word(WordClass::B).phase(0) == Phase::Filling);
  }
};
// The same where the descriptor gets another key at once: the claim must not fall on that life.
struct ClaimAgainstReuse : rl::test_suite<ClaimAgainstReuse, 2>, TableWorld<1, 1> {
  SlotMask mine = 0;
  bool lives = true;
  Placement next{};
  void before() { insert(key_a); }
  void thread(unsigned t) {
    if (t == 0) {
      mine = table.claim_b(DescriptorId{0}, key_a, 1, Event::Claim, lives);
    } else {
      table.erase_if_empty(DescriptorId{0}, key_a);
      next = table.get_or_insert(key_b);
    }
  }
  void after() {
    check_idle();
    RL_ASSERT(mine == 0 || lives_of(key_a) == 1);
    if (next.how == Placed::Inserted) RL_ASSERT(descriptors[0].word(WordClass::B).empty());
  }
};
struct ClaimHAgainstErase : rl::test_suite<ClaimHAgainstErase, 2>, TableWorld<1, 1> {
  SlotMask mine = 0;
  bool lives = true;
  void before() { insert(key_a); }
  void thread(unsigned t) {
    if (t == 0) {
      mine = table.claim_h(DescriptorId{0}, key_a, 1, Event::Claim, lives);
    } else {
      table.erase_if_empty(DescriptorId{0}, key_a);
      table.get_or_insert(key_b);
    }
  }
  void after() {
    check_idle();
    RL_ASSERT((mine != 0) == lives && lives_of(key_a) == (lives ? 1 : 0));
  }
};

// Two claims on B and an eraser: whoever leaves B empty under a closed H cleans up, once.
struct ClaimClaimErase : rl::test_suite<ClaimClaimErase, 3>, TableWorld<1, 1> {
  SlotMask mine[2] = {0, 0};
  bool lives[2] = {true, true};
  void before() { insert(key_a); }
  void thread(unsigned t) {
    if (t < 2) {
      mine[t] = table.claim_b(DescriptorId{0}, key_a, static_cast<SlotMask>(1u << t), Event::Claim, lives[t]);
    } else {
      table.erase_if_empty(DescriptorId{0}, key_a);
    }
  }
  void after() {
    check_idle();
    for (int t = 0; t < 2; ++t) RL_ASSERT((mine[t] != 0) == lives[t] && (!lives[t] || lives_of(key_a) == 1));
  }
};

// The last page of H and the last page of B go at once: somebody must see that nothing is left.
struct LastTwoPages : rl::test_suite<LastTwoPages, 2>, TableWorld<1, 1> {
  void before() {
    const DescriptorId id = insert(key_a);
    bool lives = true;
    table.claim_h(id, key_a, 1, Event::Claim, lives);
    table.claim_b(id, key_a, 1, Event::Claim, lives);
  }
  void thread(unsigned t) {
    const WordClass which = t == 0 ? WordClass::H : WordClass::B;
    Word seen = descriptors[0].word(which);
    while (!descriptors[0].try_give_up(which, seen, *seen.apply(1, Event::Abort))) {
    }
    table.erase_if_empty(DescriptorId{0}, key_a);
  }
  void after() {
    check_idle();
    RL_ASSERT(lives_of(key_a) == 0 && ids.free_count() == 1);
  }
};

}  // namespace
}  // namespace hkv::relacy

int main() {
  using namespace hkv::relacy;
  bool ok = search<LastTwoPages>("the last two pages");
  ok &= search<ClaimAgainstErase>("claim on B against erase");
  ok &= search<ClaimAgainstReuse>("claim on B against reuse");
  ok &= search<ClaimHAgainstErase>("claim on H against reuse");
  ok &= search<InsertErase>("insert against erase");
  ok &= search<InsertTakesOver>("insert takes over");
  ok &= search<ClaimClaimErase>("two claims, one erase");
  ok &= search<InsertInsert>("insert against insert");
  ok &= search<InsertInsertHole>("insert, insert, hole", Search::Random);
  ok &= search<ThreeInserts>("three inserts", Search::Random, 100000);
  ok &= search<InsertAgainstMoves>("insert against moves", Search::Random, 100000);
  return !ok;
}
