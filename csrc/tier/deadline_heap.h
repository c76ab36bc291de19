// SPDX-License-Identifier: Apache-2.0
// Items by their deadline, the earliest first: a binary heap of pointers in which each item knows its place.
//
// T has `deadline`, which stays as it is while the item is in, and `at`, which is the heap's.
// Thread safety: none. Invariant: items_[i]->at == i, so that an item leaves from the middle without a search.
#pragma once
#include <cstddef>
#include <utility>
#include <vector>

namespace hkv {

template <class T>
class DeadlineHeap {
 public:
  std::size_t size() const { return items_.size(); }
  T* earliest() const { return items_.empty() ? nullptr : items_.front(); }
  // In no order.
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }
  // Room for so many, so that `push` allocates nothing.
  void reserve(std::size_t items) {
    if (items > items_.capacity()) items_.reserve(items * 2);
  }

  void push(T* item) {
    items_.push_back(item);
    item->at = items_.size() - 1;
    rise(item->at);
  }

  // Requires: the item is in.
  void remove(T* item) {
    const std::size_t at = item->at;
    place(at, items_.back());
    items_.pop_back();
    if (at < items_.size()) sink(rise(at));
  }

 private:
  void place(std::size_t at, T* item) {
    items_[at] = item;
    item->at = at;
  }
  bool before(std::size_t a, std::size_t b) const { return items_[a]->deadline < items_[b]->deadline; }
  void swap(std::size_t a, std::size_t b) {
    T* const at_a = items_[a];
    place(a, items_[b]);
    place(b, at_a);
  }
  std::size_t rise(std::size_t at) {
    for (; at != 0 && before(at, (at - 1) / 2); at = (at - 1) / 2) swap(at, (at - 1) / 2);
    return at;
  }
  void sink(std::size_t at) {
    for (;;) {
      std::size_t least = at;
      for (std::size_t child = 2 * at + 1; child <= 2 * at + 2 && child < items_.size(); ++child) {
        if (before(child, least)) least = child;
      }
      if (least == at) return;
      swap(at, least);
      at = least;
    }
  }

  std::vector<T*> items_;
};

}  // namespace hkv
