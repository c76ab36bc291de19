# SPDX-License-Identifier: Apache-2.0
"""Power cuts: a mounted file system is shut down under a writer, without a flush of its log, and mounted again."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

from .checker import Checker, Row
from .journal import size_of
from .kills import KIB, grown
from .model import Model
from .mounts import Mount, cannot_mount
from .processes import Child, Strace, cannot_trace
from .records import Records
from .writer import History, Store, live

# Calls that say that they did it, and did nothing.
NO_SYNC = ("-e", "trace=fdatasync,fsync", "-e", "inject=fdatasync,fsync:retval=0")


def cut_down(folder: Path, kind: str, rounds: int, row: Row, engines: tuple[str, ...], *, syncs: bool = True) -> None:
    """Cut writers off, life after life on one store. Without `syncs` the kernel is never asked to sync."""
    records = Records(chains=24, blocks=8, most_bytes=48 * KIB)
    draw = random.Random(rounds)
    with Mount(kind, folder, 64 if kind == "ext4" else None) as mount:
        store = Store(mount.path / "store", 40 << 20, 1 << 20)
        region = store.region_bytes
        kept = (store.capacity_bytes // region - 4) * region * 6 // 10
        model = Model(records, kept_bytes=kept, life_bytes=2 * region)
        follower = Checker(store, model, folder / f"{row.part}.journal".replace(" ", "_"), row)
        for number in range(rounds):
            writing = store.with_engine(engines[number % len(engines)])
            history = History(number, at_a_time=draw.choice((1, 4, 24)), durable=0.5)
            child = Child(lambda writing=writing, history=history: live(writing, follower.journal, records, history))
            trace = None if syncs else Strace(child, folder / "trace", *NO_SYNC)
            child.go()
            grown(follower.journal, draw.randrange(10, 400))
            time.sleep(draw.uniform(0, 0.01))
            # Before the call: while it is under way, xfs may say that it synced what it did not.
            cut_at = size_of(follower.journal)
            mount.cut()
            time.sleep(0.05)  # the writer meets it
            child.kill()
            row.failed += child.wait() is None
            if trace is not None:
                trace.lines()
            mount.unmount()
            mount.mount()
            follower.check(cut_at=cut_at)


def rows(folder: Path, rounds: int, engines: tuple[str, ...]) -> Iterator[Row]:
    """Run the part: ext4 and xfs, the engines in turn, and each once without its guard."""
    for kind in ("ext4", "xfs"):
        row = Row(f"power cut, {kind}")
        control = Row(f"power cut, {kind}, syncs do nothing", must_find=("lost", "returned"))
        row.skipped = cannot_mount(kind)
        control.skipped = row.skipped or cannot_trace()
        if not row.skipped:
            place = folder / kind
            place.mkdir()
            cut_down(place, kind, rounds, row, engines)
        if not control.skipped:
            place = folder / f"{kind}_unsynced"
            place.mkdir()
            cut_down(place, kind, max(5, rounds // 4), control, ("threads",), syncs=False)
        yield row
        yield control
