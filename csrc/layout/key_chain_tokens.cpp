// SPDX-License-Identifier: Apache-2.0
#include "layout/key_chain_tokens.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace hkv {
namespace {

// The bits above 32 of everything read are collected, so that the loop has no branch and vectorises; a
// negative number has its upper bits set by sign extension.
template <class T>
std::int64_t read_as(const std::byte* __restrict at, std::int64_t stride, std::int64_t n,
                     std::uint32_t* __restrict out) {
  std::uint64_t upper = 0;
  auto load = [](const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return static_cast<std::uint64_t>(value);
  };
  if (stride == static_cast<std::int64_t>(sizeof(T))) {
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint64_t id = load(at + i * static_cast<std::int64_t>(sizeof(T)));
      upper |= id >> 32;
      out[i] = static_cast<std::uint32_t>(id);
    }
  } else {
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint64_t id = load(at + i * stride);
      upper |= id >> 32;
      out[i] = static_cast<std::uint32_t>(id);
    }
  }
  if (upper == 0) return -1;
  std::int64_t bad = 0;
  while (load(at + bad * stride) >> 32 == 0) ++bad;
  return bad;
}

template <class T>
std::string text_of(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return std::to_string(value);
}

}  // namespace

std::int64_t read_tokens(const TokenView& view, std::int64_t from, std::int64_t n, std::uint32_t* out) {
  if (n <= 0) return -1;
  const std::byte* at = view.data + from * view.stride_bytes;
  const std::int64_t stride = view.stride_bytes;
  std::int64_t bad = -1;
  switch (view.item_bytes * 2 + (view.is_signed ? 1 : 0)) {
    case 2: bad = read_as<std::uint8_t>(at, stride, n, out); break;
    case 3: bad = read_as<std::int8_t>(at, stride, n, out); break;
    case 4: bad = read_as<std::uint16_t>(at, stride, n, out); break;
    case 5: bad = read_as<std::int16_t>(at, stride, n, out); break;
    case 8: bad = read_as<std::uint32_t>(at, stride, n, out); break;
    case 9: bad = read_as<std::int32_t>(at, stride, n, out); break;
    case 16: bad = read_as<std::uint64_t>(at, stride, n, out); break;
    case 17: bad = read_as<std::int64_t>(at, stride, n, out); break;
    default: HKV_CHECK(!"item size of a token view");
  }
  return bad < 0 ? -1 : from + bad;
}

std::int64_t check_words(const TokenView& view, std::int64_t from, std::int64_t n) {
  if (!view.is_signed) return -1;
  const std::byte* at = view.data + from * 4;
  std::int32_t signs = 0, word;
  for (std::int64_t i = 0; i < n; ++i) {
    std::memcpy(&word, at + i * 4, sizeof word);
    signs |= word;
  }
  if (signs >= 0) return -1;
  for (std::int64_t i = 0;; ++i) {
    std::memcpy(&word, at + i * 4, sizeof word);
    if (word < 0) return from + i;
  }
}

std::string token_text(const TokenView& view, std::int64_t index) {
  const std::byte* at = view.data + index * view.stride_bytes;
  switch (view.item_bytes * 2 + (view.is_signed ? 1 : 0)) {
    case 3: return text_of<std::int8_t>(at);
    case 5: return text_of<std::int16_t>(at);
    case 9: return text_of<std::int32_t>(at);
    case 16: return text_of<std::uint64_t>(at);
    case 17: return text_of<std::int64_t>(at);
    default: return "an id in range";
  }
}

std::string span_text(const MediaSpan& span) {
  std::string text = "a span from ";
  text += std::to_string(span.offset);
  text += " of ";
  text += std::to_string(span.length);
  text += " tokens";
  return text;
}

void check_media(std::vector<MediaSpan>& spans, std::int64_t tokens) {
  std::sort(spans.begin(), spans.end(),
            [](const MediaSpan& a, const MediaSpan& b) { return a.offset < b.offset; });
  std::int64_t free_from = 0;
  for (const MediaSpan& span : spans) {
    auto refuse = [&](const char* expected) {
      throw Error{ErrorCode::ArgumentError, "media", expected, span_text(span)};
    };
    if (span.offset < 0 || span.length <= 0) refuse("(offset >= 0, length >= 1, digest)");
    if (span.offset > tokens || span.length > tokens - span.offset) refuse("spans within the sequence");
    if (span.digest.empty()) refuse("a digest of at least one byte");
    if (span.offset < free_from) refuse("spans that do not overlap");
    free_from = span.end();
  }
}

MediaRange media_touching(const std::vector<MediaSpan>& spans, std::int64_t from, std::int64_t to) {
  // Spans are disjoint and sorted, so their ends are sorted too.
  const auto first = std::upper_bound(spans.begin(), spans.end(), from,
                                      [](std::int64_t at, const MediaSpan& s) { return at < s.end(); });
  const auto last = std::lower_bound(first, spans.end(), to,
                                     [](const MediaSpan& s, std::int64_t at) { return s.offset < at; });
  return {static_cast<std::size_t>(first - spans.begin()), static_cast<std::size_t>(last - spans.begin())};
}

}  // namespace hkv
