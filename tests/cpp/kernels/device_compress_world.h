// SPDX-License-Identifier: Apache-2.0
// Random calls of tail compression in every row format, with memory of their own: the same for CPU and device.
#pragma once
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/compress.h"
#include "kernels/device_world.h"

namespace hkv::testing {

// A published row, or one of its kind.
struct RowForm {
  std::vector<RowPart> parts;
  std::int64_t row_bytes, data_bytes;
  bool hadamard = false;
  bool rounded = false;

  std::int64_t channels() const {
    std::int64_t sum = 0;
    for (const RowPart& part : parts) sum += part.channels;
    return sum;
  }
};

inline RowForm plain_form(Element element, std::int32_t channels) {
  const std::int64_t bytes = channels * (element == Element::F32 ? 4 : 2);
  return {{{channels, element, 0, ScaleCode::None, true, 0, 1, 0}}, bytes, bytes};
}

inline const std::vector<RowForm>& row_forms() {
  constexpr ScaleCode none = ScaleCode::None, ue8m0 = ScaleCode::Ue8m0;
  static const std::vector<RowForm> forms = {
      // fp8_ds_mla, fp8_ds_mla_v32, indexer_fp8, indexer_mxfp4, v41_fp8, v41_fp4
      {{{448, Element::E4m3, 0, ue8m0, true, 1e-4, 64, 576}, {64, Element::Bf16, 448, none, true, 0, 1, 0}},
       584,
       576},
      {{{512, Element::E4m3, 0, ScaleCode::F32, false, 1e-4, 128, 512},
        {64, Element::Bf16, 528, none, true, 0, 1, 0}},
       656,
       656},
      {{{128, Element::E4m3, 0, ScaleCode::F32, true, 1e-4, 128, 128}}, 132, 132},
      {{{128, Element::E2m1, 0, ue8m0, true, 6 * 0x1p-126, 32, 64}}, 68, 68, true},
      {{{512, Element::E4m3, 0, ue8m0, true, 1e-4, 32, 512}}, 528, 512},
      {{{512, Element::E2m1, 0, ScaleCode::E4m3, false, 6 * 0x1p-9, 16, 256}}, 288, 256},
      // The same kinds, narrow; tiles of 3 and 48 channels; a byte of padding at the end; values rounded first.
      {{{24, Element::E4m3, 0, ue8m0, true, 1e-4, 3, 24}, {6, Element::F32, 32, none, true, 0, 1, 0}},
       57,
       56,
       false,
       true},
      {{{96, Element::E4m3, 0, ScaleCode::F32, false, 1e-4, 48, 96}}, 104, 104},
      {{{16, Element::E2m1, 0, ScaleCode::E4m3, false, 6 * 0x1p-9, 2, 8}}, 16, 8, true, true},
      plain_form(Element::Bf16, 512),
      plain_form(Element::F32, 40),
      plain_form(Element::F32, 64),
      plain_form(Element::Bf16, 33),
      plain_form(Element::F32, 1),
  };
  return forms;
}

// What one random call looks like.
struct CompressCase {
  RowForm form;
  std::int64_t ratio = 1;
  bool overlap = false, kv_wide = false, score_wide = false, weight_wide = false;
  bool in_place = false, by_page_ids = true, carried = true, kept = true, masked = false;
  std::int64_t rope_dims = 0;
  bool interleaved = true;
  std::int32_t page_rows = 1;
  std::int64_t padding = 0;  // bytes between rows of kv and score, and between pages
  std::int64_t unit = 16;    // what the addresses of rows and rings are multiples of
  float score_spread = 2;
  std::uint64_t seed = 1;
  std::vector<std::int32_t> starts{0}, positions, mask, page_ids;
  std::int64_t columns = 0, pages = 0;

  std::int64_t width() const { return form.channels(); }
  std::int64_t row_width() const { return width() * (overlap ? 2 : 1); }
  std::int64_t ring_rows() const { return ratio * (overlap ? 2 : 1); }
  std::int64_t requests() const { return static_cast<std::int64_t>(positions.size()); }
  std::int64_t rows() const { return starts.back(); }
  std::int64_t ring_bytes() const { return ring_rows() * row_width() * 8; }
  std::int64_t page_bytes() const { return page_rows * form.row_bytes; }
  std::int64_t page_stride() const { return (page_bytes() + 15) / 16 * 16 + padding; }
  std::int64_t last(std::size_t q) const { return positions[q] + starts[q + 1] - starts[q]; }
  std::int64_t windows() const {
    std::int64_t sum = 0;
    for (std::size_t q = 0; q < positions.size(); ++q) sum += last(q) / ratio - positions[q] / ratio;
    return sum;
  }

  void add(std::int32_t length, std::int32_t position, std::int32_t masked_below = 0) {
    starts.push_back(starts.back() + length);
    positions.push_back(position);
    mask.push_back(masked_below);
  }
  // Gives every entry a row: of its request's pages, shuffled, some of them not held; or in order.
  void place(Random& random) {
    if (!by_page_ids) {
      pages = windows() / page_rows + 1;
      return;
    }
    columns = 1;
    for (std::size_t q = 0; q < positions.size(); ++q)
      columns = std::max(columns, last(q) / ratio / page_rows + 1);
    pages = requests() * columns + 2;
    std::vector<std::int32_t> all(static_cast<std::size_t>(pages));
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), random);
    page_ids.assign(all.begin(), all.begin() + requests() * columns);
    for (std::int32_t& id : page_ids) {
      if (between(random, 0, 9) == 0) id = -1;
    }
  }
};

