// SPDX-License-Identifier: Apache-2.0
#include "block/table.h"

#include <algorithm>
#include <vector>

namespace hkv {

void Table::find_batch(const Key128* keys, std::size_t stride, std::size_t count, Sighting* out) const {
  // Three stages, one group of keys apart: fetch the lines; find the tags and fetch their descriptors; read
  // those. A group is as long as hides one memory latency per stage (bench/lookup.cpp measures it). Keys
  // that may have gone past their first line wait with their second line under way, or each would be a latency of its own.
  constexpr std::size_t group = 16;
  constexpr DescriptorId waits{none_u32 - 1};
  DescriptorId candidate[2][group];
  std::size_t waiting[group + max_waiting];
  std::size_t n_waiting = 0;
  const std::size_t groups = (count + group - 1) / group;
  for (std::size_t g = 0; g < groups + 2; ++g) {
    if (g < groups) {
      const std::size_t end = std::min(count, (g + 1) * group);
      for (std::size_t i = g * group; i < end; ++i) __builtin_prefetch(&lines_[first_line(keys[i * stride])]);
    }
    if (g >= 1 && g - 1 < groups) {
      const std::size_t begin = (g - 1) * group, end = std::min(count, g * group);
      for (std::size_t i = begin; i < end; ++i) {
        const Key128 key = keys[i * stride];
        const Line& line = lines_[first_line(key)];
        const unsigned bits = line.match(Slot::tag_of(key));
        DescriptorId id = no_descriptor;
        if (bits != 0) {
          // The slot may have moved on since: the descriptor it names then decides all the same.
          id = Slot(line.slot[std::countr_zero(bits)].load()).id();
          __builtin_prefetch(&descriptors_[index(id)]);
        } else if (line.passed.load() != 0) [[unlikely]] {
          __builtin_prefetch(&lines_[second_line(key)]);
          waiting[n_waiting++] = i;
          id = waits;
        }
        candidate[(g - 1) & 1][i - begin] = id;
      }
    }
    if (g >= 2) {
      const std::size_t begin = (g - 2) * group, end = std::min(count, (g - 1) * group);
      for (std::size_t i = begin; i < end; ++i) {
        const DescriptorId id = candidate[g & 1][i - begin];
        if (id == waits) [[unlikely]]
          continue;
        Sighting seen;
        if (id != no_descriptor) {
          if ((*this)[id].sight(keys[i * stride], seen.h, seen.b)) [[likely]] {
            seen.id = id;
          } else {
            seen = find(keys[i * stride]);  // another slot of the tag, another line, or a slot that moved
          }
        }
        out[i] = seen;
      }
      if (n_waiting >= max_waiting || g == groups + 1) {
        find_waiting(keys, stride, waiting, n_waiting, out);
        n_waiting = 0;
      }
    }
  }
}

// Keys whose first line had no slot of their tag; their second lines are under way already.
void Table::find_waiting(const Key128* keys, std::size_t stride, const std::size_t* waiting,
                         std::size_t count, Sighting* out) const {
  for (std::size_t i = 0; i < count; ++i) {
    const Key128 key = keys[waiting[i] * stride];
    const Line& line = lines_[second_line(key)];
    const unsigned bits = line.match(Slot::tag_of(key));
    if (bits != 0)
      __builtin_prefetch(&descriptors_[index(Slot(line.slot[std::countr_zero(bits)].load()).id())]);
  }
  for (std::size_t i = 0; i < count; ++i) out[waiting[i]] = find_beyond(keys[waiting[i] * stride]);
}

Sighting Table::find_beyond(Key128 key) const {
  Candidates at_line(*this, key);
  while (at_line.next()) {
    const Line& line = lines_[at_line.line()];
    const Sighting seen = find_in(line, key);
    if (seen.found() || line.passed.load() == 0) return seen;
  }
  return {};
}

bool Table::place_tentative(Key128 key, Slot slot, Position& where) {
  Candidates at_line(*this, key);
  do {
    Line& line = lines_[at_line.line()];
    for (int i = 0; i < Line::slots; ++i) {
      std::uint64_t empty = line.slot[i].load();
      // (12) seq_cst-CAS synchronizes-with (13)
      if (empty == 0 && line.slot[i].compare_exchange(empty, slot.bits(), at(12, seq_cst))) {
        where = {at_line.line(), i};
        return true;
      }
    }
    // (25) seq_cst-RMW orders-with (26)
    line.passed.fetch_add(1, at(25, seq_cst));
  } while (at_line.next());
  uncount(key, none_u32);
  return false;
}

// Takes back what placing in that line counted; none_u32: in none. The slot is empty again.
void Table::uncount(Key128 key, std::uint32_t line) {
  Candidates at_line(*this, key);
  do {
    if (at_line.line() == line) return;
    lines_[at_line.line()].passed.fetch_sub(1);
  } while (at_line.next());
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
  Candidates at_line(*this, key);
  do {
    const Scan result = scan_line(at_line.line(), key, mine, found);
    if (result != Scan::Alone) return result;
    // (26) seq_cst-load orders-with (25)
  } while (lines_[at_line.line()].passed.load(at(26, seq_cst)) != 0 && at_line.next());
  return Scan::Alone;
}

void Table::withdraw(Key128 key, Position where, Slot slot, DescriptorId id) {
  std::uint64_t expected = slot.bits();
  lines_[where.line].slot[where.slot].compare_exchange(expected, 0);  // lost where another removed it
  uncount(key, where.line);
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
      withdraw(key, where, slot, id);
      return {Placed::Found, found};
    }
    if (result == Scan::Lower) {
      withdraw(key, where, slot, id);
      return {Placed::Private, no_descriptor};
    }
    std::uint64_t expected = slot.bits();
    // An RMW by the thread of (12): it stays in that release sequence and needs no order of its own.
    if (lines_[where.line].slot[where.slot].compare_exchange(expected, slot.final().bits())) {
      (*this)[id].settle(tentative);
      return {Placed::Inserted, id};
    }
    uncount(key, where.line);  // another removed it
  }
  (*this)[id].withdraw();  // every candidate line is full
  ids_.give_back(taken);
  return {Placed::Private, no_descriptor};
}

