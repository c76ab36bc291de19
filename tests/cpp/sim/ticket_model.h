// SPDX-License-Identifier: Apache-2.0
// A cache with running requests as the contract reads: one thread, maps, nothing clever. The model says where
// every page must be, never which one is handed out; a page is known by the number the cache gave it.
//
// Thread safety: none.
#pragma once
#include <algorithm>
#include <compare>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "block/store.h"
#include "layout/coverage.h"

namespace hkv::sim {

using Prefix = std::vector<std::uint32_t>;
using Place = std::pair<int, std::int64_t>;  // group and own block, or length of a state

// The page that a group records at the end of a prefix.
struct Key {
  int group;
  Prefix prefix;
  auto operator<=>(const Key&) const = default;
};

struct GroupRule {
  Rule rule;
  std::int64_t parameter, block;
  bool live;  // one live page, overwritten by every step
};

inline Prefix first(const Prefix& sequence, std::int64_t tokens) {
  return {sequence.begin(), sequence.begin() + static_cast<std::ptrdiff_t>(tokens)};
}

// What pins pages: a lease, or a request.
struct Holder {
  std::int64_t tokens = 0;
  std::map<Place, Prefix> held;
};

struct Request : Holder {
  Prefix sequence, drafts;  // advanced; grown beyond
  std::int64_t start = 0, max_tokens = 0, live_at = -1;
  std::map<Place, Prefix> leased;  // as `held`: what its lease pinned
  bool unsettled = false, rewound = false, failed = false;
  std::map<Place, PageId> own, asked, copied;
  std::set<Place> late;  // of own: another was first
  std::map<int, PageId> live;
  std::vector<std::pair<int, PageId>> leaving;
  std::list<std::function<void()>> waiting;  // effects of an event that has not passed
  std::int64_t advanced() const { return static_cast<std::int64_t>(sequence.size()); }
  std::int64_t grown() const { return advanced() + static_cast<std::int64_t>(drafts.size()); }
};

class CacheModel {
 public:
  CacheModel(std::int64_t unit_tokens, std::vector<GroupRule> rules)
      : unit(unit_tokens), groups(std::move(rules)) {}

  std::int64_t unit;
  std::vector<GroupRule> groups;
  std::map<Key, PageId> ready;
  std::map<Prefix, std::int64_t> filed;  // tips that match can find
  std::list<Holder> leases;
  std::list<Request> requests;
  std::function<bool(const Key&, PageId)> stays_private;  // asked of the cache
  std::int64_t published = 0, duplicates = 0, unplaced = 0;
  std::int64_t pending = 0, effective = 0, withdrawn = 0, failed = 0;

  int count() const { return static_cast<int>(groups.size()); }
  bool prefix_group(int g) const { return groups[g].rule == Rule::Prefix; }
  // First token that the next query at `length` still reads; `length` itself where it reads none.
  std::int64_t begins(int g, std::int64_t length) const {
    const std::int64_t n = groups[g].parameter;
    if (groups[g].rule == Rule::Window) return length - std::min(length, n - 1);
    if (groups[g].rule == Rule::Chunk) return length / n * n;
    if (groups[g].rule == Rule::Checkpoint) return n != 0 && length % n == 0 ? length : length - 1;
    return 0;
  }
  bool needs_state(int g, std::int64_t length) const {
    return groups[g].rule != Rule::Checkpoint || begins(g, length) < length;
  }
  std::vector<std::int64_t> needed(int g, std::int64_t length) const {
    std::vector<std::int64_t> blocks;
    if (begins(g, length) >= length) return blocks;
    for (std::int64_t b = begins(g, length) / groups[g].block; b * groups[g].block < length; ++b)
      blocks.push_back(b);
    return blocks;
  }
  std::int64_t end_of(const Place& place) const { return (place.second + 1) * groups[place.first].block; }

  // Groups of one class that record at one prefix share a word, and with it every pin.
  std::set<std::pair<Prefix, bool>> pinned() const {
    std::set<std::pair<Prefix, bool>> words;
    const auto note = [&](const std::map<Place, Prefix>& held) {
      for (const auto& [place, prefix] : held) words.insert({prefix, prefix_group(place.first)});
    };
    for (const Holder& lease : leases) note(lease.held);
    for (const Request& r : requests) note(r.held), note(r.leased);
    return words;
  }

