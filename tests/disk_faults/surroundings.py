# SPDX-License-Identifier: Apache-2.0
"""What else happens around a store: deleted under it, opened twice, without io_uring, with clocks that jump."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hybridkv as hk

from .checker import Checker, Row
from .journal import Journal, size_of
from .kills import KIB, grown
from .model import Model
from .processes import Child, Strace, cannot_trace, run
from .records import Records
from .writer import History, Store, Writer, live

RECORDS = Records(chains=8, blocks=6, most_bytes=24 * KIB)
SOURCES = Path(__file__).resolve().parents[2] / "csrc" / "tier"
_WALL_CLOCK = re.compile(r"system_clock|CLOCK_REALTIME|gettimeofday|\btime\s*\(|high_resolution_clock|utc_clock")


def follower(row: Row, folder: Path, engine: str = "threads") -> Checker:
    """Return the follower of a new store that is never full."""
    folder.mkdir(exist_ok=True)
    store = Store(folder / "store", 200 * 256 * KIB, 256 * KIB, engine)
    return Checker(store, Model(RECORDS), folder / "journal", row)


def lived(each: Checker, seed: int, body: Callable[[Callable[[], None]], None] | None = None) -> None:
    """Let a writer live and end; `body` is given its life and does something about it in its process."""

    def life() -> None:
        live(each.store, each.journal, RECORDS, History(seed, asks=120))

    each.row.failed += run(life if body is None else lambda: body(life)) != 0


# ---- deleted ---------------------------------------------------------------------------------------


def deleted(folder: Path) -> Row:
    """Delete the directory under a running tier: every answer is typed, no byte is wrong, a new store can be made."""
    row = Row("directory deleted under a running tier")
    for engine in ("threads", "uring"):
        each = follower(row, folder / engine, engine)
        if engine == "uring" and not has_uring(folder):
            row.notes.append("uring skipped: not to be had here")
            continue

        def body(each: Checker = each) -> None:
            journal = Journal(each.journal)
            tier = each.store.open()
            Writer(tier, journal, RECORDS, History(1, asks=100)).run()
            shutil.rmtree(each.store.path)
            Writer(tier, journal, RECORDS, History(2, asks=300)).run()
            if not tier.close(30):
                raise TimeoutError("not closed within 30 s")

        row.failed += run(body) != 0
        each.check(may_lose=True)
        row.failed += row.found != 0  # a new store, and empty
        lived(each, 3)
        each.check()
        row.failed += row.found == 0
    return row


# ---- opened twice ----------------------------------------------------------------------------------


def twice(folder: Path, *, locked: bool = True) -> Row:
    """Open a store that another process has: refused, and the lock goes with its owner. Without `locked` flock lies."""
    row = Row("two openers") if locked else Row("two openers, flock does nothing", must_find=("failed",))
    each = follower(row, folder / ("locked" if locked else "unlocked"))
    owner = Child(lambda: live(each.store, each.journal, RECORDS, History(1)))
    owner.go()
    grown(each.journal, 50)

    def second() -> None:
        try:
            each.store.open().close()
        except hk.TierError as error:
            assert error.field == "path" and str(each.store.path) in str(error), error
            return
        raise AssertionError("a second opener was let in")

    for _ in range(3):
        child = Child(second)
        trace = None
        if not locked:
            trace = Strace(child, folder / "trace", "-e", "trace=flock", "-e", "inject=flock:retval=0")
        child.go()
        row.failed += child.wait() != 0
        if trace is not None:
            trace.lines()
    before = size_of(each.journal)
    grown(each.journal, 20)
    row.failed += size_of(each.journal) == before  # the owner goes on
    owner.kill()
    row.failed += owner.wait() != -9
    started = time.monotonic()
    if locked:
        each.check()
        row.notes.append(f"opened and read {time.monotonic() - started:.1f} s after the owner was killed")
    return row


# ---- no io_uring -----------------------------------------------------------------------------------


def forbid_uring() -> None:
    """Make io_uring_setup fail with EPERM in this process from now on, as container runtimes do."""
    libc = ctypes.CDLL(None, use_errno=True)
    steps = ((0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000))
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    header = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program))
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.c_char_p(header), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def has_uring(folder: Path) -> bool:
    """Say whether io_uring is to be had here."""

    def body() -> None:
        Store(folder / "uring_there", 4 << 20, 1 << 20, "uring").open().close()

    return run(body) == 0


def without_uring(folder: Path, *, forbidden: bool = True) -> Row:
    """Forbid io_uring: the threads do its work, and who insists on it is told."""
    row = Row("io_uring forbidden") if forbidden else Row("io_uring not forbidden", must_find=("failed",))
    if not has_uring(folder):
        row.skipped = "io_uring is not to be had here anyway"
        return row
    each = follower(row, folder / f"forbidden_{forbidden}", "auto")

    def body(life: Callable[[], None]) -> None:
        if forbidden:
            forbid_uring()
        with each.store.open() as tier:
            assert tier.engine == "threads", tier.engine
        try:
            each.store.with_engine("uring").open().close()
            raise AssertionError("io_uring was there")
        except hk.TierError as error:
            assert error.field == "engine", error
        life()

    lived(each, 1, body)
    each.check()
    return row


# ---- clocks ----------------------------------------------------------------------------------------


def clocks(folder: Path) -> Row:
    """Move the steady clock forward and back between lives, and the times of the files to 1970 and 2100."""
    row = Row("clocks jump between lives")
    each = follower(row, folder / "clocks")
    days = 86400
    for number, offset in enumerate((0, 3650 * days, 1 * days, 0)):

        def body(life: Callable[[], None], offset: int = offset) -> None:
            _unshare_time()
            Path("/proc/self/timens_offsets").write_text(f"monotonic {offset} 0\n")
            moved = -time.monotonic()
            child = Child(lambda: _check_moved(moved, offset, life))  # the namespace is for children
            child.go()
            assert child.wait() == 0

        lived(each, number, body)
        for path in each.store.path.iterdir():
            stamp = (0, 4102444800)[number % 2]
            os.utime(path, (stamp, stamp))
        each.check()
    return row


def _may_move_time() -> bool:
    def body() -> None:
        try:
            _unshare_time()
        except OSError:
            os._exit(2)

    return Path("/proc/self/timens_offsets").exists() and run(body) == 0


def _unshare_time() -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(0x80):
        raise OSError(ctypes.get_errno(), "unshare")


def _check_moved(moved: float, offset: int, life: Callable[[], None]) -> None:
    assert abs(time.monotonic() + moved - offset) < 60, "the steady clock did not move"
    life()


def wall_clock(texts: dict[str, str]) -> list[str]:
    """Find sources that read a clock which people set."""
    found = []
    for name, text in texts.items():
        code = re.sub(r"//[^\n]*", "", text)
        found += [f"{name}: {match.group()}" for match in _WALL_CLOCK.finditer(code)]
    return found


def no_wall_clock() -> Iterator[Row]:
    """Read the sources: no wall clock. And once with one that is there."""
    texts = {path.name: path.read_text() for path in SOURCES.glob("*.*")}
    row = Row("sources without a wall clock", rounds=len(texts))
    row.notes += wall_clock(texts)
    row.failed = len(row.notes)
    yield row
    name = "tier.cpp"
    changed = {name: texts[name].replace("TierClock::now()", "std::chrono::system_clock::now()")}
    yield Row("a source with a wall clock", 1, failed=len(wall_clock(changed)), must_find=("failed",))


def rows(folder: Path) -> Iterator[Row]:
    """Run the part."""
    yield deleted(folder)
    yield twice(folder)
    if cannot_trace():
        yield Row("two openers, flock does nothing", skipped=cannot_trace())
    else:
        yield twice(folder, locked=False)
    yield without_uring(folder)
    yield without_uring(folder, forbidden=False)
    if _may_move_time():
        yield clocks(folder)
    else:
        yield Row("clocks jump between lives", skipped="time namespaces need root and a kernel that has them")
    yield from no_wall_clock()
