// SPDX-License-Identifier: Apache-2.0
// The contract of tiers, first part: what an item is answered.
#pragma once
#include "tier/contract_world.h"

namespace hkv::contract::items {

HKV_CONTRACT("what was put comes back, whole, in part, and in another order") {
  const auto world = make_world({});
  Asker ask(world->tier());
  const Sample record = sample(1);
  EXPECT_EQ(ask.put(record).status, Status::Ok);
  EXPECT(ask.has(record));
  for (unsigned subset = 0; subset < 8; ++subset) {
    for (const bool reversed : {false, true}) {
      Sample room = room_for(record);
      std::vector<Part> asked;
      for (std::size_t i = 0; i < 3; ++i) {
        const std::size_t part = reversed ? 2 - i : i;
        if (subset >> part & 1) asked.push_back(room.parts[part]);
      }
      EXPECT_EQ(ask.get(record.key, asked).status, Status::Ok);
      for (std::size_t i = 0; i < 3; ++i) {
        const Sample untouched = room_for(record);
        EXPECT(room.pages[i] == (subset >> i & 1 ? record.pages[i] : untouched.pages[i]));
      }
    }
  }
  EXPECT_EQ(world->tier().usage().records, 1u);
}

HKV_CONTRACT("what is not there is a miss, however it is asked for") {
  const auto world = make_world({});
  Asker ask(world->tier());
  Sample room = room_for(sample(1));
  const Done done = ask.get(room);
  EXPECT_EQ(done.status, Status::Miss);
  EXPECT_EQ(done.damage, Damage::None);
  EXPECT_EQ(ask.probe(room.key).status, Status::Miss);
  EXPECT_EQ(ask.remove(room.key).status, Status::Miss);
  if (world->tier().caps().index) EXPECT_EQ(world->tier().look(room.key).answer, Answer::Absent);
  EXPECT_EQ(world->tier().usage().misses, 1u);
}

HKV_CONTRACT("a put of an existing key is Ok and the record stays as it was") {
  const auto world = make_world({});
  Asker ask(world->tier());
  const Sample record = sample(1);
  Sample other = sample(1);
  other.fill(2);
  EXPECT_EQ(ask.put(record).status, Status::Ok);
  const std::uint64_t written = world->tier().usage().bytes_written;
  EXPECT_EQ(ask.put(other).status, Status::Ok);
  EXPECT(ask.has(record));
  EXPECT_EQ(world->tier().usage().bytes_written, written);
  EXPECT_EQ(world->tier().usage().put_known, 1u);
}

HKV_CONTRACT("another format and another kind are other records") {
  const auto world = make_world({});
  Asker ask(world->tier());
  const Sample record = sample(1);
  EXPECT_EQ(ask.put(record).status, Status::Ok);
  Sample room = room_for(record);
  room.key.format = {1, 1};
  EXPECT_EQ(ask.get(room).status, Status::Miss);
  EXPECT_EQ(ask.probe(room.key).status, Status::Miss);
  if (world->tier().caps().index) EXPECT_EQ(world->tier().look(room.key).answer, Answer::OtherFormat);
  room = room_for(record);
  room.key.kind = RecordKind::Boundary;
  EXPECT_EQ(ask.get(room).status, Status::Miss);
  if (world->tier().caps().index) EXPECT_EQ(world->tier().look(room.key).answer, Answer::Absent);

  Sample reformatted = sample(1);
  reformatted.key.format = {1, 1};
  reformatted.fill(9);
  EXPECT_EQ(ask.put(reformatted).status, Status::Ok);
  EXPECT(ask.has(reformatted));
  EXPECT(ask.has(record));
}

HKV_CONTRACT("parts that a record has not, or not in that size, are a mismatch, and the record stays") {
  const auto world = make_world({});
  Asker ask(world->tier());
  const Sample record = sample(1);
  EXPECT_EQ(ask.put(record).status, Status::Ok);
  const auto asked_with = [&](auto&& change) {
    Sample room = room_for(record);
    change(room.parts[1]);
    return ask.get(room);
  };
  for (const Done& done :
       {asked_with([](Part& part) { part.bytes -= 1; }), asked_with([](Part& part) { part.bytes = 1; }),
        asked_with([](Part& part) { part.label.layer += 1; }),
        asked_with([](Part& part) { part.label.block += 1; }),
        asked_with([](Part& part) { part.label.rows += 1; }),
        asked_with([](Part& part) { part.label.group += 9; })}) {
    EXPECT_EQ(done.status, Status::Mismatch);
    EXPECT_EQ(done.damage, Damage::Parts);
  }
  EXPECT_EQ(world->tier().usage().mismatched, 6u);
  EXPECT(ask.has(record));
  std::vector<std::byte> longer(record.pages[1].size() + 1);
  const Part too_long{longer.data(), longer.size(), record.parts[1].label};
  EXPECT_EQ(ask.get(record.key, {&too_long, 1}).status, Status::Mismatch);
}

HKV_CONTRACT("a record of no parts is there or not, and a batch of no items reports nothing") {
  const auto world = make_world({});
  Asker ask(world->tier());
  const Sample record = sample(1, {});
  EXPECT_EQ(ask.get(record).status, Status::Miss);
  EXPECT_EQ(ask.put(record).status, Status::Ok);
  EXPECT_EQ(ask.get(record).status, Status::Ok);
  const std::size_t before = ask.reports.reports();
  BatchId batch{};
  EXPECT_EQ(world->tier().get({}, never, Priority::Demand, batch), Status::Ok);
  EXPECT_EQ(world->tier().put({}, never, batch), Status::Ok);
  EXPECT(world->tier().drain(never));
  EXPECT_EQ(ask.reports.take(), 0u);
  EXPECT_EQ(ask.reports.reports(), before);
}

HKV_CONTRACT("an ask that is wrong in itself is Invalid, and its neighbours are answered") {
  const auto world = make_world({});
  Tier& tier = world->tier();
  Asker ask(tier);
  const Sample good = sample(1), absent = room_for(sample(2));
  const std::size_t most = tier.caps().most_bytes;
  std::vector<std::pair<const char*, PutItem>> wrong;
  std::vector<std::vector<Part>> kept(5, good.parts);
  const auto with_parts = [&](const char* what, std::size_t i) {
    wrong.emplace_back(what, sample(100 + i).put_item());
    wrong.back().second.parts = kept[i];
  };
  kept[0][1].data = nullptr;
  with_parts("null data", 0);
  kept[1][1].bytes = 0;
  with_parts("no bytes", 1);
  kept[2][2].label = kept[2][0].label;
  with_parts("repeated label", 2);
  kept[3][2].bytes = most;
  with_parts("too large", 3);
  kept[4][0].bytes = kept[4][1].bytes = ~std::size_t{0} / 2;
  with_parts("sizes that overflow", 4);
  const auto changed = [&](const char* what, auto&& change) {
    wrong.emplace_back(what, good.put_item());
    wrong.back().second.key.digest.lo += 1000;
    change(wrong.back().second);
  };
  changed("tombstone", [](PutItem& item) { item.key.kind = RecordKind::Tombstone; });
  changed("no kind", [](PutItem& item) { item.key.kind = RecordKind{0}; });
  changed("no digest", [](PutItem& item) { item.key.digest = {}; });
  changed("own parent", [](PutItem& item) { item.parent = item.key.digest; });
  if (!tier.caps().durable) changed("durable", [](PutItem& item) { item.durable = true; });

  std::vector<PutItem> batch_of;
  for (const auto& [what, item] : wrong) batch_of.push_back(item);
  batch_of.push_back(good.put_item());
  BatchId batch;
  EXPECT_EQ(tier.put(batch_of, never, batch), Status::Ok);
  for (std::uint32_t i = 0; i < wrong.size(); ++i) {
    const Done done = ask.reports.done(batch, i);
    if (done.status != Status::Invalid) std::fprintf(stderr, "%s: ", wrong[i].first);
    EXPECT_EQ(done.status, Status::Invalid);
    EXPECT(done.released);
  }
  EXPECT_EQ(ask.reports.done(batch, static_cast<std::uint32_t>(wrong.size())).status, Status::Ok);
  EXPECT(ask.has(good));
  EXPECT_EQ(tier.usage().records, 1u);

  Sample room = room_for(good);
  std::vector<Part> repeated{room.parts[0], room.parts[0]};
  const GetItem gets[] = {
      {good.key, room.parts}, {good.key, repeated}, {absent.key, absent.parts}, {{}, room.parts}};
  EXPECT_EQ(tier.get(gets, never, Priority::Demand, batch), Status::Ok);
  EXPECT_EQ(ask.reports.done(batch, 0).status, Status::Ok);
  EXPECT_EQ(ask.reports.done(batch, 1).status, Status::Invalid);
  EXPECT_EQ(ask.reports.done(batch, 2).status, Status::Miss);
  EXPECT_EQ(ask.reports.done(batch, 3).status, Status::Invalid);
  EXPECT(room == good);
}

HKV_CONTRACT("look gives back the writer's flags, without I/O") {
  const auto world = make_world({});
  Tier& tier = world->tier();
  Asker ask(tier);
  Sample record = sample(1);
  record.flags = 0xA5;
  EXPECT_EQ(ask.put(record).status, Status::Ok);
  if (!tier.caps().index) {
    EXPECT_EQ(tier.look(record.key).answer, Answer::Unknown);
    return;
  }
  const std::uint64_t read = tier.usage().bytes_read;
  if (!world->freeze()) lacks("freeze");  // then only the count of bytes shows it
  EXPECT_EQ(tier.look(record.key).answer, Answer::Here);
  EXPECT_EQ(tier.look(record.key).flags, 0xA5);
  tier.touch(record.key);
  world->thaw();
  EXPECT_EQ(tier.usage().bytes_read, read);
}

HKV_CONTRACT("a record is taken below its parent and goes with it") {
  const auto world = make_world({});
  Tier& tier = world->tier();
  if (!tier.caps().index) return;
  Asker ask(tier);
  const Sample first = sample(1);
  const Sample second = sample(2, {512}, first.key.digest);
  const Sample beside = sample(3, {512}, first.key.digest);
  const Sample boundary = sample(2, {300}, second.key.digest, RecordKind::Boundary);
  const Sample free = sample(4);
  Sample reformatted = sample(5, {512}, first.key.digest);
  reformatted.key.format = {9, 9};
  EXPECT_EQ(ask.put(second).status, Status::Miss);
  EXPECT_EQ(ask.put(boundary).status, Status::Miss);
  EXPECT_EQ(tier.usage().records, 0u);
  for (const Sample* record : {&first, &second, &beside, &boundary, &free}) {
    EXPECT_EQ(ask.put(*record).status, Status::Ok);
  }
  EXPECT_EQ(ask.put(reformatted).status, Status::Miss);  // its parent is there, but in another format
  EXPECT(ask.has(boundary) && ask.has(second));

  EXPECT_EQ(ask.remove(second.key).status, Status::Ok);
  for (const Sample* gone : {&second, &boundary}) {
    EXPECT_EQ(tier.look(gone->key).answer, Answer::Absent);
    EXPECT_EQ(ask.probe(gone->key).status, Status::Miss);
  }
  EXPECT(ask.has(first) && ask.has(beside) && ask.has(free));
  EXPECT_EQ(ask.put(boundary).status, Status::Miss);
  EXPECT_EQ(ask.remove(first.key).status, Status::Ok);
  EXPECT_EQ(tier.look(beside.key).answer, Answer::Absent);
  EXPECT_EQ(tier.usage().records, 1u);
}

HKV_CONTRACT("what was removed is gone, and comes again as a new record") {
  const auto world = make_world({});
  Asker ask(world->tier());
  const Sample record = sample(1);
  Sample other = sample(1);
  other.fill(2);
  EXPECT_EQ(ask.put(record).status, Status::Ok);
  EXPECT_EQ(ask.remove(record.key).status, Status::Ok);
  EXPECT_EQ(ask.remove(record.key).status, Status::Miss);
  Sample room = room_for(record);
  EXPECT_EQ(ask.get(room).status, Status::Miss);
  EXPECT_EQ(ask.put(other).status, Status::Ok);
  EXPECT(ask.has(other));
  EXPECT_EQ(world->tier().usage().removed, 1u);
}

HKV_CONTRACT("what is found no more has moved the count of losses, and what is still there has not") {
  const auto world = make_world({});
  Tier& tier = world->tier();
  Asker ask(tier);
  const Sample record = sample(1), below = sample(2, {700}, record.key.digest), beside = sample(3);
  for (const auto& each : {record, below, beside}) EXPECT_EQ(ask.put(each).status, Status::Ok);
  std::uint64_t before = tier.losses();
  EXPECT_EQ(ask.put(record).status, Status::Ok);
  EXPECT(ask.has(record) && ask.has(below) && ask.has(beside));
  EXPECT_EQ(tier.losses(), before);
  EXPECT_EQ(ask.remove(beside.key).status, Status::Ok);
  EXPECT(tier.losses() != before);
  before = tier.losses();
  if (!world->corrupt(record.key)) return;
  auto room = record;
  EXPECT_EQ(ask.get(room).status, Status::Corrupt);
  const Answer left = tier.look_lasting(record.key).answer;
  EXPECT(left != Answer::Here);
  EXPECT(tier.losses() != before);
}

HKV_CONTRACT("a flipped bit is Corrupt, and the record is dropped with what is below it") {
  const auto world = make_world({});
  Tier& tier = world->tier();
  Asker ask(tier);
  const Sample record = sample(1), below = sample(2, {64}, record.key.digest), beside = sample(3);
  for (const Sample* each : {&record, &below, &beside}) EXPECT_EQ(ask.put(*each).status, Status::Ok);
  if (!world->corrupt(record.key)) {
    lacks("flip a bit");
    return;
  }
  Sample room = room_for(record);
  EXPECT_EQ(ask.get(record.key, {&room.parts[1], 2}).status,
            Status::Ok);  // the flipped part is not asked for
  const Done done = ask.get(room);
  EXPECT_EQ(done.status, Status::Corrupt);
  EXPECT_EQ(done.damage, Damage::Content);
  EXPECT_EQ(tier.usage().corrupt, 1u);
  EXPECT_EQ(ask.get(room).status, Status::Miss);
  EXPECT_EQ(tier.look(record.key).answer, tier.caps().index ? Answer::Absent : Answer::Unknown);
  if (tier.caps().index) EXPECT_EQ(ask.probe(below.key).status, Status::Miss);
  EXPECT(ask.has(beside));
  EXPECT_EQ(ask.put(record).status, Status::Ok);
  EXPECT(ask.has(record));
}

HKV_CONTRACT("what is pinned outlives what is not, with all that it stands on") {
  WorldOptions options;
  options.small = true;
  const auto world = make_world(options);
  Tier& tier = world->tier();
  Asker ask(tier);
  const Sample root = sample(1, {4096});
  Sample pinned = sample(2, {4096}, root.key.digest);
  pinned.pinned = true;
  EXPECT_EQ(ask.put(root).status, Status::Ok);
  EXPECT_EQ(ask.put(pinned).status, Status::Ok);
  std::uint64_t name = 10;
  for (int turn = 0; turn < 3; ++turn) {  // until what was put in the turn before is gone
    const std::uint64_t first = name;
    const auto gone = [&] { return ask.probe(sample(first, {}).key).status == Status::Miss; };
    do {
      EXPECT_EQ(ask.put(sample(name++, {4096})).status, Status::Ok);
    } while (!gone() && name < 100000);
  }
  EXPECT(tier.usage().reclaimed > 0);
  EXPECT(tier.losses() > 0);
  EXPECT(tier.usage().bytes <= tier.usage().capacity_bytes);
  EXPECT(ask.has(root) && ask.has(pinned));
}

HKV_CONTRACT("flush is Ok, and what it followed is there when the store is opened again") {
  const auto world = make_world({});
  Asker ask(world->tier());
  const Sample record = sample(1), removed = sample(2);
  EXPECT_EQ(ask.put(record).status, Status::Ok);
  EXPECT_EQ(ask.put(removed).status, Status::Ok);
  EXPECT_EQ(ask.remove(removed.key).status, Status::Ok);
  EXPECT_EQ(ask.flush().status, Status::Ok);
  const bool durable = world->tier().caps().durable;
  if (!world->reopen()) {
    EXPECT(!durable);
    lacks("open its store again");
    return;
  }
  Asker again(world->tier());
  EXPECT_EQ(again.probe(record.key).status, durable ? Status::Ok : Status::Miss);
  if (durable) EXPECT(again.has(record));
  EXPECT_EQ(again.probe(removed.key).status, Status::Miss);
}

}  // namespace hkv::contract::items
