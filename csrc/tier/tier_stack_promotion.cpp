// SPDX-License-Identifier: Apache-2.0
// Copying up: what a slower tier had is put into the faster ones.
//
// A chain of blocks is read side by side and comes back in any order, but a tier takes a block below its parent only. So a
// copy whose parent is itself on its way is parked until that one was sent up, or will not be.
#include <algorithm>
#include <cstring>
#include <new>

#include "tier/tier_stack_engine.h"

namespace hkv {

// Never fails what was found: without memory there is no copy.
void TierStack::Engine::promote(const Job& job) {
  if (job.at == 0 || ending_) return;
  if (job.beside_remove || job.removals != removals_) return;  // (5)
  std::unique_ptr<Job> copy;
  try {
    copy = copy_of(job);
  } catch (const std::bad_alloc&) {
  }
  if (copy == nullptr) return;
  Job& promotion = *copy;
  promotion_bytes_ += promotion.bytes;
  promotions_.push_back(std::move(copy));
  if (promotion.put.parent != Key128{} && is_on_its_way(promotion.put.parent)) {
    promotion.parked = true;
    ++parked_;
  } else {
    send_up(promotion);
  }
}

// Returns: nullptr where there is nothing to copy up, or no room for it.
std::unique_ptr<TierStack::Job> TierStack::Engine::copy_of(const Job& job) const {
  const Operation& get = *job.operation;
  Envelope envelope;
  if (read_envelope(get.envelope, envelope) != Damage::None) return nullptr;
  if (envelope.parts.size() != get.parts.size()) return nullptr;  // (6)
  const auto lacks_it = [&](const auto& lane) {
    return lane->tier->look(get.key).answer != Presence::Answer::Here;
  };
  const auto found = lanes.begin() + static_cast<std::ptrdiff_t>(job.at);
  if (std::none_of(lanes.begin(), found, lacks_it)) return nullptr;
  const std::uint64_t bytes = envelope_bytes(envelope.parts.size()) + envelope.payload_bytes;
  if (bytes > options.promotion_bytes - promotion_bytes_ || promotions_.size() == most_promotions) {
    std::for_each(lanes.begin(), found, [](const auto& lane) { lane->counts.not_promoted.fetch_add(1); });
    return nullptr;
  }

  auto copy = std::make_unique<Job>();
  copy->payload = std::make_unique_for_overwrite<std::byte[]>(envelope.payload_bytes);
  copy->bytes = bytes;
  copy->found = job.at;
  for (std::size_t i = 0; i < get.parts.size(); ++i) {
    const Part& part = get.parts[i];
    const bool in_order = envelope.parts[i].label == part.label;
    const PartEntry* const entry = in_order ? &envelope.parts[i] : find_part(envelope, part.label);
    if (entry == nullptr || entry->bytes != part.bytes) return nullptr;
    std::memcpy(copy->payload.get() + entry->offset, part.data, part.bytes);
  }
  for (const PartEntry& entry : envelope.parts) {
    copy->parts.push_back({copy->payload.get() + entry.offset, entry.bytes, entry.label});
  }
  // A put takes the bytes for what they should be, so they are proved once more, where they lie now.
  if (check_parts(envelope, copy->parts) != Damage::None) return nullptr;
  copy->put = {envelope.key,    envelope.parent, envelope.identity,
               envelope.tokens, copy->parts,     envelope.flags};
  copy->asks.resize(job.at);
  for (std::size_t tier = 0; tier < job.at; ++tier) {
    copy->asks[tier].job = copy.get();
    copy->asks[tier].tier = tier;
  }
  return copy;
}

// Whether a block is being got, or its copy is parked.
bool TierStack::Engine::is_on_its_way(const Key128& block) const {
  const auto is_block = [&](const RecordKey& key) {
    return key.kind == RecordKind::Block && key.digest == block;
  };
  const auto got = [&](const Job& job) {
    return job.operation != nullptr && job.operation->kind == Operation::Kind::Get &&
           is_block(job.operation->key);
  };
  const auto parked = [&](const auto& copy) { return copy->parked && is_block(copy->put.key); };
  return std::any_of(jobs_.begin(), jobs_.end(), got) ||
         (parked_ != 0 && std::any_of(promotions_.begin(), promotions_.end(), parked));
}

void TierStack::Engine::send_up(Job& promotion) {
  for (std::size_t tier = 0; tier < promotion.asks.size(); ++tier) ask(promotion, tier);
}

// Sends up what was parked for a block, and what was parked for that.
void TierStack::Engine::unpark(const Key128& block) {
  unparked_.assign(1, block);
  while (!unparked_.empty()) {
    const Key128 parent = unparked_.back();
    unparked_.pop_back();
    if (is_on_its_way(parent)) continue;
    for (const auto& copy : promotions_) {
      if (!copy->parked || copy->put.parent != parent) continue;
      copy->parked = false;
      --parked_;
      send_up(*copy);
      if (copy->put.key.kind == RecordKind::Block) unparked_.push_back(copy->put.key.digest);
    }
  }
}

// Nothing is on its way any more that could be waited for.
void TierStack::Engine::unpark_all() {
  for (const auto& copy : promotions_) {
    if (!copy->parked) continue;
    copy->parked = false;
    --parked_;
    send_up(*copy);
  }
}

void TierStack::Engine::drop_parked() {
  std::erase_if(promotions_, [&](const auto& copy) {
    if (!copy->parked) return false;
    promotion_bytes_ -= copy->bytes;
    --parked_;
    return true;
  });
}

void TierStack::Engine::promoted(Ask* ask, TierStatus status) {
  Lane::Counts& counts = lanes[ask->tier]->counts;
  (status == TierStatus::Ok ? counts.promoted : counts.not_promoted).fetch_add(1);
  if (ask->job->open == 0) retire(*ask->job);
}

void TierStack::Engine::retire(const Job& promotion) {
  promotion_bytes_ -= promotion.bytes;
  const auto is_it = [&](const auto& copy) { return copy.get() == &promotion; };
  promotions_.erase(std::find_if(promotions_.begin(), promotions_.end(), is_it));
}

}  // namespace hkv
