// SPDX-License-Identifier: Apache-2.0
// Making room: what goes when a reserve is short, and the hints by which it is chosen.
#include <algorithm>
#include <bit>

#include "alloc/usability.h"
#include "base/yield.h"
#include "cache/cache.h"

namespace hkv {
namespace {

constexpr int look_back = 64;        // steps, where no history tells what a boundary continues
constexpr int fruitless_rounds = 8;  // of victims none of which could go: others are faster
constexpr int await_turns = 1000;    // for pages that others have evicted and not yet given back

template <class T>
std::int64_t drop_repeats(std::vector<T>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return std::ssize(values);
}

Cause cause_of(EvictionClass why) {
  switch (why) {
    case EvictionClass::Stranded: return Cause::Stranded;
    case EvictionClass::Superseded: return Cause::Superseded;
    case EvictionClass::Tail: return Cause::Tail;
    case EvictionClass::History: return Cause::History;
  }
  return Cause::None;
}

// What of a victim can be pinned before it goes. Its id stays out of the pool while this is in use.
struct Leaving {
  Key128 key;
  SlotMask slots[2] = {0, 0};
};

Leaving leaving(const BlockStore& store, const Victim& victim) {
  const Descriptor& d = store[victim.id];
  if (store.is_directory(victim.id)) return {d.key(), {0, 0}};
  return {d.key(),
          {static_cast<SlotMask>(victim.h & d.word(WordClass::H).usable_slots()),
           static_cast<SlotMask>(victim.b & d.word(WordClass::B).usable_slots())}};
}

// Remembers why it went. Apart from the steps by which many go: each of those is an RMW that would wait for the line that
// a note is stored to.
void remember(BlockStore& store, const Victim& victim, const Leaving& was, int pool, std::uint32_t now) {
  for (const WordClass which : {WordClass::H, WordClass::B}) {
    const std::uint32_t gone =
        was.slots[static_cast<int>(which)] & ~store[victim.id].word(which).usable_slots();
    for (std::uint32_t bits = gone; bits != 0; bits &= bits - 1)
      store.gone().note(was.key, store.group_at(which, std::countr_zero(bits)), cause_of(victim.why), now,
                        pool == descriptor_pool ? for_descriptors : pool);
  }
}

}  // namespace

// ---- reserving -----------------------------------------------------------------------------------

// Throws Error(OutOfPages), everything as it was, where the fill does not fit even if all went that nobody pins.
// Blocks of the fill that are ready are pinned first, where pages are short: they cannot make room for its rest.
void HybridCache::check_room(Fill& fill, Described& described) {
  const auto needed = [&](int g) { return static_cast<std::int64_t>(fill.entries[g].size()); };
  const auto free = [&](int g) { return static_cast<std::int64_t>(store_.pool(g).free_count()); };
  bool enough = true;
  for (int g = 0; g < store_.group_count(); ++g) {
    if (needed(g) <= free(g)) continue;
    if (policy_ == nullptr) throw OutOfPagesError(layout_.groups[g].name, needed(g), free(g));
    enough = false;
  }
  if (policy_ == nullptr) return;
  const auto free_ids = static_cast<std::int64_t>(store_.ids().free_count());
  std::int64_t new_ids = std::ssize(described.new_units);
  if (new_ids > free_ids) new_ids = drop_repeats(described.new_units);
  if (enough && new_ids <= free_ids) return;
  hold_ready(fill);
  for (int g = 0; g < store_.group_count(); ++g) {
    const std::int64_t room = free(g) + std::max<std::int64_t>(store_.evictable(g), 0);
    if (needed(g) <= free(g) || needed(g) <= room) continue;
    let_ready_go(fill, false);
    throw OutOfPagesError(layout_.groups[g].name, needed(g), room);
  }
  if (new_ids <= free_ids || descriptors_can_go(new_ids - free_ids, described.met)) return;
  let_ready_go(fill, false);
  throw OutOfPagesError("blocks", new_ids, free_ids);
}

void HybridCache::hold_ready(Fill& fill) {
  EvictableChange change;
  for (Fill::Ready& ready : fill.ready) {
    const GroupSlot& at = store_.slot_of(ready.group);
    const auto slot = static_cast<SlotMask>(1u << at.slot);
    ready.held = store_.pin(ready.id, at.which, ready.seen, slot, change) == PinResult::Pinned;
  }
  store_.count_pins(change);
}

// `used`: as a release; else as if they had never been held.
void HybridCache::let_ready_go(Fill& fill, bool used) {
  std::uint32_t tick = 0;
  EvictableChange change;
  for (auto ready = fill.ready.rbegin(); ready != fill.ready.rend(); ++ready) {
    if (!ready->held) continue;
    ready->held = false;
    const WordClass which = store_.slot_of(ready->group).which;
    if (used && tick == 0) tick = store_.recency().next();
    store_.unpin(ready->id, which, used ? tick : store_.recency().tick(ready->id, which), change);
  }
  store_.count_unpins(change);
}

// Whether so many descriptors could be freed now, without those of `but`: one that goes and is needed again frees
// none. It goes on where the last one ended, so that as a rule it looks at few more than it finds.
bool HybridCache::descriptors_can_go(std::int64_t wanted, std::vector<DescriptorId>& but) {
  drop_repeats(but);
  for (const DescriptorId id : but) wanted += can_go_whole(store_, id);
  const std::uint32_t start = looked_at_.load() % store_.blocks();
  for (std::uint32_t i = 0; i < store_.blocks() && wanted > 0; ++i) {
    const std::uint32_t id = (start + i) % store_.blocks();
    wanted -= can_go_whole(store_, DescriptorId{id});
    looked_at_.store(id);
  }
  return wanted <= 0;
}

// Takes pages into `out` from its front, and makes room where they are short. Returns: how many.
std::size_t HybridCache::take_some(int group, std::span<PageId> out) {
  PagePool& pool = store_.pool(group);
  // An empty pool tells so in one look at its count; a take would look at every word of it.
  const bool empty = policy_ != nullptr && pool.free_count() == 0;
  std::size_t taken = empty ? 0 : pool.take_some(out);
  // Others may take what was made free; who asks again and again would starve quietly.
  for (int attempt = 0; taken < out.size() && attempt < take_attempts; ++attempt) {
    const auto wanted = static_cast<std::int64_t>(out.size() - taken);
    if (make_room(group, wanted) == 0 && !await_pages(group, wanted)) break;
    taken += pool.take_some(out.subspan(taken));
  }
  return taken;
}

// Pages that another thread has evicted count as evictable until they are free: where none can be evicted although
// there should be some, they are on their way. Returns: whether some are free now.
bool HybridCache::await_pages(int group, std::int64_t wanted) const {
  for (int turn = 0; turn < await_turns; ++turn) {
    if (store_.pool(group).free_count() != 0) return true;
    if (!is_room(group, wanted)) return false;
    yield();
  }
  return false;
}

std::int64_t HybridCache::make_room(int group, std::int64_t wanted) {
  if (policy_ == nullptr) return 0;
  std::array<Victim, EvictionRun::most_pages> victims;
  std::array<Leaving, EvictionRun::most_pages> were;
  EvictionRun run;
  std::int64_t freed = 0;
  for (int fruitless = 0; freed < wanted && fruitless < fruitless_rounds; ++fruitless) {
    const auto some = static_cast<std::size_t>(std::min<std::int64_t>(wanted - freed, victims.size()));
    std::size_t chosen;
    {
      const std::lock_guard lock(choosing_);
      chosen = policy_->choose(group, {victims.data(), some});
    }
    if (chosen == 0) break;
    // The words of a victim were just read; where its slot stands, and why it went, is a miss each, unless asked for ahead.
    for (std::size_t i = 0; i < chosen; ++i) {
      were[i] = leaving(store_, victims[i]);
      store_.table().prefetch(were[i].key);
      store_.gone().prefetch(were[i].key);
    }
    for (std::size_t i = 0; i < chosen; ++i) {
      bool gone = false;
      freed += retire(victims[i], group, gone, run);
      if (gone) fruitless = -1;
    }
    const std::uint32_t now = Gone::now();
    for (std::size_t i = 0; i < chosen; ++i) remember(store_, victims[i], were[i], group, now);
    store_.give_back(run);
  }
  return freed;
}

// Returns: pages of the pool that are free now; of descriptor_pool: descriptors. What was pinned meanwhile stays, and
// so do the states of history that stays.
std::int64_t HybridCache::retire(const Victim& victim, int pool, bool& any, EvictionRun& run) {
  Descriptor& d = store_[victim.id];
  if (store_.is_directory(victim.id)) {
    unfile_directory(d.key());
    any = !d.word(WordClass::H).live();
    return pool == descriptor_pool && any ? 1 : 0;
  }
  const bool tip = store_.recency().end(victim.id) % layout_.unit_tokens != 0;
  SlotMask gone[2] = {0, 0};
  const bool history = victim.h != 0 && !d.word(WordClass::H).no_phase();
  if (history) gone[0] = store_.evict_at(victim.id, WordClass::H, victim.h, run);
  if (victim.b != 0 && (gone[0] != 0 || !history))
    gone[1] = store_.evict_at(victim.id, WordClass::B, victim.b, run);
  any = (gone[0] | gone[1]) != 0;
  std::int64_t freed = 0;
  for (int g = 0; g < store_.group_count(); ++g) {
    const GroupSlot& at = store_.slot_of(g);
    if ((gone[static_cast<int>(at.which)] >> at.slot & 1) == 0) continue;
    evicted_.add(g * eviction_class_count + static_cast<int>(victim.why), 1);
    counters_.add(kRetired, 1);
    if (g == pool) freed = 1;
  }
  if (victim.why == EvictionClass::Stranded && gone[0] != 0 && !tip)
    stranded_.add(0, layout_.probe_units * layout_.unit_tokens);
  if (pool != descriptor_pool) return freed;
  return any && !d.word(WordClass::H).live() ? 1 : 0;
}

HybridCache::EvictionCounts HybridCache::eviction_counts() {
  EvictionCounts counts;
  counts.pages.resize(layout_.groups.size());
  for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
    for (int why = 0; why < eviction_class_count; ++why)
      counts.pages[g][static_cast<std::size_t>(why)] =
          evicted_.read(static_cast<int>(g) * eviction_class_count + why);
  }
  counts.stranded_tokens = stranded_.read(0);
  if (policy_ == nullptr) return counts;
  Standing standing(layout_, store_);
  standing.read();
  counts.stranded_now = standing.stranded_tokens();
  return counts;
}

