# SPDX-License-Identifier: Apache-2.0
"""A device that stands still: nobody who asks waits for it, deadlines hold, and what was late is told when it moves."""

from __future__ import annotations

import os
import re
import select
import time
from collections.abc import Iterator
from pathlib import Path

from hybridkv.tiers import Report, TierStatus

from .checker import Checker, Row
from .journal import Ask, Journal
from .kills import KIB
from .model import Model
from .mounts import MIB, Mount, cannot_mount
from .processes import Child, Strace, cannot_trace
from .records import Records
from .writer import Store

RECORDS = Records(chains=16, blocks=4, most_bytes=24 * KIB)
DEADLINE_SECONDS = 0.3
ROUNDS = 40
# What the asking thread may call while the device stands still, but on no file of the store: it wakes the tier's
# thread, looks at event fds and locks, and gets memory.
HARMLESS = {"write", "read", "futex", "epoll_wait", "epoll_pwait", "poll", "ppoll", "select", "pselect6", "getpid"}
HARMLESS |= {"gettid", "eventfd2", "timerfd_settime", "mmap", "munmap", "mremap", "mprotect", "madvise", "brk"}
HARMLESS |= {"sched_yield", "clock_nanosleep", "restart_syscall", "rt_sigprocmask", "getrandom"}


class Asker:
    """The process that asks: its thread is watched between two marks."""

    def __init__(self, store: Store, journal: Path, gate: tuple[int, int], frozen: tuple[int, int]) -> None:
        self.store, self.path, self.gate, self.frozen = store, journal, gate, frozen
        self.slowest = 0.0

    def run(self) -> None:
        """Put some records, then ask on while the device stands still, then see it move again."""
        self.journal = Journal(self.path)
        self.journal.ask(Ask.OPENED)
        self.numbers: dict[tuple[int, int], int] = {}
        self.reports: list[Report] = []
        tier = self.tier = self.store.open()
        for name in (1, 2, 3, 4):
            self._put(name, durable=True, timeout=None)
        while len(self.reports) < 4:
            self._take(1.0)
        os.write(self.gate[1], b"r")
        os.read(self.frozen[0], 1)
        before = len(self.reports)
        os.access("/mark of the frozen device", os.F_OK)
        names = [name for name in RECORDS.names if name > 4 and (RECORDS.parent(name) or 1) % 8 == 1][:ROUNDS]
        for name in names:
            self._timed(lambda name=name: self._put(name, durable=True, timeout=DEADLINE_SECONDS))
            self._timed(lambda: RECORDS.here(tier, 1))
            for wanted in (1, 9999):  # one that is there, and a miss
                item, _ = RECORDS.get(wanted)
                self._timed(lambda item=item: self._other(tier.get([item], timeout=DEADLINE_SECONDS)))
            self._timed(lambda: self._enter(tier.poll()))
        os.access("/mark of the frozen device", os.F_OK)
        started = time.monotonic()
        while not any(report.status == TierStatus.TIMEOUT for report in self.reports):
            woken = select.select([tier.event_fd], [], [], 5.0)[0]
            assert woken, "the event fd slept through a deadline"
            self._enter(tier.poll())
        woke = time.monotonic() - started
        while len(self.reports) < before + 3 * len(names) and time.monotonic() - started < 5:
            self._take(0.2)
        late = [report for report in self.reports if report.status == TierStatus.TIMEOUT]
        held = [report for report in late if not report.released]
        assert held, "nothing was under way"
        assert tier.usage().quarantined == len(held), (tier.usage(), len(held))
        words = f"slowest ask {1e3 * self.slowest:.2f} ms, {len(late)} timeouts, {len(held)} of them quarantined, "
        self.path.with_suffix(".words").write_text(words + f"woken {woke:.2f} s after the asks")
        os.write(self.gate[1], b"t")
        for _ in range(100):
            self._take(0.3)
            if tier.usage().quarantined == 0:
                break
        assert tier.usage().quarantined == 0
        while reports := tier.poll():  # the last calls may have come back behind the poll before
            self._enter(reports)
        assert sum(report.late for report in self.reports) == len(held), "each late call is told once"
        assert all(report.released for report in self.reports if report.late)
        assert tier.close(30)
        self.journal.ask(Ask.ENDED)

    def _timed(self, ask: object) -> None:
        started = time.perf_counter()
        ask()  # type: ignore[operator]
        self.slowest = max(self.slowest, time.perf_counter() - started)

    def _put(self, name: int, durable: bool, timeout: float | None) -> None:
        number = self.journal.ask(Ask.PUT, name, durable)
        self.numbers[self.tier.put([RECORDS.put(name, durable)], timeout=timeout), 0] = number

    def _other(self, batch: int) -> None:
        self.numbers[batch, 0] = -1

    def _take(self, seconds: float) -> None:
        self.tier.wait(seconds)
        self._enter(self.tier.poll())

    def _enter(self, reports: list[Report]) -> None:
        for report in reports:
            self.reports.append(report)
            number = self.numbers[report.batch, report.item]
            if number >= 0 and report.released:
                self.journal.answer(number, report.status)


