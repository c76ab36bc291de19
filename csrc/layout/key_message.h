// SPDX-License-Identifier: Apache-2.0
// The messages that keys are digests of (key_chain.h): their tags, frames and records.
//
// Thread safety: pure functions of their arguments.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/sha256.h"
#include "base/sha256_chain.h"
#include "base/types.h"
#include "layout/key_chain_tokens.h"

namespace hkv::key_message {

inline constexpr std::size_t tag_bytes = 16;
inline constexpr char root_tag[] = "hybridkv root  1";
inline constexpr char unit_tag[] = "hybridkv unit  1";
inline constexpr char tip_tag[] = "hybridkv tip   1";
inline constexpr char tips_tag[] = "hybridkv tips  1";
inline constexpr char hashes_tag[] = "hybridkv hashes1";
static_assert(sizeof root_tag == tag_bytes + 1 && sizeof unit_tag == tag_bytes + 1);
static_assert(sizeof tip_tag == tag_bytes + 1 && sizeof tips_tag == tag_bytes + 1);
static_assert(sizeof hashes_tag == tag_bytes + 1);

inline Key128 head_of(const Sha256Words& words) {
  Key128 head, tail;
  sha256_split(words, head, tail);
  return head;
}

// What follows the ids in body(): the media spans, their number and the number of ids.
inline void add_frames(Sha256& message, const std::vector<MediaSpan>& media, std::int64_t from,
                       std::int64_t n) {
  const MediaRange range = media_touching(media, from, from + n);
  for (std::size_t i = range.first; i < range.last; ++i) {
    message.update_u64(static_cast<std::uint64_t>(media[i].offset));
    message.update_u64(static_cast<std::uint64_t>(media[i].length));
    message.update_u64(media[i].digest.size());
    message.update(media[i].digest.data(), media[i].digest.size());
  }
  message.update_u64(range.last - range.first).update_u64(static_cast<std::uint64_t>(n));
}

// The same, with no media and a whole unit, as the fixed trailer of a record.
inline Sha256Record unit_record(std::int64_t unit_tokens) {
  std::uint8_t trailer[16 + tag_bytes] = {};
  std::memcpy(trailer + 8, &unit_tokens, sizeof unit_tokens);
  std::memcpy(trailer + 16, unit_tag, tag_bytes);
  return Sha256Record(static_cast<std::size_t>(unit_tokens) * sizeof(std::uint32_t), trailer, sizeof trailer);
}

// Key of a partial unit after `parent`; `ids` was fed its n ids, which begin at token `from`.
inline Key128 tip_key(Sha256& ids, const std::vector<MediaSpan>& media, std::int64_t from, std::int64_t n,
                      Key128 parent) {
  add_frames(ids, media, from, n);
  return head_of(ids.update(&parent, sizeof parent).update(tip_tag, tag_bytes).finish());
}

// Digest of a whole unit by itself; `ids` was fed its ids.
inline Sha256Words unit_digest(Sha256& ids, const std::vector<MediaSpan>& media, std::int64_t from,
                               std::int64_t n) {
  add_frames(ids, media, from, n);
  return ids.update(unit_tag, tag_bytes).finish();
}

// Key of the directory of tips below `parent`.
inline Key128 directory_key(Key128 parent) {
  return head_of(Sha256().update(&parent, sizeof parent).update(tips_tag, tag_bytes).finish());
}

}  // namespace hkv::key_message
