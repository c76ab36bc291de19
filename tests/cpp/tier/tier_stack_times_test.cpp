// SPDX-License-Identifier: Apache-2.0
// Stacks of tiers of which one is slow, frozen, full or closed, and what goes to all of them.
#include <deque>

#include "tier/stack_world.h"

namespace hkv {

using namespace contract;

// ---- slow and frozen tiers ----------------------------------------------------------------------

HKV_TEST("while a tier may write the memory no other is given it, and after the deadline none is asked") {
  for (const Status late : {Status::Ok, Status::Miss, Status::IoError}) {
    // Of a late miss it shows that the one below, which has nothing, does not make it a miss.
    Tolds w(std::make_shared<Told>(Answer::Here),
            std::make_shared<Told>(late == Status::Miss ? Answer::Absent : Answer::Here));
    const Sample record = sample(1);
    Sample room = room_for(record);
    const BatchId batch = w.get(room, in(300ms));
    EXPECT(begins(*w.fast, 1));
    const Done done = w.reports().done(batch);
    EXPECT_EQ(done.status, Status::Timeout);
    EXPECT(!done.released);
    EXPECT(comes([&] { return w.fast->usage().timeouts == 1; }));  // the stack has seen it
    std::this_thread::sleep_for(2ms);
    EXPECT_EQ(w.stack.usage().quarantined, 1u);
    EXPECT_EQ(w.slow->total(), 0u);
    if (late == Status::Ok) {
      bring(*w.fast, record);
    } else {
      w.fast->end_one(late);
    }
    const Done released = w.reports().released(batch);
    EXPECT(released.late && released.released);
    EXPECT_EQ(released.status, late == Status::Ok ? Status::Ok : Status::Timeout);
    EXPECT_EQ(room == record, late == Status::Ok);
    EXPECT_EQ(w.slow->total(), 0u);
  }
}

HKV_TEST("a frozen tier above costs a few deadlines, until its breaker opens") {
  std::deque<Sample> rooms;
  TierLimits limits;
  limits.breaker_first = limits.breaker_most = 1h;
  Memories w(memory(64u << 20, false, limits), memory());
  std::vector<Sample> records;
  for (std::uint64_t name = 1; name <= 5; ++name) {
    records.push_back(sample(name));
    EXPECT_EQ(w.ask.put(records.back()).status, Status::Ok);
  }
  w.fast->freeze();
  std::vector<BatchId> batches;
  EXPECT(comes([&] {
    rooms.push_back(room_for(records[0]));
    batches.push_back(w.get(rooms.back(), in(10ms)));
    return w.reports().done(batches.back()).status == Status::Ok;
  }));
  EXPECT(batches.size() > 3 && rooms.back() == records[0]);
  EXPECT(w.stack.usage_of(0).breaker_open && !w.stack.usage().breaker_open);
  EXPECT(w.ask.has(records[3]) && w.ask.has(records[4]));
  EXPECT_EQ(w.ask.put(sample(6)).status, Status::Ok);
  EXPECT_EQ(w.stack.counts_of(0).copies_refused, 1u);
  w.fast->thaw();
  for (const BatchId batch : batches) EXPECT(w.reports().released(batch).released);
}

HKV_TEST("a frozen tier below: the deadline, the quarantine, the late report") {
  const Sample record = sample(1);
  const auto slow = memory();
  file(*slow, record);
  Memories w(memory(), slow);
  w.slow->freeze();
  Sample room = room_for(record);
  const BatchId batch = w.get(room, in(300ms));
  const Done done = w.reports().done(batch);
  EXPECT(done.status == Status::Timeout && !done.released);
  EXPECT_EQ(w.stack.usage().quarantined, 1u);
  w.slow->thaw();
  const Done late = w.reports().released(batch);
  EXPECT(late.late && late.status == Status::Ok && room == record);
  EXPECT_EQ(w.stack.usage().quarantined, 0u);
  EXPECT(w.promoted(1));
  EXPECT(w.ask.has(record));
}

// ---- puts and removes ---------------------------------------------------------------------------

HKV_TEST("a put goes to all as it is, and is over when all let go, with the word of the slowest") {
  for (int above = 0; above < tier_status_count; ++above) {
    for (int below = 0; below < tier_status_count; ++below) {
      const Status first = static_cast<Status>(above), second = static_cast<Status>(below);
      Tolds w(std::make_shared<Told>(Answer::Absent), std::make_shared<Told>(Answer::Absent, 8, true));
      Sample record = sample(2, {64}, sample(1).key.digest);
      record.flags = 9;
      record.pinned = record.durable = true;
      const BatchId batch = w.put(record);
      const bool begun = begins(*w.fast, 1) && begins(*w.slow, 1);
      EXPECT(begun);
      if (!begun) return;
      for (const Told* tier : {w.fast.get(), w.slow.get()}) {
        const ScriptedTier::Op& operation = *tier->begun()[0];
        EXPECT(operation.key == record.key && operation.parent == record.parent);
        EXPECT(operation.flags == 9 && operation.pinned && operation.tokens == 256);
        EXPECT(operation.identity == (Key128{7, 7}));
        EXPECT_EQ(operation.durable, tier == w.slow.get());
        EXPECT(operation.parts.size() == 1 && operation.parts[0].data == record.parts[0].data);
      }
      Told& last = above % 2 != 0 ? *w.fast : *w.slow;
      if (&last == w.fast.get()) {
        w.slow->end_one(second);
      } else {
        w.fast->end_one(first);
      }
      EXPECT(!w.stack.drain(in(1us)));
      EXPECT_EQ(w.reports().take(), 0u);
      last.end_one(&last == w.fast.get() ? first : second);
      EXPECT_EQ(w.reports().released(batch).status, second);
      EXPECT_EQ(w.stack.counts_of(0).copies_refused, first == Status::Ok ? 0u : 1u);
    }
  }
}

HKV_TEST("a fast tier that is full or too small is no error") {
  Memories w(memory(3 * 4256), memory());
  std::vector<Sample> records;
  for (std::uint64_t name = 1; name <= 9; ++name) {
    records.push_back(sample(name, {name == 9 ? std::size_t{20000} : 4096}));
    EXPECT_EQ(w.ask.put(records.back()).status, Status::Ok);
  }
  for (const Sample& record : records) EXPECT(w.ask.has(record));
  EXPECT_EQ(w.stack.usage().records, 9u);
  EXPECT_EQ(w.stack.counts_of(0).copies_refused, 1u);
  EXPECT(w.stack.usage_of(0).bytes <= 3 * 4256 && w.stack.usage_of(0).reclaimed != 0);
}

HKV_TEST("a remove is Ok only where none failed and one had it; a flush is that of the durable") {
  for (int above = 0; above < tier_status_count; ++above) {
    for (int below = 0; below < tier_status_count; ++below) {
      const Status first = static_cast<Status>(above), second = static_cast<Status>(below);
      const auto fails = [](Status status) { return status != Status::Ok && status != Status::Miss; };
      Tolds w(std::make_shared<Told>(Answer::Here), std::make_shared<Told>(Answer::Here, 8, above % 2 != 0));
      answers(*w.fast, first);
      answers(*w.slow, second);
      const Status told = fails(second)  ? second
                          : fails(first) ? first
                                         : std::min(first, second);  // Ok before Miss
      EXPECT_EQ(w.ask.remove(sample(1).key).status, told);
      EXPECT_EQ(w.fast->total(), 1u);
      const Status flushed = w.ask.flush().status;
      EXPECT_EQ(flushed, second == Status::Miss ? Status::Ok : second);
      EXPECT(w.fast->total() == 1 && w.slow->total() == 2);
    }
  }
  StackOf<Told, Told> both(std::make_shared<Told>(Answer::Here, 8, true),
                           std::make_shared<Told>(Answer::Here, 8, true));
  answers(*both.fast, Status::IoError);
  answers(*both.slow, Status::Ok);
  EXPECT_EQ(both.ask.flush().status, Status::IoError);
}

HKV_TEST("what was removed is not copied up again, whenever the get began") {
  for (const bool get_first : {true, false}) {
    StackOf<HeldMemory, Told> w(memory(), std::make_shared<Told>(Answer::Here));
    const Sample record = sample(1), other = sample(2);
    Sample room = room_for(record);
    BatchId get{}, remove{};
    if (get_first) get = w.get(room);
    if (get_first) EXPECT(begins(*w.slow, 1));
    remove = w.remove(record);
    EXPECT(begins(*w.slow, get_first ? 2 : 1));
    if (!get_first) get = w.get(room);
    EXPECT(begins(*w.slow, 2));
    const std::size_t place = get_first ? 0 : 1;
    if (get_first) w.slow->end_one(Status::Ok, 1);
    if (get_first) EXPECT_EQ(w.reports().done(remove).status, Status::Ok);
    bring(*w.slow, record, get_first ? 0 : place);
    EXPECT_EQ(w.reports().done(get).status, Status::Ok);
    if (!get_first) w.slow->end_one(Status::Ok);
    EXPECT_EQ(w.reports().done(remove).status, Status::Ok);
    Sample elsewhere = room_for(other);
    get = w.get(elsewhere);  // which is copied up
    EXPECT(begins(*w.slow, 3));
    bring(*w.slow, other);
    EXPECT(w.promoted(1));
    EXPECT(here(*w.fast, other) && !here(*w.fast, record));
  }
}

// ---- full queues, cancel, close -----------------------------------------------------------------

HKV_TEST("a full queue below loses nothing and keeps the order of puts and of a flush behind them") {
  StackOf<HeldMemory, Told> w(memory(), std::make_shared<Told>(Answer::Absent, 1, true, 2));
  std::vector<Sample> chain;
  std::vector<PutItem> items;
  for (std::uint64_t name = 1; name <= 12; ++name) {
    chain.push_back(sample(name, {64}, chain.empty() ? Key128{} : chain.back().key.digest));
  }
  for (const Sample& each : chain) items.push_back(each.put_item());
  BatchId batch{}, flush{};
  EXPECT_EQ(w.stack.put(items, never, batch), Status::Ok);
  EXPECT_EQ(w.stack.flush(never, flush), Status::Ok);
  EXPECT(comes([&] { return w.fast->usage().records == 12; }));  // which waits for nobody below
  std::vector<std::uint64_t> order;
  for (std::uint32_t i = 0; i < 13; ++i) {
    EXPECT(begins(*w.slow, i + 1));
    EXPECT(w.slow->usage().queued <= 1);
    order.push_back(names(w.slow->begun())[0]);
    w.slow->end_one(Status::Ok);
  }
  EXPECT(order == (std::vector<std::uint64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0}));
  for (std::uint32_t i = 0; i < 12; ++i) EXPECT_EQ(w.reports().done(batch, i).status, Status::Ok);
  EXPECT_EQ(w.reports().done(flush).status, Status::Ok);
}

