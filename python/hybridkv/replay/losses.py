# SPDX-License-Identifier: Apache-2.0
"""Why tokens were computed that had been seen before: by cause, and in the order in which requests came.

What a verdict says is which state was missing. Why it was missing only the caller knows who stored it: it was
never kept (a decision of the policy), never stored (the pools were too small), or it was, and has been evicted.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hybridkv.kinds import Check, StateKind

if TYPE_CHECKING:
    from hybridkv import Verdict

Units = npt.NDArray[np.int64]

NOT_STORED = "history not stored"
EVICTED = "history evicted"
IN_TIER = "in a tier, not restored"
STEPS = "between boundaries"


class Losses:
    """Tokens of prompts by what became of them.

    ``new + usable + all of causes = tokens``: each token is counted once.

    Parameters
    ----------
    units : int
        Numbers of units that there are.
    boundary_tokens, unit_tokens : int
        Of the spec.

    Attributes
    ----------
    tokens, usable, new : int
        Of all prompts: all; resumed from; seen for the first time, or named by no id, or the last token, which is
        always computed.
    causes : Counter of str
        Tokens seen before and computed again, by cause: :data:`NOT_STORED`, :data:`EVICTED`, :data:`STEPS` (known
        beyond the last boundary), :data:`IN_TIER` (the pools had no room for it), and of each kind of state
        "... not kept" and "... evicted".
    """

    def __init__(self, units: int, boundary_tokens: int, unit_tokens: int) -> None:
        self._ever = np.zeros(units, dtype=np.bool_)
        self._kept = np.zeros(units, dtype=np.bool_)
        self._step = boundary_tokens
        self._unit = unit_tokens
        self.tokens = self.usable = self.new = 0
        self.causes: Counter[str] = Counter()

    def stored(self, units: Units, boundaries: list[int]) -> None:
        """Note that units were published, and the states at boundaries.

        Parameters
        ----------
        units : numpy.ndarray
            int64 [[units]], numbers of all units from the start.
        boundaries : list of int
            Lengths in tokens whose states were published.
        """
        self._ever[units] = True
        if boundaries:
            self._kept[units[np.asarray(boundaries) // self._unit - 1]] = True

    def note(self, verdict: Verdict, units: Units, seen_tokens: int, tokens: int) -> None:
        """Count one request.

        Parameters
        ----------
        verdict : Verdict
            What the match said.
        units : numpy.ndarray
            int64 [[units]], numbers of the whole units of its prompt.
        seen_tokens : int
            Tokens of the prompt that a cache which never forgets could give.
        tokens : int
            Length of the prompt.
        """
        matched, usable = verdict.matched_tokens, verdict.usable_tokens
        self.tokens += tokens
        self.usable += usable
        self.new += tokens - max(seen_tokens, usable)
        if matched < seen_tokens:
            stored = self._longest(self._ever, units, matched, seen_tokens, self._unit)
            self._count(NOT_STORED, seen_tokens - stored)
            self._count(EVICTED, stored - matched)
        top = min(matched, seen_tokens)
        if usable < top:
            aligned = max(usable, top // self._step * self._step)
            self._count(STEPS, top - aligned)
            if usable < aligned:
                self._states(verdict, units, usable, aligned)

    def _states(self, verdict: Verdict, units: Units, usable: int, aligned: int) -> None:
        why = verdict.why
        if why is not None and why.kind is StateKind.DISK:
            self._count(IN_TIER, aligned - usable)
            return
        if why is None or why.check is not Check.GROUPS:
            name = "history" if why is None or why.kind is StateKind.COMPRESSED else why.kind.name.lower()
            self._count(f"{name} evicted", aligned - usable)
            return
        kept = self._longest(self._kept, units, usable, aligned, self._step)
        name = why.kind.name.lower()
        self._count(f"{name} not kept", aligned - kept)
        self._count(f"{name} evicted", kept - usable)

    def _longest(self, marks: npt.NDArray[np.bool_], units: Units, above: int, most: int, step: int) -> int:
        """Return the longest marked length in (above, most], a multiple of `step`; `above` where there is none."""
        first = (above // step + 1) * step
        ends = np.arange(first, most + 1, step) // self._unit - 1
        found = np.flatnonzero(marks[units[ends]])
        return first + int(found[-1]) * step if found.size else above

    def _count(self, cause: str, tokens: int) -> None:
        if tokens:
            self.causes[cause] += tokens
