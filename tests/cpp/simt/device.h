// SPDX-License-Identifier: Apache-2.0
// The names of csrc/kernels/simt.h for the harness: every access is checked, then done. Include before a kernel.
//
// Thread safety: none; one operating-system thread.
#pragma once
#define HKV_SIMT_HARNESS

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/handouts.h"
#include "simt/machine.h"

#define HKV_DEVICE inline
#define HKV_CALL inline
#define HKV_KERNEL(name, threads, blocks, arguments) inline void name arguments
#define HKV_ARGUMENT const
#define HKV_UNROLL
#define HKV_ROLLED
#define HKV_SHARED(type, name, count) \
  static const char name##_key = 0;   \
  const hkv::simt::Shared<type> name(&name##_key, count)

namespace hkv::simt {

struct alignas(16) Wide {
  unsigned long long x, y;
};

inline unsigned thread() { return Machine::instance().self().actor.thread; }
inline unsigned threads() { return Machine::instance().threads(); }
inline unsigned block() { return Machine::instance().self().actor.block; }
inline unsigned blocks() { return Machine::instance().blocks(); }
inline unsigned lane() { return thread() % 32; }

inline void touch(std::vector<Stamps>& stamps, std::size_t at, std::size_t bytes, Use use,
                  const Place& place) {
  Machine& machine = Machine::instance();
#if defined(HKV_SIMT_WITHOUT_STAMPS)  // of a planted race: what a sanitizer says alone
  return;
#endif
  for (std::size_t k = at; k < at + bytes; ++k) {
    if (!stamps[k].touch(machine.self().actor, use)) machine.fail(Fault::Race, bytes, "bytes race", place);
  }
}

inline void check_global(const void* address, std::size_t bytes, Use use, const Place& place) {
  Machine& machine = Machine::instance();
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  if (at % bytes != 0) machine.fail(Fault::Misaligned, bytes, "bytes not aligned", place);
  Piece* const piece = GlobalMemory::instance().find(at, bytes);
  if (piece == nullptr || (use != Use::Read && !piece->writable)) {
    machine.fail(Fault::OutOfBounds, bytes, "bytes of global memory", place);
  }
  if (piece->stamps.empty()) piece->stamps.resize(piece->bytes);
  touch(piece->stamps, at - piece->start, bytes, use, place);
}

template <class T>
T load(const T* from, const Place& place = Place::current()) {
  Machine& machine = Machine::instance();
  if (machine.options().before_load) machine.options().before_load(machine.report().loads);
  check_global(from, sizeof(T), Use::Read, place);
  Report& report = machine.report();
  ++report.loads;
  report.loaded_bytes += sizeof(T);
  report.wide_loads += sizeof(T) == 16;
  T value;
  const Seen seen;
  std::memcpy(&value, from, sizeof(T));
  return value;
}
template <class T>
void store(T* to, std::type_identity_t<T> value, const Place& place = Place::current()) {
  check_global(to, sizeof(T), Use::Write, place);
  Machine::instance().report().stored_bytes += sizeof(T);
  const Seen seen;
  std::memcpy(to, &value, sizeof(T));
}
inline std::uint64_t load_acquire(const std::uint64_t* from, const Place& place = Place::current()) {
  load(from, place);
  return handout_count(from);
}
inline std::uint64_t load_after_reads(const std::uint64_t* from, const Place& place = Place::current()) {
  load(from, place);
  return handout_count_after(from);
}
template <class T>
T atomic_add(T* to, std::type_identity_t<T> value, const Place& place = Place::current()) {
  check_global(to, sizeof(T), Use::Atomic, place);
  const Seen seen;
  return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}

inline void barrier(const Place& place = Place::current()) { Machine::instance().barrier(place); }
inline void warp_barrier(const Place& place = Place::current()) { Machine::instance().warp_barrier(place); }
template <class T>
T shuffle(T value, unsigned from, const Place& place = Place::current()) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  std::uint64_t raw = 0;
  std::memcpy(&raw, &value, sizeof(T));
  Machine::instance().meet("shuffle", raw, place);
  raw = Machine::instance().deposit_of(from, place);
  std::memcpy(&value, &raw, sizeof(T));
  return value;
}
template <class T>
T shuffle_xor(T value, unsigned mask, const Place& place = Place::current()) {
  return simt::shuffle(value, lane() ^ mask, place);  // std::shuffle is found for a place too
}
inline unsigned ballot(bool flag, const Place& place = Place::current()) {
  Machine& machine = Machine::instance();
  machine.meet("ballot", flag, place);
  unsigned votes = 0;
  for (unsigned other = 0; other < 32 && thread() / 32 * 32 + other < machine.threads(); ++other) {
    votes |= static_cast<unsigned>(machine.deposit_of(other, place)) << other;
  }
  return votes;
}

// Shared memory of a block as a kernel sees it: an array whose items are read and written one at a time.
template <class T>
class Shared {
 public:
  Shared(const void* key, std::size_t count)
      : piece_(Machine::instance().shared(key, count * sizeof(T))), count_(count) {}

  class Item {
   public:
    Item(const Shared& array, std::size_t index, const Place& place)
        : array_(array), index_(index), place_(place) {}
    operator T() const { return array_.get(index_, place_); }
    void operator=(const T& value) const { array_.set(index_, value, place_); }
    void operator=(const Item& other) const { *this = static_cast<T>(other); }

   private:
    const Shared& array_;
    std::size_t index_;
    Place place_;
  };
  struct Index {  // an index and where it stands
    std::size_t value;
    Place place;
    Index(std::size_t value, const Place& place = Place::current()) : value(value), place(place) {}
  };
  Item operator[](const Index& index) const { return Item(*this, index.value, index.place); }

  T get(std::size_t index, const Place& place) const {
    touch(check(index, 1, place), index * sizeof(T), sizeof(T), Use::Read, place);
    for (std::size_t k = index * sizeof(T); k < (index + 1) * sizeof(T); ++k) {
      if (!piece_.set[k]) Machine::instance().fail(Fault::UnsetShared, index, "is an unset item", place);
    }
    T value;
    const Seen seen;
    std::memcpy(&value, piece_.bytes.get() + index * sizeof(T), sizeof(T));
    return value;
  }
  void set(std::size_t index, const T& value, const Place& place) const { put(index, &value, 1, place); }
  void put(std::size_t index, const T* values, std::size_t count, const Place& place) const {
    touch(check(index, count, place), index * sizeof(T), count * sizeof(T), Use::Write, place);
    {
      const Seen seen;
      std::memcpy(piece_.bytes.get() + index * sizeof(T), values, count * sizeof(T));
    }
    for (std::size_t k = index * sizeof(T); k < (index + count) * sizeof(T); ++k) piece_.set[k] = true;
  }
  std::vector<Stamps>& check(std::size_t index, std::size_t count, const Place& place) const {
    if (index + count > count_ || index + count < index) {
      Machine::instance().fail(Fault::SharedOutOfBounds, index, "is no item", place);
    }
    return piece_.stamps;
  }

 private:
  SharedPiece& piece_;
  std::size_t count_;
};

// Lands at the wait, as late as may be: who reads earlier finds what was there before.
template <class T>
void copy_async(const Shared<T>& shared, unsigned index, const T* from, unsigned count,
                const Place& place = Place::current()) {
  Machine& machine = Machine::instance();
  const std::size_t bytes = count * sizeof(T);
  if (bytes != 4 && bytes != 8 && bytes != 16) machine.fail(Fault::BadCopy, bytes, "bytes copied", place);
  if (index * sizeof(T) % bytes != 0) machine.fail(Fault::Misaligned, bytes, "bytes of shared memory", place);
  check_global(from, bytes, Use::Read, place);
  shared.check(index, count, place);
  const Shared<T> target = shared;
  machine.self().copies.push_back({[=] { target.put(index, from, count, place); }});
}
inline void copies_commit() {
  Thread& thread = Machine::instance().self();
  thread.commits.push_back(thread.copies.size());
}
inline void copies_wait(unsigned most) {
  Thread& thread = Machine::instance().self();
  if (thread.commits.size() <= most) return;
  const std::size_t groups = thread.commits.size() - most, landed = thread.commits[groups - 1];
  for (std::size_t k = 0; k < landed; ++k) thread.copies[k].land();
  thread.copies.erase(thread.copies.begin(), thread.copies.begin() + static_cast<std::ptrdiff_t>(landed));
  thread.commits.erase(thread.commits.begin(), thread.commits.begin() + static_cast<std::ptrdiff_t>(groups));
  for (std::size_t& end : thread.commits) end -= landed;
}

}  // namespace hkv::simt
