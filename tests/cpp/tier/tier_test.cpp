// SPDX-License-Identifier: Apache-2.0
// The shared half of tiers over an engine that does what the test says. What every tier must do is in contract.h.
#include "tier/tier.h"

#include <sys/resource.h>

#include <algorithm>
#include <condition_variable>
#include <thread>

#include "base/check.h"
#include "tier/breaker.h"
#include "tier/contract_world.h"
#include "tier/deadline_heap.h"
#include "tier/ready_queue.h"
#include "tier/report_ring.h"
#include "tier/scripted_tier.h"

namespace hkv {
namespace {

using namespace contract;
using Op = ScriptedTier::Op;

struct Asked {
  Sample room;
  BatchId batch{};
};

// A get of a record that the engine, when it says Ok, attests as whatever stands in the memory.
Asked get_of(Tier& tier, std::uint64_t name, Priority priority = Priority::Demand,
             Deadline deadline = never) {
  Asked asked{sample(name, {32}), {}};
  const GetItem item = asked.room.get_item();
  EXPECT_EQ(tier.get({&item, 1}, deadline, priority, asked.batch), Status::Ok);
  return asked;
}

BatchId flush_of(Tier& tier) {
  BatchId batch{};
  EXPECT_EQ(tier.flush(never, batch), Status::Ok);
  return batch;
}

std::vector<std::uint64_t> names(const std::vector<Op*>& operations) {
  std::vector<std::uint64_t> found;
  for (const Op* operation : operations) found.push_back(operation->key.digest.lo);
  return found;
}

// An engine that says Ok whatever it brings: `damage` changes envelope and bytes of a sound answer.
Done hostile_get(ScriptedTier& tier, const Sample& record, Sample& room,
                 const std::function<void(Op&, std::vector<std::byte>& envelope)>& damage) {
  tier.script([&](ScriptedTier& self, Op* operation) {
    for (std::size_t i = 0; i < operation->parts.size(); ++i) {
      std::memcpy(operation->parts[i].data, record.pages[i].data(), record.pages[i].size());
    }
    ScriptedTier::bring(*operation);
    damage(*operation, operation->envelope);
    self.answer(operation, Status::Ok);
  });
  Asker ask(tier);
  return ask.get(room);
}

}  // namespace

HKV_TEST("every status and every damage has a name of its own") {
  std::vector<std::string> found;
  for (int i = 0; i < tier_status_count; ++i) found.push_back(name_of(static_cast<TierStatus>(i)));
  for (int i = 0; i < damage_count; ++i)
    found.push_back(std::string("damage ") + name_of(static_cast<Damage>(i)));
  EXPECT(std::find(found.begin(), found.end(), "?") == found.end());
  std::sort(found.begin(), found.end());
  EXPECT(std::adjacent_find(found.begin(), found.end()) == found.end());
  EXPECT_EQ(std::string(name_of(static_cast<TierStatus>(tier_status_count))), "?");
  EXPECT_EQ(std::string(name_of(static_cast<Damage>(damage_count))), "?");
}

HKV_TEST("limits that mean nothing are refused, and so is a process that may open no more files") {
  const auto refused = [](auto&& change) {
    TierLimits limits;
    change(limits);
    try {
      ScriptedTier tier(limits);
    } catch (const Error& error) {
      return error.field;
    }
    return std::string("nothing");
  };
  EXPECT_EQ(refused([](TierLimits& limits) { limits.most_items = 0; }), "most_items");
  EXPECT_EQ(refused([](TierLimits& limits) { limits.breaker_first = 0ns; }), "breaker_first");
  EXPECT_EQ(refused([](TierLimits& limits) { limits.breaker_most = 1ms; }), "breaker_most");
  EXPECT_EQ(refused([](TierLimits&) {}), "nothing");
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{5, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  EXPECT_EQ(refused([](TierLimits&) {}), "event_fd");
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(refused([](TierLimits&) {}), "nothing");
}

HKV_TEST(
    "the breaker opens after so many failures in a row, doubles its time, and closes by a trial that is "
    "answered") {
  using Admission = Breaker::Admission;
  Breaker breaker(3, 1s, 30s);
  Breaker::Clock::time_point now{};
  EXPECT(!breaker.failed(false, now) && !breaker.failed(false, now));
  breaker.answered(false);
  EXPECT(!breaker.failed(false, now) && !breaker.failed(false, now));
  EXPECT(breaker.failed(false, now));
  EXPECT(!breaker.failed(false, now));  // of before it opened
  for (const auto time : {1s, 2s, 4s, 8s, 16s, 30s, 30s}) {
    EXPECT(breaker.admit(now + time - 1ns) == Admission::Refuse);
    now += time;
    EXPECT(breaker.admit(now) == Admission::Trial);
    EXPECT(breaker.admit(now + 1h) == Admission::Refuse);  // one trial at a time
    breaker.answered(false);                               // of before it opened
    EXPECT(breaker.open());
    EXPECT(breaker.failed(true, now));
  }
  now += 30s;
  EXPECT(breaker.admit(now) == Admission::Trial);
  breaker.withdrawn(true);
  EXPECT(breaker.admit(now) == Admission::Trial);
  breaker.withdrawn(false);
  EXPECT(breaker.admit(now) == Admission::Refuse);
  breaker.answered(true);
  EXPECT(!breaker.open() && breaker.admit(now) == Admission::Go);
  for (int i = 0; i < 2; ++i) EXPECT(!breaker.failed(false, now));
  EXPECT(breaker.failed(false, now));
  EXPECT(breaker.admit(now + 1s) == Admission::Trial);  // the first time again

  Breaker never_opens(0, 1s, 30s);
  for (int i = 0; i < 10; ++i) EXPECT(!never_opens.failed(false, now));
  Breaker largest(1, std::chrono::nanoseconds::max(), std::chrono::nanoseconds::max());
  EXPECT(largest.failed(false, now));
  EXPECT(largest.admit(now + 1h) == Admission::Refuse);
}

HKV_TEST("the earliest deadline is first, whatever comes and goes") {
  struct Item {
    Deadline deadline{};
    std::size_t at = 0;
  };
  std::mt19937_64 random(3);
  std::vector<Item> items(200);
  std::vector<Item*> in_heap;
  DeadlineHeap<Item> heap;
  for (auto& item : items) item.deadline = Deadline(std::chrono::nanoseconds(random() % 50));
  for (int step = 0; step < 5000; ++step) {
    Item& item = items[random() % items.size()];
    const auto found = std::find(in_heap.begin(), in_heap.end(), &item);
    if (found == in_heap.end()) {
      heap.push(&item);
      in_heap.push_back(&item);
    } else {
      heap.remove(&item);
      in_heap.erase(found);
    }
    EXPECT_EQ(heap.size(), in_heap.size());
    if (in_heap.empty()) continue;
    const auto least = std::min_element(in_heap.begin(), in_heap.end(),
                                        [](Item* a, Item* b) { return a->deadline < b->deadline; });
    EXPECT(heap.earliest()->deadline == (*least)->deadline);
  }
}

HKV_TEST("reports come out as they went in, however the ring grows") {
  ReportRing ring;
  std::uint32_t in = 0, out = 0;
  std::mt19937_64 random(5);
  for (int step = 0; step < 2000; ++step) {
    if (random() % 2 != 0) {
      ring.reserve(ring.size() + 3);
      for (std::uint64_t i = random() % 4; i != 0; --i)
        ring.push({BatchId{1}, in++, Status::Ok, Damage::None, true, false});
    } else {
      Done done[5];
      const std::size_t count = ring.take(std::span(done, random() % 6));
      for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(done[i].item, out++);
    }
    EXPECT_EQ(ring.size(), in - out);
  }
}

HKV_TEST("demand goes before prefetch before write, each in the order asked") {
  ScriptedTier tier;
  const Asked running = get_of(tier, 1);
  flush_of(tier);
  const Asked write = get_of(tier, 2, Priority::Write), prefetch = get_of(tier, 3, Priority::Prefetch);
  const Asked again = get_of(tier, 4, Priority::Prefetch), demand = get_of(tier, 5), last = get_of(tier, 6);
  std::vector<std::uint64_t> order;
  while (!tier.begun().empty()) {
    EXPECT_EQ(tier.begun().size(), 1u);
    order.push_back(names(tier.begun())[0]);
    tier.end_one(Status::Ok);
  }
  EXPECT(order == (std::vector<std::uint64_t>{1, 5, 6, 3, 4, 0, 2}));
}

HKV_TEST("nothing waits for ever: a write is begun though demand never ends") {
  ScriptedTier tier;
  const Asked running = get_of(tier, 1);
  const Asked write = get_of(tier, 1000, Priority::Write), prefetch = get_of(tier, 1001, Priority::Prefetch);
  std::vector<Asked> demands;
  std::vector<std::uint64_t> order;
  for (std::uint64_t name = 2; name < 42; ++name) {
    demands.push_back(get_of(tier, name));
    demands.push_back(get_of(tier, name));
    tier.end_one(Status::Ok);
    order.push_back(names(tier.begun())[0]);
  }
  const auto place = [&](std::uint64_t name) {
    return std::find(order.begin(), order.end(), name) - order.begin();
  };
  EXPECT_EQ(place(1000), 16);
  EXPECT_EQ(place(1001), 17);
}

HKV_TEST("the engine has at most its depth, and what nobody waits for leaves a place for demand") {
  ScriptedTier tier({}, 4);
  std::vector<Asked> asked;
  for (std::uint64_t name = 1; name <= 3; ++name) asked.push_back(get_of(tier, name, Priority::Write));
  for (std::uint64_t name = 4; name <= 5; ++name) asked.push_back(get_of(tier, name, Priority::Prefetch));
  EXPECT(names(tier.begun()) == (std::vector<std::uint64_t>{1, 2, 3}));
  for (std::uint64_t name = 6; name <= 7; ++name) asked.push_back(get_of(tier, name));
  EXPECT(names(tier.begun()) == (std::vector<std::uint64_t>{1, 2, 3, 6}));
  tier.end_one(Status::Ok);
  EXPECT(names(tier.begun()) == (std::vector<std::uint64_t>{2, 3, 6, 7}));
  tier.end_one(Status::Ok);
  EXPECT(names(tier.begun()) == (std::vector<std::uint64_t>{3, 6, 7, 4}));
  tier.end_one(Status::Ok);
  tier.end_one(Status::Ok);
  EXPECT(names(tier.begun()) == (std::vector<std::uint64_t>{7, 4, 5}));
}

HKV_TEST("begin holds no lock, and an engine that finishes within it never calls itself") {
  ScriptedTier tier({}, 2);
  Collector reports(tier);
  std::uintptr_t lowest = ~std::uintptr_t{0}, highest = 0;
  bool asked_within = false;
  tier.script([&](ScriptedTier& self, Op* operation) {
    const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
    lowest = std::min(lowest, here);
    highest = std::max(highest, here);
    EXPECT(self.usage().running >= 1);
    self.cancel(BatchId{99999});
    if (!asked_within) {  // an ask from within goes into the queue
      asked_within = true;
      flush_of(self);
    }
    self.answer(operation, Status::Miss);
  });
  std::vector<RecordKey> keys(2000, sample(1, {}).key);
  BatchId batch;
  EXPECT_EQ(tier.probe(keys, never, batch), Status::Ok);
  EXPECT(tier.drain(never));
  while (reports.take() != 0) {
  }
  EXPECT_EQ(reports.reports(), 2001u);
  EXPECT_EQ(tier.total(), 2001u);
  EXPECT(highest - lowest < 4096);
}

HKV_TEST("an ask while another thread is within begin neither waits nor begins beside it") {
  ScriptedTier tier({}, 2);
  std::mutex mutex;
  std::condition_variable changed;
  bool inside = false, go = false;
  tier.script([&](ScriptedTier& self, Op* operation) {
    if (operation->key.digest.lo == 1) {
      std::unique_lock lock(mutex);
      inside = true;
      changed.notify_all();
      changed.wait(lock, [&] { return go; });
    }
    self.answer(operation, Status::Miss);
  });
  std::thread first([&] { get_of(tier, 1); });
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return inside; });
  }
  const Asked second = get_of(tier, 2);  // returns, though nothing can begin now
  EXPECT_EQ(tier.total(), 1u);
  {
    const std::lock_guard lock(mutex);
    go = true;
    changed.notify_all();
  }
  first.join();
  EXPECT(tier.drain(never));
  EXPECT_EQ(tier.total(), 2u);
}

