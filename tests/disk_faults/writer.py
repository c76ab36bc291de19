# SPDX-License-Identifier: Apache-2.0
"""The process that is killed, starved and lied to: a random history against a store, told to a journal."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

import hybridkv as hk
from hybridkv.tiers import Report, TierStatus

from .journal import Ask, Journal
from .records import Pages, Records

_WAIT_SECONDS = 30.0


@dataclass(frozen=True)
class Store:
    """Where a store is and how it is opened."""

    path: Path
    capacity_bytes: int
    region_bytes: int
    engine: str = "threads"
    depth: int = 16

    def open(self) -> hk.DiskTier:
        """Open it, as every part does."""
        return hk.DiskTier(
            self.path, self.capacity_bytes, region_bytes=self.region_bytes, engine=self.engine, depth=self.depth
        )

    def with_engine(self, engine: str) -> Store:
        """Return the same store opened with another engine."""
        return replace(self, engine=engine)


@dataclass(frozen=True)
class History:
    """What a writer does: so many asks (0: until it is killed), so many at a time, drawn from a seed.

    `early`: the journal hears that a durable put or a remove is OK when it is asked: a lie, to be found.
    """

    seed: int
    asks: int = 0
    at_a_time: int = 16
    durable: float = 0.3
    removes: float = 0.05
    gets: float = 0.15
    early: bool = False


class Writer:
    """One life: a tier, its journal, and the asks under way."""

    def __init__(self, tier: hk.DiskTier, journal: Journal, records: Records, history: History) -> None:
        self._tier, self._journal, self._records, self._history = tier, journal, records, history
        self._random = random.Random(history.seed)
        self._under_way: dict[tuple[int, int], tuple[int, int, Pages | None]] = {}
        self._next = [self._random.randrange(records.blocks * 2) for _ in range(records.chains)]

    def run(self) -> None:
        """Make the asks; whatever a tier answers is entered, whatever it raises ends the life."""
        done = 0
        while not self._history.asks or done < self._history.asks:
            if len(self._under_way) < self._history.at_a_time:
                self._one()
                done += 1
            else:
                self._take()
        while self._under_way:
            self._take()

    def _one(self) -> None:
        roll = self._random.random()
        history = self._history
        if roll < history.removes:
            self._remove(self._random.choice(self._records.names))
        elif roll < history.removes + 0.05:
            self._file(self._journal.ask(Ask.FLUSH), self._tier.flush())
        elif roll < history.removes + 0.05 + history.gets:
            self._get(self._random.choice(self._records.names))
        else:
            self._put()

    def _put(self) -> None:
        chain = self._random.randrange(self._records.chains)
        step = self._next[chain]
        self._next[chain] = (step + 1) % (2 * self._records.blocks)
        name = 1 + 2 * self._records.blocks * chain + step
        missing = [each for each in self._records.ancestors(name) if not self._records.here(self._tier, each)]
        wanted = [*reversed(missing), name] if len(missing) < 6 else list(reversed(missing))[:1]
        durable = self._random.random() < self._history.durable
        for each in wanted:
            number = self._journal.ask(Ask.PUT, each, durable)
            if durable and self._history.early:
                self._journal.answer(number, TierStatus.OK)
            pinned = self._random.random() < 0.02
            self._file(number, self._tier.put([self._records.put(each, durable, pinned)]))

    def _remove(self, name: int) -> None:
        number = self._journal.ask(Ask.REMOVE, name)
        if self._history.early:
            self._journal.answer(number, TierStatus.OK)
        self._file(number, self._tier.remove([self._records.key(name)]))

    def _get(self, name: int) -> None:
        item, room = self._records.get(name)
        number = self._journal.ask(Ask.GET, name)
        self._file(number, self._tier.get([item]), name, room)

    def _file(self, number: int, batch: int, name: int = 0, room: Pages | None = None) -> None:
        self._under_way[batch, 0] = (number, name, room)

    def _take(self) -> None:
        if not self._tier.wait(_WAIT_SECONDS):
            raise TimeoutError(f"no report within {_WAIT_SECONDS} s")
        for report in self._tier.poll():
            self._enter(report)

    def _enter(self, report: Report) -> None:
        number, name, room = self._under_way.pop((report.batch, report.item))
        self._journal.answer(number, report.status)
        if room is not None and report.status == TierStatus.OK and not self._records.is_right(name, room):
            self._journal.ask(Ask.WRONG, name)


def live(store: Store, path: Path, records: Records, history: History, journal: Journal | None = None) -> None:
    """Open the store, write, close it: all of a life, told to a journal, unless something ends it before."""
    journal = journal or Journal(path)
    try:
        tier = store.open()
    except hk.TierError:
        journal.ask(Ask.REFUSED)
        return
    journal.ask(Ask.OPENED)
    Writer(tier, journal, records, history).run()
    if not tier.close(_WAIT_SECONDS):
        raise TimeoutError(f"not closed within {_WAIT_SECONDS} s")
    journal.ask(Ask.ENDED)
