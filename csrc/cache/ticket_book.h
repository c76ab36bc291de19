// SPDX-License-Identifier: Apache-2.0
// Live tickets by handle: what a batch names its requests by.
//
// Thread safety: add and remove under a mutex; find on any thread, of a handle whose ticket nobody closes
// meanwhile (a ticket has one owner at a time), or of an old one of the caller's.
// Invariant: a handle is an index and the number of tickets that place had. Whoever uses an old handle is ordered
// after the remove that moved the number on, sees it, and finds nothing; hence relaxed loads are enough.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/atomic.h"
#include "base/check.h"

namespace hkv {

struct Ticket;

class TicketBook {
 public:
  // Progress: may lock.
  std::int64_t add(Ticket* ticket) {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (free_.empty()) {
      if (chunks_used_ == chunks_.size())
        throw Error(ErrorCode::Busy, "tickets", "at most 1048576 live tickets", "one more");
      owned_.push_back(std::make_unique<Chunk>());
      chunks_[chunks_used_].store(owned_.back().get());
      for (std::uint32_t i = chunk_tickets; i-- > 0;)
        free_.push_back(static_cast<std::uint32_t>(chunks_used_) * chunk_tickets + i);
      ++chunks_used_;
    }
    const std::uint32_t index = free_.back();
    free_.pop_back();
    Place& place = (*owned_[index / chunk_tickets])[index % chunk_tickets];
    place.ticket.store(ticket);
    ++live_;
    return static_cast<std::int64_t>(place.turn.load()) << 32 | index;
  }

  // Requires: a handle of add, once. Progress: may lock.
  void remove(std::int64_t handle) {
    const std::lock_guard<std::mutex> guard(mutex_);
    const auto index = static_cast<std::uint32_t>(handle);
    Place& place = (*owned_[index / chunk_tickets])[index % chunk_tickets];
    place.ticket.store(nullptr);
    const std::uint32_t next = (place.turn.load() + 1) & 0x7FFFFFFF;
    place.turn.store(next == 0 ? 1 : next);
    free_.push_back(index);
    --live_;
  }

  // Returns: the ticket, or nullptr for a handle that is none, or none any more. Progress: wait-free.
  Ticket* find(std::int64_t handle) const {
    const auto index = static_cast<std::uint32_t>(handle);
    const std::size_t chunk = index / chunk_tickets;
    if (handle < 0 || chunk >= chunks_.size()) return nullptr;
    const Chunk* const places = chunks_[chunk].load();
    if (places == nullptr) return nullptr;
    const Place& place = (*places)[index % chunk_tickets];
    return place.turn.load() == static_cast<std::uint32_t>(handle >> 32) ? place.ticket.load() : nullptr;
  }

  // Calls f for every live ticket. Requires: nobody uses one meanwhile. Progress: may lock.
  template <class F>
  void each(F&& f) {
    const std::lock_guard<std::mutex> guard(mutex_);
    for (const auto& places : owned_) {
      for (const Place& place : *places) {
        if (Ticket* const ticket = place.ticket.load()) f(*ticket);
      }
    }
  }

  std::int64_t live() const {
    const std::lock_guard<std::mutex> guard(mutex_);
    return live_;
  }

 private:
  static constexpr std::uint32_t chunk_tickets = 1024;
  struct Place {
    Atom<Ticket*> ticket;
    Atom<std::uint32_t> turn{1};  // no handle is 0
  };
  using Chunk = std::array<Place, chunk_tickets>;

  mutable std::mutex mutex_;
  std::array<Atom<Chunk*>, 1024> chunks_;
  std::vector<std::unique_ptr<Chunk>> owned_;
  std::size_t chunks_used_ = 0;
  std::vector<std::uint32_t> free_;
  std::int64_t live_ = 0;
};

}  // namespace hkv
