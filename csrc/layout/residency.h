// SPDX-License-Identifier: Apache-2.0
// How many pages of a group one running request can hold at a time: the
// worst case that admission promises and that pools are sized by. The one place where it is written: both
// call it, so that they cannot disagree.
//
// Groups are of two classes. A *paged* group has a page for each of its blocks. A *live* group (a rolling
// state, or a window whose page holds fewer rows than its block) has one live page, which every step
// overwrites, a spare for the state at the computed length, and a page for each further length whose state a
// step writes itself.
//
// Thread safety: pure functions; any thread.
// What is counted, for a request that is computed up to c and grown up to g, start <= c <= g <= max, g - c <=
// step:
//  1. Prefix: the blocks of [start, g); a partial first block counts, since the request writes into its own
//     page of it. The whole blocks below `start` are a lease's, pinned before it is admitted.
//  2. Paged Window and Chunk: every block that holds a row of [needed_span(c).from, g), leased or own; at c =
//     start inside a block that needs rows, one page more: the shared page and the own one that it is copied
//     to.
//  3. Live: the live page; a spare where a state is ever kept; and as many further lengths as are asked for.
//  4. Paged groups of one word: a pin on a unit keeps the pages of its neighbours there, up to the largest
//     window. A page of another owner counts only where the request has none of its own of that block: about
//     the rest, see invariant 4 of alloc/admission.h.
//  A page that waits for an event is still held: `step` has to cover all tokens in flight.
#pragma once
#include <cstdint>

#include "layout/group.h"

namespace hkv {

// Lengths of one request. Requires, of all functions below: 0 <= start_tokens < max_tokens < 2**62.
struct RequestLengths {
  std::int64_t max_tokens = 1;
  std::int64_t start_tokens = 0;  // of the lease it starts at; 0: none
  std::int64_t step_tokens = 0;   // most tokens in flight; 0, or more than max_tokens: max_tokens
  std::int64_t states = 0;        // most lengths whose states may be asked for at a time
};

// Whether the group has one live page instead of block pages.
bool is_live_group(const Group& group, std::int64_t block_tokens);

// Whether a running request ever keeps the state of a live group at a block boundary in (start, max]: only
// then does it need a spare page. A checkpoint group needs no state at multiples of its own `every`.
bool keeps_states(const Group& group, std::int64_t block_tokens, const RequestLengths& request);

// Most pages of one group that it pins for a neighbour's sake alone (4); 0 of Prefix groups.
std::int64_t neighbour_pages(const Layout& layout, int group, const RequestLengths& request);

// Most pages that the request holds or pins of one group at a time.
std::int64_t worst_pages(const Layout& layout, int group, const RequestLengths& request);

}  // namespace hkv
