// SPDX-License-Identifier: Apache-2.0
// The cache and its model (ticket_model.h) side by side: each event is done to both, and all that shows compared.
//
// Thread safety: none; one object, one thread.
#pragma once
#include <memory>
#include <string>

#include "cache/cache.h"
#include "sim/ticket_draws.h"
#include "sim/ticket_model.h"
#include "sim/ticket_pair.h"
#include "testing.h"

namespace hkv::sim {

class Beside {
 public:
  Beside(const Rules& rules, std::int64_t pages, std::uint64_t seed, bool crowd)
      : crowd_(crowd),
        capacity_(pages),
        cache_(layout_of(rules, pages), 4096, std::vector<Digest16>(rules.groups.size())),
        model_(rules.unit, rules.groups),
        draws_(seed) {
    model_.stays_private = [this](const Key& key, PageId page) { return page_at(key) != page; };
  }

  std::int64_t grown = 0, refused = 0, leased = 0, short_of_pages = 0;

  // Returns: whether cache and model agree after the event.
  bool event() {
    const std::int64_t what = draws_.upto(99);
    const auto last = static_cast<std::int64_t>(pairs_.size()) - 1;
    const int ends[] = {crowd_ ? 3 : 10, crowd_ ? 4 : 12, crowd_ ? 18 : 16, crowd_ ? 44 : 28};
    if (what < ends[0]) admit();
    if (what >= ends[0] && what < ends[1]) evict();
    if (what >= ends[1] && what < ends[2]) insert();
    if (what >= ends[2] && what < ends[3]) hold();
    if (what >= ends[3] && last >= 0) at_one(pairs_[static_cast<std::size_t>(draws_.upto(last))]);
    std::erase_if(pairs_, [&](Pair& pair) { return pair.ticket == nullptr; });
    return agree();
  }
  bool end() {
    while (!held_.empty()) release();
    if (!pairs_.empty() && draws_.one_in(4)) lose(pairs_.back());
    for (Pair& pair : pairs_) close(pair);
    pairs_.clear();
    bool idle = agree() && cache_.live_tickets() == 0 && cache_.live_leases() == 0 && model_.pending == 0;
    for (int g = 0; g < model_.count(); ++g) {
      const auto census = census_of(g);
      idle = idle && cache_.quarantined_pages(g) == static_cast<std::int64_t>(lost_[g]) &&
             census.filling == 0 && census.held == 0 && cache_.private_pages(g) == 0 &&
             cache_.admission().promised(g) == 0;
    }
    return idle && cache_.admission().live_requests() == 0;
  }

 private:
  void at_one(Pair& pair) {
    const std::int64_t what = draws_.upto(71);
    if (what < 26) return grow(pair);
    if (what < 52) return advance(pair);
    if (what < 60) return rewind(pair);
    if (what < 64) return pass(pair);
    what < 65 ? fail(pair) : close(pair);
  }

  // ---- events -----------------------------------------------------------------------------------

  void admit() {
    if (pairs_.size() >= (crowd_ ? 2 : 4)) return;
    Pair pair;
    Prefix sequence = draws_.sequence(1, longest - 8);
    const Chain chain = chain_of(model_.unit, sequence);
    if (!draws_.one_in(4)) pair.lease = match(chain, sequence);
    const std::int64_t start = pair.lease == nullptr ? 0 : pair.lease->tokens;
    AdmitQuestion question;
    question.start = chain;
    question.max_tokens = crowd_ ? longest : start + 1 + draws_.upto(longest - start - 1);
    question.states = pair.states = draws_.one_in(3) ? 1 : 0;
    question.lease = pair.lease.get();
    question.formats = cache_.spec_formats();
    NotAdmitted why;
    const bool idle = pairs_.empty() && held_.empty();
    pair.ticket = cache_.admit(question, why);
    forget_evicted();
    if (pair.ticket == nullptr) {
      ++refused;
      EXPECT(!idle || why.reason == Refusal::Never || why.reason == Refusal::Lease);
      if (pair.lease != nullptr) {
        cache_.drop(std::move(pair.lease));
        model_.leases.pop_back();
        --model_.pending;
        ++model_.withdrawn;
      }
      return;
    }
    Request request;
    if (pair.lease != nullptr) {
      request.leased = model_.leases.back().held;
      model_.leases.pop_back();
      request.unsettled = true;
    }
    request.sequence = first(sequence, start);
    request.start = request.live_at = start;
    request.max_tokens = question.max_tokens;
    for (int g = 0; g < model_.count(); ++g) {
      if (model_.groups[g].live) request.live[g] = pair.ticket->hands[g].live;
    }
    model_.requests.push_back(std::move(request));
    pair.model = std::prev(model_.requests.end());
    pairs_.push_back(std::move(pair));
  }

