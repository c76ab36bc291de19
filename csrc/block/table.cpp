// SPDX-License-Identifier: Apache-2.0
#include "block/table.h"

namespace hkv {

void Table::find_batch(const Key128* keys, std::size_t stride, std::size_t count, Sighting* out) const {
  // Three stages, `distance` keys apart: fetch the line; find the tag and fetch its descriptor; read that.
  // The distance hides one memory latency per stage (bench/lookup.cpp measures it).
  constexpr std::size_t distance = 16, ring = 2 * distance - 1;
  constexpr DescriptorId settled_miss{none_u32 - 1};
  DescriptorId candidate[2 * distance];
  for (std::size_t i = 0; i < count + 2 * distance; ++i) {
    if (i >= 2 * distance) {
      const std::size_t j = i - 2 * distance;
      const DescriptorId id = candidate[j & ring];
      if (id == settled_miss) {
        out[j] = {};
      } else if (Sighting seen; id != no_descriptor && (*this)[id].sight(keys[j * stride], seen.h, seen.b)) {
        seen.id = id;
        out[j] = seen;
      } else {
        out[j] = find(keys[j * stride]);  // another slot of the tag, the second line, or a slot that moved
      }
    }
    if (i >= distance && i - distance < count) {
      const std::size_t j = i - distance;
      const Key128 key = keys[j * stride];
      const Line& line = lines_[first_line(key)];
      const unsigned bits = line.match(Slot::tag_of(key));
      DescriptorId id = no_descriptor;
      if (bits != 0) {
        const Slot slot(line.slot[std::countr_zero(bits)].load());
        if (index(slot.id()) < ids_.count()) id = slot.id();
      } else if (line.overflowed.load() == 0) {
        id = settled_miss;
      }
      if (index(id) < ids_.count()) __builtin_prefetch(&descriptors_[index(id)]);
      candidate[j & ring] = id;
    }
    if (i < count) __builtin_prefetch(&lines_[first_line(keys[i * stride])]);
  }
}

bool Table::place_tentative(Key128 key, Slot slot, Position& where) {
  const std::uint32_t lines[2] = {first_line(key), second_line(key)};
  for (int choice = 0; choice < 2; ++choice) {
    Line& line = lines_[lines[choice]];
    if (choice == 1) lines_[lines[0]].overflowed.store(1);
    for (int i = 0; i < Line::slots; ++i) {
      std::uint64_t empty = line.slot[i].load();
      // (12) seq_cst-CAS synchronizes-with (13, 14)
      if (empty == 0 && line.slot[i].compare_exchange(empty, slot.bits(), at(12, seq_cst))) {
        where = {lines[choice], i};
        return true;
      }
    }
    if (lines[0] == lines[1]) break;
  }
  return false;
}

Table::Scan Table::scan_line(std::uint32_t at_line, Key128 key, Position mine, DescriptorId& found) {
  Line& line = lines_[at_line];
  for (int i = 0; i < Line::slots; ++i) {
    if (Position{at_line, i} == mine) continue;
    // (13) seq_cst-load synchronizes-with (12)
    const Slot other(line.slot[i].load(at(13, seq_cst)));
    if (other.empty() || other.tag() != Slot::tag_of(key)) continue;
    Word h, b;
    if (!(*this)[other.id()].sight_any(key, h, b)) continue;
    if (!other.tentative()) {
      if (h.tentative()) {
        // (14) seq_cst-load synchronizes-with (12)
        if (line.slot[i].load(at(14, seq_cst)) != other.bits()) return Scan::Again;
        (*this)[other.id()].settle(h);
      }
      found = other.id();
      return Scan::Final;
    }
    if (h.live()) return Scan::Again;  // it became final since the slot was read
    if (Position{at_line, i} < mine) return Scan::Lower;
    std::uint64_t expected = other.bits();
    if (!line.slot[i].compare_exchange(expected, 0)) return Scan::Again;
  }
  return Scan::Alone;
}

Table::Scan Table::scan(Key128 key, Position mine, DescriptorId& found) {
  const std::uint32_t first = first_line(key), second = second_line(key);
  Scan result = scan_line(first, key, mine, found);
  if (result != Scan::Alone || second == first) return result;
  return scan_line(second, key, mine, found);
}

void Table::withdraw(Position where, Slot slot, DescriptorId id) {
  std::uint64_t expected = slot.bits();
  lines_[where.line].slot[where.slot].compare_exchange(expected, 0);  // lost where another removed it
  (*this)[id].withdraw();
  ids_.give_back(index(id));
}

Placement Table::get_or_insert(Key128 key) {
  const Sighting seen = find(key);
  if (seen.found()) return {Placed::Found, seen.id};
  const std::uint32_t taken = ids_.take();
  if (taken == none_u32) return {Placed::Full, no_descriptor};
  const DescriptorId id{taken};
  notes_[taken].store(0);
  const Word tentative = (*this)[id].open(key);
  const Slot slot = Slot::tentative_of(Slot::tag_of(key), id);
  Position where{};
  while (place_tentative(key, slot, where)) {
    DescriptorId found = no_descriptor;
    Scan result;
    do {
      result = scan(key, where, found);
    } while (result == Scan::Again);
    if (result == Scan::Final) {
      withdraw(where, slot, id);
      return {Placed::Found, found};
    }
    if (result == Scan::Lower) {
      withdraw(where, slot, id);
      return {Placed::Private, no_descriptor};
    }
    std::uint64_t expected = slot.bits();
    // An RMW by the thread of (12): it stays in that release sequence and needs no order of its own.
    if (lines_[where.line].slot[where.slot].compare_exchange(expected, slot.final().bits())) {
      (*this)[id].settle(tentative);
      return {Placed::Inserted, id};
    }
  }
  (*this)[id].withdraw();  // both lines are full
  ids_.give_back(taken);
  return {Placed::Private, no_descriptor};
}

void Table::clear_slot(DescriptorId id, Key128 key) {
  const std::uint32_t lines[2] = {first_line(key), second_line(key)};
  for (const std::uint32_t at_line : lines) {
    for (int i = 0; i < Line::slots; ++i) {
      std::uint64_t bits = lines_[at_line].slot[i].load();
      if (bits == 0 || Slot(bits).id() != id || Slot(bits).tentative()) continue;
      if (lines_[at_line].slot[i].compare_exchange(bits, 0)) return;
    }
  }
  HKV_CHECK(!"a final slot is cleared by its eraser alone");
}

// Two threads may come here for one id, and a claimer may be between its CAS on B and its CAS on H.
// B ends empty under a closed H by exactly one CAS: the eraser's own (then no claim can follow, since a
// claimer loads H before it takes B) or a claimer's undo (then the eraser's CAS on B fails, because the
// claim, or the undo's generation, stands in its way). The thread of that CAS clears the slot.
void Table::erase_if_empty(DescriptorId id, Key128 key) {
  Descriptor& d = (*this)[id];
  Word h, b;
  if (!d.sight(key, h, b) || !h.empty() || !b.empty()) return;
  if (!d.try_give_up(WordClass::H, h, h.closed_next())) return;
  if (!d.try_give_up(WordClass::B, b, b.next_generation())) return;
  clear_slot(id, key);
  ids_.give_back(index(id));
}

SlotMask Table::claim_b(DescriptorId id, Key128 key, SlotMask wanted, Event event, bool& lives) {
  Descriptor& d = (*this)[id];
  for (;;) {
    Word h, b;
    lives = d.sight(key, h, b);
    if (!lives) return 0;
    const auto mine = static_cast<SlotMask>(wanted & b.slots_in(Phase::Absent));
    if (mine == 0) return 0;
    if (!d.try_apply(WordClass::B, b, *b.apply(mine, event))) continue;
    for (;;) {
      if (!h.live()) {
        lives = false;
        break;
      }
      if (d.try_apply(WordClass::H, h, h.next_generation())) return mine;
    }
    // The life ended between the two: give B back, and clean up if that leaves it empty.
    b = d.word(WordClass::B);
    const Event undo = event == Event::Claim ? Event::Abort : Event::RecordGone;
    Word left;
    do {
      left = *b.apply(mine, undo);
    } while (!d.try_give_up(WordClass::B, b, left));
    if (left.empty()) {
      clear_slot(id, key);
      ids_.give_back(index(id));
    }
    return 0;
  }
}

SlotMask Table::claim_h(DescriptorId id, Key128 key, SlotMask wanted, Event event, bool& lives) {
  Descriptor& d = (*this)[id];
  for (;;) {
    Word h, b;
    lives = d.sight(key, h, b);
    if (!lives) return 0;
    const auto mine = static_cast<SlotMask>(wanted & h.slots_in(Phase::Absent));
    if (mine == 0) return 0;
    if (d.try_apply(WordClass::H, h, *h.apply(mine, event))) return mine;
  }
}

}  // namespace hkv
