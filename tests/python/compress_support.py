# SPDX-License-Identifier: Apache-2.0
"""Calls of compress_tail made at random, and what the specification says of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
import hybridkv.reference as ref
from hybridkv import _core
from hybridkv.reference.compressor import Slots

Array = np.ndarray[Any, Any]

LEVELS = [level for level in ("portable", "avx2", "avx512") if _core.cpu_level_supported(level)]
RATIOS = (1, 2, 4, 6, 16, 128)
ROPE = ref.Rope(4, 160000.0, ref.Yarn(16.0, 65536))
V4_ROPE = ref.Rope(64, 160000.0, ref.Yarn(16.0, 65536))
GUARD = 0xA5


@pytest.fixture
def level_kept() -> Any:
    """Put the level back that a test has chosen."""
    before = _core.cpu_level()
    yield
    _core.cpu_level_choose(before)


def bfloat16(values: Array) -> Array:
    """Return the bits of the nearest bfloat16."""
    return ref.BFLOAT16.encode(values).astype(np.uint16)


@dataclass
class Call:
    """The arguments of one call but `out`, for the kernel and for the specification alike."""

    compressor: ref.Compressor
    row_format: ref.RowFormat
    arguments: dict[str, Any]
    pages: int

    def out(self) -> Array:
        return np.full((self.pages, self.row_format.page_stride + 2 * self.row_format.stride_unit), GUARD, np.uint8)

    def run(self, level: str | None = None, **changed: Any) -> tuple[Array, Array]:
        """Return pages and new carry as the kernel writes them."""
        if level is not None:
            _core.cpu_level_choose(level)
        return self._made(hk.ops.compress_tail, changed)

    def specified(self, **changed: Any) -> tuple[Array, Array]:
        return self._made(ref.compress_tail, changed)

    def _made(self, operation: Any, changed: dict[str, Any]) -> tuple[Array, Array]:
        out, carry = self.out(), self.arguments["carry"]
        new_carry = np.full_like(carry, np.nan)  # what is not live stays NaN
        given = {"new_carry": new_carry} | self.arguments | changed
        operation(given.pop("kv"), given.pop("score"), given.pop("out", out), **given)
        return out, new_carry

    def slots(self) -> Slots:
        """Return the slots of every closing window, in order of requests and windows, masked ones too."""
        c, given = self.compressor, self.arguments
        made = []
        for q, position in enumerate(given["positions"].tolist()):
            rows = slice(given["starts"][q], given["starts"][q + 1])
            opened = position - position % c.ratio
            low = max(opened - c.ratio, 0) if c.overlap else opened
            carried = given["carry"][q][np.arange(low, position) % c.ring_rows].astype(np.float64)
            kv, score = (
                np.concatenate([old, _doubles(given[name])[rows]])
                for old, name in ((carried[:, : c.row_width], "kv"), (carried[:, c.row_width :], "score"))
            )
            own = opened - low
            before = (kv[: c.ratio, : c.width], score[: c.ratio, : c.width]) if own else None
            made.append(c.slots(kv[own:], score[own:], opened, before))
        fields = ("values", "scores", "positions")
        return Slots(*(np.concatenate([getattr(slots, name) for slots in made]) for name in fields))

    def places(self) -> Array:
        """Return page * page_rows + row of every closing window, -1 where it is not written."""
        given, rows, places = self.arguments, self.row_format.page_rows, []
        for q, position in enumerate(given["positions"].tolist()):
            last = position + int(given["starts"][q + 1] - given["starts"][q])
            for entry in range(position // self.compressor.ratio, last // self.compressor.ratio):
                page = int(given["page_ids"][q, entry // rows])
                masked = (entry + 1) * self.compressor.ratio <= int(given["write_mask"][q])
                places.append(-1 if masked or page < 0 else page * rows + entry % rows)
        return np.array(places, np.int64)


def _doubles(rows: Array) -> Array:
    return ref.BFLOAT16.decode(rows) if rows.dtype == np.uint16 else rows.astype(np.float64)


def a_call(
    seed: int, ratio: int, overlap: bool, row_format: ref.RowFormat, *, rope: ref.Rope | None = ROPE,
    bits: bool = True, most_requests: int = 17, most_rows: int = 300, spread: float = 2.0,
) -> Call:  # fmt: skip
    """Make a call: requests of any length, each at a position of its own, pages and dead rows of rings at random."""
    rng = np.random.default_rng(seed)
    width = row_format.channels
    compressor = ref.Compressor(ratio, overlap, (1 + 0.2 * rng.standard_normal(width)).astype(np.float32), 1e-6, rope)
    requests = int(rng.integers(1, most_requests + 1))
    lengths = rng.integers(0 if requests > 1 else 1, most_rows // requests + 2, requests)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    positions = rng.integers(0, 5 * ratio + 2, requests).astype(np.int32)
    positions[rng.random(requests) < 0.2] = 0
    shape = (int(starts[-1]), compressor.row_width)
    kv, score = rng.standard_normal(shape), spread * rng.standard_normal(shape)
    kv, score = (bfloat16(x) if bits else x.astype(np.float32) for x in (kv, score))
    columns = int(-(-((positions + lengths).max() // ratio + 1) // row_format.page_rows))
    pages = requests * columns + 2
    page_ids = rng.permutation(pages)[: requests * columns].reshape(requests, columns).astype(np.int32)
    page_ids[rng.random(page_ids.shape) < 0.1] = -1
    masks = np.where(rng.random(requests) < 0.3, positions + rng.integers(0, 2 * ratio + 1, requests), 0)
    carry = rng.standard_normal((requests, compressor.ring_rows, 2 * compressor.row_width)).astype(np.float32)
    for q, position in enumerate(positions.tolist()):
        _bury(carry[q], position, compressor)
    arguments = {
        "kv": kv, "score": score, "ratio": ratio, "overlap": overlap,
        "norm_weight": compressor.norm_weight.astype(np.float32),
        "eps": 1e-6, "rope": rope, "row_format": row_format, "carry": carry, "starts": starts, "positions": positions,
        "write_mask": masks.astype(np.int32), "page_ids": page_ids,
    }  # fmt: skip
    return Call(compressor, row_format, arguments, pages)


def _bury(ring: Array, position: int, compressor: ref.Compressor) -> None:
    """Put NaN wherever nothing of a ring is alive."""
    kept = ring.copy()
    ring[:] = np.nan
    opened = position - position % compressor.ratio
    first = max(opened - compressor.ratio, 0) if compressor.overlap else opened
    for token in range(first, position):
        live = compressor.row_width if token >= opened else compressor.width
        row = token % compressor.ring_rows
        for start in (0, compressor.row_width):
            ring[row, start : start + live] = kept[row, start : start + live]


def changed(call: Call, **fields: Any) -> Call:
    """Return the same call with other arguments."""
    return replace(call, arguments=call.arguments | fields)


def same_carry(ours: Array, theirs: Array) -> bool:
    return np.array_equal(ours, theirs, equal_nan=True)


def rows_of(out: Array, call: Call) -> Array:
    """Return the packed rows of the entries that are written."""
    places = call.places()
    return ref.load_rows(out, places[places >= 0], call.row_format)


def outside(out: Array, call: Call) -> Array:
    """Return the pages with all written rows blanked: what must be as it was."""
    places = call.places()
    written = places[places >= 0]
    blank = out.copy()
    ref.store_rows(np.full((len(written), call.row_format.row_bytes), GUARD, np.uint8), blank, written, call.row_format)
    return blank
