// SPDX-License-Identifier: Apache-2.0
// Fills under a ticket's share: who answers for each page after every step, and that what was promised is there. Each
// rule by hand; then many small worlds of requests, fills with and without ticket, leases and lost handles, of which
// nothing is foretold but that the counts of alloc/admission.h hold and every request that lost no page can finish.
//
// HKV_EVENTS sets the number of events (HYBRIDKV_SOAK=1: many); HKV_SEED draws other worlds.
// One thread: left out under ThreadSanitizer.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "sim/ticket_draws.h"
#include "testing.h"

namespace hkv {
namespace {

using sim::Chain;
using sim::Draws;
using sim::Prefix;

struct Running {
  std::unique_ptr<Ticket> ticket;
  std::unique_ptr<Lease> lease;
  Prefix sequence;
  bool lost_pages = false;
};
struct Filling {
  std::unique_ptr<Fill> fill;
  std::unique_ptr<Lease> lease;
};

class World {
 public:
  World(const sim::Rules& rules, std::int64_t pages, std::uint64_t seed)
      : rules_(rules),
        cache(sim::layout_of(rules, pages), 4096, std::vector<Digest16>(rules.groups.size())),
        draws_(seed) {}

  const sim::Rules& rules_;
  HybridCache cache;
  std::vector<Running> running;
  std::vector<Filling> filling;
  std::vector<std::unique_ptr<Lease>> leases;
  std::int64_t admitted = 0, reserved = 0, refused = 0, outlived = 0, leaked = 0, finished = 0;

  int groups() const { return static_cast<int>(rules_.groups.size()); }
  std::int64_t free_and_evictable(int g) {
    return static_cast<std::int64_t>(cache.store().pool(g).free_count()) + cache.store().evictable(g);
  }
  Chain chain(const Prefix& ids) const { return sim::chain_of(rules_.unit, ids); }

  void event() {
    const std::int64_t what = draws_.upto(99);
    if (what < 12) return admit();
    if (what < 18) return hold();
    if (what < 26) return reserve(nullptr);
    if (what < 44 && !filling.empty()) return end_some_fill(any(filling));
    if (running.empty()) return;
    Running& run = any(running);
    if (what < 62) return reserve(&run);
    if (what < 90) return void(step(run));
    what < 95 ? rewind(run) : end(run, what == 95);
  }

  void admit() {
    if (running.size() >= 4) return;
    Running run;
    run.sequence = draws_.sequence(1, sim::longest - 8);
    AdmitQuestion question;
    question.start = chain(run.sequence);
    if (draws_.one_in(2)) run.lease = match(run.sequence);
    const std::int64_t start = run.lease == nullptr ? 0 : run.lease->tokens;
    question.lease = run.lease.get();
    question.max_tokens = start + 1 + draws_.upto(sim::longest - start - 1);
    question.formats = cache.spec_formats();
    const std::uint32_t every = (1u << groups()) - 1;
    if (draws_.one_in(3)) question.groups = 1 + static_cast<std::uint32_t>(draws_.upto(every - 1));
    NotAdmitted why;
    run.ticket = cache.admit(question, why);
    if (run.ticket == nullptr) {
      if (run.lease != nullptr) cache.drop(std::move(run.lease));
      return;
    }
    ++admitted;
    run.sequence.resize(static_cast<std::size_t>(start));
    running.push_back(std::move(run));
  }

  // A fill of a sequence; of a ticket, or of nobody. A refusal leaves everything as it was.
  void reserve(Running* run) {
    if (filling.size() >= 5) return;
    const Prefix sequence = draws_.sequence(1, sim::longest);
    std::vector<Selection> some(rules_.groups.size());
    for (Selection& selection : some) selection.all = !draws_.one_in(3);
    Filling made;
    if (draws_.one_in(3)) made.lease = match(sequence);
    Ticket* const ticket = run == nullptr ? nullptr : run->ticket.get();
    const std::vector<std::int64_t> before = counts();
    try {
      made.fill = cache.reserve(chain(sequence), some, cache.spec_formats(), made.lease.get(), ticket);
    } catch (const OutOfPagesError& error) {
      ++refused;
      EXPECT(before == counts());
      EXPECT(!error.pool.empty() && error.needed > error.free);
      if (made.lease != nullptr) drop(std::move(made.lease));
      return;
    }
    reserved += ticket != nullptr;
    filling.push_back(std::move(made));
  }

