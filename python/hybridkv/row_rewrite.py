# SPDX-License-Identifier: Apache-2.0
"""Packed rows of one format to packed rows of another, many at a time, in numpy: what a conversion does beside copying.

:func:`hybridkv.reference.convert` is the specification. Rows come in blocks, as ``gather`` packs them: of each block
the data bytes of all its rows, then their footers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.reference.arrays import Bytes
from hybridkv.reference.quantise import UE8M0_NAN
from hybridkv.reference.row_format import Part, RowFormat

_MANTISSA_BITS = 23  # of a float32
_MANTISSA = np.uint32((1 << _MANTISSA_BITS) - 1)
_LEAST = np.uint32(1 << (_MANTISSA_BITS - 1))  # 2**-127, of code 0: the one power of two that has a subnormal float32


class Blocks:
    """Packed rows in blocks.

    Parameters
    ----------
    memory : uint8 ndarray, [[blocks, block_rows * row_bytes]]
        Contiguous.
    block_rows : int
        Rows of a block.
    row_format : RowFormat
        Of the rows.
    """

    def __init__(self, memory: Bytes, block_rows: int, row_format: RowFormat) -> None:
        split = block_rows * row_format.data_bytes
        self._data_bytes = row_format.data_bytes
        self._data = memory[:, :split].reshape(len(memory), block_rows, row_format.data_bytes)
        self._footers = memory[:, split:].reshape(len(memory), block_rows, row_format.footer_bytes)

    def span(self, first: int, end: int) -> Bytes:
        """View bytes of the packed rows, [[blocks, block_rows, bytes]]; none that the footer splits."""
        if first >= self._data_bytes:
            return self._footers[..., first - self._data_bytes : end - self._data_bytes]
        return self._data[..., first:end]


@dataclass(frozen=True)
class Fault:
    """A scale that the target cannot hold: its block and the row in it, what was expected, and what is there."""

    block: int
    row: int
    expected: str
    told: str


@dataclass(frozen=True)
class _Move:
    """Bytes that go from one place of a packed row to another."""

    first: int
    to: int
    length: int


@dataclass(frozen=True)
class _Pairs:
    """Rotated channels that change their order."""

    first: int
    to: int
    channels: int
    element_bytes: int
    to_halves: bool


class RowRewrite:
    """The moves of a conversion, found once for two formats between which there is a way.

    Parameters
    ----------
    source, target : RowFormat
        As :func:`hybridkv.reference.plan_conversion` accepts them.

    Attributes
    ----------
    in_place : bool
        Whether packed rows have the same length, parts and footer, so that what changes can change where it is.
    nothing : bool
        Whether packed rows are the same bytes, too.
    """

    def __init__(self, source: RowFormat, target: RowFormat) -> None:
        self._scales = [
            (part, other)
            for part, other in zip(source.parts, target.parts, strict=True)
            if part.scale is not None and other.scale is not None and _scale_form(part) != _scale_form(other)
        ]
        self._checked = [
            (part, other) for part, other in self._scales if part.scale != other.scale or _merged(part, other) > 1
        ]
        self._pairs: _Pairs | None = None
        last, other = source.parts[-1], target.parts[-1]
        if source.interleaved != target.interleaved:
            width = last.element_bytes // last.channels
            behind = (last.channels - source.rope_dims) * width
            self._pairs = _Pairs(
                last.offset + behind, other.offset + behind, source.rope_dims, width, bool(source.interleaved)
            )
        self._moves = [piece for move in self._whole_moves(source, target) for piece in _split(move, source, target)]
        self.in_place = _same_spans(source, target) and source.data_bytes == target.data_bytes
        self.nothing = self.in_place and self._pairs is None and not self._scales

    @property
    def checked(self) -> bool:
        """Whether :meth:`fault` can find one."""
        return bool(self._checked)

    def _whole_moves(self, source: RowFormat, target: RowFormat) -> list[_Move]:
        """Return what is moved as it is, in order, neighbours together."""
        pairs = list(zip(source.parts, target.parts, strict=True))
        kept: list[_Move] = []
        if _same_spans(source, target):
            kept.append(_Move(0, 0, source.row_bytes))
        else:
            for part, other in pairs:
                kept.append(_Move(part.offset, other.offset, part.element_bytes))
                if part.scale is not None and (part, other) not in self._scales:
                    assert part.scale_offset is not None and other.scale_offset is not None
                    length = part.scale_count * part.scale.scale_bytes
                    kept.append(_Move(part.scale_offset, other.scale_offset, length))
        gone = [(part.scale_offset, _scales_end(part)) for part, _ in self._scales]
        if self._pairs is not None:
            gone.append((self._pairs.first, self._pairs.first + self._pairs.channels * self._pairs.element_bytes))
        for first, end in gone:
            kept = [piece for move in kept for piece in _without(move, first or 0, end)]
        joined: list[_Move] = []
        for move in sorted(kept, key=lambda move: move.first):
            before = joined[-1] if joined else _Move(0, 0, 0)
            if joined and (before.first + before.length, before.to + before.length) == (move.first, move.to):
                joined[-1] = _Move(before.first, before.to, before.length + move.length)
            else:
                joined.append(move)
        return joined

    def fault(self, blocks: Blocks) -> Fault | None:
        """Return a scale that cannot be written in the target's form, if there is one."""
        for part, other in self._checked:
            stored = _stored(blocks, part)
            merged = _merged(part, other)
            unequal = [stored[..., i::merged] != stored[..., ::merged] for i in range(1, merged)]
            if unequal and (at := _first(np.logical_or.reduce(unequal))) is not None:
                tile = at[2] * merged
                found = f"{_values(part, stored[at[0], at[1], tile : tile + merged])} from tile {tile} on"
                return Fault(at[0], at[1], f"one scale for {other.tile} channels", found)
            assert part.scale is not None and other.scale is not None
            if part.scale.encoding != other.scale.encoding and (at := _first(~_two_forms(stored))) is not None:
                expected = "a scale that is a power of two from 2**-127 to 2**127"
                return Fault(at[0], at[1], expected, f"{_values(part, stored[at])[0]} in tile {at[2]}")
        return None

    def rewrite(self, blocks: Blocks, made: Blocks) -> None:
        """Write rows in the target's format; their padding is what it was in `made`, where it does not move along.

        `made` may be `blocks` where rows change in place.
        """
        for move in () if made is blocks else self._moves:
            made.span(move.to, move.to + move.length)[...] = blocks.span(move.first, move.first + move.length)
        if self._pairs is not None:
            _reorder(self._pairs, blocks, made)
        for part, other in self._scales:
            stored, wanted = _stored(blocks, part), _stored(made, other)
            kept = stored[..., :: _merged(part, other)]
            if stored.dtype != wanted.dtype:
                kept = _other_form(kept)
            repeats = wanted.shape[-1] // kept.shape[-1]
            for i in range(repeats):  # not by a broadcast: the inner loop is over rows then
                wanted[..., i::repeats] = kept


