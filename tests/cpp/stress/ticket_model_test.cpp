// SPDX-License-Identifier: Apache-2.0
// Running requests. One thread: seeded lists of events over the cache and over sim/ticket_model.h, compared after every
// event. Two threads: each with requests of its own over one cache; pages are plain memory that holds a function of
// (prefix, group), so that a page read after it was given away is a mismatch, and a reported race.
//
// HKV_EVENTS sets the number of events (HYBRIDKV_SOAK=1: many); the seed is printed, HKV_SEED repeats it.
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "cache/cache.h"
#include "sim/ticket_beside.h"
#include "testing.h"

namespace hkv {
namespace {

using sim::Draws;
using sim::Prefix;

// One thread beside the model: ThreadSanitizer has nothing to find in it, and makes it thirty times as long.
#if defined(__SANITIZE_THREAD__)
constexpr std::int64_t events_beside_the_model = 6'000;
#else
constexpr std::int64_t events_beside_the_model = 60'000;
#endif

std::int64_t beside_the_model(std::int64_t pages, bool crowd = false) {
  const std::uint64_t seed = sim::seed_of_run();
  const std::int64_t lists = sim::events_of_run(events_beside_the_model, 6'000'000) / 100 /
                             static_cast<std::int64_t>(std::size(sim::kinds));
  std::int64_t grown = 0, refused = 0, leased = 0, short_of = 0;
  for (const sim::Rules& rules : sim::kinds) {
    for (std::int64_t list = 0; list < lists; ++list) {
      sim::Beside world(rules, pages, seed * 1'000'003 + static_cast<std::uint64_t>(list), crowd);
      bool alike = true;
      int event = 0;
      for (; alike && event < 100; ++event) alike = world.event();
      if (!alike || !world.end()) {
        testing::fail(__FILE__, __LINE__,
                      "kind " + std::to_string(&rules - sim::kinds) + ", list " + std::to_string(list) +
                          ", event " + std::to_string(event) + ": HKV_SEED=" + std::to_string(seed));
        return 0;
      }
      grown += world.grown, refused += world.refused, leased += world.leased;
      short_of += world.short_of_pages;
    }
  }
  std::printf("     seed %llu: %lld grown, %lld admissions refused, %lld leases, %lld grows short of pages\n",
              static_cast<unsigned long long>(seed), static_cast<long long>(grown),
              static_cast<long long>(refused), static_cast<long long>(leased),
              static_cast<long long>(short_of));
  EXPECT(grown > lists && leased > lists);
  return short_of;
}

// ---- two threads, pages that certify themselves ------------------------------------------------

constexpr int page_words = 8;

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t x = (a ^ (b + 1)) * 0x9E3779B97F4A7C15u;
  return (x ^ x >> 29) * 0xBF58476D1CE4E5B9u;
}

// A cache whose pages are plain memory: row i of a page is its word i; a state is word 0.
struct Shared {
  Shared(const sim::Rules& kind, std::int64_t pages)
      : rules(kind), cache(sim::layout_of(kind, pages), 4096, std::vector<Digest16>(kind.groups.size())) {
    memory.assign(kind.groups.size(),
                  std::vector<std::uint64_t>(static_cast<std::size_t>(pages) * page_words));
  }
  std::uint64_t* page(int group, PageId id) {
    return memory[group].data() + std::size_t{index(id)} * page_words;
  }
  const sim::Rules& rules;
  HybridCache cache;
  std::vector<std::vector<std::uint64_t>> memory;
};

struct Running {
  std::unique_ptr<Ticket> ticket;
  std::unique_ptr<Lease> lease;
  Prefix sequence, drafts;
  std::vector<std::function<void()>> waiting;  // what passes with the next event, in order
};

class Worker {
 public:
  Worker(Shared& shared, std::uint64_t seed)
      : s_(shared), model_(shared.rules.unit, shared.rules.groups), draws_(seed) {}
  std::uint64_t rows_read = 0, wrong = 0, admitted = 0, refused = 0, short_of_pages = 0;

