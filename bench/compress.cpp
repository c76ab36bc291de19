// SPDX-License-Identifier: Apache-2.0
// Tail compression of DeepSeek-V4's shapes beside a streaming read of the same rows in the same round: bfloat16 rows
// of kv and score side by side, entries of 512 channels in rows of 584 bytes, at ratio 4 with overlap and ratio 128.
//
// Arguments: --json. Threads are pinned; NO_RT=1 keeps them off real-time scheduling.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/compress.h"
#include "kernels/cpu_level.h"
#include "limits/bench.hpp"
#include "rounds.hpp"

namespace {

constexpr std::int64_t width = 512;
constexpr int rounds = 15;

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
    const auto* at = reinterpret_cast<const char*>(from) + bytes / threads * t;
    __m512i sum = _mm512_setzero_si512();
    for (std::int64_t i = 0; i < bytes / threads; i += 128) {
      sum = _mm512_xor_si512(sum, _mm512_load_si512(at + i));
      sum = _mm512_xor_si512(sum, _mm512_load_si512(at + i + 64));
    }
    keep(_mm512_reduce_add_epi64(sum));
  });
}

void measure(Report& report, const Shape& shape) {
  const Case work(shape);
  const double bytes = static_cast<double>(work.bytes());
  for (const int threads : {1, 2}) {
    Rounds series;
    for (int round = 0; round < rounds; ++round) {
      series.add("read", streaming_read(work.rows(), work.bytes(), threads));
      series.add("compress", par(1, [&](int) { hkv::compress_tail(work.call(), threads); }));
    }
    const double best = bytes / series.min("compress"), median = bytes / series.median("compress");
    const double fraction = series.ratio("read", "compress");
    report.line(
        "%s, %d thread(s): %.1f GB/s (median %.1f), %.0f ns per token, %.2f of a streaming read of %.1f "
        "GB/s\n",
        shape.name, threads, best, median, series.median("compress") / shape.tokens, fraction,
        bytes / series.median("read"));
    const std::string name = std::string(shape.name) + "_" + std::to_string(threads);
    report.figure(name + "_gbs", median);
    report.figure(name + "_fraction", fraction);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Report report(argc > 1 && std::string(argv[1]) == "--json");
  report.line("level %s\n", hkv::cpu_level_name(hkv::cpu_level()));
  measure(report, {"c4", 4, true, 16384});
  measure(report, {"c128", 128, false, 32768});
  return 0;
}
