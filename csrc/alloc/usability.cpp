// SPDX-License-Identifier: Apache-2.0
#include "alloc/usability.h"

#include <algorithm>
#include <bit>

#include "alloc/shortlist.h"

namespace hkv {
namespace {

// Class; then how old, within a factor of two; of those what a tier has a copy of before what it has not; then how old
// to 26 bits; then what ends later first (ends fit: recency.h).
std::uint64_t rank_of(EvictionClass of, std::uint32_t used, bool copied, std::uint32_t end) {
  constexpr int rest_bits = 25;
  const std::uint32_t age =
      std::max(~used, Recency::ahead) - Recency::ahead;  // since the pass began; later: 0
  const int octave = std::bit_width(age);                // 0 to 32
  const std::uint64_t behind_first_bit = (std::uint64_t{age} << (33 - octave)) & none_u32;
  const std::uint64_t rest = behind_first_bit >> (32 - rest_bits);
  std::uint64_t rank = static_cast<std::uint64_t>(of);
  rank = rank << 6 | static_cast<std::uint64_t>(32 - octave);
  rank = rank << 1 | (copied ? 0u : 1u);
  rank = rank << rest_bits | ((std::uint64_t{1} << rest_bits) - 1 - rest);
  return rank << 30 | (Recency::end_max - end);
}
EvictionClass class_of(std::uint64_t rank) { return static_cast<EvictionClass>(rank >> 62); }
constexpr std::uint64_t alone_bit = std::uint64_t{1} << 55;  // of a rank: not copied

class Usability : public EvictionPolicy {
 public:
  Usability(const Layout& layout, const BlockStore& store)
      : layout_(layout),
        store_(store),
        standing_(layout, store),
        given_(static_cast<std::size_t>(store.group_count())),
        left_behind_(store.blocks()),
        left_seen_(static_cast<std::size_t>(store.group_count())),
        lists_(static_cast<std::size_t>(store.group_count()) + 2) {}

  std::size_t choose(int pool, std::span<Victim> out) override {
    const int which = pool >= 0 && layout_.groups[pool].prefix() ? history_list : pool;
    if (which >= 0) {
      const std::size_t left = take_left_behind(which, out);
      if (left != 0) return left;
    }
    Shortlist& list = lists_[static_cast<std::size_t>(which + 2)];
    std::size_t n = take(which, list, out, Inner::Stays);
    if (n != 0) return n;
    do {  // once more where a pass was for pages that turned out to have no copy: each has lost its claim by then
      refill(which, list);
      n = take(which, list, out, Inner::Stays);
      if (n != 0) return n;
    } while (uncopied_ != 0);
    refill(which, list);  // what is left has something behind it that cannot go
    return take(which, list, out, Inner::Goes);
  }
  void reset() override {
    for (Shortlist& list : lists_) list.clear();
    for (std::uint64_t& seen : left_seen_) seen = left_count_;
  }

 private:
  static constexpr int history_list = -2;  // of all Prefix groups; beside descriptor_pool and the groups
  enum class Inner : std::uint8_t { Stays, Goes };

  std::size_t take(int which, Shortlist& list, std::span<Victim> out, Inner inner) {
    std::size_t n = 0;
    while (n < out.size()) {
      Candidate next;
      if (!list.next(next)) break;
      const DescriptorId id{next.id};
      if (!evictable(which, id) || tick_of(which, id) != next.tick) continue;
      if (inner == Inner::Stays && (next.rank & alone_bit) == 0 && !still_copied(which, id)) {
        ++uncopied_;
        next.rank |= alone_bit;
        list.put_back(next);
        continue;
      }
      const EvictionClass why = class_of(next.rank);
      if (which >= 0) {
        if (!goes_on(which, why)) {
          list.clear();
          break;
        }
        out[n++] = {id, why, 0, static_cast<SlotMask>(1u << store_.slot_of(which).slot)};
        continue;
      }
      if (inner == Inner::Stays && standing_.continued(next.id) != 0) continue;
      standing_.take(next.id);
      if (which == history_list) left_behind_[left_count_++ % left_behind_.size()] = next.id;
      out[n++] = {id, why, 0xFF, static_cast<SlotMask>(which == descriptor_pool ? 0xFF : 0)};
    }
    return n;
  }

  // Whether what was ranked as copied is: what is not lies here alone from now on, and so does all that it continues.
  bool still_copied(int which, DescriptorId id) {
    if (copies_ == nullptr || store_.is_directory(id)) return true;
    if (which >= 0)
      return copies_->still(id, WordClass::B, static_cast<SlotMask>(1u << store_.slot_of(which).slot));
    if (store_[id].word(WordClass::H).no_phase()) return copies_->still(id, WordClass::B, 0xFF);
    if (!standing_.copied_history(index(id))) return false;
    if (copies_->still(id, WordClass::H, 0xFF)) return true;
    standing_.lose_copy(index(id));
    return false;
  }

