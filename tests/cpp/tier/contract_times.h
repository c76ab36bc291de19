// SPDX-License-Identifier: Apache-2.0
// The contract of tiers, second part: what is slow, full or broken. Sleeps only wait for what must come; no expectation
// is about how soon.
#pragma once
#include <thread>

#include "tier/contract_world.h"

namespace hkv::contract::times {

// A world in which records 1 to 8 are there and nothing that is begun ends. nullptr: it cannot be frozen.
inline std::unique_ptr<TierWorld> frozen_world(const WorldOptions& options) {
  auto world = make_world(options);
  Asker ask(world->tier());
  for (std::uint64_t name = 1; name <= 8; ++name) EXPECT_EQ(ask.put(sample(name)).status, Status::Ok);
  if (world->freeze()) return world;
  lacks("freeze");
  return nullptr;
}

inline WorldOptions narrow(std::uint32_t breaker_after = 0) {
  WorldOptions options;
  options.depth = 1;
  options.limits.breaker_after = breaker_after;
  options.limits.breaker_first = 20ms;
  options.limits.breaker_most = 40ms;
  return options;
}

inline BatchId ask_for(Tier& tier, const Sample& room, Deadline deadline) {
  const GetItem item = room.get_item();
  BatchId batch{};
  EXPECT_EQ(tier.get({&item, 1}, deadline, Priority::Demand, batch), Status::Ok);
  return batch;
}

HKV_CONTRACT("the event fd is readable while there is a report, and only then") {
  const auto world = make_world({});
  Tier& tier = world->tier();
  EXPECT(!readable(tier.event_fd(), 0));
  EXPECT(!tier.wait(0ns));
  const Sample record = sample(1);
  const PutItem items[] = {record.put_item(), record.put_item()};
  BatchId batch;
  EXPECT_EQ(tier.put(items, never, batch), Status::Ok);
  EXPECT(tier.drain(never));
  EXPECT(readable(tier.event_fd(), 60000));
  EXPECT(tier.wait(0ns));
  Done done;
  EXPECT_EQ(tier.poll({&done, 1}), 1u);
  EXPECT(readable(tier.event_fd(), 0));
  EXPECT_EQ(tier.poll({&done, 1}), 1u);
  EXPECT(!readable(tier.event_fd(), 0));
  EXPECT_EQ(tier.poll({&done, 1}), 0u);
}

HKV_TEST(
    "contract: a deadline wakes the event fd although the engine is frozen, and quarantines the memory") {
  const auto world = frozen_world(narrow());
  if (!world) return;
  Tier& tier = world->tier();
  Collector reports(tier);
  const Sample record = sample(1);
  Sample room = room_for(record);
  const BatchId batch = ask_for(tier, room, in(100ms));  // enough to be under way by then
  EXPECT(readable(tier.event_fd(), 60000));
  const Done done = reports.done(batch);
  EXPECT_EQ(done.status, Status::Timeout);
  EXPECT(!done.released && !done.late);
  EXPECT_EQ(tier.usage().quarantined, 1u);
  EXPECT_EQ(tier.usage().running, 0u);
  EXPECT(!readable(tier.event_fd(), 0));
  EXPECT(tier.drain(never));  // it has its status
  world->thaw();
  const Done late = reports.released(batch);
  EXPECT(late.late && late.released);
  EXPECT_EQ(late.status, Status::Ok);
  EXPECT(room == record);
  EXPECT_EQ(tier.usage().quarantined, 0u);
  EXPECT_EQ(tier.usage().timeouts, 1u);
  EXPECT_EQ(tier.usage().hits, 0u);
}

HKV_CONTRACT("what was never begun times out with its memory released") {
  const auto world = frozen_world(narrow());
  if (!world) return;
  Tier& tier = world->tier();
  Collector reports(tier);
  Sample first = room_for(sample(1)), second = room_for(sample(2)), third = room_for(sample(3));
  const BatchId running = ask_for(tier, first, never);
  const BatchId queued = ask_for(tier, second, in(10ms));
  const BatchId past = ask_for(tier, third, TierClock::now() - 1h);
  EXPECT_EQ(reports.done(past).status, Status::Timeout);
  const Done done = reports.done(queued);
  EXPECT_EQ(done.status, Status::Timeout);
  EXPECT(done.released);
  EXPECT(second == room_for(second));
  EXPECT(!reports.reported(running));
  world->thaw();
  EXPECT_EQ(reports.done(running).status, Status::Ok);
}

HKV_CONTRACT("after three failures everything is Unavailable at once, then one is tried") {
  const auto world = frozen_world(narrow(3));
  if (!world) return;
  Tier& tier = world->tier();
  Collector reports(tier);
  std::vector<Sample> rooms;
  for (std::uint64_t name = 1; name <= 6; ++name) rooms.push_back(room_for(sample(name)));
  const BatchId stuck = ask_for(tier, rooms[0], in(100ms));  // enough to be under way by then
  EXPECT_EQ(reports.done(stuck).status, Status::Timeout);
  const BatchId second = ask_for(tier, rooms[1], in(5ms));
  EXPECT_EQ(reports.done(second).status, Status::Timeout);
  EXPECT(!tier.usage().breaker_open);
  const BatchId waiting = ask_for(tier, rooms[3], never);
  const BatchId third = ask_for(tier, rooms[2], in(5ms));
  EXPECT_EQ(reports.done(third).status, Status::Timeout);
  EXPECT(tier.usage().breaker_open);
  EXPECT_EQ(tier.usage().breaker_opened, 1u);
  EXPECT_EQ(reports.done(waiting).status, Status::Unavailable);  // it was queued
  EXPECT_EQ(reports.done(ask_for(tier, rooms[4], never)).status, Status::Unavailable);
  world->thaw();
  EXPECT_EQ(reports.released(stuck).status, Status::Ok);
  EXPECT(tier.usage().breaker_open);  // what was let through before tells nothing now
  std::this_thread::sleep_for(25ms);
  EXPECT_EQ(reports.done(ask_for(tier, rooms[5], never)).status, Status::Ok);
  EXPECT(!tier.usage().breaker_open);
  EXPECT(rooms[5] == sample(6));
}

HKV_CONTRACT("cancel takes back what is queued and leaves what is under way") {
  const auto world = frozen_world(narrow());
  if (!world) return;
  Tier& tier = world->tier();
  Collector reports(tier);
  Sample rooms[] = {room_for(sample(1)), room_for(sample(2)), room_for(sample(3))};
  const GetItem items[] = {rooms[0].get_item(), rooms[1].get_item()};
  BatchId batch;
  EXPECT_EQ(tier.get(items, never, Priority::Demand, batch), Status::Ok);
  const BatchId other = ask_for(tier, rooms[2], never);
  tier.cancel(batch);
  const Done done = reports.done(batch, 1);
  EXPECT_EQ(done.status, Status::Cancelled);
  EXPECT(done.released);
  EXPECT(!reports.reported(batch, 0) && !reports.reported(other));
  tier.cancel(batch);
  tier.cancel(BatchId{12345});
  world->thaw();
  EXPECT_EQ(reports.done(batch, 0).status, Status::Ok);
  EXPECT_EQ(reports.done(other).status, Status::Ok);
  EXPECT(rooms[0] == sample(1) && rooms[2] == sample(3));
}

HKV_TEST(
    "contract: a full tier is Busy, takes nothing of the batch, and takes again once reports were polled") {
  WorldOptions options = narrow();
  options.limits.most_items = 4;
  const auto world = frozen_world(options);
  if (!world) return;
  Tier& tier = world->tier();
  Collector reports(tier);
  Sample rooms[] = {room_for(sample(1)), room_for(sample(2)), room_for(sample(3)), room_for(sample(4)),
                    room_for(sample(5))};
  std::vector<GetItem> items;
  for (const Sample& room : rooms) items.push_back(room.get_item());
  BatchId batch{}, refused{};
  EXPECT_EQ(tier.get(items, never, Priority::Demand, refused), Status::Invalid);  // it would never fit
  EXPECT_EQ(tier.get({items.data(), 3}, never, Priority::Demand, batch), Status::Ok);
  EXPECT_EQ(tier.get({items.data(), 2}, never, Priority::Demand, refused), Status::Busy);
  EXPECT_EQ(tier.usage().queued + tier.usage().running, 3u);
  EXPECT(refused == BatchId{});
  world->thaw();
  EXPECT(tier.drain(never));
  EXPECT_EQ(tier.get({items.data(), 2}, never, Priority::Demand, refused), Status::Busy);  // nobody polled
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_EQ(reports.done(batch, i).status, Status::Ok);
  EXPECT_EQ(tier.get({items.data(), 2}, never, Priority::Demand, refused), Status::Ok);
  EXPECT_EQ(reports.done(refused, 1).status, Status::Ok);
}

HKV_CONTRACT("drain waits for what was taken, and no longer than asked") {
  const auto world = frozen_world(narrow());
  if (!world) return;
  Tier& tier = world->tier();
  EXPECT(tier.drain(TierClock::now() - 1h));
  Sample room = room_for(sample(1));
  ask_for(tier, room, never);
  EXPECT(!tier.drain(in(5ms)));
  std::thread other([&] {
    std::this_thread::sleep_for(5ms);
    world->thaw();
  });
  EXPECT(tier.drain(never));
  other.join();
  EXPECT(room == sample(1));
}

HKV_CONTRACT("close answers what is queued, waits for what is under way, and leaves the reports") {
  const auto world = frozen_world(narrow());
  if (!world) return;
  Tier& tier = world->tier();
  Sample running = room_for(sample(1)), queued = room_for(sample(2)), late = room_for(sample(3));
  const BatchId under_way = ask_for(tier, running, never);
  const BatchId waiting = ask_for(tier, queued, never);
  std::thread closer([&] { tier.close(); });
  std::thread second([&] { tier.close(); });
  world->thaw();
  closer.join();
  second.join();
  Collector reports(tier);
  const Done done = reports.done(under_way);
  EXPECT(done.released);
  EXPECT(done.status == Status::Ok && running == sample(1));
  const Status left = reports.done(waiting).status;  // the thaw may have been before the close
  EXPECT(left == Status::Cancelled || left == Status::Ok);
  const GetItem item = late.get_item();
  BatchId batch{};
  EXPECT_EQ(tier.get({&item, 1}, never, Priority::Demand, batch), Status::Closed);
  EXPECT_EQ(tier.flush(never, batch), Status::Closed);
  EXPECT(tier.drain(never));
  tier.cancel(under_way);
  tier.close();
  EXPECT_EQ(tier.usage().running + tier.usage().queued + tier.usage().quarantined, 0u);
}

HKV_CONTRACT("close with a call that timed out waits until its memory is let go of") {
  const auto world = frozen_world(narrow());
  if (!world) return;
  Tier& tier = world->tier();
  Collector reports(tier);
  Sample room = room_for(sample(1));
  const BatchId batch = ask_for(tier, room, in(1ms));
  EXPECT_EQ(reports.done(batch).status, Status::Timeout);
  std::thread other([&] { world->thaw(); });
  tier.close();
  other.join();
  EXPECT(reports.released(batch).released);
}

HKV_CONTRACT("close with a limit gives up while the engine holds something, and can be asked again") {
  const auto world = frozen_world(narrow());
  if (!world) return;
  Tier& tier = world->tier();
  Collector reports(tier);
  Sample running = room_for(sample(1)), queued = room_for(sample(2));
  const BatchId under_way = ask_for(tier, running, never);
  const BatchId waiting = ask_for(tier, queued, never);
  EXPECT(!tier.close_by(in(1ms)));
  EXPECT(!tier.close_by(TierClock::now() - 1h));
  EXPECT_EQ(reports.done(waiting).status, Status::Cancelled);
  EXPECT(!reports.reported(under_way));
  const GetItem item = queued.get_item();
  BatchId batch{};
  EXPECT_EQ(tier.get({&item, 1}, never, Priority::Demand, batch), Status::Closed);
  world->thaw();
  EXPECT(tier.close_by(in(60s)));
  EXPECT(tier.close_by(in(0s)));
  EXPECT_EQ(reports.done(under_way).status, Status::Ok);
  EXPECT(running == sample(1));
}

}  // namespace hkv::contract::times
