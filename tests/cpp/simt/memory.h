// SPDX-License-Identifier: Apache-2.0
// Memory of the harness: which bytes a kernel may touch, and who touched them last.
//
// Each byte has two stamps, of its last write and its last read. Two accesses by different threads, one of them a
// write, are a race unless a barrier lies between: a block barrier for threads of one block, a warp barrier for lanes
// of one warp; blocks are never ordered within a launch. Stamps say so at any schedule, because they hold how many
// barriers each thread had passed and not when it ran.
//
// Thread safety: none; one operating-system thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <vector>

namespace hkv::simt {

// Who accesses: place of the thread, and the barriers that it has passed.
struct Actor {
  std::uint32_t block, thread, barriers, warp_barriers;
};

enum class Use { Read, Write, Atomic };

class Stamps {
 public:
  // Requires: `use` by `actor`. Returns: whether it is ordered after what was done to the byte before.
  bool touch(const Actor& actor, Use use) {
    const Stamp me{actor.block + 1, actor.thread, actor.barriers, actor.warp_barriers, use == Use::Atomic};
    if (!after(wrote_, me)) return false;
    if (use == Use::Read) {
      read_ = merged(read_, me);
      return true;
    }
    if (!after(read_, me)) return false;
    wrote_ = me;
    read_ = {};
    return true;
  }

 private:
  static constexpr std::uint32_t many_blocks = 0xffffffff, many_threads = 1 << 20, many_of_warp = 1 << 16;

  struct Stamp {
    std::uint32_t block = 0;  // one more than the block's number; 0: never touched
    std::uint32_t thread = 0;
    std::uint32_t barriers = 0, warp_barriers = 0;
    bool atomic = false;
  };

  static std::uint32_t warp_of(std::uint32_t thread) {
    return thread >= many_of_warp ? thread - many_of_warp : thread / 32;
  }
  static bool after(const Stamp& earlier, const Stamp& me) {
    if (earlier.block == 0 || (earlier.atomic && me.atomic)) return true;
    if (earlier.block != me.block) return false;
    if (earlier.barriers != me.barriers || earlier.thread == me.thread) return true;
    if (earlier.thread == many_threads) return false;
    return warp_of(earlier.thread) == warp_of(me.thread) && earlier.warp_barriers != me.warp_barriers;
  }
  // Readers are kept as one stamp: the latest of a warp, or a mark that several warps or blocks were there.
  static Stamp merged(const Stamp& earlier, Stamp me) {
    if (earlier.block == 0) return me;
    if (earlier.block != me.block) {
      me.block = many_blocks;
      return me;
    }
    if (earlier.barriers != me.barriers || earlier.thread == me.thread) return me;
    const bool one_warp = earlier.thread != many_threads && warp_of(earlier.thread) == warp_of(me.thread);
    if (!one_warp) {
      me.thread = many_threads;
    } else if (earlier.warp_barriers == me.warp_barriers) {
      me.thread = many_of_warp + warp_of(me.thread);
    }
    return me;
  }

  Stamp wrote_, read_;
};

// One piece of memory that kernels may touch.
struct Piece {
  std::uintptr_t start;
  std::size_t bytes;
  bool writable;
  std::vector<Stamps> stamps;  // made when first touched in a launch
};

// All global memory that kernels may touch: what is registered, and nothing else of the process.
class GlobalMemory {
 public:
  static GlobalMemory& instance() {
    static GlobalMemory all;
    return all;
  }
  // Pieces that it overlaps are forgotten: their memory was freed, and is taken again.
  void add(const void* start, std::size_t bytes, bool writable) {
    const auto at = reinterpret_cast<std::uintptr_t>(start);
    auto next = pieces_.lower_bound(at);
    if (next != pieces_.begin() && std::prev(next)->first + std::prev(next)->second.bytes > at) --next;
    while (next != pieces_.end() && next->first < at + bytes) next = pieces_.erase(next);
    pieces_[at] = Piece{at, bytes, writable, {}};
  }
  void remove(const void* start) { pieces_.erase(reinterpret_cast<std::uintptr_t>(start)); }

  // The piece that holds all of [at, at + bytes); null where there is none.
  Piece* find(std::uintptr_t at, std::size_t bytes) {
    auto next = pieces_.upper_bound(at);
    if (next == pieces_.begin()) return nullptr;
    Piece& piece = (--next)->second;
    return at - piece.start + bytes <= piece.bytes ? &piece : nullptr;
  }
  void forget_accesses() {
    for (auto& [start, piece] : pieces_) piece.stamps.clear();
  }

 private:
  std::map<std::uintptr_t, Piece> pieces_;
};

// Lets kernels touch a span of memory while it lives.
class Registered {
 public:
  Registered(const void* start, std::size_t bytes, bool writable = true) : start_(start) {
    if (bytes != 0) GlobalMemory::instance().add(start, bytes, writable);
  }
  template <class T>
  explicit Registered(std::vector<T>& items) : Registered(items.data(), items.size() * sizeof(T)) {}
  template <class T>
  explicit Registered(const std::vector<T>& items)
      : Registered(items.data(), items.size() * sizeof(T), false) {}
  ~Registered() { GlobalMemory::instance().remove(start_); }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

 private:
  const void* start_;
};

}  // namespace hkv::simt
