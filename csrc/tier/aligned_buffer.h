// SPDX-License-Identifier: Apache-2.0
// Memory that direct I/O takes, and a stock of it, so that a get does not pay for fresh pages.
//
// Thread safety: values of one thread. Invariant: memory that an Io knows as an arena is given back to it before it is
// freed, since what is mapped there next would be other pages: an AlignedBuffer knows its Io, and does both.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "tier/io.h"
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
  ~AlignedBuffer() { forget(); }
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::move(other.data_)),
        bytes_(other.bytes_),
        known_to_(std::exchange(other.known_to_, nullptr)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    if (this == &other) return *this;
    forget();
    data_ = std::move(other.data_);
    bytes_ = other.bytes_;
    known_to_ = std::exchange(other.known_to_, nullptr);
    return *this;
  }
  // Effect: an arena of the Io, as long as it lives. Requires: the Io outlives it. Returns: whether the Io took it.
  bool make_known(Io& io) {
    if (known_to_ == nullptr && io.add_arena(data(), round_up_to_unit(bytes_))) known_to_ = &io;
    return known_to_ != nullptr;
  }
  bool is_known() const { return known_to_ != nullptr; }
  std::byte* data() const { return data_.get(); }
  std::size_t size() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  void forget() {
    if (known_to_ != nullptr) std::exchange(known_to_, nullptr)->drop_arena(data());
  }

  std::unique_ptr<std::byte, Free> data_;
  std::size_t bytes_ = 0;
  Io* known_to_ = nullptr;
};

// Buffers of powers of two, kept up to a number of bytes. Those that are kept and not small are arenas of the Io, from
// their second use on, as long as it takes them: not where a process may lock little memory.
class BufferStock {
 public:
  BufferStock(std::size_t most_bytes, Io& io) : most_bytes_(most_bytes), io_(io) {}

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
    if (buffer.size() >= least_known && takes_more_) takes_more_ = buffer.make_known(io_);
    kept_.push_back(std::move(buffer));
  }
  void clear() {
    kept_.clear();
    kept_bytes_ = 0;
  }

 private:
  static constexpr std::size_t least_known = std::size_t{64} << 10;

  std::size_t most_bytes_, kept_bytes_ = 0;
  Io& io_;
  bool takes_more_ = true;
  std::vector<AlignedBuffer> kept_;
};

}  // namespace hkv
