// SPDX-License-Identifier: Apache-2.0
// Gather and scatter on a device: a team of threads for each piece, bytes through registers.
//
// A thread has a few loads under way before it stores the first, and a multiprocessor has many teams, so that
// several pages are in flight. Hand-out counts are read by one thread of the team; the barriers of the team carry what
// it saw to the loads of the others, and their loads before its second look.
#pragma once
#include "kernels/device_pieces.cuh"

namespace hkv {

enum class DeviceDirection { Gather, Scatter };

// Where the words of a thread lie in a page whose rows are apart: a division for each stretch and none for each word.
class RowCursor {
 public:
  HKV_DEVICE RowCursor(unsigned word, unsigned step, unsigned row_words, unsigned width, unsigned page_step)
      : row_words_(row_words),
        column_(word % row_words),
        offset_(word / row_words * page_step + column_ * width),
        column_step_(step % row_words),
        offset_step_(step / row_words * page_step + column_step_ * width),
        next_row_(page_step - row_words * width) {}

  // Returns: the offset of this word, and goes on to the thread's next one.
  HKV_DEVICE unsigned next() {
    const unsigned offset = offset_;
    offset_ += offset_step_;
    column_ += column_step_;
    if (column_ >= row_words_) {
      column_ -= row_words_;
      offset_ += next_row_;
    }
    return offset;
  }

 private:
  unsigned row_words_, column_, offset_, column_step_, offset_step_, next_row_;
};

// Words between a stretch in a page and one in a buffer. Offsets within a page have 32 bits.
template <class Word, DeviceDirection direction>
HKV_DEVICE void move_words(std::byte* in_page, std::byte* in_buffer, const Stretch& stretch, unsigned rank,
                           unsigned step) {
  constexpr unsigned width = sizeof(Word), in_flight = 4;
  const unsigned row_words = static_cast<unsigned>(stretch.bytes) / width;
  const unsigned words = row_words * static_cast<unsigned>(stretch.repeats);
  RowCursor cursor(rank, step, row_words, width, static_cast<unsigned>(stretch.page_step));
  for (unsigned from = rank; from < words; from += step * in_flight) {
    Word held[in_flight];
    unsigned in_page_at[in_flight];
    HKV_UNROLL
    for (unsigned k = 0; k < in_flight; ++k) {
      const unsigned w = from + k * step;
      in_page_at[k] = cursor.next();
      if (w >= words) continue;
      held[k] = simt::load(reinterpret_cast<const Word*>(
          direction == DeviceDirection::Gather ? in_page + in_page_at[k] : in_buffer + w * width));
    }
    HKV_UNROLL
    for (unsigned k = 0; k < in_flight; ++k) {
      const unsigned w = from + k * step;
      if (w >= words) continue;
      simt::store(reinterpret_cast<Word*>(direction == DeviceDirection::Gather ? in_buffer + w * width
                                                                               : in_page + in_page_at[k]),
                  held[k]);
    }
  }
}

template <class Word>
HKV_DEVICE void zero_words(std::byte* to, std::int64_t bytes, unsigned rank, unsigned step) {
  const unsigned words = static_cast<unsigned>(bytes) / static_cast<unsigned>(sizeof(Word));
  for (unsigned w = rank; w < words; w += step) simt::store(reinterpret_cast<Word*>(to) + w, Word{});
}

template <DeviceDirection direction, class Team>
class PieceCopy {
 public:
  HKV_DEVICE PieceCopy(const CopyLaunch& launch, const DevicePagedCopy& group, Team& team)
      : launch_(launch), group_(group), team_(team) {}

