// SPDX-License-Identifier: Apache-2.0
// The admission ledger over a pool of pages under scheduled threads: what was promised is there when it is taken.
#include "alloc/admission.h"

#include "block/page_pool.h"
#include "sim/scheduler.h"

namespace hkv::sim {
namespace {

// One Prefix group of blocks of one token, so that a request of n tokens is promised n pages.
const Layout& one_group() {
  static const Layout layout = [] {
    std::vector<Group> groups(1);
    groups[0].name = "kv", groups[0].coverage = {Rule::Prefix, 0}, groups[0].pages = 3;
    return make_layout(1, std::move(groups));
  }();
  return layout;
}

class Ledger : public Program {
 public:
  explicit Ledger(std::uint32_t pages) : pool(pages) {}
  PagePool pool;
  AdmissionLedger ledger{one_group(), {}};
  int admitted = 0;

  std::vector<AdmissionLedger::Room> rooms() const {
    AdmissionLedger::Room room;
    room.takes = ledger.takes(0);  // before the rest, as the cache does
    room.capacity = pool.count();
    room.free_and_evictable = pool.free_count();
    return {room};
  }
  // Asks for so many pages; where admitted, takes them all one by one, gives them back and ends.
  bool request(std::int64_t tokens) {
    AdmissionLedger::Share share;
    int group = -2;
    if (ledger.admit(share, {tokens}, rooms(), group) != Refusal::None) return false;
    ++admitted;
    for (const PageId page : take(share, tokens)) {
      ledger.gave(share, 0, 1);
      pool.give_back(page);
    }
    ledger.end(share);
    return true;
  }
  // A fill without ticket: its share ends once it has its pages, which it gives back later.
  void fill(std::int64_t pages) {
    AdmissionLedger::Share share;
    int group = -2;
    if (!ledger.admit_fill(share, std::span<const std::int64_t>(&pages, 1), rooms(), group)) return;
    const std::vector<PageId> held = take(share, pages);
    ledger.end(share);
    for (const PageId page : held) pool.give_back(page);
  }

  void check() override { HKV_MUST(ledger.promised(0) >= 0); }
  void after() override {
    HKV_MUST(ledger.promised(0) == 0 && ledger.caps(0) == 0 && ledger.live_requests() == 0);
    HKV_MUST(ledger.live_combinations() == 0);
    HKV_MUST(pool.free_count() == pool.count());
    HKV_MUST(admitted > 0);  // nothing is refused for ever where nothing runs
  }

 protected:
  std::vector<PageId> take(AdmissionLedger::Share& share, std::int64_t pages) {
    std::vector<PageId> held;
    for (std::int64_t i = 0; i < pages; ++i) {
      const PageId page = pool.take();
      HKV_MUST(page != no_page);  // what was promised is there
      ledger.took(share, 0, 1);
      held.push_back(page);
    }
    return held;
  }
};

// Two requests that do not fit together.
template <int times>
struct TwoRequests : Ledger {
  TwoRequests() : Ledger(3) {}
  void thread(int) override {
    for (int i = 0; i < times; ++i) request(2);
  }
};
// And two that do.
struct TwoThatFit : Ledger {
  bool let_in[2] = {};
  TwoThatFit() : Ledger(2) {}
  void thread(int self) override { let_in[self] = request(1); }
};
// A fill may take what is not promised, beside requests that come and go.
struct FillBesideRequests : Ledger {
  FillBesideRequests() : Ledger(3) {}
  int threads() const override { return 3; }
  void thread(int self) override {
    if (self == 2) return fill(2);
    while (!request(self + 1) && self == 0) {
    }
  }
};

// A request that would hold a page of another beside its own, while one takes what it was promised: nothing is to
// spare at any time.
struct WidenBesideTake : Ledger {
  AdmissionLedger::Share shares[2];
  bool widened = false;
  WidenBesideTake() : Ledger(2) {}
  void before() override {
    int group = -2;
    for (auto& share : shares) admitted += ledger.admit(share, {1}, rooms(), group) == Refusal::None ? 1 : 0;
    HKV_MUST(admitted == 2);
  }
  void thread(int self) override {
    if (self == 1) widened = ledger.widen(shares[1], 0, rooms()[0], false);
    const std::int64_t pages = self == 1 && widened ? 2 : 1;
    for (const PageId page : take(shares[self], pages)) {
      ledger.gave(shares[self], 0, 1);
      pool.give_back(page);
    }
    ledger.end(shares[self]);
  }
};

}  // namespace

HKV_TEST("what was promised is there when it is taken") {
  search_all<TwoThatFit>("two requests that fit");
  search_all<TwoRequests<1>>("two requests that do not fit together");
  sample<TwoRequests<3>>("two requests, three times", 50000);
}
HKV_TEST("a pin beside an own page takes nothing that is promised") {
  search_all<WidenBesideTake>("widen beside a take");
}
HKV_TEST("a fill takes nothing that is promised") {
  sample<FillBesideRequests>("fill beside requests", 50000);
}

}  // namespace hkv::sim
