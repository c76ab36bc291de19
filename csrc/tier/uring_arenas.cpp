// SPDX-License-Identifier: Apache-2.0
#include "tier/uring_arenas.h"

#include <algorithm>

namespace hkv {

UringArenas::UringArenas(UringRing& ring, std::uint32_t places) : ring_(ring) {
  if (ring.make_table(places) < 0) return;
  for (std::uint32_t place = places; place-- > 0;) free_.push_back(place);
}

bool UringArenas::set(std::uint32_t place, void* data, std::size_t bytes) const {
  return ring_.set_buffer(place, {data, bytes}) == 0;
}

bool UringArenas::add(void* data, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t some = std::min<std::size_t>(bytes - done, uring::most_fixed_bytes);
    std::uint32_t place = 0;
    {
      const std::lock_guard lock(mutex_);
      if (free_.empty()) break;
      place = free_.back();
      free_.pop_back();
    }
    const bool there = set(place, static_cast<std::byte*>(data) + done, some);
    const std::lock_guard lock(mutex_);
    if (!there) {
      free_.push_back(place);
      break;
    }
    const Buffer buffer{begin + done, begin + done + some, begin, place};
    const auto before = [](const Buffer& a, const Buffer& b) { return a.from < b.from; };
    buffers_.insert(std::upper_bound(buffers_.begin(), buffers_.end(), buffer, before), buffer);
    done += some;
    if (done == bytes) return true;
  }
  take_back(begin);
  return false;
}

void UringArenas::drop(void* data) { take_back(reinterpret_cast<std::uintptr_t>(data)); }

void UringArenas::take_back(std::uintptr_t arena) {
  std::vector<std::uint32_t> places;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(buffers_, [&](const Buffer& buffer) {
      if (buffer.arena == arena) places.push_back(buffer.place);
      return buffer.arena == arena;
    });
  }
  for (const std::uint32_t place : places) set(place, nullptr, 0);
  const std::lock_guard lock(mutex_);
  free_.insert(free_.end(), places.begin(), places.end());
}

UringArenas::Run UringArenas::find(std::span<const iovec> pieces) const {
  if (pieces.empty()) return {};
  const auto from = reinterpret_cast<std::uintptr_t>(pieces.front().iov_base);
  const std::lock_guard lock(mutex_);
  const auto after = std::upper_bound(buffers_.begin(), buffers_.end(), from,
                                      [](std::uintptr_t at, const Buffer& each) { return at < each.from; });
  if (after == buffers_.begin()) return {};
  const Buffer& buffer = *std::prev(after);
  Run run{0, buffer.place};
  for (const iovec& piece : pieces.first(ring_.fixes_pieces() ? pieces.size() : 1)) {
    const auto at = reinterpret_cast<std::uintptr_t>(piece.iov_base);
    if (at < buffer.from || at >= buffer.to || piece.iov_len > buffer.to - at) break;
    ++run.pieces;
  }
  return run;
}

}  // namespace hkv
