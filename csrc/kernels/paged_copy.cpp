// SPDX-License-Identifier: Apache-2.0
// The CPU's gather and scatter: batches of pieces, each batch's layers and pieces copied side by side in lanes.
#include "kernels/paged_copy.h"

#include <algorithm>
#include <array>

#include "base/handouts.h"
#include "kernels/cpu_level.h"
#include "kernels/piece_shape.h"
#include "kernels/workers.h"

namespace hkv {
namespace {

enum class Direction { Gather, Scatter };

// Copies of less than this stay in the caches: whoever asked for them reads them next.
constexpr std::int64_t stream_from_bytes = std::int64_t{1} << 20;
// Shorter stretches are streamed badly: too much of them are parts of lines.
constexpr std::int64_t stream_stretch_bytes = 1024;
// What makes another thread worth waking, and what a thread takes at a time.
constexpr std::int64_t thread_bytes = std::int64_t{1} << 19;
constexpr std::int64_t share_bytes = std::int64_t{1} << 18;
// Pieces up to this are too short for the hardware to see a stream in them: they are fetched so many pieces ahead.
// Side by side they would only disturb the order in which the buffer is written (bench/gather.cpp, rows).
constexpr std::int64_t short_bytes = 2048;
constexpr std::int64_t ahead_pieces = 8;

constexpr int lanes = CopyPath::lanes;

// The copy of one group, shared out by pieces.
class GroupCopy {
 public:
  GroupCopy(const PagedCopy& copy, Direction direction, const CopyPath& path, bool large)
      : copy_(copy),
        shape_(piece_shape(copy.page, copy.pieces.rows == nullptr)),
        path_(path),
        piece_bytes_(copy.piece_bytes()),
        direction_(direction),
        large_(large) {}

  std::int64_t pieces() const { return copy_.pieces.count; }
  std::int64_t pieces_at_a_time() const {
    const std::int64_t bytes = std::max<std::int64_t>(piece_bytes_ * copy_.layer_count * lanes, 1);
    return std::max<std::int64_t>(share_bytes / bytes, 1) * lanes;
  }

  // Pieces [from, to): long ones side by side, short ones one after another, each fetched well before its turn.
  void operator()(std::int64_t from, std::int64_t to) const noexcept {
    if (piece_bytes_ <= short_bytes) {
      for (std::int64_t i = from; i < std::min(to, from + ahead_pieces); ++i) fetch(i);
      for (std::int64_t i = from; i < to; ++i) {
        if (i + ahead_pieces < to) fetch(i + ahead_pieces);
        batch(i, 1);
      }
    } else {
      for (std::int64_t i = from; i < to; i += lanes) {
        batch(i, static_cast<int>(std::min<std::int64_t>(lanes, to - i)));
      }
    }
    path_.fence();
  }

 private:
  struct Lane {
    std::byte* page;
    std::int64_t row;
    std::byte* packed;
  };

  Lane lane(std::int32_t layer, std::int64_t piece) const {
    const PoolLayer& pool = copy_.layers[layer];
    return {pool.base + copy_.pieces.page(piece) * pool.page_stride, copy_.pieces.row(piece),
            packed(layer, piece)};
  }
  std::byte* packed(std::int32_t layer, std::int64_t piece) const {
    return copy_.buffer + (layer * copy_.pieces.count + piece) * piece_bytes_;
  }

  // Inlined by force: GCC takes a function that does nothing but prefetch for one that does nothing.
  [[gnu::always_inline]] void fetch(std::int64_t piece) const {
    if (direction_ == Direction::Scatter || copy_.pieces.is_missing(piece)) return;
    for (std::int32_t layer = 0; layer < copy_.layer_count; ++layer) {
      const Lane at = lane(layer, piece);
      for (int k = 0; k < shape_.count; ++k) {
        const Stretch& stretch = shape_.stretches[k];
        const std::byte* first = at.page + stretch.page_offset + at.row * shape_.row_step[k];
        for (std::int64_t line = 0; line < stretch.bytes; line += 64) __builtin_prefetch(first + line);
      }
    }
  }

