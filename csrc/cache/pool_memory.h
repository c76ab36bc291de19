// SPDX-License-Identifier: Apache-2.0
// The memory of one group's pool as bound: where a page lies, whether a kernel can take it, what it holds.
//
// Thread safety: bound once while the group has no live page, then constant; reading bytes needs a pin.
#pragma once
#include <cstdint>
#include <vector>

#include "layout/group.h"
#include "reuse/snapshot.h"

namespace hkv {

// One array of a pool: page i starts at base + i * stride.
struct PoolArray {
  std::uint64_t base = 0;
  std::int64_t stride = 0;
  std::int64_t page_bytes = 0;
  std::int64_t row_stride = 0;  // 0: the array does not tell rows apart
};

class PoolMemory {
 public:
  bool bound() const { return !arrays_.empty(); }
  bool host() const { return host_; }
  // Whether anything may be loaded into it. What is read-only is matched and read like any other.
  bool writable() const { return writable_; }
  std::int64_t rows() const { return static_cast<std::int64_t>(arrays_.size()); }

  // Requires: at least one array.
  void bind(std::vector<PoolArray> arrays, bool host, bool writable) {
    arrays_ = std::move(arrays);
    host_ = host;
    writable_ = writable;
  }
  std::uint64_t address(std::int64_t row, std::uint32_t page) const {
    const PoolArray& array = arrays_[row];
    return array.base + static_cast<std::uint64_t>(array.stride) * page;
  }

  // Bytes of one page in an array.
  std::int64_t bytes_of_page(std::int64_t row) const { return arrays_[row].page_bytes; }

  // Layers whose bytes lie one after another in a page of the array, each as many; 1 where it cannot be cut so.
  std::int64_t layers_in(const Group& g, std::int64_t row) const {
    return rows() == 1 && bytes_of_page(row) % g.layers == 0 ? g.layers : 1;
  }

  // The first of the four byte facts that the group's declared layout does not find here, or Code::None.
  Code misaligned(const Group& g) const {
    const auto align = static_cast<std::uint64_t>(g.alignment);
    for (const PoolArray& array : arrays_) {
      if (array.base % align != 0) return Code::Base;
    }
    for (const PoolArray& array : arrays_) {
      if (array.stride % g.alignment != 0 || (g.page_stride != 0 && array.stride != g.page_stride)) {
        return Code::PageStride;
      }
    }
    for (const PoolArray& array : arrays_) {
      if (array.row_stride != 0 && g.row_bytes != 0 && array.row_stride != g.row_bytes)
        return Code::RowStride;
    }
    for (const PoolArray& array : arrays_) {
      if (g.footer_offset >= array.page_bytes) return Code::Footer;
    }
    return Code::None;
  }

  // Bytes that the page's first `rows` rows of each layer cover; rows 0: the whole page.
  std::int64_t attested_bytes(const Group& g, std::int64_t rows) const;
  // CRC-32C of `bytes` of the attested bytes from `skip` on, in array order.
  // Requires: bound to host memory; nobody writes those bytes.
  std::uint32_t fingerprint(const Group& g, std::uint32_t page, std::int64_t rows, std::int64_t skip,
                            std::int64_t bytes) const;

 private:
  // A stretch of bytes of one page that lies together: a layer's rows, or a whole row of an array.
  struct Segments {
    std::int64_t per_array, bytes, attested;
  };
  Segments segments(const Group& g, const PoolArray& array, std::int64_t rows) const;

  std::vector<PoolArray> arrays_;
  bool host_ = false;
  bool writable_ = true;
};

}  // namespace hkv
