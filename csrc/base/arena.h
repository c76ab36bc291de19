// SPDX-License-Identifier: Apache-2.0
// Line-aligned memory for large tables, asked for in 2 MiB pages where the system gives them.
//
// Thread safety: none needed; made once, before the table is shared.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>

namespace hkv {

// `count` default-constructed objects that live as long as the arena. A missed TLB entry costs a page walk,
// which under nested paging is worth 1.5-2.6x of a look-up: hence the large pages (a hint, never required).
template <class T>
class Arena {
 public:
  explicit Arena(std::size_t count) : count_(count), bytes_(round_up(count * sizeof(T))) {
    mapping_bytes_ = bytes_ + huge_bytes;
    mapping_ = mmap(nullptr, mapping_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping_ == MAP_FAILED) throw std::bad_alloc();
    const auto start =
        (reinterpret_cast<std::uintptr_t>(mapping_) + huge_bytes - 1) / huge_bytes * huge_bytes;
    data_ = reinterpret_cast<T*>(start);
#ifdef MADV_HUGEPAGE
    if (bytes_ >= huge_bytes) madvise(data_, bytes_, MADV_HUGEPAGE);
#endif
    for (std::size_t i = 0; i < count; ++i) new (data_ + i) T();
  }
  ~Arena() {
    for (std::size_t i = 0; i < count_; ++i) data_[i].~T();
    munmap(mapping_, mapping_bytes_);
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  T* data() { return data_; }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  std::size_t size() const { return count_; }
  std::size_t bytes() const { return count_ * sizeof(T); }

 private:
  static constexpr std::size_t huge_bytes = std::size_t{2} << 20;
  static std::size_t round_up(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

  std::size_t count_, bytes_, mapping_bytes_ = 0;
  void* mapping_ = nullptr;
  T* data_ = nullptr;
};

}  // namespace hkv
