# SPDX-License-Identifier: Apache-2.0
"""Hits that are withheld: the answer of a match whose cache is watched, and does not trust what it found.

Nothing of this is asked unless somebody watches the cache (:mod:`hybridkv.canary`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from hybridkv.kinds import Check, Outcome, Remedy, StateKind
from hybridkv.verdict import Plan, Verdict, Why

if TYPE_CHECKING:
    from hybridkv.lease import Lease

WITHHELD = "withheld"
"""Code of a ``why`` whose hit was found, and is not to be used."""


class Withheld(NamedTuple):
    """Why a hit was not handed out.

    Attributes
    ----------
    kind : StateKind
        Of the group that is not trusted; DISK: the tier; COMPRESSED where it is the whole model.
    group : str
    detail : str
        One sentence for an operator.
    """

    kind: StateKind
    group: str
    detail: str


class Steering(Protocol):
    """Who decides what becomes of hits of one cache."""

    def withheld(self, verdict: SteeredVerdict, lease: Lease) -> Withheld | None:
        """Return why a hit is not to be used, after its lease was settled; None: it may be."""

    def tier_is_off(self) -> bool:
        """Whether nothing is to be loaded from the tier."""


class SteeredVerdict(Verdict):
    """A verdict of a cache that is watched: a hit that is withheld is a FALSE_HIT with code "withheld"."""

    _withheld: Withheld | None = None

    def _settle(self, steering: Steering) -> None:
        """Ask whether the hit may be used."""
        assert self.lease is not None
        self._withheld = steering.withheld(self, self.lease)
        if self._withheld is not None:
            self.lease = None

    @property
    def outcome(self) -> Outcome:
        """FALSE_HIT where the hit is withheld."""
        return super().outcome if self._withheld is None else Outcome.FALSE_HIT

    @property
    def usable_tokens(self) -> int:
        """0 where the hit is withheld."""
        return super().usable_tokens if self._withheld is None else 0

    @property
    def why(self) -> Why | None:
        """With check INTEGRITY and code "withheld" where the hit is."""
        if self._withheld is None:
            return super().why
        kind, group, detail = self._withheld
        return Why(Check.INTEGRITY, kind, group, 0, WITHHELD, detail)

    @property
    def lost(self) -> dict[Check, int]:
        """What was usable, under INTEGRITY, where the hit is withheld."""
        found = super().lost
        if self._withheld is None:
            return found
        return found | {Check.INTEGRITY: found.get(Check.INTEGRITY, 0) + super().usable_tokens}

    @property
    def remedy(self) -> Remedy:
        """RECOMPUTE where the hit is withheld."""
        return super().remedy if self._withheld is None else Remedy.RECOMPUTE

    @property
    def plan(self) -> Plan:
        """Empty where the hit is withheld."""
        return super().plan if self._withheld is None else Plan()

    @property
    def boundaries(self) -> npt.NDArray[np.int64]:
        """None where the hit is withheld."""
        if self._withheld is None:
            return super().boundaries
        return np.empty(0, np.int64)

    def _best_restore(self) -> int:
        steering = self._cache._steering
        return 0 if steering is not None and steering.tier_is_off() else super()._best_restore()
