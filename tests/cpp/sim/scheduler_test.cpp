// SPDX-License-Identifier: Apache-2.0
// The scheduler itself: it runs what it says, finds what is planted, and repeats it.
#include "sim/scheduler.h"

#include <mutex>
#include <set>

namespace hkv::sim {
namespace {

// Each thread makes its steps on one atom.
template <int thread_count, int steps, bool shared, bool writes>
struct Steps : Program {
  Atom<int> atoms[threads_max];
  int threads() const override { return thread_count; }
  void thread(int self) override {
    for (int i = 0; i < steps; ++i) {
      Atom<int>& atom = atoms[shared ? 0 : self];
      if (writes) {
        atom.fetch_add(1);
      } else {
        (void)atom.load();
      }
    }
  }
};

template <class P>
unsigned long executions_of(Every every = Every::Outcome) {
  const Result result = explored([] { return std::make_unique<P>(); }, 1000000, every);
  EXPECT(result.ok && result.complete);
  return result.executions - result.redundant;
}

struct LostUpdate : Program {
  Atom<int> value;
  void thread(int) override {
    const int seen = value.load();
    value.store(seen + 1);
  }
  void after() override { HKV_MUST(value.load() == 2); }
};

// Wrong only for one moment, which no thread notices.
struct Glimpse : Program {
  Atom<int> a, b;
  void thread(int self) override {
    if (self == 0) {
      a.store(1), a.store(0);
    } else {
      b.store(1), b.store(0);
    }
  }
  void check() override { HKV_MUST(a.load() + b.load() < 2); }
};

// Fails in one of 12,870 orders: the second thread makes all its steps between two of the first.
struct Needle : Program {
  Atom<int> turn;
  void thread(int self) override {
    for (int i = 0; i < 8; ++i) {
      if (self == 1) {
        int expected = 4 + i;
        turn.compare_exchange(expected, expected + 1);
      } else {
        turn.fetch_add(i < 4 ? 1 : 100);
      }
    }
  }
  void after() override { HKV_MUST(turn.load() != 412); }
};

struct Endless : Program {
  Atom<int> flag;
  void thread(int self) override {
    while (self == 1 && flag.load() == 0) {
    }
  }
};

struct Throws : Program {
  Atom<int> a;
  void thread(int self) override {
    for (int i = 0; i < 3; ++i) {
      try {
        a.fetch_add(1);
        throw self;
      } catch (int who) {
        a.fetch_add(1);  // the other may throw and catch meanwhile
        HKV_MUST(who == self);
      }
    }
  }
};

// Updates under a mutex are not lost, and each order of the two is run; the atom between is nobody's meanwhile.
struct Guarded : Program {
  static inline std::set<int> orders;
  std::mutex mutex;
  Atom<int> value, order;
  void thread(int self) override {
    for (int i = 0; i < 2; ++i) {
      const std::lock_guard<std::mutex> guard(mutex);
      const int seen = value.load();
      order.store(order.load() * 10 + self + 1);
      value.store(seen + 1);
    }
  }
  void after() override {
    HKV_MUST(value.load() == 4);
    orders.insert(order.load());
  }
};
struct DeadLock : Program {
  std::mutex mutex[2];
  void thread(int self) override {
    const std::lock_guard<std::mutex> one(mutex[self]);
    const std::lock_guard<std::mutex> other(mutex[1 - self]);
  }
};

template <class P>
void expect_found(const char* name, Every every = Every::Outcome) {
  const auto make = [] { return std::make_unique<P>(); };
  const Result found = explored(make, 1000000, every);
  EXPECT(!found.ok);
  std::printf("     %s: found after %lu executions: %s\n", name, found.executions, found.schedule.c_str());
  sampled(make, 1, 1);  // another schedule between the two
  const Result repeated = replayed(make, found.schedule.c_str());
  EXPECT(!repeated.ok);
  EXPECT_EQ(repeated.fault, found.fault);
  EXPECT_EQ(repeated.schedule, found.schedule);
}

// Collects the outcomes of a program of independent and dependent steps, by search and by random schedules.
struct Mixed : Program {
  static inline std::set<std::vector<int>> outcomes;
  Atom<int> x, y, z;
  std::vector<int> seen = std::vector<int>(9, -1);
  int threads() const override { return 3; }
  void thread(int self) override {
    const auto at = static_cast<std::size_t>(self * 3);
    if (self == 0) x.store(1), seen[at] = y.load(), seen[at + 1] = z.exchange(1);
    if (self == 1) y.store(1), seen[at] = z.load(), seen[at + 1] = x.exchange(2), seen[at + 2] = y.load();
    if (self == 2) z.store(2), seen[at] = x.load(), seen[at + 1] = y.exchange(3);
  }
  void after() override {
    seen.insert(seen.end(), {x.load(), y.load(), z.load()});
    outcomes.insert(seen);
  }
};

}  // namespace

HKV_TEST("steps that depend on each other are run in every order") {
  EXPECT_EQ((executions_of<Steps<2, 3, true, true>>()), 20u);  // 6 over 3
  EXPECT_EQ((executions_of<Steps<2, 8, true, true>>()), 12870u);
  EXPECT_EQ((executions_of<Steps<3, 2, true, true>>()), 90u);
  EXPECT_EQ((executions_of<Steps<4, 2, true, true>>()), 2520u);
}
HKV_TEST("steps that do not are run in one") {
  EXPECT_EQ((executions_of<Steps<2, 50, false, true>>()), 1u);
  EXPECT_EQ((executions_of<Steps<4, 50, true, false>>()), 1u);
}
HKV_TEST("the reduced search misses no outcome that random schedules find") {
  const auto make = [] { return std::make_unique<Mixed>(); };
  const Result all = explored(make, 1000000);
  EXPECT(all.complete);
  const std::set<std::vector<int>> searched = Mixed::outcomes;
  sampled(make, 200000, 1);
  EXPECT_EQ(Mixed::outcomes.size(), searched.size());
  EXPECT(searched.size() > 30);
  std::printf("     %zu outcomes in %lu executions (%lu redundant)\n", searched.size(), all.executions,
              all.redundant);
}
HKV_TEST("a planted fault is found, and its schedule repeats it") {
  expect_found<LostUpdate>("lost update");
  expect_found<Needle>("needle");
  expect_found<Endless>("endless loop");
}
HKV_TEST("a mutex makes threads wait, in every order") {
  EXPECT_EQ(executions_of<Guarded>(), 6u);
  EXPECT_EQ(Guarded::orders.size(), 6u);
  expect_found<DeadLock>("deadlock");
}
HKV_TEST("a state that no thread notices comes up where every state is asked for, and at random") {
  const auto make = [] { return std::make_unique<Glimpse>(); };
  EXPECT(explored(make, 1000).complete);
  expect_found<Glimpse>("glimpse", Every::State);
  EXPECT(!sampled(make, 1000, 1).ok);
  EXPECT_EQ((executions_of<Steps<2, 3, false, true>>(Every::State)), 20u);
}
HKV_TEST("random schedules find the lost update, and a seed repeats it") {
  const auto make = [] { return std::make_unique<LostUpdate>(); };
  const Result found = sampled(make, 1000, 7);
  EXPECT(!found.ok);
  const Result again = sampled(make, 1, 7 + found.executions - 1);
  EXPECT_EQ(again.schedule, found.schedule);
}
HKV_TEST("a program that keeps state between executions is told so") {
  struct Keeps : Program {
    Atom<int> a;
    void thread(int self) override {
      static int runs = 0;
      if (self == 0 && ++runs > 1) return;
      a.fetch_add(1), a.fetch_add(1);
    }
  };
  const Result result = explored([] { return std::make_unique<Keeps>(); }, 1000);
  EXPECT(!result.ok && result.fault.find("keeps state") != std::string::npos);
}
HKV_TEST("threads may throw and catch while others do") {
  const Result result = explored([] { return std::make_unique<Throws>(); }, 1000000);
  EXPECT(result.ok && result.complete);
}

}  // namespace hkv::sim
