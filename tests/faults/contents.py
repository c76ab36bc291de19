# SPDX-License-Identifier: Apache-2.0
"""Faults of content: right names, shapes, dtypes and counts, and other bytes than those that were computed."""

from __future__ import annotations

from collections.abc import Callable

from hybridkv.kinds import Check, StateKind

from .changes import (
    bit_flipped,
    blocks_exchanged,
    conformed,
    earlier,
    first_block_twice,
    foreign,
    last_block,
    layers_exchanged,
    middle_repeated,
    own_window_ago,
    rolled,
    shifted,
    tail_lost,
    taken,
    window_ago,
    zero,
    zero_row,
)
from .fault import Context, Fault, State, Way, both, on

WINDOW = ("swa", "chunk")
HISTORY = ("csa", "hca", "kv")
INDEXER = ("indexer",)
BUFFERS = ("pending", "hca_tail")
OVERLAP = ("overlap",)
RECURRENT = ("state",)
EVERY = (*HISTORY, *INDEXER, *WINDOW, *OVERLAP, *BUFFERS, *RECURRENT)

Changed = Callable[[State, Context], State | None]


def wrong(kind: StateKind, name: str, way: Way, groups: tuple[str, ...], change: Changed) -> Fault:
    """Make a fault that only the content tells."""
    return Fault(name, way, kind, groups, Check.INTEGRITY, "content", change)


def _window(name: str, way: Way, change: Changed) -> Fault:
    return wrong(StateKind.WINDOW, f"window: {name}", way, WINDOW, change)


def _history(name: str, way: Way, change: Changed, groups: tuple[str, ...] = HISTORY) -> Fault:
    return wrong(StateKind.COMPRESSED, f"history: {name}", way, groups, change)


def _indexer(name: str, way: Way, change: Changed) -> Fault:
    return wrong(StateKind.INDEXER, f"indexer: {name}", way, INDEXER, change)


def _tail(name: str, way: Way, groups: tuple[str, ...], change: Changed) -> Fault:
    return wrong(StateKind.TAIL, name, way, groups, change)


_NEXT = earlier(-1)

WINDOW_FAULTS = (
    _window("all zero", Way.ZERO, on(WINDOW, zero)),
    _window("all zero in one layer", Way.ZERO, on(WINDOW, zero, one_layer=True)),
    _window("newest row zero", Way.ZERO, on(WINDOW, zero_row(-1))),
    _window("of one token ago", Way.STALE, on(WINDOW, taken(earlier(1)))),
    _window("of four tokens ago", Way.STALE, on(WINDOW, taken(earlier(4)))),
    _window("of one window ago, expired", Way.STALE, on(WINDOW, taken(window_ago))),
    _window("one token ahead, a rejected draft left in", Way.STALE, on(WINDOW, taken(_NEXT))),
    _window("of another request", Way.FOREIGN, on(WINDOW, taken(foreign))),
    _window("of another request in one layer", Way.FOREIGN, on(WINDOW, taken(foreign), one_layer=True)),
    _window("ring pointer lost by five", Way.SHIFTED, on(WINDOW, rolled(5))),
    _window("moved by one row", Way.SHIFTED, on(WINDOW, shifted(1))),
    _window("layers exchanged", Way.FOREIGN, layers_exchanged(WINDOW)),
    _window("a bit flipped", Way.WRONG_FORMAT, on(WINDOW, bit_flipped, one_layer=True)),
)

HISTORY_FAULTS = (
    _history("all zero", Way.ZERO, on(HISTORY, zero)),
    _history("one CSA entry zero in one layer", Way.ZERO, on(("csa",), zero_row(-3), one_layer=True), ("csa",)),
    _history("one HCA entry zero", Way.ZERO, on(("hca",), zero_row(-1)), ("hca",)),
    _history("last block zero", Way.ZERO, on(HISTORY, last_block(None))),
    _history("of another request", Way.FOREIGN, on(HISTORY, taken(foreign))),
    _history("CSA entries of another request", Way.FOREIGN, on(("csa",), taken(foreign)), ("csa",)),
    _history("HCA entries of another request", Way.FOREIGN, on(("hca",), taken(foreign)), ("hca",)),
    _history(
        "one block of another request in one layer", Way.FOREIGN, on(HISTORY, last_block(foreign), one_layer=True)
    ),
    _history(
        "one CSA block of another request", Way.FOREIGN, on(("csa",), last_block(foreign), one_layer=True), ("csa",)
    ),
    _history("a middle entry gone, the last repeated", Way.SHIFTED, on(HISTORY, middle_repeated)),
    _history("moved by one entry", Way.SHIFTED, on(HISTORY, shifted(1))),
    _history("two blocks exchanged", Way.SHIFTED, on(HISTORY, blocks_exchanged)),
    _history("one block in the place of two", Way.SHIFTED, on(HISTORY, first_block_twice)),
    _history("layers exchanged", Way.FOREIGN, layers_exchanged(HISTORY)),
    _history("a bit flipped", Way.WRONG_FORMAT, on(HISTORY, bit_flipped)),
)

INDEXER_FAULTS = (
    _indexer("all zero", Way.ZERO, on(INDEXER, zero)),
    _indexer("last block zero", Way.ZERO, on(INDEXER, last_block(None))),
    _indexer("of another request", Way.FOREIGN, on(INDEXER, taken(foreign))),
    _indexer("last block of another request", Way.FOREIGN, on(INDEXER, last_block(foreign))),
    _indexer("moved by one entry", Way.SHIFTED, on(INDEXER, shifted(1))),
    _indexer("two blocks exchanged", Way.SHIFTED, on(INDEXER, blocks_exchanged)),
    _indexer("layers exchanged", Way.FOREIGN, layers_exchanged(INDEXER)),
    _indexer("a bit flipped", Way.WRONG_FORMAT, on(INDEXER, bit_flipped)),
)

