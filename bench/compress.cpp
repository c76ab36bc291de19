// SPDX-License-Identifier: Apache-2.0
// Question: how near does tail compression come to reading its rows once?
//
//   compress [--json] [--smoke] [--levels]
//
// DeepSeek-V4's shapes: bfloat16 rows of kv and score side by side, entries of 512 channels in rows of 584 bytes, at
// ratio 4 with overlap and at ratio 128, 64 MiB of rows. Beside it, in the same rounds: a streaming read of the same
// rows on as many threads, the limit. A figure is the median over rounds of limit's time over subject's time: 1 is the
// limit. --levels: the other instruction sets as well.
#include "limits/bench.hpp"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/compress.h"
#include "kernels/cpu_level.h"
#include "rounds.hpp"

namespace {

constexpr std::int64_t width = 512;

// Not pinned: the threads that help inherit what the caller may use. Several calls, since the system takes some
// milliseconds to give a helper that woke up a CPU of its own.
double unpinned(const hkv::CompressTail& call, int threads) {
  constexpr int calls = 4;
  const double start = now_ns();
  for (int i = 0; i < calls; ++i) hkv::compress_tail(call, threads);
  return (now_ns() - start) / calls;
}

struct Shape {
  const char* name;
  std::int64_t ratio;
  bool overlap;
  std::int64_t tokens;
};

// One call's memory: rows, pages and the structs that name them.
class Case {
 public:
  explicit Case(const Shape& shape) : shape_(shape), row_(shape.overlap ? 2 * width : width) {
    const std::int64_t items = shape.tokens * 2 * row_;
    rows_ = static_cast<std::uint16_t*>(arena(items * 2, true));
    Rng random(1);
    for (std::int64_t i = 0; i < items; ++i) {
      const float value = (static_cast<int>(random() % 2000) - 1000) / 500.0f;
      std::uint32_t bits;
      std::memcpy(&bits, &value, 4);
      rows_[i] = static_cast<std::uint16_t>(bits >> 16);
    }
    weight_.assign(width, 1.0f);
    for (int i = 0; i < 32; ++i) frequencies_.push_back(std::pow(160000.0, -i / 32.0));
    starts_ = {0, static_cast<std::int32_t>(shape.tokens)};
    parts_[0] = {448, hkv::Element::E4m3, 0, hkv::ScaleCode::Ue8m0, true, 1e-4, 64, 576};
    parts_[1] = {64, hkv::Element::Bf16, 448, hkv::ScaleCode::None, true, 0, 1, 0};
    pages_ = shape.tokens / shape.ratio / 64 + 1;
    out_ = static_cast<std::byte*>(arena(pages_ * page_stride, true));
    fill();
  }
  const hkv::CompressTail& call() const { return call_; }
  std::int64_t bytes() const { return shape_.tokens * 4 * row_; }
  const std::byte* rows() const { return reinterpret_cast<const std::byte*>(rows_); }

 private:
  static constexpr std::int64_t page_stride = 37440;

  void fill() {
    const auto* const base = reinterpret_cast<const std::byte*>(rows_);
    call_.kv = {base, 4 * row_, false};
    call_.score = {base + 2 * row_, 4 * row_, false};
    call_.rows = shape_.tokens;
    call_.ratio = shape_.ratio;
    call_.overlap = shape_.overlap;
    call_.width = width;
    call_.norm_weight = {reinterpret_cast<const std::byte*>(weight_.data()), 0, true};
    call_.eps = 1e-6;
    call_.frequencies = frequencies_.data();
    call_.rope_dims = 64;
    call_.layout.parts = parts_;
    call_.layout.part_count = 2;
    call_.layout.page_rows = 64;
    call_.layout.row_bytes = 584;
    call_.layout.data_bytes = 576;
    call_.pages = out_;
    call_.page_stride = page_stride;
    call_.page_count = pages_;
    call_.requests = 1;
    call_.starts = {reinterpret_cast<const std::byte*>(starts_.data()), 4};
    call_.positions = {reinterpret_cast<const std::byte*>(&position_), 4};
  }

  Shape shape_;
  std::int64_t row_;
  std::uint16_t* rows_;
  std::byte* out_;
  std::int64_t pages_;
  std::vector<float> weight_;
  std::vector<double> frequencies_;
  std::vector<std::int32_t> starts_;
  std::int32_t position_ = 0;
  hkv::RowPart parts_[2];
  hkv::CompressTail call_;
};

double streaming_read(const std::byte* from, std::int64_t bytes, int threads) {
  return par(threads, [&](int t) {
    const auto* at = reinterpret_cast<const std::uint64_t*>(from + bytes / threads * t);
    std::uint64_t sums[16] = {};  // side by side, as wide as the machine's vectors are
    for (std::int64_t i = 0; i < bytes / threads / 8; i += 16) {
      for (int k = 0; k < 16; ++k) sums[k] ^= at[i + k];
    }
    std::uint64_t sum = 0;
    for (const std::uint64_t each : sums) sum += each;
    keep(sum);
  });
}

void measure(Report& report, const Shape& shape, int rounds, const std::string& suffix) {
  const Case work(shape);
  const double bytes = static_cast<double>(work.bytes());
  unpinned(work.call(), 2);
  for (const int threads : {1, 2}) {
    Rounds series;
    for (int round = 0; round < rounds; ++round) {
      series.add("read", streaming_read(work.rows(), work.bytes(), threads));
      series.add("compress", unpinned(work.call(), threads));
    }
    const double best = bytes / series.min("compress"), median = bytes / series.median("compress");
    const double fraction = series.ratio("read", "compress");
    report.line(
        "%s%s, %d thread(s): %.1f GB/s (median %.1f), %.0f ns per token, %.2f of a streaming read of %.1f "
        "GB/s\n",
        shape.name, suffix.c_str(), threads, best, median, series.median("compress") / shape.tokens, fraction,
        bytes / series.median("read"));
    const std::string name = shape.name + suffix + "_" + std::to_string(threads);
    report.figure(name + "_gbs", median);
    report.figure(name + "_fraction", fraction);
  }
}

}  // namespace

int main(int argc, char** argv) {
  bool json = false, smoke = false, levels = false;
  for (int i = 1; i < argc; ++i) {
    json |= std::strcmp(argv[i], "--json") == 0;
    smoke |= std::strcmp(argv[i], "--smoke") == 0;
    levels |= std::strcmp(argv[i], "--levels") == 0;
  }
  Report report(json);
  const int rounds = smoke ? 3 : 31;
  const Shape shapes[] = {{"c4", 4, true, smoke ? 2048 : 16384}, {"c128", 128, false, smoke ? 4096 : 32768}};
  for (const Shape& shape : shapes) measure(report, shape, rounds, "");
  for (const hkv::CpuLevel level : {hkv::CpuLevel::Avx2, hkv::CpuLevel::Portable}) {
    if (!levels || !hkv::cpu_level_supported(level)) continue;
    hkv::cpu_level_choose(level);
    for (const Shape& shape : shapes)
      measure(report, shape, smoke ? 1 : 5, std::string("_") + hkv::cpu_level_name(level));
  }
  return 0;
}