  HKV_DEVICE void item(std::int64_t number) {
    const std::int64_t count = group_.pieces.count;
    const bool verified = group_.handouts != nullptr;
    const std::int64_t piece = verified ? number : number % count;
    const auto first = static_cast<std::int32_t>(verified ? 0 : number / count);
    const std::int32_t end = verified ? group_.pieces.layer_count : first + 1;
    const PiecePlace at = piece_place(group_.pieces, piece);
    CopyStatus status = at.status;
    if (verified && status == CopyStatus::Ok) status = compare(at.page, piece, CopyStatus::Stale);
    if (status == CopyStatus::Ok) {
      for (std::int32_t layer = first; layer < end; ++layer) copy(layer, at, piece);
      if (verified) {
        team_.sync();
        status = compare(at.page, piece, CopyStatus::Changed);
      }
    }
    if (direction == DeviceDirection::Gather && status != CopyStatus::Ok && group_.zero_missing) {
      for (std::int32_t layer = first; layer < end; ++layer) zero(packed(layer, piece));
    }
    if (first == 0 && team_.rank() == 0 && group_.status != nullptr) {
      simt::store(group_.status + piece, static_cast<std::int32_t>(status));
    }
  }

 private:
  HKV_DEVICE std::byte* packed(std::int32_t layer, std::int64_t piece) const {
    return group_.buffer + (layer * group_.pieces.count + piece) * group_.piece_bytes;
  }

  // Returns: Ok, or `else_status` where the live count is not the expected one; the same for all threads.
  HKV_DEVICE CopyStatus compare(std::int64_t page, std::int64_t piece, CopyStatus else_status) {
    int same = 1;
    if (team_.rank() == 0) {
      const std::uint64_t* count = group_.handouts + page;
      const std::uint64_t now =
          else_status == CopyStatus::Stale ? simt::load_acquire(count) : simt::load_after_reads(count);
      same = now == simt::load(group_.expected + piece);
    }
    return team_.broadcast(same) != 0 ? CopyStatus::Ok : else_status;
  }

  HKV_DEVICE void copy(std::int32_t layer, const PiecePlace& at, std::int64_t piece) {
    const PoolLayer& pool = launch_.layers[group_.pieces.first_layer + layer];
    std::byte* const page = pool.base + at.page * pool.page_stride;
    std::byte* const buffer = packed(layer, piece);
    for (int k = 0; k < group_.shape.count; ++k) {
      const Stretch& stretch = group_.shape.stretches[k];
      move(page + stretch.page_offset + at.row * group_.shape.row_step[k], buffer + stretch.packed_offset,
           stretch);
    }
  }

  HKV_DEVICE void move(std::byte* in_page, std::byte* in_buffer, const Stretch& stretch) {
    const unsigned rank = team_.rank(), step = team_.size();
    switch (group_.unit) {  // the same for all threads of the team
      case 16: move_words<simt::Wide, direction>(in_page, in_buffer, stretch, rank, step); break;
      case 8: move_words<std::uint64_t, direction>(in_page, in_buffer, stretch, rank, step); break;
      case 4: move_words<std::uint32_t, direction>(in_page, in_buffer, stretch, rank, step); break;
      case 2: move_words<std::uint16_t, direction>(in_page, in_buffer, stretch, rank, step); break;
      default: move_words<std::uint8_t, direction>(in_page, in_buffer, stretch, rank, step); break;
    }
  }

  HKV_DEVICE void zero(std::byte* to) {
    const std::int64_t bytes = group_.piece_bytes;
    switch (group_.unit) {
      case 16: zero_words<simt::Wide>(to, bytes, team_.rank(), team_.size()); break;
      case 8: zero_words<std::uint64_t>(to, bytes, team_.rank(), team_.size()); break;
      case 4: zero_words<std::uint32_t>(to, bytes, team_.rank(), team_.size()); break;
      case 2: zero_words<std::uint16_t>(to, bytes, team_.rank(), team_.size()); break;
      default: zero_words<std::uint8_t>(to, bytes, team_.rank(), team_.size()); break;
    }
  }

  const CopyLaunch& launch_;
  const DevicePagedCopy& group_;
  Team& team_;
};

template <DeviceDirection direction, class Team>
HKV_DEVICE void copy_pieces(const CopyLaunch& launch) {
  Team team;
  for (std::int64_t item = team.number(); item < launch.items; item += team.teams()) {
    const DevicePagedCopy& group = group_of(launch, item);
    PieceCopy<direction, Team>(launch, group, team).item(item - group.pieces.first_item);
  }
}

}  // namespace hkv