  // Longest usable length below the limit; a lease of it where it is not 0. Specs without Prefix are not asked.
  std::int64_t lease_of(const Prefix& sequence, std::int64_t limit) {
    std::int64_t length = limit - 1;
    while (length > 0 && !model_.resumes(sequence, length)) --length;
    if (length <= 0) return 0;
    Holder& lease = model_.leases.emplace_back();
    lease.tokens = length;
    for (int g = 0; g < model_.count(); ++g) {
      for (const std::int64_t b : model_.needed(g, length))
        lease.held[{g, b}] = first(sequence, std::min((b + 1) * model_.groups[g].block, length));
    }
    ++model_.pending;
    return length;
  }
  std::unique_ptr<Lease> match(const Chain& chain, const Prefix& sequence) {
    Question question;
    question.keys = chain.get();
    question.limit = chain->tokens();
    question.formats = cache_.spec_formats();
    question.verify = Verify::Off;
    std::unique_ptr<Lease> lease;
    cache_.match(question, chain, lease);
    const std::int64_t length = lease_of(sequence, question.limit);
    EXPECT_EQ(lease == nullptr ? 0 : lease->tokens, length);
    leased += lease != nullptr;
    return lease;
  }

  void evict() {
    const Prefix sequence = draws_.sequence(1, longest);
    const auto words = model_.pinned();
    std::int64_t gone = 0;
    for (const Key& key : model_.keys(sequence)) {
      if (words.count({key.prefix, model_.prefix_group(key.group)}) == 0)
        gone += static_cast<std::int64_t>(model_.ready.erase(key));
    }
    EXPECT_EQ(cache_.evict(*chain_of(model_.unit, sequence), everything()), gone);
  }

  void hold() {  // a lease without a request: what it pins, no request was promised
    if (!held_.empty() && (held_.size() >= (crowd_ ? 12 : 6) || draws_.one_in(crowd_ ? 12 : 4)))
      return release();
    const Prefix sequence = draws_.sequence(1, longest);
    auto lease = match(chain_of(model_.unit, sequence), sequence);
    if (lease != nullptr) held_.emplace_back(std::move(lease), std::prev(model_.leases.end()));
  }
  void release() {
    cache_.settle(*held_.back().first, Settlement::Released);
    cache_.drop(std::move(held_.back().first));
    model_.leases.erase(held_.back().second);
    held_.pop_back();
    --model_.pending;
    ++model_.effective;
  }

  void insert() {
    const Prefix sequence = draws_.sequence(1, longest);
    std::unique_ptr<Fill> fill;
    try {
      fill = cache_.reserve(chain_of(model_.unit, sequence), everything(), cache_.spec_formats(), nullptr);
    } catch (const Error&) {
      return;
    }
    forget_evicted();
    for (int g = 0; g < model_.count(); ++g) {
      for (const Fill::Entry& entry : fill->entries[g]) {
        const std::int64_t end = (entry.block + 1) * model_.groups[g].block;
        const Key key{g, first(sequence, std::min(end, static_cast<std::int64_t>(sequence.size())))};
        EXPECT(model_.ready.count(key) == 0);
        model_.offer(key, entry.page);
      }
    }
    cache_.publish(*fill, everything());
    const auto added = [&](int g) {
      return !fill->entries[g].empty() && fill->entries[g].back().tip_unit >= 0;
    };
    bool tip = false;
    for (int g = 0; g < model_.count(); ++g) tip |= added(g);
    if (tip) model_.file(sequence);
    cache_.abort(*fill, false);
  }