  void event() {
    const std::int64_t what = draws_.upto(99);
    if (what < 12) return admit();
    if (what < 14) return evict();
    if (running_.empty()) return;
    Running& run =
        running_[static_cast<std::size_t>(draws_.upto(static_cast<std::int64_t>(running_.size()) - 1))];
    if (what < 50) return grow(run);
    if (what < 80) return advance(run);
    if (what < 88) return rewind(run);
    if (what < 93) return pass(run);
    close(run);
    std::erase_if(running_, [](const Running& one) { return one.ticket == nullptr; });
  }
  void end() {
    for (Running& run : running_) close(run);
    running_.clear();
  }

 private:
  // What row `position` of a sequence holds, or the state after it.
  std::uint64_t content(const Prefix& sequence, std::int64_t position, int group) const {
    std::uint64_t hash = static_cast<std::uint64_t>(group);
    for (std::int64_t i = 0; i <= position; ++i) hash = mix(hash, sequence[static_cast<std::size_t>(i)]);
    return hash;
  }
  void expect(int group, PageId page, std::int64_t word, std::uint64_t value) {
    ++rows_read;
    wrong += s_.page(group, page)[word] != value;
  }

  void admit() {
    if (running_.size() >= 3) return;
    Running run;
    const Prefix sequence = draws_.sequence(1, sim::longest - 8);
    const auto chain = sim::chain_of(s_.rules.unit, sequence);
    Question question;
    question.keys = chain.get();
    question.limit = chain->tokens();
    question.formats = s_.cache.spec_formats();
    question.verify = Verify::Off;
    s_.cache.match(question, chain, run.lease);
    if (run.lease != nullptr) read(*run.lease, sequence);
    const std::int64_t start = run.lease == nullptr ? 0 : run.lease->tokens;
    if (run.lease != nullptr && draws_.one_in(4)) {
      s_.cache.settle(*run.lease, Settlement::Released);
      return s_.cache.drop(std::move(run.lease));
    }
    AdmitQuestion asked;
    asked.start = chain;
    asked.max_tokens = start + 1 + draws_.upto(sim::longest - start - 1);
    asked.lease = run.lease.get();
    asked.formats = s_.cache.spec_formats();
    NotAdmitted why;
    run.ticket = s_.cache.admit(asked, why);
    ++(run.ticket == nullptr ? refused : admitted);
    if (run.ticket == nullptr) {
      if (run.lease != nullptr) s_.cache.drop(std::move(run.lease));
      return;
    }
    run.sequence = sim::first(sequence, start);
    running_.push_back(std::move(run));
  }
  void read(const Lease& lease, const Prefix& sequence) {
    std::vector<std::uint32_t> pages;
    for (int g = 0; g < model_.count(); ++g) {
      s_.cache.page_ids(lease, g, pages);
      for (const std::int64_t b : model_.needed(g, lease.tokens))
        read_block(g, PageId{pages[static_cast<std::size_t>(b)]}, b, sequence, lease.tokens);
    }
  }
  void read_block(int g, PageId page, std::int64_t block, const Prefix& sequence, std::int64_t length) {
    if (model_.groups[g].live) return expect(g, page, 0, content(sequence, length - 1, g));
    const std::int64_t begin = block * model_.groups[g].block;
    const std::int64_t end = std::min(length, begin + model_.groups[g].block);
    for (std::int64_t i = begin; i < end; ++i) expect(g, page, i - begin, content(sequence, i, g));
  }
  void evict() {
    const std::vector<Selection> everything(model_.groups.size(), Selection{true, {}});
    s_.cache.evict(*sim::chain_of(s_.rules.unit, draws_.sequence(1, sim::longest)), everything);
  }

