# SPDX-License-Identifier: Apache-2.0
"""What may and what must be found after a crash, given what the writer was told."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hybridkv.tiers import TierStatus

from .journal import Ask, Step
from .records import Records

# Answers of puts that wrote nothing. A MISS may have been written: before its parent was gone.
_NOTHING = {TierStatus.INVALID, TierStatus.BUSY, TierStatus.READ_ONLY, TierStatus.UNAVAILABLE}


@dataclass
class Model:
    """Which states of each record the promises of the tier allow.

    A put that was durable, or that a flush came after, is there; a remove that was OK has everything above it gone; of
    what had no answer, or one that promises nothing, both are allowed. So they are of a record that is gone but was not
    removed: what a crash left without the block below it is found again once that is put again. Where a store is full,
    what is old may be gone: not what was put within the last `kept_bytes`, unless something below it is older.

    Attributes
    ----------
    kept_bytes : int or None
        None: nothing is ever reclaimed.
    life_bytes : int
        What a life may take of a store besides its records: the region that its crash left half full.
    """

    records: Records
    kept_bytes: int | None = None
    life_bytes: int = 0
    there: set[int] = field(default_factory=set)  # when the last life began
    gone: set[int] = field(default_factory=set)  # then: not there, but put before and not removed since
    at: dict[int, int] = field(default_factory=dict)  # bytes written before the record was
    written: int = 0
    statuses: Counter[str] = field(default_factory=Counter)

    def allowed(self, steps: list[Step]) -> dict[int, set[bool]]:
        """Return for each record whether it may be there (True), may be gone (False), or both, after these steps."""
        out = {name: {True, False} if name in self.gone else {name in self.there} for name in self.records.names}
        self.written += self.life_bytes
        for step in steps:
            if step.status is not None:
                self.statuses[step.status.name] += 1
            if step.what == Ask.PUT and step.status not in _NOTHING:
                out[step.name] = {True} if _survives(step, steps) else out[step.name] | {True}
                self.at.setdefault(step.name, self.written)  # one that is there is not written again
                self.written += self.records.bytes_of(step.name)
            elif step.what == Ask.REMOVE:
                certain = step.status in (TierStatus.OK, TierStatus.MISS)
                for name in self.records.subtrees[step.name]:
                    out[name] = {False} if certain else out[name] | {False}
                    if certain:
                        self.at.pop(name, None)
        if self.kept_bytes is not None:
            for name, states in out.items():
                if states == {True} and self._may_be_reclaimed(name):
                    states.add(False)
        self.gone = {name for name, states in out.items() if True in states}
        return out

    def settle(self, there: set[int]) -> None:
        """Go on from what was found."""
        self.there, self.gone = there, self.gone - there
        self.at = {name: at for name, at in self.at.items() if name in there}

    def _may_be_reclaimed(self, name: int) -> bool:
        assert self.kept_bytes is not None
        oldest = min(self.at.get(each, 0) for each in (name, *self.records.ancestors(name)))
        return self.written - oldest > self.kept_bytes


def _survives(put: Step, steps: list[Step]) -> bool:
    """Whether the put was acknowledged as durable, itself or by a flush after it.

    A flush that says that something was lost takes all puts asked before with it: nothing more is promised of them.
    """
    if put.status != TierStatus.OK:
        return False
    if put.durable:
        return True
    flushes = [step for step in steps if step.what == Ask.FLUSH and step.status is not None]
    for flush in sorted(flushes, key=lambda step: step.answered):
        if flush.answered > put.asked and flush.status != TierStatus.OK:
            return False
        if flush.asked > put.asked:
            return True
    return False