  void grow(Pair& pair) {
    Request& r = *pair.model;
    if (r.failed) return;
    const std::int64_t tokens = draws_.one_in(3) ? draws_.upto(12) : 1 + draws_.upto(1);
    Prefix longer = r.sequence;
    longer.insert(longer.end(), r.drafts.begin(), r.drafts.end());
    draws_.lengthen(longer, tokens);
    std::vector<std::int64_t> states;
    const std::int64_t state = r.grown() + tokens - (r.grown() + tokens) % model_.unit;
    const bool asked = std::any_of(r.asked.begin(), r.asked.end(), [](const auto&) { return true; });
    if (pair.states != 0 && !asked && state > r.advanced() && draws_.one_in(2)) states.push_back(state);
    if (tokens == 0 && states.empty()) return;
    std::vector<std::vector<std::int64_t>> blocks;
    // A live group takes the page of its next checkpoint with it, where it has none.
    bool fits = r.grown() + tokens <= r.max_tokens, surely = fits;
    for (int g = 0; g < model_.count(); ++g) {
      blocks.push_back(model_.new_blocks(r, g, tokens));
      std::int64_t need = static_cast<std::int64_t>(blocks[g].size());
      for (const std::int64_t length : states) need += keeps(g, length);
      const auto census = census_of(g);
      const auto there = static_cast<std::int64_t>(census.free + census.cached);
      fits = fits && need <= there;
      surely = surely && need + (model_.groups[g].live ? 1 : 0) <= there;
    }
    bool done = true;
    try {
      cache_.grow(*pair.ticket, tokens, states);
    } catch (const OutOfPagesError&) {
      done = false;
    }
    // Pages that wait for an event are still the request's, and so are in its share.
    EXPECT(done ? fits : !surely || !pair.waiting.empty());
    const std::size_t evicted = forget_evicted();
    EXPECT(done || evicted == 0);
    short_of_pages += !fits && r.grown() + tokens <= r.max_tokens;
    if (!done) return;
    ++grown;
    for (int g = 0; g < model_.count(); ++g) {
      Ticket::Hand& hand = pair.ticket->hands[g];
      for (const std::int64_t b : blocks[g])
        take(r.own, {g, b}, hand.blocks[static_cast<std::size_t>(b - hand.base)].page);
      for (const Ticket::State& kept : hand.states) {
        if (kept.from == Ticket::State::From::Asked && r.asked.count({g, kept.tokens}) == 0)
          take(r.asked, {g, kept.tokens}, kept.page);
      }
    }
    r.drafts.assign(longer.begin() + static_cast<std::ptrdiff_t>(r.advanced()), longer.end());
    if (tokens != 0)
      r.live_at = -1, r.rewound = false;  // the step to come moves the state on, from a right one
  }

  void advance(Pair& pair) {
    Request& r = *pair.model;
    const auto drafts = static_cast<std::int64_t>(r.drafts.size());
    const std::int64_t tokens = draws_.one_in(3) ? draws_.upto(drafts) : drafts;
    if (r.failed || (tokens == 0 && r.advanced() == r.start)) return;
    const bool late = draws_.one_in(3);
    if (!late) pass(pair);
    const std::int64_t before = r.advanced(), upto = before + tokens;
    std::vector<std::int64_t> states;
    for (const auto& [place, page] : r.asked) {
      if (place.second > before && place.second <= upto && !draws_.one_in(4) &&
          (states.empty() || states.back() != place.second))
        states.push_back(place.second);
    }
    std::sort(states.begin(), states.end());
    states.erase(std::unique(states.begin(), states.end()), states.end());
    // States that are not visible yet may use the share up: then there is no page for one more.
    const bool crowded = !r.asked.empty() || !r.copied.empty() || !pair.waiting.empty();
    cache_.check_advance(*pair.ticket, upto, states);
    append(*pair.ticket, r.drafts, tokens);
    cache_.advance(*pair.ticket, upto, states, 16, !late);
    forget_evicted();
    if (!late) model_.show_copied(r, before);  // where another was first, its page is free again
    model_.note_advance(r, tokens);
    std::set<int> copied;
    for (const PageCopy& copy : pair.ticket->step_copies) {
      copied.insert(copy.group);
      EXPECT_EQ(copy.source, r.live[copy.group]);
      take(r.copied, {copy.group, upto}, copy.target);
    }
    for (int g = 0; g < model_.count(); ++g) {
      if (tokens != 0 && model_.keeps_copy(r, g)) {
        EXPECT(copied.count(g) == 1 || crowded || census_of(g).free == 0);
      } else {
        EXPECT(copied.count(g) == 0);
      }
    }
    // With an event given, the copies have run too once it passes.
    const std::int64_t seen = late ? upto : before;
    const std::set<std::int64_t> named(states.begin(), states.end());
    later(
        pair, late,
        [this, &pair_ticket = *pair.ticket, upto, seen] { cache_.settle_advance(pair_ticket, upto, seen); },
        [this, model = pair.model, upto, seen, named] { model_.settle_advance(*model, upto, seen, named); });
  }

