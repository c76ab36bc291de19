// SPDX-License-Identifier: Apache-2.0
#include "kernels/compress.h"

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <new>
#include <vector>

#include "kernels/compress_world.h"
#include "testing.h"

namespace {
std::atomic<long> allocations{0};
}

// Not inline: GCC would take free() for the wrong partner of operator new.
#define HKV_NOT_INLINE __attribute__((noinline))
HKV_NOT_INLINE void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* made = std::malloc(bytes == 0 ? 1 : bytes)) return made;
  throw std::bad_alloc();
}
HKV_NOT_INLINE void operator delete(void* made) noexcept { std::free(made); }
HKV_NOT_INLINE void operator delete(void* made, std::size_t) noexcept { std::free(made); }

namespace hkv {
namespace {

constexpr CpuLevel all_levels[] = {CpuLevel::Portable, CpuLevel::Avx2, CpuLevel::Avx512};

// The error field of a refusal, empty where there is none.
std::string refused(const CompressTail& call) {
  try {
    check_compress(call);
  } catch (const Error& error) {
    EXPECT(error.code == ErrorCode::KernelContract);
    return error.field;
  }
  return "";
}

// How far the entries of all windows are from the formulas.
double worst_error(const CompressWorld& world) {
  double worst = 0;
  for (std::int64_t q = 0, window = 0; q < world.requests; ++q) {
    for (std::int64_t e = world.call.first_entry(q); e < world.call.end_entry(q); ++e, ++window) {
      const std::vector<double> right = world.entry(q, e);
      for (std::int64_t i = 0; i < world.width; ++i) {
        const double error = std::abs(world.written(window, i) - right[i]);
        worst = error <= worst ? worst : error;  // a NaN stays
      }
    }
  }
  return worst;
}

}  // namespace

HKV_TEST(
    "entries are those of the formulas, at every level, width and cut, and nothing behind a row is touched") {
  for (const CpuLevel level : all_levels) {
    if (!cpu_level_supported(level)) continue;
    cpu_level_choose(level);
    for (const std::int64_t width : {1, 3, 16, 31, 32, 33, 48, 64, 67}) {
      for (const bool overlap : {false, true}) {
        for (const bool wide : {false, true}) {
          const std::int64_t ratio = width % 2 == 0 ? 4 : width % 3 == 0 ? 3 : 11;
          CompressWorld world(ratio, overlap, width, {43, 0, 9, 1}, {0, 5, 10, 32}, wide);
          EXPECT_EQ(refused(world.call), "");
          compress_tail(world.call, 1);
          EXPECT(worst_error(world) < 1e-5);
        }
      }
    }
  }
}

HKV_TEST("scores beyond any power of float32, and a large eps") {
  CompressWorld world(4, true, 32, {43, 9}, {0, 10}, true);
  for (std::int64_t i = 0; i < world.starts.back() * 64; ++i)
    reinterpret_cast<float*>(world.score.get())[i] *= 60;
  world.call.eps = 0.5;
  compress_tail(world.call, 1);
  EXPECT(worst_error(world) < 1e-4);
}

HKV_TEST("the new carry holds the live rows, and nothing else of it is touched") {
  CompressWorld world(4, true, 24, {7, 1, 12}, {2, 9, 4}, false);
  std::memset(world.new_carry.get(), 0x5A, world.ring_bytes());
  compress_tail(world.call, 1);
  float untouched;
  std::memset(&untouched, 0x5A, 4);
  for (std::int64_t q = 0; q < world.requests; ++q) {
    const std::int64_t last = world.call.last(q), opened = last - last % 4;
    for (std::int64_t token = opened - 4; token < opened + 4; ++token) {
      const float* const row = world.call.new_carry.row(q, token % 8);
      for (std::int64_t i = 0; i < 96; ++i) {
        const bool alive = token < last && (token >= opened || i % 48 < 24);
        const double right = alive ? world.token_value(i < 48 ? 0 : 1, q, token, i % 48) : untouched;
        EXPECT_EQ(static_cast<double>(row[i]), right);
      }
    }
  }
}

// An entry of one token whose values are all 1: what the norm gives is its weight, exactly.
HKV_TEST("codes, scales and rotations by hand") {
  for (const CpuLevel level : all_levels) {
    if (!cpu_level_supported(level)) continue;
    cpu_level_choose(level);
    CompressWorld world(1, false, 8, {1}, {5}, true);
    std::fill_n(reinterpret_cast<float*>(world.kv.get()), 8, 1.0f);
    world.call.eps = 0;
    world.weight = {448, 17, 19, -0.0f, 449, 1, 1 + 0x1p-8f, 1 + 0x3p-8f};
    world.call.norm_weight.base = reinterpret_cast<const std::byte*>(world.weight.data());
    const RowPart parts[] = {{5, Element::E4m3, 0, ScaleCode::Ue8m0, true, 1e-4, 5, 24},
                             {3, Element::Bf16, 5, ScaleCode::None, true, 0, 1, 0}};
    world.call.layout = {parts, 2, 1, 32, 32, false, false, Element::F32};
    const auto* const row = reinterpret_cast<const std::uint8_t*>(world.pages.get());
    compress_tail(world.call, 1);
    EXPECT_EQ(int{row[24]}, 128);  // 449 does not fit into 448
    const std::uint8_t halved[] = {0x76, 0x50, 0x52, 0x80, 0x76};
    for (int i = 1; i < 4; ++i) EXPECT_EQ(int{row[i]}, int{halved[i]});
    world.weight[4] = 447;
    compress_tail(world.call, 1);
    EXPECT_EQ(int{row[24]}, 127);
    const std::uint8_t codes[] = {0x7e, 0x58, 0x5a, 0x80,
                                  0x7e};  // 17 lies between 16 and 18, 19 between 18 and 20
    for (int i = 0; i < 5; ++i) EXPECT_EQ(int{row[i]}, int{codes[i]});
    std::uint16_t rounded[3];
    std::memcpy(rounded, row + 5, 6);
    EXPECT_EQ(rounded[1], 0x3f80);
    EXPECT_EQ(rounded[2], 0x3f82);

    const double frequency = 0.75;
    world.call.frequencies = &frequency;
    world.call.rope_dims = 2;
    world.weight.assign(8, 1.0f);
    world.call.layout = {&world.part, 1, 1, 32, 32, false, false, Element::F32};
    compress_tail(world.call, 1);
    const double c = std::cos(5 * 0.75), s = std::sin(5 * 0.75);
    EXPECT_EQ(world.written(0, 5), 1.0f);
    EXPECT_EQ(world.written(0, 6), static_cast<float>(c - s));
    EXPECT_EQ(world.written(0, 7), static_cast<float>(c + s));
  }
}

// What rounding the float64 once gives.
std::uint16_t bf16_of(double x) {
  const double step = std::ldexp(1.0, std::ilogb(x) - 7);  // of normal numbers
  const auto near = static_cast<float>(std::nearbyint(x / step) * step);
  std::uint32_t bits;
  std::memcpy(&bits, &near, 4);
  return static_cast<std::uint16_t>(bits >> 16);
}

// Windows of a world with rows of bfloat16 that are not the entry in float64, rounded once.
int unequal_rows(const CompressWorld& world, const std::vector<double>& frequencies) {
  int unequal = 0;
  for (std::int64_t e = 0; e < world.windows; ++e) {
    std::vector<double> right = world.entry(0, e);
    const std::size_t pairs = frequencies.size(), first = right.size() - 2 * pairs;
    for (std::size_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(e * world.ratio) * frequencies[i];
      double &a = right[first + i], &b = right[first + pairs + i], old = a;
      a = a * std::cos(angle) - b * std::sin(angle);
      b = b * std::cos(angle) + old * std::sin(angle);
    }
    const auto* const row = reinterpret_cast<const std::uint16_t*>(world.pages.get()) + e * world.width;
    bool same = true;
    for (std::size_t i = 0; i < right.size(); ++i) same = same && row[i] == bf16_of(right[i]);
    unequal += same ? 0 : 1;
  }
  return unequal;
}

HKV_TEST("a channel of bfloat16 that float32 would leave undecided is that of the entry in float64") {
  const std::vector<double> frequencies = {1.0, 0.3, 0.01, 0.0004, 0.9, 0.7, 0.5, 0.11};
  for (const CpuLevel level : all_levels) {
    if (!cpu_level_supported(level)) continue;
    cpu_level_choose(level);
    for (const std::int32_t ratio : {1, 4, 16}) {
      for (const bool far : {false, true}) {  // scores that make the window be done again
        const std::int32_t windows = 16000 / ratio / 16;
        CompressWorld world(ratio, true, 512, {windows * ratio}, {0}, true, 7);
        if (far) {
          auto* const scores = reinterpret_cast<float*>(world.score.get());
          for (std::int64_t i = 0; i < world.call.rows * world.row_width(); ++i) scores[i] *= 50;
        }
        const RowPart part = {512, Element::Bf16, 0, ScaleCode::None, true, 0, 1, 0};
        world.call.layout = {&part, 1, 1, 1024, 1024, false, false, Element::F32};
        world.call.page_stride = 1024;
        world.call.frequencies = frequencies.data();
        world.call.rope_dims = 16;
        world.call.interleaved = false;
        compress_tail(world.call, 1);
        EXPECT(unequal_rows(world, frequencies) <= windows / 500);
      }
    }
  }
}

HKV_TEST("the bytes moved are the floor: every row once, every entry once, live rows once") {
  struct Case {
    std::int64_t ratio;
    bool overlap;
    double floor;  // bytes read and written of a token
  };
  // Rows of kv and score in bfloat16, entries of 584 bytes.
  for (const Case& one : {Case{4, true, 4242}, Case{128, false, 2053}}) {
    const std::int32_t tokens = 16384;
    CompressWorld world(one.ratio, one.overlap, 512, {tokens}, {0}, false);
    const RowPart parts[] = {{448, Element::E4m3, 0, ScaleCode::Ue8m0, true, 1e-4, 64, 576},
                             {64, Element::Bf16, 448, ScaleCode::None, true, 0, 1, 0}};
    world.call.layout = {parts, 2, 1, 584, 576, false, false, Element::F32};
    compress_tail(world.call, 2);
    const double per_token =
        static_cast<double>(world.traffic.read.load() + world.traffic.written.load()) / tokens;
    EXPECT(per_token <= 1.02 * one.floor);
    EXPECT(per_token >= 0.99 * one.floor);
    const std::int64_t once = tokens * world.row_width() * 4;
    EXPECT(world.traffic.read.load() >= once);
    EXPECT(world.traffic.read.load() <= once + once / 1000);  // channels that float32 left undecided
    EXPECT_EQ(world.traffic.written.load(), tokens / one.ratio * 584 + (one.overlap ? 4 * 512 * 8 : 0));
  }
}

HKV_TEST("cuts read no row twice: what is carried is read once by its window") {
  for (const bool overlap : {false, true}) {
    CompressWorld world(6, overlap, 64, {7, 2, 1, 30}, {5, 8, 12, 41}, false);
    compress_tail(world.call, 1);
    std::int64_t expected = 0;
    for (std::int64_t q = 0; q < world.requests; ++q) {
      const std::int64_t at = world.positions[q], last = world.call.last(q), opened = at - at % 6;
      const std::int64_t tail = at - opened, drawn = overlap && opened > 0 ? 6 : 0;
      expected += (last - at) * world.row_width() * 4;  // new rows, in bfloat16
      // Old rows, in float32: by the window that closes, or kept as they are. With overlap the first halves of a tail
      // go to the window after the next, or to the carry.
      expected += (tail * world.row_width() + drawn * world.width) * 8;
    }
    EXPECT_EQ(world.traffic.read.load(), expected);
  }
}

HKV_TEST("a masked entry is neither read nor written") {
  CompressWorld world(4, false, 32, {12}, {0}, true);
  const std::int32_t mask = 8;
  world.call.write_mask = {reinterpret_cast<const std::byte*>(&mask), 4};
  std::memset(world.pages.get(), 0x5A, world.page_bytes());
  compress_tail(world.call, 1);
  EXPECT_EQ(world.traffic.read.load(), 4 * 32 * 8);
  for (std::size_t i = 0; i < 2 * 32 * 4; ++i) EXPECT(world.pages.get()[i] == std::byte{0x5A});
  EXPECT(std::abs(world.written(2, 5) - world.entry(0, 2)[5]) < 1e-5);
}

HKV_TEST("nothing is allocated once warm") {
  CompressWorld world(4, true, 96, {4000, 3, 77}, {0, 5, 9}, false);
  for (int i = 0; i < 3; ++i) compress_tail(world.call, 3);
  const long before = allocations.load();
  check_compress(world.call);
  for (int i = 0; i < 20; ++i) compress_tail(world.call, 3);
  EXPECT_EQ(allocations.load(), before);
}

HKV_TEST("threads and levels write the same bytes") {
  CompressWorld world(4, true, 100, {2000, 1, 0, 777}, {0, 3, 8, 1002}, false);
  cpu_level_choose(CpuLevel::Portable);
  compress_tail(world.call, 1);
  const std::vector<std::byte> first(world.pages.get(), world.pages.get() + world.page_bytes());
  for (const CpuLevel level : all_levels) {
    if (!cpu_level_supported(level)) continue;
    cpu_level_choose(level);
    for (int threads = 1; threads <= 4; ++threads) {
      std::memset(world.pages.get(), 0, world.page_bytes());
      compress_tail(world.call, threads);
      EXPECT(std::memcmp(first.data(), world.pages.get(), first.size()) == 0);
    }
  }
}

HKV_TEST("lists that are wrong are refused by name") {
  CompressWorld world(4, true, 8, {9, 6}, {3, 8}, true);
  const CompressTail good = world.call;
  EXPECT_EQ(refused(good), "");
  CompressTail call = good;
  call.rows = 16;
  EXPECT_EQ(refused(call), "starts");
  call = good;
  const std::int32_t far[] = {3, (std::int64_t{1} << 31) - 6}, below[] = {-1, 8};
  call.positions.base = reinterpret_cast<const std::byte*>(far);
  EXPECT_EQ(refused(call), "positions");
  call.positions.base = reinterpret_cast<const std::byte*>(below);
  EXPECT_EQ(refused(call), "positions");
  call = good;
  call.page_count = world.windows - 1;
  EXPECT_EQ(refused(call), "out");
  call = good;
  call.carry.base = nullptr;
  EXPECT_EQ(refused(call), "carry");
  const std::int32_t ids[] = {0, 1, 2, 3, 4, 0}, twice[] = {0, 1, 2, 2, 1, 0}, strange[] = {0, 1, 2, 5, 4, 3};
  call = good;
  call.page_id_stride = 12;
  call.page_columns = 3;
  for (const auto& [list, argument] :
       {std::pair(ids, "page_ids"), std::pair(twice, "page_ids"), std::pair(strange, "page_ids")}) {
    call.page_ids.base = reinterpret_cast<const std::byte*>(list);
    EXPECT_EQ(refused(call), argument);
  }
}

}  // namespace hkv
