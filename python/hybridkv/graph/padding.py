# SPDX-License-Identifier: Apache-2.0
"""What a kernel finds in a block table where there is no page: each kernel has its own idea of nothing."""

from __future__ import annotations

from dataclasses import dataclass

from hybridkv.arguments import integer
from hybridkv.errors import ArgumentError

SKIP, NULL, CLAMP = "skip", "null", "clamp"

_PAGES = 2**31 - 1  # tables are int32


@dataclass(frozen=True)
class Padding:
    """The sentinel of one kernel: what its tables hold where there is no page.

    Attributes
    ----------
    kind : {"skip", "null", "clamp"}
        "skip": the kernel leaves an entry of -1 out. "null": it reads and writes whatever it is given, so that padding
        names a page of its own, the null page. "clamp": it reads past the end of a row as the row's last page; rows
        without a request have the null page.
    page : int
        The null page, as the kernel counts pages; -1 for "skip".
    first : int
        What the kernel calls the cache's page 0: 1 where the null page is page 0 of an array of which the cache was
        bound to what lies behind it (``cache.bind(group, pool[1:])``).
    """

    kind: str
    page: int = -1
    first: int = 0

    def __post_init__(self) -> None:
        if self.kind not in (SKIP, NULL, CLAMP):
            raise ArgumentError("padding.kind", f"one of {[SKIP, NULL, CLAMP]}", repr(self.kind))
        page, first = integer("padding.page", self.page, "a page"), integer("padding.first", self.first, "a page")
        if not 0 <= first < _PAGES:
            raise ArgumentError("padding.first", f"0 or more, below {_PAGES}", first)
        if self.kind == SKIP and page != -1:
            raise ArgumentError("padding.page", "-1, for a kernel that leaves entries out", page)
        if self.kind != SKIP and not 0 <= page < _PAGES:
            raise ArgumentError("padding.page", f"a page, 0 or more, below {_PAGES}", page)

    @classmethod
    def skip(cls, *, first: int = 0) -> Padding:
        """Return the sentinel of kernels that leave -1 out."""
        return cls(SKIP, -1, first)

    @classmethod
    def null(cls, page: int, *, first: int = 0) -> Padding:
        """Return the sentinel of kernels that touch every page they are given."""
        return cls(NULL, page, first)

    @classmethod
    def clamp(cls, page: int, *, first: int = 0) -> Padding:
        """Return the sentinel of kernels that read past a row as its last page."""
        return cls(CLAMP, page, first)

    def slot(self, block_tokens: int) -> int:
        """Return where a token that there is not is written: -1, or the first row of the null page."""
        return -1 if self.kind == SKIP else self.page * block_tokens

    def check_apart(self, field: str, pages: int) -> None:
        """Refuse a null page that a pool of so many pages hands out: padding would write into a request's page.

        Raises
        ------
        ArgumentError
            It is one of them.
        """
        if self.kind != SKIP and self.first <= self.page < self.first + pages:
            expected = f"a page that the cache never hands out, outside [{self.first}, {self.first + pages})"
            raise ArgumentError(field, expected, self.page)


def padding_of(field: str, value: object) -> Padding:
    """Take a Padding, or the number that stands in tables: -1, or the null page.

    Raises
    ------
    ArgumentError
        Neither; "clamp" without its null page among others.
    """
    if isinstance(value, Padding):
        return value
    number = integer(field, value, "a hybridkv.graph.Padding, -1, or the page that padding points to")
    return Padding.skip() if number == -1 else Padding.null(number)