  void rewind(Pair& pair) {
    Request& r = *pair.model;
    if (r.failed) return;
    const std::int64_t tokens = draws_.upto(static_cast<std::int64_t>(r.drafts.size()));
    bool busy = false;
    try {
      cache_.rewind(*pair.ticket,
                    static_cast<std::int64_t>(r.drafts.size()) + 1);  // what is advanced may be published
    } catch (const Error& error) {
      busy = error.code == ErrorCode::Busy;
    }
    EXPECT(busy);
    const std::size_t leaving = cache_.rewind(*pair.ticket, tokens);
    EXPECT_EQ(leaving, model_.rewind(r, tokens));
    if (tokens == 0) return;
    later(
        pair, draws_.one_in(3),
        [this, &ticket = *pair.ticket, leaving] { cache_.give_back_parked(ticket, leaving); },
        [model = pair.model, leaving] {
          model->leaving.erase(model->leaving.begin(),
                               model->leaving.begin() + static_cast<std::ptrdiff_t>(leaving));
        });
  }

  void fail(Pair& pair) {
    if (pair.model->failed) return;
    cache_.fail(*pair.ticket, 0);
    pair.model->failed = true;
    model_.settle(*pair.model, model_.failed);
  }

  void close(Pair& pair) {
    const bool keep_tip = !draws_.one_in(4);
    cache_.close(*pair.ticket);
    pass(pair);
    cache_.end(*pair.ticket, keep_tip, false);
    model_.settle(*pair.model, model_.withdrawn);
    model_.settle_advance(*pair.model, pair.model->advanced(), pair.model->advanced(), {});
    model_.publish_end(*pair.model, keep_tip);
    model_.requests.erase(pair.model);
    if (pair.lease != nullptr) cache_.drop(std::move(pair.lease));
    pair.ticket = nullptr;
  }

  // The owner is gone: what it alone could see may still be written, and stays out of the pools.
  void lose(Pair& pair) {
    for (int g = 0; g < model_.count(); ++g) {
      lost_[g] = private_pages(g).size() + (pair.ticket->hands[g].spare != no_page ? 1 : 0);
    }
    cache_.close(*pair.ticket);
    cache_.end(*pair.ticket, true, true);
    model_.settle(*pair.model, model_.withdrawn);
    model_.requests.erase(pair.model);
    for (int g = 0; g < model_.count(); ++g) lost_[g] -= private_pages(g).size();
    if (pair.lease != nullptr) cache_.drop(std::move(pair.lease));
    pairs_.pop_back();
  }

  // ---- helpers ----------------------------------------------------------------------------------

