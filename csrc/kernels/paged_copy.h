// SPDX-License-Identifier: Apache-2.0
// Gather and scatter: pages, or rows of pages, between paged pools and buffers in which they lie one after another.
//
// docs/kernels.md defines every byte and code. The structs are plain data: the same go to a device kernel.
//
// Thread safety: calls may run at the same time, on the same pools too as long as nobody writes what another touches.
// Invariants:
// 1. Nothing outside the pieces is written: padding of pages and rows keeps its bytes.
// 2. A piece has the status Ok only if its hand-out count was the expected one before its first byte was read and after
//    its last one was (base/handouts.h).
#pragma once
#include <cstddef>
#include <cstdint>

namespace hkv {

// One array of a pool: where page 0 is, and the bytes from page to page.
struct PoolLayer {
  std::byte* base = nullptr;
  std::int64_t page_stride = 0;
};

// How rows lie in a page: row i at i * row_stride, its footer at footer_offset + i * footer_bytes.
struct PageRows {
  std::int64_t rows = 1;
  std::int64_t row_bytes = 0;
  std::int64_t row_stride = 0;
  std::int64_t footer_bytes = 0;
  std::int64_t footer_offset = 0;

  constexpr std::int64_t packed_row_bytes() const { return row_bytes + footer_bytes; }
  constexpr std::int64_t packed_bytes() const { return rows * packed_row_bytes(); }
  // Whether the packed page lies in the page in one piece.
  constexpr bool in_one_piece() const {
    return (rows == 1 || row_stride == row_bytes) && (footer_bytes == 0 || footer_offset == rows * row_bytes);
  }
};

// Which pages, or rows of pages: a list of pieces. An id or row of -1, and the null page, is a missing piece.
struct PieceList {
  const void* page_ids = nullptr;  // int32 or int64
  const void* rows = nullptr;      // the same type; null: whole pages
  bool wide = false;               // whether both are int64
  std::int64_t count = 0;
  std::int64_t null_page = -1;
  std::int64_t pages = 0;  // of the pool: what a device, which cannot refuse, holds ids against

  std::int64_t page(std::int64_t i) const { return item(page_ids, i); }
  std::int64_t row(std::int64_t i) const { return rows == nullptr ? 0 : item(rows, i); }
  bool is_missing(std::int64_t i) const {
    const std::int64_t id = page(i);
    return id < 0 || id == null_page || row(i) < 0;
  }

 private:
  std::int64_t item(const void* list, std::int64_t i) const {
    return wide ? static_cast<const std::int64_t*>(list)[i] : static_cast<const std::int32_t*>(list)[i];
  }
};

enum class CopyStatus : std::int32_t { Ok = 0, Stale = 1, Changed = 2, Skipped = 3, OutOfRange = 4 };

// One group of a copy. The buffer is [layer_count, pieces.count, packed page or packed row].
struct PagedCopy {
  const PoolLayer* layers = nullptr;
  std::int32_t layer_count = 0;
  PageRows page;
  PieceList pieces;
  std::byte* buffer = nullptr;
  const std::uint64_t* handouts = nullptr;  // the live count of each page; null: not verified
  const std::uint64_t* expected = nullptr;  // of each piece
  std::int32_t* status = nullptr;           // of each piece; may be null where handouts is
  bool zero_missing = true;                 // gather: what is missing becomes zero

  std::int64_t piece_bytes() const {
    return pieces.rows == nullptr ? page.packed_bytes() : page.packed_row_bytes();
  }
};

// Copies out of pools into buffers. Requires: what docs/kernels.md asks for; ids were checked. Progress: finishes by
// itself; no allocation after the first call with as many threads.
void gather(const PagedCopy* groups, int group_count, int threads) noexcept;

// Copies out of buffers into pools. Requires: as gather, and no piece twice.
void scatter(const PagedCopy* groups, int group_count, int threads) noexcept;

}  // namespace hkv
