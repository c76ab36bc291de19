# SPDX-License-Identifier: Apache-2.0
"""What a fault is: one way of breaking the rows of one sequence, and what a checked cache must say of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

import torch

from hybridkv.kinds import Check, StateKind

State: TypeAlias = Mapping[Any, torch.Tensor]
"""Rows of one sequence at one position, [[rows, ...]] by place: with ``group``, ``part``, ``layer`` and ``path``."""

Change: TypeAlias = Callable[[torch.Tensor, Any, "Context"], torch.Tensor | None]
"""(rows, place, context) -> other rows, or None: the place is gone."""

Counts: TypeAlias = Callable[[int, str, int, "Context"], int]
"""(layer, path, right value, context) -> what a count or position of a cache layer says instead."""


class Way(StrEnum):
    """How a state can be wrong."""

    DROP = "drop"
    ZERO = "zero"
    STALE = "stale"
    FOREIGN = "foreign"
    SHIFTED = "shifted"
    LAGGING = "lagging"
    WRONG_COUNT = "wrong count"
    WRONG_POSITION = "wrong position"
    WRONG_FORMAT = "wrong format"
    WRONG_STRIDE = "wrong stride"
    WRONG_BASE = "wrong base"
    TRUNCATED = "truncated"
    PARTLY_ON_DISK = "partly on disk"
    OTHER_WEIGHTS = "other weights"


def no_bias(place: Any) -> torch.Tensor | None:
    """Say that no position bias is known of a place."""
    return None


@dataclass(frozen=True)
class Context:
    """What a fault may draw on.

    Attributes
    ----------
    layout : object
        ``places`` of a full state, and ``groups``: by name, each a :class:`~hybridkv.CacheGroup`.
    tokens : int
        Position of the state that is broken.
    at : callable
        Position -> the state of the same prompt there; None where it has none. May be asked for ``tokens + 1``.
    foreign : State
        Of another prompt at the same position.
    other_weights : State
        Of the same prompt at the same position by a model whose weights differ by 1 %.
    bias : callable
        Place -> position bias [[rows of a window, columns]] that belongs to a gate; None where there is none.
    """

    layout: Any
    tokens: int
    at: Callable[[int], State | None]
    foreign: State
    other_weights: State
    bias: Callable[[Any], torch.Tensor | None] = no_bias

    def earlier(self, tokens: int) -> State | None:
        """Return the state of the same prompt so many tokens ago; a negative number looks ahead."""
        return self.at(self.tokens - tokens) if self.tokens > tokens else None

    def window_tokens(self) -> int:
        """Return the widest window of the model, the querying token included; 16 where it has none."""
        widths = [getattr(group.coverage, "tokens", 0) for group in self.layout.groups.values()]
        return max(widths, default=0) or 16


@dataclass(frozen=True)
class Fault:
    """One way of breaking a state.

    Attributes
    ----------
    name : str
        One line, unique: the state, then what is wrong with it.
    way : Way
    kind : StateKind
        The kind of state that is broken; DISK where bytes of any kind come back wrong from storage.
    groups : tuple of str
        Names of the cache groups whose rows it changes; it applies to a model that has one of them.
    check : Check
        The check that refuses it where states are restored.
    code : str
        The code that goes with it, as of :class:`~hybridkv.Why`.
    change : callable
        (state, context) -> the broken state; None where the context has not what it takes.
    counts : callable, optional
        What the counts of the cache layers say; default: what is right.
    moved_tokens : int, optional
        By how many tokens the whole state stands elsewhere. Default: 0.
    declares : mapping, optional
        Fields of :class:`~hybridkv.KvFormat` that a writer of such bytes would declare, were it asked: with
        them the fault is refused before a byte is read. Default: nothing that a format tells.
    """

    name: str
    way: Way
    kind: StateKind
    groups: tuple[str, ...]
    check: Check
    code: str
    change: Callable[[State, Context], State | None]
    counts: Counts | None = None
    moved_tokens: int = 0
    declares: Mapping[str, object] = field(default_factory=dict)

    def apply(self, state: State, context: Context) -> State | None:
        """Break a state.

        Parameters
        ----------
        state : State
            Whole and right; it is left as it is.
        context : Context
            At the same position.

        Returns
        -------
        State or None
            The broken state, tensors of its own where they differ; None where the fault does not apply to this
            model, or does not act at this position (an aligned tail has no rows to lose).
        """
        if not any(place.group in self.groups for place in state) and self.counts is None:
            return None
        broken = self.change(state, context)
        if broken is None or (self.counts is None and same(state, broken)):
            return None
        return {place: rows if rows is state.get(place) else rows.clone() for place, rows in broken.items()}


def same(one: State, other: State) -> bool:
    """Whether two states hold the same bytes of the same places."""
    return one.keys() == other.keys() and all(same_bytes(one[place], other[place]) for place in one)


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are alike in shape, dtype and every bit: zeros of both signs differ, a NaN is itself."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(torch.equal(as_bytes(one), as_bytes(other)))


def as_bytes(rows: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor, [[bytes]] uint8."""
    return rows.contiguous().reshape(-1).view(torch.uint8)


def from_bytes(data: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return as many bytes as ``like`` has as a tensor of its shape and dtype."""
    return data[: like.numel() * like.element_size()].contiguous().view(like.dtype).reshape(like.shape)


def on(
    groups: Collection[str],
    change: Change,
    *,
    part: str | None = None,
    path: str | None = None,
    one_layer: bool = False,
) -> Callable[[State, Context], State | None]:
    """Make the change of a fault out of a change of single places.

    Parameters
    ----------
    groups : collection of str
        Names of groups.
    change : callable
        Of the rows of one place.
    part, path : str, optional
        Only that part of the groups' pages, only attributes that begin so. Default: all.
    one_layer : bool, optional
        Only the group's last layer that has such a place, whose rows the output feels most directly.
    """

    def changed(state: State, context: Context) -> State | None:
        chosen = [
            place
            for place in state
            if place.group in groups and part in (None, place.part) and place.path.startswith(path or "")
        ]
        if one_layer and chosen:
            last = max(place.layer for place in chosen)
            chosen = [place for place in chosen if place.layer == last]
        broken = dict(state)
        for place in chosen:
            rows = change(state[place], place, context)
            if rows is None:
                del broken[place]
            else:
                broken[place] = rows
        return broken if chosen else None

    return changed


def both(*changes: Callable[[State, Context], State | None]) -> Callable[[State, Context], State | None]:
    """Apply several changes one after another; those that do not apply are left out."""

    def changed(state: State, context: Context) -> State | None:
        applied = False
        for change in changes:
            broken = change(state, context)
            if broken is not None:
                state, applied = broken, True
        return state if applied else None

    return changed
