// SPDX-License-Identifier: Apache-2.0
#include "cache/pool_memory.h"

#include <algorithm>

#include "base/crc32c.h"

namespace hkv {

// One array for several layers holds a page as the layers one after another; a partial page then attests
// the first rows of each.
PoolMemory::Segments PoolMemory::segments(const Group& g, const PoolArray& array, std::int64_t rows) const {
  const std::int64_t count = arrays_.size() == 1 && rows > 0 ? g.layers : 1;
  const std::int64_t bytes = array.page_bytes / count;
  return {count, bytes, rows > 0 ? std::min(bytes, rows * g.ordered_row_bytes()) : bytes};
}

std::int64_t PoolMemory::attested_bytes(const Group& g, std::int64_t rows) const {
  std::int64_t total = 0;
  for (const PoolArray& array : arrays_) {
    const Segments s = segments(g, array, rows);
    total += s.per_array * s.attested;
  }
  return total;
}

std::uint32_t PoolMemory::fingerprint(const Group& g, std::uint32_t page, std::int64_t rows,
                                      std::int64_t skip, std::int64_t bytes) const {
  std::uint32_t crc = 0;
  for (std::size_t row = 0; row < arrays_.size(); ++row) {
    const Segments s = segments(g, arrays_[row], rows);
    for (std::int64_t i = 0; i < s.per_array && bytes > 0; ++i) {
      if (skip >= s.attested) {
        skip -= s.attested;
        continue;
      }
      const std::uint64_t from =
          address(static_cast<std::int64_t>(row), page) + static_cast<std::uint64_t>(i * s.bytes + skip);
      const std::int64_t take = std::min(s.attested - skip, bytes);
      crc = crc32c(crc, reinterpret_cast<const void*>(from), static_cast<std::size_t>(take));
      bytes -= take;
      skip = 0;
    }
  }
  return crc;
}

}  // namespace hkv
