// SPDX-License-Identifier: Apache-2.0
// The transition table against a second one, written by hand from the rules; and every row mutated.
// One thread: left out under ThreadSanitizer.
#define HKV_TRANSITIONS_ARE  // a variable here
#include "block/word.h"
#include "testing.h"

namespace hkv {
namespace {

constexpr const char* phase_names[] = {"absent", "tier-only",  "filling",    "restoring",
                                       "ready",  "ready-copy", "offloading", "retiring"};
constexpr const char* event_names[] = {"claim",          "publish",        "abort",          "tier answers",
                                       "restore begins", "restored",       "restore failed", "corrupt",
                                       "record gone",    "offload begins", "offloaded",      "offload failed",
                                       "evict",          "retire",         "finish"};

// from | event | to | pinned words too | lets go of a page or a record, so that old sightings must fail.
struct Rule {
  const char *from, *event, *to;
  bool pinned_too, moves;
};
constexpr Rule rules[] = {
    {"absent", "claim", "filling", true, false},
    {"absent", "tier answers", "tier-only", true, false},
    {"filling", "publish", "ready", true, false},
    {"filling", "abort", "absent", true, true},
    {"tier-only", "restore begins", "restoring", true, false},
    {"tier-only", "record gone", "absent", true, true},
    {"restoring", "restored", "ready-copy", true, false},
    {"restoring", "restore failed", "tier-only", true, true},
    {"restoring", "corrupt", "absent", true, true},
    {"ready", "offload begins", "offloading", true, false},
    {"ready", "evict", "absent", false, true},
    {"ready", "retire", "retiring", true, false},
    {"offloading", "offloaded", "ready-copy", true, false},
    {"offloading", "offload failed", "ready", true, false},
    {"offloading", "retire", "retiring", true, false},
    {"ready-copy", "evict", "tier-only", false, true},
    {"ready-copy", "record gone", "ready", true, false},
    {"ready-copy", "retire", "retiring", true, false},
    {"retiring", "finish", "absent", false, true},
};

const Rule* rule_of(int phase, int event) {
  for (const Rule& rule : rules) {
    if (!std::strcmp(rule.from, phase_names[phase]) && !std::strcmp(rule.event, event_names[event]))
      return &rule;
  }
  return nullptr;
}

std::uint64_t with_phase(std::uint64_t bits, int slot, int phase) {
  return (bits & ~(std::uint64_t{7} << (3 * slot))) | static_cast<std::uint64_t>(phase) << (3 * slot);
}

// Whether apply() does what the rules say for every phase, event, pin count and slot, and leaves the
// neighbours alone. Counts the pairs it decided.
bool conforms(int* legal = nullptr, int* illegal = nullptr) {
  for (int phase = 0; phase < phase_count; ++phase) {
    for (int event = 0; event < event_count; ++event) {
      const Rule* rule = rule_of(phase, event);
      for (const std::uint32_t pins : {0u, 1u, 7u, Word::pins_max}) {
        for (int slot = 0; slot < Word::slots; ++slot) {
          const std::uint64_t neighbours = 0xFAC688ull;  // every phase once, somewhere
          const Word before(with_phase(Word::bare(41, pins).bits() | neighbours, slot, phase));
          const auto after = before.apply(static_cast<SlotMask>(1u << slot), static_cast<Event>(event));
          const bool allowed = rule != nullptr && (pins == 0 || rule->pinned_too);
          if (after.has_value() != allowed) return false;
          if (!allowed) {
            if (illegal != nullptr) ++*illegal;
            continue;
          }
          if (legal != nullptr) ++*legal;
          int to = -1;
          for (int i = 0; i < phase_count; ++i) {
            if (!std::strcmp(phase_names[i], rule->to)) to = i;
          }
          const Word want(with_phase(Word::bare(rule->moves ? 42 : 41, pins).bits() | neighbours, slot, to));
          if (*after != want) return false;
        }
      }
    }
  }
  return true;
}

}  // namespace

HKV_TEST("every phase, event and pin count does what the rules say") {
  int legal = 0, illegal = 0;
  EXPECT(conforms(&legal, &illegal));
  EXPECT_EQ(legal + illegal, phase_count * event_count * 4 * Word::slots);
  EXPECT_EQ(std::size(rules), transitions.size());
  std::printf("     %d legal, %d illegal steps\n", legal, illegal);
}

HKV_TEST("every mutation of every row is noticed") {
  int mutations = 0, noticed = 0;
  const auto saved = transitions;
  const auto check = [&](const Transition& mutant, std::size_t row) {
    transitions = saved;
    transitions[row] = mutant;
    phase_detail::rows = phase_detail::make_rows();
    ++mutations;
    const bool killed = !conforms();
    noticed += killed;
    if (!killed) std::printf("     survived: row %zu\n", row);
  };
  for (std::size_t row = 0; row < saved.size(); ++row) {
    for (int i = 0; i < phase_count; ++i) {
      Transition mutant = saved[row];
      mutant.from = static_cast<Phase>(i);
      if (mutant.from != saved[row].from) check(mutant, row);
      mutant = saved[row];
      mutant.to = static_cast<Phase>(i);
      if (mutant.to != saved[row].to) check(mutant, row);
    }
    for (int i = 0; i < event_count; ++i) {
      Transition mutant = saved[row];
      mutant.event = static_cast<Event>(i);
      if (mutant.event != saved[row].event) check(mutant, row);
    }
    Transition mutant = saved[row];
    mutant.pins = mutant.pins == PinRule::Any ? PinRule::ZeroOnly : PinRule::Any;
    check(mutant, row);
    mutant = saved[row];
    mutant.gives_up = !mutant.gives_up;
    check(mutant, row);
  }
  transitions = saved;
  phase_detail::rows = phase_detail::make_rows();
  EXPECT(conforms());
  EXPECT_EQ(noticed, mutations);
  EXPECT_EQ(mutations, static_cast<int>(saved.size()) * (7 + 7 + 14 + 1 + 1));
  std::printf("     %d mutations, %d noticed\n", mutations, noticed);
}

HKV_TEST("the kinds of phases are those of the rules") {
  for (int i = 0; i < phase_count; ++i) {
    const auto phase = static_cast<Phase>(i);
    const std::string name = phase_names[i];
    const bool want_usable = name == "ready" || name == "ready-copy" || name == "offloading";
    EXPECT_EQ(usable(phase), want_usable);
    EXPECT_EQ(known(phase), want_usable || name == "tier-only" || name == "restoring");
    EXPECT_EQ(holds_page(phase), name != "absent" && name != "tier-only");
  }
}

HKV_TEST("a step on several slots is all or none and moves the generation once") {
  const Word ready(with_phase(with_phase(Word::bare(7, 0).bits(), 0, 4), 3, 5));
  const auto both = ready.apply(0b1001, Event::Evict);
  EXPECT(both.has_value());
  EXPECT_EQ(both->generation(), 8u);
  EXPECT_EQ(static_cast<int>(both->phase(0)), 0);
  EXPECT_EQ(static_cast<int>(both->phase(3)), 1);
  EXPECT(!ready.apply(0b1011, Event::Evict).has_value());  // slot 1 is absent
  EXPECT_EQ(ready.apply(0, Event::Evict)->bits(), ready.bits());
  for (const std::uint32_t pins : {Word::pins_closed, Word::pins_tentative}) {
    EXPECT(!Word::bare(7, pins).apply(1, Event::Claim).has_value());  // no life, no step
  }
  EXPECT_EQ(Word::bare(0xFFFFFF, 3).next_generation().bits(),
            Word::bare(0, 3).bits());  // wraps, and no carry
}

}  // namespace hkv
