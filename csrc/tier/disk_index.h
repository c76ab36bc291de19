// SPDX-License-Identifier: Apache-2.0
// What a disk tier holds and where: every record in memory, about 60 bytes each, a forest by parents.
//
// Thread safety: `look`, `touch`, `records`, `losses` on any thread; everything else on one thread, the writer's.
//
// Invariants, and why each holds:
//  1. Prefix-closed: the parent of a record that is in is in. `insert` refuses a record without its parent, `erase`
//     takes the descendants along, `link_loaded` drops whom no root reaches.
//  2. No cycles: a record's parent was in before it, or `link_loaded` found a root above it.
//  3. A reader that says Here saw the record live after the call began; one that says Absent met no life of the key
//     that lasted from before the call to its end (index_cell.h 1, index_buckets.h 2).
//  4. Formats are numbered once and for all: a number below the count names the same format whenever one looks, and is
//     written before the count says so (release, acquire).
// A boundary's parent is a block record of any format, since a boundary does not say of which: the first found.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/hint.h"
#include "tier/index_buckets.h"
#include "tier/index_cell.h"
#include "tier/loss_count.h"
#include "tier/tier.h"

namespace hkv {

#ifdef HKV_RELACY
inline constexpr std::uint32_t index_chunk = 4, index_chunks = 1, index_formats = 2;
#else
inline constexpr std::uint32_t index_chunk = 4096, index_chunks = (1u << 26) / index_chunk,
                               index_formats = 4096;
#endif

class DiskIndex {
 public:
  using Number = std::uint32_t;  // of a record while it is in; none_u32: none

  DiskIndex();

  // ---- any thread ---------------------------------------------------------------------------
  // Progress: wait-free but for splits of a bucket that race it. Never Unknown.
  Presence look(const RecordKey& key) const;
  // Effect: counts a use, which reclaim honours. Progress: as look.
  void touch(const RecordKey& key);
  std::uint64_t records() const { return records_.load(); }
  // Moves with each record that is taken out.
  std::uint64_t losses() const { return losses_.read(); }

  // ---- the writer ---------------------------------------------------------------------------
  Number find(const RecordKey& key) const;
  bool has_parent(const RecordKey& key, const Key128& parent) const;
  enum class Insert : std::uint8_t { Done, NoParent, Full };
  // Requires: find(key) is none.
  Insert insert(const RecordKey& key, const Key128& parent, std::uint8_t flags, bool pinned,
                const RecordPlace& place, Number& out);
  void move(Number n, const RecordPlace& place) {
    cell(n).set_place(place);
    cell(n).forget_hits();
  }
  void pin(Number n) { cell(n).pin(); }
  void hit(Number n) { cell(n).hit(cell(n).word()); }
  // Effect: takes out the record and its descendants, descendants first; `gone(place)` is called for each.
  template <class F>
  void erase(Number n, F&& gone);

  bool holds(Number n) const { return n < made_ && cell(n).word().live(); }
  RecordPlace place(Number n) const { return cell(n).place(); }
  RecordKey key(Number n) const;
  Key128 parent_digest(Number n) const;
  Number parent(Number n) const { return cell(n).parent; }
  CellWord word(Number n) const { return cell(n).word(); }
  // Records of the tree below, itself with them; stops counting at `most`.
  std::uint32_t tree_size(Number n, std::uint32_t most) const;
  // Of the records that are there. Cost: a look at each.
  std::vector<Key128> formats_in_use() const;
  std::size_t bytes() const { return std::size_t{made_} * sizeof(IndexCell) + buckets_.bytes(); }

  // Of recovery, before any reader: records come in any order, without their parents; `link_loaded` makes the forest.
  // Requires: find(key) is none. Returns none where the index is full.
  Number load(const RecordKey& key, std::uint8_t flags, bool pinned, const RecordPlace& place);
  // The same key once more: the later record takes the place.
  void reload(Number n, std::uint8_t flags, bool pinned, const RecordPlace& place);
  struct Loaded {
    Key128 parent;
    std::uint64_t order = 0;       // of writing: greater is later
    std::uint64_t removed_at = 0;  // order of the key's last tombstone; 0: none
  };
  enum class Left : std::uint8_t { Orphan, Removed };
  // Effect: keeps what a root reaches and no tombstone of it or of a record below it is later than; `left(number,
  // why)` is called for every other one, before it is taken out. `loaded[n]` is of the record numbered n.
  template <class F>
  void link_loaded(std::span<const Loaded> loaded, F&& left);

 private:
  enum class Standing : std::uint8_t { Unknown, Visiting, Kept, Orphan, Removed };
  static std::uint64_t hash_of(const Key128& digest, RecordKind kind);
  std::uint64_t hash_of(Number n) const { return hash_of(cell(n).digest(), cell(n).word().kind()); }
  IndexCell& cell(Number n) { return chunks_[n / index_chunk][n % index_chunk]; }
  const IndexCell& cell(Number n) const { return chunks_[n / index_chunk][n % index_chunk]; }
  std::uint32_t format_number(const Key128& format) const;  // none_u32: no record ever had it
  std::uint32_t intern(const Key128& format);
  // The first record of that digest and kind; `format` none_u32: of any format.
  Number find(const Key128& digest, RecordKind kind, std::uint32_t format) const;
  Number find_parent(RecordKind kind, std::uint32_t format, const Key128& parent) const;
  Number take_cell();
  void link(Number n, Number parent);
  void take_out(Number n);  // a leaf
  Standing judge(Number n, std::span<const Loaded> loaded, std::vector<Standing>& standing,
                 std::vector<std::uint64_t>& removed_at);

  IndexBuckets buckets_;
  std::array<std::unique_ptr<IndexCell[]>, index_chunks> chunks_;
  Number made_ = 0, spare_ = none_u32;  // spare cells by their `next`
  std::unique_ptr<Key128[]> formats_;
  Atom<std::uint32_t> format_count_{0};
  Hint<std::uint64_t> records_{0};
  LossCount losses_;
};

template <class F>
void DiskIndex::erase(Number n, F&& gone) {
  Number at = n;
  for (;;) {
    while (cell(at).first_child != none_u32) at = cell(at).first_child;
    const Number up = cell(at).parent;
    const bool last = at == n;
    gone(cell(at).place());
    take_out(at);
    if (last) return;
    at = up;
  }
}

template <class F>
void DiskIndex::link_loaded(std::span<const Loaded> loaded, F&& left) {
  std::vector<Standing> standing(made_, Standing::Unknown);
  std::vector<std::uint64_t> removed_at(made_, 0);
  for (Number n = 0; n < made_; ++n) judge(n, loaded, standing, removed_at);
  for (Number n = 0; n < made_; ++n) {
    if (standing[n] == Standing::Kept) continue;
    left(n, standing[n] == Standing::Removed ? Left::Removed : Left::Orphan);
    cell(n).parent = none_u32;
    take_out(n);
  }
  for (Number n = 0; n < made_; ++n) {
    if (standing[n] == Standing::Kept) link(n, cell(n).parent);
  }
}

}  // namespace hkv
