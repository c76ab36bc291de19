// SPDX-License-Identifier: Apache-2.0
// When each word of a descriptor was used last, and what its unit continues: what eviction ranks pages by.
//
// Thread safety: every operation on any thread, wait-free. All of it is hints, written by whoever publishes or
// releases, read by whoever chooses victims: a stale one costs a worse choice, never a wrong page, since the
// CAS that evicts goes by the word alone.
// Invariants:
//  1. Whatever is released after a tick was read has a tick of its own that is newer: a release takes the next one.
//     All blocks of one release share it; among them the one that ends later counts as used earlier, so that the
//     tail of a prefix goes before its head.
//  2. Ticks are 32 bits and are compared by their distance to now. A page that nothing used for 2^32 releases
//     counts as new again and stays for up to one more round: 5 days at 10,000 releases a second.
#pragma once
#include <cstdint>
#include <memory>

#include "base/hint.h"
#include "base/types.h"
#include "block/descriptor.h"

namespace hkv {

class Recency {
 public:
  static constexpr int end_bits = 30;
  static constexpr std::uint32_t hit_one = 1u << end_bits, end_max = hit_one - 1;

  // Requires: `lines` has so many descriptors and outlives this.
  Recency(std::uint32_t descriptors, Descriptor* lines)
      : of_(new OfDescriptor[descriptors]), lines_(lines), descriptors_(descriptors) {}

  // The tick of one release, or of one publish.
  std::uint32_t next() { return clock_.now.fetch_add(1) + 1; }
  // How long before `horizon` a tick was. A horizon lies `ahead`, for what is released while it is in use.
  static constexpr std::uint32_t ahead = 1u << 20;
  std::uint32_t horizon() const { return clock_.now.load() + ahead; }
  static std::uint32_t age(std::uint32_t horizon, std::uint32_t tick) { return horizon - tick; }
  void touch(DescriptorId id, WordClass which, std::uint32_t tick) {
    if (which == WordClass::H) {
      lines_[index(id)].set_used(tick);
    } else {
      of_[index(id)].states_used.store(tick);
    }
  }
  std::uint32_t tick(DescriptorId id, WordClass which) const {
    return which == WordClass::H ? lines_[index(id)].used() : of_[index(id)].states_used.load();
  }

  // Where the descriptor's block, or tip, ends: tokens from the start of its prefix, at most end_max. With a new life
  // the hits begin anew.
  void set_end(DescriptorId id, std::int64_t tokens, bool new_life) {
    Hint<std::uint32_t>& end = of_[index(id)].end;
    const auto capped = static_cast<std::uint32_t>(tokens < end_max ? tokens : end_max);
    end.store(capped | (new_life ? 0 : end.load() & ~end_max));
  }
  std::uint32_t end(DescriptorId id) const { return of_[index(id)].end.load() & end_max; }
  // How often a lease resumed exactly there, up to 3; kept while the descriptor lives, whatever pages it has.
  void note_hit(DescriptorId id) {
    Hint<std::uint32_t>& end = of_[index(id)].end;
    const std::uint32_t now = end.load();
    if (now < hits_max) end.store(now + hit_one);
  }
  std::uint32_t hits(DescriptorId id) const { return of_[index(id)].end.load() >> end_bits; }
  // The tag of the key that it continues; 0: nothing known. The id is in the descriptor (a hint as well).
  void set_parent_tag(DescriptorId id, std::uint32_t tag) { of_[index(id)].parent_tag.store(tag); }
  std::uint32_t parent_tag(DescriptorId id) const { return of_[index(id)].parent_tag.load(); }

  // 32 bits of a key, never 0.
  static std::uint32_t tag_of(Key128 key) { return static_cast<std::uint32_t>(key.hi >> 13) | 1u; }

  std::size_t bytes() const { return std::size_t{descriptors_} * sizeof(OfDescriptor); }

 private:
  static constexpr std::uint32_t hits_max = 3u << end_bits;
  struct OfDescriptor {
    Hint<std::uint32_t> states_used;  // tick of the last use of B
    Hint<std::uint32_t> end;          // hits in the upper two bits
    Hint<std::uint32_t> parent_tag;
  };
  struct alignas(cache_line_bytes) Clock {
    Hint<std::uint32_t> now;
  };

  std::unique_ptr<OfDescriptor[]> of_;
  Descriptor* lines_;
  std::uint32_t descriptors_;
  Clock clock_;
};

}  // namespace hkv
