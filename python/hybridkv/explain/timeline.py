# SPDX-License-Identifier: Apache-2.0
"""What of a prefix each group has, block by block, and which lengths that refuses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hybridkv import _core
from hybridkv.coverage import Checkpoint, Chunk, Prefix, Window
from hybridkv.departures import Departure, departure
from hybridkv.group import CacheGroup
from hybridkv.inspection import PHASES, own_block_count, own_block_tokens

if TYPE_CHECKING:
    from hybridkv.cache_view import CacheView
    from hybridkv.keys import BlockKeys

HERE, TIER, RESTORING, FILLING, RETIRING, GONE, NEVER = (
    "here",
    "in tier",
    "restoring",
    "filling",
    "retiring",
    "gone",
    "never here",
)
STATES = (HERE, TIER, RESTORING, FILLING, RETIRING, GONE, NEVER)
"""What a block can be to whoever asks."""

_OF_PHASE = {
    "tier-only": TIER,
    "filling": FILLING,
    "restoring": RESTORING,
    "ready": HERE,
    "ready with copy": HERE,
    "offloading": HERE,
    "retiring": RETIRING,
}


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring blocks of one group that are in one state for one reason.

    Attributes
    ----------
    from_tokens, to_tokens : int
        The tokens [from, to) of the prefix.
    first_block, blocks : int
        The group's own blocks: the first one, and how many.
    state : str
        here, in tier, restoring, filling, retiring (its pins end soon; found by nobody), gone, or never here: as far as
        is remembered.
    departure : Departure or None
        Why it is gone: of the first of these blocks.
    copies : bool
        Of what is here: whether a tier has it too.
    """

    from_tokens: int
    to_tokens: int
    first_block: int
    blocks: int
    state: str
    departure: Departure | None
    copies: bool

    def __str__(self) -> str:
        where = f"[{self.from_tokens}, {self.to_tokens}) {self.state}"
        if self.departure is not None:
            return f"{where}: {self.departure}"
        if self.state == NEVER:
            return f"{where}, or forgotten since"
        return f"{where}, and in a tier too" if self.copies else where


@dataclass(frozen=True, slots=True)
class GroupTimeline:
    """What one group has of the prefix.

    Attributes
    ----------
    group, kind : str
    needs : str
        What of it a resume reads.
    block_tokens : int
    rebuildable : bool
        Whether it can be computed again, so that it refuses no length.
    runs : tuple of Run
        From 0 on, without gap or overlap.
    """

    group: str
    kind: str
    needs: str
    block_tokens: int
    rebuildable: bool
    runs: tuple[Run, ...]

    def at(self, block: int) -> Run | None:
        """Return the run that a block is in; None beyond the end."""
        for run in self.runs:
            if run.first_block <= block < run.first_block + run.blocks:
                return run
        return None


def timelines(cache: CacheView, keys: BlockKeys) -> tuple[GroupTimeline, ...]:
    """Look at every block of every group."""
    return tuple(_timeline(cache, keys, number, group) for number, group in enumerate(cache.spec.groups))


def _timeline(cache: CacheView, keys: BlockKeys, number: int, group: CacheGroup) -> GroupTimeline:
    names = [each.name for each in cache.spec.groups]
    core = keys._core
    seen = _core.blocks(cache._core, core, number, own_block_count(group, core))
    runs = tuple(_runs(seen, names, own_block_tokens(group), keys.tokens))
    return GroupTimeline(
        group.name, group.kind.name.lower(), needs_of(group), own_block_tokens(group), group.rebuildable, runs
    )


def _runs(
    seen: Sequence[tuple[int, tuple[int, int, int]]], names: list[str], block_tokens: int, tokens: int
) -> Iterator[Run]:
    begin = 0
    rows = [_row(phase, why, names) for phase, why in seen]
    for block in range(1, len(rows) + 1):
        if block < len(rows) and rows[block][1:] == rows[begin][1:]:
            continue
        why, state, _, _, copies = rows[begin]
        yield Run(
            begin * block_tokens, min(block * block_tokens, tokens), begin, block - begin, state, why, bool(copies)
        )
        begin = block


def _row(
    phase: int, raw: tuple[int, int, int], names: list[str]
) -> tuple[Departure | None, str, str | None, str | None, bool]:
    """Return why a block is not here, then all that tells it from a neighbour: state, cause, for whom, copies."""
    state = _OF_PHASE.get(PHASES[phase])
    if state is not None:
        return None, state, None, None, PHASES[phase] == "ready with copy"
    why = departure(raw, names)
    if why is None:
        return None, NEVER, None, None, False
    return why, GONE, why.cause, why.made_room_for, False


def needs_of(group: CacheGroup) -> str:
    """Say what of a group a resume reads."""
    coverage = group.coverage
    if isinstance(coverage, Prefix):
        return "every block from the start"
    if isinstance(coverage, Window):
        return f"the last {coverage.tokens - 1} tokens"
    if isinstance(coverage, Chunk):
        return f"its chunk of {coverage.tokens} tokens from the start"
    assert isinstance(coverage, Checkpoint)
    return "the state there" if coverage.every is None else f"the state there, but at multiples of {coverage.every}"


class Refusals:
    """Which groups refuse which lengths, for want of a page.

    Parameters
    ----------
    groups : sequence of CacheGroup
    lines : sequence of GroupTimeline
    """

    def __init__(self, groups: Sequence[CacheGroup], lines: Sequence[GroupTimeline]) -> None:
        self._groups = [(g, line, _here(line)) for g, line in zip(groups, lines, strict=True) if not g.rebuildable]

    def of(self, tokens: int) -> list[tuple[CacheGroup, Run | None, int]]:
        """Return (group, run of the block, block) for each group's first block that is not here; history first."""
        found = []
        for group, line, here in self._groups:
            block = _first_absent(group, here, tokens)
            if block is not None:
                found.append((group, line.at(block), block))
        found.sort(key=lambda one: not isinstance(one[0].coverage, Prefix))
        return found


def _here(line: GroupTimeline) -> npt.NDArray[np.bool_]:
    count = sum(run.blocks for run in line.runs)
    here = np.zeros(count, dtype=bool)
    for run in line.runs:
        here[run.first_block : run.first_block + run.blocks] = run.state == HERE
    return here


def _first_absent(group: CacheGroup, here: npt.NDArray[np.bool_], tokens: int) -> int | None:
    needed = group.need(tokens).blocks
    if not needed:
        return None
    part = here[needed.start : needed.stop]
    if len(part) == len(needed) and part.all():
        return None
    return needed.start + (int(np.argmin(part)) if not part.all() else len(part))


def lengths_below(limit: int, step: int, usable: Iterable[int]) -> list[int]:
    """Return the lengths to look at: multiples of the step below the limit, and what tips add."""
    return sorted({*range(step, limit, step), *usable})
