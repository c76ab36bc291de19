// SPDX-License-Identifier: Apache-2.0
// Key chains as the core uses them: sharing, slices, claims, tips, and what reading them costs. What the
// keys are is checked against hashlib in tests/python/test_keys_definition.py.
#include "layout/key_chain.h"

#include <atomic>
#include <cstdlib>
#include <new>
#include <numeric>
#include <thread>
#include <vector>

#include "base/check.h"
#include "layout/growing_keys.h"
#include "testing.h"

namespace {

std::atomic<long> allocations{0};

}  // namespace

// Not inlined: gcc would take the free of what another operator new seems to return for a mistake.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using namespace hkv;
using Ids = std::vector<std::uint32_t>;
using Chain = std::shared_ptr<const KeyChain>;

constexpr std::int64_t unit = 4;

Sha256Words root() {
  const std::string_view parts[identity_parts] = {"model", "", "", "", ""};
  return KeyChain::identity_root(unit, parts);
}

TokenView view_of(Ids ids) {
  const auto owned = std::make_shared<const Ids>(std::move(ids));
  TokenView view;
  view.data = reinterpret_cast<const std::byte*>(owned->data());
  view.count = static_cast<std::int64_t>(owned->size());
  view.owner = owned;
  return view;
}

Ids numbers(std::uint32_t count, std::uint32_t from = 0) {
  Ids ids(count);
  std::iota(ids.begin(), ids.end(), from);
  return ids;
}

Chain built(Ids ids) { return KeyChain::build(root(), unit, view_of(std::move(ids)), {}); }

template <class Call>
std::string refused_field(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.field;
  }
  return "nothing";
}

}  // namespace

HKV_TEST("a chain tells its extent") {
  const Chain chain = built(numbers(14));
  EXPECT_EQ(chain->begin_unit(), 0);
  EXPECT_EQ(chain->end_unit(), 3);
  EXPECT_EQ(chain->unit_tokens(), unit);
  EXPECT_EQ(chain->tokens(), 14);
  EXPECT_EQ(chain->rest_tokens(), 2);
  EXPECT(chain->has_tokens());
}

HKV_TEST("a slice shares the keys, ends its tokens, and keeps the rest only when told to") {
  const Chain chain = built(numbers(14));
  const Chain middle = chain->slice(1, 2, false), end = chain->slice(1, 3, true),
              cut = chain->slice(1, 3, false);
  EXPECT(middle->keys() == chain->keys());
  EXPECT_EQ(middle->begin_unit(), 1);
  EXPECT_EQ(middle->end_unit(), 2);
  EXPECT_EQ(middle->tokens(), 8);
  EXPECT_EQ(end->tokens(), 14);
  EXPECT_EQ(cut->tokens(), 12);
  EXPECT(middle->root() == chain->root());
  EXPECT(middle->tip_key(1, 3) == chain->tip_key(1, 3));
  EXPECT(end->tip_key(3, 2) == chain->tip_key(3, 2));
  EXPECT(!cut->equals(*end));
}

HKV_TEST("a continuation from the last to have grown copies nothing, from an earlier one it copies") {
  const Chain one = built(numbers(4));
  const Chain two = one->extend(view_of(numbers(4, 4)), {});
  const Chain three = two->extend(view_of(numbers(6, 8)), {});
  EXPECT(two->keys() == three->keys());
  const Chain other = two->extend(view_of(numbers(4, 90)), {});
  EXPECT(other->keys() != three->keys());
  EXPECT(three->equals(*built(numbers(14))));
  EXPECT(two->equals(*built(numbers(8))));
  Ids expected = numbers(8);
  for (const std::uint32_t id : numbers(4, 90)) expected.push_back(id);
  EXPECT(other->equals(*built(expected)));
}

HKV_TEST("tips are found in the piece that holds their unit") {
  const Chain whole = built(numbers(30));
  Chain grown = built(numbers(6));
  for (std::uint32_t to = 7; to <= 30; ++to) {
    const auto from = static_cast<std::uint32_t>(grown->end_unit() * unit);
    grown = grown->extend(view_of(numbers(to - from, from)), {});
  }
  EXPECT(grown->equals(*whole));
  for (std::int64_t u = 0; u <= 7; ++u) {
    for (std::int64_t n = 1; n < unit && u * unit + n <= 30; ++n) {
      EXPECT(grown->tip_key(u, n) == whole->tip_key(u, n));
      EXPECT(!(whole->tip_key(u, n) == whole->tip_directory_key(u)));
    }
  }
}

HKV_TEST("a chain cut inside a unit ends in the tip of that length, media of the rest included") {
  const std::vector<MediaSpan> media = {{5, 2, "image"}, {9, 3, "sound"}};
  const Chain whole = KeyChain::build(root(), unit, view_of(numbers(18)), media);
  for (std::int64_t tokens = 0; tokens <= 18; ++tokens) {
    const Chain cut = whole->head(tokens);
    EXPECT_EQ(cut->tokens(), tokens);
    EXPECT(cut->keys() == whole->keys());
    const std::int64_t u = tokens / unit, n = tokens % unit;
    if (n != 0) EXPECT(cut->tip_key(u, n) == whole->tip_key(u, n));
  }
  EXPECT(whole->head(18)->equals(*whole));
}

