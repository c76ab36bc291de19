// SPDX-License-Identifier: Apache-2.0
// Derived bits and id pools: what converges, what is handed out once.
#define HKV_TABLE_SLOTS 1
#include "relacy/world.h"

#include "base/spares.h"

namespace hkv::relacy {
namespace {

constexpr KindMap one_kind() {
  KindMap map{};
  map[0] = {1, 1};  // one kind, in slot 0 of H and of B
  return map;
}

// Two threads move the two words of one descriptor and refresh: the last bit written is the truth.
template <bool up>
struct RefreshConverges : rl::test_suite<RefreshConverges<up>, 2> {
  Descriptor d;
  StateIndex index{1, one_kind()};
  void before() {
    d.open(key_a);
    d.settle(d.word(WordClass::H));
    for (const WordClass which : {WordClass::H, WordClass::B}) {
      move(which, Event::Claim);
      if (!up || which == WordClass::H) move(which, Event::Publish);
    }
    index.refresh(DescriptorId{0}, d);
  }
  void move(WordClass which, Event event) {
    Word seen = d.word(which);
    while (!d.try_apply(which, seen, *seen.apply(1, event))) {
    }
  }
  void thread(unsigned t) {
    if (t == 0) {
      move(WordClass::H, Event::Evict);
    } else {
      move(WordClass::B, up ? Event::Publish : Event::Evict);
    }
    index.refresh(DescriptorId{0}, d);
  }
  void after() {
    RL_ASSERT(index.verify(DescriptorId{0}, d));
    RL_ASSERT(index.get(StateKind::Compressed, DescriptorId{0}) == up);
  }
};

// The same word, evicted by one and published again by the other once it sees it absent.
struct RefreshSameWord : rl::test_suite<RefreshSameWord, 2> {
  Descriptor d;
  StateIndex index{1, one_kind()};
  void before() {
    d.open(key_a);
    d.settle(d.word(WordClass::H));
    move(Event::Claim);
    move(Event::Publish);
    index.refresh(DescriptorId{0}, d);
  }
  bool move(Event event) {
    Word seen = d.word(WordClass::H);
    for (;;) {
      const auto next = seen.apply(1, event);
      if (!next) return false;
      if (d.try_apply(WordClass::H, seen, *next)) return true;
    }
  }
  void thread(unsigned t) {
    if (t == 0) {
      move(Event::Evict);
      index.refresh(DescriptorId{0}, d);
    } else if (move(Event::Claim)) {
      move(Event::Publish);
      index.refresh(DescriptorId{0}, d);
    }
  }
  void after() { RL_ASSERT(index.verify(DescriptorId{0}, d)); }
};

// One id, two takers: what the one did with it happens before what the other does.
struct PoolHandsOver : rl::test_suite<PoolHandsOver, 2> {
  IdPool ids{1};
  Plain<int> owned;
  void thread(unsigned) {
    const std::uint32_t id = ids.take();
    RL_ASSERT(ids.free_count() <= 1);  // a count, not a number below zero
    if (id == none_u32) return;
    owned.set(owned.get() + 1);
    ids.give_back(id);
  }
  void after() { RL_ASSERT(ids.free_count() == 1 && ids.is_free(0)); }
};
struct PoolOfTwo : rl::test_suite<PoolOfTwo, 2> {
  IdPool ids{2};
  Plain<int> owned[2];
  void thread(unsigned) {
    const std::uint32_t id = ids.take();
    RL_ASSERT(id < 2);
    owned[id].set(1);
    ids.give_back(id);
    const std::uint32_t next = ids.take();
    RL_ASSERT(next < 2);
    owned[next].set(2);
  }
  void after() { RL_ASSERT(ids.free_count() == 0); }
};

// The last id of a word goes as another comes back: the summary bit is there when all is quiet, else later takers
// would have to look at every word.
struct SummaryFollows : rl::test_suite<SummaryFollows, 2> {
  IdPool ids{1};
  std::uint32_t held = none_u32;
  void before() { held = ids.take(); }
  void thread(unsigned t) {
    if (t == 0) {
      ids.give_back(held);
    } else {
      ids.take();
    }
  }
  void after() { RL_ASSERT(ids.summary_holds()); }
};

// A spare object goes from one user to the next with all that was done to it.
struct SparesHandOver : rl::test_suite<SparesHandOver, 2> {
  struct Item {
    Plain<int> uses;
  };
  Spares<Item> spares;
  void before() { spares.put(std::make_unique<Item>()); }
  void thread(unsigned) {
    std::unique_ptr<Item> item = spares.take();
    item->uses.set(item->uses.get() + 1);
    spares.put(std::move(item));
  }
};

// A step changes a word and notes it, while another thread takes what changed: what it read last is the truth once all
// is quiet, or a bit says that it is not.
struct ChangesAreTold : rl::test_suite<ChangesAreTold, 2> {
  Descriptor d;
  ChangeLog changes{1};
  std::uint64_t told = 0;
  void before() {
    d.open(key_a);
    d.settle(d.word(WordClass::H));
    move(WordClass::H, Event::Claim);
    move(WordClass::B, Event::Claim);
    take();
  }
  void move(WordClass which, Event event) {
    Word seen = d.word(which);
    while (!d.try_apply(which, seen, *seen.apply(1, event))) {
    }
  }
  std::uint64_t words() const { return d.word(WordClass::H).bits() << 1 ^ d.word(WordClass::B).bits(); }
  void take() {
    changes.take(1, false, [&](DescriptorId) { told = words(); });
  }
  void thread(unsigned t) {
    if (t == 0) {
      move(WordClass::H, Event::Publish);
      changes.note(DescriptorId{0});
      move(WordClass::H, Event::Evict);
      changes.note(DescriptorId{0});
    } else {
      move(WordClass::B, Event::Publish);
      changes.note(DescriptorId{0});
      take();
      take();
    }
  }
  void after() {
    take();
    RL_ASSERT(told == words());
  }
};

}  // namespace
}  // namespace hkv::relacy

int main() {
  using namespace hkv::relacy;
  bool ok = search<RefreshConverges<false>>("refresh, both go");
  ok &= search<RefreshConverges<true>>("refresh, one goes, one comes");
  ok &= search<RefreshSameWord>("refresh, the same word");
  ok &= search<PoolHandsOver>("pool of one id");
  ok &= search<PoolOfTwo>("pool of two ids");
  ok &= search<SummaryFollows>("summary of a pool");
  ok &= search<SparesHandOver>("spares hand over");
  ok &= search<ChangesAreTold>("changes are told");
  return !ok;
}
