// SPDX-License-Identifier: Apache-2.0
// One thread: left out under ThreadSanitizer.
#include "block/state_index.h"

#include <random>

#include "testing.h"

namespace hkv {
namespace {

KindMap kinds() {
  KindMap map{};
  map[static_cast<int>(StateKind::Compressed)] = {0b0011, 0};
  map[static_cast<int>(StateKind::Indexer)] = {0b0100, 0};
  map[static_cast<int>(StateKind::Window)] = {0, 0b0001};
  map[static_cast<int>(StateKind::Tail)] = {0, 0b1010};
  map[static_cast<int>(StateKind::Disk)] = {0b0111, 0b1011};
  return map;
}

// The bit of a kind as its definition reads.
bool naive(StateKind kind, Word h, Word b) {
  const KindSlots slots = kinds()[static_cast<std::size_t>(kind)];
  const auto holds = [&](Phase phase) {
    if (kind == StateKind::Disk)
      return phase == Phase::TierOnly || phase == Phase::Restoring || phase == Phase::ReadyCopy;
    return phase == Phase::Ready || phase == Phase::ReadyCopy || phase == Phase::Offloading;
  };
  for (int slot = 0; slot < Word::slots; ++slot) {
    if (slots.h >> slot & 1 && holds(h.phase(slot))) return true;
    if (slots.b >> slot & 1 && holds(b.phase(slot))) return true;
  }
  return false;
}

}  // namespace

HKV_TEST(
    "after each step the bits of five kinds are what the words say, and verify notices each flipped bit") {
  constexpr std::uint32_t count = 70;  // more than one 64-bit word a kind
  std::mt19937_64 random(4);
  std::vector<Descriptor> descriptors(count);
  StateIndex index(count, kinds());
  for (Descriptor& d : descriptors) d.settle(d.open({random(), random()}));
  int steps = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto n = static_cast<std::uint32_t>(random() % count);
    Descriptor& d = descriptors[n];
    const WordClass which = random() % 2 ? WordClass::H : WordClass::B;
    Word seen = d.word(which);
    const auto next =
        seen.apply(static_cast<SlotMask>(1u << random() % 4), static_cast<Event>(random() % event_count));
    if (!next || !d.try_apply(which, seen, *next)) continue;
    ++steps;
    index.refresh(DescriptorId{n}, d);
  }
  EXPECT(steps > 1000);
  std::uint64_t totals[state_kind_count] = {};
  for (std::uint32_t n = 0; n < count; ++n) {
    const DescriptorId id{n};
    EXPECT(index.verify(id, descriptors[n]));
    for (int kind = 0; kind < state_kind_count; ++kind) {
      const bool want = naive(static_cast<StateKind>(kind), descriptors[n].word(WordClass::H),
                              descriptors[n].word(WordClass::B));
      EXPECT_EQ(index.get(static_cast<StateKind>(kind), id), want);
      totals[kind] += want;
      index.corrupt(static_cast<StateKind>(kind), id);
      EXPECT(!index.verify(id, descriptors[n]));
      index.corrupt(static_cast<StateKind>(kind), id);
      EXPECT(index.verify(id, descriptors[n]));
    }
  }
  for (int kind = 0; kind < state_kind_count; ++kind) {
    EXPECT(totals[kind] > 0);
    EXPECT_EQ(index.count(static_cast<StateKind>(kind)), totals[kind]);
  }
  index.reset();
  EXPECT_EQ(index.count(StateKind::Compressed), 0u);
}

}  // namespace hkv
