// SPDX-License-Identifier: Apache-2.0
// The third side of the seam in atomic.h: with HKV_SCHEDULE every access asks a scheduler for its turn first.
//
// Thread safety: none of its own. The scheduler (tests/cpp/sim/scheduler.h) runs one thread at a time, so values
// are plain and executions interleave sequentially consistently; what a weaker order may do is for Relacy to show.
// An Atom has the size of its value here too: lines and words keep the layout of the product. Its address names it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <source_location>

namespace hkv {

namespace schedule {
enum class Kind : std::uint8_t { Load, Store, Add, Sub, Or, And, Exchange, Cas, Plain };

// The scheduler's door. before() returns when it is the calling thread's turn to make the access it names;
// after() tells what the access found and left. Both return at once where no schedule runs.
void before(const void* atom, Kind kind, bool writes, const std::source_location& where);
void after(std::uint64_t found, std::uint64_t left);
// A step of which other threads come first, where they are drawn at random.
void yield();
// The number of the thread that runs; 0 outside a schedule.
std::size_t thread();

template <class T>
std::uint64_t shown(T value) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}
}  // namespace schedule

enum class Order : std::uint8_t { Relaxed, Acquire, Release, AcqRel, SeqCst };
inline constexpr Order relaxed = Order::Relaxed;
inline constexpr Order acquire = Order::Acquire;
inline constexpr Order release = Order::Release;
inline constexpr Order acq_rel = Order::AcqRel;
inline constexpr Order seq_cst = Order::SeqCst;
constexpr Order at(int, Order order) noexcept { return order; }

template <class T>
class Atom {
  using Where = std::source_location;
  using Kind = schedule::Kind;

 public:
  Atom() noexcept : value_{} {}
  explicit Atom(T value) noexcept : value_(value) {}
  Atom(const Atom&) = delete;
  Atom& operator=(const Atom&) = delete;

  T load(Order = relaxed, const Where& where = Where::current()) const {
    schedule::before(this, Kind::Load, false, where);
    return left(value_, value_);
  }
  void store(T value, Order = relaxed, const Where& where = Where::current()) {
    replace(Kind::Store, value, where);
  }
  T exchange(T value, Order = relaxed, const Where& where = Where::current()) {
    return replace(Kind::Exchange, value, where);
  }
  T fetch_add(T by, Order = relaxed, const Where& where = Where::current()) {
    return update(Kind::Add, where, [by](T now) { return static_cast<T>(now + by); });
  }
  T fetch_sub(T by, Order = relaxed, const Where& where = Where::current()) {
    return update(Kind::Sub, where, [by](T now) { return static_cast<T>(now - by); });
  }
  T fetch_or(T bits, Order = relaxed, const Where& where = Where::current()) {
    return update(Kind::Or, where, [bits](T now) { return static_cast<T>(now | bits); });
  }
  T fetch_and(T bits, Order = relaxed, const Where& where = Where::current()) {
    return update(Kind::And, where, [bits](T now) { return static_cast<T>(now & bits); });
  }
  bool compare_exchange(T& expected, T desired, Order = relaxed, const Where& where = Where::current()) {
    schedule::before(this, Kind::Cas, true, where);
    const T found = value_;
    const bool done = found == expected;
    if (done) value_ = desired;
    expected = left(found, value_);
    return done;
  }

 private:
  static T left(T found, T now) {
    schedule::after(schedule::shown(found), schedule::shown(now));
    return found;
  }
  T replace(Kind kind, T value, const Where& where) {
    return update(kind, where, [value](T) { return value; });
  }
  template <class Change>
  T update(Kind kind, const Where& where, Change change) {
    schedule::before(this, kind, true, where);
    const T found = value_;
    value_ = change(found);
    return left(found, value_);
  }

  T value_;
};

}  // namespace hkv
