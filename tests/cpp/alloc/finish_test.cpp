// SPDX-License-Identifier: Apache-2.0
// Every admitted request can finish: a small world of words, pins, leases, fills and evictions, in which whoever
// was admitted is run to its end at any moment, in any order, with all others standing still.
//
// The world is plain maps. It follows the rules that the ledger's header asks of tickets; the last tests
// break one of them and see requests starve.
// One thread: left out under ThreadSanitizer.
#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "alloc/admission.h"
#include "testing.h"

namespace hkv {
namespace {

constexpr std::int64_t longest = 32;  // tokens of a document

struct Word {
  int pins = 0;
  std::set<int> present;  // groups with a ready page
};
using Place = std::pair<int, std::int64_t>;  // document, end in tokens

struct Lease {
  int document = 0;
  std::int64_t tokens = 0;
  std::vector<std::pair<bool, Place>> pinned;  // whether of Prefix groups, word
  std::vector<std::int64_t> unowned;           // a group
};

struct Fill {
  int document = 0;
  std::vector<std::vector<std::int64_t>> ends;  // a group: of its blocks
};

struct Ticket {
  int document = 0;
  std::int64_t start = 0, computed = 0, grown = 0, max = 1;
  AdmissionLedger::Share share;
  std::vector<std::set<std::int64_t>> own, published, leased;  // a group: ends of blocks
  std::map<std::int64_t, int> pins;   // of B, by end: one a group that holds a page there
  std::vector<std::int64_t> history;  // ends of pinned H words
  std::vector<std::int64_t> pending;  // a group: end of a state not yet published, or 0
  std::vector<int> spare;             // a group
};

struct Habits {
  bool pins_beside_own = false;  // breaks the rule of 4: pins a word beside its own page of the same block
  bool blind_fills = false;      // fills without ticket take what is promised
};

class World {
 public:
  World(unsigned seed, Habits habits)
      : random_(seed), habits_(habits), layout_(make(seed)), ledger_(layout_, limits()) {
    for (int g = 0; g < groups(); ++g) capacity_.push_back(any(4, 16)), free_.push_back(capacity_.back());
    unowned_.assign(capacity_.size(), 0);
  }
  int starved = 0, admitted = 0, leased = 0, evicted = 0, beside = 0, refused = 0;

  void live(int events) {
    for (int event = 0; event < events; ++event) {
      switch (any(0, 9)) {
        case 0:
        case 1: admit(); break;
        case 2:
          if (leases_.size() < 3) match(any(0, 2), longest);
          break;
        case 3:
          if (!leases_.empty()) cancel(any(0, static_cast<int>(leases_.size()) - 1));
          break;
        case 4: fill(); break;
        case 5:
          if (!fills_.empty()) end_fill();
          break;
        case 6:
          if (!tickets_.empty() && any(0, 3) == 0) close(any(0, static_cast<int>(tickets_.size()) - 1));
          break;
        default:
          if (!tickets_.empty()) step(*tickets_[any(0, static_cast<int>(tickets_.size()) - 1)], false);
      }
    }
  }

  // Leases without a share end; then the tickets finish one after the other, beside fills that do not.
  void finish() {
    while (!leases_.empty()) cancel(0);
    while (!fills_.empty() && any(0, 1) != 0) end_fill();
    std::shuffle(tickets_.begin(), tickets_.end(), random_);
    while (!tickets_.empty()) {
      Ticket& ticket = *tickets_.back();
      while (ticket.computed < ticket.max && step(ticket, true)) {
      }
      close(static_cast<int>(tickets_.size()) - 1);
    }
    while (!fills_.empty()) end_fill();
    for (int g = 0; g < groups(); ++g) {
      EXPECT_EQ(ledger_.promised(g) + ledger_.caps(g) + unowned_[g], 0);
      EXPECT_EQ(free_and_evictable(g), capacity_[g]);
    }
  }

