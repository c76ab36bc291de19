// SPDX-License-Identifier: Apache-2.0
// Pools, buffers and lists for kernel tests, with guard bytes around all of them, and a model that copies byte by byte.
#pragma once
#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "kernels/cpu_level.h"
#include "kernels/paged_copy.h"

namespace hkv::kernel_test {

inline std::vector<CpuLevel> levels() {
  std::vector<CpuLevel> found;
  for (const CpuLevel level : {CpuLevel::Portable, CpuLevel::Avx2, CpuLevel::Avx512}) {
    if (cpu_level_supported(level)) found.push_back(level);
  }
  return found;
}

// Bytes of their own at an offset from a line, between guards that must not change.
class Guarded {
 public:
  Guarded(std::size_t bytes, std::size_t offset, std::mt19937_64& random)
      : bytes_(bytes), all_(bytes + 2 * guard + 64 + offset) {
    std::uint64_t next = random();  // a draw a byte would take longer than the copies
    for (auto& byte : all_) {
      next = next * 6364136223846793005u + 1442695040888963407u;
      byte = static_cast<std::byte>(next >> 56);
    }
    first_ = guard + (0 - reinterpret_cast<std::uintptr_t>(all_.data() + guard)) % 64 + offset;
  }
  std::byte* data() { return all_.data() + first_; }
  const std::byte* data() const { return all_.data() + first_; }
  std::size_t size() const { return bytes_; }
  // All bytes, guards too; data() is at first() of them.
  std::vector<std::byte> copy() const { return all_; }
  std::size_t first() const { return first_; }

 private:
  static constexpr std::size_t guard = 192;
  std::size_t bytes_, first_ = 0;
  std::vector<std::byte> all_;
};

// One random group of a copy, and everything that it points to.
struct World {
  PageRows page;
  std::int64_t pages = 0, page_stride = 0;
  std::vector<Guarded> pools;
  std::vector<PoolLayer> layers;
  std::vector<std::int64_t> ids, rows;
  std::vector<std::int32_t> narrow_ids, narrow_rows;
  std::optional<Guarded> buffer, status_bytes;
  std::vector<std::uint64_t> counts, expected;
  PagedCopy copy;
};

inline std::int64_t below(std::mt19937_64& random, std::int64_t bound) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(bound));
}

// Rows long enough to be streamed, of any length.
inline PageRows long_rows(std::mt19937_64& random) {
  PageRows page{1 + below(random, 3), 1024 + below(random, 3000), 0, below(random, 2) * below(random, 700),
                0};
  page.row_stride = page.row_bytes + below(random, 2) * below(random, 90);
  page.footer_offset = page.rows * page.row_stride + below(random, 2) * below(random, 90);
  return page;
}

inline PageRows random_page(std::mt19937_64& random) {
  PageRows page;
  switch (below(random, 7)) {
    case 0: page = {64, 576, 576, 8, 64 * 576}; break;             // scales behind the rows
    case 1: page = {1, 4096 << below(random, 3), 0, 0, 0}; break;  // one piece
    case 2: page = {64, 132, 132, 0, 0}; break;
    case 3: page = {3, 584, 640, 0, 0}; break;          // rows apart
    case 4: page = {5, 64, 64, 4, 5 * 64 + 60}; break;  // footers apart
    case 5: page = {1 + below(random, 9), 1 + below(random, 700), 0, below(random, 9), 0}; break;
    default: page = {2, 584, 584, 0, 0}; break;
  }
  if (page.row_stride == 0) page.row_stride = page.row_bytes;
  if (page.footer_offset == 0) page.footer_offset = page.rows * page.row_stride;
  return page;
}

inline std::int64_t extent_of(const PageRows& page) {
  const std::int64_t rows_end = (page.rows - 1) * page.row_stride + page.row_bytes;
  return std::max(rows_end, page.footer_offset + page.rows * page.footer_bytes);
}

