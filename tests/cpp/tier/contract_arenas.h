// SPDX-License-Identifier: Apache-2.0
// The contract of tiers, fourth part: memory that the asker promises to keep.
#pragma once
#include <string>

#include "base/check.h"
#include "tier/aligned_memory.h"
#include "tier/contract_times.h"

namespace hkv::contract::arenas {

// A record of two parts that lie behind each other in memory of its own, in a size that direct I/O takes.
struct Aligned {
  static constexpr std::size_t part = 96u << 10;
  explicit Aligned(std::uint64_t name) : memory(2 * part), record(sample(name, {})) {
    for (std::uint16_t i = 0; i < 2; ++i)
      record.parts.push_back({memory.data() + i * part, part, {i, 0, 1, 0}});
  }
  AlignedMemory memory;
  Sample record;
};

inline std::string refusal(const std::function<void()>& ask) {
  try {
    ask();
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ErrorCode::ArgumentError);
    return error.field;
  }
  return {};
}

HKV_CONTRACT("what lies in an arena moves as anything else, from it and into it, in whole and in part") {
  const auto world = make_world({});
  Tier& tier = world->tier();
  Asker ask(tier);
  Aligned put(1), got(1);
  put.memory.fill(3);
  EXPECT_EQ(tier.add_arena(put.memory.data(), put.memory.size()), Status::Ok);
  EXPECT_EQ(tier.add_arena(got.memory.data(), got.memory.size()), Status::Ok);
  EXPECT_EQ(tier.usage().arenas, 2u);
  EXPECT(tier.usage().arenas_fixed <= 2);
  EXPECT_EQ(ask.put(put.record).status, Status::Ok);
  const auto same = [&](std::size_t from, std::size_t bytes) {
    return std::memcmp(put.memory.data() + from, got.memory.data() + from, bytes) == 0;
  };
  EXPECT_EQ(ask.get(got.record).status, Status::Ok);
  EXPECT(same(0, 2 * Aligned::part));
  got.memory.fill(4);
  EXPECT_EQ(ask.get(got.record.key, {&got.record.parts[1], 1}).status, Status::Ok);
  EXPECT(same(Aligned::part, Aligned::part) && !same(0, Aligned::part));
  EXPECT_EQ(ask.get(got.record.key, {got.record.parts.data(), 1}).status, Status::Ok);
  EXPECT(same(0, 2 * Aligned::part));
  // One part in an arena, the other beside it.
  Aligned beside(1);
  Sample mixed = got.record;
  mixed.parts[1].data = beside.memory.data();
  got.memory.fill(5);
  EXPECT_EQ(ask.get(mixed).status, Status::Ok);
  EXPECT(same(0, Aligned::part));
  EXPECT(std::memcmp(beside.memory.data(), put.memory.data() + Aligned::part, Aligned::part) == 0);
  // Dropped: memory as any other. Its neighbour stays.
  EXPECT_EQ(tier.drop_arena(got.memory.data()), Status::Ok);
  EXPECT_EQ(tier.usage().arenas, 1u);
  got.memory.fill(6);
  EXPECT_EQ(ask.get(got.record).status, Status::Ok);
  EXPECT(same(0, 2 * Aligned::part));
  EXPECT_EQ(tier.add_arena(got.memory.data(), Aligned::part), Status::Ok);  // another one, of half of it
  got.memory.fill(7);
  EXPECT_EQ(ask.get(got.record).status, Status::Ok);
  EXPECT(same(0, 2 * Aligned::part));
}

HKV_CONTRACT("an arena that is none, or lies in another, is refused by name, and so is a drop of none") {
  const auto world = make_world({});
  Tier& tier = world->tier();
  AlignedMemory memory(16384);
  std::byte* const at = memory.data();
  EXPECT_EQ(refusal([&] { tier.add_arena(nullptr, 4096); }), "data");
  EXPECT_EQ(refusal([&] { tier.add_arena(at, 0); }), "bytes");
  EXPECT_EQ(refusal([&] { tier.add_arena(at, ~std::size_t{0}); }), "bytes");
  EXPECT_EQ(refusal([&] { tier.drop_arena(at); }), "data");
  EXPECT_EQ(refusal([&] { tier.drop_arena(nullptr); }), "data");
  EXPECT_EQ(tier.add_arena(at + 4096, 8192), Status::Ok);
  const std::pair<std::size_t, std::size_t> overlapping[] = {
      {4096, 8192}, {0, 4097}, {0, 16384}, {8192, 1}, {12287, 100}};
  for (const auto& [from, bytes] : overlapping) {
    EXPECT_EQ(refusal([&] { tier.add_arena(at + from, bytes); }), "data");
  }
  EXPECT_EQ(tier.usage().arenas, 1u);
  EXPECT_EQ(tier.add_arena(at, 4096), Status::Ok);  // what only touches it is another
  EXPECT_EQ(tier.add_arena(at + 12288, 4096), Status::Ok);
  EXPECT_EQ(tier.usage().arenas, 3u);
  EXPECT_EQ(refusal([&] { tier.drop_arena(at + 100); }), "data");
  EXPECT_EQ(refusal([&] { tier.drop_arena(at + 8192); }), "data");
  for (const std::size_t from : {4096, 0, 12288}) EXPECT_EQ(tier.drop_arena(at + from), Status::Ok);
  EXPECT_EQ(refusal([&] { tier.drop_arena(at); }), "data");
  EXPECT_EQ(tier.usage().arenas, 0u);
}

