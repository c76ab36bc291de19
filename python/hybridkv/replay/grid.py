# SPDX-License-Identifier: Apache-2.0
"""Traces times models, policies, orders of eviction, memory sizes and tiers: all lanes of a trace side by side."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hybridkv import CacheSpec
from hybridkv.errors import ArgumentError
from hybridkv.metrics import Metrics
from hybridkv.replay.answers import next_turns
from hybridkv.replay.places import Place, bind_pages, open_place
from hybridkv.replay.pools import Demand, Pools, Windows, demand_bytes, size_pools
from hybridkv.replay.progress import progress
from hybridkv.replay.replay import TREE, Lane
from hybridkv.replay.runs import DEFAULT_SHARES, ENDS
from hybridkv.replay.shapes import Shape
from hybridkv.replay.timeline import Sample, sample_after, take
from hybridkv.replay.trace import Trace, load_trace
from hybridkv.replay.units import Units, prepare_units
from hybridkv.tiers.records import TierUsage

EVICTIONS = ("usability", "lru", TREE, "none")

MOST_LANES = 256


@dataclass(frozen=True, slots=True)
class Grid:
    """What to replay.

    Attributes
    ----------
    shapes : tuple of Shape
        Models.
    memory : tuple of int or None
        Bytes for pages; None: 1/16, 1/4 and all of what the trace would fill under the first policy.
    policies : tuple of Windows
        Which boundaries keep their states.
    evictions : tuple of str
        Of :data:`EVICTIONS`.
    places : tuple of Place or None
        Tiers; None: none.
    unit_tokens : int
        Tokens of a key, the same for all.
    answers : bool
        Whether answers are stored where the next turn names them.
    requests, block_tokens : int or None
        See :func:`hybridkv.replay.trace.load_trace`.
    """

    shapes: tuple[Shape, ...]
    memory: tuple[int, ...] | None = None
    policies: tuple[Windows, ...] = (ENDS,)
    evictions: tuple[str, ...] = ("usability",)
    places: tuple[Place | None, ...] = (None,)
    unit_tokens: int = 256
    answers: bool = True
    requests: int | None = None
    block_tokens: int | None = None


@dataclass(slots=True)
class Run:
    """One lane, and its figures in the course of the trace.

    Attributes
    ----------
    model, eviction : str
    policy : Windows
    place : Place or None
    lane : Lane
    samples : list of Sample
    metrics : Metrics or None
        Counters of the cache, once the trace is over.
    usage : TierUsage or None
        The same of the tier, where there is one.
    """

    model: str
    policy: Windows
    eviction: str
    place: Place | None
    lane: Lane
    samples: list[Sample] = field(default_factory=list)
    metrics: Metrics | None = None
    usage: TierUsage | None = None


@dataclass(frozen=True, slots=True)
class TraceRuns:
    """All runs of one trace.

    Attributes
    ----------
    trace : Trace
        The requests; ``trace.broken`` says why there are no more.
    answers : int
        Requests whose answer the next turn names.
    ever_seen : int
        Tokens that a cache which never forgets would give, of the requests served.
    served : int
        Requests that every lane has served.
    interrupted : bool
        Whether that was cut short.
    runs : tuple of Run
    """

    trace: Trace
    answers: int
    ever_seen: int
    served: int
    interrupted: bool
    runs: tuple[Run, ...]


def replay_grid(paths: Sequence[Path], grid: Grid, *, shown: bool = False) -> list[TraceRuns]:
    """Replay traces.

    Parameters
    ----------
    paths : sequence of Path
        Trace files; all are read before the first is replayed. One that is broken from some line on is replayed up to
        it.
    grid : Grid
        What to replay.
    shown : bool
        Whether to show a progress bar on a terminal.

    Returns
    -------
    list of TraceRuns
        In the order of `paths`; fewer where SIGINT came: what was served until then is kept.

    Raises
    ------
    ArgumentError
        A file or an option is not legal.
    """
    _check(grid)
    specs = [(shape.name, shape.make(grid.unit_tokens)) for shape in grid.shapes]
    traces = [load_trace(path, block_tokens=grid.block_tokens, requests=grid.requests, partial=True) for path in paths]
    found: list[TraceRuns] = []
    with _interruptible() as interrupted:
        for number, trace in enumerate(traces):
            if interrupted():
                break
            with progress(trace.name, len(trace.requests), shown=shown) as step:
                found.append(_replay_trace(trace, specs, grid, number, step, interrupted))
    return found


def _check(grid: Grid) -> None:
    for eviction in grid.evictions:
        if eviction not in EVICTIONS:
            raise ArgumentError("eviction", f"one of {', '.join(EVICTIONS)}", eviction)
    sizes = len(DEFAULT_SHARES) if grid.memory is None else len(grid.memory)
    lanes = len(grid.shapes) * sizes * len(grid.policies) * len(grid.evictions) * len(grid.places)
    if not 1 <= lanes <= MOST_LANES:
        raise ArgumentError("replay", f"1 to {MOST_LANES} models x policies x orders x sizes x tiers", lanes)
    if grid.unit_tokens < 1:
        raise ArgumentError("unit_tokens", "at least 1", grid.unit_tokens)


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Let the first SIGINT ask for an end between two requests; the second ends at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # where no handler can be put
        yield asked.is_set
        return
    before = signal.getsignal(signal.SIGINT)

    def ask(*_: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, ask)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def _replay_trace(
    trace: Trace,
    specs: Sequence[tuple[str, CacheSpec]],
    grid: Grid,
    number: int,
    step: Callable[[], None],
    interrupted: Callable[[], bool],
) -> TraceRuns:
    turns: list[int | None] = [None] * len(trace.requests)
    if grid.answers:
        turns = next_turns(trace)
    units = Units.of(trace, turns, grid.unit_tokens)
    runs = _lanes(specs, grid, units, number)
    due = sample_after(trace)
    seen = served = 0
    for work, seconds in zip(prepare_units(trace, units), due.tolist(), strict=True):
        for run in runs:
            run.lane.serve(work)
        served += 1
        assert work.seen is not None
        seen += work.seen.tokens
        step()
        stop = served < len(trace.requests) and interrupted()
        if stop or not np.isnan(seconds):
            at = (trace.requests[served - 1].timestamp - trace.requests[0].timestamp) * trace.tick_s
            for run in runs:
                run.samples.append(take(run.lane, at if np.isnan(seconds) else seconds))
        if stop:
            break
    for run in runs:
        run.metrics = run.lane.cache.metrics()
        run.usage = None if run.lane.tier is None else run.lane.tier.usage()
        run.lane.close()
    answers = sum(turn is not None for turn in turns)
    return TraceRuns(trace, answers, seen, served, served < len(trace.requests), tuple(runs))


def _lanes(specs: Sequence[tuple[str, CacheSpec]], grid: Grid, units: Units, number: int) -> list[Run]:
    runs: list[Run] = []
    for (model, spec), policy in itertools.product(specs, grid.policies):
        demand = units.demand(policy, spec.boundary_tokens)
        whole = demand_bytes(spec, units.demand(grid.policies[0], spec.boundary_tokens))
        sizes = grid.memory or tuple(max(1, int(whole * share)) for share in DEFAULT_SHARES)
        for eviction, size, place in itertools.product(grid.evictions, sizes, grid.places):
            pools = size_pools(spec, size, demand)
            lane = _lane(spec, pools, policy, eviction, place, demand, len(units.names), 1000 * number + len(runs))
            runs.append(Run(model, policy, eviction, place, lane))
    return runs


def _lane(
    spec: CacheSpec,
    pools: Pools,
    policy: Windows,
    eviction: str,
    place: Place | None,
    demand: Demand,
    units: int,
    number: int,
) -> Lane:
    if place is None:
        return Lane(spec, pools, policy, eviction=eviction, units=units)
    own, tier = open_place(place, spec, demand, number)
    lane = Lane(own, pools, policy, eviction=eviction, units=units, tier=tier)
    bind_pages(lane.cache)
    return lane
