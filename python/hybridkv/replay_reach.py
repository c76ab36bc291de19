# SPDX-License-Identifier: Apache-2.0
"""How far before a length a replay has to start so that one group is whole there, whatever the length.

A row of a layer is made from what the layer below puts out, and that is made from the rows of the layer below which its
query reads: of windows and chunks, since history (``Prefix`` groups) is stored, and entries of history are what a query
sees of tails. So what a group needs at its own layers is pushed back by every window and chunk below them, whichever
groups those belong to, and whether or not they can be rebuilt: what is stored at the length is not what was there
before it. From the highest layer downwards, with `reach` the distance of what is needed so far::

    reach(layer) = most of: what the group itself needs, if it has this layer; the rows that a query at `reach` reads

Nothing but history counts as stored. So a replay that starts where one group needs it is enough for that group whatever
else is missing, and the earliest start of all that are missing is enough for all of them together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from hybridkv.coverage import Checkpoint, Chunk, Prefix, Window
from hybridkv.errors import SpecError
from hybridkv.group import CacheGroup

LOWEST_LAYER = (0,)


class Reach(NamedTuple):
    """A start before a length.

    Attributes
    ----------
    tokens : int
        At most so many tokens before the length.
    step : int
        The start is a multiple of it.
    """

    tokens: int
    step: int


class Layer(NamedTuple):
    """A layer and the state groups that it has rows of."""

    name: int | str
    groups: list[CacheGroup]


def states_among(groups: Iterable[CacheGroup]) -> tuple[CacheGroup, ...]:
    """Return the groups without ``Prefix`` coverage."""
    return tuple(group for group in groups if not isinstance(group.coverage, Prefix))


def is_overlap(group: CacheGroup) -> bool:
    """Say whether the group keeps the rows of the last closed window of a compressor."""
    return group.coverage == Checkpoint() and group.format is not None and bool(group.format.overlap)


def is_endless(group: CacheGroup) -> bool:
    """Say whether the group keeps a state of the whole prefix, as far as anybody declared."""
    return group.coverage == Checkpoint() and not is_overlap(group) and group.replay_tokens is None


def numbered(groups: Iterable[CacheGroup]) -> bool:
    """Say whether every layer of the groups has a number, so that it is known which lies above which."""
    return all(group.layers and all(isinstance(layer, int) for layer in group.layers) for group in groups)


def ordered_layers(groups: Sequence[CacheGroup]) -> list[Layer] | None:
    """Return the layers of groups from the lowest to the highest; None where nobody knows which lies above which."""
    states = states_among(groups)
    if len(states) == 1 and not numbered(states):  # whatever its layers are called, they lie in the order given
        return [Layer(name, [states[0]]) for name in states[0].layers or range(1)]
    if not numbered(states):
        return None
    lying: dict[int, list[CacheGroup]] = {}
    for group in groups:
        for name in group.layers:
            if isinstance(name, int):
                lying.setdefault(name, []).extend([] if isinstance(group.coverage, Prefix) else [group])
    return [Layer(name, lying[name]) for name in sorted(lying)]


def own_reach(group: CacheGroup) -> Reach:
    """Return what a resume needs of one layer of a group; of a tail of unknown make at least its newest token."""
    coverage, rows = group.coverage, group.rows_per_page or 1
    if isinstance(coverage, Window):
        return Reach(coverage.tokens - 1, 1)
    if isinstance(coverage, Chunk):
        return Reach(coverage.tokens - 1, coverage.tokens)
    if isinstance(coverage, Checkpoint) and coverage.every is not None:
        return Reach(coverage.every - 1, coverage.every)
    return Reach(2 * rows - 1, rows) if is_overlap(group) else Reach(1, 1)


def pushed_back(layers: Sequence[Layer], group: CacheGroup, own: Reach) -> Reach:
    """Return where a replay starts so that a group, which needs `own` of each of its layers, is whole.

    Raises
    ------
    SpecError
        Below one of its layers lies a state of the whole prefix.
    """
    if not own.tokens:
        return own
    reach: Reach | None = None  # None: nobody needs what this layer puts out
    for _, groups in reversed(layers):
        reaches = [] if reach is None else [_read(other, reach, group) for other in groups if _is_read(other)]
        if reach is not None and not reaches:
            reaches.append(reach)
        if any(other is group for other in groups):
            reaches.append(own)
        if reaches:  # any of them may be the earliest
            reach = Reach(max(one.tokens for one in reaches), math.gcd(*(one.step for one in reaches)))
    return own if reach is None else reach


def most_replayed(group: CacheGroup) -> int:
    """Return how many tokens, rounding aside, a match replays of a rebuildable group at most; 0: it replays none."""
    return group.replay_tokens or _implied(group).tokens


def with_replays(groups: Sequence[CacheGroup]) -> tuple[CacheGroup, ...]:
    """Return the groups, each rebuildable one with ``replay_tokens`` that are enough.

    Left out where what the coverage says by itself is enough at every length.

    Raises
    ------
    SpecError
        Naming ``replay_tokens`` that are declared and too few, ``rebuildable`` of a group that no replay can make, or
        ``layers`` whose numbers are needed to know that.
    """
    return tuple(_with_replay(group, groups) if group.rebuildable else group for group in groups)


def _with_replay(group: CacheGroup, groups: Sequence[CacheGroup]) -> CacheGroup:
    if is_endless(group):
        return group  # never replayed
    reach, implied, declared = _reach(group, groups), _implied(group), group.replay_tokens
    if declared is None:
        # Of a chunk or an open window the start moves with the length: it is the same one where it is in step.
        enough = reach.tokens <= implied.tokens and reach.step % implied.step == 0
        return group if enough else replace(group, replay_tokens=reach.tokens)
    if declared < reach.tokens:
        expected = f"at least {reach.tokens}, how far the layers push back what a resume needs, or None"
        raise SpecError(group.field_name("replay_tokens"), expected, declared)
    return group


def _reach(group: CacheGroup, groups: Sequence[CacheGroup]) -> Reach:
    states, own = states_among(groups), own_reach(group)
    if not any(_is_read(other) for other in states if other is not group):
        states = (group,)  # nothing that lies beside it matters
    layers = ordered_layers(states)
    if layers is not None:
        return pushed_back(layers, group, own)
    if not own.tokens or group.layers == LOWEST_LAYER:  # nothing lies below
        return own
    return _whatever_the_order(group, states, own)


def _whatever_the_order(group: CacheGroup, states: Sequence[CacheGroup], own: Reach) -> Reach:
    """As if every layer lay below: no order needs more."""
    for other in states:
        if other is not group and is_endless(other):
            unnumbered = next(state for state in (group, *states) if not numbered([state]))
            expected = (
                f"layer numbers, to know that {other.name!r}, a state of the whole prefix, lies below no layer of "
                f"{group.name!r}, which is rebuildable"
            )
            raise SpecError(unnumbered.field_name("layers"), expected, unnumbered.layers)
    below = sum(other.layer_count * own_reach(other).tokens for other in states if _is_read(other))
    return Reach(below if _is_read(group) else below + own.tokens, 1)


def _is_read(group: CacheGroup) -> bool:
    """Say whether queries read rows of the group before their own, or a state that they go on from."""
    if isinstance(group.coverage, (Window, Chunk)):
        return group.coverage.tokens > 1
    return is_endless(group)


def _read(group: CacheGroup, query: Reach, rebuilt: CacheGroup) -> Reach:
    """Return where the rows begin that the earliest query reads."""
    if isinstance(group.coverage, Window):
        return Reach(query.tokens + group.coverage.tokens - 1, 1)
    if isinstance(group.coverage, Chunk):
        inside = query.step % group.coverage.tokens == 0  # the start of a chunk is its own chunk's start
        return query if inside else Reach(query.tokens + group.coverage.tokens - 1, group.coverage.tokens)
    expected = f"False: below a layer of it lies {group.name!r}, a state of the whole prefix"
    raise SpecError(rebuilt.field_name("rebuildable"), expected, rebuilt.rebuildable)


def _implied(group: CacheGroup) -> Reach:
    """What a match replays of a group without ``replay_tokens``: ``replay_from`` of csrc/reuse/planes.h."""
    if isinstance(group.coverage, Window):
        return Reach(group.layer_count * (group.coverage.tokens - 1), 1)
    return Reach(max(group.coverage.parameter - 1, 0), max(group.coverage.parameter, 1))
