# SPDX-License-Identifier: Apache-2.0
"""The units of a whole trace, named at once: ids become keys without a token between them.

An id names a block together with all before it, and so does a key. So where one is a multiple of the other no
tokens have to be laid out and hashed: units are numbered, equal ones alike, and a number is mixed into 16 bytes.
Else they are (:func:`by_tokens`); a test holds the two against each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hybridkv.keys import BlockKeys
from hybridkv.replay.pools import Demand, Windows
from hybridkv.replay.replay import Part, Seen, Work, prepare
from hybridkv.replay.trace import Trace

Numbers = npt.NDArray[np.int64]

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Units:
    """Units of the prompts and answers of a trace, by number.

    Attributes
    ----------
    unit_tokens : int
        Tokens of a unit.
    names : list of bytes
        16 bytes for each number.
    prompts : tuple of numpy.ndarray
        int64 [[units]] for each request: the whole units of its prompt that ids name.
    answers : tuple of numpy.ndarray or None
        The same of prompt and answer, where the next turn names the answer and it fills a unit.
    seen : numpy.ndarray
        int64 [[requests]]: units at the start of each prompt that were stored before, were nothing ever forgotten.
    """

    unit_tokens: int
    names: list[bytes]
    prompts: tuple[Numbers, ...]
    answers: tuple[Numbers | None, ...]
    seen: Numbers

    @classmethod
    def of(cls, trace: Trace, turns: list[int | None], unit_tokens: int) -> Units:
        """Number the units of a trace.

        Parameters
        ----------
        trace : Trace
            The requests.
        turns : list of int or None
            Next turn of each, see :func:`hybridkv.replay.answers.next_turns`.
        unit_tokens : int
            Tokens of a key. A replay is several times as fast where it is a multiple of the trace's block, or a part.

        Returns
        -------
        Units
        """
        if unit_tokens % trace.block_tokens and trace.block_tokens % unit_tokens:
            return by_tokens(trace, turns, unit_tokens)
        ids = chained([request.block_ids for request in trace.requests])
        step = max(1, unit_tokens // trace.block_tokens)
        parts = max(1, trace.block_tokens // unit_tokens)
        whole = [_units_of(row, step, parts) for row in ids]
        prompts = []
        answers: list[Numbers | None] = []
        for request, turn in zip(trace.requests, turns, strict=True):
            prompts.append(whole[request.index][: trace.named_tokens(request) // unit_tokens])
            answer = None
            if turn is not None:
                answer = whole[turn][: (request.input_tokens + request.output_tokens) // unit_tokens]
            answers.append(answer if answer is not None and answer.size > prompts[-1].size else None)
        count = parts * (1 + max((int(row.max()) for row in ids if row.size), default=-1))
        return cls(unit_tokens, _names(count), tuple(prompts), tuple(answers), _seen(prompts, answers, count))

    def demand(self, windows: Windows, boundary_tokens: int) -> Demand:
        """Count what the trace would fill if nothing were ever evicted.

        Parameters
        ----------
        windows : Windows
            Which boundaries are kept.
        boundary_tokens : int
            Of the spec.

        Returns
        -------
        Demand
            Distinct units, and distinct units at whose end states are kept.
        """
        used = np.zeros(len(self.names), dtype=np.bool_)
        kept = np.zeros(len(self.names), dtype=np.bool_)
        for prompt, answer in zip(self.prompts, self.answers, strict=True):
            for row, start in ((prompt, 0), (answer, prompt.size)):
                if row is None:
                    continue
                used[row] = True
                first, last = (units * self.unit_tokens // boundary_tokens for units in (start, row.size))
                ends = windows.boundaries(first * boundary_tokens, last * boundary_tokens, boundary_tokens)
                kept[row[np.asarray(ends, dtype=np.int64) // self.unit_tokens - 1]] = True
        return Demand(max(1, int(np.count_nonzero(used))), max(1, int(np.count_nonzero(kept))))


def by_tokens(trace: Trace, turns: list[int | None], unit_tokens: int) -> Units:
    """Number units by the hashes of their tokens; see :meth:`Units.of`.

    Parameters
    ----------
    trace, turns, unit_tokens
        As there.

    Returns
    -------
    Units
    """
    number: dict[bytes, int] = {}

    def numbers_of(keys: BlockKeys) -> Numbers:
        rows = (row.tobytes() for row in keys.digests)
        return np.asarray([number.setdefault(row, len(number)) for row in rows], dtype=np.int64)

    prompts: list[Numbers] = []
    answers: list[Numbers | None] = []
    for work in prepare(trace, turns, unit_tokens):
        prompts.append(np.empty(0, dtype=np.int64) if work.prompt is None else numbers_of(work.prompt.keys))
        answers.append(None if work.answer is None else numbers_of(work.answer.keys))
    return Units(
        unit_tokens, list(number), tuple(prompts), tuple(answers), _seen(prompts, answers, max(1, len(number)))
    )


def chained(rows: Sequence[Numbers]) -> list[Numbers]:
    """Number ids from 0 so that each has one predecessor: as they are told apart, or with what stands before them.

    Parameters
    ----------
    rows : sequence of numpy.ndarray
        int64 [[blocks]] for each request.

    Returns
    -------
    list of numpy.ndarray
        The same shapes. Two numbers are equal exactly where the ids and all ids before them are.
    """
    if not rows:
        return []
    ends = np.cumsum([row.size for row in rows])
    distinct, flat = np.unique(np.concatenate(rows), return_inverse=True)
    before = np.empty_like(flat)
    before[1:] = flat[:-1]
    before[[start for start, row in zip(ends - [row.size for row in rows], rows, strict=True) if row.size]] = -1
    parent = np.full(distinct.size, -1, dtype=flat.dtype)
    parent[flat] = before
    if not np.array_equal(parent[flat], before):
        number: dict[tuple[int, int], int] = {}
        at = -1
        for index, (above, block) in enumerate(zip(before.tolist(), flat.tolist(), strict=True)):
            at = number.setdefault((-1 if above == -1 else at, block), len(number))
            flat[index] = at
    return np.split(flat.astype(np.int64), ends[:-1])


def _units_of(ids: Numbers, step: int, parts: int) -> Numbers:
    """Number units: the last block of each stands for it, or each block for several."""
    if parts == 1:
        return ids[step - 1 :: step]
    return (ids[:, None] * parts + np.arange(parts, dtype=np.int64)).reshape(-1)


def _names(count: int) -> list[bytes]:
    """Mix numbers into 16 bytes each, as evenly spread as hashes are: tables take bits out of them."""
    halves = np.empty((count, 2), dtype=np.uint64)
    for column, salt in enumerate((0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)):
        mixed = (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(salt)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        halves[:, column] = mixed ^ (mixed >> np.uint64(31))
    packed = halves.tobytes()
    return [packed[at : at + 16] for at in range(0, len(packed), 16)]


def _seen(prompts: Sequence[Numbers], answers: Sequence[Numbers | None], count: int) -> Numbers:
    first = np.full(count, _NEVER, dtype=np.int64)
    for index in range(len(prompts) - 1, -1, -1):  # what is written last is the first use
        answer = answers[index]
        first[prompts[index] if answer is None else answer] = index
    return np.asarray([np.count_nonzero(first[row] < index) for index, row in enumerate(prompts)], dtype=np.int64)


def prepare_units(trace: Trace, units: Units) -> Iterator[Work]:
    """Make the work of each request out of numbered units, once for all lanes.

    Parameters
    ----------
    trace : Trace
        The requests.
    units : Units
        Of the same trace.

    Yields
    ------
    Work
        In the order of the trace.
    """
    unit = units.unit_tokens
    for request in trace.requests:
        numbers, more = units.prompts[request.index], units.answers[request.index]
        keys = _keys(units, numbers)
        answer = None if more is None else Part(_keys(units, more), numbers.size * unit)
        most = max(0, request.input_tokens - 1) // unit  # at least one token is computed
        seen = Seen(numbers, more, min(int(units.seen[request.index]), most) * unit)
        yield Work(keys, request.input_tokens, Part(keys, 0) if numbers.size else None, answer, seen)


def _keys(units: Units, numbers: Numbers) -> BlockKeys:
    names = units.names
    return BlockKeys.from_hashes([names[number] for number in numbers.tolist()], units.unit_tokens)
