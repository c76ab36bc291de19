# SPDX-License-Identifier: Apache-2.0
"""Where a run over a prompt has to stop so that states are in memory when they are wanted.

A state exists only where it was in memory: a window forgets its rows, a recurrent state its past. So a boundary is
kept only if a forward pass ends there, and where a boundary's window reaches into blocks before its own, also where
those end, unless their rows are still in the window.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hybridkv import _core
from hybridkv.adapters.transformers.layout import is_checkpoint, is_state, window_tokens
from hybridkv.group import CacheGroup

Blocks = dict[str, list[int]]
"""Own blocks by group."""


def needed_blocks(group: CacheGroup, tokens: int) -> range:
    """Return the own blocks that a resume at a length needs of a group."""
    rule = group.coverage
    return range(*_core.needed_blocks(rule.rule, rule.parameter, group.block_tokens or 1, tokens))


def in_window(group: CacheGroup, block: int, end: int, tokens: int) -> bool:
    """Whether all rows that a block ending at ``end`` must keep are still in the window at ``tokens``."""
    window = window_tokens(group) - 1
    needed = min(end - block * (group.block_tokens or 1), window)
    return end - needed >= tokens - min(tokens, window)


def state_blocks(groups: Mapping[str, CacheGroup], start: int, target: int) -> dict[int, Blocks]:
    """Return which window and checkpoint blocks to take at which position so that ``target`` is usable.

    Parameters
    ----------
    groups : mapping of str to CacheGroup
        All groups.
    start : int
        Where the run begins; blocks that end there or before are taken care of, or gone, unless it is the target.
    target : int
        The boundary, ``start <= target``.

    Returns
    -------
    dict of int to Blocks
        By position.
    """
    found: dict[int, Blocks] = {}
    for name, group in groups.items():
        if not is_state(group):
            continue
        stop = target
        for block in reversed(needed_blocks(group, target)):
            end = min((block + 1) * (group.block_tokens or 1), target)
            if end <= start and end != target:
                break
            if not is_checkpoint(group) and not in_window(group, block, end, stop):
                stop = end
            found.setdefault(stop, {}).setdefault(name, []).append(block)
    return found


def plan_stops(
    groups: Mapping[str, CacheGroup],
    start: int,
    end: int,
    targets: Iterable[int],
    most_tokens: int | None = None,
) -> dict[int, Blocks]:
    """Return where a run from ``start`` to ``end`` stops, in order, and what is taken there.

    Parameters
    ----------
    groups : mapping of str to CacheGroup
    start, end : int
        In tokens; ``end`` is always a stop.
    targets : iterable of int
        Boundaries to keep; those before ``start`` are passed over, those behind ``end`` are prepared: what they
        need of blocks up to ``end`` is taken.
    most_tokens : int, optional
        Most tokens of one forward pass.

    Returns
    -------
    dict of int to Blocks
        Ascending; stops only for length take nothing.
    """
    stops: dict[int, Blocks] = {end: {}}
    for target in sorted(set(targets)):
        if target < start:
            continue
        for position, blocks in state_blocks(groups, start, target).items():
            if position <= end:
                held = stops.setdefault(position, {})
                for name, numbers in blocks.items():
                    held[name] = sorted({*held.get(name, []), *numbers})
    if most_tokens is not None:
        for last in [start, *sorted(stops)]:
            following = min((stop for stop in stops if stop > last), default=last)
            for position in range(last + most_tokens, following, most_tokens):
                stops.setdefault(position, {})
    return dict(sorted(stops.items()))
