// SPDX-License-Identifier: Apache-2.0
// Memory that direct I/O takes, and a stock of it, so that a get does not pay for fresh pages.
//
// Thread safety: values of one thread.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "tier/region.h"

namespace hkv {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t bytes)
      : data_(static_cast<std::byte*>(std::aligned_alloc(disk_unit, round_up_to_unit(bytes)))),
        bytes_(bytes) {
    if (data_ == nullptr) throw std::bad_alloc();
  }
  std::byte* data() const { return data_.get(); }
  std::size_t size() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t bytes_ = 0;
};

// Buffers of powers of two, kept up to a number of bytes.
class BufferStock {
 public:
  explicit BufferStock(std::size_t most_bytes) : most_bytes_(most_bytes) {}

  // At least `bytes`; what it holds is anyone's.
  AlignedBuffer take(std::size_t bytes) {
    const std::size_t rounded = std::bit_ceil(std::max<std::size_t>(bytes, disk_unit));
    for (std::size_t i = kept_.size(); i-- > 0;) {
      if (kept_[i].size() != rounded) continue;
      AlignedBuffer out = std::move(kept_[i]);
      kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i));
      kept_bytes_ -= rounded;
      return out;
    }
    return AlignedBuffer(rounded);
  }
  void give_back(AlignedBuffer buffer) {
    if (!buffer || kept_bytes_ + buffer.size() > most_bytes_) return;
    kept_bytes_ += buffer.size();
    kept_.push_back(std::move(buffer));
  }

 private:
  std::size_t most_bytes_, kept_bytes_ = 0;
  std::vector<AlignedBuffer> kept_;
};

}  // namespace hkv
