# SPDX-License-Identifier: Apache-2.0
"""What to do, and why: one line a topic, of the numbers of the plan alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from hybridkv.planner.quantities import byte_text, seconds_text

if TYPE_CHECKING:
    from hybridkv.planner.break_even import BreakEven
    from hybridkv.planner.layers import FleetPlan, Layering
    from hybridkv.planner.plan import Design, Length, Question
    from hybridkv.planner.retention import Retention
    from hybridkv.planner.units import Unit

HYBRID, HOMOGENEOUS = "hybrid", "homogeneous"

WORTH = Fraction(1, 20)
"""What a hybrid cache must save of the bytes to be worth its four checks."""

REGIONS, LEAST_REGION_BYTES, DEFAULT_REGION_BYTES = 4, 64 << 10, 64 << 20
"""Of a disk tier: regions at least, the least that one can be, and what it is at least where nobody says."""


@dataclass(frozen=True)
class Advice:
    """One recommendation.

    Attributes
    ----------
    topic : str
        "design", "units", "states", "admission", the name of a place, "layers", "fleet".
    choice : str
        What to do, in a few words.
    reason : str
        The numbers that say so.
    warning : bool
        Whether what was asked for cannot be had.
    """

    topic: str
    choice: str
    reason: str
    warning: bool = False


def advice_of(
    *,
    question: Question,
    hybrid: Design,
    homogeneous: Design,
    is_homogeneous: bool,
    design: str,
    units: Sequence[Unit],
    retentions: Sequence[Retention],
    break_even: Sequence[BreakEven],
    layering: Layering,
    lengths: Sequence[Length],
    fleet: FleetPlan,
) -> tuple[Advice, ...]:
    """Draw the conclusions.

    Parameters are the parts of :class:`~hybridkv.planner.Answer`.

    Returns
    -------
    tuple of Advice
        The design first.
    """
    found = [_design(hybrid, homogeneous, is_homogeneous)]
    if design == HYBRID or is_homogeneous:
        found += [_admission(question, hybrid), _unit(units)]
    else:
        found += [_admission(question, homogeneous), _one_group(homogeneous)]
    chosen = next((one for one in retentions if one.chosen), None)
    if chosen is not None:
        found.append(_states(chosen))
    found += [_place(one, chosen) for one in break_even]
    if break_even:
        found += _region(question, layering)
    found += _layers(question, layering)
    if fleet.hosts > 1 or question.fleet.prefixes is not None:
        found.append(_fleet(fleet))
    return tuple(found)


def saves(hybrid: Design, homogeneous: Design) -> bool:
    """Tell whether the hybrid design saves enough of the bytes to be worth it."""
    return hybrid.load_bytes <= (1 - WORTH) * homogeneous.load_bytes


def design_of(hybrid: Design, homogeneous: Design, is_homogeneous: bool) -> str:
    """Return which design is recommended."""
    return HYBRID if not is_homogeneous and saves(hybrid, homogeneous) else HOMOGENEOUS


def _design(hybrid: Design, homogeneous: Design, one: bool) -> Advice:
    if one:
        return Advice(
            "design",
            HOMOGENEOUS,
            "the model keeps history alone: a known hash is a hit, there is nothing to intersect",
        )
    a, b = byte_text(hybrid.load_bytes), byte_text(homogeneous.load_bytes)
    if not saves(hybrid, homogeneous):
        why = f"this load takes {b} with one lifetime for everything and {a} with a lifetime for each state"
        return Advice("design", HOMOGENEOUS, f"{why}: too little is saved for what must be checked")
    times = homogeneous.load_bytes / hybrid.load_bytes
    return Advice("design", HYBRID, f"this load takes {a}; with one lifetime for everything {b}, {times:.1f} times it")


def _admission(question: Question, design: Design) -> Advice:
    capacity, load = design.capacity, question.load
    step = f"Admission(step_tokens={load.step_tokens})"
    each = byte_text(capacity.request_bytes)
    if capacity.fits:
        kept = f"{capacity.kept_prefixes:,} kept prefixes stay beside {load.concurrency:,}"
        why = f"{each} a request at most, {step}; {kept}"
        return Advice("admission", f"at most {capacity.cap:,} requests of {load.context_tokens:,} tokens", why)
    needed, memory = byte_text(capacity.least_bytes), byte_text(question.memory_bytes)
    up_to = f"so many fit up to {capacity.longest_tokens:,} tokens each" if capacity.longest_tokens else "none fit"
    why = f"{load.concurrency:,} of {load.context_tokens:,} tokens need {needed}, memory is {memory}; {up_to}"
    return Advice("admission", f"{capacity.cap:,} requests, not {load.concurrency:,}", why, warning=True)


def _unit(units: Sequence[Unit]) -> Advice:
    unit = next(one for one in units if one.chosen)
    cause = f", because of {unit.boundary_group}" if unit.boundary_tokens != unit.unit_tokens else ""
    why = (
        f"a resume every {unit.boundary_tokens:,} tokens{cause}: {unit.lost_tokens:,.1f} tokens lost at a prompt's end "
        f"where no tip is kept; {byte_text(unit.request_bytes)} a request"
    )
    least = min(units, key=lambda one: one.request_bytes)
    if least.request_bytes < 0.9 * unit.request_bytes:
        why += f" ({byte_text(least.request_bytes)} with {least.unit_tokens:,})"
    return Advice("units", f"{unit.unit_tokens:,} tokens", why)


def _one_group(homogeneous: Design) -> Advice:
    block = homogeneous.sizes.boundary_tokens
    return Advice(
        "units", f"{block:,} tokens", "one group in blocks of so many: hybridkv.planner.homogeneous_spec(spec)"
    )


def _states(chosen: Retention) -> Advice:
    why = (
        f"{byte_text(chosen.prefix_bytes)} a prefix; {seconds_text(chosen.mean_s)} a hit on average, "
        f"{seconds_text(chosen.end_s)} where a prompt or an answer ended; elsewhere at most "
        f"{chosen.recompute_tokens:,} tokens are computed again"
    )
    warning = not chosen.fits
    if warning:
        why += f"; with room for {chosen.share:.0%} of what is kept {seconds_text(chosen.expected_s)}"
    choice = chosen.call if "(" in chosen.name else f"{chosen.name}, {chosen.call}"
    return Advice("states", choice, why, warning)


def _place(one: BreakEven, chosen: Retention | None) -> Advice:
    restored = one.restore_s if chosen is None or chosen.end_s is None else min(chosen.end_s, one.recompute_s)
    times = f"{seconds_text(restored)} to restore {one.tokens:,} tokens, {seconds_text(one.recompute_s)} to compute"
    if one.least_tokens is None:
        why = f"{times}; it pays from {byte_text(one.least_bytes_per_second)}/s on, whatever the length"
        return Advice(one.place, "recompute", why, warning=True)
    if chosen is not None and not chosen.record_bytes:
        times += ", with no records kept"
    pays = "at any length" if one.least_tokens <= 1 else f"from {one.least_tokens:,} tokens on"
    when = "it pays" if chosen is None or chosen.record_bytes else "with records it pays"
    pays_off = restored < one.recompute_s
    return Advice(one.place, "restore" if pays_off else "recompute", f"{times}; {when} {pays}", warning=not pays_off)


def _region(question: Question, layering: Layering) -> list[Advice]:
    """A disk tier has four regions or more, and each takes the largest record."""
    place = question.places[-1]
    if place.unit_bytes == 1:
        return []
    largest = byte_text(max(layering.record_bytes, layering.block_record_bytes))
    region = max(layering.least_region_bytes, LEAST_REGION_BYTES)
    if place.capacity_bytes < REGIONS * region:
        why = f"a disk tier has {REGIONS} regions or more, of {byte_text(region)} at least"
        return [Advice(place.name, f"{byte_text(REGIONS * region)} or more", why, warning=True)]
    if region <= DEFAULT_REGION_BYTES:
        return []
    why = f"a record is up to {largest}, and at most 5/8 of a region"
    return [Advice(place.name, f"region_bytes={region:,} or more", why)]


def _layers(question: Question, layering: Layering) -> list[Advice]:
    found = []
    if layering.homeless:
        why = f"of {layering.prefixes or 0:,} prefixes {layering.homeless:,} have room nowhere: their hits are computed"
        found.append(Advice("layers", "more room, or fewer prefixes", why, warning=True))
    for one in layering.traffic:
        busy = max(one.read_share or 0.0, one.write_share or 0.0)
        if busy > 1:
            what = "reads" if (one.read_share or 0.0) == busy else "writes"
            bears = f"it bears {one.most_requests_per_second or 0.0:.3g} requests a second"
            why = f"{what} of {busy:.1f} times what it can do; {bears}"
            found.append(Advice(one.place, "too slow for this load", why, warning=True))
    return found


def _fleet(fleet: FleetPlan) -> Advice:
    if fleet.prefixes is None:
        return Advice("fleet", f"{fleet.hosts:,} hosts", f"{fleet.requests:,} requests at a time")
    room = f"each host has room for {fleet.room_of_a_host:,} prefixes"
    if fleet.hosts_needed is None:
        how = "and no number of hosts keeps all, unless requests are routed by prefix" if not fleet.routed else "none"
        return Advice("fleet", "route requests by prefix", f"{room}, of {fleet.prefixes:,}: {how}", warning=True)
    short = fleet.hosts_needed > fleet.hosts
    choice = f"{fleet.hosts_needed:,} hosts, not {fleet.hosts:,}" if short else f"{fleet.hosts:,} hosts"
    needed = f"{fleet.hosts_needed:,} suffice for all {fleet.prefixes:,}"
    return Advice("fleet", choice, f"{room}, {needed}; {fleet.requests:,} requests at a time", warning=short)
