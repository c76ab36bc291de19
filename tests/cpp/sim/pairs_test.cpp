// SPDX-License-Identifier: Apache-2.0
// Every pair of short programs over one block: two threads, each with one or two of the operations below, from each
// of a few states. All orders that matter of each pair are run; those of one operation beside one with every state in
// between as well. Where a tree is too large, all orders with at most two preemptions are (a soak: three).
//
// Words are named as (key).(class): a.h is the page of the Prefix group at key a, a.b that of the Window group.
#include "sim/world.h"

namespace hkv::sim {
namespace {

enum class Do : std::uint8_t { Fill, Abort, Read, Evict, Retire, Touch, Restore, GiveUp, Offload };
struct Operation {
  Do what;
  Key128 key;
  int group;
  const char* name;
};
constexpr Operation operations[] = {
    {Do::Fill, key_a, 0, "fill a.h"},       {Do::Fill, key_a, 1, "fill a.b"},
    {Do::Abort, key_a, 0, "abort a.h"},     {Do::Abort, key_a, 1, "abort a.b"},
    {Do::Read, key_a, 0, "read a.h"},       {Do::Read, key_a, 1, "read a.b"},
    {Do::Evict, key_a, 0, "evict a.h"},     {Do::Evict, key_a, 1, "evict a.b"},
    {Do::Retire, key_a, 0, "retire a.h"},   {Do::Touch, key_a, 0, "touch a"},
    {Do::Retire, key_a, 1, "retire a.b"},   {Do::Fill, key_b, 0, "fill b.h"},
    {Do::Restore, key_a, 0, "restore a.h"}, {Do::GiveUp, key_a, 1, "give up restoring a.b"},
    {Do::Offload, key_a, 0, "offload a.h"}, {Do::Offload, key_a, 1, "offload a.b"},
};
constexpr int operation_count = std::size(operations);

using Steps = std::vector<int>;
struct State {
  const char* name;
  Steps made_by;
};

class Pair : public World {
 public:
  Pair(const Steps& state, const Steps& one, const Steps& two)
      : World(2, 1, h_and_b), state_(state), steps_{one, two} {}
  void before() override {
    for (const int step : state_) make(operations[step]);
  }
  void thread(int self) override {
    for (const int step : steps_[self]) make(operations[step]);
  }

 private:
  void make(const Operation& op) {
    switch (op.what) {
      case Do::Fill: fill(op.key, op.group); break;
      case Do::Abort: fill(op.key, op.group, true); break;
      case Do::Read: read(op.key, op.group); break;
      case Do::Evict: evict(op.key, op.group); break;
      case Do::Retire: retire(op.key, op.group); break;
      case Do::Touch: touch(op.key); break;
      case Do::Restore: restore(op.key, op.group); break;
      case Do::GiveUp: restore(op.key, op.group, true); break;
      case Do::Offload: offload(op.key, op.group); break;
    }
  }
  const Steps& state_;
  Steps steps_[2];
};

std::string named(const Steps& steps) {
  std::string text;
  for (const int step : steps) text += (text.empty() ? "" : ", ") + std::string(operations[step].name);
  return text;
}

const State states[] = {{"nothing", {}},         {"a.h", {0}},  {"a.b", {1}},
                        {"a.h and a.b", {0, 1}}, {"b.h", {11}}, {"a.h with a copy, a.b", {12, 1}}};

struct Count {
  unsigned long budget;  // executions after which a program is searched with few preemptions instead
  unsigned long whole = 0, bounded = 0, executions = 0;
};
void search_pair(const State& state, const Steps& one, const Steps& two, Every every, Count& count) {
  const std::string name = std::string(state.name) + ": " + named(one) + " | " + named(two);
  const auto make = [&] { return std::make_unique<Pair>(state.made_by, one, two); };
  if (!wanted(name.c_str(), make)) return;
  const unsigned long budget = soak() ? 300000 : count.budget;
  Result result = explored(make, budget, every);
  count.executions += result.executions;
  if (result.ok && !result.complete) {
    result = explored(make, 3000000, every, soak() ? 3 : 2);
    count.executions += result.executions;
    ++count.bounded;
  } else {
    ++count.whole;
  }
  if (!result.ok) detail::report(result.fault, result.schedule);
  EXPECT(result.ok);
  EXPECT(!result.ok || result.complete);
}
void report(const Count& count) {
  std::printf("     %lu programs whole, %lu with at most %d preemptions: %lu executions\n", count.whole,
              count.bounded, soak() ? 3 : 2, count.executions);
}

}  // namespace

HKV_TEST("one operation beside one, every outcome") {
  Count count{30000};
  for (const State& state : states) {
    for (int i = 0; i < operation_count; ++i) {
      for (int j = i; j < operation_count; ++j) search_pair(state, {i}, {j}, Every::Outcome, count);
    }
  }
  report(count);
}
HKV_TEST("one operation beside one, every state") {
  Count count{3000};
  for (const State& state : states) {
    for (int i = 0; i < operation_count; ++i) {
      for (int j = i; j < operation_count; ++j) search_pair(state, {i}, {j}, Every::State, count);
    }
  }
  report(count);
}
HKV_TEST("two operations beside one") {
  Count count{2000};
  const int stride = soak() ? 1 : 31;  // of 24,576 programs
  int program = 0;
  for (const State& state : states) {
    for (int i = 0; i < operation_count; ++i) {
      for (int j = 0; j < operation_count; ++j) {
        for (int k = 0; k < operation_count; ++k) {
          if (program++ % stride == 0) search_pair(state, {i, j}, {k}, Every::Outcome, count);
        }
      }
    }
  }
  report(count);
}

}  // namespace hkv::sim
