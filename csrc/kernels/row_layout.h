// SPDX-License-Identifier: Apache-2.0
// How the channels of a row become bytes, and where the bytes of a row lie in a page.
//
// A row is described packed: `data_bytes` that lie with the row, then the rest, which lies in the footer of its page.
// Row k of a page has its data at k * data_bytes and the rest at page_rows * data_bytes + k * (row_bytes - data_bytes).
//
// Thread safety: plain data.
#pragma once
#include <cstdint>

namespace hkv {

enum class Element : std::int32_t { E4m3 = 0, E2m1 = 1, Bf16 = 2, F32 = 3 };
enum class ScaleCode : std::int32_t { None = 0, Ue8m0 = 1, F32 = 2, E4m3 = 3 };

// Consecutive channels of one element type. Offsets are bytes of the packed row.
struct RowPart {
  std::int32_t channels = 0;
  Element element = Element::F32;
  std::int32_t offset = 0;
  ScaleCode scale = ScaleCode::None;
  bool power_of_two = true;  // the scale is 2^ceil(log2(a / limit)), else a / limit
  double floor = 0;          // smallest absolute maximum a of a tile
  std::int32_t tile = 1;     // channels that share a scale
  std::int32_t scale_offset = 0;
};

struct RowLayout {
  const RowPart* parts = nullptr;  // in the order of their channels
  std::int32_t part_count = 0;
  std::int32_t page_rows = 1;
  std::int64_t row_bytes = 0;
  std::int64_t data_bytes = 0;
  bool hadamard = false;  // channels are rotated before they are quantised; their number is a power of two
  bool rounded = false;   // channels are rounded to `rounded_to` before the quantiser sees them
  Element rounded_to = Element::F32;

  constexpr std::int64_t footer_bytes() const { return row_bytes - data_bytes; }
};

}  // namespace hkv
