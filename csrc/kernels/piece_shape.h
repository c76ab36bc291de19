// SPDX-License-Identifier: Apache-2.0
// A piece of a paged copy as stretches of bytes: what every kernel that copies pages or rows walks over.
//
// Thread safety: plain data.
#pragma once
#include <cstdint>

#include "kernels/paged_copy.h"

namespace hkv {

// Bytes that lie in one piece both in the page and in the buffer, repeated: in the buffer one after another.
struct Stretch {
  std::int64_t page_offset = 0, packed_offset = 0, bytes = 0, repeats = 0, page_step = 0;
};

// The rows and the footers of one piece; those of row i start i * row_step further on in the page.
struct PieceShape {
  Stretch stretches[2];
  std::int64_t row_step[2] = {0, 0};
  std::int32_t count = 0;
};

// Returns: the shape of a whole page, or of one row and its footer.
constexpr PieceShape piece_shape(const PageRows& page, bool whole) {
  PieceShape shape;
  shape.count = 1;
  if (whole && page.in_one_piece()) {
    shape.stretches[0] = {0, 0, page.packed_bytes(), 1, 0};
    return shape;
  }
  if (!whole) {
    shape.stretches[0] = {0, 0, page.row_bytes, 1, 0};
  } else if (page.row_stride == page.row_bytes) {
    shape.stretches[0] = {0, 0, page.rows * page.row_bytes, 1, 0};
  } else {
    shape.stretches[0] = {0, 0, page.row_bytes, page.rows, page.row_stride};
  }
  shape.row_step[0] = page.row_stride;
  shape.row_step[1] = page.footer_bytes;
  if (page.footer_bytes != 0) {
    const std::int64_t rows = whole ? page.rows : 1;
    shape.stretches[1] = {page.footer_offset, rows * page.row_bytes, rows * page.footer_bytes, 1, 0};
    shape.count = 2;
  }
  return shape;
}

}  // namespace hkv