  void grow(Running& run) {
    const std::int64_t tokens = 1 + (draws_.one_in(3) ? draws_.upto(11) : 0);
    Prefix longer = run.sequence;
    longer.insert(longer.end(), run.drafts.begin(), run.drafts.end());
    draws_.lengthen(longer, tokens);
    try {
      s_.cache.grow(*run.ticket, tokens, {});
    } catch (const OutOfPagesError&) {
      ++short_of_pages;
      return;
    }
    run.drafts.assign(longer.begin() + static_cast<std::ptrdiff_t>(run.sequence.size()), longer.end());
  }
  // The step: copies, reads of what each group needs at the computed length, writes of all that was grown.
  void compute(Running& run) {
    const std::int64_t computed = run.ticket->advanced, grown = run.ticket->grown;
    Prefix all = run.sequence;
    all.insert(all.end(), run.drafts.begin(), run.drafts.end());
    for (const PageCopy& copy : run.ticket->copies) {
      const int words = copy.rows == 0 ? page_words : copy.rows;
      std::copy_n(s_.page(copy.group, copy.source), words, s_.page(copy.group, copy.target));
    }
    std::vector<std::uint32_t> pages;
    for (int g = 0; g < model_.count(); ++g) {
      if (model_.groups[g].live) {
        std::uint64_t* const state = s_.page(g, run.ticket->hands[g].live);
        if (computed == run.ticket->start_tokens && computed != 0 && model_.needs_state(g, computed))
          expect(g, run.ticket->hands[g].live, 0, content(all, computed - 1, g));
        if (grown != computed) state[0] = content(all, grown - 1, g);
        continue;
      }
      const std::int64_t block = model_.groups[g].block;
      s_.cache.page_ids(*run.ticket, g, pages);
      for (std::int64_t i = model_.begins(g, computed); i < grown; ++i) {
        const PageId page{pages[static_cast<std::size_t>(i / block)]};
        if (i < computed)
          expect(g, page, i % block, content(all, i, g));
        else
          s_.page(g, page)[i % block] = content(all, i, g);
      }
    }
  }
  // What a launched step still reads when its event passes.
  std::function<void()> reads_again(Running& run) {
    struct Row {
      int group;
      PageId page;
      std::int64_t word;
      std::uint64_t value;
    };
    std::vector<Row> rows;
    std::vector<std::uint32_t> pages;
    for (int g = 0; g < model_.count(); ++g) {
      if (model_.groups[g].live) continue;
      const std::int64_t block = model_.groups[g].block, computed = run.ticket->advanced;
      s_.cache.page_ids(*run.ticket, g, pages);
      for (std::int64_t i = model_.begins(g, computed); i < computed; ++i)
        rows.push_back(
            {g, PageId{pages[static_cast<std::size_t>(i / block)]}, i % block, content(run.sequence, i, g)});
    }
    return [this, rows = std::move(rows)] {
      for (const Row& row : rows) expect(row.group, row.page, row.word, row.value);
    };
  }

  void advance(Running& run) {
    const auto drafts = static_cast<std::int64_t>(run.drafts.size());
    const std::int64_t tokens = draws_.one_in(3) ? draws_.upto(drafts) : drafts;
    if (tokens == 0) return;
    const bool late = draws_.one_in(3);
    if (!late) pass(run);
    compute(run);
    if (late) run.waiting.push_back(reads_again(run));
    Ticket& ticket = *run.ticket;
    const std::int64_t before = ticket.advanced, upto = before + tokens, seen = late ? upto : before;
    TokenView view;
    view.data = reinterpret_cast<const std::byte*>(run.drafts.data());
    view.count = drafts;
    ticket.keys.append(view, 0, tokens);
    s_.cache.advance(ticket, upto, {}, 16, !late);
    for (const PageCopy& copy : ticket.step_copies)
      std::copy_n(s_.page(copy.group, copy.source), page_words, s_.page(copy.group, copy.target));
    run.sequence.insert(run.sequence.end(), run.drafts.begin(),
                        run.drafts.begin() + static_cast<std::ptrdiff_t>(tokens));
    run.drafts.erase(run.drafts.begin(), run.drafts.begin() + static_cast<std::ptrdiff_t>(tokens));
    run.waiting.push_back([this, &ticket, upto, seen] { s_.cache.settle_advance(ticket, upto, seen); });
    if (!late) pass(run);
  }
  void rewind(Running& run) {
    const std::int64_t tokens = draws_.upto(static_cast<std::int64_t>(run.drafts.size()));
    Ticket& ticket = *run.ticket;
    const auto before = ticket.parked.size();
    const std::size_t parked = s_.cache.rewind(ticket, tokens);
    run.drafts.resize(run.drafts.size() - static_cast<std::size_t>(tokens));
    const std::vector<Ticket::Parked> pages(ticket.parked.begin() + static_cast<std::ptrdiff_t>(before),
                                            ticket.parked.end());
    run.waiting.push_back([this, &ticket, parked, pages] {
      for (const Ticket::Parked& one : pages)
        s_.page(one.group, one.page)[0] = 0;  // the step still writes them
      s_.cache.give_back_parked(ticket, parked);
    });
    if (!draws_.one_in(3) && run.waiting.size() == 1) pass(run);
  }
  void pass(Running& run) {
    for (auto& effect : run.waiting) effect();
    run.waiting.clear();
  }
  void close(Running& run) {
    const auto again = reads_again(run);
    s_.cache.close(*run.ticket);
    pass(run);
    s_.cache.end(*run.ticket, !draws_.one_in(4), false);
    if (run.lease != nullptr) s_.cache.drop(std::move(run.lease));
    run.ticket = nullptr;
  }

