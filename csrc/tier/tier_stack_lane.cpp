// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <new>

#include "base/check.h"
#include "tier/tier_stack_engine.h"

namespace hkv {

void TierStack::Lane::push(Ask* ask) {
  ask->state = Ask::State::Waiting;
  waiting.push(ask);
}

TierStack::Ask* TierStack::Lane::take() {
  if (refused == nullptr) return waiting.take(false);
  Ask* const first = refused;
  refused = nullptr;
  return first;
}

void TierStack::Lane::remove(Ask* ask) {
  if (ask == refused) {
    refused = nullptr;
  } else {
    waiting.remove(ask);
  }
}

TierStatus TierStack::Lane::send(Ask* ask) {
  using Kind = Operation::Kind;
  const Job& job = *ask->job;
  Operation* const operation = job.operation;
  const Kind kind = operation == nullptr ? Kind::Put : operation->kind;
  const Deadline deadline = job.deadline();
  TierStatus status = TierStatus::Invalid;
  try {
    if (sent.size() == sent.capacity()) sent.reserve(2 * sent.size() + 8);
    switch (kind) {
      case Kind::Get: {
        const GetItem item{operation->key, operation->parts, &operation->envelope};
        status = tier->get({&item, 1}, deadline, operation->priority, ask->batch);
        break;
      }
      case Kind::Put: {
        PutItem item = job.put;
        item.durable = item.durable && caps.durable;
        status = tier->put({&item, 1}, deadline, ask->batch);
        break;
      }
      case Kind::Remove: status = tier->remove({&operation->key, 1}, deadline, ask->batch); break;
      case Kind::Probe: status = tier->probe({&operation->key, 1}, deadline, ask->batch); break;
      case Kind::Flush: status = tier->flush(deadline, ask->batch); break;
    }
  } catch (const std::bad_alloc&) {  // nothing was taken then
    status = TierStatus::NoSpace;
  }
  if (status == TierStatus::Busy) {
    refused = ask;
  } else if (status == TierStatus::Ok) {
    ask->state = Ask::State::Sent;
    sent.push_back(ask);
  }
  return status;
}

TierStack::Ask* TierStack::Lane::reported(const Done& done) {
  const auto found =
      std::find_if(sent.begin(), sent.end(), [&](const Ask* each) { return each->batch == done.batch; });
  if (found == sent.end()) return nullptr;
  Ask* const ask = *found;
  if (done.released) {
    sent.erase(found);
  } else {
    ask->state = Ask::State::Late;
  }
  return ask;
}

}  // namespace hkv
