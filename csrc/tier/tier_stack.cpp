// SPDX-License-Identifier: Apache-2.0
#include "tier/tier_stack.h"

#include <algorithm>

#include "base/check.h"
#include "tier/tier_stack_engine.h"

namespace hkv {
namespace {

void check_tiers(const std::vector<std::shared_ptr<Tier>>& tiers) {
  const auto refuse = [](const char* expected, std::string got) {
    throw Error(ErrorCode::ArgumentError, "tiers", expected, std::move(got));
  };
  if (tiers.size() < 2) refuse("at least 2", std::to_string(tiers.size()));
  for (auto tier = tiers.begin(); tier != tiers.end(); ++tier) {
    const std::string place = std::to_string(tier - tiers.begin());
    if (*tier == nullptr) refuse("tiers", "none at " + place);
    if (std::find(tiers.begin(), tier, *tier) != tier) refuse("each tier once", "one again at " + place);
  }
}

}  // namespace

TierStack::TierStack(std::vector<std::shared_ptr<Tier>> tiers, const StackOptions& options)
    : Tier(options.limits) {
  check_tiers(tiers);
  engine_ = std::make_unique<Engine>(*this, std::move(tiers), options);
  engine_->thread = std::thread([this] { engine_->run(); });
}

TierStack::~TierStack() { close(); }

TierCaps TierStack::caps() const { return engine_->caps; }

Presence TierStack::look(const RecordKey& key) const {
  using Answer = Presence::Answer;
  const auto rank = [](Answer answer) {
    switch (answer) {
      case Answer::Here: return 3;
      case Answer::OtherFormat: return 2;
      case Answer::Unknown: return 1;
      case Answer::Absent: return 0;
    }
    return 0;
  };
  Presence best;
  for (const auto& lane : engine_->lanes) {
    const Presence found = lane->tier->look(key);
    if (found.answer == Answer::Here) return found;
    if (rank(found.answer) > rank(best.answer)) best = found;
  }
  return best;
}

Presence TierStack::look_lasting(const RecordKey& key) const {
  return engine_->lanes.back()->tier->look_lasting(key);
}

std::uint64_t TierStack::losses() const { return engine_->lanes.back()->tier->losses(); }

void TierStack::touch(const RecordKey& key) {
  for (const auto& lane : engine_->lanes) lane->tier->touch(key);
}

std::size_t TierStack::tiers() const { return engine_->lanes.size(); }

TierUsage TierStack::usage_of(std::size_t tier) const {
  HKV_CHECK(tier < tiers());
  return engine_->lanes[tier]->tier->usage();
}

StackCounts TierStack::counts_of(std::size_t tier) const {
  HKV_CHECK(tier < tiers());
  const Lane::Counts& counts = engine_->lanes[tier]->counts;
  return {counts.hits.load(), counts.failed.load(), counts.copies_refused.load(), counts.promoted.load(),
          counts.not_promoted.load()};
}

TierUsage TierStack::engine_usage() const {
  TierUsage usage;
  for (const auto& lane : engine_->lanes) {
    const TierUsage one = lane->tier->usage();
    usage.bytes_read += one.bytes_read;
    usage.bytes_written += one.bytes_written;
    usage.reclaimed += one.reclaimed;
    usage.fixed_requests += one.fixed_requests;
    usage.arena_reads += one.arena_reads;
    usage.arenas_fixed = one.arenas_fixed;
    usage.records = one.records;  // of the last one in the end
    usage.bytes = one.bytes;
    usage.capacity_bytes = one.capacity_bytes;
    usage.put_known = one.put_known;
    usage.read_only = one.read_only;
  }
  return usage;
}

void TierStack::begin(Operation* operation) {
  Engine::Inbox& inbox = engine_->inbox;
  const std::lock_guard lock(inbox.mutex);
  inbox.begun.push_back(operation);
  inbox.wake.raise();
}

void TierStack::cancel_begun(BatchId batch) {
  Engine::Inbox& inbox = engine_->inbox;
  const std::lock_guard lock(inbox.mutex);
  if (inbox.ending) return;
  inbox.cancelled.push_back(batch);
  inbox.wake.raise();
}

void TierStack::begin_arena(void* data, std::size_t bytes) {
  Engine::Arena& arena = engine_->arenas[data];
  arena.bytes = bytes;
  for (const auto& lane : engine_->lanes) {
    try {
      if (lane->tier->add_arena(data, bytes) == TierStatus::Ok) arena.lanes.push_back(lane.get());
    } catch (const Error&) {  // it has memory of this by itself: what lies there it knows already
    }
  }
}

bool TierStack::end_arena(void* data) {
  const Engine::Arena arena = std::move(engine_->arenas[data]);
  engine_->arenas.erase(data);
  bool gone = true;
  for (Lane* lane : arena.lanes) {
    // Somebody asked anew meanwhile, with memory that lies there.
    if (lane->tier->drop_arena(data) != TierStatus::Ok) gone = false;
    if (!gone) break;
  }
  if (gone) return true;
  for (Lane* lane : arena.lanes) {  // those that let go take it again
    try {
      lane->tier->add_arena(data, arena.bytes);
    } catch (const Error&) {
    }
  }
  engine_->arenas.emplace(data, arena);
  return false;
}

void TierStack::end() {
  {
    Engine::Inbox& inbox = engine_->inbox;
    const std::lock_guard lock(inbox.mutex);
    inbox.ending = true;
    inbox.wake.raise();
  }
  engine_->thread.join();
}

}  // namespace hkv
