// SPDX-License-Identifier: Apache-2.0
// step: one call for all requests of a scheduler's step. Most of them pass no boundary of anything, and cost a few
// loads and stores; nothing is allocated.
#include <algorithm>
#include <array>

#include "cache/cache.h"
#include "cache/ticket.h"

namespace hkv {
namespace {

constexpr std::size_t most_groups = 2 * Word::slots;

bool one_id(const TokenView& tokens, std::int64_t at, std::uint32_t& id) {
  return read_tokens(tokens, at, 1, &id) < 0;
}

}  // namespace

void HybridCache::step(const StepArrays& step) {
  std::fill_n(step.out_pages, step.requests * store_.group_count() * step.new_pages, -1);
  std::fill_n(step.copies, step.copies_room * 4, -1);
  std::int64_t copied = 0;
  for (std::int64_t i = 0; i < step.requests; ++i)
    step.status[i] = static_cast<std::int32_t>(step_one(step, i, copied));
  if (step.eager == nullptr) return;
  for (std::int64_t i = 0; i < step.requests; ++i) {
    const Ticket* const ticket = tickets_.find(step.tickets[i]);
    step.eager[i] = ticket == nullptr ? -1 : ticket->eager;
  }
}

StepStatus HybridCache::step_one(const StepArrays& step, std::int64_t i, std::int64_t& copied) {
  Ticket* const found = tickets_.find(step.tickets[i]);
  if (found == nullptr || found->failed || found->born != resets_) return StepStatus::NoTicket;
  Ticket& ticket = *found;
  const std::int64_t from = step.starts == nullptr ? 0 : step.starts[i];
  const std::int64_t ids = step.starts == nullptr ? 0 : step.starts[i + 1] - from;
  const std::int64_t computed = step.computed[i] == -1 ? ticket.advanced : step.computed[i];
  const std::int64_t grow = step.grow[i];
  if (computed < ticket.advanced || computed > ticket.grown || ids != computed - ticket.advanced ||
      grow < 0 || !in_flight_fits(ticket, std::min(ticket.grown + grow, ticket.max_tokens), computed))
    return StepStatus::BadArgument;
  if (computed < ticket.next_event) {
    if (!advance_quietly(ticket, step.tokens, from, computed)) return StepStatus::BadArgument;
  } else {
    try {
      ticket.keys.append(step.tokens, from, ids);
    } catch (const Error&) {
      return StepStatus::BadArgument;
    }
    advance_aloud(step, ticket, computed, copied);
  }
  if (grow == 0) return StepStatus::Ok;
  if (grow > ticket.max_tokens - ticket.grown) return StepStatus::OutOfPages;
  if (ticket.grown + grow <= ticket.pages_until) {
    note_grown(ticket, ticket.grown + grow);
    return StepStatus::Ok;
  }
  return grow_one(step, i, ticket, ticket.grown + grow);
}

// No block ends, no window slides, no unit closes on the way. Returns: false where an id is none; nothing has
// changed then.
bool HybridCache::advance_quietly(Ticket& ticket, const TokenView& tokens, std::int64_t from,
                                  std::int64_t computed) {
  if (computed == ticket.advanced) return true;
  std::uint32_t id = 0;
  if (computed == ticket.advanced + 1 && ticket.keys.has_tokens()) {
    if (!one_id(tokens, from, id)) return false;
    ticket.keys.append_inside_unit(id);
  } else {
    try {
      ticket.keys.append(tokens, from, computed - ticket.advanced);
    } catch (const Error&) {
      return false;
    }
  }
  ticket.live_at = computed == ticket.grown && !ticket.rewound ? computed : -1;
  ticket.advanced = computed;
  return true;
}

void HybridCache::advance_aloud(const StepArrays& step, Ticket& ticket, std::int64_t computed,
                                std::int64_t& copied) {
  const std::int64_t before = ticket.advanced;
  advance(ticket, computed, {}, step.copies_room - copied, step.settles);
  for (const PageCopy& copy : ticket.step_copies) {
    std::int32_t* const row = step.copies + copied++ * 4;
    row[0] = copy.group;
    row[1] = static_cast<std::int32_t>(index(copy.source));
    row[2] = static_cast<std::int32_t>(index(copy.target));
    row[3] = copy.rows;
  }
  if (step.settles) {
    settle_advance(ticket, computed, before);
  } else {
    plan_events(ticket);
  }
}

StepStatus HybridCache::grow_one(const StepArrays& step, std::int64_t i, Ticket& ticket, std::int64_t grown) {
  const int groups = store_.group_count();
  std::array<std::size_t, most_groups> had{};
  for (int g = 0; g < groups; ++g) {
    had[static_cast<std::size_t>(g)] = ticket.hands[g].blocks.size();
    if (!ticket.hands[g].live_group && pages_to_grow(ticket, g, grown, {}) > step.new_pages)
      return StepStatus::Narrow;
  }
  if (try_grow(ticket, grown, {}) >= 0) return StepStatus::OutOfPages;
  for (int g = 0; g < groups; ++g) {
    const auto& blocks = ticket.hands[g].blocks;
    std::int32_t* out = step.out_pages + (i * groups + g) * step.new_pages;
    for (std::size_t b = had[static_cast<std::size_t>(g)]; b < blocks.size(); ++b)
      *out++ = static_cast<std::int32_t>(index(blocks[b].page));
  }
  return StepStatus::Ok;
}

void HybridCache::settle_step(std::int64_t handle, std::int64_t upto) {
  Ticket* const ticket = tickets_.find(handle);
  if (ticket != nullptr) settle_advance(*ticket, std::min(upto, ticket->advanced), upto);
}

}  // namespace hkv