@lru_cache(maxsize=64)
def row_rewrite(source: RowFormat, target: RowFormat) -> RowRewrite:
    """Return the moves from one format to another."""
    return RowRewrite(source, target)


def _same_spans(source: RowFormat, target: RowFormat) -> bool:
    """Say whether all parts are at the same bytes of packed rows of one length."""
    pairs = zip(source.parts, target.parts, strict=True)
    return source.row_bytes == target.row_bytes and all(list(a.spans()) == list(b.spans()) for a, b in pairs)


def _scale_form(part: Part) -> tuple[str, int | None]:
    assert part.scale is not None
    return part.scale.encoding, part.tile


def _scales_end(part: Part) -> int:
    return list(part.spans())[-1][1]


def _merged(part: Part, other: Part) -> int:
    """Scales of a source row that become one."""
    return max((other.tile or 1) // (part.tile or 1), 1)


def _without(move: _Move, first: int, end: int) -> list[_Move]:
    """Return what is left of a move without bytes [first, end) of the source."""
    last = move.first + move.length
    left = [(move.first, min(last, first)), (max(move.first, end), last)]
    return [_Move(low, move.to + low - move.first, high - low) for low, high in left if high > low]


def _split(move: _Move, source: RowFormat, target: RowFormat) -> list[_Move]:
    """Cut a move where the footer begins, on either side."""
    cuts = {source.data_bytes - move.first, target.data_bytes - move.to}
    edges = [0, *sorted(cut for cut in cuts if 0 < cut < move.length), move.length]
    return [_Move(move.first + a, move.to + a, b - a) for a, b in pairwise(edges)]


def _stored(blocks: Blocks, part: Part) -> npt.NDArray[Any]:
    """View the scales of a part, [[blocks, block_rows, scales]], as unsigned numbers."""
    assert part.scale_offset is not None
    stored = blocks.span(part.scale_offset, _scales_end(part))
    return stored.view("<u4") if part.scale is not None and part.scale.scale_bytes == 4 else stored


def _two_forms(stored: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Say which scales are a power of two that UE8M0 and float32 both have."""
    known: npt.NDArray[np.bool_]
    if stored.dtype == np.uint8:
        known = stored != UE8M0_NAN
        return known
    exponents = stored >> _MANTISSA_BITS  # the sign above them: a negative number is beyond all codes
    normal = (stored & _MANTISSA == 0) & (exponents > 0) & (exponents < UE8M0_NAN)
    known = normal | (stored == _LEAST)
    return known


def _other_form(stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Write powers of two as UE8M0 codes where they are float32 bits, and the reverse."""
    if stored.dtype != np.uint8:
        return (stored >> _MANTISSA_BITS).astype(np.uint8)
    return np.where(stored == 0, _LEAST, stored.astype(np.uint32) << _MANTISSA_BITS)


def _reorder(pairs: _Pairs, blocks: Blocks, made: Blocks) -> None:
    length, half = pairs.channels * pairs.element_bytes, pairs.channels // 2
    unsigned = np.dtype(f"<u{pairs.element_bytes}")
    here = blocks.span(pairs.first, pairs.first + length).view(unsigned).copy()  # `made` may be the same memory
    there = made.span(pairs.to, pairs.to + length).view(unsigned)
    if pairs.to_halves:
        there[..., :half], there[..., half:] = here[..., 0::2], here[..., 1::2]
    else:
        there[..., 0::2], there[..., 1::2] = here[..., :half], here[..., half:]


def _first(found: npt.NDArray[np.bool_]) -> tuple[int, int, int] | None:
    if not found.any():
        return None
    block, row, tile = np.unravel_index(int(np.argmax(found)), found.shape)
    return int(block), int(row), int(tile)


def _values(part: Part, stored: npt.NDArray[Any]) -> list[float]:
    """Return what scales are worth, for people."""
    assert part.scale is not None
    codes = np.atleast_1d(np.ascontiguousarray(stored))
    values: list[float] = part.scale.decode(codes.view(np.uint8).reshape(len(codes), -1)).tolist()
    return values
