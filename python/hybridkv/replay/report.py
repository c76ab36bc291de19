# SPDX-License-Identifier: Apache-2.0
"""Results as a table for people, or as one JSON object for programs.

The JSON object: ``schema`` (:data:`SCHEMA`), ``version`` (of the package), ``unit_tokens``, ``windows``,
``answers`` (bool), ``seconds`` and ``traces``, a list of ``{name, block_tokens, requests, prompt_tokens,
answers_named, runs}``. Each run is ``{model, budget_bytes, share, units, pages, homogeneous, hybrid}``;
``homogeneous`` has ``hit_rate`` and ``hit_rate_tokens``, ``hits`` and ``hit_tokens``; ``hybrid`` has the
same and ``effective_hit_rate``, ``effective_hit_rate_tokens``, ``usable``, ``usable_tokens`` (the tokens
saved), ``wrong`` and ``wrong_tokens`` (promised and not usable), ``false_hits`` and ``false_hit_tokens``
(those of which nothing was usable), ``lost`` (a list of ``{check, kind, requests, tokens}``), ``match_us``
(``{median, p99}``), ``evicted_pages``, ``not_stored`` (prompts larger than the pools) and ``unplaced``
(blocks for which the table had no room).
"""

from __future__ import annotations

from typing import Any

from hybridkv.printed import page
from hybridkv.replay.replay import Lane
from hybridkv.replay.runs import Options, Result, TraceResult

SCHEMA = "hybridkv.replay/1"

_HEAD = (
    f"{'':<18} {'KV':>9} {'of':>4}  {'hash-hit rule':>15}  {'really usable':>15} {'tokens':>7}"
    f"  {'silently wrong':>15}  {'match us':>11}",
    f"{'model':<18} {'memory':>9} {'all':>4}  {'hit rate':>8} {'tok':>6}"
    f"  {'eff.rate':>8} {'tok':>6} {'saved':>7}"
    f"  {'requests':>8} {'tok':>6}  {'p50':>5} {'p99':>5}",
)


