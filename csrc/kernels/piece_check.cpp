// SPDX-License-Identifier: Apache-2.0
#include "kernels/piece_check.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "base/check.h"

namespace hkv {
namespace {

[[noreturn]] void refuse(const char* list, const std::string& suffix, std::string expected, std::int64_t got,
                         std::int64_t at) {
  throw Error{ErrorCode::KernelContract, list + suffix, std::move(expected),
              std::to_string(got) + " at index " + std::to_string(at)};
}

void check_unique(const PieceList& pieces, std::int64_t rows, const std::string& suffix) {
  constexpr std::uint64_t golden = 0x9e3779b97f4a7c15;
  // Open addressing; at most half of the places are taken. 0 is free, so keys are one higher.
  thread_local std::vector<std::uint64_t> places;
  const auto size = std::bit_ceil(static_cast<std::uint64_t>(pieces.count) * 2);
  if (places.size() < size) places.resize(size);
  std::fill_n(places.begin(), size, 0);
  const int shift = 64 - std::countr_zero(size);
  for (std::int64_t i = 0; i < pieces.count; ++i) {
    if (pieces.is_missing(i)) continue;
    const std::int64_t place =
        pieces.rows == nullptr ? pieces.page(i) : pieces.page(i) * rows + pieces.row(i);
    const std::uint64_t key = static_cast<std::uint64_t>(place) + 1;
    std::uint64_t at = key * golden >> shift;
    for (; places[at] != 0; at = (at + 1) & (size - 1)) {
      if (places[at] != key) continue;
      const char* const once = pieces.rows == nullptr ? "each page once" : "each row of a page once";
      refuse("page_ids", suffix, once, pieces.page(i), i);
    }
    places[at] = key;
  }
}

}  // namespace

void check_pieces(const PieceList& pieces, std::int64_t pages, std::int64_t rows, bool unique,
                  const std::string& suffix) {
  for (std::int64_t i = 0; i < pieces.count; ++i) {
    const std::int64_t page = pieces.page(i), row = pieces.row(i);
    if (page < -1 || page >= pages) {
      refuse("page_ids", suffix, "-1 or a page of the pool, below " + std::to_string(pages), page, i);
    }
    if (row < -1 || row >= rows) {
      refuse("rows", suffix, "-1 or a row of a page, below " + std::to_string(rows), row, i);
    }
  }
  if (unique && pieces.count > 1) check_unique(pieces, rows, suffix);
}

}  // namespace hkv
