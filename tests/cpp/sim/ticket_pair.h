// SPDX-License-Identifier: Apache-2.0
// One request twice: in the cache and in the model.
#pragma once
#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "cache/ticket.h"
#include "sim/ticket_model.h"

namespace hkv::sim {

struct Pair {
  std::unique_ptr<Ticket> ticket;
  std::unique_ptr<Lease> lease;
  std::list<Request>::iterator model;
  std::int64_t states = 0;
  std::vector<std::function<void()>> waiting;  // effects on the cache whose event has not passed
};

}  // namespace hkv::sim
