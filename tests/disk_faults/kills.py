# SPDX-License-Identifier: Apache-2.0
"""Writers killed at random points, life after life on one store."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

from .checker import Checker, Row
from .journal import size_of
from .model import Model
from .processes import Child
from .records import Records
from .writer import History, Store, live

KIB = 1 << 10


def checker(row: Row, folder: Path, engine: str, *, wraps: bool) -> Checker:
    """Return the follower of a new store: one that is never full, or one that is again and again."""
    records = Records(chains=24, blocks=8, most_bytes=48 * KIB)
    region = 256 * KIB
    if wraps:
        store = Store(folder / "store", 16 * region, region, engine)
        model = Model(records, kept_bytes=12 * region * 6 // 10, life_bytes=2 * region)
    else:
        store = Store(folder / "store", 4000 * region, region, engine)
        model = Model(records)
    return Checker(store, model, folder / "journal", row)


def killed(follower: Checker, rounds: int, seed: int, *, early: bool = False, most: int = 400) -> None:
    """Let writers live on the store, each until its journal has a random number of entries and a moment longer."""
    draw = random.Random(seed)
    for number in range(rounds):
        history = History(seed * 1000 + number, early=early, at_a_time=draw.choice((1, 4, 24)))
        child = Child(lambda history=history: live(follower.store, follower.journal, follower.records, history))
        child.go()
        grown(follower.journal, draw.randrange(most))
        time.sleep(draw.uniform(0, 0.01))
        child.kill()
        if child.wait() != -9:
            follower.row.failed += 1
        follower.check()


def grown(journal: Path, entries: int, seconds: float = 20.0) -> None:
    """Wait until a journal has so many more entries, or for so long."""
    before, until = size_of(journal), time.monotonic() + seconds
    while size_of(journal) - before < entries and time.monotonic() < until:
        time.sleep(0.001)


def rows(folder: Path, rounds: int, engines: tuple[str, ...]) -> Iterator[Row]:
    """Run the part: each engine on a roomy store and on a full one; and acknowledgements that come too early."""
    for engine in engines:
        for wraps in (False, True):
            name = f"kill -9, {engine}, {'full' if wraps else 'roomy'} store"
            row = Row(name)
            place = folder / name.replace(" ", "_")
            place.mkdir()
            killed(checker(row, place, engine, wraps=wraps), rounds, 1 + wraps)
            yield row
    row = Row("kill -9, told durable when asked", must_find=("lost", "returned"))
    place = folder / "early"
    place.mkdir()
    killed(checker(row, place, engines[0], wraps=False), max(5, rounds // 4), 3, early=True, most=60)
    yield row
