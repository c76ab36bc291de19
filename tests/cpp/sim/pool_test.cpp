// SPDX-License-Identifier: Apache-2.0
// Pools under scheduled threads: an id has one owner, none is lost, the summary follows, counts stay in bounds.
#include "block/id_pool.h"

#include "block/page_pool.h"
#include "sim/scheduler.h"

namespace hkv::sim {
namespace {

// Ids and who has them. A free id has no owner; at the end every id is free or owned.
class Ids : public Program {
 public:
  explicit Ids(std::uint32_t count) : pool(count), owner_(count, -1) {}
  IdPool pool;

  std::uint32_t take(int self) {
    const std::uint32_t id = pool.take();
    if (id != none_u32) own(id, self);
    return id;
  }
  void take_some(int self, std::span<std::uint32_t> out, std::size_t& n) {
    n = pool.take_some(out);
    for (std::size_t i = 0; i < n; ++i) own(out[i], self);
  }
  void give(std::uint32_t id) {
    owner_[id] = -1;
    pool.give_back(id);
  }
  void give_some(std::span<const std::uint32_t> ids) {
    for (const std::uint32_t id : ids) owner_[id] = -1;
    pool.give_back_some(ids);
  }

  void check() override {
    for (std::uint32_t id = 0; id < pool.count(); ++id) HKV_MUST(owner_[id] == -1 || !pool.is_free(id));
    HKV_MUST(pool.free_count() <= pool.count());
  }
  void after() override {
    std::uint32_t free = 0;
    for (std::uint32_t id = 0; id < pool.count(); ++id) {
      free += pool.is_free(id);
      HKV_MUST(pool.is_free(id) == (owner_[id] == -1));
    }
    HKV_MUST(pool.free_count() == free);
    HKV_MUST(pool.summary_holds());
  }

 private:
  void own(std::uint32_t id, int self) {
    HKV_MUST(id < pool.count() && owner_[id] == -1);
    if (id < pool.count()) owner_[id] = self;
  }
  std::vector<int> owner_;
};

// More takers than ids, over `count` ids; each gives back and takes again.
template <std::uint32_t count, int thread_count>
struct TakeAndGive : Ids {
  TakeAndGive() : Ids(count) {}
  int threads() const override { return thread_count; }
  void thread(int self) override {
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t id = take(self);
      if (id != none_u32) give(id);
    }
  }
};

// The last id of a word goes as another of it comes back; ids of a second word are taken meanwhile.
struct SummaryFollows : Ids {
  std::uint32_t held[2];
  SummaryFollows() : Ids(66) {}
  void before() override {
    std::uint32_t all[64];
    std::size_t n = 0;
    take_some(0, all, n);
    HKV_MUST(n == 64);
    held[0] = all[0];
    for (std::uint32_t& id : held) id = all[&id - held];
    for (std::size_t i = 2; i < n; ++i) HKV_MUST(!pool.is_free(all[i]));
  }
  void thread(int self) override {
    if (self == 0) {
      give(held[0]);
      take(0);
    } else {
      std::uint32_t some[3];
      std::size_t n = 0;
      take_some(1, some, n);
      HKV_MUST(n >= 2);
      give_some({some, n});
    }
  }
};

// Ids that one gives back are found by who takes after that, whatever the summary said before.
struct GivenIsFound : Ids {
  std::uint32_t held = none_u32;
  Atom<int> given;
  bool late = false, found = false;
  GivenIsFound() : Ids(1) {}
  void before() override { held = take(0); }
  void thread(int self) override {
    if (self == 0) {
      give(held);
      given.store(1);
    } else {
      take(1);
      late = given.load() == 1;
      found = !late || !pool.is_free(0) || take(1) != none_u32;
    }
  }
  void after() override {
    Ids::after();
    HKV_MUST(found);
  }
};

// Several at once against one by one, in one word.
struct SomeAgainstOne : Ids {
  SomeAgainstOne() : Ids(3) {}
  void thread(int self) override {
    if (self == 0) {
      std::uint32_t some[2];
      std::size_t n = 0;
      take_some(0, some, n);
      HKV_MUST(n >= 1);
      give_some({some, n});
    } else {
      const std::uint32_t one = take(1), two = take(1);
      HKV_MUST(one != none_u32);
      give(one);
      if (two != none_u32) give(two);
    }
  }
};

// A page is counted each time it is handed out, and by its taker alone.
struct HandoutsCount : Program {
  PagePool pool{2};
  Atom<std::uint64_t> taken;
  void thread(int) override {
    for (int i = 0; i < 2; ++i) {
      const PageId page = pool.take();
      if (page == no_page) continue;
      taken.fetch_add(1);
      const std::uint64_t mine = pool[page].handouts.load();
      HKV_MUST(pool[page].handouts.load() == mine && mine > 0);
      pool.give_back(page);
    }
  }
  void after() override {
    HKV_MUST(pool[PageId{0}].handouts.load() + pool[PageId{1}].handouts.load() == taken.load());
  }
};

}  // namespace

HKV_TEST("an id has one owner and is not lost") {
  search_all<TakeAndGive<1, 2>>("two threads, one id");
  search_all<TakeAndGive<2, 2>>("two threads, two ids");
  search_all<SomeAgainstOne>("some at once against one by one");
  sample<TakeAndGive<2, 3>>("three threads, two ids", 60000);
  sample<TakeAndGive<130, 3>>("three threads, three words", 30000);
}
HKV_TEST("the summary follows, and what was given back is found") {
  search_all<SummaryFollows>("summary follows");
  search_all<GivenIsFound>("given is found");
}
HKV_TEST("hand-outs are counted") { search_all<HandoutsCount>("hand-outs"); }

}  // namespace hkv::sim
