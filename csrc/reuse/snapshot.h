// SPDX-License-Identifier: Apache-2.0
// What a match knows: planes and runs of each group, tips, facts of the pools. The checks are functions of it.
//
// Thread safety: belongs to one match. Filled by the cache from words read once; `fill` reads more words of
// the same prefix when a check asks for blocks not read yet.
#pragma once
#include <cstdint>
#include <limits>
#include <vector>

#include "layout/group.h"
#include "reuse/planes.h"
#include "reuse/verdict.h"

namespace hkv {

inline constexpr std::int64_t never = std::numeric_limits<std::int64_t>::max();

struct GroupView {
  // Prefix groups: own blocks from 0 that are known and that are ready; the first ready one of another
  // format than the reader's.
  std::int64_t known_run = 0;
  std::int64_t ready_run = 0;
  std::int64_t foreign_first = never;
  // Other groups, by own block: ready in the reader's format; ready in another one; read at all.
  Plane ours, foreign, read;
  // Some page of the group may be of another format than the reader's: look at each.
  bool may_be_foreign = false;
  // A fact of (group, pool): Code::None where its pages are laid out as the kernel needs.
  Code misaligned = Code::None;

  std::int64_t ours_run() const { return ready_run < foreign_first ? ready_run : foreign_first; }
};

// A published partial last unit. Bit g of a mask: group g's partial page there.
struct Tip {
  std::int64_t tokens = 0;
  std::int64_t unit = 0;  // whole units before it
  std::uint32_t id = 0;   // its descriptor
  std::uint32_t known = 0, ready = 0, foreign = 0;
  std::uint64_t h = 0, b = 0;  // its words as read
  bool in_tier = false;  // a tier has its record, and this entry has nothing else: no descriptor, no page

  bool ours(int g) const { return ready >> g & 1 && !(foreign >> g & 1); }
};

struct Snapshot {
  const Layout* layout = nullptr;
  std::int64_t limit = 0;  // lengths are below it
  std::vector<GroupView> groups;
  std::vector<Tip> tips;     // those that may matter, longest first
  bool any_foreign = false;  // some page may be of another format than the reader's
  bool any_misaligned = false;
  std::int64_t known_end = 0;  // specs without Prefix group: end of the last known block, in tokens
  std::int64_t proof_end = 0;  // the same, tips included: up to here a length that needs no page is usable

  // Memo of aligned_at_most: for any bound in [answer, asked] the answer is the same. asked -1: none yet.
  mutable std::int64_t asked = -1, answer = 0;

  void (*fill)(void* context, int group, std::int64_t from, std::int64_t to) = nullptr;
  void* context = nullptr;

  void need(int group, std::int64_t from, std::int64_t to) const {
    if (from < to) fill(context, group, from, to);
  }
};

}  // namespace hkv