  Shared& s_;
  sim::CacheModel model_;  // its rules alone
  Draws draws_;
  std::vector<Running> running_;
};

void two_threads(std::int64_t pages) {
  const std::uint64_t seed = sim::seed_of_run();
  const std::int64_t events = sim::events_of_run(120'000, 40'000'000);
  Shared shared(sim::threads_kind, pages);
  std::vector<Worker> workers;
  for (unsigned t = 0; t < 2; ++t) workers.emplace_back(shared, seed * 2 + t);
  std::vector<std::thread> threads;
  for (Worker& worker : workers) {
    threads.emplace_back([&worker, events] {
      for (std::int64_t i = 0; i < events / 2; ++i) worker.event();
      worker.end();
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::uint64_t rows = 0, wrong = 0, admitted = 0, refused = 0, short_of = 0;
  for (const Worker& w : workers)
    rows += w.rows_read, wrong += w.wrong, admitted += w.admitted, refused += w.refused,
        short_of += w.short_of_pages;
  std::printf(
      "     seed %llu: %llu rows read, %llu wrong; %llu admitted, %llu refused, %llu short of pages\n",
      static_cast<unsigned long long>(seed), static_cast<unsigned long long>(rows),
      static_cast<unsigned long long>(wrong), static_cast<unsigned long long>(admitted),
      static_cast<unsigned long long>(refused), static_cast<unsigned long long>(short_of));
  EXPECT_EQ(wrong, 0u);
  EXPECT(rows > static_cast<std::uint64_t>(events));
  HybridCache& cache = shared.cache;
  EXPECT_EQ(cache.live_tickets(), 0);
  EXPECT_EQ(cache.live_leases(), 0);
  EXPECT_EQ(cache.counters().read(kPending), 0);
  EXPECT(cache.store().verify() == no_descriptor);
  EXPECT(cache.store().table().counts_hold());
  for (int g = 0; g < static_cast<int>(shared.rules.groups.size()); ++g) {
    EXPECT_EQ(cache.private_pages(g), 0);
    const auto census = cache.store().census(g, 0);
    EXPECT_EQ(census.filling + census.held, std::uint64_t{0});
    EXPECT_EQ(census.free + census.cached, static_cast<std::uint64_t>(pages));
  }
}

HKV_TEST("cache and model agree after every event, with room") { beside_the_model(64); }
HKV_TEST("cache and model agree after every event, short of pages") { beside_the_model(16); }
HKV_TEST("cache and model agree after every event, where leases pin what was promised") {
  EXPECT(beside_the_model(14, true) > events_beside_the_model / 12'000);
}
HKV_TEST("two threads with requests of their own read what they wrote, with room") { two_threads(64); }
HKV_TEST("two threads with requests of their own read what they wrote, short of pages") { two_threads(20); }

}  // namespace
}  // namespace hkv
