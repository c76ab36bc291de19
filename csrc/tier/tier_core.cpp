// SPDX-License-Identifier: Apache-2.0
#include "tier/tier_core.h"

#include <algorithm>

#include "base/check.h"

namespace hkv {
namespace {

bool is_failure(TierStatus status) {
  return status == TierStatus::Unavailable || status == TierStatus::Timeout;
}

}  // namespace

void Tier::Core::reserve(std::size_t items) {
  reports.reserve(reports.size() + 2 * (alive() + items));
  deadlines.reserve(alive() + items);
  if (late.capacity() < alive() + items) late.reserve(2 * (alive() + items));
}

void Tier::Core::enter(std::unique_ptr<Operation> operation, Deadline now) {
  if (operation->refused) return answer(std::move(operation), TierStatus::Invalid);
  const Breaker::Admission admission = breaker.admit(now);
  if (admission == Breaker::Admission::Refuse) return answer(std::move(operation), TierStatus::Unavailable);
  operation->trial = admission == Breaker::Admission::Trial;
  deadlines.push(operation.get());
  ready.push(operation.release());
}

Tier::Operation* Tier::Core::next(std::size_t depth) {
  const std::size_t most_behind = depth == 1 ? 1 : depth - std::max<std::size_t>(1, depth / 4);
  while (running < depth) {
    Operation* const operation = ready.take(running_behind >= most_behind);
    if (operation == nullptr) return nullptr;
    const Deadline now = TierClock::now();
    if (operation->deadline <= now) {
      deadlines.remove(operation);
      time_out_queued(operation, now);
      signal();
      continue;
    }
    operation->state = Operation::State::Running;
    ++running;
    running_behind += operation->priority != Priority::Demand;
    return operation;
  }
  return nullptr;
}

std::unique_ptr<Tier::Operation> Tier::Core::settle(Operation* operation, TierStatus status, Damage damage) {
  const bool was_late = operation->state == Operation::State::Late;
  HKV_CHECK(was_late || operation->state == Operation::State::Running);
  --running;
  running_behind -= operation->priority != Priority::Demand;
  if (was_late) {
    std::erase(late, operation);  // its failure was counted when it became late
  } else {
    deadlines.remove(operation);
  }
  report(*operation, status, damage, true);
  if (!was_late) {
    if (is_failure(status)) {
      failed(operation->trial, TierClock::now());
    } else if (status == TierStatus::Cancelled || status == TierStatus::Closed) {
      breaker.withdrawn(operation->trial);
    } else {
      breaker.answered(operation->trial);
    }
  }
  return std::unique_ptr<Operation>(operation);
}

void Tier::Core::expire(Deadline now) {
  while (Operation* const operation = deadlines.earliest()) {
    if (operation->deadline > now) return;
    if (operation->state == Operation::State::Queued) {
      leave_queue(operation);
      time_out_queued(operation, now);
      continue;
    }
    deadlines.remove(operation);
    report(*operation, TierStatus::Timeout, Damage::None, false);
    operation->state = Operation::State::Late;
    late.push_back(operation);
    failed(operation->trial, now);
  }
}

void Tier::Core::time_out_queued(Operation* operation, Deadline now) {
  const bool trial = operation->trial;
  answer(std::unique_ptr<Operation>(operation), TierStatus::Timeout);
  if (!late.empty()) {
    failed(trial, now);
  } else {
    breaker.withdrawn(trial);
  }
}

void Tier::Core::failed(bool trial, Deadline now) {
  if (!breaker.failed(trial, now)) return;
  ++counted.breaker_opened;
  answer_queued(TierStatus::Unavailable, [](const Operation&) { return true; });
}

void Tier::Core::answer(std::unique_ptr<Operation> operation, TierStatus status) {
  report(*operation, status, Damage::None, true);
}

void Tier::Core::report(const Operation& operation, TierStatus status, Damage damage, bool released) {
  const bool was_late = operation.state == Operation::State::Late;
  reports.push({operation.batch, operation.item, status, damage, released, was_late});
  count(operation, status);
}

void Tier::Core::count(const Operation& operation, TierStatus status) {
  const bool was_late = operation.state == Operation::State::Late;
  switch (status) {
    case TierStatus::Ok:
      counted.hits += operation.kind == Operation::Kind::Get && !was_late;
      counted.puts += operation.kind == Operation::Kind::Put;
      counted.removed += operation.kind == Operation::Kind::Remove;
      break;
    case TierStatus::Miss: counted.misses += operation.kind == Operation::Kind::Get && !was_late; break;
    case TierStatus::Corrupt: ++counted.corrupt; break;
    case TierStatus::Mismatch: ++counted.mismatched; break;
    case TierStatus::Timeout: counted.timeouts += !was_late; break;
    case TierStatus::IoError: ++counted.io_errors; break;
    case TierStatus::Busy:
    case TierStatus::NoSpace:
    case TierStatus::Unavailable:
    case TierStatus::Invalid:
    case TierStatus::Declined:
    case TierStatus::ReadOnly: ++counted.refused; break;
    case TierStatus::Cancelled:
    case TierStatus::Closed: break;
  }
}

bool Tier::Core::uses(std::uintptr_t from, std::uintptr_t to) const {
  const auto in_it = [&](const Part& part) {
    const auto at = reinterpret_cast<std::uintptr_t>(part.data);
    return at < to && at + part.bytes > from;
  };
  const auto used_by = [&](const Operation* operation) {
    return std::any_of(operation->parts.begin(), operation->parts.end(), in_it);
  };
  return std::any_of(late.begin(), late.end(), used_by) ||
         std::any_of(deadlines.begin(), deadlines.end(), used_by);
}

void Tier::Core::signal() {
  if (reports.empty()) {
    wake.lower();
  } else {
    wake.raise();
  }
  if (const Operation* const earliest = deadlines.earliest()) wake.arm_by(earliest->deadline);
  changed.notify_all();
}

}  // namespace hkv