  void later(Pair& pair, bool late, std::function<void()> effect, std::function<void()> of_model) {
    pair.waiting.push_back(std::move(effect));
    pair.model->waiting.push_back(std::move(of_model));
    if (!late && pair.waiting.size() == 1) pass(pair);
  }
  // Every event of a request passes: its effects are applied, in order.
  void pass(Pair& pair) {
    for (auto& effect : pair.waiting) effect();
    for (auto& effect : pair.model->waiting) effect();
    pair.waiting.clear();
    pair.model->waiting.clear();
  }
  void take(std::map<Place, PageId>& where, Place place, PageId page) {
    bool taken = page == no_page;
    for (const PageId other : private_pages(place.first)) taken |= other == page;
    for (const auto& [key, other] : model_.ready) taken |= key.group == place.first && other == page;
    EXPECT(!taken);  // or the page was handed out while somebody has it
    where[place] = page;
  }
  bool keeps(int g, std::int64_t length) const {
    return model_.groups[g].live && length % model_.groups[g].block == 0 && model_.needs_state(g, length);
  }
  void append(Ticket& ticket, const Prefix& ids, std::int64_t n) {
    TokenView view;
    view.data = reinterpret_cast<const std::byte*>(ids.data());
    view.count = static_cast<std::int64_t>(ids.size());
    ticket.keys.append(view, 0, n);
  }
  std::vector<Selection> everything() const {
    return std::vector<Selection>(model_.groups.size(), Selection{true, {}});
  }
  BlockStore::Census census_of(int g) {
    return cache_.store().census(g, static_cast<std::uint64_t>(cache_.private_pages(g)));
  }
  // Pages of a group that only their owner may see; spares of live groups, which have no number yet, apart.
  std::vector<PageId> private_pages(int g) const {
    std::vector<PageId> pages;
    for (const Request& r : model_.requests) {
      for (const auto* part : {&r.own, &r.asked, &r.copied}) {
        for (const auto& [place, page] : *part) {
          if (place.first == g) pages.push_back(page);
        }
      }
      for (const auto& [group, page] : r.leaving) {
        if (group == g) pages.push_back(page);
      }
      if (const auto it = r.live.find(g); it != r.live.end()) pages.push_back(it->second);
    }
    return pages;
  }
  // The page that is ready there, or none.
  PageId page_at(const Key& key) {
    const auto size = static_cast<std::int64_t>(key.prefix.size());
    const auto seen = cache_.inspect(*chain_of(model_.unit, key.prefix), key.group,
                                     (size - 1) / model_.groups[key.group].block);
    return seen.phase == Phase::Ready ? seen.page : no_page;
  }
  // What the cache evicted to make room, none of which may be pinned.
  std::size_t forget_evicted() {
    const auto words = model_.pinned();
    return std::erase_if(model_.ready, [&](const auto& item) {
      const Key& key = item.first;
      if (page_at(key) != no_page) return false;
      EXPECT(words.count({key.prefix, model_.prefix_group(key.group)}) == 0);
      return true;
    });
  }
  bool agree() {
    const int before = testing::failures;
    const CacheCounters& counters = cache_.counters();
    EXPECT_EQ(counters.read(kPending), model_.pending);
    EXPECT_EQ(counters.read(kEffective), model_.effective);
    EXPECT_EQ(counters.read(kWithdrawn), model_.withdrawn);
    EXPECT_EQ(counters.read(kPublished), model_.published);
    EXPECT_EQ(counters.read(kDuplicates), model_.duplicates);
    EXPECT_EQ(counters.read(kUnplaced), model_.unplaced);
    EXPECT(cache_.store().verify() == no_descriptor);
    const auto words = model_.pinned();
    for (int g = 0; g < model_.count(); ++g) agree_on_pages(g, words);
    for (Pair& pair : pairs_) agree_on_ticket(pair);
    return testing::failures == before;
  }
  void agree_on_pages(int g, const std::set<std::pair<Prefix, bool>>& words) {
    std::int64_t held = 0, cached = 0, spares = 0;
    std::set<PageId> places;
    std::vector<PageId> pages = private_pages(g);
    const auto filling = static_cast<std::int64_t>(pages.size());
    for (const auto& [key, page] : model_.ready) {
      if (key.group != g) continue;
      ++(words.count({key.prefix, model_.prefix_group(g)}) != 0 ? held : cached);
      pages.push_back(page);
    }
    for (const PageId page : pages) EXPECT(places.insert(page).second);  // no page is in two places
    for (const Pair& pair : pairs_) spares += pair.ticket->hands[g].spare != no_page;
    const auto lost = static_cast<std::int64_t>(lost_[g]);
    const auto census = census_of(g);
    EXPECT_EQ(static_cast<std::int64_t>(census.filling), filling + spares);
    EXPECT_EQ(static_cast<std::int64_t>(census.held), held);
    EXPECT_EQ(static_cast<std::int64_t>(census.cached), cached);
    EXPECT_EQ(static_cast<std::int64_t>(census.free), capacity_ - lost - filling - spares - held - cached);
  }
  void agree_on_ticket(const Pair& pair) {
    const Request& r = *pair.model;
    EXPECT_EQ(pair.ticket->advanced, r.advanced());
    EXPECT_EQ(pair.ticket->grown, r.grown());
    std::vector<std::uint32_t> got;
    for (int g = 0; g < model_.count(); ++g) {
      const std::int64_t block = model_.groups[g].block;
      std::vector<std::uint32_t> expected(static_cast<std::size_t>((r.grown() + block - 1) / block),
                                          none_u32);
      const auto note = [&](std::int64_t b, PageId page) {
        expected[static_cast<std::size_t>(b)] = index(page);
      };
      auto pinned = r.leased;
      pinned.insert(r.held.begin(), r.held.end());
      for (const auto& [place, prefix] : pinned) {
        if (place.first == g && !model_.groups[g].live) note(place.second, model_.ready.at({g, prefix}));
      }
      for (const auto& [place, page] : r.own) {
        if (place.first == g) note(place.second, page);
      }
      for (const auto& [place, page] : r.asked) {
        if (place.first == g) note(place.second / block - 1, page);
      }
      cache_.page_ids(*pair.ticket, g, got);
      if (model_.groups[g].live) {  // pages of other lengths may be shown too
        for (std::size_t b = 0; b < got.size(); ++b) {
          if (expected[b] == none_u32) got[b] = none_u32;
        }
      }
      EXPECT(got == expected);
    }
  }

  bool crowd_;  // of leases without a request, which pin what requests were promised
  std::int64_t capacity_;
  std::vector<std::pair<std::unique_ptr<Lease>, std::list<Holder>::iterator>> held_;
  std::map<int, std::size_t> lost_;  // pages of a group that a lost request took with it
  HybridCache cache_;
  CacheModel model_;
  Draws draws_;
  std::vector<Pair> pairs_;
};

}  // namespace hkv::sim
