// SPDX-License-Identifier: Apache-2.0
// Random calls of gather, scatter and fingerprint, with memory of their own: the same for every implementation.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/fingerprint.h"
#include "kernels/paged_copy.h"

namespace hkv::testing {

using Random = std::mt19937_64;

inline std::int64_t between(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}
template <class T>
T one_of(Random& random, std::initializer_list<T> choices) {
  return choices.begin()[between(random, 0, static_cast<std::int64_t>(choices.size()) - 1)];
}

// Bytes at an address that is a multiple of `unit` and of no larger power of two, so that wide loads show.
class Bytes {
 public:
  Bytes(std::int64_t bytes, std::int64_t unit) : store_(static_cast<std::size_t>(bytes) + 64), bytes_(bytes) {
    const auto at = reinterpret_cast<std::uintptr_t>(store_.data());
    start_ = (32 - at % 32) % 32 + static_cast<std::size_t>(unit);
  }
  std::byte* data() { return store_.data() + start_; }
  const std::byte* data() const { return store_.data() + start_; }
  std::size_t size() const { return static_cast<std::size_t>(bytes_); }
  void fill(Random& random) {
    std::generate_n(data(), bytes_, [&random] { return static_cast<std::byte>(random()); });
  }
  bool operator==(const Bytes& other) const {
    return size() == other.size() && std::equal(data(), data() + size(), other.data());
  }

 private:
  std::vector<std::byte> store_;
  std::int64_t bytes_;
  std::size_t start_;
};

// What one random group looks like.
struct World {
  PageRows page;
  std::int64_t pages = 0, page_stride = 0, count = 0, null_page = -1;
  std::int64_t unit = 1, buffer_unit = 16;  // what addresses are multiples of
  int layers = 1;
  bool by_row = false, wide = false, verified = false, zero_missing = true;
  std::vector<std::int64_t> ids, rows;
  std::vector<std::int32_t> narrow_ids, narrow_rows;
  std::vector<std::uint64_t> handouts, expected;

  std::int64_t piece_bytes() const { return by_row ? page.packed_row_bytes() : page.packed_bytes(); }
  std::int64_t pool_bytes() const { return (pages - 1) * page_stride + reach(); }
  std::int64_t reach() const {
    const std::int64_t rows_end = (page.rows - 1) * page.row_stride + page.row_bytes;
    const std::int64_t footers_end = page.footer_offset + page.rows * page.footer_bytes;
    return page.footer_bytes == 0 ? rows_end : std::max(rows_end, footers_end);
  }
  PieceList list() const {
    PieceList pieces;
    pieces.wide = wide;
    pieces.page_ids = wide ? static_cast<const void*>(ids.data()) : narrow_ids.data();
    if (by_row) pieces.rows = wide ? static_cast<const void*>(rows.data()) : narrow_rows.data();
    pieces.count = count;
    pieces.null_page = null_page;
    pieces.pages = pages;
    return pieces;
  }
};

// Shapes: rows of any number of units, padded or not, with footers or without. `aligned`: what all addresses are
// multiples of; extents may be multiples of more.
inline World random_world(Random& random, std::int64_t aligned, bool unique) {
  World world;
  PageRows& page = world.page;
  world.unit = aligned;
  world.buffer_unit = one_of<std::int64_t>(random, {aligned, 16});
  const std::int64_t unit = aligned * one_of<std::int64_t>(random, {1, 1, 2});
  page.rows = one_of<std::int64_t>(random, {1, 1, 3, 4, 16});
  page.row_bytes = unit * between(random, 1, one_of<std::int64_t>(random, {8, 80, 200}));
  page.row_stride = page.row_bytes + unit * one_of<std::int64_t>(random, {0, 0, 1, 5});
  page.footer_bytes = one_of<std::int64_t>(random, {0, 0, 1, 2}) * unit;
  page.footer_offset = page.rows * page.row_stride + unit * one_of<std::int64_t>(random, {0, 0, 3});
  world.page_stride = world.reach() + unit * one_of<std::int64_t>(random, {0, 1, 7});
  world.pages = between(random, 1, 12);
  world.layers = static_cast<int>(one_of(random, {1, 1, 2, 3}));
  world.by_row = one_of(random, {false, true});
  world.wide = one_of(random, {false, true});
  world.verified = one_of(random, {false, true});
  world.zero_missing = one_of(random, {false, true});
  if (one_of(random, {false, true})) world.null_page = between(random, 0, world.pages - 1);
  std::vector<std::int64_t> places(static_cast<std::size_t>(world.pages * (world.by_row ? page.rows : 1)));
  std::iota(places.begin(), places.end(), 0);
  std::shuffle(places.begin(), places.end(), random);
  const auto most = static_cast<std::int64_t>(places.size());
  world.count = between(random, 0, unique ? most : most + 5);
  for (std::int64_t i = 0; i < world.count; ++i) {
    const std::int64_t place = places[static_cast<std::size_t>(i % most)];
    const std::int64_t rows = world.by_row ? page.rows : 1;
    world.ids.push_back(one_of(random, {false, false, false, true}) ? -1 : place / rows);
    world.rows.push_back(one_of(random, {false, false, false, true}) ? -1 : place % rows);
  }
  world.narrow_ids.assign(world.ids.begin(), world.ids.end());
  world.narrow_rows.assign(world.rows.begin(), world.rows.end());
  for (std::int64_t i = 0; i < world.pages; ++i) world.handouts.push_back(random() % 4);
  for (const std::int64_t id : world.ids) {
    const std::uint64_t live = id < 0 ? 0 : world.handouts[static_cast<std::size_t>(id)];
    world.expected.push_back(live + (one_of(random, {0, 0, 0, 1}) == 1));
  }
  return world;
}

// Memory of one world: pools, buffer and statuses.
struct Memory {
  std::vector<Bytes> pools;
  std::vector<PoolLayer> layers;
  Bytes buffer;
  std::vector<std::int32_t> status;
  std::vector<std::uint64_t> fingerprints;

  Memory(const World& world, std::uint64_t seed)
      : buffer(world.piece_bytes() * world.count * world.layers, world.buffer_unit) {
    Random random(seed);
    for (int layer = 0; layer < world.layers; ++layer) {
      pools.emplace_back(world.pool_bytes(), world.unit).fill(random);
    }
    for (Bytes& pool : pools) layers.push_back({pool.data(), world.page_stride});
    buffer.fill(random);
    status.assign(static_cast<std::size_t>(world.count), 77);
    fingerprints.assign(static_cast<std::size_t>(world.count * world.layers), 77);
  }
  Memory(const Memory&) = delete;
  Memory(Memory&&) = delete;

  PagedCopy copy(const World& world) {
    PagedCopy asked;
    asked.layers = layers.data();
    asked.layer_count = world.layers;
    asked.page = world.page;
    asked.pieces = world.list();
    asked.buffer = buffer.data();
    if (world.verified) {
      asked.handouts = world.handouts.data();
      asked.expected = world.expected.data();
    }
    asked.status = status.data();
    asked.zero_missing = world.zero_missing;
    return asked;
  }
  FingerprintGroup fingerprint(const World& world) {
    PieceList pieces = world.list();
    pieces.rows = nullptr;
    return {layers.data(), world.layers, world.page, pieces, fingerprints.data()};
  }
  bool operator==(const Memory& other) const {
    return pools == other.pools && buffer == other.buffer && status == other.status &&
           fingerprints == other.fingerprints;
  }
};

}  // namespace hkv::testing
