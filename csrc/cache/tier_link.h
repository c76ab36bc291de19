// SPDX-License-Identifier: Apache-2.0
// What a cache knows of its tier: which, how its records are named, and which loads failed lately.
//
// Thread safety: TierLink is set once, before the cache is used. FailedLoads on any thread, wait-free: it is a hint.
#pragma once
#include <array>
#include <cstdint>

#include "base/hint.h"
#include "kernels/cuda_api.h"
#include "layout/group.h"
#include "tier/tier.h"

namespace hkv {

struct TierLink {
  Tier* tier = nullptr;
  Key128 block_format, boundary_format;  // fingerprints of what the records of this spec look like
  Key128 identity;                       // for people who look into a store
  std::size_t staging_bytes = std::size_t{128} << 20;  // host memory for pages of device pools on their way
  const CudaLibrary* cuda = nullptr;                   // nullptr: the driver that is installed

  RecordKey record(RecordKind kind, Key128 digest) const {
    return {digest, kind == RecordKind::Block ? block_format : boundary_format, kind};
  }
};

// The bit of a boundary record's flags that says that a rebuildable group is not in it: the first seven have one each,
// all others share the last.
inline std::uint8_t left_out_flag(const Layout& layout, int group) {
  int before = 0;
  for (int g = 0; g < group; ++g) before += layout.groups[static_cast<std::size_t>(g)].rebuildable ? 1 : 0;
  return static_cast<std::uint8_t>(1u << (before < 7 ? before : 7));
}

// What a tier answers of one record, as a match sees it.
enum class TierAnswer : std::uint8_t {
  Unasked,
  Absent,
  Here,
  OtherFormat,
  Failed,  // it was there, and could not be loaded: known, but not to be had
};

// Keys of records whose load failed, so that what a hash would have called a hit is told as a false hit with its
// reason, until the block is here again. Direct-mapped: the newest of two that meet is kept.
class FailedLoads {
 public:
  void note(RecordKind kind, Key128 digest) { slots_[place_of(kind, digest)].store(digest.hi | 1); }
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
};

}  // namespace hkv
