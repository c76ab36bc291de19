// SPDX-License-Identifier: Apache-2.0
// Token ids in memory that belongs to someone else, and the media spans among them.
//
// Thread safety: immutable values; the memory may not be written while a view of it is in use.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace hkv {

// A one-dimensional run of integers. `owner` keeps the memory; its deleter may run on any thread.
struct TokenView {
  const std::byte* data = nullptr;
  std::int64_t count = 0;
  std::int64_t stride_bytes = 4;  // between neighbours; may be negative or 0
  int item_bytes = 4;             // 1, 2, 4 or 8
  bool is_signed = false;
  std::shared_ptr<const void> owner;

  // True where the memory is an array of 32-bit words: it can be hashed as it lies, if in range.
  bool is_words() const { return item_bytes == 4 && stride_bytes == 4; }
};

// Writes ids [from, from + n) as uint32 to `out`.
// Returns: -1, or the index of the first id that is not in [0, 2**32).
std::int64_t read_tokens(const TokenView& view, std::int64_t from, std::int64_t n, std::uint32_t* out);

// The same without a copy. Requires: is_words().
std::int64_t check_words(const TokenView& view, std::int64_t from, std::int64_t n);

// The id at `index` in decimal, for messages.
std::string token_text(const TokenView& view, std::int64_t index);

// Tokens [offset, offset + length) of the sequence stand for something that is not text: its digest
// decides, together with where it stands.
struct MediaSpan {
  std::int64_t offset = 0;
  std::int64_t length = 0;
  std::string digest;
  std::int64_t end() const { return offset + length; }
  friend bool operator==(const MediaSpan&, const MediaSpan&) = default;
};

// A span in words, for messages.
std::string span_text(const MediaSpan& span);

// Sorts by offset.
// Throws: ArgumentError where a span is empty, negative, beyond `tokens`, without a digest, or overlaps.
void check_media(std::vector<MediaSpan>& spans, std::int64_t tokens);

// The spans of sorted `spans` that touch tokens [from, to): indices [first, last).
struct MediaRange {
  std::size_t first = 0, last = 0;
};
MediaRange media_touching(const std::vector<MediaSpan>& spans, std::int64_t from, std::int64_t to);

}  // namespace hkv
