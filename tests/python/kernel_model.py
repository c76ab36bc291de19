# SPDX-License-Identifier: Apache-2.0
"""A plain model of the kernels, from docs/kernels.md: index by index in numpy, sums in Python's integers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from hybridkv import _core

LEVELS = [name for name in ("portable", "avx2", "avx512") if _core.cpu_level_supported(name)]

OK, STALE, CHANGED, SKIPPED = 0, 1, 2, 3

_WORD, _WIDE, _PRIME = 2**64, 2**128, 2**61 - 1


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a test on each level that this machine has."""
    before = _core.cpu_level()
    _core.cpu_level_choose(request.param)
    yield request.param
    _core.cpu_level_choose(before)


@dataclass(frozen=True)
class Rows:
    """Where rows and footers of a page lie."""

    rows: int
    row_bytes: int
    row_stride: int
    footer_bytes: int = 0
    footer_offset: int = 0

    def row_places(self, row: int) -> list[int]:
        """Byte offsets in the page, in the order of the packed row."""
        data = range(row * self.row_stride, row * self.row_stride + self.row_bytes)
        start = self.footer_offset + row * self.footer_bytes
        return [*data, *range(start, start + self.footer_bytes)]

    def page_places(self) -> list[int]:
        """Byte offsets in the page, in the order of the packed page: all rows, then all footers."""
        rows = [self.row_places(row) for row in range(self.rows)]
        return [b for r in rows for b in r[: self.row_bytes]] + [b for r in rows for b in r[self.row_bytes :]]

    @property
    def page_bytes(self) -> int:
        return max(
            (self.rows - 1) * self.row_stride + self.row_bytes, self.footer_offset + self.rows * self.footer_bytes
        )


def places(layout: Rows, row: int | None) -> np.ndarray:
    return np.array(layout.page_places() if row is None else layout.row_places(row))


def gathered(pool, ids, layout: Rows, rows=None, before=None, bad=()) -> tuple[np.ndarray, np.ndarray]:
    """Return what one layer's buffer and the statuses become; `before`: the buffer where missing pieces are left."""
    width = len(places(layout, None if rows is None else 0))
    out = np.zeros((len(ids), width), np.uint8) if before is None else before.copy()
    status = np.zeros(len(ids), np.int32)
    for i, page in enumerate(ids):
        row = None if rows is None else rows[i]
        if page == -1 or row == -1:
            status[i] = SKIPPED
        elif i in bad:
            status[i] = STALE
        else:
            out[i] = pool[page, places(layout, row)]
    return out, status


def scattered(pool, ids, src, layout: Rows, rows=None, bad=()) -> np.ndarray:
    """Return what one layer's pool becomes."""
    made = pool.copy()
    for i, page in enumerate(ids):
        row = None if rows is None else rows[i]
        if page != -1 and row != -1 and i not in bad:
            made[page, places(layout, row)] = src[i]
    return made


def _mix(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % _WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB % _WORD
    return z ^ z >> 31


_TERMS = [_mix((0x6879627269646B76 + (i + 1) * 0x9E3779B97F4A7C15) % _WORD) for i in range(129)]


def fingerprint_of(content: bytes) -> int:
    """Return the fingerprint of bytes, by the definition."""
    padded = content + bytes(-len(content) % 16)
    words = [int.from_bytes(padded[i : i + 8], "little") for i in range(0, len(padded), 8)]
    r = _TERMS[128] % _PRIME
    total = len(content)
    for j in range(0, -(-len(words) // 128)):
        chunk = words[128 * j : 128 * j + 128]
        added = [(word + key) % _WORD for word, key in zip(chunk, _TERMS, strict=False)]
        a = sum(x * y for x, y in zip(added[::2], added[1::2], strict=True)) % _WIDE
        for d, part in enumerate((a % 2**43, (a >> 43) % 2**43, a >> 86)):
            total += part * pow(r, 3 * j + d + 1, _PRIME)
    return _mix(total % _PRIME + 1)
