# SPDX-License-Identifier: Apache-2.0
"""Faults of structure: rows or whole states that are not there, and counts or positions that lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from hybridkv.kinds import Check, StateKind

from .changes import (
    block_rows,
    earlier,
    gone,
    one_more,
    without_first,
    without_last,
    without_middle,
)
from .contents import BUFFERS, EVERY, HISTORY, INDEXER, OVERLAP, RECURRENT, WINDOW
from .fault import Change, Context, Counts, Fault, State, Way, on

Changed = Callable[[State, Context], State | None]
_POSITION = "cumulative_length"
_ENTRIES = "entry_count"


def _missing(kind: StateKind, name: str, groups: tuple[str, ...], change: Changed) -> Fault:
    """Make a fault of a state that is not there at all."""
    return Fault(name, Way.DROP, kind, groups, Check.COMPLETE, "missing", change)


def _partial(
    kind: StateKind, name: str, way: Way, groups: tuple[str, ...], change: Changed, counts: Counts | None = None
) -> Fault:
    """Make a fault of rows too few or too many."""
    return Fault(name, way, kind, groups, Check.COMPLETE, "partial", change, counts)


def _lagging(kind: StateKind, name: str, way: Way, groups: tuple[str, ...], change: Changed, counts: Counts) -> Fault:
    """Make a fault of layers that do not stand where the others do."""
    return Fault(name, way, kind, groups, Check.GROUPS, "lagging", change, counts)


def _has(groups: tuple[str, ...]) -> Changed:
    """Apply to models with such rows only, and change none."""
    return lambda state, context: dict(state) if any(place.group in groups for place in state) else None


def _layers(context: Context, groups: tuple[str, ...]) -> set[int]:
    found = (context.layout.groups[name] for name in groups if name in context.layout.groups)
    return {int(layer) for group in found for layer in group.layers}


def _fewer_entries(groups: tuple[str, ...], entry: str) -> Counts:
    """Let the count of entries say one less in the layers of some groups."""

    def counts(layer: int, path: str, right: int, context: Context) -> int:
        return right - 1 if path == f"{_ENTRIES}.{entry}" and layer in _layers(context, groups) else right

    return counts


def _moved(tokens: int, layers: Callable[[Context], set[int]] | None = None) -> Counts:
    """Let positions say so many tokens more, in some layers or in all."""

    def counts(layer: int, path: str, right: int, context: Context) -> int:
        here = layers is None or layer in layers(context)
        return right + tokens if path == _POSITION and here else right

    return counts


def _first_window_layer(context: Context) -> set[int]:
    return {min(_layers(context, WINDOW), default=-1)}


def _all_at(tokens: int) -> Counts:
    """Let every count say what is right so many tokens earlier."""

    def counts(layer: int, path: str, right: int, context: Context) -> int:
        if path == _POSITION:
            return right - tokens
        groups = (context.layout.groups[name] for name in ("csa", "hca") if name in context.layout.groups)
        rate = next(int(group.tokens_per_row) for group in groups if layer in group.layers)
        return (context.tokens - tokens) // rate

    return counts


def _rows_of(source: Callable[[Context], State | None]) -> Change:
    """Take the rows of another state, as many as it has, none where it has none."""

    def change(rows: torch.Tensor, place: Any, context: Context) -> torch.Tensor:
        other = source(context)
        return rows if other is None else other.get(place, rows[:0])

    return change


def _snapshot(tokens: int) -> Changed:
    """Take the whole state of so many tokens ago, for models that keep a position."""
    here = _has(WINDOW)
    return lambda state, context: None if here(state, context) is None else context.earlier(tokens)


def _one_block_short(groups: tuple[str, ...]) -> Changed:
    def cut(rows: torch.Tensor, place: Any, context: Context) -> torch.Tensor:
        count = block_rows(place, context)
        return rows[: max(0, (rows.shape[0] - 1) // count * count)]

    return on(groups, cut)


def _elsewhere(name: str, tokens: int) -> Fault:
    """Make a fault of a state that is whole and right, but of another position."""
    made = _lagging(StateKind.COMPRESSED, name, Way.STALE, EVERY, _snapshot(tokens), _all_at(tokens))
    return replace(made, moved_tokens=-tokens)


_T, _W, _C, _I = StateKind.TAIL, StateKind.WINDOW, StateKind.COMPRESSED, StateKind.INDEXER

DROP_FAULTS = (
    _missing(_T, "tail: buffers gone", BUFFERS, on(BUFFERS, gone)),
    _missing(_T, "tail: HCA buffer gone", ("hca_tail",), on(("hca_tail",), gone)),
    _missing(_T, "tail: CSA buffers gone", ("pending",), on(("pending",), gone)),
    _missing(_T, "overlap: gone", OVERLAP, on(OVERLAP, gone)),
    _missing(_T, "overlap: the indexer's part gone", OVERLAP, on(OVERLAP, gone, part="indexer")),
    _missing(_T, "tail: the indexer's part gone", BUFFERS, on(BUFFERS, gone, part="indexer")),
    _missing(_I, "indexer: never restored", INDEXER, on(INDEXER, gone)),
    _missing(_W, "window: gone", WINDOW, on(WINDOW, gone)),
    _missing(_T, "recurrent: gone", RECURRENT, on(RECURRENT, gone)),
)

COUNT_FAULTS = (
    _partial(_W, "window: one row short", Way.WRONG_COUNT, WINDOW, on(WINDOW, without_first)),
    _partial(_W, "window: one row too many", Way.WRONG_COUNT, WINDOW, on(WINDOW, one_more)),
    _partial(_C, "history: last entry missing, count kept", Way.WRONG_COUNT, HISTORY, on(HISTORY, without_last(1))),
    _partial(_C, "history: a middle entry dropped, list shifts", Way.SHIFTED, HISTORY, on(HISTORY, without_middle)),
    _partial(_C, "history: one entry twice", Way.WRONG_COUNT, HISTORY, on(HISTORY, one_more)),
    _partial(_C, "history: cut to whole blocks", Way.TRUNCATED, HISTORY, _one_block_short(HISTORY)),
    _partial(_I, "indexer: last entry missing, count kept", Way.WRONG_COUNT, INDEXER, on(INDEXER, without_last(1))),
    _partial(_I, "indexer: last block missing, count kept", Way.TRUNCATED, INDEXER, _one_block_short(INDEXER)),
    _partial(_T, "tail: one row short", Way.WRONG_COUNT, BUFFERS, on(BUFFERS, without_last(1))),
    _partial(_T, "tail: of one token ago", Way.STALE, BUFFERS, on(BUFFERS, _rows_of(earlier(1)))),
    _partial(_T, "overlap: one row short", Way.WRONG_COUNT, OVERLAP, on(OVERLAP, without_first)),
)

GROUP_FAULTS = (
    _lagging(
        _C,
        "groups: HCA one entry behind",
        Way.LAGGING,
        ("hca",),
        on(("hca",), without_last(1)),
        _fewer_entries(("hca",), "compressor"),
    ),
    _lagging(
        _C,
        "groups: CSA one entry behind",
        Way.LAGGING,
        ("csa",),
        on(("csa",), without_last(1)),
        _fewer_entries(("csa",), "compressor"),
    ),
    _lagging(
        _I,
        "groups: indexer one entry behind",
        Way.LAGGING,
        INDEXER,
        on(INDEXER, without_last(1)),
        _fewer_entries(INDEXER, "indexer"),
    ),
    _lagging(
        _W,
        "groups: sliding layer's length says one token less",
        Way.WRONG_POSITION,
        WINDOW,
        _has(WINDOW),
        _moved(-1, _first_window_layer),
    ),
    _lagging(
        _W, "groups: every layer's length says 16 tokens more", Way.WRONG_POSITION, WINDOW, _has(WINDOW), _moved(16)
    ),
    _lagging(
        _C,
        "groups: entry counts one less, entries kept",
        Way.WRONG_COUNT,
        ("csa", "hca"),
        _has(("csa", "hca")),
        _fewer_entries(("csa", "hca"), "compressor"),
    ),
    _elsewhere("groups: whole state of four tokens ago under this key", 4),
    _elsewhere("groups: whole state of one token ago under this key", 1),
)
