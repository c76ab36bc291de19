// SPDX-License-Identifier: Apache-2.0
// The closed set of outcomes of a match, and the reason that rides along.
//
// The values of the enums are those of hybridkv.kinds in Python. Thread safety: values.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "base/types.h"

namespace hkv {

enum class Check : std::uint8_t { Complete = 0, Abi = 1, Groups = 2, Aligned = 3, Raced = 4, Integrity = 5 };
inline constexpr int check_count = 6;

enum class Outcome : std::uint8_t { Miss = 0, FalseHit = 1, Reusable = 2 };
enum class Remedy : std::uint8_t { None = 0, Recompute = 1, Restore = 2, Convert = 3, Wait = 4 };

// Tells what exactly was wrong with the block that `why` names.
enum class Code : std::uint8_t {
  None,
  Missing,
  Partial,
  Stale,
  Expired,
  Lagging,
  Filling,
  Drop,
  Pins,
  InTier,
  Format,
  Base,
  PageStride,
  RowStride,
  Footer,
  Content,
  Load,
};
inline constexpr int code_count = 17;

struct Why {
  Check check = Check::Complete;
  Code code = Code::None;
  int group = 0;
  std::int64_t block = 0;
  bool in_tier = false;             // what is missing rests in a tier: its kind is DISK
  std::int64_t tip_tokens = 0;      // > 0: the block is the partial page of the tip of that length
  std::uint16_t writer_format = 0;  // Abi: what the bytes were written in
};

// What a check left of a length, and why not more.
struct Finding {
  std::int64_t tokens = 0;
  Why why;
};

struct Verdict {
  Outcome outcome = Outcome::Miss;
  std::int64_t matched_tokens = 0;
  std::int64_t usable_tokens = 0;
  std::int64_t limit_tokens = 0;
  std::array<std::int64_t, check_count> lost{};
  std::array<Why, check_count> reason{};  // of each check that lost something
  bool has_why = false;
  Why why;
  Remedy remedy = Remedy::None;
  std::int64_t resume_tokens = 0;  // below usable_tokens where rebuildable groups are replayed
  std::int64_t restore_tokens =
      0;  // usable once a tier's records are restored; 0: nothing beyond usable_tokens
};

inline const char* name_of(Code code) {
  static constexpr std::array<const char*, code_count> names = {
      "",        "missing", "partial", "stale",       "expired",    "lagging", "filling", "drop", "pins",
      "in_tier", "format",  "base",    "page_stride", "row_stride", "footer",  "content", "load"};
  return names[static_cast<std::size_t>(code)];
}

inline Remedy remedy_of(const Why& why) {
  switch (why.code) {
    case Code::Filling: return Remedy::Wait;
    case Code::InTier: return Remedy::Restore;
    default: return Remedy::Recompute;
  }
}

}  // namespace hkv
