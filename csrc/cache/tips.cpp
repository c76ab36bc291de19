// SPDX-License-Identifier: Apache-2.0
// Tips: published partial last units. A tip is a descriptor of its own; its parent unit has one directory,
// which says which lengths to look for.
//
// A directory is a descriptor that holds no page: slot 0 of its H is Ready while it lives, and it keeps the ids of
// up to four tips where units keep page ids; each tip's length is with the tip (recency.h). Adding pins the directory,
// files the entry and moves the generation, so that whoever ends an empty one by a CAS from the word before the
// emptiness was seen fails if an entry came in.
#include <algorithm>

#include "cache/cache.h"
#include "layout/key_message.h"
#include "reuse/checks.h"

namespace hkv {
namespace {

constexpr SlotMask directory_slot = 1;
constexpr std::uint32_t no_entry = none_u32;

}  // namespace

// Collects tips at lengths in (above, limit), longest first. Only tips whose history could be whole matter:
// those that hang at or below the block that follows the shortest known run.
void HybridCache::gather_tips(const Question& question, MatchScratch& scratch, std::int64_t above) const {
  Snapshot& s = scratch.snapshot;
  s.tips.clear();
  const KeyChain& keys = *question.keys;
  if (!scratch.tips || !keys.has_tokens()) return;
  if (question.limit <= 0) return;
  std::int64_t highest = std::min(keys.end_unit(), (question.limit - 1) / layout_.unit_tokens);
  for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
    const Group& group = layout_.groups[g];
    if (group.prefix()) highest = std::min(highest, (s.groups[g].known_run + 1) * group.block_units - 1);
  }
  const std::int64_t lowest = keys.first_tip_unit();
  for (std::int64_t unit = highest; unit >= lowest && (unit + 1) * layout_.unit_tokens > above; --unit) {
    gather_tips_of(question, scratch, unit);
  }
  std::erase_if(s.tips, [&](const Tip& tip) { return tip.tokens <= above; });
  // A known tip proves that its history was here (snapshot.h), which may add lengths to those found before.
  for (const Tip& tip : s.tips) s.proof_end = std::max(s.proof_end, tip.tokens);
  s.asked = -1;
  std::stable_sort(s.tips.begin(), s.tips.end(),
                   [](const Tip& a, const Tip& b) { return a.tokens > b.tokens; });
}

void HybridCache::gather_tips_of(const Question& question, MatchScratch& scratch, std::int64_t unit) const {
  const KeyChain& keys = *question.keys;
  if (unit > 0 && layout_.probe_units != 0 && unit % layout_.probe_units == 0 &&
      unit / layout_.probe_units <= scratch.read_positions) {
    const Sighting& parent = scratch.history[static_cast<std::size_t>(unit / layout_.probe_units - 1)];
    if (parent.found() && !store_.has_tips(parent.id)) return;
  }
  const Sighting directory = store_.table().find(keys.tip_directory_key(unit));
  if (!directory.found()) return;
  std::int64_t tried[Descriptor::tips_per_directory];
  int n = 0;
  for (int slot = 0; slot < Descriptor::tips_per_directory; ++slot) {
    const std::uint32_t entry = store_[directory.id].tip(slot).load();
    if (!store_.is_tip_of(DescriptorId{entry}, directory.id)) continue;
    const std::int64_t tokens = store_.recency().end(DescriptorId{entry});
    const std::int64_t length = tokens - unit * layout_.unit_tokens;
    if (length <= 0 || length >= layout_.unit_tokens || tokens >= question.limit || tokens > keys.tokens() ||
        std::find(tried, tried + n, length) != tried + n)
      continue;
    tried[n++] = length;
    const Sighting seen = store_.table().find(keys.tip_key(unit, length));
    if (!seen.found()) continue;
    const Tip tip = tip_of(question, scratch.snapshot, seen, tokens);
    if (tip.known != 0) scratch.snapshot.tips.push_back(tip);
  }
}

// What a descriptor knows of the tip of that length.
Tip HybridCache::tip_of(const Question& question, const Snapshot& s, const Sighting& seen,
                        std::int64_t tokens) const {
  Tip tip;
  tip.tokens = tokens;
  tip.unit = tokens / layout_.unit_tokens;
  tip.id = index(seen.id);
  tip.h = seen.h.bits();
  tip.b = seen.b.bits();
  for (int g = 0; g < store_.group_count(); ++g) {
    const GroupSlot& at = store_.slot_of(g);
    const std::uint32_t bit = 1u << g;
    if (seen.word(at.which).known_slot(at.slot)) tip.known |= bit;
    if (!seen.word(at.which).usable_slot(at.slot)) continue;
    tip.ready |= bit;
    if (s.groups[g].may_be_foreign && foreign_page(question, g, seen.id)) tip.foreign |= bit;
  }
  return tip;
}

// Sees to it that a directory below that parent can be made, and so many descriptors besides: before the tip is published,
// since what makes room might take it else.
void HybridCache::make_directory_room(Key128 parent, std::int64_t besides) {
  if (policy_ == nullptr || static_cast<std::int64_t>(store_.ids().free_count()) > besides) return;
  if (store_.table().find(key_message::directory_key(parent)).found()) return;
  make_room(descriptor_pool, 1 + besides + store_.blocks() / 64);
}

