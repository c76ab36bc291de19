// SPDX-License-Identifier: Apache-2.0
// What a cache is asked: a match, the right to memory, a step of many requests.
//
// Thread safety: plain values.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "alloc/admission.h"
#include "block/page_pool.h"
#include "cache/keep.h"
#include "cache/lease.h"
#include "layout/key_chain.h"

namespace hkv {

using Digest16 = std::array<std::uint8_t, 16>;

enum class Verify : std::uint8_t { Off, Sampled, All };

// What a match is asked.
struct Question {
  const KeyChain* keys = nullptr;
  std::int64_t limit = 0;  // lengths are below it
  std::int64_t drop_tokens = 0;
  std::int64_t exactly = -1;          // match_at: this length or none
  std::span<const FormatId> formats;  // reader's format a group; empty: the spec's
  Verify verify = Verify::Sampled;
};

// Who asks for the right to memory.
struct AdmitQuestion {
  std::shared_ptr<const KeyChain> start;  // the lease's keys, or a chain without tokens
  std::int64_t max_tokens = 0;
  std::int64_t states = 0;  // pages for states asked for at a time
  std::uint32_t groups =
      ~0u;                 // bit a group that the request uses: of the others it takes and publishes nothing
  Lease* lease = nullptr;  // outlives the ticket; pins are the ticket's to drop
  bool lease_waits =
      false;  // launched work reads it: where the request is refused its pins are the caller's to drop
  KeepPolicy keep;
  std::span<const FormatId> formats;
};
struct NotAdmitted {
  Refusal reason = Refusal::None;
  int group = 0;  // that is short, where one is
};

// What became of one request of a step.
enum class StepStatus : std::int32_t { Ok, OutOfPages, NoTicket, BadArgument, Narrow };

// Arrays of the caller, one entry a request where nothing else is said.
struct StepArrays {
  std::int64_t requests = 0;
  const std::int64_t* tickets = nullptr;   // handles
  const std::int32_t* grow = nullptr;      // tokens
  const std::int64_t* computed = nullptr;  // new totals; below 0: as it was
  TokenView tokens;                        // ids of all requests, one after another
  const std::int64_t* starts = nullptr;    // where each request's begin, and the end; null: no ids
  std::int32_t* out_pages = nullptr;       // [[requests, groups, new_pages]]
  std::int64_t new_pages = 0;
  std::int32_t* copies = nullptr;  // [[copies_room, 4]] group, source, target, rows
  std::int64_t copies_room = 0;
  std::int32_t* status = nullptr;
  std::int32_t* eager =
      nullptr;  // after the step: the group whose table is wider than captured, -1: none; null: not asked
  bool settles = true;  // false: settle_step follows once an event has passed
};

}  // namespace hkv