 private:
  static Group group_of(Coverage coverage, std::int64_t block) {
    Group g;
    g.coverage = coverage;
    g.block_units = block;
    return g;
  }
  static Layout make(unsigned seed) {
    const bool both = seed % 2 == 0, live = seed % 3 != 0;
    std::vector<Group> groups{group_of({Rule::Prefix, 0}, 2),
                              group_of({Rule::Prefix, 0}, seed % 5 == 0 ? 4 : 2),
                              group_of({Rule::Window, 4}, 2)};
    if (both)
      groups.push_back(group_of({seed % 4 == 0 ? Rule::Window : Rule::Chunk, 12}, seed % 7 == 0 ? 4 : 2));
    if (live) groups.push_back(group_of({Rule::Checkpoint, 0}, 4));
    return make_layout(1, groups);
  }
  AdmissionLimits limits() { return {.step_tokens = step_ = any(1, 10)}; }
  int any(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  int groups() const { return static_cast<int>(layout_.groups.size()); }
  std::int64_t block(int g) const { return layout_.groups[g].block_units; }
  bool history(int g) const { return layout_.groups[g].prefix(); }
  bool live_group(int g) const { return is_live_group(layout_.groups[g], block(g)); }
  Word& word(bool prefix, Place at) { return words_[prefix][at]; }

  std::int64_t free_and_evictable(int g) {
    std::int64_t pages = free_[g];
    for (const auto& [at, w] : words_[history(g)]) pages += w.pins == 0 && w.present.contains(g) ? 1 : 0;
    return pages;
  }
  std::vector<AdmissionLedger::Room> rooms() {
    std::vector<AdmissionLedger::Room> rooms;
    for (int g = 0; g < groups(); ++g)
      rooms.push_back({capacity_[g], free_and_evictable(g), unowned_[g], ledger_.takes(g)});
    return rooms;
  }
  bool take(int g) {
    if (free_[g] == 0) {
      std::vector<Word*> victims;
      for (auto& [at, w] : words_[history(g)])
        if (w.pins == 0 && w.present.contains(g)) victims.push_back(&w);
      if (victims.empty()) return false;
      victims[any(0, static_cast<int>(victims.size()) - 1)]->present.erase(g);
      ++free_[g], ++evicted;
    }
    --free_[g];
    return true;
  }
  bool take(Ticket& t, int g) {
    if (!take(g)) return false;
    ledger_.took(t.share, g, 1);
    return true;
  }
  void give(Ticket& t, int g) {
    ledger_.gave(t.share, g, 1);
    ++free_[g];
  }

  // ---- leases and fills without a share ---------------------------------------------------------

  bool usable(int document, std::int64_t t) {
    for (int g = 0; g < groups(); ++g) {
      const BlockSpan span = needed_blocks(layout_.groups[g].coverage, block(g), t);
      for (std::int64_t b = span.from; b < span.to; ++b)
        if (!word(history(g), {document, (b + 1) * block(g)}).present.contains(g)) return false;
    }
    return true;
  }
  void match(int document, std::int64_t below) {
    std::int64_t t = (below - 1) / layout_.step_units * layout_.step_units;
    while (t > 0 && !usable(document, t)) t -= layout_.step_units;
    if (t <= 0) return;
    Lease lease{document, t, {}, std::vector<std::int64_t>(capacity_.size(), 0)};
    std::set<std::pair<bool, Place>> wanted;
    for (int g = 0; g < groups(); ++g) {
      const BlockSpan span = needed_blocks(layout_.groups[g].coverage, block(g), t);
      for (std::int64_t b = span.from; b < span.to; ++b)
        wanted.insert({history(g), {document, (b + 1) * block(g)}});
    }
    for (const auto& [prefix, at] : wanted) {
      Word& w = word(prefix, at);
      ++w.pins;
      lease.pinned.push_back({prefix, at});
      for (int g = 0; g < groups(); ++g)
        lease.unowned[g] += !prefix && !history(g) && at.second % block(g) == 0 ? 1 : 0;
    }
    for (int g = 0; g < groups(); ++g) unowned_[g] += lease.unowned[g];
    leases_.push_back(std::move(lease));
  }
  void cancel(int index) {
    for (const auto& [prefix, at] : leases_[index].pinned) --word(prefix, at).pins;
    for (int g = 0; g < groups(); ++g) unowned_[g] -= leases_[index].unowned[g];
    leases_.erase(leases_.begin() + index);
  }
  void fill() {
    Fill fill{any(0, 2), std::vector<std::vector<std::int64_t>>(capacity_.size())};
    std::vector<std::int64_t> pages(capacity_.size(), 0);
    for (int g = 0; g < groups(); ++g) {
      for (std::int64_t end = block(g); end <= any(2, 12); end += block(g))
        if (!word(history(g), {fill.document, end}).present.contains(g)) fill.ends[g].push_back(end);
      pages[g] = static_cast<std::int64_t>(fill.ends[g].size());
      if (habits_.blind_fills && pages[g] > free_and_evictable(g)) return;
    }
    AdmissionLedger::Share share;
    int group = -1;
    if (!habits_.blind_fills && !ledger_.admit_fill(share, pages, rooms(), group)) return;
    for (int g = 0; g < groups(); ++g) {
      for (std::int64_t i = 0; i < pages[g]; ++i) EXPECT(take(g));
      if (share.live) ledger_.took(share, g, pages[g]);
      unowned_[g] += pages[g];
    }
    if (share.live) ledger_.end(share);
    fills_.push_back(std::move(fill));
  }
  void end_fill() {
    const Fill fill = fills_.back();
    fills_.pop_back();
    for (int g = 0; g < groups(); ++g) {
      for (const std::int64_t end : fill.ends[g]) {
        --unowned_[g];
        if (!word(history(g), {fill.document, end}).present.insert(g).second) ++free_[g];
      }
    }
  }

  // ---- tickets ----------------------------------------------------------------------------------

  void admit() {
    auto t = std::make_unique<Ticket>();
    t->document = any(0, 2);
    t->max = any(1, static_cast<int>(longest));
    const auto before = leases_.size();
    if (any(0, 3) != 0) match(t->document, t->max);
    Lease lease;
    const bool hit = leases_.size() > before;
    std::vector<std::int64_t> extra(capacity_.size(), 0);
    if (hit) {
      lease = leases_.back();
      t->start = t->computed = t->grown = lease.tokens;
      for (int g = 0; g < groups(); ++g) unowned_[g] -= lease.unowned[g], extra[g] = live_group(g) ? 1 : 0;
    }
    int group = -1;
    const Refusal refusal = ledger_.admit(t->share, t->max, t->start, 0, extra, rooms(), group);
    for (int g = 0; g < groups() && hit; ++g) unowned_[g] += lease.unowned[g];
    if (refusal != Refusal::None) {
      ++refused;
      if (hit) cancel(static_cast<int>(leases_.size()) - 1);
      return;
    }
    ++admitted, leased += hit ? 1 : 0;
    begin(*t, hit ? &lease : nullptr);
    tickets_.push_back(std::move(t));
  }
  // The ticket takes the lease over, and its live pages.
  void begin(Ticket& t, const Lease* lease) {
    t.own = t.published = t.leased = std::vector<std::set<std::int64_t>>(capacity_.size());
    t.pending.assign(capacity_.size(), 0);
    t.spare.assign(capacity_.size(), 0);
    if (lease != nullptr) {
      for (const auto& [prefix, at] : lease->pinned)
        if (prefix) t.history.push_back(at.second), ++word(true, at).pins;
      for (int g = 0; g < groups(); ++g) {
        if (history(g)) continue;
        const BlockSpan span = needed_blocks(layout_.groups[g].coverage, block(g), t.start);
        for (std::int64_t b = span.from; b < span.to; ++b)
          t.leased[g].insert((b + 1) * block(g)), pin(t, (b + 1) * block(g));
      }
      cancel(static_cast<int>(leases_.size()) - 1);
    }
    for (int g = 0; g < groups(); ++g) {
      if (!live_group(g)) continue;
      t.spare[g] = keeps_states(layout_.groups[g], block(g), {t.max, t.start, step_, 0}) ? 1 : 0;
      for (int page = 0; page <= t.spare[g]; ++page) note(take(t, g));
    }
  }
  void pin(Ticket& t, std::int64_t end) {
    if (t.pins[end]++ == 0) ++word(false, {t.document, end}).pins;
  }
  void unpin(Ticket& t, std::int64_t end) {
    if (--t.pins[end] == 0) --word(false, {t.document, end}).pins;
  }
  void note(bool could) { starved += could ? 0 : 1; }

  // One step: grow, then advance over a part of it (all of it where to_end). Returns: whether it could go on.
  bool step(Ticket& t, bool to_end) {
    const std::int64_t most = std::min(t.max - t.grown, step_ - (t.grown - t.computed));
    const std::int64_t grown =
        t.grown + (to_end ? most : any(0, static_cast<int>(std::max<std::int64_t>(most, 0))));
    for (int g = 0; g < groups(); ++g) {
      if (live_group(g)) continue;
      for (std::int64_t end = t.start / block(g) * block(g) + block(g); end < grown + block(g);
           end += block(g)) {
        if (end <= (t.grown + block(g) - 1) / block(g) * block(g) && t.grown > t.start) continue;
        if (t.own[g].contains(end) || t.published[g].contains(end)) continue;
        if (take(t, g)) {
          t.own[g].insert(end);
        } else {
          starved += leases_.empty() ? 1 : 0;  // one that began since may stand in the way, nobody else
          return !leases_.empty();
        }
      }
    }
    t.grown = grown;
    if (to_end || any(0, 1) != 0)
      advance(t, to_end ? t.grown : any(static_cast<int>(t.computed), static_cast<int>(t.grown)));
    return true;
  }
  void advance(Ticket& t, std::int64_t computed) {
    if (computed == t.computed) return;
    for (int g = 0; g < groups(); ++g) {
      if (live_group(g)) keep_state(t, g);
      if (live_group(g) && !t.leased[g].empty()) unpin(t, *t.leased[g].begin()), t.leased[g].clear();
    }
    for (std::int64_t end = 1; end <= computed; ++end)
      for (const bool prefix : {false, true}) publish(t, prefix, end);
    t.computed = computed;
    for (int g = 0; g < groups(); ++g) {
      if (history(g)) continue;
      if (live_group(g)) {
        if (t.spare[g] != 0 && computed % block(g) == 0) t.pending[g] = computed;
        continue;
      }
      const std::int64_t from = needed_span(layout_.groups[g].coverage, computed).from;
      std::erase_if(t.own[g], [&](std::int64_t end) { return end <= from && (give(t, g), true); });
      std::erase_if(t.published[g], [&](std::int64_t end) {
        if (end > from) return false;
        ledger_.gave(t.share, g, 1);
        unpin(t, end);
        return true;
      });
      std::erase_if(t.leased[g], [&](std::int64_t end) { return end <= from && (unpin(t, end), true); });
    }
  }
  // A pending state is published, unpinned, and the spare is taken anew.
  void keep_state(Ticket& t, int g) {
    if (t.pending[g] == 0) return;
    ledger_.gave(t.share, g, 1);
    if (!word(false, {t.document, t.pending[g]}).present.insert(g).second) ++free_[g];
    t.pending[g] = 0;
    if (!take(t, g)) note(!leases_.empty()), t.spare[g] = 0;
  }
  void publish(Ticket& t, bool prefix, std::int64_t end) {
    Word& w = word(prefix, {t.document, end});
    std::set<int> mine, theirs;
    for (int g = 0; g < groups(); ++g) {
      if (history(g) != prefix || !t.own[g].contains(end)) continue;
      mine.insert(g);
      if (w.present.contains(g)) theirs.insert(g);
    }
    if (mine.empty() || mine == theirs) return;
    if (!may_pin_beside(t, w, theirs, prefix)) return;  // all stay private
    for (const int g : theirs) mine.erase(g);
    for (const int g : mine) {
      w.present.insert(g);
      t.own[g].erase(end);
      t.published[g].insert(end);
      if (!prefix) pin(t, end);
    }
    if (prefix) ++w.pins, t.history.push_back(end);
  }
  // The pin will hold pages of others too.
  bool may_pin_beside(Ticket& t, const Word& w, const std::set<int>& theirs, bool prefix) {
    if (theirs.empty() || habits_.pins_beside_own) return true;
    std::vector<int> widened;
    for (const int g : theirs) {
      if (!ledger_.widen(t.share, g, {capacity_[g], free_and_evictable(g)}, prefix && w.pins != 0)) break;
      widened.push_back(g);
    }
    const bool all = widened.size() == theirs.size();
    for (const int g : widened) {
      if (!all) ledger_.narrow(t.share, g);
      if (all && prefix) ledger_.took(t.share, g, 1);
    }
    beside += all ? 1 : 0;
    return all;
  }
  void close(int index) {
    Ticket& t = *tickets_[index];
    for (int g = 0; g < groups(); ++g) {
      while (!t.own[g].empty()) give(t, g), t.own[g].erase(t.own[g].begin());
      for (const auto* held : {&t.published[g], &t.leased[g]})
        for (const std::int64_t end : *held)
          if (!history(g)) unpin(t, end);
      if (live_group(g))
        for (std::int64_t page = t.share.taken[g].load(); page > 0; --page) give(t, g);
    }
    for (const std::int64_t end : t.history) --word(true, {t.document, end}).pins;
    ledger_.end(t.share);
    tickets_.erase(tickets_.begin() + index);
  }

  std::mt19937 random_;
  Habits habits_;
  std::int64_t step_ = 1;
  Layout layout_;
  AdmissionLedger ledger_;
  std::vector<std::int64_t> capacity_, free_, unowned_;
  std::map<Place, Word> words_[2];
  std::vector<Lease> leases_;
  std::vector<Fill> fills_;
  std::vector<std::unique_ptr<Ticket>> tickets_;
};

struct Tally {
  int starved = 0, admitted = 0, leased = 0, evicted = 0, beside = 0, refused = 0;
};
Tally run(int worlds, Habits habits) {
  Tally tally;
  for (int seed = 0; seed < worlds; ++seed) {
    World world(static_cast<unsigned>(seed), habits);
    for (int round = 0; round < 4; ++round) {
      world.live(60);
      world.finish();
    }
    tally.starved += world.starved, tally.admitted += world.admitted, tally.leased += world.leased;
    tally.evicted += world.evicted, tally.beside += world.beside, tally.refused += world.refused;
  }
  return tally;
}

HKV_TEST("every admitted request finishes, in any order, at any moment") {
  const Tally tally = run(3000, {});
  EXPECT_EQ(tally.starved, 0);
  EXPECT(tally.admitted > 10'000);
  EXPECT(tally.leased > 1'000);
  EXPECT(tally.evicted > 10'000);
  EXPECT(tally.beside > 1'000);
  EXPECT(tally.refused > 5'000);
}

HKV_TEST("a pin beside an own page of the same block starves somebody") {
  EXPECT(run(400, {.pins_beside_own = true}).starved > 0);
}

HKV_TEST("a fill that takes what is promised starves somebody") {
  EXPECT(run(100, {.blind_fills = true}).starved > 0);
}

}  // namespace
}  // namespace hkv
