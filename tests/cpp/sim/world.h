// SPDX-License-Identifier: Apache-2.0
// A small block store under the scheduler, what a thread may do to it, and what holds after every step.
//
// Thread safety: none; the scheduler runs one thread at a time.
// Checked after every step that writes (`check`):
//  1. A page has one place: free in its pool, or named by one word that shows it, or in the hands of one busy thread
//     (between the pool and a word). Never two, and none is lost: pages without a place <= threads at work + claims.
//  2. What a word shows usable or retiring names a page that is not free and whose bytes are those of (key, group).
//  3. While a word keeps its generation, what it shows keeps its key and its page; a generation moves by one.
//  4. A word has at least the pins that are known to be held, and at most one more per busy thread; a page read
//     under a pin stays that page and out of the pool. A closed H stands over no page that could be pinned.
// Checked at the end (`after`): conservation, the derived index, the counts of evictable pages, no life without a page,
// every live key found once.
#pragma once
#include <span>

#include "block/store.h"
#include "sim/scheduler.h"

namespace hkv::sim {

// Keys of one line and one tag; a and b differ in one bit of one half.
inline constexpr Key128 key_a{0x10, 0x21}, key_b{0x11, 0x21}, key_c{0x10, 0x21 | std::uint64_t{1} << 34};

inline constexpr GroupSlot h_alone[] = {{WordClass::H, 0, StateKind::Compressed}};
inline constexpr GroupSlot h_and_b[] = {{WordClass::H, 0, StateKind::Compressed},
                                        {WordClass::B, 0, StateKind::Window}};
inline constexpr GroupSlot two_of_h[] = {{WordClass::H, 0, StateKind::Compressed},
                                         {WordClass::H, 1, StateKind::Indexer}};

class World : public Program {
 public:
  static constexpr int page_words = 2;
  struct Pin {
    DescriptorId id = no_descriptor;
    Key128 key;
    int group = 0;
    PageId page = no_page;
  };

  World(std::uint32_t blocks, std::uint32_t pages, std::span<const GroupSlot> groups)
      : store(emptied_store(blocks, pages, groups)), bytes_(groups.size() * pages) {}
  // Over a store that somebody else keeps and has emptied; every pool has so many pages.
  World(BlockStore& of, std::uint32_t pages)
      : store(of), bytes_(static_cast<std::size_t>(of.group_count()) * pages) {}

  BlockStore& store;

  static std::uint64_t content(Key128 key, int group, int word) {
    return key.lo * 31 + key.hi * 7 + static_cast<unsigned>(group * 3 + word) + 1;
  }

  // ---- what a thread may do --------------------------------------------------------------------

  // Reserve, write, publish; or abort instead of publish. Returns: whether the page was published.
  bool fill(Key128 key, int group, bool give_up = false) {
    const Busy busy(*this);
    const PageId page = store.pool(group).take();
    if (page == no_page) return false;
    const DescriptorId id = claim(key, group, page);
    if (id == no_descriptor) {
      store.pool(group).give_back(page);
      return false;
    }
    write(page, key, group);
    if (give_up) {
      store.abort(id, key, group);
    } else {
      store.publish(id, group);
    }
    return !give_up;
  }
  // Claim for a restore, write what the tier has, publish; or give up instead.
  void restore(Key128 key, int group, bool give_up = false) {
    const Busy busy(*this);
    const PageId page = store.pool(group).take();
    if (page == no_page) return;
    const DescriptorId id = claim(key, group, page, Event::RestoreBegins);
    if (id == no_descriptor) return store.pool(group).give_back(page);
    write(page, key, group);
    if (give_up) return store.abort(id, key, group);
    store.publish(id, group);
  }
  // Copy the page to a tier under a pin; it may be evicted before, or retired meanwhile.
  void offload(Key128 key, int group) {
    Pin pin;
    if (!acquire_page(key, group, pin)) return;
    const GroupSlot& at = store.slot_of(group);
    const SlotMask marked = store.begin_offload(pin.id, at.which, static_cast<SlotMask>(1u << at.slot));
    read_page(pin);
    store.end_offload(pin.id, at.which, marked, true);
    release_page(pin);
  }
  // Claims the block for the page. Returns: its descriptor, or none where another has it or none is to be had.
  DescriptorId claim(Key128 key, int group, PageId page, Event how = Event::Claim) {
    for (;;) {
      const Placement placed = store.table().get_or_insert(key);
      if (placed.how == Placed::Full || placed.how == Placed::Private) return no_descriptor;
      bool lives = true;
      if (store.claim(placed.id, key, group, page, lives, how)) return placed.id;
      if (!lives) continue;
      store.table().erase_if_empty(placed.id, key);
      return no_descriptor;
    }
  }
  void write(PageId page, Key128 key, int group) {
    for (int i = 0; i < page_words; ++i) word(group, page, i).set(content(key, group, i));
  }

