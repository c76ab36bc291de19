# SPDX-License-Identifier: Apache-2.0
"""A stack of tiers: several over one another, the fastest first, seen as one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hybridkv import _core
from hybridkv.arguments import integer, members
from hybridkv.errors import ArgumentError
from hybridkv.formats.manifest import Manifest
from hybridkv.tiers.tier import Tier, limits


@dataclass(frozen=True)
class StackCounts:
    """What a stack made of one of its tiers.

    Attributes
    ----------
    hits : int
        Gets that it answered.
    failed : int
        Gets and probes that it was asked and that went on to the next tier.
    copies_refused : int
        Puts that it did not take although a slower tier may have: its copies are missing.
    promoted, not_promoted : int
        Records that were found below and copied up into it, and those that it did not take.
    """

    hits: int
    failed: int
    copies_refused: int
    promoted: int
    not_promoted: int


class TierStack(Tier):
    """Tiers over one another, seen as one; as a rule a :class:`MemoryTier` over a tier on disk.

    A put goes to all of them and has the status of the slowest, which thus holds every record; those above hold copies,
    and one that is full is counted, not an error. A get is asked of the first tier that has the record; whatever fails
    there is asked of the next, so that a damaged copy hides no sound record; and a whole record that was found below is
    copied up. A remove is of all.

    A stack has its tiers for itself: ask and poll the stack alone. It closes them when it is closed. ``usage`` is of
    the slowest tier where it is about what there is; that of each is ``stack.tiers[i].usage()``.

    Parameters
    ----------
    tiers : iterable of Tier
        At least two, the fastest first.
    promotion_bytes : int
        Of copies on their way up at a time, beyond which nothing more is copied. 0: nothing is ever.
    most_items : int
        Items under way or not polled, beyond which an ask is :class:`~hybridkv.Busy`.
    breaker_after : int
        Failures in a row after which a breaker for the whole stack opens. 0: never; each tier has one of its own.
    breaker_seconds : tuple of float
        How long it stays open at first and at most.

    Raises
    ------
    ArgumentError
        An argument out of range, fewer than two tiers, one that is no tier or is there twice.
    Busy
        A tier that a cache or another stack has.
    Closed
        A tier of the process that this one was forked from.
    TierError
        The process may open no more files.
    """

    def __init__(
        self,
        tiers: Iterable[Tier],
        *,
        promotion_bytes: int = 64 << 20,
        most_items: int = 4096,
        breaker_after: int = 0,
        breaker_seconds: tuple[float, float] = (1.0, 30.0),
    ) -> None:
        common = limits(most_items, breaker_after, breaker_seconds)
        self.tiers = _checked(tiers)
        expected = "a number of bytes below 2^62, 0 for none"
        room = integer("promotion_bytes", promotion_bytes, expected)
        if not 0 <= room < 2**62:
            raise ArgumentError("promotion_bytes", expected, promotion_bytes)
        lent: list[Tier] = []
        try:
            for tier in self.tiers:
                tier._lend(self)
                lent.append(tier)
            core = _core.open_tier_stack([tier._core for tier in self.tiers], room, common)
        except BaseException:
            for tier in lent:
                tier._take_back(self)
            raise
        super().__init__(core, most_items)
        self.name = self.tiers[-1].name
        for tier in self.tiers:
            self._learn(tier.manifests)

    def close(self, timeout: float | None = None) -> bool:
        """Close it and its tiers; see :meth:`Tier.close`."""
        closed = super().close(timeout)
        for tier in self.tiers if closed else ():
            tier._take_back(self)
        return closed

    def know(self, manifest: Manifest) -> None:
        """Tell who wrote records that lie here, and so each of its tiers; see :meth:`Tier.know`."""
        for tier in self.tiers:
            tier.know(manifest)
        super().know(manifest)

    def _stop_keeping(self) -> None:
        for tier in self.tiers:
            tier._stop_keeping()

    def counts(self) -> tuple[StackCounts, ...]:
        """Return what it made of each of its tiers, the fastest first."""
        return tuple(StackCounts(*counts) for counts in _core.stack_counts(self._core))


def _checked(tiers: Iterable[Tier]) -> tuple[Tier, ...]:
    given = tuple(members("tiers", tiers, "an iterable of Tier"))
    for index, tier in enumerate(given):
        if not isinstance(tier, Tier):
            raise ArgumentError(f"tiers[{index}]", "a Tier", type(tier).__name__)
        if any(tier is other for other in given[:index]):
            raise ArgumentError(f"tiers[{index}]", "each tier once", "one again")
    if len(given) < 2:
        raise ArgumentError("tiers", "at least 2", len(given))
    return given
