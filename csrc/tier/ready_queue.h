// SPDX-License-Identifier: Apache-2.0
// What waits for an engine: one queue for each priority, first in first out, and the rule of who goes next.
//
// The higher priority goes first, but nothing waits for ever: a queue past which `most_passed` items of higher ones went
// while it had something goes next (the lowest such first), so that about every 17th item of a busy tier is a write.
//
// T has `priority`, and `next_ready` and `previous_ready`, which are the queue's.
// Thread safety: none.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "tier/tier.h"

namespace hkv {

template <class T>
class ReadyQueue {
 public:
  static constexpr std::uint32_t most_passed = 16;

  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }

  void push(T* item) {
    List& list = lists_[static_cast<std::size_t>(item->priority)];
    item->next_ready = nullptr;
    item->previous_ready = list.last;
    (list.last != nullptr ? list.last->next_ready : list.first) = item;
    list.last = item;
    ++size_;
  }

  // Requires: the item is in.
  void remove(T* item) {
    List& list = lists_[static_cast<std::size_t>(item->priority)];
    (item->previous_ready != nullptr ? item->previous_ready->next_ready : list.first) = item->next_ready;
    (item->next_ready != nullptr ? item->next_ready->previous_ready : list.last) = item->previous_ready;
    --size_;
  }

  // Takes the item that goes next; where `demand_only`, of those that somebody waits for. nullptr: there is none.
  T* take(bool demand_only) {
    const std::size_t lists = demand_only ? 1 : lists_.size();
    std::size_t chosen = lists;
    for (std::size_t i = lists; i-- != 0;) {
      if (lists_[i].first == nullptr) continue;
      if (chosen == lists || lists_[chosen].passed < most_passed) chosen = i;
    }
    if (chosen == lists) return nullptr;
    T* const item = lists_[chosen].first;
    remove(item);
    lists_[chosen].passed = 0;
    for (std::size_t i = chosen + 1; i < lists_.size(); ++i) {
      if (lists_[i].first != nullptr && lists_[i].passed < most_passed) ++lists_[i].passed;
    }
    return item;
  }

  // Calls visit(item) for each; it may remove that item.
  template <class Visit>
  void each(Visit&& visit) {
    for (List& list : lists_) {
      for (T* item = list.first; item != nullptr;) {
        T* const next = item->next_ready;
        visit(item);
        item = next;
      }
    }
  }

 private:
  struct List {
    T* first = nullptr;
    T* last = nullptr;
    std::uint32_t passed = 0;
  };
  std::array<List, priority_count> lists_;
  std::size_t size_ = 0;
};

}  // namespace hkv