  // Pins one page, if it can be had. Returns: whether; `pin` is then held.
  bool acquire_page(Key128 key, int group, Pin& pin) {
    const Busy busy(*this);
    const Sighting seen = store.table().find(key);
    const GroupSlot& at = store.slot_of(group);
    if (!seen.found() || !seen.word(at.which).usable_slot(at.slot)) return false;
    const auto mask = static_cast<SlotMask>(1u << at.slot);
    if (store.pin(seen.id, at.which, seen.word(at.which), mask) != PinResult::Pinned) return false;
    pin = {seen.id, key, group, store.page(seen.id, group)};
    held_.push_back(pin);
    return true;
  }
  // A reader of a pinned page reads what was published for its key.
  void read_page(const Pin& pin) {
    for (int i = 0; i < page_words; ++i)
      HKV_MUST(word(pin.group, pin.page, i).get() == content(pin.key, pin.group, i));
  }
  void release_page(const Pin& pin) {
    const Busy busy(*this);
    std::erase_if(held_, [&, once = true](const Pin& held) mutable {
      return once && held.id == pin.id && held.group == pin.group && !(once = false);
    });
    store.unpin(pin.id, store.slot_of(pin.group).which);
  }
  bool read(Key128 key, int group) {
    Pin pin;
    if (!acquire_page(key, group, pin)) return false;
    read_page(pin);
    release_page(pin);
    return true;
  }
  // A lease of several pages: all or none, unwound in reverse.
  bool lease(std::initializer_list<std::pair<Key128, int>> wanted) {
    std::vector<Pin> pins;
    bool all = true;
    for (const auto& [key, group] : wanted) {
      Pin pin;
      all = acquire_page(key, group, pin);
      if (!all) break;
      pins.push_back(pin);
    }
    if (all) {
      for (const Pin& pin : pins) read_page(pin);
    }
    for (auto pin = pins.rbegin(); pin != pins.rend(); ++pin) release_page(*pin);
    return all;
  }

  bool evict(Key128 key, int group) {
    const Busy busy(*this);
    return store.evict(key, group);
  }
  bool retire(Key128 key, int group) {
    const Busy busy(*this);
    return store.retire_of(key, group);
  }
  // Makes a life and ends it if nobody took it up.
  void touch(Key128 key) {
    const Busy busy(*this);
    const Placement placed = store.table().get_or_insert(key);
    if (placed.how == Placed::Found || placed.how == Placed::Inserted)
      store.table().erase_if_empty(placed.id, key);
  }

  // Claims that stand outside one operation: their pages have no place until they are published or given back.
  int standing_claims = 0;

  // ---- what must hold --------------------------------------------------------------------------

  void check() override {
    if (before_.empty()) {  // as before() left it
      for (std::uint32_t i = 0; i < store.blocks(); ++i) before_.push_back(shown(DescriptorId{i}));
    }
    for (int group = 0; group < store.group_count(); ++group) check_places(group);
    for (std::uint32_t i = 0; i < store.blocks(); ++i) check_words(DescriptorId{i});
    for (const Pin& pin : held_) {
      HKV_MUST(store.page(pin.id, pin.group) == pin.page && !store.pool(pin.group).is_free(pin.page));
      HKV_MUST(store[pin.id].key() == pin.key && store[pin.id].word(WordClass::H).live());
    }
  }

  void after() override {
    check();
    HKV_MUST(busy_ == 0);
    for (int group = 0; group < store.group_count(); ++group) {
      const BlockStore::Census census = store.census(group, quarantined_);
      HKV_MUST(census.free + census.filling + census.held + census.cached == store.pool(group).count());
      HKV_MUST(census.filling == quarantined_);
      HKV_MUST(static_cast<std::int64_t>(census.cached) == store.evictable(group));
      if (held_.empty()) HKV_MUST(census.held == 0);
    }
    HKV_MUST(store.verify() == no_descriptor);
    HKV_MUST(store.ids().summary_holds());
    HKV_MUST(store.table().counts_hold());
    for (std::uint32_t i = 0; i < store.blocks(); ++i) {
      const DescriptorId id{i};
      const Word h = store[id].word(WordClass::H), b = store[id].word(WordClass::B);
      HKV_MUST(!h.tentative() && store.ids().is_free(i) == h.closed());
      HKV_MUST(h.live() || b.empty());
      HKV_MUST(!h.live() || !h.empty() || !b.empty());
      HKV_MUST(!h.live() || store.table().find(store[id].key()).id == id);
    }
  }

