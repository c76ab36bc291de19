# SPDX-License-Identifier: Apache-2.0
"""Bugs in window policies, replays and the cost model."""

from __future__ import annotations

from seeded_bugs import Bug

SCHEDULE, WINDOWS, COST = (f"python/hybridkv/{name}.py" for name in ("replay_schedule", "windows", "cost"))
REPLAYS, POLICIES, COSTS = (f"tests/python/test_{name}.py" for name in ("replay_schedule", "windows", "cost"))

BUGS = [
    Bug(
        "replay of one window",
        "a layer's rows are replayed for a resume alone, and not for the queries that the layers above need",
        SCHEDULE,
        "_core.needed_span(coverage.rule, coverage.parameter, out)[0]",
        "_core.needed_span(coverage.rule, coverage.parameter, tokens)[0]",
        f"{REPLAYS}::test_the_triangular_schedule_is_enough_and_nothing_less_is",
    ),
    Bug(
        "replay from the next boundary",
        "a replay of all layers starts at a boundary above what is needed",
        SCHEDULE,
        "out = out // spec.boundary_tokens * spec.boundary_tokens if",
        "out = -(-out // spec.boundary_tokens) * spec.boundary_tokens if",
        f"{REPLAYS}::test_running_all_layers_starts_at_the_last_boundary_that_is_enough",
    ),
    Bug(
        "overlap of the open window",
        "a replay for the overlap starts at the window that is open, not at the last closed one",
        SCHEDULE,
        "return max(tokens // rows - 1, 0) * rows if",
        "return max(tokens // rows, 0) * rows if",
        f"{REPLAYS}::test_the_triangular_schedule_is_enough_and_nothing_less_is",
    ),
    Bug(
        "start of a chunk taken for granted",
        "what a tail pushes back is thought to start a chunk where a chunk layer lies above",
        SCHEDULE,
        "aligned = math.gcd(*(step for _, step in reaches))",
        "aligned = max(step for _, step in reaches)",
        f"{REPLAYS}::test_a_tail_above_a_chunk_pushes_back_into_the_chunk_before",
    ),
    Bug(
        "replay writes history",
        "the groups that a replay may write are all of the spec's",
        SCHEDULE,
        "return ReplaySchedule(tokens, tuple(spans), tuple(group.name for group in states_of(spec)))",
        "return ReplaySchedule(tokens, tuple(spans), tuple(group.name for group in spec.groups))",
        f"{REPLAYS}::test_entries_that_a_replay_makes_first_are_wrong_so_it_may_not_write_them",
    ),
    Bug(
        "declared replay not looked at",
        "a match may replay a group from too late a token",
        SCHEDULE,
        "        if declared < distance:",
        "        if declared < 0:",
        f"{REPLAYS}::test_the_default_of_a_match_is_refused_where_it_would_be_too_short",
    ),
    Bug(
        "whole prefix called a replay",
        "a replay from token 0 on is offered as reuse",
        SCHEDULE,
        "    if out <= 0 < tokens:\n",
        "    if out < 0 < tokens:\n",
        f"{REPLAYS}::test_running_all_layers_starts_at_the_last_boundary_that_is_enough",
    ),
    Bug(
        "recurrent state replayed",
        "a state of the whole prefix is taken for one that the end of it makes",
        SCHEDULE,
        "and group.replay_tokens is None\n        if endless:",
        "and group.replay_tokens is None\n        if endless and group.rebuildable:",
        f"{POLICIES}::test_a_recurrent_state_is_kept_and_never_replayed",
    ),
    Bug(
        "bounded replay called exact",
        "an approximate replay says of itself that it is exact",
        SCHEDULE,
        "    exact: ClassVar[bool] = False",
        "    exact: ClassVar[bool] = True",
        f"{POLICIES}::test_plans_are_every_way_and_each_reads_what_a_resume_needs",
    ),
    Bug(
        "ends kept unasked",
        "an end has a record though ends=False",
        WINDOWS,
        "if (is_end and self.ends) or",
        "if is_end or",
        f"{POLICIES}::test_what_is_kept_is_what_the_rule_says",
    ),
    Bug(
        "overlap not asked for",
        "compressed history with overlap is stored without the state that its next entry draws on",
        WINDOWS,
        "        require_overlap(spec.groups)",
        "        require_overlap([])",
        f"{POLICIES}::test_compressed_history_without_its_overlap_is_refused_by_every_policy",
    ),
    Bug(
        "partial history left out of a record",
        "a tip's record is counted without the partial pages of history",
        WINDOWS,
        "        record += (len(blocks) - whole) * group.total_page_bytes",
        "        record += 0",
        f"{POLICIES}::test_plans_are_every_way_and_each_reads_what_a_resume_needs",
    ),
    Bug(
        "exact end planned",
        "a record at the limit is offered, where no token is left to compute",
        WINDOWS,
        "if t <= tokens and t < max(below, 1)]",
        "if t <= tokens]",
        "tests/python/test_field_cases_tier.py::test_FC_035_no_plan_reaches_the_exact_end",
    ),
    Bug(
        "approximate way chosen unasked",
        "an approximate candidate is compared like any other",
        COST,
        '        allowed = candidate.exact or flag("allow_approximate", allow_approximate)',
        '        allowed = candidate.exact or not flag("allow_approximate", allow_approximate)',
        f"{COSTS}::test_an_approximate_way_is_listed_and_not_taken",
    ),
    Bug(
        "unknown bandwidth is free",
        "a load from a tier that nobody measured takes no time",
        COST,
        "load = None if known is None or load is None else",
        "load = load if known is None or load is None else",
        f"{COSTS}::test_what_is_not_known_is_not_bet_on",
    ),
    Bug(
        "ties by the last bit",
        "equal times are compared as sums of floats",
        COST,
        "return (not estimate.allowed, 0, total, *one._order())",
        "parts = (estimate.load_s, estimate.replay_s, estimate.recompute_s)\n"
        "        return (not estimate.allowed, 0, sum(parts), *one._order())",
        f"{COSTS}::test_times_that_are_equal_are_equal_whatever_their_parts",
    ),
    Bug(
        "stalls believed",
        "the slope is the mean of the slopes, which one stall moves",
        COST,
        "    slope = _median(slopes, slope_weights) if slopes else 0.0",
        "    slope = sum(slopes) / len(slopes) if slopes else 0.0",
        f"{COSTS}::test_a_few_stalls_move_nothing",
    ),
    Bug(
        "old observations count as new ones",
        "an observation weighs the same however old it is",
        COST,
        "[0.5 ** ((number - 1 - at) / self.half_life) for at in range(number)]",
        "[1.0 for at in range(number)]",
        f"{COSTS}::test_newer_observations_count_more",
    ),
]
