# SPDX-License-Identifier: Apache-2.0
"""What a grow took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hybridkv.errors import ArgumentError

if TYPE_CHECKING:
    from hybridkv.graph import Eager


class Slots:
    """The pages that a :meth:`Ticket.grow` took.

    Attributes
    ----------
    start, end : int
        The tokens they are for: [start, end).
    states : tuple of int
        The lengths whose states were asked for.
    eager : Eager or None
        Why the step to come cannot run in a captured graph; None where it can, or no width was given.
    """

    __slots__ = ("_index", "_live", "_pages", "eager", "end", "start", "states")

    def __init__(
        self,
        start: int,
        end: int,
        states: tuple[int, ...],
        pages: list[npt.NDArray[np.int32]],
        live: list[int],
        index: Mapping[str, int],
        eager: Eager | None,
    ) -> None:
        self.start = start
        self.end = end
        self.states = states
        self._pages = pages
        self._live = live
        self._index = index
        self.eager = eager

    def page_ids(self, group: str) -> npt.NDArray[np.int32]:
        """Return the new pages of a group.

        Parameters
        ----------
        group : str
            Name of a group of the spec.

        Returns
        -------
        numpy.ndarray
            int32. Of a group with a page for each block: [[new own blocks]], in order, of those whose first token
            was grown now. Of a group with one live page: [[states]], -1 where it keeps nothing at that length.

        Raises
        ------
        ArgumentError
            Unknown group.
        """
        return self._pages[self._number(group)]

    def live_page(self, group: str) -> int:
        """Return the page that every step of this request overwrites; -1 where the group has a page a block.

        Parameters
        ----------
        group : str
            Name of a group of the spec.

        Raises
        ------
        ArgumentError
            Unknown group.
        """
        return self._live[self._number(group)]

    def _number(self, group: str) -> int:
        try:
            return self._index[group]
        except (KeyError, TypeError):
            raise ArgumentError("group", f"one of {list(self._index)}", group) from None

    def __repr__(self) -> str:
        return f"Slots({self.start}, {self.end}, states={self.states})"
