# SPDX-License-Identifier: Apache-2.0
"""Bugs in the plan: figures that are not the cache's own, and advice that does not follow from them."""

from __future__ import annotations

from seeded_bugs import Bug

SIZES, CAPACITY, UNITS, RETENTION, BREAK_EVEN, LAYERS, HOMOGENEOUS, PLACES, LOAD, ADVICE, PLAN = (
    f"python/hybridkv/planner/{name}.py"
    for name in (
        *("sizes", "capacity", "units", "retention", "break_even", "layers", "homogeneous", "places", "load"),
        *("advice", "plan"),
    )
)
FIGURES, ALLOCATOR, COMMAND = (
    f"tests/python/test_{name}.py" for name in ("planner", "planner_allocator", "planner_command")
)

BUGS = [
    Bug(
        "cap of the roomiest pool",
        "a plan says that as many requests are admitted as the pool with most room has pages for",
        CAPACITY,
        "return min((pages[name] // number",
        "return max((pages[name] // number",
        f"{ALLOCATOR}::test_any_spec_admits_what_its_plan_says",
    ),
    Bug(
        "prefixes in pages of running requests",
        "a plan counts prefixes as kept in pages that running requests are promised",
        CAPACITY,
        "number - running * worst[name]",
        "number",
        f"{ALLOCATOR}::test_prefixes_that_are_said_to_stay_do_stay_beside_running_requests",
    ),
    Bug(
        "window pages taken for whole blocks",
        "rows that a window page leaves out are not counted where every row is kept",
        SIZES,
        "group.total_page_bytes * whole_pages(group), own",
        "group.total_page_bytes, own",
        f"{FIGURES}::test_one_lifetime_keeps_every_row_and_a_state_a_block",
    ),
    Bug(
        "ring without the window before",
        "a ring of rolling rows is told without the rows that entries overlap with",
        SIZES,
        "(ring or group.rows_per_page or 1) + kept",
        "(ring or group.rows_per_page or 1)",
        f"{FIGURES}::test_rolling_rows_are_the_published_ones",
    ),
    Bug(
        "restoring is free",
        "the length from which restoring pays leaves out that history has to be read",
        BREAK_EVEN,
        "1 / rate - growth / Fraction(place.read.bytes_per_second)",
        "1 / rate",
        f"{FIGURES}::test_the_least_length_is_where_restoring_becomes_quicker",
    ),
    Bug(
        "records of a policy that keeps none",
        "a policy that keeps no ends is planned with records at the ends",
        RETENTION,
        "ends = load.ends if policy.ends else 0",
        "ends = load.ends",
        f"{FIGURES}::test_the_three_policies_are_the_published_ones",
    ),
    Bug(
        "a disk that writes any amount",
        "a policy is chosen that writes more than the disk can",
        RETENTION,
        "if room.write_bytes is not None and written:",
        "if False:",
        f"{FIGURES}::test_a_disk_that_writes_slowly_keeps_fewer_states",
    ),
    Bug(
        "what has no room is read",
        "hits on prefixes for which there is no room count as if they were stored",
        RETENTION,
        "fitting * mean_s + (1 - fitting) * computed",
        "mean_s",
        f"{FIGURES}::test_what_there_is_no_room_for_is_counted_as_computed",
    ),
    Bug(
        "homogeneous without states",
        "the homogeneous design is planned without the states that each of its blocks has to keep",
        HOMOGENEOUS,
        "kept = spec.boundary_bytes[group.name]",
        "kept = 0",
        f"{FIGURES}::test_one_lifetime_keeps_every_row_and_a_state_a_block",
    ),
    Bug(
        "hybrid whatever it saves",
        "a hybrid cache is recommended where it saves nothing",
        ADVICE,
        "hybrid.load_bytes <= (1 - WORTH) * homogeneous.load_bytes",
        "hybrid.load_bytes <= homogeneous.load_bytes",
        f"{FIGURES}::test_a_window_that_holds_the_whole_context_is_no_reason_for_a_hybrid_cache",
    ),
    Bug(
        "context beyond the model's",
        "a context that the model does not have is planned",
        PLAN,
        "most is not None and load.context_tokens > most",
        "most is not None and load.context_tokens > 2 * most",
        f"{FIGURES}::test_bad_input_is_named",
    ),
    Bug(
        "records without their envelope's fill",
        "what an envelope is filled up to on disk is not counted",
        PLACES,
        "self._filled(ENVELOPE_BYTES + parts * PART_BYTES)",
        "ENVELOPE_BYTES + parts * PART_BYTES",
        f"{ALLOCATOR}::test_a_disk_tier_takes_what_the_plan_says",
    ),
    Bug(
        "prefixes in two places",
        "a prefix that a faster place has is put into the slower ones too",
        LAYERS,
        "rest = None if rest is None else rest - number",
        "rest = None if rest is None else rest",
        f"{FIGURES}::test_prefixes_fill_the_places_from_the_fastest_down",
    ),
    Bug(
        "routed and spread taken for one another",
        "hosts of a routed fleet are planned to keep every prefix",
        LOAD,
        "-(-self.prefixes // self.hosts) if self.routed",
        "-(-self.prefixes // self.hosts) if not self.routed",
        f"{FIGURES}::test_a_fleet_is_its_hosts",
    ),
    Bug(
        "unit of mostly fill",
        "a unit is chosen whose block records are envelope and fill for more than a few percent",
        UNITS,
        "if unit.fill_share <= MOST_FILL",
        "if unit.fill_share <= 1",
        f"{FIGURES}::test_the_unit_is_the_smallest_that_costs_little",
    ),
    Bug(
        "requests that never end",
        "requests of a trace are counted as running for as long as the trace goes on",
        LOAD,
        "changes += [(begins, 1), (ends, -1)]",
        "changes += [(begins, 1), (ends + 1e9, -1)]",
        f"{COMMAND}::test_a_trace_is_counted",
    ),
]
