// SPDX-License-Identifier: Apache-2.0
#include "cache/copies.h"

#include <bit>

namespace hkv {
namespace {

// Whether a boundary needs pages of the group that end before it.
bool reaches_back(const Group& group) {
  return group.coverage.rule == Rule::Window || group.coverage.rule == Rule::Chunk;
}

}  // namespace

Copies::Copies(const Layout& layout, BlockStore& store, Stored stored, std::function<std::uint64_t()> losses)
    : layout_(layout),
      store_(store),
      stored_(std::move(stored)),
      losses_(std::move(losses)),
      names_(layout.groups.size()),
      turn_losses_(losses_()) {
  for (std::size_t g = 0; g < names_.size(); ++g) {
    if (reaches_back(layout.groups[g]))
      names_[g] = std::vector<Name>(store.pool(static_cast<int>(g)).count());
  }
}

void Copies::note(DescriptorId id, WordClass which, SlotMask slots, Key128 boundary) {
  for (std::uint32_t left = slots; left != 0; left &= left - 1) {
    const int group = store_.group_at(which, std::countr_zero(left));
    note_page(group, store_.page(id, group), boundary);
  }
}

void Copies::note_page(int group, PageId page, Key128 boundary) {
  std::vector<Name>& names = names_[static_cast<std::size_t>(group)];
  if (names.empty()) return;
  names[index(page)].lo.store(boundary.lo);
  names[index(page)].hi.store(boundary.hi);
}

// Of slots that claim a copy, those whose record is not there. A page id of another life is found out by the CAS.
SlotMask Copies::gone_of(DescriptorId id, WordClass which, Key128 key, SlotMask copied) const {
  const bool tip = store_.recency().end(id) % layout_.unit_tokens != 0;
  if (which == WordClass::H) return stored_(tip ? RecordKind::Boundary : RecordKind::Block, key) ? 0 : copied;
  SlotMask gone = 0;
  enum { Unasked, Stored, Gone } own = Unasked;  // the boundary that ends with the page
  for (std::uint32_t left = copied; left != 0; left &= left - 1) {
    const int slot = std::countr_zero(left);
    const int group = store_.group_at(which, slot);
    const std::vector<Name>& names = names_[static_cast<std::size_t>(group)];
    const PageId page = store_.page(id, group);
    if (!tip && index(page) < names.size() &&
        stored_(RecordKind::Boundary, {names[index(page)].lo.load(), names[index(page)].hi.load()}))
      continue;
    if (own == Unasked) own = stored_(RecordKind::Boundary, key) ? Stored : Gone;
    if (own == Gone) gone = static_cast<SlotMask>(gone | 1u << slot);
  }
  return gone;
}

// Asks of those slots that claim a copy. `now`: the word as it is then. Returns: false where others moved it all the time.
bool Copies::tell(DescriptorId id, WordClass which, SlotMask slots, Word& now) {
  const Descriptor& d = store_[id];
  now = Word();
  for (int attempt = 0; attempt < tell_attempts; ++attempt) {
    const Key128 key = d.key();  // of this life if sight() says so
    Word h, b;
    if (store_.is_directory(id)) return true;
    if (!d.sight(key, h, b)) continue;
    now = which == WordClass::H ? h : b;
    const auto copied = static_cast<SlotMask>(slots & now.slots_in(Phase::ReadyCopy));
    const SlotMask gone = copied == 0 ? SlotMask{0} : gone_of(id, which, key, copied);
    if (gone == 0) return true;
    if (!store_.lose_copies(id, which, now, gone)) continue;
    lost_.fetch_add(1);
    now = *now.apply(gone, Event::RecordGone);
    return true;
  }
  return !d.word(WordClass::H).live();
}

bool Copies::still(DescriptorId id, WordClass which, SlotMask slots) {
  Word now;
  if (!tell(id, which, slots, now)) return false;
  return (slots & now.usable_slots() & ~now.slots_in(Phase::ReadyCopy)) == 0;
}

bool Copies::tell_both(DescriptorId id) {
  Word now;
  const bool h = tell(id, WordClass::H, 0xFF, now);
  return tell(id, WordClass::B, 0xFF, now) && h;
}

bool Copies::check_some(std::int64_t most) {
  if (is_checked()) return true;
  if (done_) {
    turn_losses_ = losses_();
    at_ = 0;
    done_ = again_ = false;
  }
  for (; at_ < store_.blocks() && most > 0; ++at_) {
    if (at_ % 64 == 0 && !store_.index_of_states().any(StateKind::Disk, DescriptorId{at_})) {
      at_ += 63;
      continue;
    }
    if (!store_.index_of_states().get(StateKind::Disk, DescriptorId{at_})) continue;
    if (!tell_both(DescriptorId{at_})) again_ = true;
    --most;
  }
  done_ = at_ >= store_.blocks();
  return done_;
}

}  // namespace hkv
