// SPDX-License-Identifier: Apache-2.0
// Making a cache, its pools and formats, and looking at one block.
#include "cache/cache.h"

#include <algorithm>
#include <numeric>

#include "cache/transfers.h"
#include "layout/residency.h"

namespace hkv {
namespace {

std::vector<GroupSlot> slots_for(const Layout& layout) {
  std::vector<GroupSlot> slots;
  std::uint8_t used[2] = {0, 0};
  for (const Group& group : layout.groups) {
    const WordClass which = group.prefix() ? WordClass::H : WordClass::B;
    slots.push_back({which, used[static_cast<int>(which)]++, static_cast<StateKind>(group.kind)});
  }
  return slots;
}

std::vector<std::uint32_t> pages_for(const Layout& layout) {
  std::vector<std::uint32_t> pages;
  for (const Group& group : layout.groups) pages.push_back(static_cast<std::uint32_t>(group.pages));
  return pages;
}

}  // namespace

HybridCache::HybridCache(Layout layout, std::int64_t blocks, std::vector<Digest16> formats,
                         EvictionOrder order, AdmissionLimits admission)
    : layout_(std::move(layout)),
      store_(static_cast<std::uint32_t>(blocks), slots_for(layout_), pages_for(layout_)),
      page_formats_(layout_.groups.size()),
      memory_(layout_.groups.size()),
      misaligned_(layout_.groups.size(), Code::None),
      private_pages_(new Atom<std::int64_t>[layout_.groups.size()]),
      unowned_pages_(new Atom<std::int64_t>[layout_.groups.size()]),
      quarantined_pages_(new Atom<std::int64_t>[layout_.groups.size()]),
      admission_(layout_, admission),
      graph_tokens_(layout_.groups.size(), Ticket::never),
      policy_(make_eviction(order, layout_, store_)) {
  for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
    const Group& group = layout_.groups[g];
    spec_formats_.push_back(format_id(formats[g]));
    if (!is_live_group(group, layout_.block_tokens(group)))
      record_units_ = std::gcd(record_units_, group.block_units);
    if (!group.prefix()) continue;
    one_prefix_block_ &= group.block_units == layout_.probe_units;
    prefix_slots_ = static_cast<SlotMask>(prefix_slots_ | 1u << store_.slot_of(static_cast<int>(g)).slot);
  }
}

HybridCache::~HybridCache() { detach(); }  // while its pages are there

void HybridCache::attach(const TierLink& link) {
  link_ = link;
  transfers_ = std::make_unique<Transfers>(*this);
  const std::lock_guard lock(choosing_);
  if (policy_ != nullptr) policy_->check_copies(&transfers_->copies());
}

void HybridCache::detach() {
  {
    const std::lock_guard lock(choosing_);
    if (policy_ != nullptr) policy_->check_copies(nullptr);
  }
  transfers_.reset();
  link_ = {};
}

void HybridCache::bind(int group, std::vector<PoolArray> arrays, bool host, Code of_kernels, bool writable) {
  const auto g = static_cast<std::size_t>(group);
  memory_[g].bind(std::move(arrays), host, writable);
  const Code declared = memory_[g].misaligned(layout_.groups[g]);
  misaligned_[g] = declared != Code::None ? declared : of_kernels;
  any_host_pool_ |= host;
  if (transfers_ != nullptr) transfers_->pool_bound(group);
}

FormatId HybridCache::format_id(const Digest16& fingerprint) {
  const auto found = std::find(formats_.begin(), formats_.end(), fingerprint);
  if (found != formats_.end()) return static_cast<FormatId>(found - formats_.begin());
  if (formats_.size() >= 0xFFFF) {
    throw Error(ErrorCode::ArgumentError, "formats", "at most 65535 formats in one cache", "one more");
  }
  formats_.push_back(fingerprint);
  return static_cast<FormatId>(formats_.size() - 1);
}

HybridCache::Inspection HybridCache::inspect(const KeyChain& keys, int group, std::int64_t block) const {
  Inspection result;
  std::int64_t tip_unit = -1;
  const Key128 key = key_of_block(keys, group, block, tip_unit);
  const Sighting seen = store_.table().find(key);
  const GroupSlot& at = store_.slot_of(group);
  if (seen.found()) result.phase = seen.word(at.which).phase(at.slot);
  if (result.phase == Phase::Absent && link_.tier != nullptr && tip_unit < 0) {
    const RecordKind kind = layout_.groups[group].prefix() ? RecordKind::Block : RecordKind::Boundary;
    if (ask_tier(key, kind) == TierAnswer::Here) result.phase = Phase::TierOnly;
  }
  if (!seen.found()) return result;
  if (result.phase == Phase::ReadyCopy && transfers_ != nullptr &&
      !transfers_->copies().still(seen.id, at.which, static_cast<SlotMask>(1u << at.slot)))
    result.phase = Phase::Ready;
  result.found = true;
  result.pins = seen.word(at.which).pins();
  if (!holds_page(result.phase)) return result;
  const PageId page = store_.page(seen.id, group);
  if (page == no_page || index(page) >= store_.pool(group).count()) return result;
  result.page = page;
  result.handouts = store_.pool(group)[page].handouts.load();
  return result;
}

Departure HybridCache::departure(const KeyChain& keys, int group, std::int64_t block) const {
  std::int64_t tip_unit = -1;
  return store_.gone().find(key_of_block(keys, group, block, tip_unit), group);
}

void HybridCache::reset() {
  if (live_leases() != 0 || live_fills() != 0 || live_tickets() != 0) {
    throw Error(ErrorCode::Busy, "cache", "no live lease, fill or ticket",
                std::to_string(live_leases()) + " leases, " + std::to_string(live_fills()) + " fills, " +
                    std::to_string(live_tickets()) + " tickets");
  }
  note_all_gone(Cause::Reset);
  store_.reset();
  for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
    page_formats_[g].store(0);
    private_pages_[g].store(0);
    unowned_pages_[g].store(0);
    quarantined_pages_[g].store(0);
  }
  if (policy_ != nullptr) policy_->reset();
  tips_filed_.store(0);
  ++resets_;
}

}  // namespace hkv