HKV_TEST("whatever an engine calls Ok is told from the record: every flipped bit and every cut") {
  ScriptedTier tier({}, 4);
  const Sample record = sample(1, {7, 5});
  Sample room = room_for(record);
  const auto untouched = [](Op&, std::vector<std::byte>&) {};
  EXPECT_EQ(hostile_get(tier, record, room, untouched).status, Status::Ok);
  EXPECT(room == record && tier.dropped.empty());
  std::size_t wrong = 0;
  for (std::size_t bit = 0; bit < envelope_bytes(2) * 8; ++bit) {
    const Done done = hostile_get(tier, record, room, [&](Op&, std::vector<std::byte>& envelope) {
      envelope[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    });
    EXPECT_EQ(done.status, Status::Corrupt);
    EXPECT_EQ(tier.dropped.size(), ++wrong);
  }
  for (std::size_t bit = 0; bit < 12 * 8; ++bit) {
    const Done done = hostile_get(tier, record, room, [&](Op& operation, std::vector<std::byte>&) {
      const std::size_t byte = bit / 8, part = byte < 7 ? 0 : 1;
      static_cast<std::byte*>(operation.parts[part].data)[byte - 7 * part] ^=
          static_cast<std::byte>(1u << bit % 8);
    });
    EXPECT_EQ(done.status, Status::Corrupt);
    EXPECT_EQ(done.damage, Damage::Content);
    EXPECT_EQ(tier.dropped.size(), ++wrong);
  }
  for (std::size_t bytes = 0; bytes < envelope_bytes(2); ++bytes) {
    const Done done = hostile_get(tier, record, room,
                                  [&](Op&, std::vector<std::byte>& envelope) { envelope.resize(bytes); });
    EXPECT_EQ(done.status, Status::Corrupt);
    EXPECT_EQ(done.damage, Damage::Short);
    ++wrong;
  }
  EXPECT_EQ(tier.usage().corrupt, wrong);
  EXPECT_EQ(tier.usage().hits, 1u);
}

HKV_TEST("a sound record that is another one is a mismatch, and dropped unless the asker erred") {
  ScriptedTier tier({}, 4);
  const Sample record = sample(1, {7, 5});
  Sample room = room_for(record);
  const auto brought = [&](auto&& change) {
    return hostile_get(tier, record, room, [&](Op& operation, std::vector<std::byte>& bytes) {
      Envelope envelope;
      EXPECT_EQ(read_envelope(bytes, envelope), Damage::None);
      change(envelope);
      bytes.resize(envelope_bytes(envelope.parts.size()));
      write_envelope(envelope, bytes);
      EXPECT(operation.kind == Op::Kind::Get);
    });
  };
  const Done foreign = brought([](Envelope& e) { e.key.digest.hi ^= 1; });
  EXPECT(foreign.status == Status::Mismatch && foreign.damage == Damage::Foreign);
  const Done kind = brought([](Envelope& e) { e.key.kind = RecordKind::Boundary; });
  EXPECT(kind.status == Status::Mismatch && kind.damage == Damage::Foreign);
  const Done format = brought([](Envelope& e) { e.key.format.lo ^= 1; });
  EXPECT(format.status == Status::Mismatch && format.damage == Damage::Format);
  EXPECT_EQ(tier.dropped.size(), 3u);
  const Done parts = brought([](Envelope& e) {
    e.parts.pop_back();
    e.payload_bytes = 7;
  });
  EXPECT(parts.status == Status::Mismatch && parts.damage == Damage::Parts);
  EXPECT_EQ(tier.dropped.size(), 3u);
  EXPECT_EQ(tier.usage().mismatched, 4u);
}

HKV_TEST("a call that is late counts for the breaker once") {
  TierLimits limits;
  limits.breaker_after = 2;
  limits.breaker_first = limits.breaker_most = 1h;
  ScriptedTier tier(limits);
  Collector reports(tier);
  const Asked asked = get_of(tier, 1, Priority::Demand, in(1ms));
  EXPECT_EQ(reports.done(asked.batch).status, Status::Timeout);
  tier.end_one(Status::Unavailable);
  const Done done = reports.released(asked.batch);
  EXPECT(done.late && done.status == Status::Unavailable);
  EXPECT(!tier.usage().breaker_open);
  tier.script([](ScriptedTier& self, Op* operation) { self.answer(operation, Status::Unavailable); });
  EXPECT_EQ(reports.done(get_of(tier, 2).batch).status, Status::Unavailable);
  EXPECT(tier.usage().breaker_open);
}

HKV_TEST("a late get that claims Ok with other bytes is reported Corrupt") {
  ScriptedTier tier;
  Collector reports(tier);
  const Asked asked = get_of(tier, 1, Priority::Demand, in(1ms));
  EXPECT_EQ(reports.done(asked.batch).status, Status::Timeout);
  Op* const late = tier.begun()[0];
  ScriptedTier::bring(*late);
  static_cast<std::byte*>(late->parts[0].data)[3] ^= std::byte{1};
  tier.end_one_as_it_is();
  const Done done = reports.released(asked.batch);
  EXPECT(done.late && done.status == Status::Corrupt && done.damage == Damage::Content);
}

HKV_TEST(
    "only Unavailable and Timeout open the breaker, and any answer between them starts the count again") {
  for (int status = 0; status < tier_status_count; ++status) {
    TierLimits limits;
    limits.breaker_first = limits.breaker_most = 1h;
    ScriptedTier tier(limits);
    Collector reports(tier);
    const auto answered = [&](Status with) {
      const BatchId batch = flush_of(tier);
      if (!tier.begun().empty()) tier.end_one(with);
      return reports.done(batch).status;
    };
    const auto tried = static_cast<Status>(status);
    const bool failure = tried == Status::Unavailable || tried == Status::Timeout;
    for (int i = 0; i < 4; ++i) EXPECT_EQ(answered(tried), failure && i == 3 ? Status::Unavailable : tried);
    EXPECT_EQ(tier.usage().breaker_open, failure);
    if (failure) continue;
    const bool tells_nothing = tried == Status::Cancelled || tried == Status::Closed;
    answered(Status::Unavailable);
    answered(Status::Unavailable);
    answered(tried);
    answered(Status::Unavailable);
    EXPECT_EQ(tier.usage().breaker_open, tells_nothing);
  }
}

HKV_TEST("what times out in the queue of a tier that is merely busy does not open the breaker") {
  TierLimits limits;
  limits.breaker_after = 1;
  limits.breaker_first = limits.breaker_most = 1h;
  ScriptedTier tier(limits);
  Collector reports(tier);
  const Asked running = get_of(tier, 1, Priority::Demand, in(1h));
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(reports.done(get_of(tier, 2, Priority::Demand, TierClock::now()).batch).status,
              Status::Timeout);
  }
  EXPECT(!tier.usage().breaker_open);
  tier.end_one(Status::Ok);
  EXPECT_EQ(reports.done(running.batch).status, Status::Ok);
}

