# SPDX-License-Identifier: Apache-2.0
"""Which layers have to run for which tokens, so that windows and tails are whole again where nothing kept them.

A row of a window layer at token j is made from what the layer below puts out at j, and that is made from the window
of the layer below. So each window layer pushes what is needed a window further back, while history (``Prefix``
groups) is there and pushes nothing. From the highest layer downwards, with `out` the first token whose output
somebody above needs::

    start(layer) = least of: out, what a resume at t needs of this layer's rows, the window of the query at out
    out(layer below) = start(layer)

That is the *triangular* schedule: the lowest of n equal window layers runs for the last n * (window - 1) tokens, the
highest for window - 1. Running every layer from the lowest start on is exact as well and about twice the work; it is
what an engine does that cannot run layers for different tokens ("n_win x L").

What a replay may write. The first entries that compressors make in a replay lack the rows before it, and are wrong.
So a replay writes rows of windows and tails alone, and nothing below t of any other group: the groups that it may
write are named, no ``Prefix`` group is ever among them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from hybridkv import _core
from hybridkv.coverage import Checkpoint, Chunk, Prefix, Window
from hybridkv.errors import SpecError
from hybridkv.group import CacheGroup
from hybridkv.spec import CacheSpec


class LayerSpan(NamedTuple):
    """The tokens that one layer runs for: [start, stop)."""

    layer: int | str
    start: int
    stop: int


@dataclass(frozen=True)
class _Schedule:
    """Spans of layers; the two classes that users see say whether the result is exact."""

    tokens: int
    spans: tuple[LayerSpan, ...]
    groups: tuple[str, ...]

    exact: ClassVar[bool]

    @property
    def resume_tokens(self) -> int:
        """First token that any layer runs for; `tokens` where none runs."""
        return min((span.start for span in self.spans), default=self.tokens)

    @property
    def layer_tokens(self) -> int:
        """Work: tokens that layers run for, summed over layers."""
        return sum(span.stop - span.start for span in self.spans)


@dataclass(frozen=True)
class ReplaySchedule(_Schedule):
    """A replay whose result is what keeping the states would have given.

    Attributes
    ----------
    tokens : int
        The length whose states it makes.
    spans : tuple of LayerSpan
        By layer, the lowest first.
    groups : tuple of str
        What it may write below `tokens`: window and tail groups. Writes are masked for every other group.
    exact : bool
        True: a property of the class, which nobody can set.
    """

    exact: ClassVar[bool] = True


@dataclass(frozen=True)
class BoundedReplay(_Schedule):
    """A replay with windows cut off where it starts: the result depends on where the hit ended, and is not exact.

    Attributes are those of :class:`ReplaySchedule`; it is no subclass, so that who takes exact replays refuses it.
    """

    exact: ClassVar[bool] = False


def states_of(spec: CacheSpec) -> tuple[CacheGroup, ...]:
    """Return the groups without ``Prefix`` coverage: what a boundary record holds."""
    return tuple(group for group in spec.groups if not isinstance(group.coverage, Prefix))


def exact_replay(spec: CacheSpec, tokens: int, *, triangular: bool) -> ReplaySchedule | None:
    """Schedule the replay that makes every state at a length from stored history.

    Parameters
    ----------
    spec : CacheSpec
        ``layers`` of its groups name every layer that reads them.
    tokens : int
        The length; history must be stored up to it.
    triangular : bool
        Each layer for what is needed of it; False: every layer from the lowest start on, rounded down to a boundary of
        the spec.

    Returns
    -------
    ReplaySchedule or None
        None where it would take the whole prefix, which is no reuse.

    Raises
    ------
    SpecError
        A state that no replay can make, or layers of which nobody knows which lies above which.
    """
    layers = _layers(spec)
    spans: list[LayerSpan] = []
    out = tokens
    for layer, groups in reversed(layers):
        out = min([out, *(_start(group, out, tokens) for group in groups)])
        spans.append(LayerSpan(layer, out, tokens))
    spans.reverse()
    if not triangular:
        out = out // spec.boundary_tokens * spec.boundary_tokens if out < tokens else tokens
        spans = [LayerSpan(layer, out, tokens) for layer, _ in layers]
    if out <= 0 < tokens:
        return None
    return ReplaySchedule(tokens, tuple(spans), tuple(group.name for group in states_of(spec)))


def bounded_replay(spec: CacheSpec, tokens: int, replay_tokens: int | None = None) -> BoundedReplay | None:
    """Schedule a replay of the last tokens alone, windows cut off where it starts. Not exact.

    Parameters
    ----------
    spec : CacheSpec
    tokens : int
        The length; history must be stored up to it.
    replay_tokens : int, optional
        How many tokens are run. Default: the widest window.

    Returns
    -------
    BoundedReplay or None
        None where it would take the whole prefix.

    Raises
    ------
    SpecError
        As :func:`exact_replay`; chunks; fewer tokens than a window or tail has rows.
    """
    layers = _layers(spec)
    chunk = next((group for group in spec.groups if isinstance(group.coverage, Chunk)), None)
    if chunk is not None:
        raise SpecError(
            chunk.field_name("coverage"), "windows and tails, to be replayed within a bound", chunk.coverage
        )
    most = max((_least_bound(group) for group in states_of(spec)), default=0)
    bound = most if replay_tokens is None else replay_tokens
    if bound < most:
        raise SpecError("replay_tokens", f"at least {most}, the rows that a window or tail needs", bound)
    if bound and tokens <= bound:
        return None
    spans = tuple(LayerSpan(layer, tokens - bound, tokens) for layer, _ in layers)
    return BoundedReplay(tokens, spans, tuple(group.name for group in states_of(spec)))


def replay_distance(spec: CacheSpec) -> int:
    """Return how many tokens before a length an exact replay starts at most, whatever the length.

    Raises
    ------
    SpecError
        As :func:`exact_replay`.
    """
    distance, aligned = 0, 1  # `out` is a multiple of `aligned`: the start of a chunk is its own chunk's start
    for _, groups in reversed(_layers(spec)):
        reaches = [_reach(group, distance, aligned) for group in groups]
        if not any(isinstance(group.coverage, (Window, Chunk)) for group in groups):
            reaches.append((distance, aligned))  # else it starts at `out` or below
        distance = max(reach for reach, _ in reaches)
        aligned = math.gcd(*(step for _, step in reaches))  # any of them may be the lowest
    return distance


def rebuilt_spec(spec: CacheSpec) -> CacheSpec:
    """Return the spec with every state group rebuildable, and replays that are long enough for all of them.

    A match over such a spec answers REUSABLE with ``plan.replay`` where states are not there.

    Raises
    ------
    SpecError
        As :func:`exact_replay`.
    """
    distance = replay_distance(spec)
    if not distance:
        return spec
    states = set(states_of(spec))
    groups = [replace(g, rebuildable=True, replay_tokens=distance) if g in states else g for g in spec.groups]
    return replace(spec, groups=groups)


def check_declared(spec: CacheSpec) -> None:
    """Refuse a group that a match would replay from too late a token: its rows would be wrong, and nobody told.

    Without ``replay_tokens`` a match starts where the group's own coverage says. That is not enough where windows of
    two groups lie above each other, or for a tail that is made from what window layers put out.

    Raises
    ------
    SpecError
        Naming the group's ``replay_tokens`` and the least that is enough.
    """
    rebuildable = [group for group in spec.groups if group.rebuildable]
    if not rebuildable:
        return
    distance = replay_distance(spec)
    for group in rebuildable:
        declared = group.replay_tokens or _implied(group)
        if declared < distance:
            expected = f"at least {distance}, how far the spec's layers push back what a resume needs"
            raise SpecError(group.field_name("replay_tokens"), expected, declared)


def _implied(group: CacheGroup) -> int:
    """Most tokens that a match replays of a group that declares nothing: ``replay_from`` of csrc/reuse/planes.h."""
    if isinstance(group.coverage, Window):
        return group.layer_count * (group.coverage.tokens - 1)
    return max(group.coverage.parameter - 1, 0)


def _is_overlap(group: CacheGroup) -> bool:
    return group.coverage == Checkpoint() and group.format is not None and bool(group.format.overlap)


def _start(group: CacheGroup, out: int, tokens: int) -> int:
    """First token whose rows of one layer are needed: by a resume at `tokens`, or by the query at `out`, if any."""
    coverage, rows = group.coverage, group.rows_per_page or 1
    if isinstance(coverage, (Window, Chunk)):
        return int(_core.needed_span(coverage.rule, coverage.parameter, out)[0])
    if isinstance(coverage, Checkpoint) and coverage.every is not None:
        return tokens // coverage.every * coverage.every  # the rows since, or the state that starts anew there
    if _is_overlap(group):  # of the last closed window, once there is one
        return max(tokens // rows - 1, 0) * rows if tokens >= rows else tokens
    assert group.replay_tokens is not None  # _layers refuses others
    return max(tokens - group.replay_tokens, 0)


def _reach(group: CacheGroup, distance: int, aligned: int) -> tuple[int, int]:
    """Largest distance of :func:`_start` from the length, and what that start is a multiple of."""
    coverage, rows = group.coverage, group.rows_per_page or 1
    if isinstance(coverage, Window):
        return distance + coverage.tokens - 1, 1
    if isinstance(coverage, Chunk):
        inside = aligned % coverage.tokens == 0
        return (distance, aligned) if inside else (distance + coverage.tokens - 1, coverage.tokens)
    if isinstance(coverage, Checkpoint) and coverage.every is not None:
        return coverage.every - 1, coverage.every
    return (2 * rows - 1, rows) if _is_overlap(group) else (group.replay_tokens or 0, 1)


def _least_bound(group: CacheGroup) -> int:
    """Tokens that a bounded replay runs at least: the whole window, and every row of a tail."""
    coverage = group.coverage
    return coverage.tokens if isinstance(coverage, Window) else _reach(group, 0, 1)[0]


def _layers(spec: CacheSpec) -> list[tuple[int | str, list[CacheGroup]]]:
    """Return the layers from the lowest to the highest, each with its state groups."""
    states = states_of(spec)
    for group in states:
        endless = group.coverage == Checkpoint() and not _is_overlap(group) and group.replay_tokens is None
        if endless:
            expected = "kept checkpoints: a state of the whole prefix is not made by a replay of its end"
            raise SpecError(group.field_name("coverage"), expected, group.coverage)
    if len(states) == 1:  # whatever its layers are called, they lie in the order given
        alone = states[0]
        if not _numbered([alone]):
            return [(layer, [alone]) for layer in alone.layers or range(1)]
    elif not _numbered(states):
        unnamed = next(group for group in states if not _numbered([group]))
        expected = "layer numbers, to know which lies above which in a replay"
        raise SpecError(unnamed.field_name("layers"), expected, unnamed.layers)
    numbers = {layer for group in spec.groups for layer in group.layers if isinstance(layer, int)}
    return [(layer, [group for group in states if layer in group.layers]) for layer in sorted(numbers)]


def _numbered(groups: Sequence[CacheGroup]) -> bool:
    return all(group.layers and all(isinstance(layer, int) for layer in group.layers) for group in groups)