void Table::clear_slot(DescriptorId id, Key128 key) {
  Candidates at_line(*this, key);
  do {
    Line& line = lines_[at_line.line()];
    for (int i = 0; i < Line::slots; ++i) {
      std::uint64_t bits = line.slot[i].load();
      if (bits == 0 || Slot(bits).id() != id || Slot(bits).tentative()) continue;
      if (!line.slot[i].compare_exchange(bits, 0)) continue;
      uncount(key, at_line.line());
      return;
    }
  } while (at_line.next());
  HKV_CHECK(!"a final slot is cleared by its eraser alone");
}

bool Table::counts_hold() const {
  std::vector<std::uint64_t> passed(line_count_);
  for (std::uint32_t line = 0; line < line_count_; ++line) {
    for (const auto& bits : lines_[line].slot) {
      const Slot slot(bits.load());
      if (slot.empty()) continue;
      const Key128 key = (*this)[slot.id()].key();
      for (Candidates at_line(*this, key); at_line.line() != line;) {
        ++passed[at_line.line()];
        if (!at_line.next()) return false;  // a slot where its key has no place
      }
    }
  }
  for (std::uint32_t line = 0; line < line_count_; ++line) {
    if (lines_[line].passed.load() != passed[line]) return false;
  }
  return true;
}

// Two threads may come here for one id, and a claimer may be between its CAS on B and its CAS on H.
// B ends empty under a closed H by exactly one CAS: the eraser's own (then no claim can follow, since a
// claimer who sees B after that CAS sees H closed, descriptor.h invariant 4) or a claimer's undo (then the
// eraser's CAS on B fails, because the claim, or the undo's generation, stands in its way). The thread of
// that CAS clears the slot. A claim that holds is seen here with the H it left (descriptor.h invariant 7).
bool Table::end_if_empty(DescriptorId id, Key128 key) {
  Descriptor& d = (*this)[id];
  Word h, b;
  if (!d.sight_empty(key, h, b)) return false;
  if (!d.try_give_up(WordClass::H, h, h.closed_next())) return false;
  if (!d.try_give_up(WordClass::B, b, b.next_generation())) return false;
  clear_slot(id, key);
  return true;
}

namespace {

// A restore begins where a tier answers, in one step: no word says tier-only in between.
Word claimed(Word word, SlotMask mine, Event event) {
  if (event == Event::RestoreBegins) word = *word.apply(mine, Event::TierAnswers);
  return *word.apply(mine, event);
}

Event undo_of(Event claim) {
  switch (claim) {
    case Event::Claim: return Event::Abort;
    case Event::RestoreBegins: return Event::RecordCorrupt;  // absent again
    default: return Event::RecordGone;
  }
}

}  // namespace

SlotMask Table::claim_b(DescriptorId id, Key128 key, SlotMask wanted, Event event, bool& lives) {
  Descriptor& d = (*this)[id];
  for (;;) {
    Word h, b;
    lives = d.sight(key, h, b);
    if (!lives) return 0;
    const auto mine = static_cast<SlotMask>(wanted & b.slots_in(Phase::Absent));
    if (mine == 0) return 0;
    if (!d.try_claim(WordClass::B, b, claimed(b, mine, event))) continue;
    for (;;) {
      if (!h.live()) {
        lives = false;
        break;
      }
      if (d.try_outlive(h)) return mine;
    }
    // The life ended between the two: give B back, and clean up if that leaves it empty.
    b = d.word(WordClass::B);
    const Event undo = undo_of(event);
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
    if (d.try_claim(WordClass::H, h, claimed(h, mine, event))) return mine;
  }
}

}  // namespace hkv