  // States whose history went, the oldest first: known without a pass.
  std::size_t take_left_behind(int which, std::span<Victim> out) {
    std::uint64_t& seen = left_seen_[static_cast<std::size_t>(which)];
    if (left_count_ - seen > left_behind_.size()) seen = left_count_ - left_behind_.size();
    std::size_t n = 0;
    while (n < out.size() && seen != left_count_) {
      const DescriptorId id{left_behind_[seen++ % left_behind_.size()]};
      if (!store_[id].word(WordClass::H).no_phase() || !evictable(which, id)) continue;
      out[n++] = {id, EvictionClass::Stranded, 0, static_cast<SlotMask>(1u << store_.slot_of(which).slot)};
    }
    return n;
  }
  // A list is exact inside one class. Tails wait for a list that begins with them, or what was superseded since the pass
  // would outlive them; and as branches go on and fork, tails lose their worth and gain it: a few a pass.
  bool goes_on(int which, EvictionClass why) {
    Given& given = given_[static_cast<std::size_t>(which)];
    const bool tail = why == EvictionClass::Tail;
    if (tail && (given.others != 0 || given.tails > store_.pool(which).count() / 16)) return false;
    ++(tail ? given.tails : given.others);
    return true;
  }

  bool evictable(int which, DescriptorId id) const {
    if (which == descriptor_pool) return can_go_whole(store_, id);
    if (which == history_list)
      return store_[id].word(WordClass::H).evictable_spread() != 0 && !store_.is_directory(id);
    return (store_[id].word(store_.slot_of(which).which).evictable_spread() >>
                (3 * store_.slot_of(which).slot) &
            1) != 0;
  }
  std::uint32_t tick_of(int which, DescriptorId id) const {
    const bool history =
        which == history_list || (which == descriptor_pool && !store_[id].word(WordClass::H).no_phase());
    return store_.recency().tick(id, history ? WordClass::H : WordClass::B);
  }

  void refill(int which, Shortlist& list) {
    standing_.read();
    uncopied_ = 0;
    std::size_t count = store_.blocks();
    if (which >= 0) count = store_.pool(which).count();
    list.begin(eviction_batch(count));
    if (which >= 0) given_[static_cast<std::size_t>(which)] = {};
    for (std::uint32_t i = 0; i < store_.blocks(); ++i) {
      const DescriptorId id{i};
      const bool may_go = which >= 0              ? standing_.evictable_state(i, store_.slot_of(which).slot)
                          : which == history_list ? standing_.evictable_history(i)
                                                  : can_go_whole(store_, id);
      if (!may_go) continue;
      list.add(rank(which, i), i, tick_read(which, i));
    }
    list.end();
  }

  // As the pass read it: what was used since is passed over.
  std::uint32_t tick_read(int which, std::uint32_t i) const {
    if (which == history_list) return standing_.tick(i, WordClass::H);
    return which >= 0 ? standing_.tick(i, WordClass::B) : tick_of(which, DescriptorId{i});
  }

  std::uint64_t rank(int which, std::uint32_t i) const {
    const std::uint32_t end = standing_.end(i);
    if (which >= 0) {
      const EvictionClass of = standing_.of_state(i, which);
      const std::uint32_t used = standing_.states_used(i);
      return rank_of(of, of == EvictionClass::Tail ? std::max(used, standing_.tail_used(i)) : used,
                     standing_.copied_state(i, store_.slot_of(which).slot), end);
    }
    if (which == history_list) return rank_of_history(i);
    const DescriptorId id{i};
    if (store_.is_directory(id)) return 0;
    if (!store_[id].word(WordClass::H).no_phase()) return rank_of_history(i);
    return rank_of(best_of_states(i), standing_.states_used(i), standing_.copied_states(i), end);
  }
  std::uint64_t rank_of_history(std::uint32_t i) const {
    return rank_of(standing_.of_history(i), standing_.used(i), standing_.copied_history(i), standing_.end(i));
  }

  // Descriptors without history, where descriptors are short: worth what their most useful page is.
  EvictionClass best_of_states(std::uint32_t i) const {
    EvictionClass best = EvictionClass::Stranded;
    for (int g = 0; g < store_.group_count(); ++g) {
      const GroupSlot& at = store_.slot_of(g);
      if (at.which == WordClass::B && store_[DescriptorId{i}].word(WordClass::B).usable_slot(at.slot))
        best = std::max(best, standing_.of_state(i, g));
    }
    return best;
  }

  const Layout& layout_;
  const BlockStore& store_;
  Standing standing_;
  struct Given {
    std::uint32_t tails = 0, others = 0;
  };
  std::vector<Given> given_;                // of a group's list, since it was made
  std::vector<std::uint32_t> left_behind_;  // descriptors whose history was chosen, a ring
  std::uint64_t left_count_ = 0;            // ever
  std::vector<std::uint64_t> left_seen_;    // of them, by group
  std::vector<Shortlist> lists_;            // history_list, descriptor_pool, groups
  std::uint64_t uncopied_ = 0;              // since the last pass: ranked as copied, and not
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_usability(const Layout& layout, const BlockStore& store) {
  return std::make_unique<Usability>(layout, store);
}

}  // namespace hkv
