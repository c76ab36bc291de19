# SPDX-License-Identifier: Apache-2.0
"""Bugs in replays: figures of another trace, causes that are none, partial results that pass for whole ones."""

from __future__ import annotations

from seeded_bugs import Bug

ANSWERS, COMMAND, GRID, LOSSES, PICTURES, PLACES, REPLAY, REPORT, TIMELINE, TRACE, UNITS, VERSUS, WORDS = (
    f"python/hybridkv/replay/{name}.py"
    for name in (
        *("answers", "command", "grid", "losses", "pictures", "places", "replay", "grid_report", "timeline", "trace"),
        *("units", "versus", "versus_text"),
    )
)
GRIDS, COMMANDS, TRACES = (f"tests/python/test_{name}.py" for name in ("replay_grid", "replay_command", "replay_trace"))

BUGS = [
    Bug(
        "unit named by its first block",
        "keys of several blocks are those of their first block, so that forks inside a unit are one",
        UNITS,
        "return ids[step - 1 :: step]",
        "return ids[: ids.size // step * step : step]",
        f"{GRIDS}::test_numbered_units_are_what_hashed_tokens_are",
    ),
    Bug(
        "ids taken for prefixes",
        "equal ids behind different ids are taken for one prefix",
        UNITS,
        "if not np.array_equal(parent[flat], before):",
        "if parent.size > flat.size:",
        f"{GRIDS}::test_ids_that_do_not_name_what_is_before_them_are_told_apart",
    ),
    Bug(
        "answers never seen",
        "what an answer left behind counts as new when it comes again",
        UNITS,
        "first[prompts[index] if answer is None else answer] = index",
        "first[prompts[index]] = index",
        f"{GRIDS}::test_figures_computed_by_hand",
    ),
    Bug(
        "demand without answers",
        "pools are cut for prompts alone",
        UNITS,
        "for row, start in ((prompt, 0), (answer, prompt.size)):",
        "for row, start in ((prompt, 0),):",
        f"{GRIDS}::test_demand_is_what_an_infinite_cache_would_hold",
    ),
    Bug(
        "evicted taken for never kept",
        "states that went are told as left out by the policy",
        LOSSES,
        "self._kept[units[np.asarray(boundaries) // self._unit - 1]] = True",
        "pass",
        f"{GRIDS}::test_each_cause_by_hand",
    ),
    Bug(
        "never stored taken for evicted",
        "prompts that did not fit are told as evicted",
        LOSSES,
        "stored = self._longest(self._ever, units, matched, seen_tokens, self._unit)",
        "stored = seen_tokens",
        f"{GRIDS}::test_each_cause_by_hand",
    ),
    Bug(
        "steps blamed on states",
        "tokens past the last boundary are told as lost to a state that no policy could keep",
        LOSSES,
        "aligned = max(usable, top // self._step * self._step)",
        "aligned = top",
        f"{GRIDS}::test_what_is_known_past_the_last_boundary_is_a_cause_of_its_own",
    ),
    Bug(
        "answer of a short prompt dropped",
        "an answer is not stored where no unit of its prompt is whole",
        REPLAY,
        "        if work.answer is not None:\n            self._store(work.answer",
        "        if work.answer is not None and work.prompt is not None:\n            self._store(work.answer",
        f"{GRIDS}::test_an_infinite_cache_that_keeps_all_saves_what_was_ever_seen",
    ),
    Bug(
        "tier never asked",
        "what a tier has of a prompt is not restored",
        REPLAY,
        "if verdict.plan is None or not verdict.plan.loads:",
        "if verdict.plan is None or verdict.plan.loads:",
        f"{GRIDS}::test_what_was_evicted_comes_back_from_a_tier",
    ),
    Bug(
        "store of an earlier replay",
        "a replay finds what another one left in its directory",
        PLACES,
        "    if folder.exists():\n",
        "    if folder.is_file():\n",
        f"{GRIDS}::test_what_was_evicted_comes_back_from_a_tier",
    ),
    Bug(
        "interrupt that loses all",
        "a request to stop is not looked at",
        GRID,
        "stop = served < len(trace.requests) and interrupted()",
        "stop = False",
        f"{GRIDS}::test_an_interrupt_keeps_what_was_served",
    ),
    Bug(
        "part taken for the whole",
        "results of a trace that is broken half way count as complete",
        REPORT,
        "not any(one.interrupted or one.trace.broken for one in found)",
        "not any(one.interrupted for one in found)",
        f"{GRIDS}::test_a_trace_is_replayed_up_to_its_first_broken_line",
    ),
    Bug(
        "broken trace leaves with 0",
        "a command whose trace was refused half way says that all went well",
        COMMAND,
        "        return 2\n    return int(",
        "        return 0\n    return int(",
        f"{COMMANDS}::test_partial_results_are_printed_and_said_to_be_partial",
    ),
    Bug(
        "lengths replayed",
        "a table without ids is read as lines of a trace",
        TRACE,
        "                if number == 1:\n",
        "                if number == 0:\n",
        f"{GRIDS}::test_tables_without_ids_are_refused_with_what_cannot_be_said",
    ),
    Bug(
        "sign of ids ignored",
        "a negative id of a trace is read",
        TRACE,
        "if ids and (set(map(type, ids)) != {int} or min(ids) < 0):",
        "if ids and set(map(type, ids)) != {int}:",
        f"{TRACES}::test_bad_lines_are_refused_by_number",
    ),
    Bug(
        "everybody is first",
        "a shared beginning ties the requests of all conversations together",
        ANSWERS,
        "if whole and firsts[request.index][whole - 1]:",
        "if whole:",
        f"{TRACES}::test_a_repeated_prompt_is_no_next_turn",
    ),
    Bug(
        "last sample missing",
        "the course of a run ends before the trace does",
        TIMELINE,
        "np.append(np.flatnonzero(np.diff(step)), times.size - 1)",
        "np.flatnonzero(np.diff(step, append=step[-1:]))",
        f"{GRIDS}::test_samples_are_steps_of_time_and_end_with_the_figures",
    ),
    Bug(
        "pictures of sums",
        "tokens since the start are drawn as those of each step",
        PICTURES,
        "np.diff(np.asarray(rows, dtype=np.float64), axis=1)",
        "np.asarray(rows, dtype=np.float64)[:, :-1]",
        f"{COMMANDS}::test_pictures_show_what_was_counted",
    ),
    Bug(
        "trace overwritten",
        "JSON is written over the trace that was replayed",
        COMMAND,
        "target.samefile(path)",
        "target is path",
        f"{COMMANDS}::test_refusals_name_what_was_expected",
    ),
    Bug(
        "unit of sizes lost",
        "of several sizes those without a unit are bytes",
        COMMAND,
        "[part + unit if _UNIT.fullmatch(part) else part for part in parts]",
        "parts",
        f"{COMMANDS}::test_sizes_take_the_unit_of_the_last",
    ),
    Bug(
        "homogeneous side with windows",
        "the homogeneous design keeps states where the hybrid one does",
        VERSUS,
        "        other = homogeneous_spec(other)\n",
        "        other = spec\n",
        f"{COMMANDS}::test_both_sides_are_counted",
    ),
    Bug(
        "sides exchanged",
        "what the hybrid side does stands in the homogeneous column",
        WORDS,
        "make(pair.homogeneous), make(pair.hybrid)",
        "make(pair.hybrid), make(pair.homogeneous)",
        f"{COMMANDS}::test_both_sides_are_counted",
    ),
]
