# SPDX-License-Identifier: Apache-2.0
"""Runs of a grid as tables for people, or as one JSON object for programs.

The JSON object: ``schema`` (:data:`SCHEMA`), ``version`` (of the package), ``unit_tokens``, ``answers`` (bool),
``complete`` (bool), ``seconds`` and ``traces``, a list of ``{name, block_tokens, requests, served, interrupted,
broken, seconds, tokens, ever_seen_tokens, answers_named, runs}``: ``broken`` is null, or why the file was read up to
there alone; ``seconds`` is the span of the trace's own time. Each run is ``{model, policy, eviction, tier,
memory_bytes, share, pages, requests, tokens, hits, hit_tokens, usable, usable_tokens, new_tokens, lost_tokens,
hit_rate_tokens, effective_hit_rate, effective_hit_rate_tokens, wrong, false_hits, not_stored, restored_tokens,
not_restored, evicted_pages, unplaced, match_us, tier_usage, samples}``: ``lost_tokens`` is an object, tokens by
cause; ``tokens = new_tokens + usable_tokens + all of lost_tokens``. ``samples`` is the course of the run: figures
since the start at steps of time.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hybridkv.planner.quantities import byte_text, seconds_text
from hybridkv.printed import page
from hybridkv.replay.grid import Grid, Run, TraceRuns
from hybridkv.replay.report import percent, short

SCHEMA = "hybridkv.replay/2"


def is_complete(found: list[TraceRuns], paths: int) -> bool:
    """Say whether every request of every trace was replayed.

    Parameters
    ----------
    found : list of TraceRuns
    paths : int
        Traces that were asked for.
    """
    return len(found) == paths and not any(one.interrupted or one.trace.broken for one in found)


def shortcomings(found: list[TraceRuns], paths: int) -> list[str]:
    """Say what is missing from partial results, a line each; empty where nothing is.

    Parameters
    ----------
    found : list of TraceRuns
    paths : int
        Traces that were asked for.
    """
    lines = []
    for one in found:
        whole = len(one.trace.requests)
        if one.trace.broken is not None:
            lines.append(f"{one.trace.name}: read up to its request {whole:,} alone: {one.trace.broken}")
        if one.interrupted:
            lines.append(f"{one.trace.name}: interrupted after {one.served:,} of {whole:,} requests")
    if len(found) < paths:
        lines.append(f"interrupted: {paths - len(found)} of {paths} traces were not begun")
    return lines


def as_json(found: list[TraceRuns], grid: Grid, *, paths: int, version: str, seconds: float) -> dict[str, Any]:
    """Make the JSON object.

    Parameters
    ----------
    found : list of TraceRuns
        What :func:`hybridkv.replay.grid.replay_grid` gave.
    grid : Grid
        What it was asked.
    paths : int
        Traces that were asked for.
    version : str
        Version of the package.
    seconds : float
        Time the whole took.

    Returns
    -------
    dict
        Plain types only; see the head of this module.
    """
    return {
        "schema": SCHEMA,
        "version": version,
        "unit_tokens": grid.unit_tokens,
        "answers": grid.answers,
        "complete": is_complete(found, paths),
        "seconds": round(seconds, 3),
        "traces": [_trace(one) for one in found],
    }


def _trace(one: TraceRuns) -> dict[str, Any]:
    trace = one.trace
    return {
        "name": trace.name,
        "block_tokens": trace.block_tokens,
        "requests": len(trace.requests),
        "served": one.served,
        "interrupted": one.interrupted,
        "broken": None if trace.broken is None else str(trace.broken),
        "seconds": one.runs[0].samples[-1].seconds,
        "tokens": one.runs[0].samples[-1].tokens,
        "ever_seen_tokens": one.ever_seen,
        "answers_named": one.answers,
        "runs": [_run(run) for run in one.runs],
    }


def _run(run: Run) -> dict[str, Any]:
    tally, pools, last, metrics = run.lane.tally, run.lane.pools, run.samples[-1], run.metrics
    assert metrics is not None
    median, high = tally.match_us()
    return {
        "model": run.model,
        "policy": str(run.policy),
        "eviction": run.eviction,
        "tier": None if run.place is None else str(run.place),
        "memory_bytes": pools.budget_bytes,
        "share": pools.share,
        "pages": dict(pools.pages),
        "requests": tally.requests,
        "tokens": last.tokens,
        "hits": tally.promised_requests,
        "hit_tokens": tally.promised_tokens,
        "usable": tally.usable_requests,
        "usable_tokens": last.usable,
        "new_tokens": last.new,
        "lost_tokens": dict(sorted(last.causes.items())),
        "hit_rate_tokens": _part(tally.promised_tokens, last.tokens),
        "effective_hit_rate": _part(tally.usable_requests, tally.requests),
        "effective_hit_rate_tokens": _part(last.usable, last.tokens),
        "wrong": tally.wrong_requests,
        "false_hits": tally.false_hit_requests,
        "not_stored": tally.not_stored,
        "restored_tokens": tally.restored_tokens,
        "not_restored": tally.not_restored,
        "evicted_pages": metrics.retired,
        "unplaced": metrics.unplaced,
        "match_us": {"median": round(median, 3), "p99": round(high, 3)},
        "tier_usage": None if run.usage is None else {"records": run.usage.records, "refused": run.usage.refused},
        "samples": [asdict(sample) for sample in run.samples],
    }


def as_text(found: list[TraceRuns], grid: Grid, *, paths: int, seconds: float) -> str:
    """Make the tables.

    Parameters
    ----------
    found : list of TraceRuns
        What :func:`hybridkv.replay.grid.replay_grid` gave.
    grid : Grid
        What it was asked.
    paths : int
        Traces that were asked for.
    seconds : float
        Time the whole took.

    Returns
    -------
    str
        Lines of at most 120 columns where names are short.
    """
    lines = [f"Keys of {grid.unit_tokens} tokens. {_answers(grid)}"]
    lines += [line for one in found for line in ("", *_trace_lines(one))]
    lines += ["", *_LEGEND]
    missing = shortcomings(found, paths)
    if missing:
        lines += ["", "PARTIAL RESULTS", *(f"  {line}" for line in missing)]
    return page([*lines, "", f"{seconds:.1f} s"])


_LEGEND = (
    "saved    prompt tokens resumed from; by req. and by tok.: effective hit rate, by requests and by tokens",
    "hash     what a rule that asks for hashes alone would call hits, by tokens; wrong: requests that it would resume",
    "         from states that are not there",
    "lost     tokens that were seen before and computed again; not kept: the policy left the states there out",
)


def _answers(grid: Grid) -> str:
    return "Answers are stored where the next turn names them." if grid.answers else "Prompts alone are stored."


def _trace_lines(one: TraceRuns) -> list[str]:
    trace, last = one.trace, one.runs[0].samples[-1]
    served = (
        f"{one.served:,} requests" if not one.interrupted else f"{one.served:,} of {len(trace.requests):,} requests"
    )
    blocks = last.tokens / trace.block_tokens / max(1, one.served)
    return [
        f"{trace.name}: {served} in {seconds_text(last.seconds)}, {short(last.tokens)} prompt tokens"
        f" ({blocks:.1f} blocks of {trace.block_tokens} each), {one.answers:,} answers named by a next turn",
        f"  a cache that never forgets would save {percent(one.ever_seen, last.tokens)} of them",
        f"  {_HEAD}",
        *(f"  {_row(run)}" for run in one.runs),
        "  lost, part of all prompt tokens",
        *_loss_lines(one),
    ]


_HEAD = (
    f"{'model':<18} {'policy':<12} {'eviction':<9} {'tier':<14} {'memory':>8} {'of all':>6}"
    f"  {'hash':>6} {'by req.':>7} {'by tok.':>7} {'saved':>7} {'wrong':>6}  {'match us':>9}"
)


def _row(run: Run) -> str:
    tally, last = run.lane.tally, run.samples[-1]
    median, high = tally.match_us()
    return (
        f"{_name(run)} {run.lane.pools.share:>6.0%}"
        f"  {percent(tally.promised_tokens, last.tokens):>6} {percent(tally.usable_requests, tally.requests):>7}"
        f" {percent(last.usable, last.tokens):>7} {short(last.usable):>7} {tally.wrong_requests:>6,}"
        f"  {median:>4.0f} {high:>4.0f}"
    )


def _name(run: Run) -> str:
    tier = "-" if run.place is None else str(run.place)
    return (
        f"{run.model[:18]:<18} {policy_name(run):<12} {run.eviction:<9} {tier:<14}"
        f" {byte_text(run.lane.pools.budget_bytes):>8}"
    )


def policy_name(run: Run) -> str:
    """Return the policy of a run as it was asked for."""
    return f"every:{run.policy.stride_tokens}" if run.policy.policy == "every" else run.policy.policy


def _loss_lines(one: TraceRuns) -> list[str]:
    lines = []
    for run in one.runs:
        last = run.samples[-1]
        causes = sorted(last.causes.items(), key=lambda entry: -entry[1])
        told = ", ".join(f"{name} {percent(tokens, last.tokens)}" for name, tokens in causes) or "nothing"
        lines.append(f"    {_name(run)}  {told}")
    return lines


def _part(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
