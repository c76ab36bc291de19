// SPDX-License-Identifier: Apache-2.0
// Records that a tier without an index has lately been seen to hold: by a put, a get or a probe that said so.
//
// Thread safety: every operation on any thread, wait-free. It is a hint: a record may have gone since, which the get tells;
// one that is not known may be there, and of two that meet the newer is kept.
#pragma once
#include <array>
#include <cstdint>

#include "base/hint.h"
#include "tier/loss_count.h"
#include "tier/tier.h"

namespace hkv {

class KnownRecords {
 public:
  void note(const RecordKey& key, std::uint8_t flags) { slot(key).store(tag(key) | flags); }
  void forget(const RecordKey& key) {
    Hint<std::uint64_t>& place = slot(key);
    if ((place.load() & ~std::uint64_t{0xFF}) != tag(key)) return;
    place.store(tag(key) & ~known_bit);
    losses_.note();
  }
  // Here, with the flags it was put with as far as they are known, or Unknown, which tells what was forgotten.
  Presence look(const RecordKey& key) const {
    const std::uint64_t found = slots_[place_of(key)].load();
    if ((found & ~std::uint64_t{0xFF}) == tag(key))
      return {Presence::Answer::Here, static_cast<std::uint8_t>(found)};
    return {Presence::Answer::Unknown, 0, found == (tag(key) & ~known_bit)};
  }
  std::uint64_t losses() const { return losses_.read(); }

 private:
  static constexpr std::size_t places = std::size_t{1} << 16;
  static constexpr std::uint64_t known_bit = std::uint64_t{1} << 8;  // of a record that is there
  static std::size_t place_of(const RecordKey& key) {
    return (key.digest.lo + (key.kind == RecordKind::Boundary ? places / 2 : 0)) % places;
  }
  // 55 bits of what else names the record, and that it is there: never 0.
  static std::uint64_t tag(const RecordKey& key) {
    return (key.digest.hi ^ key.format.lo * 0x9E3779B97F4A7C15u) << 8 | known_bit;
  }
  Hint<std::uint64_t>& slot(const RecordKey& key) { return slots_[place_of(key)]; }
  std::array<Hint<std::uint64_t>, places> slots_{};
  LossCount losses_;
};

}  // namespace hkv
