// SPDX-License-Identifier: Apache-2.0
// Arenas of a tier: memory that its user promises to keep.
#include <algorithm>
#include <string>

#include "base/check.h"
#include "tier/tier_core.h"

namespace hkv {
namespace {

[[noreturn]] void bad(const char* field, const char* expected, std::string got) {
  throw Error(ErrorCode::ArgumentError, field, expected, std::move(got));
}

}  // namespace

void Tier::begin_arena(void*, std::size_t) {}

bool Tier::end_arena(void*) { return true; }

TierStatus Tier::add_arena(void* data, std::size_t bytes) {
  if (data == nullptr) bad("data", "memory", "null");
  if (bytes == 0) bad("bytes", "at least 1", "0");
  const auto from = reinterpret_cast<std::uintptr_t>(data);
  if (bytes > UINTPTR_MAX - from) bad("bytes", "memory that ends", std::to_string(bytes) + " bytes");
  const std::lock_guard one_at_a_time(core_->arena_mutex);
  std::vector<Core::Arena>& arenas = core_->arenas;
  {
    const std::lock_guard lock(core_->mutex);
    if (core_->life != Core::Life::Open) return TierStatus::Closed;
    const auto next =
        std::find_if(arenas.begin(), arenas.end(), [&](const auto& each) { return each.to > from; });
    if (next != arenas.end() && next->from < from + bytes) {
      bad("data", "memory that is in no other arena",
          "an arena of " + std::to_string(next->to - next->from) + " bytes overlaps these " +
              std::to_string(bytes));
    }
    arenas.insert(next, {from, from + bytes});
  }
  begin_arena(data, bytes);
  return TierStatus::Ok;
}

TierStatus Tier::drop_arena(void* data) {
  const auto from = reinterpret_cast<std::uintptr_t>(data);
  const std::lock_guard one_at_a_time(core_->arena_mutex);
  std::vector<Core::Arena>& arenas = core_->arenas;
  const auto at =
      std::find_if(arenas.begin(), arenas.end(), [&](const auto& each) { return each.from == from; });
  if (at == arenas.end()) bad("data", "where an arena begins", data == nullptr ? "null" : "other memory");
  bool ended = false;
  {
    const std::lock_guard lock(core_->mutex);
    if (core_->uses(at->from, at->to)) return TierStatus::Busy;
    ended = core_->life == Core::Life::Ending || core_->life == Core::Life::Closed;
  }
  if (!ended && !end_arena(data)) return TierStatus::Busy;
  const std::lock_guard lock(core_->mutex);
  arenas.erase(at);
  return TierStatus::Ok;
}

}  // namespace hkv