// The memory of one call: the same from the same seed.
struct CompressMemory {
  Bytes kv, score, weight, carry, new_carry, pages;
  std::vector<double> frequencies;

  explicit CompressMemory(const CompressCase& one)
      : kv(one.rows() * stride(one, one.kv_wide), one.unit),
        score(one.rows() * stride(one, one.score_wide), one.unit),
        weight(one.width() * (one.weight_wide ? 4 : 2), 16),
        carry(one.requests() * one.ring_bytes(), one.unit),
        new_carry(one.requests() * one.ring_bytes(), one.unit),
        pages(one.pages * one.page_stride(), 16) {
    Random random(one.seed);
    fill(kv, one.kv_wide, 1, random);
    fill(score, one.score_wide, one.score_spread, random);
    fill(weight, one.weight_wide, 1, random);
    fill(carry, true, one.score_spread, random);
    for (Bytes* bytes : {&new_carry, &pages}) bytes->fill(random);
    if (one.in_place) std::memcpy(new_carry.data(), carry.data(), carry.size());
    for (std::int64_t i = 0; i < one.rope_dims / 2; ++i) frequencies.push_back(std::pow(0.7, i));
  }

  static std::int64_t stride(const CompressCase& one, bool wide) {
    return one.row_width() * (wide ? 4 : 2) + one.padding;
  }
  static void fill(Bytes& bytes, bool wide, float spread, Random& random) {
    std::normal_distribution<float> normal(0, spread);
    const std::size_t item = wide ? 4 : 2;
    for (std::size_t at = 0; at + item <= bytes.size(); at += item) {
      const float value = normal(random);
      std::uint32_t bits;
      std::memcpy(&bits, &value, 4);
      std::memcpy(bytes.data() + at, reinterpret_cast<const char*>(&bits) + 4 - item, item);
    }
  }
  static IntList list(const std::vector<std::int32_t>& items) {
    return {reinterpret_cast<const std::byte*>(items.data()), 4};
  }

  // The call over this memory and the lists of `one`.
  CompressTail call(const CompressCase& one) {
    CompressTail made;
    made.kv = {kv.data(), stride(one, one.kv_wide), one.kv_wide};
    made.score = {score.data(), stride(one, one.score_wide), one.score_wide};
    made.rows = one.rows();
    made.ratio = one.ratio;
    made.overlap = one.overlap;
    made.width = one.width();
    made.norm_weight = {weight.data(), 0, one.weight_wide};
    made.eps = 1e-6;
    made.frequencies = frequencies.data();
    made.rope_dims = one.rope_dims;
    made.interleaved = one.interleaved;
    const RowForm& form = one.form;
    made.layout = {form.parts.data(), static_cast<std::int32_t>(form.parts.size()),
                   one.page_rows,     form.row_bytes,
                   form.data_bytes,   form.hadamard,
                   form.rounded,      Element::Bf16};
    made.pages = pages.data();
    made.page_stride = one.page_stride();
    made.page_count = one.pages;
    const CarryRings old{(one.in_place ? new_carry : carry).data(), one.ring_bytes(), one.row_width() * 8};
    if (one.carried) made.carry = old;
    if (one.kept) made.new_carry = {new_carry.data(), one.ring_bytes(), one.row_width() * 8};
    made.requests = one.requests();
    made.starts = list(one.starts);
    made.positions = list(one.positions);
    if (one.masked) made.write_mask = list(one.mask);
    if (one.by_page_ids) {
      made.page_ids = list(one.page_ids);
      made.page_columns = one.columns;
      made.page_id_stride = one.columns * 4;
    }
    return made;
  }
  bool operator==(const CompressMemory& other) const {
    return pages == other.pages && new_carry == other.new_carry;
  }
};

inline CompressCase random_case(Random& random, std::size_t form, std::int64_t ratio) {
  CompressCase one;
  one.form = row_forms()[form];
  one.ratio = ratio;
  one.seed = random();
  const auto flip = [&random] { return between(random, 0, 1) == 1; };
  one.overlap = flip();
  one.kv_wide = one.score_wide = flip();
  if (between(random, 0, 4) == 0) one.score_wide = !one.kv_wide;
  one.weight_wide = flip();
  one.in_place = flip();
  one.by_page_ids = between(random, 0, 3) != 0;
  one.kept = between(random, 0, 5) != 0;
  one.masked = flip();
  one.interleaved = flip();
  one.page_rows = static_cast<std::int32_t>(between(random, 1, 5));
  one.unit = one_of(random, {16, 16, 16, 8, 4});
  one.padding = one_of(random, {0, 0, 16, 48});
  if (one.unit < 16) one.padding = between(random, 0, 3) * 4;
  one.score_spread = one_of(random, {2.0f, 2.0f, 2.0f, 30.0f});
  const std::int64_t width = one.width();
  one.rope_dims =
      width < 4
          ? 0
          : one_of(random, {std::int64_t{0}, std::int64_t{4}, std::min<std::int64_t>(64, width / 2 * 2)});
  const std::int64_t requests = between(random, 1, one_of(random, {1, 4, 17}));
  const std::int64_t most = one_of(random, {4, 60, 300}) * (ratio > 100 ? 2 : 1) / requests + 1;
  for (std::int64_t q = 0; q < requests; ++q) {
    const auto length = static_cast<std::int32_t>(between(random, requests > 1 ? 0 : 1, most));
    const auto position = static_cast<std::int32_t>(flip() ? 0 : between(random, 0, 5 * ratio + 1));
    one.add(length, position,
            static_cast<std::int32_t>(flip() ? position + between(random, 0, 2 * ratio) : 0));
  }
  one.place(random);
  return one;
}

}  // namespace hkv::testing
