// SPDX-License-Identifier: Apache-2.0
#include "kernels/compress_check.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "kernels/place_set.h"

namespace hkv {
namespace {

constexpr std::int64_t position_limit = std::int64_t{1} << 31;

[[noreturn]] void refuse(const char* argument, std::string expected, std::string got) {
  throw Error{ErrorCode::KernelContract, argument, std::move(expected), std::move(got)};
}

void check_requests(const CompressTail& call) {
  bool ascending = call.starts[0] == 0 && call.starts[call.requests] == call.rows;
  for (std::int64_t q = 0; q < call.requests; ++q) ascending &= call.starts[q] <= call.starts[q + 1];
  if (!ascending) {
    std::string got;
    for (std::int64_t q = 0; q <= std::min<std::int64_t>(call.requests, 7); ++q) {
      got += (q == 0 ? "" : ", ") + std::to_string(call.starts[q]);
    }
    refuse("starts", "ascending from 0 to " + std::to_string(call.rows),
           call.requests > 7 ? got + ", ..." : got);
  }
  for (std::int64_t q = 0; q < call.requests; ++q) {
    if (call.position(q) < 0 || call.last(q) >= position_limit) {
      refuse("positions", "0 or more, and below 2**31 at the last row", std::to_string(call.position(q)));
    }
  }
}

void check_page_ids(const CompressTail& call) {
  for (std::int64_t q = 0; q < call.requests; ++q) {
    const IntList ids{call.page_ids.base + q * call.page_id_stride, call.page_ids.stride};
    for (std::int64_t column = 0; column < call.page_columns; ++column) {
      if (ids[column] >= -1 && ids[column] < call.page_count) continue;
      refuse("page_ids", "-1 <= id < " + std::to_string(call.page_count), std::to_string(ids[column]));
    }
  }
}

void check_slots(const CompressTail& call) {
  std::int64_t windows = 0;
  for (std::int64_t q = 0; q < call.requests; ++q) windows += call.end_entry(q) - call.first_entry(q);
  const std::int64_t places = call.page_count * call.layout.page_rows;
  if (call.page_ids.base == nullptr) {
    if (windows <= places) return;
    refuse("out", "room for " + std::to_string(windows) + " rows", std::to_string(places) + " rows");
  }
  check_page_ids(call);
  thread_local PlaceSet taken;
  taken.reset(windows);
  bool twice = false;
  for (std::int64_t q = 0, window = 0; q < call.requests; ++q) {
    for (std::int64_t entry = call.first_entry(q); entry < call.end_entry(q); ++entry, ++window) {
      const std::int64_t slot = entry_slot(call, q, entry, window);
      if (slot == slot_missing) {
        refuse("page_ids", "a column for every entry that is written",
               std::to_string(call.page_columns) + " columns, entry " + std::to_string(entry));
      }
      if (slot >= 0 && !taken.insert(slot)) twice = true;
    }
  }
  if (twice) refuse("page_ids", "each row for one entry", "a row for two");
}

// A start in the middle of things needs what was carried; the one exception is a replay whose first window is masked.
void check_needed(const CompressTail& call) {
  if (call.carry.base != nullptr) return;
  for (std::int64_t q = 0; q < call.requests; ++q) {
    const std::int64_t position = call.position(q);
    const bool inside = position % call.ratio != 0, drawn = call.overlap && position > 0;
    const bool replayed = !inside && position + call.ratio <= std::min(call.mask(q), call.last(q));
    if ((inside || drawn) && !replayed) {
      refuse("carry", "the ring of request " + std::to_string(q) + " at " + std::to_string(position), "None");
    }
  }
}

}  // namespace

void check_compress(const CompressTail& call) {
  check_requests(call);
  check_slots(call);
  check_needed(call);
}

}  // namespace hkv
