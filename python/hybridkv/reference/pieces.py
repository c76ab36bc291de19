# SPDX-License-Identifier: Apache-2.0
"""The pieces that a call names: their places, whether they are missing, and their hand-out counts."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hybridkv.errors import KernelContract
from hybridkv.reference.contract import array, number
from hybridkv.reference.groups import require_writable
from hybridkv.reference.page_rows import Pool

Handouts: TypeAlias = tuple[npt.NDArray[Any], npt.NDArray[Any]]

OK, STALE, CHANGED, SKIPPED = range(4)
"""Outcomes of a piece, as ``status`` has them."""

IDS = (np.int32, np.int64)
"""dtypes of page ids and rows."""

_COUNTS = (np.uint64, np.int64)


class Pieces:
    """Pieces of one group, checked.

    Parameters
    ----------
    pool : Pool
        Where they lie.
    suffix : str
        What follows an argument's name in errors.
    page_ids, rows, handouts, status, null_page
        As in :func:`~hybridkv.reference.gather`.

    Attributes
    ----------
    inputs : dict of str to ndarray or None
        What is only read, by the names that errors give them.
    outputs : dict of str to ndarray or None
        The status, likewise.
    """

    def __init__(
        self,
        pool: Pool,
        suffix: str,
        page_ids: object,
        rows: object = None,
        handouts: object = None,
        status: npt.NDArray[np.int32] | None = None,
        null_page: int | None = None,
    ) -> None:
        self._name = f"page_ids{suffix}"
        self.page_ids = _aligned(self._name, ids_of(self._name, page_ids, (None,), pool.pages))
        self.rows: npt.NDArray[Any] | None = None
        if rows is not None:
            name = f"rows{suffix}"
            self.rows = _aligned(name, ids_of(name, rows, (len(self.page_ids),), pool.plan.rows))
            if self.rows.dtype != self.page_ids.dtype:
                raise KernelContract(f"rows{suffix}", f"dtype {self.page_ids.dtype}, as page_ids", str(self.rows.dtype))
        self.null_page = null_page_of(f"null_page{suffix}", null_page, pool.pages)
        self.counts, self.expected = _handouts(f"handouts{suffix}", handouts, pool.pages, len(self.page_ids))
        self.status = status
        if status is not None:
            require_writable(f"status{suffix}", array(f"status{suffix}", status, (np.int32,), (len(self.page_ids),)))
        elif handouts is not None:
            raise KernelContract(f"status{suffix}", "an array, with handouts", None)
        self.inputs = {
            f"page_ids{suffix}": self.page_ids,
            f"rows{suffix}": self.rows,
            f"handouts{suffix}[0]": self.counts,
            f"handouts{suffix}[1]": self.expected,
        }
        self.outputs = {f"status{suffix}": status}

    def __len__(self) -> int:
        return len(self.page_ids)

    def place(self, piece: int) -> tuple[int, int | None]:
        """Return the page and the row of a piece; None: the whole page."""
        return int(self.page_ids[piece]), None if self.rows is None else int(self.rows[piece])

    def is_missing(self, piece: int) -> bool:
        """Return whether a piece is not there by what was asked."""
        page, row = self.place(piece)
        return page in (-1, self.null_page) or row == -1

    def require_once(self) -> None:
        """Refuse a page, or a row of a page, that is named twice."""
        places = [self.place(i) for i in range(len(self)) if not self.is_missing(i)]
        if len(set(places)) != len(places):
            raise KernelContract(self._name, "each page, or row of a page, at most once", self.page_ids)

    def before(self, piece: int) -> int:
        """Return the outcome before the first byte is touched: OK, STALE or SKIPPED."""
        if self.is_missing(piece):
            return SKIPPED
        return OK if self._count_holds(piece) else STALE

    def after(self, piece: int) -> int:
        """Return the outcome behind the last byte: OK or CHANGED."""
        return OK if self._count_holds(piece) else CHANGED

    def report(self, piece: int, outcome: int) -> None:
        """Write the status of a piece."""
        if self.status is not None:
            self.status[piece] = outcome

    def _count_holds(self, piece: int) -> bool:
        if self.counts is None or self.expected is None:
            return True
        both = self.counts[self.page_ids[piece]], self.expected[piece]
        return int(both[0]) % 2**64 == int(both[1]) % 2**64  # bits decide, not the sign of int64


def ids_of(name: str, value: object, shape: tuple[int | None, ...], limit: int) -> npt.NDArray[Any]:
    """Return ids, or -1; else a :class:`KernelContract` that names the argument.

    Parameters
    ----------
    name : str
        Of the argument.
    value : object
        int32 or int64 ndarray.
    shape : tuple of int or None
        None: any size.
    limit : int
        What each id is below.

    Returns
    -------
    ndarray
        ``value``.
    """
    ids = array(name, value, IDS, shape)
    if ids.size and not (ids.min() >= -1 and ids.max() < limit):
        raise KernelContract(name, f"-1 <= id < {limit}", f"{ids.min()} to {ids.max()}")
    return ids


def null_page_of(name: str, value: object, pages: int) -> int:
    """Return a page that counts as missing, -1 where there is none; else a :class:`KernelContract`."""
    if value is None:
        return -1
    page = number(name, value, "a page id", 0)
    if page >= pages:
        raise KernelContract(name, f"a page id below {pages}", value)
    return page


def _handouts(
    name: str, handouts: object, pages: int, pieces: int
) -> tuple[npt.NDArray[Any] | None, npt.NDArray[Any] | None]:
    if handouts is None:
        return None, None
    if not isinstance(handouts, (tuple, list)) or len(handouts) != 2:
        raise KernelContract(name, "a pair (counts, expected)", handouts)
    counts = _aligned(f"{name}[0]", array(f"{name}[0]", handouts[0], _COUNTS, (None,)))
    if len(counts) < pages:
        raise KernelContract(f"{name}[0]", f"a count for each of {pages} pages", len(counts))
    return counts, _aligned(f"{name}[1]", array(f"{name}[1]", handouts[1], _COUNTS, (pieces,)))


def _aligned(name: str, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if not value.flags.c_contiguous or not value.flags.aligned:
        raise KernelContract(name, "a contiguous, aligned array", f"strides {value.strides}")
    return value