HKV_TEST("what a full queue keeps waiting times out and is cancelled without it") {
  Tolds w(std::make_shared<Told>(Answer::Absent, 8), std::make_shared<Told>(Answer::Here, 1, false, 2));
  std::vector<Sample> rooms;
  for (std::uint64_t name = 1; name <= 5; ++name) rooms.push_back(room_for(sample(name)));
  const BatchId running = w.get(rooms[0]), queued = w.get(rooms[1]);
  EXPECT(comes([&] { return w.slow->usage().queued == 1; }));
  const BatchId cancelled = w.get(rooms[2]), short_of_time = w.get(rooms[3], in(10ms)),
                last = w.get(rooms[4]);
  HKV_REQUIRE(is_told(w.reports(), short_of_time, Status::Timeout));
  HKV_REQUIRE(comes([&] { return w.stack.usage().quarantined == 0; }));  // nobody writes what was never begun
  w.stack.cancel(cancelled);
  HKV_REQUIRE(is_told(w.reports(), cancelled, Status::Cancelled));
  w.stack.cancel(queued);  // in the tier's own queue
  HKV_REQUIRE(is_told(w.reports(), queued, Status::Cancelled));
  w.stack.cancel(running);
  EXPECT(comes([&] { return w.slow->usage().queued == 1; }));  // the last one found room
  EXPECT(!w.reports().reported(running) && !w.reports().reported(last));
  w.slow->end_one(Status::Ok);
  EXPECT_EQ(w.reports().done(running).status, Status::Ok);
  EXPECT(begins(*w.slow, 2));
  w.slow->end_one(Status::Miss);
  EXPECT_EQ(w.reports().done(last).status, Status::Miss);
  EXPECT_EQ(w.stack.usage().running + w.stack.usage().queued, 0u);
}

