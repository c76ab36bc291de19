// SPDX-License-Identifier: Apache-2.0
// Memory that a ring knows as fixed buffers: which place of its table has which bytes. A request in a fixed buffer spares
// the kernel finding, pinning and marking each page, which is half of what a read of 1 MiB costs the CPU.
//
// Thread safety: any thread; one mutex, never held over a system call that finds pages.
//
// Invariants, and why each holds:
//  1. What `find` gives is in the kernel's table: a buffer is listed after it was set there, and taken off the list before
//     its place is emptied. (A request that was already given the place goes on in it: the kernel counts its users.)
//  2. No two listed buffers overlap: as its user requires. So one look-up by address is enough.
#pragma once
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "tier/uring_ring.h"

namespace hkv {

class UringArenas {
 public:
  // So many pieces, from the first on, lie in the buffer at this place.
  struct Run {
    std::size_t pieces = 0;
    std::uint32_t place = 0;
  };

  // Of a ring that outlives it and is open. `places`: of the table; where the kernel gives none, nothing is ever fixed.
  UringArenas(UringRing& ring, std::uint32_t places);

  // Effect: the memory is fixed, all of it or nothing; more than 1 GiB as several buffers.
  // Requires: at least a byte, mapped until `drop`, none of it listed. Returns: whether it is: not where the table has no
  // room, the process may lock no more memory (RLIMIT_MEMLOCK), or the kernel cannot keep such pages.
  bool add(void* data, std::size_t bytes);
  // Effect: the memory that begins there is fixed no more. One that was not added is passed over.
  void drop(void* data);
  // What of these pieces goes as one request: where the kernel takes only one piece, at most that.
  Run find(std::span<const iovec> pieces) const;

 private:
  struct Buffer {
    std::uintptr_t from = 0, to = 0;
    std::uintptr_t arena = 0;  // where the memory that it is of begins
    std::uint32_t place = 0;
  };

  bool set(std::uint32_t place, void* data, std::size_t bytes) const;
  void take_back(std::uintptr_t arena);

  UringRing& ring_;
  mutable std::mutex mutex_;     // of what follows
  std::vector<Buffer> buffers_;  // by address
  std::vector<std::uint32_t> free_;
};

}  // namespace hkv
