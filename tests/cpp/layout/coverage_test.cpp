// SPDX-License-Identifier: Apache-2.0
// One thread: left out under ThreadSanitizer.
#include "layout/coverage.h"

#include "testing.h"

using namespace hkv;

namespace {

// Whether token p is needed to resume at t, said the long way round for each rule.
bool needed(Coverage c, std::int64_t t, std::int64_t p) {
  if (p >= t) return false;
  switch (c.rule) {
    case Rule::Prefix: return true;
    case Rule::Window: return t - p < c.tokens;  // the query at t sees itself and the tokens - 1 before it
    case Rule::Chunk: return p / c.tokens == t / c.tokens;
    case Rule::Checkpoint: return p == t - 1 && (c.tokens == 0 || t % c.tokens != 0);
  }
  return false;
}

}  // namespace

HKV_TEST("a needed span holds exactly the tokens that the rule names") {
  for (const Rule rule : {Rule::Prefix, Rule::Window, Rule::Chunk, Rule::Checkpoint}) {
    for (std::int64_t parameter = rule == Rule::Checkpoint ? 0 : 1; parameter < 12; ++parameter) {
      for (std::int64_t t = 0; t < 40; ++t) {
        const TokenSpan span = needed_span({rule, parameter}, t);
        for (std::int64_t p = 0; p < 45; ++p) {
          EXPECT_EQ(span.from <= p && p < span.to, needed({rule, parameter}, t, p));
        }
      }
    }
  }
}

HKV_TEST("needed blocks are those that hold a needed token") {
  for (const Rule rule : {Rule::Prefix, Rule::Window, Rule::Chunk, Rule::Checkpoint}) {
    for (std::int64_t parameter = 1; parameter < 10; ++parameter) {
      for (std::int64_t block = 1; block < 7; ++block) {
        for (std::int64_t t = 0; t < 30; ++t) {
          const BlockSpan span = needed_blocks({rule, parameter}, block, t);
          for (std::int64_t b = 0; b < 32; ++b) {
            bool holds = false;
            for (std::int64_t p = b * block; p < (b + 1) * block; ++p)
              holds |= needed({rule, parameter}, t, p);
            EXPECT_EQ(span.from <= b && b < span.to, holds);
          }
        }
      }
    }
  }
}

HKV_TEST("a window of one token needs nothing") {
  EXPECT(needed_span({Rule::Window, 1}, 100).empty());
  EXPECT(needed_blocks({Rule::Window, 1}, 16, 96).empty());
}
