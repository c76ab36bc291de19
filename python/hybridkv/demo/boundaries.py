# SPDX-License-Identifier: Apache-2.0
"""Where a conversation could resume: group by group, all groups together, and as the hash-hit rule would have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hybridkv.cache import HybridCache
from hybridkv.coverage import Checkpoint, Prefix, Window
from hybridkv.group import CacheGroup
from hybridkv.inspection import BlockInfo
from hybridkv.keys import block_keys
from hybridkv.kinds import StateKind

Lengths = npt.NDArray[np.int64]

_READY = {"ready", "ready with copy", "offloading"}


@dataclass(frozen=True, slots=True)
class Lane:
    """Where one group could resume, whatever the others hold.

    Attributes
    ----------
    group : str
    kind : StateKind
    needs : str
        What the group needs to resume, in a few words.
    lengths : ndarray
        Ascending, in tokens, int64 [[lengths]].
    """

    group: str
    kind: StateKind
    needs: str
    lengths: Lengths


@dataclass(frozen=True, slots=True)
class Boundaries:
    """What a cache holds of one sequence.

    Attributes
    ----------
    title, note : str
        For the picture: the sequence, and how the cache is used.
    tokens : int
        Its length.
    unit_tokens : int
        Tokens of a key.
    lanes : tuple of Lane
        By group, in the order of the spec.
    usable : ndarray
        Lengths at which the cache says that every group can resume, int64 [[lengths]].
    promised : ndarray
        Lengths whose hash is known, which the hash-hit rule would resume from, int64 [[lengths]].
    prompt_ends, answer_ends : tuple of int
        Of the turns: where the prompt ends, and where the last token of the answer that has a state ends.
    """

    title: str
    note: str
    tokens: int
    unit_tokens: int
    lanes: tuple[Lane, ...]
    usable: Lengths
    promised: Lengths
    prompt_ends: tuple[int, ...]
    answer_ends: tuple[int, ...]


def read_boundaries(
    cache: HybridCache,
    tokens: npt.NDArray[np.int64],
    *,
    title: str = "",
    note: str = "",
    prompt_ends: Sequence[int] = (),
    answer_ends: Sequence[int] = (),
) -> Boundaries:
    """Ask a cache about every length of a sequence.

    Parameters
    ----------
    cache : HybridCache
        Its keys are those of its spec's identity. One look-up is counted, as withdrawn.
    tokens : ndarray
        The sequence, int64 [[tokens]].
    title, note : str
        For the picture.
    prompt_ends, answer_ends : sequence of int
        For the picture.

    Returns
    -------
    Boundaries
    """
    spec = cache.spec
    unit = spec.unit_tokens
    found: dict[str, list[int]] = {group.name: [] for group in spec.groups}
    for length in range(1, tokens.size + 1):
        held = cache.inspect(block_keys(tokens[:length], unit, identity=spec.identity))
        for group in spec.groups:
            if _can_resume(group, held[group.name], length):
                found[group.name].append(length)
    verdict = cache.match(block_keys(tokens, unit, identity=spec.identity), limit=tokens.size + 1)
    usable, matched = verdict.boundaries.copy(), verdict.matched_tokens
    if verdict.lease is not None:
        verdict.lease.cancel()
    lanes = tuple(Lane(group.name, group.kind, _needs(group), _array(found[group.name])) for group in spec.groups)
    promised = _array(range(unit, matched // unit * unit + 1, unit))
    return Boundaries(title, note, tokens.size, unit, lanes, usable, promised, tuple(prompt_ends), tuple(answer_ends))


def _can_resume(group: CacheGroup, held: Sequence[BlockInfo], length: int) -> bool:
    """Apply the group's coverage to what is held of a length; a length inside a unit is one that tips attest."""
    blocks = group.need(length).blocks
    size = group.block_tokens or 1
    if length % size and isinstance(group.coverage, Prefix):
        blocks = range(length // size + 1)  # rows of the open block may be none, but the tip must be there
    return all(held[block].phase in _READY for block in blocks)


def _needs(group: CacheGroup) -> str:
    coverage = group.coverage
    if isinstance(coverage, Window):
        return f"last {coverage.tokens - 1} rows"
    if isinstance(coverage, Checkpoint):
        return "needed everywhere" if coverage.every is None else f"empty at multiples of {coverage.every}"
    return "all entries" if isinstance(coverage, Prefix) else "rows of the chunk"


def _array(lengths: Sequence[int]) -> Lengths:
    return np.array(lengths, dtype=np.int64)