def calls_between(lines: list[str], store: Path) -> dict[str, int]:
    """Count the calls of the asking thread between the marks, those on files of the store apart."""
    counts: dict[str, int] = {}
    inside = False
    for line in lines:
        if "mark of the frozen device" in line:
            inside = not inside
        elif inside and (match := re.match(r"(?:\d+ +)?(\w+)\(", line)):
            name = match[1] + " of the store" * (str(store) in line)
            counts[name] = counts.get(name, 0) + 1
    return counts


def blocking(counts: dict[str, int]) -> dict[str, int]:
    """Return those of the calls that could wait for a device."""
    return {name: count for name, count in counts.items() if name not in HARMLESS}


def still(folder: Path, engine: str, row: Row) -> None:
    """Freeze a file system under a tier and thaw it."""
    folder.mkdir(parents=True)
    with Mount("ext4", folder, 64) as mount:
        store = Store(mount.path / "store", 32 * MIB, MIB, engine, depth=4)
        follower = Checker(store, Model(RECORDS), folder / "journal", row)
        gate, frozen = os.pipe(), os.pipe()
        child = Child(Asker(store, follower.journal, gate, frozen).run)
        trace = Strace(child, folder / "trace", "-y", threads=False)
        child.go()
        is_frozen = False
        try:
            if select.select([gate[0]], [], [], 60)[0] and os.read(gate[0], 1) == b"r":
                mount.freeze()
                is_frozen = True
                os.write(frozen[1], b"f")
                select.select([gate[0]], [], [], 60)
        finally:
            if is_frozen:
                mount.thaw()
        row.failed += child.wait() != 0
        counts = calls_between(trace.lines(), store.path)
        row.failed += len(blocking(counts)) + (not counts)
        shown = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        row.notes.append(f"calls of the asking thread: {shown}")
        words = follower.journal.with_suffix(".words")
        if words.exists():
            row.notes.append(words.read_text())
        follower.check()
        for descriptor in (*gate, *frozen):
            os.close(descriptor)


def rows(folder: Path, engines: tuple[str, ...]) -> Iterator[Row]:
    """Run the part: each engine, and the count of calls once more with one that waits for a device among them."""
    reason = cannot_mount("ext4") or cannot_trace()
    for engine in engines:
        row = Row(f"frozen device, {engine}", skipped=reason)
        if not reason:
            still(folder / engine, engine, row)
        yield row
    mark, store = '1 access("/mark of the frozen device", F_OK) = 0', Path("/a_store")
    for name, call in (("sync", "1 fdatasync(7<x>) = 0"), ("write", "1 write(9</a_store/000000.region>, 8) = 8")):
        counts = calls_between([mark, call, mark], store)
        yield Row(f"a {name} by the asking thread", 1, failed=len(blocking(counts)), must_find=("failed",))