  void batch(std::int64_t first, int count) const {
    std::array<std::int64_t, lanes> present{};
    int n = 0;
    for (std::int64_t piece = first; piece < first + count; ++piece) {
      const CopyStatus before = status_before(piece);
      if (before == CopyStatus::Ok) {
        present[n++] = piece;
      } else {
        give_up(piece, before);
      }
    }
    std::array<Lane, lanes> filled;
    int fill = 0;
    for (std::int32_t layer = 0; layer < copy_.layer_count; ++layer) {
      for (int k = 0; k < n; ++k) {
        filled[fill++] = lane(layer, present[k]);
        if (fill < lanes) continue;
        move(filled.data(), fill);
        fill = 0;
      }
    }
    if (fill != 0) move(filled.data(), fill);
    for (int k = 0; k < n; ++k) finish(present[k]);
  }

  void move(const Lane* filled, int count) const {
    std::byte* to[lanes];
    const std::byte* from[lanes];
    for (int which = 0; which < shape_.count; ++which) {
      const Stretch& stretch = shape_.stretches[which];
      const bool stream = large_ && stretch.bytes >= stream_stretch_bytes;
      for (std::int64_t repeat = 0; repeat < stretch.repeats; ++repeat) {
        for (int k = 0; k < count; ++k) {
          std::byte* const in_page = filled[k].page + stretch.page_offset + repeat * stretch.page_step +
                                     filled[k].row * shape_.row_step[which];
          std::byte* const in_buffer = filled[k].packed + stretch.packed_offset + repeat * stretch.bytes;
          to[k] = direction_ == Direction::Gather ? in_buffer : in_page;
          from[k] = direction_ == Direction::Gather ? in_page : in_buffer;
        }
        path_.copy(to, from, count, static_cast<std::size_t>(stretch.bytes), stream);
      }
    }
  }

  CopyStatus status_before(std::int64_t piece) const {
    if (copy_.pieces.is_missing(piece)) return CopyStatus::Skipped;
    if (copy_.handouts == nullptr) return CopyStatus::Ok;
    const std::uint64_t now = handout_count(copy_.handouts + copy_.pieces.page(piece));
    return now == copy_.expected[piece] ? CopyStatus::Ok : CopyStatus::Stale;
  }

  void finish(std::int64_t piece) const {
    if (copy_.handouts != nullptr &&
        handout_count_after(copy_.handouts + copy_.pieces.page(piece)) != copy_.expected[piece]) {
      path_.fence();  // zeros follow what was streamed to the same place
      return give_up(piece, CopyStatus::Changed);
    }
    tell(piece, CopyStatus::Ok);
  }

  // A piece that is not copied, or not to be trusted: no byte of it gets out.
  void give_up(std::int64_t piece, CopyStatus why) const {
    tell(piece, why);
    if (direction_ == Direction::Scatter || !copy_.zero_missing) return;
    for (std::int32_t layer = 0; layer < copy_.layer_count; ++layer) {
      path_.zero(packed(layer, piece), static_cast<std::size_t>(piece_bytes_),
                 large_ && piece_bytes_ >= stream_stretch_bytes);
    }
  }

  void tell(std::int64_t piece, CopyStatus status) const {
    if (copy_.status != nullptr) copy_.status[piece] = static_cast<std::int32_t>(status);
  }

  const PagedCopy& copy_;
  PieceShape shape_;
  const CopyPath& path_;
  std::int64_t piece_bytes_;
  Direction direction_;
  bool large_;
};

void copy_groups(const PagedCopy* groups, int group_count, int threads, Direction direction) noexcept {
  std::int64_t total = 0;
  for (int g = 0; g < group_count; ++g) {
    total += groups[g].piece_bytes() * groups[g].pieces.count * groups[g].layer_count;
  }
  const auto worth = static_cast<int>(std::min<std::int64_t>(threads, total / thread_bytes));
  for (int g = 0; g < group_count; ++g) {
    const GroupCopy copy(groups[g], direction, copy_path(), total >= stream_from_bytes);
    share_out(copy.pieces(), copy.pieces_at_a_time(), worth, copy);
  }
}

}  // namespace

void gather(const PagedCopy* groups, int group_count, int threads) noexcept {
  copy_groups(groups, group_count, threads, Direction::Gather);
}

void scatter(const PagedCopy* groups, int group_count, int threads) noexcept {
  copy_groups(groups, group_count, threads, Direction::Scatter);
}

}  // namespace hkv
