// SPDX-License-Identifier: Apache-2.0
// Coverage rules: which tokens' bytes a resume at length t needs of one cache group.
//
// The one place where the rules are written: match, requirements, store masks and restore plans all
// call it, so that what is looked up is what is stored. Pure functions; any thread.
#pragma once
#include <cstdint>

namespace hkv {

enum class Rule : std::uint8_t { Prefix = 0, Window = 1, Chunk = 2, Checkpoint = 3 };

// A rule with its parameter: Window and Chunk, tokens (>= 1); Checkpoint, every (0: needed everywhere);
// Prefix, unused.
struct Coverage {
  Rule rule = Rule::Prefix;
  std::int64_t tokens = 0;
};

// Half-open range of tokens.
struct TokenSpan {
  std::int64_t from = 0;
  std::int64_t to = 0;
  constexpr bool empty() const { return from >= to; }
};

// The tokens whose rows a resume at t needs. For Checkpoint: the span [t - 1, t) stands for "the state
// exactly at t", which the block that ends at t keeps; empty where no state is needed.
// Requires: t >= 0.
constexpr TokenSpan needed_span(Coverage coverage, std::int64_t t) {
  switch (coverage.rule) {
    case Rule::Prefix: return {0, t};
    case Rule::Window: {  // the querying token is part of the window, so window - 1 rows come from before
      const std::int64_t rows = t < coverage.tokens - 1 ? t : coverage.tokens - 1;
      return {t - rows, t};
    }
    case Rule::Chunk: return {t / coverage.tokens * coverage.tokens, t};
    case Rule::Checkpoint:
      if (t == 0 || (coverage.tokens != 0 && t % coverage.tokens == 0)) return {t, t};
      return {t - 1, t};
  }
  return {0, t};
}

// Blocks that hold so many tokens, the last one perhaps in part. Requires: tokens >= 0, block_tokens >= 1.
constexpr std::int64_t blocks_for(std::int64_t tokens, std::int64_t block_tokens) {
  return tokens / block_tokens + (tokens % block_tokens != 0 ? 1 : 0);  // no sum that could overflow
}

// Half-open range of a group's own blocks.
struct BlockSpan {
  std::int64_t from = 0;
  std::int64_t to = 0;
  constexpr bool empty() const { return from >= to; }
};

// The group's own blocks that hold a needed row, the partial block that holds t's last rows included.
// Requires: block_tokens >= 1.
constexpr BlockSpan needed_blocks(Coverage coverage, std::int64_t block_tokens, std::int64_t t) {
  const TokenSpan span = needed_span(coverage, t);
  if (span.empty()) return {t / block_tokens, t / block_tokens};
  return {span.from / block_tokens, blocks_for(span.to, block_tokens)};
}

// The length at which a block of a window or chunk, a whole one, is needed no more.
// Requires: rule Window or Chunk.
constexpr std::int64_t slides_out_at(Coverage coverage, std::int64_t block_tokens, std::int64_t block) {
  const std::int64_t end = (block + 1) * block_tokens;
  if (coverage.rule == Rule::Window) return end + coverage.tokens - 1;
  return (end + coverage.tokens - 1) / coverage.tokens * coverage.tokens;
}

}  // namespace hkv
