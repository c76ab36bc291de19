# SPDX-License-Identifier: Apache-2.0
"""Every system call of a small history goes wrong in turn: strace injects an error, a lie or a kill at the N-th.

The thread engine alone: what io_uring does is no system call of its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .checker import Checker, Row
from .model import Model
from .processes import Child, Strace, cannot_trace, injected, run
from .records import Records
from .writer import History, Store, live

KIB = 1 << 10
LAST = 400  # no history makes more calls of a kind


@dataclass(frozen=True)
class Injection:
    """What happens to which calls.

    `lies`: the device says what is not so, and what it was trusted with may be gone. `full`: the oldest region may make
    room for others.
    """

    name: str
    calls: tuple[str, ...]
    what: str
    onwards: bool = False
    lies: bool = False
    full: bool = False


DATA = ("pwritev", "preadv", "fdatasync", "fallocate")
NAMES = ("fsync", "unlinkat", "renameat")
INJECTIONS = (
    Injection("EIO", (*DATA, *NAMES), "error=EIO"),
    Injection("EIO from then on", DATA, "error=EIO", onwards=True),
    Injection("ENOSPC", ("pwritev", "fallocate"), "error=ENOSPC", full=True),
    Injection("ENOSPC from then on", ("pwritev", "fallocate"), "error=ENOSPC", onwards=True, full=True),
    Injection("SIGKILL", (*DATA, *NAMES), "signal=SIGKILL"),
    Injection("nothing moved", ("pwritev", "preadv"), "retval=0"),
    Injection("4 KiB said, nothing moved", ("pwritev", "preadv"), "retval=4096", lies=True),
    Injection("8 KiB said, nothing moved", ("pwritev", "preadv"), "retval=8192", lies=True),
)


class Bench:
    """A store with a past, to be copied for each run."""

    def __init__(self, folder: Path, *, wraps: bool) -> None:
        self.folder, self.wraps = folder, wraps
        self.records = Records(chains=6, blocks=4, most_bytes=10 * KIB)
        self.template = folder / "template"
        region = 128 * KIB
        self.store = Store(folder / "store", (10 if wraps else 60) * region, region, depth=1)
        journal = folder / "past"
        past = Store(self.template, self.store.capacity_bytes, region, depth=1)
        for seed in range(8 if wraps else 2):
            run(lambda seed=seed: live(past, journal, self.records, History(seed, asks=40)))
        follower = Checker(past, self.model(), journal, Row("past"))
        follower.check()
        assert follower.row.violations == 0, follower.row
        self.past = follower.model

    def model(self) -> Model:
        """Return what is expected of a store without a past."""
        region = 128 * KIB
        return Model(self.records, kept_bytes=4 * region * 6 // 10 if self.wraps else None, life_bytes=2 * region)

    def once(self, row: Row, seed: int, injection: Injection, call: str, number: int) -> bool:
        """Do one run; say whether the call was there to be tampered with."""
        shutil.rmtree(self.store.path, ignore_errors=True)
        shutil.copytree(self.template, self.store.path)
        journal = self.folder / "journal"
        journal.unlink(missing_ok=True)
        model = self.model()
        if injection.full and model.kept_bytes is None:
            model.kept_bytes = self.store.region_bytes // 2
        model.there, model.gone = set(self.past.there), set(self.past.gone)
        model.at, model.written = dict(self.past.at), self.past.written
        history = History(seed, asks=30, at_a_time=3, gets=0.25, removes=0.1)
        child = Child(lambda: live(self.store, journal, self.records, history))
        when = f"{number}+" if injection.onwards else str(number)
        inject = f"inject={call}:{injection.what}:when={when}"
        trace = Strace(child, self.folder / "trace", "-e", f"trace={call}", "-e", inject)
        child.go()
        status = child.wait()
        lines = trace.lines()
        killed = any("+++ killed by SIGKILL" in line for line in lines)
        if status is None or status != (-9 if killed else 0):
            row.failed += 1
            row.notes.append(f"{call} {number}: exit {status}")
        Checker(self.store, model, journal, row).check(may_lose=injection.lies)
        if row.notes and not row.notes[-1].startswith("["):
            row.notes[-1] = f"[{call} {when}] {row.notes[-1]}"
        return killed or injected(lines) > 0


def matrix(bench: Bench, injection: Injection, row: Row, step: int, seed: int = 7) -> None:
    """Tamper with each call of each kind in turn, or with every `step`-th."""
    for call in injection.calls:
        number = 1
        while number < LAST and bench.once(row, seed, injection, call, number):
            number += step


def lying_sync(bench: Bench, row: Row) -> None:
    """Have every write told to be done and never done: what the tier was to keep is lost, and no byte is wrong."""
    everything = Injection("", (), "retval=4096", onwards=True)
    bench.once(row, 7, everything, "pwritev", 1)


def rows(folder: Path, step: int, stores: tuple[bool, ...] = (False, True)) -> Iterator[Row]:
    """Run the part: each injection on a roomy store and on a full one (True)."""
    if cannot_trace():
        yield Row("calls gone wrong", skipped=cannot_trace())
        return
    for wraps in stores:
        place = folder / ("full" if wraps else "roomy")
        place.mkdir()
        bench = Bench(place, wraps=wraps)
        for injection in INJECTIONS:
            row = Row(f"{injection.name} at the N-th call, {'full' if wraps else 'roomy'} store")
            matrix(bench, injection, row, step * (3 if wraps else 1))
            yield row
        if not wraps:
            row = Row("every write only said to be done", must_find=("lost", "returned"))
            lying_sync(bench, row)
            yield row