TAIL_FAULTS = (
    _tail("tail: all zero", Way.ZERO, BUFFERS, on(BUFFERS, zero)),
    _tail("tail: of another request", Way.FOREIGN, BUFFERS, on(BUFFERS, taken(foreign))),
    _tail("tail: of one window ago", Way.STALE, BUFFERS, on(BUFFERS, own_window_ago)),
    _tail("tail: of one token ago, a zero row behind it", Way.STALE, BUFFERS, on(BUFFERS, conformed(earlier(1)))),
    _tail("tail: moved by one row", Way.SHIFTED, BUFFERS, on(BUFFERS, shifted(1))),
    _tail("tail: rows turned round by one", Way.SHIFTED, BUFFERS, on(BUFFERS, rolled(1))),
    _tail("tail: layers exchanged", Way.FOREIGN, BUFFERS, layers_exchanged(BUFFERS)),
    _tail("tail: a bit flipped", Way.WRONG_FORMAT, BUFFERS, on(BUFFERS, bit_flipped)),
    _tail("tail: the indexer's part foreign", Way.FOREIGN, BUFFERS, on(BUFFERS, taken(foreign), part="indexer")),
    _tail("overlap: the indexer's part foreign", Way.FOREIGN, OVERLAP, on(OVERLAP, taken(foreign), part="indexer")),
    _tail("overlap: all zero", Way.ZERO, OVERLAP, on(OVERLAP, zero)),
    _tail("overlap: of another request", Way.FOREIGN, OVERLAP, on(OVERLAP, taken(foreign))),
    _tail("overlap: of one window ago", Way.STALE, OVERLAP, on(OVERLAP, taken(window_ago))),
    _tail("overlap: of four tokens ago", Way.STALE, OVERLAP, on(OVERLAP, taken(earlier(4)))),
    _tail("overlap: moved by one row", Way.SHIFTED, OVERLAP, on(OVERLAP, shifted(1))),
)

_MATRIX = on(RECURRENT, taken(earlier(1)), path="recurrent_states")
_CONV = on(RECURRENT, taken(earlier(1)), path="conv_states")

RECURRENT_FAULTS = (
    _tail("recurrent: all zero", Way.ZERO, RECURRENT, on(RECURRENT, zero)),
    _tail("recurrent: matrices zero", Way.ZERO, RECURRENT, on(RECURRENT, zero, path="recurrent_states")),
    _tail("recurrent: inputs of the convolution zero", Way.ZERO, RECURRENT, on(RECURRENT, zero, path="conv_states")),
    _tail("recurrent: of one token ago", Way.STALE, RECURRENT, on(RECURRENT, taken(earlier(1)))),
    _tail("recurrent: of one window ago", Way.STALE, RECURRENT, on(RECURRENT, taken(window_ago))),
    _tail("recurrent: matrices of one token ago", Way.LAGGING, RECURRENT, _MATRIX),
    _tail("recurrent: inputs of the convolution of one token ago", Way.LAGGING, RECURRENT, _CONV),
    _tail("recurrent: one token ahead, written in place", Way.STALE, RECURRENT, on(RECURRENT, taken(_NEXT))),
    _tail("recurrent: of another request", Way.FOREIGN, RECURRENT, on(RECURRENT, taken(foreign))),
    _tail("recurrent: layers exchanged", Way.FOREIGN, RECURRENT, layers_exchanged(RECURRENT)),
    _tail("recurrent: a bit flipped", Way.WRONG_FORMAT, RECURRENT, on(RECURRENT, bit_flipped)),
)


def _other_weights(context: Context) -> State | None:
    return context.other_weights


_STORED = (*HISTORY, *INDEXER)


def _storage(name: str, way: Way, groups: tuple[str, ...], change: Changed) -> Fault:
    return wrong(StateKind.DISK, f"storage: {name}", way, groups, change)


STORAGE_FAULTS = (
    _storage("last quarter of the history not yet there", Way.PARTLY_ON_DISK, _STORED, on(_STORED, tail_lost(1, 4))),
    _storage("history still elsewhere, read as zeros", Way.PARTLY_ON_DISK, _STORED, on(_STORED, zero)),
    _storage("short read of half of every part", Way.TRUNCATED, EVERY, on(EVERY, tail_lost(1, 2))),
    _storage("last row of every part torn off", Way.TRUNCATED, EVERY, on(EVERY, zero_row(-1))),
    _storage(
        "states of one window ago, history right",
        Way.STALE,
        (*WINDOW, *BUFFERS, *OVERLAP, *RECURRENT),
        both(on(WINDOW, conformed(window_ago)), on((*BUFFERS, *OVERLAP, *RECURRENT), conformed(window_ago))),
    ),
    _storage("everything of four tokens ago", Way.WRONG_POSITION, EVERY, on(EVERY, conformed(earlier(4)))),
    _storage("everything of one token ago", Way.WRONG_POSITION, EVERY, on(EVERY, conformed(earlier(1)))),
    _storage("everything of another request", Way.FOREIGN, EVERY, on(EVERY, taken(foreign))),
    _storage("everything of weights that differ by 1 %", Way.OTHER_WEIGHTS, EVERY, on(EVERY, taken(_other_weights))),
)