// ---- what continues what ---------------------------------------------------------------------------

// The last unit at or before this one at which history is recorded; where there is none, a step. 0: the beginning.
std::int64_t HybridCache::node_before(std::int64_t unit) const {
  if (layout_.probe_units == 0) return unit / layout_.step_units * layout_.step_units;
  if (one_prefix_block_) return unit / layout_.probe_units * layout_.probe_units;
  const auto recorded = [&](std::int64_t at) {
    return std::any_of(layout_.groups.begin(), layout_.groups.end(),
                       [&](const Group& g) { return g.prefix() && at % g.block_units == 0; });
  };
  std::int64_t at = unit / layout_.probe_units * layout_.probe_units;
  while (at > 0 && !recorded(at)) at -= layout_.probe_units;
  return at;
}

bool HybridCache::linked(DescriptorId id, Key128 parent_key) const {
  const DescriptorId parent = store_[id].parent();
  return store_.recency().parent_tag(id) == Recency::tag_of(parent_key) && index(parent) < store_.blocks() &&
         store_[parent].word(WordClass::H).live() && store_[parent].key() == parent_key;
}

void HybridCache::link(DescriptorId id, Key128 parent_key, DescriptorId parent) {
  if (store_[id].parent() != parent) store_[id].set_parent(parent);
  store_.recency().set_parent_tag(id, Recency::tag_of(parent_key));
}