  void end_some_fill(Filling& one) {
    Fill& fill = *one.fill;
    const std::int64_t how = draws_.upto(9);
    if (how < 4) {  // in parts, and perhaps again
      std::vector<Selection> some(rules_.groups.size());
      for (Selection& selection : some) selection.all = draws_.one_in(2);
      cache.publish(fill, some);
      return;
    }
    if (how < 7) publish_all(fill);
    if (how == 9 && !fill.done) {  // nobody knows who still writes them
      ++leaked;
      for (Running& run : running) run.lost_pages |= fill.right != nullptr && run.ticket->fills == fill.right;
      cache.abort(fill, true);
    } else {
      cache.abort(fill, false);
    }
    if (one.lease != nullptr) drop(std::move(one.lease));
    std::erase_if(filling, [&](const Filling& other) { return &other == &one; });
  }
  void publish_all(Fill& fill) {
    cache.publish(fill, std::vector<Selection>(rules_.groups.size(), Selection{true, {}}));
    EXPECT(fill.done);
  }

  // Returns: whether pages could be had.
  bool step(Running& run, std::int64_t most = 9) {
    Ticket& ticket = *run.ticket;
    const std::int64_t tokens = 1 + draws_.upto(std::min(most, ticket.max_tokens - ticket.grown) - 1);
    if (ticket.grown < ticket.max_tokens) {
      try {
        cache.grow(ticket, tokens, {});
      } catch (const OutOfPagesError&) {
        return false;
      }
    }
    const std::int64_t upto = ticket.grown - (most == 9 ? draws_.upto(ticket.grown - ticket.advanced) : 0);
    Prefix longer = run.sequence;
    draws_.lengthen(longer, upto - ticket.advanced);
    const Prefix ids(longer.begin() + static_cast<std::ptrdiff_t>(run.sequence.size()), longer.end());
    TokenView view;
    view.data = reinterpret_cast<const std::byte*>(ids.data());
    view.count = static_cast<std::int64_t>(ids.size());
    const std::int64_t before = ticket.advanced;
    ticket.keys.append(view, 0, view.count);
    cache.advance(ticket, upto, {}, 16, true);
    cache.settle_advance(ticket, upto, before);
    run.sequence = std::move(longer);
    return true;
  }
  void rewind(Running& run) {
    const std::size_t parked =
        cache.rewind(*run.ticket, draws_.upto(run.ticket->grown - run.ticket->advanced));
    cache.give_back_parked(*run.ticket, parked);
  }
  void end(Running& run, bool lost) {
    const bool open = run.ticket->fills != nullptr &&
                      std::any_of(run.ticket->fills->pages.begin(), run.ticket->fills->pages.end(),
                                  [](std::int64_t pages) { return pages != 0; });
    outlived += open;
    cache.close(*run.ticket);
    cache.end(*run.ticket, draws_.one_in(2), lost);
    if (run.lease != nullptr) cache.drop(std::move(run.lease));
    std::erase_if(running, [&](const Running& other) { return &other == &run; });
  }

  void hold() {
    if (leases.size() >= 2) {
      drop(std::move(leases.back()));
      leases.pop_back();
    } else if (auto lease = match(draws_.sequence(1, sim::longest)); lease != nullptr) {
      leases.push_back(std::move(lease));
    }
  }

