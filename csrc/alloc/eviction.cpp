// SPDX-License-Identifier: Apache-2.0
#include "alloc/eviction.h"

#include <algorithm>
#include <vector>

#include "alloc/shortlist.h"
#include "alloc/usability.h"

namespace hkv {
namespace {

// Oldest first, and of one release what ends later first.
std::uint64_t rank_of(std::uint32_t age, std::uint32_t end) {
  return std::uint64_t{~age} << 32 | static_cast<std::uint32_t>(~end);
}

class Lru : public EvictionPolicy {
 public:
  explicit Lru(const BlockStore& store)
      : store_(store), lists_(static_cast<std::size_t>(store.group_count()) + 1) {}

  std::size_t choose(int pool, std::span<Victim> out) override {
    Shortlist& list = lists_[static_cast<std::size_t>(pool + 1)];
    std::size_t n = take(pool, list, out);
    if (n != 0) return n;
    refill(pool, list);
    return take(pool, list, out);
  }
  void reset() override {
    for (Shortlist& list : lists_) list.clear();
  }

 private:
  std::size_t take(int pool, Shortlist& list, std::span<Victim> out) {
    std::size_t n = 0;
    while (n < out.size()) {
      Candidate next;
      if (!list.next(next)) break;
      const DescriptorId id{next.id};
      std::uint32_t tick = 0;
      if (evictable(pool, id, tick) && tick == next.tick) out[n++] = victim(pool, id);
    }
    return n;
  }

  Victim victim(int pool, DescriptorId id) const {
    if (pool == descriptor_pool) return {id, EvictionClass::History, 0xFF, 0xFF};
    const GroupSlot& at = store_.slot_of(pool);
    const auto slot = static_cast<SlotMask>(1u << at.slot);
    if (at.which == WordClass::H) return {id, EvictionClass::History, slot, 0};
    return {id, EvictionClass::History, 0, slot};
  }

  bool evictable(int pool, DescriptorId id, std::uint32_t& tick) const {
    const Recency& recency = store_.recency();
    if (pool == descriptor_pool) {
      const std::uint32_t horizon = recency.horizon();
      const std::uint32_t h = recency.tick(id, WordClass::H), b = recency.tick(id, WordClass::B);
      tick = Recency::age(horizon, h) < Recency::age(horizon, b) ? h : b;
      return can_go_whole(store_, id);
    }
    const GroupSlot& at = store_.slot_of(pool);
    tick = recency.tick(id, at.which);
    return (store_[id].word(at.which).evictable_spread() >> (3 * at.slot) & 1) != 0 &&
           !store_.is_directory(id);
  }

  void refill(int pool, Shortlist& list) {
    const Recency& recency = store_.recency();
    const std::uint32_t horizon = recency.horizon();
    const std::uint32_t count = pool == descriptor_pool ? store_.blocks() : store_.pool(pool).count();
    list.begin(eviction_batch(count));
    for (std::uint32_t i = 0; i < store_.blocks(); ++i) {
      std::uint32_t tick = 0;
      if (evictable(pool, DescriptorId{i}, tick))
        list.add(rank_of(Recency::age(horizon, tick), recency.end(DescriptorId{i})), i, tick);
    }
    list.end();
  }

  const BlockStore& store_;
  std::vector<Shortlist> lists_;  // descriptor_pool first
};

}  // namespace

bool can_go_whole(const BlockStore& store, DescriptorId id) {
  const Descriptor& d = store[id];
  const Word h = d.word(WordClass::H), b = d.word(WordClass::B);
  if (!h.live() || h.pins() != 0 || b.pins() != 0) return false;
  if (store.is_directory(id)) return store.directory_is_empty(id);
  const auto every_bit = [](Word w) { return w.bits() & Word::phase_mask; };
  // Of three bits a slot: nothing there, or bit 2 without bit 1.
  const auto only_evictable = [&](Word w) {
    return (every_bit(w) & ~(std::uint64_t{w.evictable_spread()} * 7)) == 0;
  };
  return (!h.no_phase() || !b.no_phase()) && only_evictable(h) && only_evictable(b);
}

std::unique_ptr<EvictionPolicy> make_eviction(EvictionOrder order, const Layout& layout,
                                              const BlockStore& store) {
  switch (order) {
    case EvictionOrder::None: return nullptr;
    case EvictionOrder::Lru: return std::make_unique<Lru>(store);
    case EvictionOrder::Usability: return make_usability(layout, store);
  }
  return nullptr;
}

}  // namespace hkv
