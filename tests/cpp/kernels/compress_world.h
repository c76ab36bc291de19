// SPDX-License-Identifier: Apache-2.0
// Calls of tail compression over memory that ends where a page begins which nobody may touch.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/check.h"
#include "kernels/compress.h"
#include "kernels/compress_check.h"
#include "kernels/cpu_level.h"

namespace hkv {

// Bytes whose last one is the last of a page; behind it lies a page without any right.
class GuardedBytes {
 public:
  explicit GuardedBytes(std::size_t bytes) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    size_ = (bytes + page - 1) / page * page + page;
    map_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    HKV_CHECK(map_ != MAP_FAILED);
    HKV_CHECK(mprotect(static_cast<char*>(map_) + size_ - page, page, PROT_NONE) == 0);
    first_ = static_cast<std::byte*>(map_) + size_ - page - bytes;
  }
  ~GuardedBytes() { munmap(map_, size_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  std::byte* get() const { return first_; }

 private:
  void* map_;
  std::size_t size_;
  std::byte* first_;
};

// A call of some requests in float32 rows of an entry each, so that what is written can be read as numbers.
struct CompressWorld {
  std::int64_t ratio, width, requests;
  bool overlap, wide;
  std::vector<std::int32_t> starts{0}, positions;
  std::vector<float> weight;
  RowPart part;
  std::int64_t windows = 0;
  GuardedBytes kv, score, carry, new_carry, pages;
  CompressTraffic traffic;
  CompressTail call;

  CompressWorld(std::int64_t ratio, bool overlap, std::int64_t width, std::vector<std::int32_t> lengths,
                std::vector<std::int32_t> positions, bool wide, unsigned seed = 1)
      : ratio(ratio),
        width(width),
        requests(static_cast<std::int64_t>(positions.size())),
        overlap(overlap),
        wide(wide),
        positions(positions),
        weight(static_cast<std::size_t>(width), 1.5f),
        kv(rows_of(lengths) * row_width() * item()),
        score(rows_of(lengths) * row_width() * item()),
        carry(ring_bytes()),
        new_carry(ring_bytes()),
        pages(windows_of(lengths) * width * sizeof(float)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (const GuardedBytes* rows : {&kv, &score}) {
      for (std::int64_t i = 0; i < starts.back() * row_width(); ++i)
        put(rows->get() + i * item(), normal(random));
    }
    for (std::size_t i = 0; i < ring_bytes(); i += 4) {
      const float value = normal(random);
      std::memcpy(carry.get() + i, &value, 4);
    }
    name();
  }

  std::int64_t row_width() const { return width * (overlap ? 2 : 1); }
  std::int64_t ring_rows() const { return ratio * (overlap ? 2 : 1); }
  std::size_t item() const { return wide ? 4 : 2; }
  std::size_t ring_bytes() const {
    return static_cast<std::size_t>(requests * ring_rows() * row_width() * 8);
  }
  std::size_t page_bytes() const { return static_cast<std::size_t>(windows * width) * sizeof(float); }

  double value(const GuardedBytes& rows, std::int64_t row, std::int64_t channel) const {
    const std::byte* const at =
        rows.get() + (row * row_width() + channel) * static_cast<std::int64_t>(item());
    std::uint32_t bits = 0;
    std::memcpy(reinterpret_cast<char*>(&bits) + (wide ? 0 : 2), at, item());
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
  }
  // kv (0) or score (1) of the token at `token`, from the carry where it is older than the call.
  double token_value(int which, std::int64_t q, std::int64_t token, std::int64_t channel) const {
    if (token >= positions[q])
      return value(which == 0 ? kv : score, starts[q] + token - positions[q], channel);
    return call.carry.row(q, token % ring_rows())[which * row_width() + channel];
  }
  // Entry `entry` of request q by the formulas, in float64, not rotated.
  std::vector<double> entry(std::int64_t q, std::int64_t entry) const {
    std::vector<double> made(static_cast<std::size_t>(width));
    double squares = 0;
    for (std::int64_t channel = 0; channel < width; ++channel) {
      double powers = 0, sum = 0;
      const std::int64_t drawn = overlap && entry > 0 ? ratio : 0;
      for (std::int64_t k = -drawn; k < ratio; ++k) {
        const std::int64_t token = entry * ratio + k, at = channel + (k >= 0 && overlap ? width : 0);
        const double power = std::exp(token_value(1, q, token, at));
        powers += power;
        sum += power * token_value(0, q, token, at);
      }
      made[channel] = sum / powers;
      squares += made[channel] * made[channel];
    }
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(width) + call.eps);
    for (std::int64_t i = 0; i < width; ++i) made[i] *= scale * weight[i];
    return made;
  }
  float written(std::int64_t window, std::int64_t channel) const {
    return reinterpret_cast<const float*>(pages.get())[window * width + channel];
  }

 private:
  std::size_t rows_of(const std::vector<std::int32_t>& lengths) {
    if (starts.size() == 1) {
      for (const std::int32_t n : lengths) starts.push_back(starts.back() + n);
    }
    return static_cast<std::size_t>(starts.back());
  }
  std::size_t windows_of(const std::vector<std::int32_t>& lengths) {
    for (std::size_t q = 0; q < lengths.size(); ++q)
      windows += (positions[q] + lengths[q]) / ratio - positions[q] / ratio;
    return static_cast<std::size_t>(windows);
  }
  void put(std::byte* to, float value) const {
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    std::memcpy(to, reinterpret_cast<const char*>(&bits) + (wide ? 0 : 2), item());
  }
  void name() {
    part = {static_cast<std::int32_t>(width), Element::F32, 0, ScaleCode::None, true, 0, 1, 0};
    const auto stride = row_width() * static_cast<std::int64_t>(item());
    call.kv = {kv.get(), stride, wide};
    call.score = {score.get(), stride, wide};
    call.rows = starts.back();
    call.ratio = ratio;
    call.overlap = overlap;
    call.width = width;
    call.norm_weight = {reinterpret_cast<const std::byte*>(weight.data()), 0, true};
    call.eps = 1e-6;
    call.layout = {&part, 1, 1, width * 4, width * 4, false, false, Element::F32};
    call.pages = pages.get();
    call.page_stride = width * 4;
    call.page_count = windows;
    call.carry = {carry.get(), ring_rows() * row_width() * 8, row_width() * 8};
    call.new_carry = {new_carry.get(), ring_rows() * row_width() * 8, row_width() * 8};
    call.requests = requests;
    call.starts = {reinterpret_cast<const std::byte*>(starts.data()), 4};
    call.positions = {reinterpret_cast<const std::byte*>(positions.data()), 4};
    call.traffic = &traffic;
  }
};

}  // namespace hkv