// Draws a group. `unique`: no piece twice, as scatter asks. `large`: enough of it to be streamed and shared by threads.
inline World random_world(std::mt19937_64& random, bool unique, bool by_row, bool verified,
                          bool large = false) {
  World w;
  w.page = large ? long_rows(random) : random_page(random);
  w.pages = large ? 500 : 1 + below(random, 24);
  w.page_stride = extent_of(w.page) + (below(random, 2) != 0 ? 16 * below(random, 9) : 0);
  const auto layers = static_cast<std::int32_t>(1 + below(random, 4));
  const std::size_t offsets[] = {0, 16, 48, 8, 1};
  for (std::int32_t i = 0; i < layers; ++i) {
    w.pools.emplace_back(static_cast<std::size_t>(w.pages * w.page_stride), offsets[random() % 5], random);
  }
  for (Guarded& pool : w.pools) w.layers.push_back({pool.data(), w.page_stride});
  const std::int64_t wanted = large ? 700 : below(random, 40);
  std::vector<std::vector<bool>> taken(w.pages, std::vector<bool>(w.page.rows));
  for (std::int64_t i = 0; i < wanted; ++i) {
    const std::int64_t id = below(random, 8) == 0 ? -1 : below(random, w.pages);
    const std::int64_t row = by_row ? (below(random, 8) == 0 ? -1 : below(random, w.page.rows)) : 0;
    if (unique && id >= 0 && row >= 0) {
      if (taken[id][row]) continue;
      taken[id][row] = true;
    }
    w.ids.push_back(id);
    w.rows.push_back(row);
  }
  w.narrow_ids.assign(w.ids.begin(), w.ids.end());
  w.narrow_rows.assign(w.rows.begin(), w.rows.end());
  PagedCopy& copy = w.copy;
  copy.layers = w.layers.data();
  copy.layer_count = layers;
  copy.page = w.page;
  copy.pieces.wide = below(random, 2) != 0;
  copy.pieces.page_ids = copy.pieces.wide ? static_cast<const void*>(w.ids.data()) : w.narrow_ids.data();
  if (by_row)
    copy.pieces.rows = copy.pieces.wide ? static_cast<const void*>(w.rows.data()) : w.narrow_rows.data();
  copy.pieces.count = static_cast<std::int64_t>(w.ids.size());
  copy.pieces.null_page = below(random, 2) != 0 ? below(random, w.pages) : -1;
  copy.zero_missing = below(random, 2) != 0;
  const std::int64_t bytes = copy.piece_bytes() * copy.pieces.count * layers;
  w.buffer.emplace(static_cast<std::size_t>(bytes), offsets[random() % 5], random);
  copy.buffer = w.buffer->data();
  w.status_bytes.emplace(w.ids.size() * sizeof(std::int32_t), 0, random);
  copy.status = reinterpret_cast<std::int32_t*>(w.status_bytes->data());
  if (verified) {
    for (std::int64_t i = 0; i < w.pages; ++i) w.counts.push_back(random());
    for (const std::int64_t id : w.ids)
      w.expected.push_back(id < 0 ? 0 : w.counts[id] + (below(random, 4) == 0));
    copy.handouts = w.counts.data();
    copy.expected = w.expected.data();
  }
  return w;
}

// The model: what each byte of pool and buffer is after the copy, one after another.
inline std::int64_t place_in_page(const PagedCopy& copy, std::int64_t piece, std::int64_t byte) {
  const PageRows& page = copy.page;
  const bool by_row = copy.pieces.rows != nullptr;
  const std::int64_t rows = by_row ? 1 : page.rows, first = by_row ? copy.pieces.row(piece) : 0;
  if (byte < rows * page.row_bytes) {
    return (first + byte / page.row_bytes) * page.row_stride + byte % page.row_bytes;
  }
  return page.footer_offset + first * page.footer_bytes + (byte - rows * page.row_bytes);
}

inline CopyStatus model_status(const PagedCopy& copy, std::int64_t piece) {
  const std::int64_t id = copy.pieces.page(piece);
  if (id == -1 || id == copy.pieces.null_page) return CopyStatus::Skipped;
  if (copy.pieces.rows != nullptr && copy.pieces.row(piece) == -1) return CopyStatus::Skipped;
  if (copy.handouts != nullptr && copy.handouts[id] != copy.expected[piece]) return CopyStatus::Stale;
  return CopyStatus::Ok;
}

template <class Each>
void model_copy(const PagedCopy& copy, Each each) {
  for (std::int32_t layer = 0; layer < copy.layer_count; ++layer) {
    for (std::int64_t i = 0; i < copy.pieces.count; ++i) {
      const bool copied = model_status(copy, i) == CopyStatus::Ok;
      for (std::int64_t b = 0; b < copy.piece_bytes(); ++b) {
        const std::int64_t in_buffer = (layer * copy.pieces.count + i) * copy.piece_bytes() + b;
        const std::int64_t in_pool =
            copied ? copy.pieces.page(i) * copy.layers[layer].page_stride + place_in_page(copy, i, b) : -1;
        each(layer, in_buffer, in_pool);
      }
    }
  }
}

}  // namespace hkv::kernel_test
