# SPDX-License-Identifier: Apache-2.0
"""The plan as text: what to do first, then the tables that say why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from textwrap import wrap

from hybridkv.planner.layers import KEPT
from hybridkv.planner.plan import Answer, Design
from hybridkv.planner.quantities import byte_text, seconds_text

_WIDTH = 118
_NAME = 12
_TWO = ("hybrid", "homogeneous")


def as_text(answer: Answer) -> str:
    """Write a plan for an operator.

    Parameters
    ----------
    answer : Answer

    Returns
    -------
    str
        Lines of at most 118 columns.
    """
    parts = [_head(answer), _advice(answer), _states(answer), _designs(answer), _pools(answer)]
    parts += [_units(answer), _retentions(answer), _break_even(answer), _layers(answer), _lengths(answer)]
    parts.append(_fleet(answer))
    return "\n\n".join("\n".join(part) for part in parts if part)


def _head(answer: Answer) -> list[str]:
    asked, load = answer.question, answer.question.load
    limit = "" if asked.most_tokens is None else f" (the model's: {asked.most_tokens:,})"
    lines = [
        f"{asked.model}: {byte_text(asked.memory_bytes)} of memory for pages, "
        f"{load.concurrency:,} requests at a time of {load.context_tokens:,} tokens{limit}",
    ]
    if asked.trace is not None:
        t = asked.trace
        lines.append(
            f"counted in {t.name}: {t.requests:,} requests in {t.seconds:,.0f} s, {t.chains:,} conversations, "
            f"{t.mean_tokens:,} tokens each on average, {load.reused_share:.0%} of prompt tokens seen before"
        )
    places = [
        f"{one.name} {byte_text(one.capacity_bytes)}, {one.read.bytes_per_second / 1e9:.3g} GB/s"
        for one in asked.places
    ]
    places.append(f"computing {asked.tokens_per_second:,.0f} tokens a second")
    lines.append("declared: " + "; ".join(places))
    return [part for line in lines for part in wrap(line, _WIDTH, subsequent_indent="  ")]


def _advice(answer: Answer) -> list[str]:
    lines = ["What to do"]
    for one in answer.advice:
        mark = "!" if one.warning else " "
        text = wrap(f"{one.choice}: {one.reason}", _WIDTH - _NAME - 3)
        lines.append(f"{mark} {one.topic:<{_NAME}} {text[0]}")
        lines += [" " * (_NAME + 3) + line for line in text[1:]]
    return lines


def _states(answer: Answer) -> list[str]:
    sizes = answer.hybrid.sizes
    rows = [["group", "kind", "needed", "layers", "a token", "a boundary", "a request"]]
    for one in sizes.groups:
        per_token = f"{one.bytes_per_token:,.6g} B" if one.bytes_per_token else "-"
        boundary = byte_text(one.boundary_bytes) if one.boundary_bytes else "-"
        cells = [one.name, one.kind, one.coverage, str(one.layers), per_token, boundary, byte_text(one.request_bytes)]
        rows.append(cells)
    total = [f"{sizes.bytes_per_token:,.6g} B", byte_text(sizes.boundary_bytes)]
    request = byte_text(answer.hybrid.capacity.request_bytes)
    rows.append(["all", "", "", "", *total, request])
    lines = ["Bytes by state", *_table(rows, left=3)]
    if sizes.boundary_bytes and sizes.boundary_in_tokens is not None:
        lines.append(f"  a kept boundary costs as much as {sizes.boundary_in_tokens:,.0f} tokens of history")
    if sizes.window_ratio:
        lines.append(
            f"  windows of every token would be {sizes.window_bytes_per_token:,.6g} B a token, "
            f"{sizes.window_ratio:.1f} times the history"
        )
    if sizes.tails:
        lines.append(f"  rings of rolling rows, as engines keep them: {byte_text(sizes.ring_bytes)} a request")
    return lines


def _designs(answer: Answer) -> list[str]:
    if answer.is_homogeneous:
        return []
    load = answer.question.load
    told: list[tuple[str, Callable[[Design], str]]] = [
        ("resumes every", lambda one: f"{one.sizes.boundary_tokens:,} tokens"),
        ("history a token", lambda one: f"{one.sizes.bytes_per_token:,.6g} B"),
        ("kept for each boundary besides", lambda one: byte_text(one.sizes.boundary_bytes)),
        (f"a request of {load.context_tokens:,} tokens", lambda one: byte_text(one.capacity.request_bytes)),
        (f"a kept prefix of {load.kept_tokens:,} tokens", lambda one: byte_text(one.capacity.prefix_bytes)),
        ("requests admitted", lambda one: f"{one.capacity.cap:,}"),
        (f"prefixes kept beside {load.concurrency:,} requests", lambda one: f"{one.capacity.kept_prefixes:,}"),
        ("this load in all", lambda one: byte_text(one.load_bytes)),
    ]
    rows = [["", *_TWO], *([name, tell(answer.hybrid), tell(answer.homogeneous)] for name, tell in told)]
    rows.append(["a hash hit is a hit", "where every group has its states", "always"])
    return ["The two designs (homogeneous: one lifetime for everything)", *_table(rows, left=1)]


def _pools(answer: Answer) -> list[str]:
    capacity = answer.recommended.capacity
    if not capacity.pages:
        return []
    pools = ", ".join(f"{name!r}: {number}" for name, number in capacity.pages.items())
    return [
        f"Pools: {byte_text(capacity.pool_bytes)} of {byte_text(answer.question.memory_bytes)}",
        *(
            f"  {line}"
            for line in wrap(f"HybridCache(spec, blocks={capacity.descriptors}, pages={{{pools}}})", _WIDTH - 2)
        ),
    ]


def _units(answer: Answer) -> list[str]:
    if len(answer.units) < 2:
        return []
    rows = [["", "unit", "resume every", "lost at an end", "a request", "a boundary", "block record", "fill"]]
    for one in answer.units:
        sizes = [byte_text(size) for size in (one.request_bytes, one.boundary_bytes, one.block_record_bytes)]
        lost = f"{one.lost_tokens:,.1f}"
        rows.append(
            [
                _mark(one.chosen),
                f"{one.unit_tokens:,}",
                f"{one.boundary_tokens:,}",
                lost,
                *sizes,
                f"{one.fill_share:.1%}",
            ]
        )
    return ["Units, in tokens (fill: part of a block record on disk that is none of its bytes)", *_table(rows, left=1)]


def _retentions(answer: Answer) -> list[str]:
    if not answer.retentions:
        return []
    scarce = any(not one.fits for one in answer.retentions)
    head = ["", "policy", "a token", "record", "a prefix", "again", "at an end", "elsewhere", "mean"]
    rows = [[*head, *(("room", "expected") if scarce else ())]]
    for one in answer.retentions:
        times = [seconds_text(value) for value in (one.end_s, one.elsewhere_s, one.mean_s)]
        if not one.exact:
            times[-1] = "inexact"
        sizes = [f"{one.states_bytes_per_token:,.6g} B", byte_text(one.record_bytes), byte_text(one.prefix_bytes)]
        room = [f"{one.share:.0%}", seconds_text(one.expected_s)] if scarce else []
        rows.append([_mark(one.chosen), one.name, *sizes, f"{one.recompute_tokens:,}", *times, *room])
    lines = ["States of kept prefixes: which boundaries keep a record, and what a hit takes (again: tokens at most)"]
    if scarce:
        lines.append("  room: for what part of the prefixes; expected: where the others are computed")
    return [*lines, *_table(rows, left=2)]


def _break_even(answer: Answer) -> list[str]:
    if not answer.break_even:
        return []
    rows = [["place", "restore", "compute", "replay", "a record", "worth", "pays from", "at least"]]
    for one in answer.break_even:
        times = [seconds_text(value) for value in (one.restore_s, one.recompute_s, one.replay_s, one.record_s)]
        least = "never" if one.least_tokens is None else f"{one.least_tokens:,} tokens"
        speed = f"{one.least_bytes_per_second / 1e9:.3g} GB/s"
        rows.append([one.place, *times, f"{one.record_tokens:,} tokens", least, speed])
    tokens = answer.break_even[0].tokens
    return [f"Restore against compute, of a prefix of {tokens:,} tokens", *_table(rows, left=1)]


def _layers(answer: Answer) -> list[str]:
    kinds = list(dict.fromkeys(kind for one in answer.layering.layers for kind in one.by_kind))
    rows = [["place", "holds", "number", "bytes", "full", *(kind.lower() for kind in kinds)]]
    for one in answer.layering.layers:
        full = "-" if one.share is None else f"{one.share:.0%}"
        sizes = [byte_text(one.by_kind.get(kind, 0)) for kind in kinds]
        rows.append([one.place, one.holds, f"{one.number:,}", byte_text(one.bytes), full, *sizes])
    lines = ["Hot and cold, of one host", *_table(rows, left=2)]
    for busy in answer.layering.traffic:
        text = f"{busy.place}: {busy.hit_share:.0%} of hits read {byte_text(busy.read_bytes)} each, "
        text += f"a request writes {byte_text(busy.write_bytes)}"
        if busy.read_bytes_per_second is not None and busy.write_bytes_per_second is not None:
            text += f"; {byte_text(busy.read_bytes_per_second)}/s and {byte_text(busy.write_bytes_per_second)}/s"
        if busy.most_requests_per_second is not None:
            text += f"; busy at {busy.most_requests_per_second:,.3g} requests a second"
        lines += wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="    ")
    return lines


def _lengths(answer: Answer) -> list[str]:
    head = ["tokens", "history", "a request", *([] if answer.is_homogeneous else ["homogeneous"]), "fit"]
    rows = [[*head, *([] if answer.is_homogeneous else ["homogeneous"]), "restore", "compute"]]
    for one in answer.lengths:
        both = [byte_text(one.request_bytes), byte_text(one.homogeneous_request_bytes)]
        fit = [f"{one.requests:,}", f"{one.homogeneous_requests:,}"]
        if answer.is_homogeneous:
            both, fit = both[:1], fit[:1]
        times = [seconds_text(one.restore_s), seconds_text(one.recompute_s)]
        rows.append([f"{one.tokens:,}", byte_text(one.history_bytes), *both, *fit, *times])
    return ["By length (fit: requests where nothing is kept beside)", *_table(rows, left=0)]


def _fleet(answer: Answer) -> list[str]:
    fleet = answer.fleet
    if fleet.hosts == 1 and answer.question.fleet.prefixes is None:
        return []
    places = ", ".join(f"{name} {byte_text(size)}" for name, size in fleet.bytes.items() if size)
    routed = "each prefix at one host" if fleet.routed else "every prefix at every host"
    lines = [
        f"Fleet: {fleet.hosts:,} hosts, {routed}",
        f"  {fleet.requests:,} requests at a time; {KEPT}: {places or 'none'}",
    ]
    if fleet.prefixes is not None and fleet.once_bytes is not None:
        lines.append(
            f"  {fleet.prefixes:,} prefixes, {fleet.prefixes_of_a_host or 0:,} a host, which has room for "
            f"{fleet.room_of_a_host:,}; each once: {byte_text(fleet.once_bytes)}"
        )
    return lines


def _mark(chosen: bool) -> str:
    return ">" if chosen else ""


def _table(rows: Sequence[Sequence[str]], *, left: int) -> list[str]:
    """Align columns, the first `left` of them to the left; empty columns are left out."""
    used = [at for at in range(len(rows[0])) if any(row[at] for row in rows)]
    widths = {at: max(len(row[at]) for row in rows) for at in used}
    cells = ([row[at].ljust(widths[at]) if at < left else row[at].rjust(widths[at]) for at in used] for row in rows)
    return [("  " + "  ".join(line)).rstrip() for line in cells]
