// SPDX-License-Identifier: Apache-2.0
// One record in the index of a disk tier: a line of 48 bytes, whose key any thread may read beside the one that writes.
//
// Thread safety: `read` and `hit` on any thread; everything else on the writer's.
//
// Invariants, and why each holds:
//  1. A reader that finds the same life in both reads of the word has the key of that life. Ends: `close` stores a word
//     of the next life before `open` stores the halves of the next key; a reader that sees such a half (acquire) sees
//     that word or a later one in its second read. Begins: a reader that sees the live word (acquire) sees both halves.
//  2. Lives do not repeat: 2^38 of them.
#pragma once
#include <cstdint>

#include "base/atomic.h"
#include "tier/record.h"

namespace hkv {

// life 38 | live 1 | pinned 1 | hits 2 | kind 2 | format 12 | flags 8
class CellWord {
 public:
  static constexpr std::uint32_t most_hits = 3, format_limit = 1u << 12;

  constexpr explicit CellWord(std::uint64_t bits = 0) : bits_(bits) {}
  constexpr CellWord opened(RecordKind kind, std::uint32_t format, std::uint8_t flags, bool pinned) const {
    return CellWord((bits_ & life_mask) | live_bit | (pinned ? pinned_bit : 0) |
                    static_cast<std::uint64_t>(kind) << 20 | std::uint64_t{format} << 8 | flags);
  }
  constexpr CellWord closed() const { return CellWord((bits_ & life_mask) + life_one); }
  constexpr CellWord with_hit() const { return hits() == most_hits ? *this : CellWord(bits_ + hit_one); }
  constexpr CellWord without_hits() const { return CellWord(bits_ & ~(std::uint64_t{most_hits} * hit_one)); }
  constexpr CellWord with_pin() const { return CellWord(bits_ | pinned_bit); }

  constexpr std::uint64_t bits() const { return bits_; }
  constexpr bool live() const { return bits_ & live_bit; }
  constexpr bool pinned() const { return bits_ & pinned_bit; }
  constexpr std::uint32_t hits() const { return bits_ >> 22 & most_hits; }
  constexpr RecordKind kind() const { return static_cast<RecordKind>(bits_ >> 20 & 3); }
  constexpr std::uint32_t format() const { return bits_ >> 8 & (format_limit - 1); }
  constexpr std::uint8_t flags() const { return static_cast<std::uint8_t>(bits_); }
  constexpr bool same_life(CellWord other) const { return (bits_ & life_mask) == (other.bits_ & life_mask); }

 private:
  static constexpr std::uint64_t hit_one = std::uint64_t{1} << 22;
  static constexpr std::uint64_t pinned_bit = std::uint64_t{1} << 24, live_bit = std::uint64_t{1} << 25;
  static constexpr std::uint64_t life_one = std::uint64_t{1} << 26, life_mask = ~(life_one - 1);
  std::uint64_t bits_;
};

// Where a record lies: region by its slot in the store, the rest in units. In 64 bits: region 20 | at 20 | units 20 |
// payload_units 4, where 0 says that only the envelope knows.
struct RecordPlace {
  std::uint32_t region = 0;
  std::uint32_t at = 0;
  std::uint32_t units = 0;
  std::uint32_t payload_units = 0;
  friend bool operator==(const RecordPlace&, const RecordPlace&) = default;
};

class IndexCell {
 public:
  struct Seen {
    CellWord word;
    Key128 digest;
  };
  // The record that lives here now. Returns: whether there is one, and it stayed while it was read. Wait-free.
  bool read(Seen& out) const {
    // (31) acquire-load synchronizes-with (34)
    out.word = CellWord(word_.load(at(31, acquire)));
    if (!out.word.live()) return false;
    // (32) acquire-load synchronizes-with (35)
    out.digest.lo = lo_.load(at(32, acquire));
    // (33) acquire-load synchronizes-with (36)
    out.digest.hi = hi_.load(at(33, acquire));
    return CellWord(word_.load()).same_life(out.word);
  }
  // Counts a use of the life seen; lost where another update came between. Wait-free.
  void hit(CellWord seen) {
    std::uint64_t expected = seen.bits();
    if (seen.hits() != CellWord::most_hits) word_.compare_exchange(expected, seen.with_hit().bits());
  }

  // ---- the writer's -------------------------------------------------------------------------
  CellWord word() const { return CellWord(word_.load()); }
  Key128 digest() const { return {lo_.load(), hi_.load()}; }
  // Requires: closed, or never opened.
  void open(const RecordKey& key, std::uint32_t format, std::uint8_t flags, bool pinned) {
    const CellWord next = word().opened(key.kind, format, flags, pinned);
    // (35) release-store synchronizes-with (32)
    lo_.store(key.digest.lo, at(35, release));
    // (36) release-store synchronizes-with (33)
    hi_.store(key.digest.hi, at(36, release));
    // (34) release-store synchronizes-with (31)
    word_.store(next.bits(), at(34, release));
  }
  void close() { word_.store(word().closed().bits()); }
  void pin() {
    change([](CellWord w) { return w.with_pin(); });
  }
  void forget_hits() {
    change([](CellWord w) { return w.without_hits(); });
  }

  RecordPlace place() const {
    return {static_cast<std::uint32_t>(place_ >> 44), static_cast<std::uint32_t>(place_ >> 24 & 0xFFFFF),
            static_cast<std::uint32_t>(place_ >> 4 & 0xFFFFF), static_cast<std::uint32_t>(place_ & 15)};
  }
  void set_place(const RecordPlace& p) {
    place_ = std::uint64_t{p.region} << 44 | std::uint64_t{p.at} << 24 | std::uint64_t{p.units} << 4 |
             (p.payload_units < 16 ? p.payload_units : 0);
  }
  // The forest, by the numbers of cells.
  std::uint32_t parent = none_u32, first_child = none_u32, next = none_u32, before = none_u32;

 private:
  template <class F>
  void change(F&& f) {  // readers count hits in the same word
    std::uint64_t seen = word_.load();
    while (!word_.compare_exchange(seen, f(CellWord(seen)).bits())) {
    }
  }

  Atom<std::uint64_t> word_, lo_, hi_;
  std::uint64_t place_ = 0;
};
#if !defined(HKV_RELACY) && !defined(HKV_SCHEDULE)
static_assert(sizeof(IndexCell) == 48);
#endif

}  // namespace hkv
