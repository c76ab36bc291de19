# SPDX-License-Identifier: Apache-2.0
"""Bugs in events, in the memory of why pages went, in what is said of it, and in static checks."""

from __future__ import annotations

from seeded_bugs import Bug

STORE, EVENTS, FILL, EVICT, GONE = (
    f"csrc/{name}"
    for name in ("block/store.cpp", "cache/events.cpp", "cache/fill.cpp", "cache/evict.cpp", "block/gone.h")
)
TIMELINE, EXPLANATION, SETTINGS, STORED = (
    f"python/hybridkv/explain/{name}.py" for name in ("timeline", "explanation", "settings", "stored")
)
STATIC = "python/hybridkv/static_checks.py"
STRESS = "stress.events_test"
THREADS = "an index made of events"
EXPLAIN, COMMAND, CHECKS, LOG = (
    f"tests/python/test_{name}.py" for name in ("explain", "explain_command", "static_checks", "events")
)

BUGS = [
    Bug(
        "eviction untold",
        "pages that make room leave no note in the log of changes",
        STORE,
        "    run.change.note(which, word_detail::spread[gone]);\n    changes_.note(id);",
        "    run.change.note(which, word_detail::spread[gone]);",
        "cache.events_test",
        "room that is made",
    ),
    Bug(
        "retirement untold",
        "pages that are withdrawn under a pin leave no note in the log of changes",
        STORE,
        "  changes_.note(id);\n  finish_retiring(id, key, at_slot.which);",
        "  finish_retiring(id, key, at_slot.which);",
        "cache.events_test",
        "pages withdrawn under a pin",
    ),
    Bug(
        "publication untold",
        "a page that is published leaves no note in the log of changes",
        STORE,
        "  changes_.note(id);\n  return true;\n}\n\nbool BlockStore::publish_slots",
        "  return true;\n}\n\nbool BlockStore::publish_slots",
        STRESS,
        THREADS,
    ),
    Bug(
        "directory told as a page",
        "a directory of tips is taken for a page of the first group",
        STORE,
        "    if (directory) return {};",
        "",
        STRESS,
        THREADS,
    ),
    Bug(
        "a key in one place",
        "a key that moves to another descriptor is told as removed, although it is there",
        EVENTS,
        "if (--entry->second[static_cast<std::size_t>(group)] != 0) continue;",
        "--entry->second[static_cast<std::size_t>(group)];",
        "cache.events_test",
        "a key that lives elsewhere",
    ),
    Bug(
        "flush unsaid",
        "after everything was withdrawn the events are removals, one each",
        FILL,
        "  store_.changes().forget();\n",
        "",
        "cache.events_test",
        "a flush is one event",
    ),
    Bug(
        "room for the victim's own group",
        "a page that made room for another group is remembered as evicted for its own",
        EVICT,
        "pool == descriptor_pool ? for_descriptors : pool);\n",
        "store.group_at(which, std::countr_zero(bits)));\n",
        "cache.events_test",
        "for whom a page went",
    ),
    Bug(
        "groups share a memory",
        "why a page of one group went is told of another group's page of the key",
        GONE,
        "(key.lo >> 42) << 1 | static_cast<std::uint64_t>(group / entries)",
        "(key.lo >> 42) << 1",
        "cache.events_test",
        "groups beyond the eighth",
    ),
    Bug(
        "here is gone",
        "what was evicted once and is back is told as gone",
        TIMELINE,
        "    if state is not None:\n        return None, state",
        "    if state is not None and not raw[0]:\n        return None, state",
        f"{EXPLAIN}::test_what_is_back_is_here",
    ),
    Bug(
        "windows refuse nothing",
        "lengths are refused for want of history alone",
        TIMELINE,
        "if len(part) == len(needed) and part.all():",
        "if not isinstance(group.coverage, Prefix) or (len(part) == len(needed) and part.all()):",
        f"{EXPLAIN}::test_taken_by_the_application",
    ),
    Bug(
        "shortage by one page",
        "the pool that is said to suffice has one page more, however many were lost",
        SETTINGS,
        "{cache.pages[whom] + lost}",
        "{cache.pages[whom] + 1}",
        f"{EXPLAIN}::test_evicted_for_whom_and_how_many_pages_were_short",
    ),
    Bug(
        "explaining counts",
        "an explanation counts as a look-up, and pins what it finds",
        EXPLANATION,
        "_ONLY_LOOK = -1",
        "_ONLY_LOOK = 0",
        f"{EXPLAIN}::test_it_counts_nothing_pins_nothing_and_changes_no_order",
    ),
    Bug(
        "dead records of a store",
        "a record that was removed from a store is said to be there",
        STORED,
        'if record.standing != "live" or not record.readable:',
        "if not record.readable:",
        f"{COMMAND}::test_a_record_that_was_removed_is_not_there",
    ),
    Bug(
        "step of the first group",
        "prompts of the length of a block are said to hit",
        STATIC,
        "short = sum(tokens <= least for tokens in lengths)",
        "short = sum(tokens < least for tokens in lengths)",
        f"{CHECKS}::test_prompts_at_or_below_the_step_never_hit",
    ),
    Bug(
        "pool rounded up",
        "a pool is said to serve a length that it has not the pages for",
        STATIC,
        "room = pages * own_block_tokens(group) // spec.boundary_tokens * spec.boundary_tokens",
        "room = -(-pages * own_block_tokens(group) // spec.boundary_tokens) * spec.boundary_tokens",
        f"{CHECKS}::test_no_hit_is_shorter_or_longer_than_the_checks_say",
    ),
    Bug(
        "parent forgotten",
        "events do not say what a block continues",
        "python/hybridkv/events.py",
        "_end(end), parent, departure",
        "_end(end), None, departure",
        f"{LOG}::test_FC_194_a_block_that_was_there_already_is_still_the_parent",
    ),
]
