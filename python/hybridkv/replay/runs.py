# SPDX-License-Identifier: Apache-2.0
"""Traces times models times budgets: which lanes there are, and all of them served side by side.

Each hybrid lane has a twin under the homogeneous rule: one full-attention group with as many units as the
history of the hybrid one, evicted in the same order. What the twin calls a hit is what a prefix-hash
manager would have resumed in that memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hybridkv import CacheSpec
from hybridkv.errors import ArgumentError
from hybridkv.replay.answers import next_turns
from hybridkv.replay.pools import GIB, Demand, Pools, Windows, demand_bytes, size_pools
from hybridkv.replay.progress import progress
from hybridkv.replay.replay import Lane, prepare
from hybridkv.replay.shapes import Shape
from hybridkv.replay.trace import Trace, load_trace

DEFAULT_SHARES = (1 / 16, 1 / 4, 1.0)
"""Budgets where none is given: parts of what the trace would fill."""

ENDS = Windows("ends")

DEMO_TRACES = ("mooncake_conversation.jsonl", "agent_magagent_blk16.jsonl", "agent_miniswe_blk16.jsonl")


@dataclass(frozen=True, slots=True)
class Options:
    """What to replay, and how.

    Attributes
    ----------
    shapes : tuple of Shape
        Models.
    budgets_gib : tuple of float or None
        Memory for KV in GiB; None: :data:`DEFAULT_SHARES` of what the trace would fill.
    windows : Windows
        Boundaries that keep windows and checkpoints.
    unit_tokens : int
        Tokens of a key, the same for all traces and models.
    answers : bool
        Whether answers are stored where the next turn names them.
    requests : int or None
        Replay at most that many requests of each trace.
    block_tokens : int or None
        Tokens of one id; None: by the lengths in the trace.
    """

    shapes: tuple[Shape, ...]
    budgets_gib: tuple[float, ...] | None = None
    windows: Windows = ENDS
    unit_tokens: int = 256
    answers: bool = True
    requests: int | None = None
    block_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """One model on one trace in one memory size.

    Attributes
    ----------
    model : str
        Name of the shape.
    hybrid : Lane
        The hybrid manager.
    promise : Lane
        Its twin under the homogeneous rule.
    """

    model: str
    hybrid: Lane
    promise: Lane


@dataclass(frozen=True, slots=True)
class TraceResult:
    """All lanes of one trace.

    Attributes
    ----------
    trace : Trace
        The requests.
    answers : int
        Requests whose answer the next turn names.
    results : tuple of Result
        By model, then by budget.
    """

    trace: Trace
    answers: int
    results: tuple[Result, ...]


def find_demo_traces(starts: Sequence[Path] | None = None) -> list[Path]:
    """Find the traces that come with a clone.

    Parameters
    ----------
    starts : sequence of Path, optional
        Folders from which to look upwards; default: the working directory, then the folder of this package.

    Returns
    -------
    list of Path
        The files of :data:`DEMO_TRACES`.

    Raises
    ------
    ArgumentError
        There is no clone around: the traces are no part of the installed package.
    """
    if starts is None:
        starts = (Path.cwd(), Path(__file__).resolve().parent)
    for start in starts:
        for folder in (start, *start.parents):
            found = [folder / "tests" / "data" / "traces" / name for name in DEMO_TRACES]
            if (folder / "pyproject.toml").is_file() and all(path.is_file() for path in found):
                return found
    raise ArgumentError("trace", "tests/data/traces of a clone above the working directory, or --trace PATH", "neither")


def replay(paths: Sequence[Path], options: Options, *, shown: bool = False) -> list[TraceResult]:
    """Replay traces.

    Parameters
    ----------
    paths : sequence of Path
        Trace files; all are read before the first is replayed.
    options : Options
        What to replay, and how.
    shown : bool
        Whether to show a progress bar on a terminal.

    Returns
    -------
    list of TraceResult
        In the order of `paths`.

    Raises
    ------
    ArgumentError
        A file or an option is not legal.
    """
    if options.unit_tokens < 1:
        raise ArgumentError("unit_tokens", "at least 1", options.unit_tokens)
    specs = [(shape.name, shape.make(options.unit_tokens)) for shape in options.shapes]
    traces = [load_trace(path, block_tokens=options.block_tokens, requests=options.requests) for path in paths]
    found = []
    for trace in traces:
        with progress(trace.name, len(trace.requests), shown=shown) as step:
            found.append(_replay_trace(trace, specs, options, step))
    return found


def _replay_trace(
    trace: Trace, specs: Sequence[tuple[str, CacheSpec]], options: Options, step: Callable[[], None]
) -> TraceResult:
    turns: list[int | None] = [None] * len(trace.requests)
    if options.answers:
        turns = next_turns(trace)
    demand = Demand.of(trace, turns, options.unit_tokens, options.windows)
    results = []
    for model, spec in specs:
        if options.budgets_gib is None:
            whole = demand_bytes(spec, demand)
            budgets = [max(1, int(whole * share)) for share in DEFAULT_SHARES]
        else:
            budgets = [int(gib * GIB) for gib in options.budgets_gib]
        for budget in budgets:
            pools = size_pools(spec, budget, demand)
            results.append(
                Result(model, Lane(spec, pools, options.windows), _homogeneous_twin(spec, pools, options.windows))
            )
    for work in prepare(trace, turns, options.unit_tokens):
        for result in results:
            result.promise.serve(work)
            result.hybrid.serve(work)
        step()
    return TraceResult(trace, sum(turn is not None for turn in turns), tuple(results))


def _homogeneous_twin(spec: CacheSpec, pools: Pools, windows: Windows) -> Lane:
    page_bytes = max(1, round(spec.bytes_per_token * spec.unit_tokens))
    twin = CacheSpec.homogeneous(1, page_bytes, unit_tokens=spec.unit_tokens)
    pages = {group.name: pools.units for group in twin.groups}
    return Lane(twin, Pools(pools.units, pages, pools.budget_bytes, pools.share), windows)