HKV_TEST("what was cancelled is not asked of the next tier") {
  Tolds w(std::make_shared<Told>(Answer::Here, 1), std::make_shared<Told>(Answer::Here));
  const Sample rooms[] = {room_for(sample(1)), room_for(sample(2))};
  const GetItem items[] = {rooms[0].get_item(), rooms[1].get_item()};
  BatchId batch{};
  EXPECT_EQ(w.stack.get(items, never, Priority::Demand, batch), Status::Ok);
  EXPECT(begins(*w.fast, 1));
  EXPECT(comes([&] { return w.fast->usage().queued == 1; }));
  w.stack.cancel(batch);
  EXPECT_EQ(w.reports().done(batch, 1).status, Status::Cancelled);  // so that the stack knows of it
  w.fast->end_one(Status::Miss);
  HKV_REQUIRE(is_told(w.reports(), batch, Status::Cancelled));
  EXPECT_EQ(w.slow->total(), 0u);
}

HKV_TEST("close asks the next tier what waited before the one that closes") {
  Tolds w(std::make_shared<Told>(Answer::Here, 1, false, 2), std::make_shared<Told>(Answer::Here));
  answers(*w.slow, Status::Ok);
  std::vector<Sample> rooms;
  std::vector<BatchId> batches;
  for (std::uint64_t name = 1; name <= 4; ++name) {
    rooms.push_back(sample(name));
    batches.push_back(w.get(rooms.back()));
  }
  HKV_REQUIRE(comes([&] { return w.fast->usage().queued == 1; }));
  w.stack.close();
  for (std::size_t i = 0; i < 4; ++i) {  // one was begun above, one queued there
    EXPECT_EQ(w.reports().done(batches[i]).status, i < 2 ? Status::Cancelled : Status::Ok);
  }
}