// What a block that is about to be published continues. As a rule that is the block before it in the fill.
void HybridCache::link_entry(const Fill& fill, int group, const Fill::Entry& entry) {
  const Group& g = layout_.groups[group];
  const std::int64_t unit = entry.tip_unit >= 0 ? entry.tip_unit : (entry.block + 1) * g.block_units;
  const std::int64_t tokens = entry.tip_unit >= 0 ? fill.keys->tokens() : unit * layout_.unit_tokens;
  store_.recency().set_end(entry.id, tokens, store_.once_held(entry.id) == 0);
  if (policy_ == nullptr) return;
  std::int64_t before = node_before(entry.tip_unit >= 0 ? unit : unit - 1);
  if (before == 0) {
    store_.recency().set_parent_tag(entry.id, 0);
    return;
  }
  const Key128* keys = fill.keys->keys();
  if (linked(entry.id, keys[before - 1])) return;
  const Fill::Entry* last = &entry == fill.entries[group].data() ? nullptr : &entry - 1;
  if (last != nullptr && last->key == keys[before - 1] && last->id != no_descriptor) {
    link(entry.id, last->key, last->id);
    return;
  }
  DescriptorId parent = store_.table().find(keys[before - 1]).id;
  for (int step = 1; parent == no_descriptor && layout_.probe_units == 0 && step < look_back; ++step) {
    if (before <= layout_.step_units) break;
    before -= layout_.step_units;
    parent = store_.table().find(keys[before - 1]).id;
  }
  link(entry.id, keys[before - 1], parent);
}

