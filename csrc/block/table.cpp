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
        out[j] = find(keys[j * stride]);  // another slot of the tag, another line, or a slot that moved
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

Sighting Table::find_beyond(Key128 key) const {
  for (int i = 1; i < candidates(); ++i) {
    const Line& line = lines_[candidate(key, i)];
    const Sighting seen = find_in(line, key);
    if (seen.found() || line.overflowed.load() == 0) return seen;
  }
  return {};
}

bool Table::place_tentative(Key128 key, Slot slot, Position& where) {
  for (int choice = 0; choice < candidates(); ++choice) {
    const std::uint32_t at_line = candidate(key, choice);
    for (int i = 0; i < Line::slots; ++i) {
      std::uint64_t empty = lines_[at_line].slot[i].load();
      // (12) seq_cst-CAS synchronizes-with (13)
      if (empty == 0 && lines_[at_line].slot[i].compare_exchange(empty, slot.bits(), at(12, seq_cst))) {
        where = {at_line, i};
        return true;
      }
    }
    // (25) seq_cst-store orders-with (26)
    if (choice + 1 < candidates()) lines_[at_line].overflowed.store(1, at(25, seq_cst));
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
    const Descriptor::Look seen = (*this)[other.id()].look(key, h, b);
    if (seen == Descriptor::Look::Moved) return Scan::Again;  // passing over it could make a second life
    if (seen == Descriptor::Look::No) continue;
    if (!other.tentative()) {
      if (h.tentative()) {
        // Bare: H was read with acquire from the open of this life, which came after the clearing of any
        // slot of an earlier life of the id; so this load cannot see such a slot any more.
        if (line.slot[i].load() != other.bits()) return Scan::Again;
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
  for (int i = 0; i < candidates(); ++i) {
    const std::uint32_t at_line = candidate(key, i);
    const Scan result = scan_line(at_line, key, mine, found);
    if (result != Scan::Alone) return result;
    // (26) seq_cst-load orders-with (25)
    if (lines_[at_line].overflowed.load(at(26, seq_cst)) == 0) break;
  }
  return Scan::Alone;
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
  (*this)[id].withdraw();  // every candidate line is full
  ids_.give_back(taken);
  return {Placed::Private, no_descriptor};
}

void Table::clear_slot(DescriptorId id, Key128 key) {
  for (int choice = 0; choice < candidates(); ++choice) {
    Line& line = lines_[candidate(key, choice)];
    for (int i = 0; i < Line::slots; ++i) {
      std::uint64_t bits = line.slot[i].load();
      if (bits == 0 || Slot(bits).id() != id || Slot(bits).tentative()) continue;
      if (line.slot[i].compare_exchange(bits, 0)) return;
    }
  }
  HKV_CHECK(!"a final slot is cleared by its eraser alone");
}

// Two threads may come here for one id, and a claimer may be between its CAS on B and its CAS on H.
// B ends empty under a closed H by exactly one CAS: the eraser's own (then no claim can follow, since a
// claimer who sees B after that CAS sees H closed, descriptor.h invariant 4) or a claimer's undo (then the
// eraser's CAS on B fails, because the claim, or the undo's generation, stands in its way). The thread of
// that CAS clears the slot. A claim that holds is seen here with the H it left (descriptor.h invariant 7).
void Table::erase_if_empty(DescriptorId id, Key128 key) {
  Descriptor& d = (*this)[id];
  Word h, b;
  if (!d.sight_empty(key, h, b)) return;
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
    if (!d.try_claim(WordClass::B, b, *b.apply(mine, event))) continue;
    for (;;) {
      if (!h.live()) {
        lives = false;
        break;
      }
      if (d.try_outlive(h)) return mine;
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
    if (d.try_claim(WordClass::H, h, *h.apply(mine, event))) return mine;
  }
}

}  // namespace hkv
