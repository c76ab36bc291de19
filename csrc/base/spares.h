// SPDX-License-Identifier: Apache-2.0
// A small shelf of objects kept for reuse, so that a match allocates nothing once warm.
//
// Thread safety: any thread. Progress: wait-free (a few exchanges); an empty shelf allocates, a full one frees.
// Invariants:
//  1. An object is on at most one place of the shelf: it is put there and taken by one RMW each.
//  2. Whoever takes an object sees all that its last user did: put releases (27), take acquires (28).
#pragma once
#include <array>
#include <memory>

#include "base/atomic.h"

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
      if (place.load() == nullptr) continue;
      // (28) acquire-RMW synchronizes-with (27)
      if (T* spare = place.exchange(nullptr, at(28, acquire))) return std::unique_ptr<T>(spare);
    }
    return std::make_unique<T>();
  }

  void put(std::unique_ptr<T> spare) {
    for (auto& place : places_) {
      T* empty = nullptr;
      if (place.load() != nullptr) continue;
      // (27) release-CAS synchronizes-with (28)
      if (place.compare_exchange(empty, spare.get(), at(27, release))) {
        spare.release();
        return;
      }
    }
  }

 private:
  std::array<Atom<T*>, 16> places_;
};

}  // namespace hkv
