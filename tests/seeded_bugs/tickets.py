# SPDX-License-Identifier: Apache-2.0
"""Bugs in running requests: tickets, admission, events."""

from __future__ import annotations

from seeded_bugs import Bug

ADMISSION, ADVANCE, GROW = "csrc/alloc/admission.cpp", "csrc/cache/advance.cpp", "csrc/cache/grow.cpp"
MODEL = "stress.ticket_model_test"

BUGS = [
    Bug(
        "watermark off by one",
        "an admission that leaves exactly the low watermark is refused",
        ADMISSION,
        "now - cap < pages_of(limits_.watermark_low_ppm, rooms[g].capacity)",
        "now - cap <= pages_of(limits_.watermark_low_ppm, rooms[g].capacity)",
        "alloc.admission_test",
        "the watermark",
    ),
    Bug(
        "admission by full length",
        "the worst case of a window group is counted as if every token kept its page",
        "csrc/layout/residency.cpp",
        "  if (coverage.rule == Rule::Prefix) return blocks_for(r.max, block) - r.start / block;",
        "  if (coverage.rule != Rule::Checkpoint) return blocks_for(r.max, block) - r.start / block;",
        "alloc.admission_test",
    ),
    Bug(
        "promise forgotten",
        "what was promised to admitted requests is offered again",
        ADMISSION,
        "room.free_and_evictable - promised - moved;",
        "room.free_and_evictable - moved - promised * 0;",
        "alloc.admission_test",
    ),
    Bug(
        "promise read too late",
        "what a share takes while the pool is read is neither in the promise nor in what moved: a fill gets it too",
        ADMISSION,
        "  const std::int64_t promised = promised_[group].load();\n"
        "  const std::int64_t moved = room.takes < 0 ? 0 : takes_[group].load() - room.takes;\n",
        "  const std::int64_t moved = room.takes < 0 ? 0 : takes_[group].load() - room.takes;\n"
        "  const std::int64_t promised = promised_[group].load();\n",
        "sim.admission_test",
        "a fill",
    ),
    Bug(
        "unused group held for nothing",
        "a pin holds another's page of a group that the request does not use, and nobody answers for it",
        ADVANCE,
        "  const auto others = static_cast<SlotMask>(lost | unused_slots(ticket, unit, which));",
        "  const auto others = static_cast<SlotMask>(lost | (unused_slots(ticket, unit, which) & 0));",
        "cache.ticket_fills_test",
        "that it does not use",
    ),
    Bug(
        "lease that outlives its promise",
        "a request that takes nothing of a group is let in with a lease that pins what was promised there",
        ADMISSION,
        "    if ((cap > 0 || demand.start_tokens > 0) && cap > left(group, rooms[group])) return Refusal::Pages;",
        "    if (cap > 0 && cap > left(group, rooms[group])) return Refusal::Pages;",
        "cache.ticket_fills_test",
        "in small worlds",
    ),
    Bug(
        "widened by a stale look",
        "a share is widened by a page that was taken after the pool was read",
        ADMISSION,
        "  if (spare(group, room) < (pinned ? 0 : 1)) return false;",
        "  if (room.free_and_evictable - promised_[group].load() < (pinned ? 0 : 1)) return false;",
        "sim.admission_test",
        "beside an own page",
    ),
    Bug(
        "pinned page taken for taken",
        "a window page held beside an own one counts as taken: when its taker slides on more is promised than is there",
        ADVANCE,
        "    if (which == WordClass::H) {\n      admission_.took(ticket.share, group, 1);",
        "    if (group >= 0) {\n      admission_.took(ticket.share, group, 1);",
        "cache.ticket_fills_test",
        "in small worlds",
    ),
    Bug(
        "window freed one step early",
        "a window block goes a token before the last one that reads it",
        ADVANCE,
        "needed_blocks(group.coverage, block_tokens, upto).from,",
        "needed_blocks(group.coverage, block_tokens, upto + 1).from,",
        MODEL,
        "with room",
    ),
    Bug(
        "rewind past a publish",
        "a rewind may go below what was advanced",
        GROW,
        "if (tokens > ticket.grown - ticket.advanced) {",
        "if (tokens > ticket.grown) {",
        MODEL,
        "agree after every event, with room",
    ),
    Bug(
        "state that was not in memory",
        "after a rewind the live state is kept as that of a length it is ahead of",
        ADVANCE,
        "const bool at_end = computed == ticket.grown && !ticket.rewound;",
        "const bool at_end = computed == ticket.grown;",
        MODEL,
        "agree after every event, with room",
    ),
    Bug(
        "rewound page leaked",
        "a rewind forgets the pages it takes back",
        GROW,
        "      ticket.parked.push_back({group, block.page});\n",
        "",
        MODEL,
        "agree after every event, with room",
    ),
    Bug(
        "misfiled form",
        "a page is filed under another group of its word",
        ADVANCE,
        "    store_.file_page(id, group, block.page);\n",
        "    store_.file_page(id, group == 0 ? 1 : group - 1, block.page);\n",
        MODEL,
        "agree after every event, with room",
    ),
    Bug(
        "page of another group accepted",
        "a step may say that it wrote a page of another group's pool",
        "python/hybridkv/ticket.py",
        '            if strange:\n                raise SpecError(f"wrote[{name}]"',
        '            if False:\n                raise SpecError(f"wrote[{name}]"',
        "tests/python/test_tickets_routing.py::test_a_page_of_another_group_or_request_is_refused",
    ),
    Bug(
        "lost event",
        "an effect is applied although its event has not passed",
        "python/hybridkv/deferred.py",
        "        return (after is None or after.query()) and not self.waits(owner)",
        "        return not self.waits(owner)",
        "tests/python/test_leases_windows.py",
    ),
    Bug(
        "effects out of order",
        "an effect overtakes an earlier one of its owner",
        "python/hybridkv/deferred.py",
        "                held.add(id(waiting.owner))\n",
        "",
        "tests/python/test_deferred.py::test_effects_of_one_owner_keep_their_order",
    ),
    Bug(
        "free before promised",
        "a block that slides out is free before the ticket's promise has it back",
        ADVANCE,
        "  admission_.gave(ticket.share, group, hand.published_in(hand.first_held, end));\n"
        "  for (; hand.first_held < end; ++hand.first_held) slide_out(ticket, group, hand.first_held, run);",
        "  const std::int64_t given = hand.published_in(hand.first_held, end);\n"
        "  for (; hand.first_held < end; ++hand.first_held) slide_out(ticket, group, hand.first_held, run);\n"
        "  store_.count_unpins(run.change);\n"
        "  admission_.gave(ticket.share, group, given);",
        "sim.tickets_test",
    ),
    Bug(
        "page on its way not waited for",
        "a grow that finds no page gives up although another thread is giving one back",
        "csrc/cache/evict.cpp",
        "if (make_room(group, wanted) == 0 && !await_pages(group, wanted)) break;",
        "if (make_room(group, wanted) == 0) break;",
        "sim.tickets_test",
        "on its way",
    ),
]