def as_json(traces: list[TraceResult], options: Options, *, version: str, seconds: float) -> dict[str, Any]:
    """Make the JSON object.

    Parameters
    ----------
    traces : list of TraceResult
        What :func:`hybridkv.replay.runs.replay` gave.
    options : Options
        What it was asked.
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
        "unit_tokens": options.unit_tokens,
        "windows": str(options.windows),
        "answers": options.answers,
        "seconds": round(seconds, 3),
        "traces": [
            {
                "name": found.trace.name,
                "block_tokens": found.trace.block_tokens,
                "requests": len(found.trace.requests),
                "prompt_tokens": found.trace.prompt_tokens,
                "answers_named": found.answers,
                "runs": [_run(result) for result in found.results],
            }
            for found in traces
        ],
    }


def _run(result: Result) -> dict[str, Any]:
    pools, tally = result.hybrid.pools, result.hybrid.tally
    median, high = tally.match_us()
    return {
        "model": result.model,
        "budget_bytes": pools.budget_bytes,
        "share": pools.share,
        "units": pools.units,
        "pages": dict(pools.pages),
        "homogeneous": _hits(result.promise),
        "hybrid": {
            **_hits(result.hybrid),
            "effective_hit_rate": _part(tally.usable_requests, tally.requests),
            "effective_hit_rate_tokens": _part(tally.usable_tokens, tally.request_tokens),
            "usable": tally.usable_requests,
            "usable_tokens": tally.usable_tokens,
            "wrong": tally.wrong_requests,
            "wrong_tokens": tally.wrong_tokens,
            "false_hits": tally.false_hit_requests,
            "false_hit_tokens": tally.false_hit_tokens,
            "lost": [
                {"check": check, "kind": kind, "requests": requests, "tokens": tokens}
                for (check, kind), (requests, tokens) in sorted(tally.lost.items())
            ],
            "match_us": {"median": round(median, 3), "p99": round(high, 3)},
            "evicted_pages": result.hybrid.evicted_pages,
            "not_stored": tally.not_stored,
            "unplaced": result.hybrid.cache.metrics().unplaced,
        },
    }


def _hits(lane: Lane) -> dict[str, Any]:
    tally = lane.tally
    return {
        "hits": tally.promised_requests,
        "hit_tokens": tally.promised_tokens,
        "hit_rate": _part(tally.promised_requests, tally.requests),
        "hit_rate_tokens": _part(tally.promised_tokens, tally.request_tokens),
    }


def as_text(traces: list[TraceResult], options: Options, *, seconds: float) -> str:
    """Make the table.

    Parameters
    ----------
    traces : list of TraceResult
        What :func:`hybridkv.replay.runs.replay` gave.
    options : Options
        What it was asked.
    seconds : float
        Time the whole took.

    Returns
    -------
    str
        Lines of at most 100 columns.
    """
    lines = [
        "What a prefix-hash manager would call a hit, and what a hybrid model could really resume from.",
        f"Keys of {options.unit_tokens} tokens. Windows and checkpoints kept: {_kept(options)}.",
        *_costs(traces),
    ]
    for found in traces:
        lines += ["", *_trace_lines(found)]
    lines += ["", *_legend(), "", f"{seconds:.1f} s"]
    return page(lines)


def _costs(traces: list[TraceResult]) -> list[str]:
    specs = {result.model: result.hybrid.spec for found in traces for result in found.results}
    return [
        f"{model}: {_bytes(spec.bytes_per_token)} of history a token,"
        f" {_bytes(sum(spec.boundary_bytes.values()))} of window and checkpoint for each boundary kept."
        for model, spec in specs.items()
    ]


def _kept(options: Options) -> str:
    names = {"ends": "at prompt end and answer end (ends)", "all": "at every boundary (all)"}
    return names.get(options.windows.policy, str(options.windows))


def _trace_lines(found: TraceResult) -> list[str]:
    trace = found.trace
    title = (
        f"{trace.name}: {len(trace.requests):,} requests, {short(trace.prompt_tokens)} prompt tokens, "
        f"{found.answers:,} answers named by a next turn"
    )
    lines = [title, *_HEAD]
    lines += [_row(result) for result in found.results]
    lines.append("  why promises failed:")
    lines += [line for result in found.results for line in _why(result)] or ["    none failed"]
    largest = {result.model: result for result in found.results}
    lines += [line for result in largest.values() for line in _sentence(result)]
    return lines


def _row(result: Result) -> str:
    tally, promise = result.hybrid.tally, result.promise.tally
    median, high = tally.match_us()
    return (
        f"{result.model[:18]:<18} {_memory(result):>9} {result.hybrid.pools.share:>4.0%}"
        f"  {percent(promise.promised_requests, promise.requests):>8}"
        f" {percent(promise.promised_tokens, promise.request_tokens):>6}"
        f"  {percent(tally.usable_requests, tally.requests):>8}"
        f" {percent(tally.usable_tokens, tally.request_tokens):>6} {short(tally.usable_tokens):>7}"
        f"  {tally.wrong_requests:>8,} {short(tally.wrong_tokens):>6}  {median:>5.0f} {high:>5.0f}"
    )


def _why(result: Result) -> list[str]:
    ordered = sorted(result.hybrid.tally.lost.items(), key=lambda entry: -entry[1][1])
    return [
        f"    {result.model[:18]:<18} {_memory(result):>9}   check {check:<9} state {kind:<10}"
        f" {requests:>7,} requests {short(tokens):>8} tokens"
        for (check, kind), (requests, tokens) in ordered
    ]


def _sentence(result: Result) -> list[str]:
    tally = result.hybrid.tally
    if not tally.promised_requests:
        return [f"  {result.model}, {_memory(result)}: no prefix was seen twice."]
    return [
        f"  {result.model}, {_memory(result)}: of {tally.promised_requests:,} hash hits"
        f" {tally.wrong_requests:,} ({percent(tally.wrong_requests, tally.promised_requests)})"
        " would have resumed on state that is not there."
    ]


def _legend() -> list[str]:
    return [
        "hash-hit rule   the homogeneous manager in the same history memory: a known hash is a hit",
        "really usable   every group has what a resume at that length reads; the lease pins it",
        "silently wrong  promises longer than what was usable: no error is raised, the text is wrong",
        "match us        microseconds of one match, median and 99th percentile; tokens saved: prompt tokens reused",
        "--windows all   keeps every window and checkpoint: nothing is lost, for several times the memory",
        "rates by requests, then by prompt tokens; of all: part of what fills up without eviction",
    ]


def _memory(result: Result) -> str:
    return _bytes(result.hybrid.pools.budget_bytes)


def _bytes(count: float) -> str:
    for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= size:
            return f"{count / size:,.0f} {unit}" if count >= 100 * size else f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def _part(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def percent(part: int, whole: int) -> str:
    """Return a part of a whole: 34.5%."""
    return f"{_part(part, whole):.1%}"


def short(count: int) -> str:
    """Return a count in three figures: 14.2M."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.1f}{letter}" if count < 100 * size else f"{count / size:.0f}{letter}"
    return str(count)
