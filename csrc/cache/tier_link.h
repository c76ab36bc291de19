// SPDX-License-Identifier: Apache-2.0
// What a cache knows of its tier: which, how its records are named, and which loads failed lately.
//
// Thread safety: TierLink is set once, before the cache is used, but for its identity, which the transfers' lock covers.
// FailedLoads on any thread, wait-free: it is a hint.
#pragma once
#include <array>
#include <cstdint>

#include "base/hint.h"
#include "kernels/cuda_api.h"
#include "layout/group.h"
#include "layout/key_chain.h"
#include "tier/loss_count.h"
#include "tier/tier.h"

namespace hkv {

struct TierLink {
  Tier* tier = nullptr;
  Key128 block_format, boundary_format;  // fingerprints of what the records of this spec look like
  Key128 identity;                       // of keys that do not tell theirs; for people who look into a store
  std::size_t staging_bytes = std::size_t{128} << 20;  // host memory for pages of device pools on their way
  const CudaLibrary* cuda = nullptr;                   // nullptr: the driver that is installed

  RecordKey record(RecordKind kind, Key128 digest) const {
    return {digest, kind == RecordKind::Block ? block_format : boundary_format, kind};
  }
};

// The flags of a boundary record (docs/record-format.md): that it is of a tip, or that it lists tips; and of each
// rebuildable group whether it is not in it: the first five have a bit each, all others share the next.
inline constexpr std::uint8_t tip_flag = 0x80, listing_flag = 0x40;
inline std::uint8_t left_out_flag(const Layout& layout, int group) {
  int before = 0;
  for (int g = 0; g < group; ++g) before += layout.groups[static_cast<std::size_t>(g)].rebuildable ? 1 : 0;
  return static_cast<std::uint8_t>(1u << (before < 5 ? before : 5));
}

// Whether a length ends inside a unit, and the key of the unit or tip that ends there.
// Requires: 0 < tokens <= keys.tokens().
inline bool is_tip(const Layout& layout, std::int64_t tokens) { return tokens % layout.unit_tokens != 0; }
inline Key128 key_at(const Layout& layout, const KeyChain& keys, std::int64_t tokens) {
  const std::int64_t unit = tokens / layout.unit_tokens, rest = tokens % layout.unit_tokens;
  return rest == 0 ? keys.keys()[unit - 1] : keys.tip_key(unit, rest);
}

// A tip's record is named by the tip's key, which nobody can make who does not know its length. So beside it stands a
// *listing*: a record without parts, named by the parent's directory of tips, which says that some tip of these lengths
// is stored below that unit. Where there is one, all its lengths that the prompt's own tokens reach are hashed; where
// there is none, one look-up has told. It names no single length, so that nobody has to write it again, and two that
// write it at once write the same. It may outlive its tips: then hashing finds nothing.
inline constexpr std::int64_t lengths_per_listing = 256;

// The digest of the listing of tips of so many tokens behind whole unit `unit`. Requires: as KeyChain::tip_directory_key.
inline Key128 listing_key(const KeyChain& keys, std::int64_t unit, std::int64_t length) {
  Key128 key = keys.tip_directory_key(unit);
  key.lo ^= static_cast<std::uint64_t>(length / lengths_per_listing);
  return key;
}

// What a tier answers of one record, as a match sees it: of several the later one here tells more.
enum class TierAnswer : std::uint8_t {
  Unasked,
  Absent,
  Here,
  OtherFormat,
  Failed,  // it was there, and could not be loaded: known, but not to be had
};

// Whether a restore would make a length usable; or one under way does, as far as it lacks anything.
enum class Obtainable : std::uint8_t { No, Coming, Yes };

// Keys of records whose load failed, so that what a hash would have called a hit is told as a false hit with its
// reason, until the block is here again. Direct-mapped: the newest of two that meet is kept.
class FailedLoads {
 public:
  void note(RecordKind kind, Key128 digest) {
    slots_[place_of(kind, digest)].store(digest.hi | 1);
    noted_.note();
  }
  // How many were noted, ever.
  std::uint64_t noted() const { return noted_.read(); }
  void forget(RecordKind kind, Key128 digest) {
    Hint<std::uint64_t>& place = slots_[place_of(kind, digest)];
    if (place.load() == (digest.hi | 1)) place.store(0);
  }
  bool has(RecordKind kind, Key128 digest) const {
    return slots_[place_of(kind, digest)].load() == (digest.hi | 1);
  }

 private:
  static constexpr std::size_t places = 4096;
  static std::size_t place_of(RecordKind kind, Key128 digest) {
    return (digest.lo * 2 + (kind == RecordKind::Boundary ? 1 : 0)) % places;
  }
  std::array<Hint<std::uint64_t>, places> slots_{};
  LossCount noted_;
};

}  // namespace hkv
