// SPDX-License-Identifier: Apache-2.0
// Memory that direct I/O takes, zero at first.
//
// Thread safety: a value.
#pragma once
#include <sys/uio.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace hkv {

class AlignedMemory {
 public:
  static constexpr std::size_t alignment = 4096;
  explicit AlignedMemory(std::size_t bytes)
      : bytes_(bytes),
        data_(static_cast<std::byte*>(
            std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment))) {
    if (!data_) throw std::bad_alloc();
    std::memset(data_.get(), 0, bytes);
  }
  std::byte* data() { return data_.get(); }
  std::size_t size() const { return bytes_; }
  iovec piece(std::size_t from, std::size_t count) { return {data_.get() + from, count}; }
  // Bytes that say where they are and whose.
  void fill(unsigned seed) {
    for (std::size_t i = 0; i < bytes_; ++i) {
      data_.get()[i] = static_cast<std::byte>((i * 131 + i / 251 + seed * 29) & 0xff);
    }
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::size_t bytes_;
  std::unique_ptr<std::byte, Free> data_;
};

}  // namespace hkv