HKV_TEST("close with work in flight answers everything and closes the tiers") {
  Tolds w(std::make_shared<Told>(Answer::Here, 1, false, 2), std::make_shared<Told>(Answer::Absent, 2));
  std::vector<Sample> records;
  for (std::uint64_t name = 1; name <= 9; ++name) records.push_back(sample(name));
  std::vector<BatchId> batches;
  for (std::size_t i = 0; i < 5; ++i) batches.push_back(w.put(records[i]));
  for (std::size_t i = 5; i < 9; ++i) batches.push_back(w.get(records[i]));
  EXPECT(begins(*w.fast, 1) && begins(*w.slow, 1));
  w.stack.close();
  for (const BatchId batch : batches) EXPECT(w.reports().done(batch).released);
  EXPECT_EQ(w.reports().reports(), batches.size());
  BatchId batch{};
  EXPECT_EQ(w.fast->flush(never, batch), Status::Closed);
  EXPECT_EQ(w.slow->flush(never, batch), Status::Closed);
  EXPECT_EQ(w.stack.flush(never, batch), Status::Closed);
  w.stack.cancel(batches[0]);
  w.stack.close();
}

HKV_TEST("a tier that somebody closed is passed over") {
  Memories w(memory(), memory());
  const Sample record = sample(1), other = sample(2);
  EXPECT_EQ(w.ask.put(record).status, Status::Ok);
  w.fast->close();
  EXPECT(w.ask.has(record));
  EXPECT_EQ(w.ask.put(other).status, Status::Ok);
  EXPECT(w.ask.has(other));
  EXPECT_EQ(w.stack.counts_of(0).copies_refused, 1u);
}

HKV_TEST("a stack is a tier, so that stacks stand on one another") {
  const auto low = std::make_shared<TierStack>(std::vector<std::shared_ptr<Tier>>{memory(), memory()});
  StackOf<HeldMemory, TierStack> w(memory(2 * 4256), low);
  std::vector<Sample> records;
  for (std::uint64_t name = 1; name <= 6; ++name) {
    records.push_back(sample(name, {4096}));
    EXPECT_EQ(w.ask.put(records.back()).status, Status::Ok);
  }
  for (const Sample& record : records) EXPECT(w.ask.has(record));
  EXPECT(w.stack.counts_of(1).hits >= 4);
}

}  // namespace hkv
