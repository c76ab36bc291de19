// SPDX-License-Identifier: Apache-2.0
#include "tier/tier_stack_engine.h"

#include <algorithm>

#include "base/check.h"

namespace hkv {
namespace {

// Whether a status is told although a slower tier knows nothing of the record.
bool is_finding(TierStatus status) {
  return status == TierStatus::Corrupt || status == TierStatus::Mismatch || status == TierStatus::IoError;
}

bool may_have(Presence::Answer answer) {
  return answer == Presence::Answer::Here || answer == Presence::Answer::Unknown;
}

}  // namespace

TierStack::Engine::Engine(TierStack& of, std::vector<std::shared_ptr<Tier>> tiers, const StackOptions& given)
    : stack(of), options(given) {
  std::size_t together = 0;
  caps.index = true;
  watched_.push_back({inbox.wake.fd(), POLLIN, 0});
  for (std::shared_ptr<Tier>& tier : tiers) {
    auto lane = std::make_unique<Lane>();
    lane->tier = std::move(tier);
    lane->caps = lane->tier->caps();
    caps.index = caps.index && lane->caps.index;
    together += std::max<std::size_t>(1, lane->caps.depth);
    watched_.push_back({lane->tier->event_fd(), POLLIN, 0});
    lanes.push_back(std::move(lane));
  }
  caps.depth = options.depth != 0 ? options.depth : together;
  caps.durable = lanes.back()->caps.durable;
  caps.most_bytes = lanes.back()->caps.most_bytes;
  jobs_ = std::vector<Job>(caps.depth);
  for (Job& job : jobs_) {
    job.asks.resize(lanes.size());
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      job.asks[i].job = &job;
      job.asks[i].tier = i;
    }
    free_.push_back(&job);
  }
  taken_.reserve(caps.depth);
  inbox.begun.reserve(caps.depth);
  promotions_.reserve(most_promotions);
  unparked_.reserve(most_promotions + 1);
}

// ---- the thread ---------------------------------------------------------------------------------

void TierStack::Engine::run() {
  for (;;) {
    bool moved = take_inbox();
    for (const auto& lane : lanes) moved |= send(*lane);
    for (const auto& lane : lanes) moved |= collect(*lane);
    moved |= expire();
    if (ending_) return shut_down();
    if (!moved) wait();
  }
}

bool TierStack::Engine::take_inbox() {
  {
    const std::lock_guard lock(inbox.mutex);
    taken_.swap(inbox.begun);
    cancelled_.swap(inbox.cancelled);
    ending_ = inbox.ending;
    inbox.wake.lower();
  }
  for (Operation* const operation : taken_) start(operation);
  if (!cancelled_.empty()) {
    for (const auto& lane : lanes) send(*lane);  // what the tiers can begin at once goes on
    for (const BatchId batch : cancelled_) cancel(batch);
  }
  const bool any = !taken_.empty() || !cancelled_.empty();
  taken_.clear();
  cancelled_.clear();
  return any;
}

// Sends what waits, until the tier is full.
bool TierStack::Engine::send(Lane& lane) {
  bool moved = false;
  while (Ask* const ask = lane.take()) {
    const TierStatus status = lane.send(ask);
    if (status == TierStatus::Busy) break;  // once something ended there is room again
    moved = true;
    if (status != TierStatus::Ok) answered(ask, status, Damage::None);
  }
  return moved;
}

bool TierStack::Engine::collect(Lane& lane) {
  std::array<Done, 64> reports;
  const std::size_t count = lane.tier->poll(reports);
  for (std::size_t i = 0; i < count; ++i) {
    const Done& done = reports[i];
    Ask* const ask = lane.reported(done);
    if (ask != nullptr && done.released) answered(ask, done.status, done.damage);
  }
  return count != 0;
}

// What a full tier keeps waiting is nobody's memory, and times out here.
bool TierStack::Engine::expire() {
  bool moved = false;
  for (const auto& lane : lanes) {
    if (lane->refused == nullptr) continue;
    const Deadline now = TierClock::now();
    const auto time_out = [&](Ask* ask) {
      if (ask->job->deadline() > now) return;
      lane->remove(ask);
      answered(ask, TierStatus::Timeout, Damage::None);
      moved = true;
    };
    lane->waiting.each(time_out);
    time_out(lane->refused);
  }
  return moved;
}

void TierStack::Engine::wait() {
  Deadline until = Deadline::max();
  for (const auto& lane : lanes) {
    if (lane->refused == nullptr) continue;
    until = std::min(until, lane->refused->job->deadline());
    lane->waiting.each([&](const Ask* ask) { until = std::min(until, ask->job->deadline()); });
  }
  WakeFds::wait(watched_, until - TierClock::now());
}

// Closes the tiers, the fastest first, so that what one of them fails can still be asked of the next.
void TierStack::Engine::shut_down() {
  drop_parked();
  const auto settle = [&](Lane& lane) {
    while (send(lane) || collect(lane)) {
    }
  };
  for (const auto& lane : lanes) {
    send(*lane);
    lane->tier->close();
    settle(*lane);
  }
  for (const auto& lane : lanes) settle(*lane);
  HKV_CHECK(free_.size() == jobs_.size() && promotions_.empty());
}

