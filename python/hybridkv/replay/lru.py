# SPDX-License-Identifier: Apache-2.0
"""A least-recently-used order over prefixes, kept outside the cache and over its public API only.

Entries are *chunks*: the step of usable lengths, named by the key of their last unit. Two orders are kept:
history chunks, and chunks that hold window or checkpoint pages. A use touches a prefix from its end to its
start, so that the oldest entry is always a suffix of what would go next: no history is evicted from under
its continuation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Protocol

from hybridkv import BlockKeys


class Evicts(Protocol):
    """The part of :class:`hybridkv.HybridCache` that this order needs."""

    def evict(self, keys: BlockKeys, groups: dict[str, bool] | None = None) -> int:
        """Retire the unpinned pages of `keys` in `groups`; None: in all."""


_Order = OrderedDict[bytes, tuple[BlockKeys, int]]
_Run = tuple[BlockKeys, int, int]  # a prefix, its first and last chunk


def chunk_names(keys: BlockKeys, chunk_units: int) -> list[bytes]:
    """Names of the whole chunks of a prefix.

    Parameters
    ----------
    keys : BlockKeys
        Keys from the start of the sequence.
    chunk_units : int
        Units of a chunk.

    Returns
    -------
    list of bytes
        16 bytes for each chunk, in order.
    """
    raw = keys.digests[chunk_units - 1 :: chunk_units].tobytes()
    return [raw[at : at + 16] for at in range(0, len(raw), 16)]


class PrefixLru:
    """Who goes first when pages run out.

    Parameters
    ----------
    cache : Evicts
        The cache whose pages are retired.
    chunk_units : int
        Units of a chunk: ``spec.boundary_tokens // spec.unit_tokens``.
    history_chunks : int
        Chunks of history that fit into the pools.
    state_chunks : int
        Chunks with window and checkpoint pages that fit.
    state_groups : sequence of str
        Names of the window and checkpoint groups.
    """

    def __init__(
        self,
        cache: Evicts,
        *,
        chunk_units: int,
        history_chunks: int,
        state_chunks: int,
        state_groups: Sequence[str],
    ) -> None:
        self._cache = cache
        self._chunk_units = chunk_units
        self._history_chunks = history_chunks
        self._state_chunks = state_chunks
        self._state_groups = dict.fromkeys(state_groups, True)
        self._history: _Order = OrderedDict()
        self._states: _Order = OrderedDict()
        self.evicted_pages = 0

    def history(self) -> list[bytes]:
        """Names of the history chunks, the next to go first."""
        return list(self._history)

    def states(self) -> list[bytes]:
        """Names of the chunks with window or checkpoint pages, the next to go first."""
        return list(self._states)

    def touch(self, names: Sequence[bytes]) -> None:
        """Note a use of the prefix made of `names`; names that are not held are passed over.

        Parameters
        ----------
        names : sequence of bytes
            Chunks from the start of the prefix.
        """
        for name in reversed(names):
            if name in self._history:
                self._history.move_to_end(name)

    def touch_states(self, names: Iterable[bytes]) -> None:
        """Note a use of the windows and checkpoints in `names`; names that are not held are passed over.

        Parameters
        ----------
        names : iterable of bytes
            Chunks whose window or checkpoint pages were read.
        """
        for name in names:
            if name in self._states:
                self._states.move_to_end(name)

    def stored(self, keys: BlockKeys, names: Sequence[bytes], state_chunks: Iterable[int]) -> None:
        """Note that a prefix now lies in the cache.

        Parameters
        ----------
        keys : BlockKeys
            Its keys from the start.
        names : sequence of bytes
            Its chunks.
        state_chunks : iterable of int
            Indices of the chunks whose window or checkpoint pages were stored.
        """
        for index in range(len(names) - 1, -1, -1):
            self._history[names[index]] = (keys, index)
            self._history.move_to_end(names[index])
        for index in state_chunks:
            self._states[names[index]] = (keys, index)
            self._states.move_to_end(names[index])

    def make_room(self, names: Sequence[bytes], state_chunks: Iterable[int]) -> bool:
        """Evict what a prefix lacks room for.

        Parameters
        ----------
        names : sequence of bytes
            Chunks about to be stored.
        state_chunks : iterable of int
            Indices of the chunks that will hold window or checkpoint pages.

        Returns
        -------
        bool
            False where nothing was left to evict, or where it would not fit into empty pools either. What
            the prefix holds already is never evicted: a lease may pin it, and pinned pages are skipped.
        """
        chunks = tuple(state_chunks)
        if len(names) > self._history_chunks or len(chunks) > self._state_chunks:
            return False
        keep = frozenset(names)
        history = self._lack_history(names)
        if history <= 0 and self._lack_states(names, chunks) <= 0:
            # The count sees room and the cache does not (private pages): go on in small steps.
            gone = self._evict_history(1 + len(self._history) // 64, keep)
            return self._evict_states(1 + len(self._states) // 64, keep) or gone
        gone = self._evict_history(history, keep)
        # Counted only now: windows go with their history.
        return self._evict_states(self._lack_states(names, chunks), keep) or gone

    def _lack_history(self, names: Sequence[bytes]) -> int:
        fresh = sum(name not in self._history for name in names)
        return len(self._history) + fresh - self._history_chunks

    def _lack_states(self, names: Sequence[bytes], chunks: Sequence[int]) -> int:
        fresh = sum(names[index] not in self._states for index in chunks)
        return len(self._states) + fresh - self._state_chunks

    def _evict_history(self, count: int, keep: frozenset[bytes]) -> bool:
        runs = self._oldest(self._history, count, keep)
        for keys, first, last in runs:
            self.evicted_pages += self._cache.evict(self._slice(keys, first, last))
        return bool(runs)

    def _evict_states(self, count: int, keep: frozenset[bytes]) -> bool:
        runs = self._oldest(self._states, count, keep)
        for keys, first, last in runs:
            self.evicted_pages += self._cache.evict(self._slice(keys, first, last), self._state_groups)
        return bool(runs)

    def _slice(self, keys: BlockKeys, first: int, last: int) -> BlockKeys:
        return keys[first * self._chunk_units : (last + 1) * self._chunk_units]

    def _oldest(self, order: _Order, count: int, keep: frozenset[bytes]) -> list[_Run]:
        """Take the oldest entries out; neighbours of one prefix become one run, so one call evicts them."""
        chosen = list(islice((name for name in order if name not in keep), max(0, count)))
        runs: list[_Run] = []
        for name in chosen:
            keys, index = order.pop(name)
            if order is self._history:
                self._states.pop(name, None)
            if runs and runs[-1][0] is keys and runs[-1][1] == index + 1:
                runs[-1] = (keys, index, runs[-1][2])
            else:
                runs.append((keys, index, index))
        return runs
