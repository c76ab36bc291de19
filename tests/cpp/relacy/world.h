// SPDX-License-Identifier: Apache-2.0
// A small world for the model checker: one or two lines, a few descriptors, pages with bytes.
//
// The core's sources are compiled in, over Relacy. Each program sets HKV_TABLE_SLOTS before it includes this.
#pragma once
#ifndef HKV_TABLE_SLOTS
#define HKV_TABLE_SLOTS 2
#endif
#include "relacy/harness.h"

#include "block/store.cpp"
#include "block/table.cpp"

namespace hkv::relacy {

// Keys of one line and one tag; pairs differ in one bit of one half.
inline constexpr Key128 key_a{0x10, 0x21}, key_b{0x11, 0x21}, key_c{0x10, 0x21 | std::uint64_t{1} << 34};

// A table with its parts, small. Nothing here is a page: descriptors and slots only.
template <int blocks, int line_count>
struct TableWorld {
  Line lines[line_count];
  Descriptor descriptors[blocks];
  Atom<std::uint32_t> notes[blocks];
  IdPool ids{blocks};
  Table table{lines, line_count, descriptors, notes, ids};

  DescriptorId insert(Key128 key) {
    const Placement placed = table.get_or_insert(key);
    RL_ASSERT(placed.how == Placed::Inserted);
    return placed.id;
  }
  // Idle: every id is free and closed, or live under one final slot; no slot names anything else.
  void check_idle() {
    for (std::uint32_t i = 0; i < blocks; ++i) {
      const Word h = descriptors[i].word(WordClass::H);
      int slots = 0;
      for (Line& line : lines) {
        for (auto& atom : line.slot) {
          const Slot slot(atom.load());
          if (slot.empty() || index(slot.id()) != i) continue;
          RL_ASSERT(!slot.tentative());
          ++slots;
        }
      }
      RL_ASSERT(!h.tentative());
      RL_ASSERT(ids.is_free(i) == h.closed());
      RL_ASSERT(slots == (h.live() ? 1 : 0));
      if (!h.live()) RL_ASSERT(descriptors[i].word(WordClass::B).empty());
    }
    RL_ASSERT(ids.free_count() <= blocks);
    RL_ASSERT(table.counts_hold());
  }
  int lives_of(Key128 key) {
    int n = 0;
    for (Descriptor& d : descriptors) n += d.word(WordClass::H).live() && d.key() == key;
    return n;
  }
};

inline constexpr GroupSlot one_group[] = {{WordClass::H, 0, StateKind::Compressed}};
inline constexpr GroupSlot two_groups[] = {{WordClass::H, 0, StateKind::Compressed},
                                           {WordClass::B, 0, StateKind::Window}};

// A store whose pages have bytes: plain memory, so that a read beside a write is a reported race.
template <int blocks, int pages>
struct StoreWorld {
  BlockStore store;
  Plain<std::uint64_t> bytes[2][pages];

  explicit StoreWorld(std::span<const GroupSlot> groups)
      : store(blocks, groups, std::array<std::uint32_t, 2>{pages, pages}) {}

  static std::uint64_t content(Key128 key, int group) {
    return key.lo * 31 + key.hi * 7 + static_cast<unsigned>(group);
  }

  // reserve, write, publish of one page by one thread. Returns: the descriptor, or none where it was not ours.
  DescriptorId fill(Key128 key, int group) {
    const PageId page = store.pool(group).take();
    if (page == no_page) return no_descriptor;
    bytes[group][index(page)].set(content(key, group));
    for (;;) {
      const Placement placed = store.table().get_or_insert(key);
      if (placed.how == Placed::Full || placed.how == Placed::Private) break;
      bool lives = true;
      if (store.claim(placed.id, key, group, page, lives)) {
        store.publish(placed.id, group);
        return placed.id;
      }
      if (lives) break;
    }
    store.pool(group).give_back(page);
    return no_descriptor;
  }
  // Pins one page of (key, group), if it is there. Returns: its descriptor.
  DescriptorId pin(Key128 key, int group) {
    const Sighting seen = store.table().find(key);
    const GroupSlot& at = store.slot_of(group);
    if (!seen.found() || !seen.word(at.which).usable_slot(at.slot)) return no_descriptor;
    const auto mask = static_cast<SlotMask>(1u << at.slot);
    return store.pin(seen.id, at.which, seen.word(at.which), mask) == PinResult::Pinned ? seen.id
                                                                                        : no_descriptor;
  }
  // What a reader of a pinned page must see.
  void read(DescriptorId id, Key128 key, int group) {
    const PageId page = store.page(id, group);
    RL_ASSERT(index(page) < static_cast<std::uint32_t>(pages));
    RL_ASSERT(!store.pool(group).is_free(page));
    RL_ASSERT(bytes[group][index(page)].get() == content(key, group));
  }
  // Takes a page as a next owner does and writes it.
  void overwrite(int group) {
    const PageId page = store.pool(group).take();
    if (page == no_page) return;
    bytes[group][index(page)].set(0);
    store.pool(group).give_back(page);
  }
  void check_idle(int groups) {
    for (int g = 0; g < groups; ++g) {
      const BlockStore::Census census = store.census(g, 0);
      RL_ASSERT(static_cast<std::int64_t>(census.cached) == store.evictable(g));
      RL_ASSERT(census.free + census.filling + census.held + census.cached ==
                static_cast<std::uint64_t>(pages));
    }
    RL_ASSERT(store.verify() == no_descriptor);
  }
  bool nothing_left() { return store.ids().free_count() == blocks; }
};

}  // namespace hkv::relacy