  // What must hold after every step.
  void check() {
    const bool free_leases =
        !leases.empty() ||
        std::any_of(filling.begin(), filling.end(), [](const Filling& one) { return one.lease != nullptr; });
    for (int g = 0; g < groups(); ++g) {
      const auto at = static_cast<std::size_t>(g);
      const AdmissionLedger& ledger = cache.admission();
      std::int64_t promised = 0, caps = 0, nobodys = 0, pinned = 0;
      for (const Running& run : running) {
        const AdmissionLedger::Share& share = run.ticket->share;
        promised += share.cap[at] - share.taken[at].load();
        pinned += run.ticket->hands[at].beside;
        if (run.lease != nullptr)
          pinned += std::count_if(run.lease->held.begin(), run.lease->held.end(),
                                  [g](const Lease::Held& held) { return held.group == g; });
        caps += share.cap[at];
        EXPECT(share.taken[at].load() >= pages_of(run.ticket->fills.get(), g));
      }
      for (const Filling& one : filling) nobodys += one.fill->share() == nullptr ? held(*one.fill, g) : 0;
      EXPECT_EQ(ledger.promised(g), promised);
      EXPECT_EQ(ledger.caps(g), caps);
      for (const Running& run : running) {
        if (run.ticket->fills != nullptr)
          EXPECT_EQ(run.ticket->fills->pages[at], pages_of(run.ticket->fills.get(), g));
      }
      if (!free_leases) EXPECT_EQ(cache.unowned_pages(g), nobodys);
      const auto census = cache.store().census(g, static_cast<std::uint64_t>(cache.private_pages(g)));
      const std::int64_t capacity = cache.store().pool(g).count();
      EXPECT_EQ(static_cast<std::int64_t>(census.free + census.filling + census.held + census.cached) +
                    cache.quarantined_pages(g),
                capacity);
      // What a request pins without having taken it, it was promised and cannot take.
      const bool prefix = rules_.groups[at].rule == Rule::Prefix;
      const bool by_pages = promised - (prefix ? 0 : pinned) <= free_and_evictable(g);
      const bool by_caps = !prefix && caps + cache.unowned_pages(g) <= capacity - cache.quarantined_pages(g);
      if (!free_leases) EXPECT(by_pages || by_caps);
    }
  }

  // Leases without a request end, and requests end their fills: then each of them can finish, in any order, beside
  // fills of nobody that do not.
  void finish() {
    while (!leases.empty()) drop(std::move(leases.back())), leases.pop_back();
    for (std::size_t i = filling.size(); i-- > 0;) {
      if (filling[i].fill->share() == nullptr && filling[i].lease == nullptr && draws_.one_in(2)) continue;
      if (draws_.one_in(2)) publish_all(*filling[i].fill);
      cache.abort(*filling[i].fill, false);
      if (filling[i].lease != nullptr) drop(std::move(filling[i].lease));
      filling.erase(filling.begin() + static_cast<std::ptrdiff_t>(i));
    }
    while (!running.empty()) {
      Running& run = any(running);
      while (run.ticket->advanced < run.ticket->max_tokens) {
        const bool enough = step(run, 8);
        EXPECT(enough || run.lost_pages);
        if (!enough) break;
      }
      ++finished;
      end(run, false);
      check();
    }
    for (Filling& one : filling) cache.abort(*one.fill, false);
    filling.clear();
    for (int g = 0; g < groups(); ++g) {
      EXPECT_EQ(cache.admission().promised(g) + cache.admission().caps(g) + cache.unowned_pages(g), 0);
      EXPECT_EQ(free_and_evictable(g) + cache.quarantined_pages(g), cache.store().pool(g).count());
    }
    EXPECT_EQ(cache.live_fills() + cache.live_leases() + cache.live_tickets(), 0);
  }

  std::unique_ptr<Lease> match(const Prefix& sequence) {
    const Chain keys = chain(sequence);
    Question question;
    question.keys = keys.get();
    question.limit = keys->tokens();
    question.formats = cache.spec_formats();
    question.verify = Verify::Off;
    std::unique_ptr<Lease> lease;
    cache.match(question, keys, lease);
    return lease;
  }
  void drop(std::unique_ptr<Lease> lease) {
    cache.settle(*lease, Settlement::Withdrawn);
    cache.drop(std::move(lease));
  }

 private:
  template <class T>
  T& any(std::vector<T>& all) {
    return all[static_cast<std::size_t>(draws_.upto(static_cast<std::int64_t>(all.size()) - 1))];
  }
  static std::int64_t held(const Fill& fill, int g) {
    return std::count_if(fill.entries[g].begin(), fill.entries[g].end(), [](const Fill::Entry& entry) {
      return entry.state == Fill::State::Claimed || entry.state == Fill::State::Private;
    });
  }
  std::int64_t pages_of(const FillRight* right, int g) const {
    std::int64_t pages = 0;
    for (const Filling& one : filling)
      pages += right != nullptr && one.fill->right.get() == right ? held(*one.fill, g) : 0;
    return pages;
  }
  std::vector<std::int64_t> counts() {
    std::vector<std::int64_t> all;
    for (int g = 0; g < groups(); ++g) {
      all.insert(all.end(), {cache.admission().promised(g), cache.admission().caps(g), cache.unowned_pages(g),
                             cache.private_pages(g), free_and_evictable(g)});
    }
    return all;
  }

