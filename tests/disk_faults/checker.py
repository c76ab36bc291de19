# SPDX-License-Identifier: Apache-2.0
"""What is found when a store is opened again, held against what it promised."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import hybridkv as hk
from hybridkv.tiers import TierStatus

from .journal import Ask, Step, read_journal
from .model import Model
from .records import Pages, Records
from .writer import Store


@dataclass
class Row:
    """A line of the summary: what was done, and what was found that must not be."""

    part: str
    rounds: int = 0
    acknowledged: int = 0
    found: int = 0  # records there after the last crash, each read to the byte
    wrong: int = 0  # OK with other bytes
    lost: int = 0  # acknowledged as durable, and gone
    returned: int = 0  # removed, and back
    open: int = 0  # there without the block below
    failed: int = 0  # a process that hung, or ended as it must not
    refusals: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    # Its guard was removed: it is well if it found something of these kinds.
    must_find: tuple[str, ...] = ()
    skipped: str = ""

    @property
    def violations(self) -> int:
        """Everything that must be 0."""
        return self.wrong + self.lost + self.returned + self.open + self.failed

    @property
    def is_well(self) -> bool:
        """Whether the part shows what it is there to show."""
        if self.skipped:
            return True
        if self.must_find:
            return any(getattr(self, kind) for kind in self.must_find)
        return self.rounds > 0 and self.violations == 0


@dataclass
class Checker:
    """Follows one store through its lives."""

    store: Store
    model: Model
    journal: Path
    row: Row
    entry: int = 0

    @property
    def records(self) -> Records:
        """The records of its history."""
        return self.model.records

    def check(self, *, may_lose: bool = False, cut_at: int | None = None) -> None:
        """Open the store after a life, read everything, and compare.

        `may_lose`: the device lied to it, and bytes alone count.

        `cut_at`: the entry at which the machine began to stop; no answer from there on was given by a machine that ran.
        """
        steps, self.entry = read_journal(self.journal, self.entry)
        self._count(steps)
        for step in steps:
            if cut_at is not None and step.answered >= cut_at:
                step.status = None
        before = self.model.statuses[TierStatus.OK.name]
        allowed = self.model.allowed(steps)
        self.row.rounds += 1
        self.row.acknowledged += self.model.statuses[TierStatus.OK.name] - before
        with self.store.open() as tier:
            there, right = self._read_all(tier)
        for name in self.records.names:
            if may_lose or (name in right) in allowed[name]:
                continue
            if name in right:
                self.row.returned += 1
                self._note(f"{name} is back; {self._story(name, steps)}")
            else:
                self.row.lost += 1
                self._note(f"{name} is lost; {self._story(name, steps)}")
        for name in there:
            below = self.records.parent(name)
            if below is not None and below not in there:
                self.row.open += 1
                self._note(f"{name} stands on nothing")
        self.row.found = len(right)
        self.model.settle(right)

    def _story(self, name: int, steps: list[Step]) -> str:
        """Return what was asked of a record and of what it stands on in the last life, for who looks for the reason."""
        told = {name, *self.records.ancestors(name)}
        story = [f"before it {sorted(told & self.model.there)} of {sorted(told)} were there"]
        for step in steps:
            if (step.name in told and step.what in (Ask.PUT, Ask.REMOVE)) or step.what == Ask.FLUSH:
                answer = "unanswered" if step.status is None else f"{step.status.name} at {step.answered}"
                story.append(f"{step.asked}: {step.what.name} {step.name}{' durable' * step.durable}, {answer}")
        return "; ".join(story)

    def _count(self, steps: list[Step]) -> None:
        for step in steps:
            if step.what == Ask.WRONG:
                self.row.wrong += 1
                self._note(f"{step.name} was wrong while it was written")
            elif step.what == Ask.REFUSED:
                self.row.refusals["not opened"] += 1
            elif step.status not in (None, TierStatus.OK, TierStatus.MISS):
                assert step.status is not None
                self.row.refusals[step.status.name] += 1

    def _read_all(self, tier: hk.DiskTier) -> tuple[set[int], set[int]]:
        there = {name for name in self.records.names if self.records.here(tier, name)}
        right: set[int] = set()
        waiting: dict[tuple[int, int], tuple[int, Pages]] = {}
        left = list(self.records.names)
        while left or waiting:
            while left and len(waiting) < 64:
                item, room = self.records.get(left[-1])
                waiting[tier.get([item]), 0] = (left.pop(), room)
            if not tier.wait(30):
                raise TimeoutError("no report within 30 s")
            for report in tier.poll():
                name, room = waiting.pop((report.batch, report.item))
                if report.status == TierStatus.OK:
                    if self.records.is_right(name, room):
                        right.add(name)
                    else:
                        self.row.wrong += 1
                        self._note(f"{name} is wrong")
                elif name in there:
                    self.row.refusals["found " + report.status.name] += 1
        return there, right

    def _note(self, text: str) -> None:
        if len(self.row.notes) < 5 and not self.row.must_find:
            self.row.notes.append(f"round {self.row.rounds}: {text}")