 protected:
  struct Busy {
    explicit Busy(World& w) : world(w) { ++world.busy_; }
    ~Busy() { --world.busy_; }
    World& world;
  };
  std::vector<Pin> held_;          // pins known to be held
  int leases_ = 0;                 // more that hold a pin each on words of their own choice
  std::uint64_t quarantined_ = 0;  // pages of each group that stay without a place at the end

  Plain& word(int group, PageId page, int i) {
    return bytes_[static_cast<std::size_t>(group) * store.pool(group).count() + index(page)].word[i];
  }

 private:
  struct Page {
    Plain word[page_words];
  };
  struct Shown {
    Word words[2];
    Key128 key;
    PageId pages[2];
  };

  // A store's memory comes from the system, which costs more than an execution: one is kept and emptied. Only
  // generations and hand-out counts tell that it was used before.
  static BlockStore& emptied_store(std::uint32_t blocks, std::uint32_t pages,
                                   std::span<const GroupSlot> groups) {
    static std::unique_ptr<BlockStore> kept;
    static const GroupSlot* of = nullptr;
    if (kept == nullptr || of != groups.data() || kept->blocks() != blocks ||
        kept->pool(0).count() != pages) {
      kept = std::make_unique<BlockStore>(blocks, groups, std::vector<std::uint32_t>(groups.size(), pages));
      of = groups.data();
    } else {
      kept->reset();
    }
    return *kept;
  }
  Shown shown(DescriptorId id) const {
    Shown now{{store[id].word(WordClass::H), store[id].word(WordClass::B)}, store[id].key(), {}};
    for (int group = 0; group < store.group_count(); ++group) now.pages[group] = store.page(id, group);
    return now;
  }

  static bool shows_page(Phase phase) { return usable(phase) || phase == Phase::Retiring; }

  void check_places(int group) {
    const GroupSlot& at = store.slot_of(group);
    const PagePool& pool = store.pool(group);
    std::uint64_t free = 0, named = 0;
    for (std::uint32_t p = 0; p < pool.count(); ++p) free |= std::uint64_t{pool.is_free(PageId{p})} << p;
    for (std::uint32_t i = 0; i < store.blocks(); ++i) {
      const DescriptorId id{i};
      const Word h = store[id].word(WordClass::H), its = store[id].word(at.which);
      if (!its.live() || !shows_page(its.phase(at.slot)) || store.is_directory(id)) continue;
      HKV_MUST(h.live());
      const PageId page = store.page(id, group);
      HKV_MUST(index(page) < pool.count());
      if (index(page) >= pool.count()) return;
      const std::uint64_t place = std::uint64_t{1} << index(page);
      HKV_MUST((free & place) == 0);   // out of the pool
      HKV_MUST((named & place) == 0);  // and nobody else's
      named |= place;
      for (int w = 0; w < page_words; ++w)
        HKV_MUST(word(group, page, w).value() == content(store[id].key(), group, w));
    }
    const int placed = std::popcount(free | named);
    HKV_MUST(static_cast<int>(pool.count()) - placed <= busy_ + standing_claims);
  }

  void check_words(DescriptorId id) {
    Shown& was = before_[index(id)];
    const bool directory = store.is_directory(id);  // it holds no page
    const Shown now = shown(id);
    for (const WordClass which : {WordClass::H, WordClass::B}) {
      const Word before = was.words[static_cast<int>(which)], word = now.words[static_cast<int>(which)];
      const std::uint32_t moved = (word.generation() - before.generation()) & 0xFFFFFF;
      HKV_MUST(moved <= 1);
      for (int group = 0; group < store.group_count(); ++group) {
        const GroupSlot& at = store.slot_of(group);
        if (at.which != which || moved != 0 || !before.live() || !shows_page(before.phase(at.slot)) ||
            directory)
          continue;
        HKV_MUST(shows_page(word.phase(at.slot)) && now.key == was.key &&
                 now.pages[group] == was.pages[group]);
      }
      if (!word.live()) continue;
      std::uint32_t known = 0;
      for (const Pin& pin : held_) known += pin.id == id && store.slot_of(pin.group).which == which;
      HKV_MUST(word.pins() >= known && word.pins() <= known + static_cast<std::uint32_t>(busy_ + leases_));
    }
    was = now;
  }

  std::vector<Page> bytes_;
  std::vector<Shown> before_;
  int busy_ = 0;
};

}  // namespace hkv::sim