HKV_TEST("a trial that never reached the engine is given to the next") {
  TierLimits limits;
  limits.breaker_after = 1;
  limits.breaker_first = limits.breaker_most = 1ms;
  ScriptedTier tier(limits);
  Collector reports(tier);
  const Asked slow = get_of(tier, 1, Priority::Demand);
  const BatchId failed = flush_of(tier);  // queued behind it
  tier.end_one(Status::Unavailable);
  EXPECT_EQ(reports.done(failed).status, Status::Unavailable);
  EXPECT_EQ(reports.done(slow.batch).status, Status::Unavailable);
  std::this_thread::sleep_for(2ms);
  const Asked trial = get_of(tier, 2, Priority::Demand, TierClock::now());  // past its deadline
  EXPECT_EQ(reports.done(trial.batch).status, Status::Timeout);
  const BatchId next = flush_of(tier);
  EXPECT_EQ(tier.begun().size(), 1u);
  EXPECT_EQ(reports.done(flush_of(tier)).status, Status::Unavailable);  // one trial at a time
  tier.end_one(Status::Ok);
  EXPECT_EQ(reports.done(next).status, Status::Ok);
  EXPECT(!tier.usage().breaker_open);
}

HKV_TEST(
    "the event fd wakes for one deadline after another, and an item that ended in time wakes nobody for "
    "long") {
  ScriptedTier tier({}, 3);
  Collector reports(tier);
  const Asked quick = get_of(tier, 1, Priority::Demand, in(5ms));
  tier.end_one(Status::Ok);
  const Asked first = get_of(tier, 2, Priority::Demand, in(10ms)),
              second = get_of(tier, 3, Priority::Demand, in(40ms));
  EXPECT_EQ(reports.done(quick.batch).status, Status::Ok);
  std::size_t late = 0;
  for (int wakes = 0; late < 2; ++wakes) {
    const bool woken = readable(tier.event_fd(), 20000);
    EXPECT(woken);
    EXPECT(wakes < 4);  // at most one for each deadline that there ever was, and one to spare
    if (!woken || wakes > 10) break;
    late += reports.take();
  }
  EXPECT_EQ(tier.usage().quarantined, 2u);
  EXPECT(!readable(tier.event_fd(), 0));
}

HKV_TEST("deadlines at the ends of time neither overflow nor time out by mistake") {
  ScriptedTier tier({}, 4);
  Collector reports(tier);
  const Asked forever = get_of(tier, 1, Priority::Demand, Deadline::max());
  const Asked almost = get_of(tier, 2, Priority::Demand, Deadline::max() - 1ns);
  const Asked past = get_of(tier, 3, Priority::Demand, Deadline::min());
  const Asked start = get_of(tier, 4, Priority::Demand, Deadline{});
  EXPECT_EQ(reports.done(past.batch).status, Status::Timeout);
  EXPECT_EQ(reports.done(start.batch).status, Status::Timeout);
  EXPECT(!tier.wait(1ms));
  EXPECT_EQ(tier.begun().size(), 2u);
  tier.end_one(Status::Ok);
  tier.end_one(Status::Miss);
  EXPECT_EQ(reports.done(forever.batch).status, Status::Ok);
  EXPECT_EQ(reports.done(almost.batch).status, Status::Miss);
}

}  // namespace hkv
