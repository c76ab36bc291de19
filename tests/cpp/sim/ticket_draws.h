// SPDX-License-Identifier: Apache-2.0
// What the programs about running requests draw from a seed: kinds of models, sequences of one tree, lengths of runs.
//
// Thread safety: none; one Draws, one thread.
#pragma once
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cache/cache.h"
#include "sim/ticket_model.h"

namespace hkv::sim {

using Chain = std::shared_ptr<const KeyChain>;

constexpr std::int64_t longest = 40;

struct Rules {
  std::int64_t unit;
  std::vector<GroupRule> groups;
};
// A window page of as many rows as the window needs is live: it keeps the trailing rows alone.
inline const Rules kinds[] = {
    {4, {{Rule::Prefix, 0, 4, false}}},
    {4, {{Rule::Prefix, 0, 4, false}, {Rule::Window, 7, 4, false}}},
    {4, {{Rule::Prefix, 0, 8, false}, {Rule::Window, 6, 4, false}, {Rule::Chunk, 12, 4, false}}},
    {4,
     {{Rule::Prefix, 0, 8, false},
      {Rule::Prefix, 0, 8, false},
      {Rule::Window, 5, 8, true},
      {Rule::Checkpoint, 0, 8, true},
      {Rule::Checkpoint, 16, 8, true}}},
    {4, {{Rule::Prefix, 0, 4, false}, {Rule::Window, 9, 8, false}, {Rule::Checkpoint, 0, 8, true}}},
};

// What the two threads run: a window, and a state that a step overwrites.
inline const Rules threads_kind = {
    4, {{Rule::Prefix, 0, 4, false}, {Rule::Window, 7, 4, false}, {Rule::Checkpoint, 0, 8, true}}};

inline Layout layout_of(const Rules& rules, std::int64_t pages) {
  std::vector<Group> groups;
  for (const GroupRule& rule : rules.groups) {
    Group& g = groups.emplace_back();
    g.name = "g" + std::to_string(groups.size() - 1);
    g.coverage = {rule.rule, rule.parameter};
    g.kind = rule.rule == Rule::Prefix ? 0 : rule.rule == Rule::Checkpoint ? 1 : 2;
    g.block_units = rule.block / rules.unit;
    g.rows_per_page = rule.live && rule.rule == Rule::Window ? rule.parameter - 1 : 0;
    g.pages = pages;
    g.page_bytes = 64;
  }
  return make_layout(rules.unit, std::move(groups));
}

inline Chain chain_of(std::int64_t unit, const Prefix& ids, Key128 identity = {}) {
  const std::string_view parts[identity_parts] = {"tickets", "", "", "", ""};
  const auto owned = std::make_shared<const Prefix>(ids);
  TokenView view;
  view.data = reinterpret_cast<const std::byte*>(owned->data());
  view.count = static_cast<std::int64_t>(owned->size());
  view.owner = owned;
  return KeyChain::build(KeyChain::identity_root(unit, parts), unit, view, {}, identity);
}

inline std::uint64_t seed_of_run() {
  const char* given = std::getenv("HKV_SEED");
  const bool soak = std::getenv("HYBRIDKV_SOAK") != nullptr;
  return given != nullptr ? std::strtoull(given, nullptr, 10) : soak ? std::random_device{}() : 1;
}
inline std::int64_t events_of_run(std::int64_t usual, std::int64_t soak) {
  const char* given = std::getenv("HKV_EVENTS");
  return given != nullptr                          ? std::strtoll(given, nullptr, 10)
         : std::getenv("HYBRIDKV_SOAK") != nullptr ? soak
                                                   : usual;
}

// Sequences of one tree: few choices, so that prefixes are shared.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : random_(seed) {}
  std::int64_t upto(std::int64_t last) {  // [0, last]
    return last <= 0 ? 0 : static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(last + 1));
  }
  bool one_in(std::int64_t n) { return upto(n - 1) == 0; }
  void lengthen(Prefix& sequence, std::int64_t tokens) {
    for (; tokens > 0; --tokens) {
      const auto at = static_cast<std::uint32_t>(sequence.size());
      sequence.push_back(at * 2 + (at % 5 == 3 && one_in(3) ? 1 : 0));
    }
  }
  Prefix sequence(std::int64_t least, std::int64_t most) {
    Prefix ids;
    lengthen(ids, least + upto(most - least));
    return ids;
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace hkv::sim