HKV_CONTRACT("an arena stays while an item has memory in it: queued, under way, and timed out") {
  const auto world = times::frozen_world(times::narrow());
  if (!world) return;
  Tier& tier = world->tier();
  Collector reports(tier);
  Sample running = room_for(sample(1)), queued = room_for(sample(2)), free = room_for(sample(3));
  const auto add = [&](Sample& room) {
    EXPECT_EQ(tier.add_arena(room.pages[1].data(), room.pages[1].size()), Status::Ok);
    return static_cast<void*>(room.pages[1].data());
  };
  void* const of_running = add(running);
  void* const of_queued = add(queued);
  void* const of_nobody = add(free);
  const BatchId first = times::ask_for(tier, running, in(100ms));  // enough to be under way by then
  const BatchId second = times::ask_for(tier, queued, never);
  EXPECT_EQ(tier.drop_arena(of_running), Status::Busy);
  EXPECT_EQ(tier.drop_arena(of_queued), Status::Busy);
  EXPECT_EQ(tier.drop_arena(of_nobody), Status::Ok);
  EXPECT_EQ(tier.usage().arenas, 2u);
  EXPECT_EQ(reports.done(first).status, Status::Timeout);
  EXPECT_EQ(tier.drop_arena(of_running), Status::Busy);  // quarantined
  tier.cancel(second);
  EXPECT_EQ(reports.done(second).status, Status::Cancelled);
  EXPECT_EQ(tier.drop_arena(of_queued), Status::Ok);
  world->thaw();
  EXPECT(reports.released(first).released);
  EXPECT_EQ(tier.drop_arena(of_running), Status::Ok);
  EXPECT(running == sample(1));
}

HKV_CONTRACT("a closed tier takes no arena and lets go of those that it had") {
  const auto world = make_world({});
  Tier& tier = world->tier();
  AlignedMemory memory(8192);
  EXPECT_EQ(tier.add_arena(memory.data(), 4096), Status::Ok);
  tier.close();
  EXPECT_EQ(tier.add_arena(memory.data() + 4096, 4096), Status::Closed);
  EXPECT_EQ(tier.drop_arena(memory.data()), Status::Ok);
  EXPECT_EQ(tier.usage().arenas, 0u);
  EXPECT_EQ(refusal([&] { tier.drop_arena(memory.data()); }), "data");
}

HKV_CONTRACT("arenas come and go beside gets, puts and the close") {
  const auto world = make_world({});
  Tier& tier = world->tier();
  Aligned put(1);
  put.memory.fill(3);
  {
    Asker ask(tier);
    EXPECT_EQ(ask.put(put.record).status, Status::Ok);
  }
  std::thread other([&] {
    AlignedMemory memory(Aligned::part);
    for (int i = 0; i < 200; ++i) {
      if (tier.add_arena(memory.data(), memory.size()) == Status::Closed) return;
      EXPECT_EQ(tier.drop_arena(memory.data()), Status::Ok);
    }
  });
  Asker ask(tier);
  Aligned got(1);
  for (int i = 0; i < 30; ++i) {
    got.memory.fill(4);
    EXPECT_EQ(tier.add_arena(got.memory.data(), got.memory.size()), Status::Ok);
    EXPECT_EQ(ask.get(got.record).status, Status::Ok);
    EXPECT(std::memcmp(got.memory.data(), put.memory.data(), put.memory.size()) == 0);
    EXPECT_EQ(tier.drop_arena(got.memory.data()), Status::Ok);
  }
  tier.close();
  other.join();
}

}  // namespace hkv::contract::arenas
