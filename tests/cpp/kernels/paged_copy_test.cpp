// SPDX-License-Identifier: Apache-2.0
// Every level of gather and scatter against the model, over random shapes; statuses; nothing written outside.
#include "kernels/paged_copy.h"

#include <algorithm>
#include <thread>

#include "base/handouts.h"
#include "kernels/paged_world.h"
#include "testing.h"

namespace hkv {
namespace {

using namespace kernel_test;

// ThreadSanitizer looks at what the threads of one copy share; ten rounds of each number of them say that.
#if defined(__SANITIZE_THREAD__)
constexpr int rounds_of_a_level = 40, large_rounds = 4;
#else
constexpr int rounds_of_a_level = 150, large_rounds = 8;
#endif

bool same(const Guarded& now, const std::vector<std::byte>& want) { return now.copy() == want; }

std::vector<std::byte> expected_status(const World& w) {
  std::vector<std::byte> want = w.status_bytes->copy();
  for (std::int64_t i = 0; i < w.copy.pieces.count; ++i) {
    const auto status = static_cast<std::int32_t>(model_status(w.copy, i));
    std::memcpy(want.data() + w.status_bytes->first() + i * 4, &status, 4);
  }
  return want;
}

// One random gather. Returns: whether each byte, guards included, is as the model says.
bool gather_holds(std::mt19937_64& random, int threads, bool large = false) {
  World w = random_world(random, false, below(random, 2) != 0, below(random, 2) != 0, large);
  std::vector<std::byte> want = w.buffer->copy();
  model_copy(w.copy, [&](std::int32_t layer, std::int64_t in_buffer, std::int64_t in_pool) {
    std::byte& byte = want[w.buffer->first() + in_buffer];
    if (in_pool >= 0) {
      byte = w.pools[layer].data()[in_pool];
    } else if (w.copy.zero_missing) {
      byte = std::byte{0};
    }
  });
  const std::vector<std::byte> statuses = expected_status(w);
  std::vector<std::vector<std::byte>> pools;
  for (const Guarded& pool : w.pools) pools.push_back(pool.copy());
  gather(&w.copy, 1, threads);
  bool holds = same(*w.buffer, want) && same(*w.status_bytes, statuses);
  for (std::size_t i = 0; i < pools.size(); ++i) holds = holds && same(w.pools[i], pools[i]);
  return holds;
}

bool scatter_holds(std::mt19937_64& random, int threads, bool large = false) {
  World w = random_world(random, true, below(random, 2) != 0, below(random, 2) != 0, large);
  std::vector<std::vector<std::byte>> want;
  for (const Guarded& pool : w.pools) want.push_back(pool.copy());
  model_copy(w.copy, [&](std::int32_t layer, std::int64_t in_buffer, std::int64_t in_pool) {
    if (in_pool >= 0) want[layer][w.pools[layer].first() + in_pool] = w.buffer->data()[in_buffer];
  });
  const std::vector<std::byte> statuses = expected_status(w), before = w.buffer->copy();
  scatter(&w.copy, 1, threads);
  bool holds = same(*w.buffer, before) && same(*w.status_bytes, statuses);
  for (std::size_t i = 0; i < want.size(); ++i) holds = holds && same(w.pools[i], want[i]);
  return holds;
}

}  // namespace

HKV_TEST("gather is the model's, byte by byte, on every level, with any number of threads") {
  for (const CpuLevel level : levels()) {
    cpu_level_choose(level);
    std::mt19937_64 random(1);
    int wrong = 0;
    for (int round = 0; round < rounds_of_a_level; ++round) wrong += !gather_holds(random, 1 + round % 4);
    EXPECT_EQ(wrong, 0);
  }
}

HKV_TEST("scatter is the model's, byte by byte, and padding keeps its bytes") {
  for (const CpuLevel level : levels()) {
    cpu_level_choose(level);
    std::mt19937_64 random(2);
    int wrong = 0;
    for (int round = 0; round < rounds_of_a_level; ++round) wrong += !scatter_holds(random, 1 + round % 4);
    EXPECT_EQ(wrong, 0);
  }
}

HKV_TEST("so are copies large enough to be streamed and to be shared by threads, of rows of any length") {
  for (const CpuLevel level : levels()) {
    cpu_level_choose(level);
    std::mt19937_64 random(7);
    int wrong = 0;
    for (int round = 0; round < large_rounds; ++round) {
      wrong += !gather_holds(random, 1 + round % 4, true);
      wrong += !scatter_holds(random, 1 + round % 4, true);
    }
    EXPECT_EQ(wrong, 0);
  }
}

HKV_TEST("several groups in one call are each group's own copy") {
  std::mt19937_64 random(3);
  for (int round = 0; round < 20; ++round) {
    std::vector<World> worlds;
    for (int g = 0; g < 4; ++g) worlds.push_back(random_world(random, false, g % 2 != 0, g / 2 != 0));
    std::vector<PagedCopy> copies;
    for (World& w : worlds) {  // moved worlds keep their bytes: buffers do not move with them
      copies.push_back(w.copy);
    }
    gather(copies.data(), 4, 2);
    for (const World& w : worlds) {
      int wrong = 0;
      model_copy(w.copy, [&](std::int32_t layer, std::int64_t in_buffer, std::int64_t in_pool) {
        if (in_pool >= 0) wrong += w.buffer->data()[in_buffer] != w.pools[layer].data()[in_pool];
      });
      EXPECT_EQ(wrong, 0);
      EXPECT(same(*w.status_bytes, expected_status(w)));
    }
  }
}

HKV_TEST("a large copy on many threads, streamed, is the same on every level") {
  constexpr std::int64_t page_bytes = 37376, pages = 96;
  std::mt19937_64 random(4);
  Guarded pool(pages * page_bytes, 0, random), buffer(pages * page_bytes, 16, random);
  const PoolLayer layer{pool.data(), page_bytes};
  std::vector<std::int32_t> ids(pages);
  for (auto& id : ids) id = static_cast<std::int32_t>(below(random, pages + 1)) - 1;
  for (const CpuLevel level : levels()) {
    cpu_level_choose(level);
    for (const int threads : {1, 2, 7}) {
      std::memset(buffer.data(), 0x77, buffer.size());
      std::vector<std::byte> want = buffer.copy();
      for (std::int64_t i = 0; i < pages; ++i) {
        std::byte* const to = want.data() + buffer.first() + i * page_bytes;
        if (ids[i] < 0) {
          std::memset(to, 0, page_bytes);
        } else {
          std::memcpy(to, pool.data() + ids[i] * page_bytes, page_bytes);
        }
      }
      PagedCopy copy{
          &layer, 1, {64, 584, 584, 0, page_bytes}, {ids.data(), nullptr, false, pages, -1}, buffer.data()};
      gather(&copy, 1, threads);
      EXPECT(same(buffer, want));
    }
  }
}

HKV_TEST("the null page is never read and never written") {
  std::mt19937_64 random(5);
  Guarded pool(4 * 64, 0, random), buffer(4 * 64, 0, random);
  std::memset(pool.data(), 0xff, 64);  // not a number, in every format
  const PoolLayer layer{pool.data(), 64};
  const std::int32_t ids[] = {0, 1, 0, 2};
  std::int32_t status[4];
  PagedCopy copy{&layer,  1,     {1, 64, 64, 0, 64}, {ids, nullptr, false, 4, 0}, buffer.data(), nullptr,
                 nullptr, status};
  gather(&copy, 1, 1);
  for (const int piece : {0, 2}) {
    for (int b = 0; b < 64; ++b) EXPECT(buffer.data()[piece * 64 + b] == std::byte{0});
    EXPECT_EQ(status[piece], 3);
  }
  const std::vector<std::byte> before(pool.data(), pool.data() + 64);
  std::memset(buffer.data(), 0x11, 256);
  const std::int32_t once[] = {0, 1, -1, 2};
  copy.pieces.page_ids = once;
  scatter(&copy, 1, 1);
  EXPECT(std::memcmp(before.data(), pool.data(), 64) == 0);
  EXPECT(pool.data()[64] == std::byte{0x11} && pool.data()[3 * 64] != std::byte{0x11});
}

HKV_TEST("a count that changes during the copy is told, and the bytes do not get out") {
  // The page's own copy overwrites its count, which is as exact a moment as there is.
  for (const CpuLevel level : levels()) {
    cpu_level_choose(level);
    for (const bool zero : {true, false}) {
      alignas(64) std::uint64_t pool[2][64], buffer[64] = {};
      std::fill_n(&pool[0][0], 128, 7);
      const PoolLayer layer{reinterpret_cast<std::byte*>(pool), 512};
      const std::int32_t id = 1;
      std::int32_t status = 9;
      const std::uint64_t expected = 0;
      PagedCopy copy{&layer,
                     1,
                     {1, 512, 512, 0, 512},
                     {&id, nullptr, false, 1, -1},
                     reinterpret_cast<std::byte*>(buffer),
                     buffer + 3,
                     &expected,
                     &status,
                     zero};
      gather(&copy, 1, 1);
      EXPECT_EQ(status, static_cast<std::int32_t>(CopyStatus::Changed));
      if (zero) EXPECT(std::all_of(buffer, buffer + 64, [](std::uint64_t word) { return word == 0; }));
    }
  }
}

HKV_TEST("a scatter whose page is handed out under it says so") {
  for (const CpuLevel level : levels()) {
    cpu_level_choose(level);
    alignas(64) std::uint64_t pool[2][64] = {}, buffer[64];
    std::fill_n(buffer, 64, 7);
    const PoolLayer layer{reinterpret_cast<std::byte*>(pool), 512};
    const std::int32_t id = 1;
    std::int32_t status = 9;
    const std::uint64_t expected = 0;
    PagedCopy copy{&layer,
                   1,
                   {1, 512, 512, 0, 512},
                   {&id, nullptr, false, 1, -1},
                   reinterpret_cast<std::byte*>(buffer),
                   &pool[1][4],
                   &expected,
                   &status};
    scatter(&copy, 1, 1);
    EXPECT_EQ(status, static_cast<std::int32_t>(CopyStatus::Changed));
  }
}

HKV_TEST("beside a writer that raises counts, a piece is Ok only where its count stood still") {
  constexpr std::int64_t pages = 8, page_bytes = 16384, rounds = 400;
  std::mt19937_64 random(6);
  Guarded pool(pages * page_bytes, 0, random), buffer(pages * page_bytes, 0, random);
  std::vector<std::uint64_t> counts(pages, 1);
  const PoolLayer layer{pool.data(), page_bytes};
  std::vector<std::int32_t> ids(pages), status(pages);
  for (std::int32_t i = 0; i < pages; ++i) ids[i] = i;
  Atom<int> stop(0);
  std::thread writer([&] {
    for (std::uint64_t i = 0; stop.load() == 0; ++i) raise_handout_count(&counts[i % (pages / 2)]);
  });
  int odd = 0, wrong = 0;
  // More rounds where the writer gets no turn.
  for (int round = 0; round < rounds || (odd == 0 && round < 100 * rounds); ++round) {
    std::vector<std::uint64_t> expected(pages);
    for (std::int64_t i = 0; i < pages; ++i) expected[i] = handout_count(&counts[i]);
    PagedCopy copy{&layer,
                   1,
                   {1, page_bytes, page_bytes, 0, page_bytes},
                   {ids.data(), nullptr, false, pages, -1},
                   buffer.data(),
                   counts.data(),
                   expected.data(),
                   status.data()};
    gather(&copy, 1, 1);
    for (std::int64_t i = 0; i < pages; ++i) {
      const bool raised = i < pages / 2;
      odd += raised && status[i] != 0;
      wrong += !raised && status[i] != 0;
      const std::byte* const piece = buffer.data() + i * page_bytes;
      const bool copied = std::memcmp(piece, pool.data() + i * page_bytes, page_bytes) == 0;
      const bool zero = piece[0] == std::byte{0} && std::memcmp(piece, piece + 1, page_bytes - 1) == 0;
      wrong += status[i] == 0 ? !copied : !zero;
    }
  }
  stop.store(1);
  writer.join();
  EXPECT(odd > 0);
  EXPECT_EQ(wrong, 0);
}

}  // namespace hkv