  Draws draws_;
};

const sim::Rules history{4, {{Rule::Prefix, 0, 4, false}}};
const sim::Rules two_histories{4, {{Rule::Prefix, 0, 4, false}, {Rule::Prefix, 0, 4, false}}};
const Prefix numbers = [] {
  Prefix ids;
  for (std::uint32_t i = 0; i < 40; ++i) ids.push_back(i);
  return ids;
}();
Prefix first(std::int64_t n) { return sim::first(numbers, n); }

Running admitted(World& world, std::int64_t max_tokens, std::uint32_t groups = ~0u) {
  Running run;
  AdmitQuestion question;
  question.start = world.chain({});
  question.max_tokens = max_tokens;
  question.groups = groups;
  question.formats = world.cache.spec_formats();
  NotAdmitted why;
  run.ticket = world.cache.admit(question, why);
  return run;
}
std::vector<Selection> only(std::initializer_list<bool> which) {
  std::vector<Selection> some;
  for (const bool all : which) some.push_back({all, {}});
  return some;
}
std::unique_ptr<Fill> filled(World& world, const Running& run, const Prefix& ids,
                             const std::vector<Selection>& some) {
  return world.cache.reserve(world.chain(ids), some, world.cache.spec_formats(), nullptr, run.ticket.get());
}

HKV_TEST("a page of a ticket's fill that another's pin would hold stays private where no page is to spare") {
  World world(two_histories, 3, 1);
  Running first_one = admitted(world, 4), second = admitted(world, 8);
  HKV_CHECK(first_one.ticket != nullptr && second.ticket != nullptr);
  // The second one claims a page of the first group at the unit that the first one publishes.
  auto fill = filled(world, second, first(4), only({true, false}));
  TokenView view;
  view.data = reinterpret_cast<const std::byte*>(numbers.data());
  view.count = 4;
  world.cache.grow(*first_one.ticket, 4, {});
  first_one.ticket->keys.append(view, 0, 4);
  world.cache.advance(*first_one.ticket, 4, {}, 0, true);
  world.cache.settle_advance(*first_one.ticket, 4, 0);  // pins the word for its page of the second group
  world.running.push_back(std::move(first_one));
  world.running.push_back(std::move(second));
  world.filling.push_back({std::move(fill), nullptr});
  world.check();
  world.publish_all(*world.filling[0].fill);
  world.check();
  EXPECT(world.filling[0].fill->entries[0][0].state == Fill::State::Private);
  EXPECT_EQ(AdmissionLedger::room(world.running[1].ticket->share, 0), 1);
  world.end(world.running[0], false);
  world.publish_all(*world.filling[0].fill);  // nobody pins it any more
  EXPECT(world.filling[0].fill->entries[0][0].state == Fill::State::Published);
  world.check();
  EXPECT_EQ(AdmissionLedger::room(world.running[0].ticket->share, 0), 2);
  world.finish();
}

HKV_TEST("and is published where one is to spare") {
  World world(two_histories, 4, 1);
  world.running.push_back(admitted(world, 4));
  world.running.push_back(admitted(world, 8));
  world.filling.push_back({filled(world, world.running[1], first(4), only({true, false})), nullptr});
  TokenView view;
  view.data = reinterpret_cast<const std::byte*>(numbers.data());
  view.count = 4;
  Ticket& one = *world.running[0].ticket;
  world.cache.grow(one, 4, {});
  one.keys.append(view, 0, 4);
  world.cache.advance(one, 4, {}, 0, true);
  world.cache.settle_advance(one, 4, 0);
  world.publish_all(*world.filling[0].fill);
  EXPECT(world.filling[0].fill->entries[0][0].state == Fill::State::Published);
  world.check();
  world.finish();
}

HKV_TEST("a request holds no page of a group that it does not use where all are promised") {
  World world(two_histories, 4, 1);
  for (const std::uint32_t start :
       {0u, 99u}) {  // a cached page of the second group, and one that is being filled
    Prefix ids = first(4);
    ids[0] = start;
    auto fill =
        world.cache.reserve(world.chain(ids), only({false, true}), world.cache.spec_formats(), nullptr);
    if (start == 0) world.publish_all(*fill);
    world.filling.push_back({std::move(fill), nullptr});
  }
  world.running.push_back(admitted(world, 4, 1u));
  world.running.push_back(admitted(world, 12));
  HKV_CHECK(world.running[0].ticket != nullptr && world.running[1].ticket != nullptr);
  Ticket& one = *world.running[0].ticket;
  TokenView view;
  view.data = reinterpret_cast<const std::byte*>(numbers.data());
  view.count = 4;
  world.cache.grow(one, 4, {});
  one.keys.append(view, 0, 4);
  world.cache.advance(one, 4, {}, 0, true);
  world.cache.settle_advance(one, 4, 0);
  world.check();
  EXPECT(one.hands[0].blocks[0].hold == Ticket::Hold::Private);
  world.finish();
}

HKV_TEST("a fill takes from its ticket's share, and the counts hold after every step") {
  World world(history, 8, 1);
  world.running.push_back(admitted(world, 20));
  Running& run = world.running[0];
  AdmissionLedger::Share& share = run.ticket->share;
  world.filling.push_back({filled(world, run, first(12), only({true})), nullptr});
  world.check();
  EXPECT_EQ(AdmissionLedger::room(share, 0), 2);
  EXPECT_EQ(world.cache.unowned_pages(0), 0);
  bool refused = false;
  try {
    Prefix other = numbers;
    other[0] = 99;
    filled(world, run, sim::first(other, 12), only({true}));
  } catch (const OutOfPagesError& error) {
    refused = error.pool == "g0" && error.needed == 3 && error.free == 2;
  }
  EXPECT(refused);
  world.check();
  Selection one_block;
  one_block.blocks = {0};
  world.cache.publish(*world.filling[0].fill, std::vector<Selection>{one_block});
  world.check();
  EXPECT_EQ(AdmissionLedger::room(share, 0), 3);
  world.end(run, false);  // what the fill still holds is nobody's now
  world.check();
  EXPECT_EQ(world.cache.unowned_pages(0), 2);
  world.cache.abort(*world.filling[0].fill, false);
  EXPECT_EQ(world.cache.unowned_pages(0), 0);
  EXPECT_EQ(world.free_and_evictable(0), 8);
}

HKV_TEST("a page lost in a fill is its own request's loss") {
  World world(history, 8, 1);
  world.running.push_back(admitted(world, 16));
  world.running.push_back(admitted(world, 16));
  auto fill = filled(world, world.running[0], first(8), only({true}));
  world.cache.abort(*fill, true);
  world.check();
  EXPECT_EQ(AdmissionLedger::room(world.running[0].ticket->share, 0), 2);
  EXPECT_EQ(AdmissionLedger::room(world.running[1].ticket->share, 0), 4);
  world.running[0].lost_pages = true;
  world.finish();
}

HKV_TEST("in small worlds the counts hold after every event, and every request can finish") {
  const std::uint64_t seed = sim::seed_of_run();
  const std::int64_t worlds = sim::events_of_run(240'000, 24'000'000) / 60;
  std::int64_t reserved = 0, refused = 0, outlived = 0, leaked = 0, finished = 0;
  for (std::int64_t turn = 0; turn < worlds && testing::failures == 0; ++turn) {
    const std::size_t kinds = std::size(sim::kinds) + 1;
    const auto kind = static_cast<std::size_t>(turn) % kinds;
    const sim::Rules& rules = kind == kinds - 1 ? two_histories : sim::kinds[kind];
    World world(rules, 8 + turn / 7 % 16, seed * 1'000'003 + static_cast<std::uint64_t>(turn));
    for (int event = 0; event < 60 && testing::failures == 0; ++event) {
      world.event();
      world.check();
    }
    world.finish();
    if (testing::failures != 0)
      std::printf("     world %lld: HKV_SEED=%llu\n", static_cast<long long>(turn),
                  static_cast<unsigned long long>(seed));
    reserved += world.reserved, refused += world.refused, outlived += world.outlived;
    leaked += world.leaked, finished += world.finished;
  }
  std::printf("     %lld fills of tickets, %lld refused, %lld outlived, %lld lost, %lld finished\n",
              static_cast<long long>(reserved), static_cast<long long>(refused),
              static_cast<long long>(outlived), static_cast<long long>(leaked),
              static_cast<long long>(finished));
  EXPECT(reserved > worlds && refused > worlds / 4 && outlived > worlds / 20 && leaked > worlds / 20);
}

}  // namespace
}  // namespace hkv