// The same for what a ticket is about to publish at a length. As a rule it continues the block published before.
void HybridCache::link_unit(const Ticket& ticket, std::int64_t tokens, DescriptorId id) {
  const std::int64_t unit = tokens / layout_.unit_tokens;
  store_.recency().set_end(id, tokens, store_.once_held(id) == 0);
  if (policy_ == nullptr) return;
  const std::int64_t before = node_before(tokens % layout_.unit_tokens != 0 ? unit : unit - 1);
  if (before == 0) {
    store_.recency().set_parent_tag(id, 0);
    return;
  }
  const Key128 parent_key = ticket.keys.key(before - 1);
  if (linked(id, parent_key)) return;
  const DescriptorId last = ticket.history.empty() ? no_descriptor : ticket.history.back();
  const bool follows = last != no_descriptor && store_[last].key() == parent_key;
  link(id, parent_key, follows ? last : store_.table().find(parent_key).id);
}

// Blocks that were ready when the fill began are part of a prefix that is used now. What they continue may have come
// back since, in another place.
void HybridCache::use_ready(Fill& fill, std::uint32_t tick) {
  for (const Fill::Ready& ready : fill.ready) {
    const GroupSlot& at = store_.slot_of(ready.group);
    store_.recency().touch(ready.id, at.which, tick);
    const std::int64_t before = node_before(ready.unit - 1);
    if (at.which != WordClass::H || before == 0) continue;
    const Key128 parent_key = fill.keys->keys()[before - 1];
    if (linked(ready.id, parent_key)) continue;
    const DescriptorId parent = store_.table().find(parent_key).id;
    const auto slot = static_cast<SlotMask>(1u << at.slot);
    if (parent == no_descriptor || store_.pin(ready.id, at.which, ready.seen, slot) != PinResult::Pinned)
      continue;
    link(ready.id, parent_key, parent);
    EvictableChange change;
    store_.unpin(ready.id, at.which, tick, change);
    store_.count_unpins(change);
  }
}

}  // namespace hkv