  std::vector<Key> keys(const Prefix& sequence) const {
    std::vector<Key> found;
    const auto size = static_cast<std::int64_t>(sequence.size());
    for (int g = 0; g < count(); ++g) {
      for (std::int64_t end = groups[g].block; end <= size; end += groups[g].block)
        found.push_back({g, first(sequence, end)});
      if (size % unit != 0) found.push_back({g, sequence});
    }
    return found;
  }
  bool resumes(const Prefix& sequence, std::int64_t length) const {
    const bool tip = length % unit != 0;
    if (tip && filed.count(first(sequence, length)) == 0) return false;
    for (int g = 0; g < count(); ++g) {
      if (!tip && length % groups[g].block != 0) return false;
      for (const std::int64_t b : needed(g, length)) {
        if (ready.count({g, first(sequence, std::min((b + 1) * groups[g].block, length))}) == 0) return false;
      }
    }
    return true;
  }
  bool offer(const Key& key, PageId page) {
    const bool taken = ready.emplace(key, page).second;
    ++(taken ? published : duplicates);
    return taken;
  }
  // A tip gets one of its parent's four places. Where none is free an unpinned one goes; which, the cache is asked.
  void file(const Prefix& tip) {
    const auto words = pinned();
    const Prefix parent = first(tip, static_cast<std::int64_t>(tip.size()) / unit * unit);
    std::set<Prefix> others;
    for (const auto& [key, page] : ready) {
      const auto size = static_cast<std::int64_t>(key.prefix.size());
      if (key.prefix != tip && size > std::ssize(parent) && size < std::ssize(parent) + unit &&
          first(key.prefix, std::ssize(parent)) == parent && filed.count(key.prefix) != 0)
        others.insert(key.prefix);
    }
    const auto gave_way = [&](const Prefix& other) {
      return words.count({other, true}) + words.count({other, false}) == 0 &&
             std::any_of(ready.begin(), ready.end(), [&](const auto& it) {
               return it.first.prefix == other && stays_private(it.first, it.second);
             });
    };
    filed[tip] = published;
    if (others.size() < 4) return;
    if (const auto gone = std::find_if(others.begin(), others.end(), gave_way); gone != others.end()) {
      std::erase_if(ready, [&](const auto& it) { return it.first.prefix == *gone; });
    } else {
      ++unplaced;
      filed.erase(tip);
    }
  }