// ---- jobs ---------------------------------------------------------------------------------------

void TierStack::Engine::start(Operation* operation) {
  using Kind = Operation::Kind;
  HKV_CHECK(!free_.empty());
  Job& job = *free_.back();
  free_.pop_back();
  job.operation = operation;
  job.at = 0;
  job.status = operation->kind == Kind::Flush ? TierStatus::Ok : TierStatus::Miss;
  job.damage = Damage::None;
  job.cancelled = false;
  job.beside_remove = removes_under_way_ != 0;
  job.removals = removals_;
  switch (operation->kind) {
    case Kind::Get: ++gets_under_way_; [[fallthrough]];
    case Kind::Probe: return ask_next(job);
    case Kind::Put:
      job.put = {operation->key,   operation->parent, operation->identity, operation->tokens,
                 operation->parts, operation->flags,  operation->pinned,   operation->durable};
      break;
    case Kind::Remove:
      ++removals_;
      ++removes_under_way_;
      drop_parked();
      break;
    case Kind::Flush: break;
  }
  for (std::size_t tier = 0; tier < lanes.size(); ++tier) {
    if (operation->kind != Kind::Flush || lanes[tier]->caps.durable || tier == slowest()) ask(job, tier);
  }
}

void TierStack::Engine::ask(Job& job, std::size_t tier) {
  Ask& ask = job.asks[tier];
  ask.priority = job.operation == nullptr ? Priority::Write : job.operation->priority;
  ++job.open;
  lanes[tier]->push(&ask);
}

// Asks the next tier that may have the record of a get or a probe.
void TierStack::Engine::ask_next(Job& job) {
  const Operation& operation = *job.operation;
  if (job.cancelled) return over(job, TierStatus::Cancelled, Damage::None);
  if (operation.deadline <= TierClock::now()) return over(job, TierStatus::Timeout, Damage::None);
  for (; job.at < lanes.size(); ++job.at) {
    if (may_have(lanes[job.at]->tier->look(operation.key).answer)) return ask(job, job.at);
  }
  over(job, job.status, job.damage);
}

// The tier let go of what it was asked for.
void TierStack::Engine::answered(Ask* ask, TierStatus status, Damage damage) {
  using Kind = Operation::Kind;
  Job& job = *ask->job;
  Lane& lane = *lanes[ask->tier];
  ask->state = Ask::State::Idle;
  --job.open;
  if (job.operation == nullptr) return promoted(ask, status);
  switch (job.operation->kind) {
    case Kind::Get:
    case Kind::Probe:
      if (status == TierStatus::Ok) return found(job);
      lane.counts.failed.fetch_add(1);
      if (status == TierStatus::Cancelled) return over(job, status, damage);
      if (status != TierStatus::Miss || !is_finding(job.status)) {
        job.status = status;
        job.damage = damage;
      }
      ++job.at;
      return ask_next(job);
    case Kind::Put:
      if (ask->tier == slowest()) {
        job.status = status;
      } else if (status != TierStatus::Ok) {
        lane.counts.copies_refused.fetch_add(1);
      }
      break;
    case Kind::Remove:
    case Kind::Flush:
      if (status != TierStatus::Miss && (status != TierStatus::Ok || job.status == TierStatus::Miss)) {
        job.status = status;
      }
      break;
  }
  if (job.open == 0) over(job, job.status, job.damage);
}

// A tier has brought the record. Those below must not take it for forgotten because it is served from above.
void TierStack::Engine::found(Job& job) {
  if (job.operation->kind == Operation::Kind::Get) {
    lanes[job.at]->counts.hits.fetch_add(1);
    for (std::size_t below = job.at + 1; below < lanes.size(); ++below) {
      lanes[below]->tier->touch(job.operation->key);
    }
    promote(job);
  }
  over(job, TierStatus::Ok, Damage::None);
}

void TierStack::Engine::cancel(BatchId batch) {
  for (Job& job : jobs_) {
    Operation* const operation = job.operation;
    if (operation == nullptr || operation->batch != batch) continue;
    job.cancelled = true;
    for (Ask& ask : job.asks) {
      if (job.operation == nullptr) break;  // that was its last one
      if (ask.state == Ask::State::Sent) lanes[ask.tier]->tier->cancel(ask.batch);
      if (ask.state != Ask::State::Waiting) continue;
      lanes[ask.tier]->remove(&ask);
      answered(&ask, TierStatus::Cancelled, Damage::None);
    }
  }
}

void TierStack::Engine::over(Job& job, TierStatus status, Damage damage) {
  using Kind = Operation::Kind;
  HKV_CHECK(job.open == 0);
  Operation* const operation = job.operation;
  const Kind kind = operation->kind;
  const RecordKey key = operation->key;
  job.operation = nullptr;
  free_.push_back(&job);
  gets_under_way_ -= kind == Kind::Get;
  removes_under_way_ -= kind == Kind::Remove;
  stack.finish(operation, status, damage);
  if (kind != Kind::Get || parked_ == 0) return;
  if (key.kind == RecordKind::Block) unpark(key.digest);
  if (gets_under_way_ == 0) unpark_all();
}

}  // namespace hkv