HKV_TEST("keys that grew without their tokens are those of the whole sequence, and its end has a tip") {
  const Chain whole = built(numbers(30));
  const Chain start = built(numbers(9));
  for (std::uint32_t from = 0; from <= 9; ++from) {
    for (std::uint32_t to = from; to <= 30; ++to) {
      GrowingKeys keys(start, from, 64);
      keys.append(view_of(numbers(to - from, from)), 0, to - from);
      const Chain chain = keys.chain();
      EXPECT_EQ(chain->tokens(), to);
      EXPECT(chain->equals(*built(numbers(to))));
      if (to % unit != 0)
        EXPECT(chain->tip_key(to / unit, to % unit) == whole->tip_key(to / unit, to % unit));
      EXPECT(chain->first_tip_unit() <= chain->end_unit());
    }
  }
  EXPECT(start->equals(*built(numbers(9))));
}

HKV_TEST("a chain grown by a unit at a time is let go without deep recursion") {
  constexpr std::uint32_t steps = 300'000;
  Chain chain = built({});
  for (std::uint32_t n = 0; n < steps; ++n) chain = chain->extend(view_of({n, 0, 0, 0}), {});
  EXPECT_EQ(chain->end_unit(), steps);
  chain = nullptr;  // recursion would overflow the stack here
}

HKV_TEST("of two threads that grow one chain at once, each gets its own continuation") {
  for (int round = 0; round < 200; ++round) {
    const Chain parent = built(numbers(4))->extend(view_of(numbers(4, 4)), {});
    Chain grown[2];
    std::atomic<int> ready{0};
    auto grow = [&](std::uint32_t n) {
      ++ready;
      while (ready < 2) std::this_thread::yield();
      grown[n] = parent->extend(view_of(numbers(8, 100 * n)), {});
    };
    std::thread first(grow, 0), second(grow, 1);
    first.join();
    second.join();
    EXPECT(grown[0]->keys() != grown[1]->keys());
    for (std::uint32_t n = 0; n < 2; ++n) {
      Ids expected = numbers(8);
      for (const std::uint32_t id : numbers(8, 100 * n)) expected.push_back(id);
      EXPECT(grown[n]->equals(*built(expected)));
    }
  }
}

HKV_TEST("reading keys, tips and directories allocates nothing") {
  const Chain chain = built(numbers(30));
  std::uint64_t sum = 0;
  const long before = allocations;
  for (std::int64_t u = 0; u < 7; ++u) {
    sum += chain->keys()[u].lo + chain->tip_key(u, 3).lo + chain->tip_directory_key(u).lo;
  }
  EXPECT_EQ(allocations - before, 0);
  EXPECT(sum != 0);
  const auto probe = std::make_unique<int>(1);  // the counter does count
  EXPECT_EQ(allocations - before, 1);
}

HKV_TEST("hashes of an engine are the keys, and have neither tips nor continuation") {
  const Chain chain = KeyChain::from_hashes({{1, 2}, {3, 4}}, 16);
  EXPECT_EQ(chain->end_unit(), 2);
  EXPECT_EQ(chain->tokens(), 32);
  EXPECT(!chain->has_tokens());
  EXPECT(chain->keys()[1] == (Key128{3, 4}));
  EXPECT_EQ(refused_field([&] { chain->extend(view_of(numbers(4)), {}); }), "parent");
}

HKV_TEST("bad arguments are refused by name") {
  EXPECT_EQ(refused_field([] { KeyChain::from_hashes({}, 0); }), "unit_tokens");
  EXPECT_EQ(refused_field([] { KeyChain::build(root(), -1, view_of({}), {}); }), "unit_tokens");
  EXPECT_EQ(refused_field([] { KeyChain::build(root(), unit, view_of(numbers(8)), {{6, 3, "d"}}); }),
            "media");
  EXPECT_EQ(refused_field([] { built(numbers(8))->extend(view_of(numbers(8)), {{7, 3, "d"}}); }), "media");
  TokenView negative = view_of({1, 2, 3, 0x80000000u});
  negative.is_signed = true;
  EXPECT_EQ(refused_field([&] { KeyChain::build(root(), unit, negative, {}); }), "tokens");
}

HKV_TEST("spans are found by the tokens they touch") {
  const std::vector<MediaSpan> spans = {{2, 3, "a"}, {5, 1, "b"}, {9, 4, "c"}};
  auto touched = [&](std::int64_t from, std::int64_t to) {
    const MediaRange range = media_touching(spans, from, to);
    std::string out;
    for (std::size_t i = range.first; i < range.last; ++i) out += spans[i].digest;
    return out;
  };
  EXPECT_EQ(touched(0, 2), "");
  EXPECT_EQ(touched(0, 3), "a");
  EXPECT_EQ(touched(4, 6), "ab");
  EXPECT_EQ(touched(5, 6), "b");
  EXPECT_EQ(touched(6, 9), "");
  EXPECT_EQ(touched(0, 20), "abc");
  EXPECT_EQ(touched(12, 13), "c");
  EXPECT_EQ(touched(13, 20), "");
}

HKV_TEST("a chain keeps whose it is, whatever is made of it, and its keys say nothing of that") {
  const Key128 whose{3, 4};
  const Chain chain = KeyChain::build(root(), unit, view_of(numbers(14)), {}, whose);
  EXPECT(built(numbers(14))->identity() == Key128{});
  EXPECT(chain->equals(*built(numbers(14))));
  EXPECT(chain->identity() == whose);
  EXPECT(chain->extend(view_of(numbers(9)), {})->identity() == whose);
  EXPECT(chain->slice(1, 2, false)->identity() == whose);
  EXPECT(chain->head(10)->identity() == whose);
  EXPECT(chain->grown(2, {}, {}, {})->identity() == whose);
  EXPECT(KeyChain::from_hashes({{1, 2}}, unit)->identity() == Key128{});
}