  // Blocks of a paged group whose first page a growth takes.
  std::vector<std::int64_t> new_blocks(const Request& r, int g, std::int64_t tokens) const {
    std::vector<std::int64_t> blocks;
    const std::int64_t block = groups[g].block;
    if (groups[g].live || tokens == 0) return blocks;
    const std::int64_t from = r.grown() == r.start ? r.start / block : (r.grown() + block - 1) / block;
    for (std::int64_t b = from; b * block < r.grown() + tokens; ++b) {
      if (r.own.count({g, b}) == 0) blocks.push_back(b);
    }
    return blocks;
  }
  void note_advance(Request& r, std::int64_t tokens) {
    r.sequence.insert(r.sequence.end(), r.drafts.begin(),
                      r.drafts.begin() + static_cast<std::ptrdiff_t>(tokens));
    r.drafts.erase(r.drafts.begin(), r.drafts.begin() + static_cast<std::ptrdiff_t>(tokens));
    if (tokens != 0 || r.rewound) r.live_at = r.drafts.empty() && !r.rewound ? r.advanced() : -1;
    if (r.unsettled && tokens != 0) settle(r, effective);
  }
  void settle(Request& r, std::int64_t& counter) {
    if (!r.unsettled) return;
    r.unsettled = false;
    --pending;
    ++counter;
  }
  // Whether an advance that ended here keeps the state of the live page.
  bool keeps_copy(const Request& r, int g) const {
    return groups[g].live && r.live_at == r.advanced() && r.advanced() % groups[g].block == 0 &&
           needs_state(g, r.advanced()) && r.asked.count({g, r.advanced()}) == 0;
  }
  void show_copied(Request& r, std::int64_t upto) {
    for (auto it = r.copied.begin(); it != r.copied.end();) {
      const auto& [place, page] = *it;
      if (place.second > upto) {
        ++it;
        continue;
      }
      if (!r.failed) offer({place.first, first(r.sequence, place.second)}, page);
      it = r.copied.erase(it);
    }
  }
  void publish_word(Request& r, const Prefix& prefix, const std::vector<Place>& places) {
    std::vector<Place> mine;
    for (const Place& place : places) {
      if (ready.count({place.first, prefix}) == 0) mine.push_back(place);
    }
    // A pin of this word would hold another's page, which may be promised.
    const bool stay = !mine.empty() && mine.size() < places.size() &&
                      stays_private({mine[0].first, prefix}, r.own.at(mine[0]));
    for (const Place& place : places) {
      if (stay || !offer({place.first, prefix}, r.own.at(place))) {
        r.late.insert(place);
      } else {
        r.held[place] = prefix;
        r.own.erase(place);
      }
    }
  }
  void settle_advance(Request& r, std::int64_t upto, std::int64_t copied_upto,
                      const std::set<std::int64_t>& states) {
    show_copied(r, copied_upto);
    std::map<std::pair<Prefix, bool>, std::vector<Place>> words;
    for (const auto& [place, page] : r.own) {
      if (end_of(place) <= upto && !r.failed && r.late.count(place) == 0)
        words[{first(r.sequence, end_of(place)), prefix_group(place.first)}].push_back(place);
    }
    for (const auto& [word, places] : words) publish_word(r, word.first, places);
    for (auto it = r.asked.begin(); it != r.asked.end();) {
      const auto& [place, page] = *it;
      const bool passed = place.second <= upto;
      if (passed && !r.failed && states.count(place.second) != 0)
        offer({place.first, first(r.sequence, place.second)}, page);
      it = passed ? r.asked.erase(it) : std::next(it);
    }
    const auto over = [&](const auto& item) { return end_of(item.first) <= begins(item.first.first, upto); };
    std::erase_if(r.held, over);
    std::erase_if(r.own, over);
    if (upto == r.start) return;
    // A lease lets go of a word once it needs no page of it: states and partial pages were copied by now.
    std::set<std::pair<Prefix, bool>> needed_words;
    for (const auto& [place, prefix] : r.leased) {
      const bool whole =
          static_cast<std::int64_t>(prefix.size()) == end_of(place) && !groups[place.first].live;
      if (whole && end_of(place) > begins(place.first, upto))
        needed_words.insert({prefix, prefix_group(place.first)});
    }
    std::erase_if(r.leased, [&](const auto& item) {
      return needed_words.count({item.second, prefix_group(item.first.first)}) == 0;
    });
  }
  // Returns: pages that leave, which stay out of the pools until give_back.
  std::size_t rewind(Request& r, std::int64_t tokens) {
    if (tokens == 0) return 0;
    const auto before = r.leaving.size();
    r.drafts.resize(r.drafts.size() - static_cast<std::size_t>(tokens));
    r.rewound = true;
    r.live_at = -1;
    const auto leave = [&](std::map<Place, PageId>& pages, bool states) {
      std::erase_if(pages, [&](const auto& item) {
        const auto& [place, page] = item;
        const bool goes =
            states ? place.second > r.grown() : place.second * groups[place.first].block >= r.grown();
        if (goes) r.leaving.push_back({place.first, page});
        return goes;
      });
    };
    leave(r.own, false);
    leave(r.asked, true);
    return r.leaving.size() - before;
  }
  // What a close publishes: the partial last unit, all of it or nothing, or the states at an aligned length.
  void publish_end(Request& r, bool keep_tip) {
    const bool tip = r.advanced() % unit != 0;
    if (r.failed || r.advanced() == r.start || (tip && !keep_tip)) return;
    std::map<int, PageId> pages;
    for (int g = 0; g < count(); ++g) {
      const Place place{g, r.advanced() / groups[g].block};
      if (groups[g].live && (tip || r.advanced() % groups[g].block == 0) && needs_state(g, r.advanced())) {
        if (r.live_at != r.advanced()) return;
        pages[g] = r.live[g];
      } else if (!groups[g].live && tip) {
        if (const auto it = r.own.find(place); it != r.own.end()) pages[g] = it->second;
      }
    }
    bool any = false;
    for (const auto& [g, page] : pages) any |= offer({g, r.sequence}, page);
    if (any && tip) file(r.sequence);
  }

  // ---- pages ------------------------------------------------------------------------------------
};

}  // namespace hkv::sim