// The directory of that key, made if there is none; no_descriptor where the table has no room for it.
DescriptorId HybridCache::directory_of(Key128 key) {
  for (;;) {
    const Placement placed = store_.table().get_or_insert(key);
    if (placed.how != Placed::Found && placed.how != Placed::Inserted) return no_descriptor;
    bool lives = true;
    const SlotMask mine = store_.table().claim_h(placed.id, key, directory_slot, Event::Claim, lives);
    if (!lives) continue;
    if (mine != 0) store_.publish_directory(placed.id);
    return placed.id;
  }
}

// Files a published tip below the unit of key `parent`, or below the root, whose key is not in the table. A fifth one takes
// the place of the oldest that nobody pins, and where all are pinned the new one stays unfindable: both are counted.
void HybridCache::file_tip(Key128 parent, DescriptorId tip) {
  const Key128 key = key_message::directory_key(parent);
  tips_filed_.store(1);
  for (;;) {
    const DescriptorId directory = directory_of(key);
    if (directory == no_descriptor) break;
    Word h, b;
    Descriptor& d = store_[directory];
    if (!d.sight(key, h, b)) continue;
    if (h.phase(0) == Phase::Filling) break;  // its maker has not got that far: wait for nobody
    const PinResult pinned = d.pin(WordClass::H, h, directory_slot);
    if (pinned == PinResult::Full) break;
    if (pinned == PinResult::Raced) continue;
    store_.note_tip(tip, directory);
    const bool filed = put_entry(directory, index(tip));
    Word now = d.word(WordClass::H);
    while (!d.try_apply(WordClass::H, now, now.next_generation())) {
    }
    store_.unpin_directory(directory);
    const Sighting above = store_.table().find(parent);
    if (above.found()) store_.note_tips(above.id);
    if (filed) return;
    break;
  }
  counters_.add(kUnplaced, 1);
}

bool HybridCache::put_entry(DescriptorId directory, std::uint32_t wanted) {
  Descriptor& d = store_[directory];
  for (;;) {
    int place = -1;
    bool lives = false;  // the tip whose place it is
    std::uint32_t there = no_entry;
    std::uint32_t oldest = 0;
    for (int slot = 0; slot < Descriptor::tips_per_directory; ++slot) {
      const std::uint32_t entry = d.tip(slot).load();
      if (entry == wanted) return true;
      if (store_.is_dead_entry(directory, entry)) {  // free, or its tip is gone
        place = slot;
        there = entry;
        lives = false;
        break;
      }
      const Descriptor& tip = store_[DescriptorId{entry}];
      if (tip.word(WordClass::H).pins() != 0 || tip.word(WordClass::B).pins() != 0) continue;
      const WordClass which = tip.word(WordClass::H).no_phase() ? WordClass::B : WordClass::H;
      const std::uint32_t age =
          Recency::age(store_.recency().horizon(), store_.recency().tick(DescriptorId{entry}, which));
      if (place < 0 || age > oldest) {
        place = slot;
        there = entry;
        lives = true;
        oldest = age;
      }
    }
    if (place < 0) return false;
    if (!d.tip(place).compare_exchange(there, wanted)) continue;
    // A dead entry's key may be that of the tip just filed: it came back under another id.
    if (lives && store_.is_tip_of(DescriptorId{there}, directory)) {
      counters_.add(kTipsDisplaced, 1);
      evict_tip(DescriptorId{there});
    }
    return true;
  }
}

// Takes the pages of a tip that lost its place; what somebody pins meanwhile goes with its last pin.
void HybridCache::evict_tip(DescriptorId tip) {
  const Key128 key = store_[tip].key();
  for (int g = 0; g < store_.group_count(); ++g) {
    if (!store_.evict(key, g) && !store_.retire_of(key, g)) continue;
    note_gone(key, g, Cause::Displaced);
    counters_.add(kRetired, 1);
  }
}

// Removes entries whose tip is gone, and the directory if none is left. Under a pin: an unpinned directory may
// end, and its id stand for a unit whose page ids lie where the entries were.
void HybridCache::unfile_tips(const KeyChain& keys, std::int64_t unit, std::int64_t length) {
  const Sighting gone = store_.table().find(keys.tip_key(unit, length));
  if (gone.found() && (!gone.h.no_phase() || !gone.b.no_phase())) return;
  unfile_directory(keys.tip_directory_key(unit));
}

void HybridCache::unfile_directory(Key128 key) {
  const Sighting directory = store_.table().find(key);
  // Whoever chose a victim read its key without a pin: it may be a unit's by now, whose page ids must not be taken for
  // entries. The note is that of the life found, or the pin fails.
  if (!directory.found() || !store_.is_directory(directory.id)) return;
  Descriptor& d = store_[directory.id];
  if (d.pin(WordClass::H, directory.h, directory_slot) != PinResult::Pinned) return;
  const Word seen = d.word(WordClass::H);  // before the entries: who files one from now on moves it
  bool empty = true;
  for (int slot = 0; slot < Descriptor::tips_per_directory; ++slot) {
    std::uint32_t entry = d.tip(slot).load();
    if (entry == no_entry) continue;
    const bool dead = store_.is_dead_entry(directory.id, entry);
    if (!dead || !d.tip(slot).compare_exchange(entry, no_entry)) empty = false;
  }
  store_.unpin_directory(directory.id);
  if (empty) store_.end_directory(directory.id, key, seen.unpinned());
}

}  // namespace hkv
