// SPDX-License-Identifier: Apache-2.0
// A small shelf of objects kept for reuse, so that a match allocates nothing once warm.
//
// Thread safety: any thread. Progress: wait-free (a few exchanges); an empty shelf allocates, a full one frees.
// Invariant: an object is on at most one place of the shelf, because it is put there and taken by one RMW.
#pragma once
#include <array>
#include <atomic>
#include <memory>

namespace hkv {

template <class T>
class Spares {
 public:
  Spares() = default;
  Spares(const Spares&) = delete;
  Spares& operator=(const Spares&) = delete;
  ~Spares() {
    for (auto& place : places_) delete place.load();
  }

  std::unique_ptr<T> take() {
    for (auto& place : places_) {
      // The shelf is warm-up, not the data path: the default (sequentially consistent) order is right here.
      if (T* spare = place.load() == nullptr ? nullptr : place.exchange(nullptr)) return std::unique_ptr<T>(spare);
    }
    return std::make_unique<T>();
  }

  void put(std::unique_ptr<T> spare) {
    for (auto& place : places_) {
      T* empty = nullptr;
      if (place.load() == nullptr && place.compare_exchange_strong(empty, spare.get())) {
        spare.release();
        return;
      }
    }
  }

 private:
  std::array<std::atomic<T*>, 16> places_{};
};

}  // namespace hkv
