// SPDX-License-Identifier: Apache-2.0
#include "kernels/piece_check.h"

#include "base/check.h"
#include "kernels/place_set.h"

namespace hkv {
namespace {

[[noreturn]] void refuse(const char* list, const std::string& suffix, std::string expected, std::int64_t got,
                         std::int64_t at) {
  throw Error{ErrorCode::KernelContract, list + suffix, std::move(expected),
              std::to_string(got) + " at index " + std::to_string(at)};
}

void check_unique(const PieceList& pieces, std::int64_t rows, const std::string& suffix) {
  thread_local PlaceSet places;
  places.reset(pieces.count);
  for (std::int64_t i = 0; i < pieces.count; ++i) {
    if (pieces.is_missing(i)) continue;
    if (places.insert(pieces.rows == nullptr ? pieces.page(i) : pieces.page(i) * rows + pieces.row(i)))
      continue;
    const char* const once = pieces.rows == nullptr ? "each page once" : "each row of a page once";
    refuse("page_ids", suffix, once, pieces.page(i), i);
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
