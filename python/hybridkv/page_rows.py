# SPDX-License-Identifier: Apache-2.0
"""Where rows and their footers lie in the pages of a pool, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PageRows:
    """How rows and their footers lie in a page of an array [[pages, page_bytes]].

    Row ``i`` lies at ``i * row_stride``, its footer at ``footer_offset + i * footer_bytes``.

    Parameters
    ----------
    rows : int
        Rows of a page.
    row_bytes : int
        Bytes of one row, its footer not counted.
    row_stride : int, optional
        Bytes from row to row; default `row_bytes`.
    footer_bytes : int, optional
        Bytes that belong to each row and lie together behind the rows, such as scales.
    footer_offset : int, optional
        Where the footers begin; default ``rows * row_stride``.
    """

    rows: int
    row_bytes: int
    row_stride: int | None = None
    footer_bytes: int = 0
    footer_offset: int | None = None
