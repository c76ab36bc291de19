// SPDX-License-Identifier: Apache-2.0
#include "cache/events.h"

#include <algorithm>
#include <bit>
#include <iterator>

namespace hkv {

std::vector<StoreEvent> EventReader::read(bool anew) {
  const std::lock_guard lock(reading_);
  told_.resize(store_.blocks());
  std::vector<StoreEvent> events;
  anew |= store_.changes().take_forgotten();
  if (anew) {
    std::fill(told_.begin(), told_.end(), Told{});
    held_.clear();
    events.emplace_back();
  }
  store_.changes().take(store_.blocks(), anew, [&](DescriptorId id) { compare(id); });
  const auto ends_before = [](const StoreEvent& a, const StoreEvent& b) {
    return a.end_tokens < b.end_tokens;
  };
  std::stable_sort(removed_.begin(), removed_.end(),
                   [&](const StoreEvent& a, const StoreEvent& b) { return ends_before(b, a); });
  std::stable_sort(stored_.begin(), stored_.end(), ends_before);
  events.insert(events.end(), removed_.begin(), removed_.end());
  events.insert(events.end(), stored_.begin(), stored_.end());
  removed_.clear();
  stored_.clear();
  return events;
}

// Brings what was told of one descriptor in step with its words.
void EventReader::compare(DescriptorId id) {
  Told& told = told_[index(id)];
  const BlockStore::Holding held = store_.holding(id);
  const Told now{held.key, held.groups, held.groups == 0 ? 0 : store_.recency().end(id)};
  const bool same = told.groups != 0 && told.key == now.key;
  lose(told, same ? told.groups & ~now.groups : told.groups);
  gain(id, now, same ? now.groups & ~told.groups : now.groups);
  told = now;
}

void EventReader::lose(const Told& told, std::uint32_t groups) {
  if (groups == 0) return;
  const auto entry = held_.find(told.key);
  for (std::uint32_t bits = groups; bits != 0; bits &= bits - 1) {
    const int group = std::countr_zero(bits);
    if (--entry->second[static_cast<std::size_t>(group)] != 0) continue;
    removed_.push_back({StoreEventKind::Removed, group, told.key, told.end, std::nullopt,
                        store_.gone().find(told.key, group)});
  }
  if (entry->second == Counts{}) held_.erase(entry);
}

void EventReader::gain(DescriptorId id, const Told& now, std::uint32_t groups) {
  if (groups == 0) return;
  Counts& counts = held_[now.key];
  const std::optional<Key128> parent = store_.parent_key(id);
  for (std::uint32_t bits = groups; bits != 0; bits &= bits - 1) {
    const int group = std::countr_zero(bits);
    if (++counts[static_cast<std::size_t>(group)] != 1) continue;
    stored_.push_back({StoreEventKind::Stored, group, now.key, now.end, parent, {}});
  }
}

}  // namespace hkv
