# SPDX-License-Identifier: Apache-2.0
"""File systems without room: from the start, from some point on, and with room again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hybridkv.tiers import TierStatus

from .checker import Checker, Row
from .journal import Ask, read_journal
from .kills import KIB
from .model import Model
from .mounts import MIB, Mount, cannot_mount
from .processes import Child, run
from .records import Records
from .writer import History, Store, live

RECORDS = Records(chains=24, blocks=8, most_bytes=48 * KIB)


def small(folder: Path, mebibytes: int, row: Row, seeds: range, *, early: bool = False) -> None:
    """Write more than a tmpfs holds: of three regions or more the oldest makes room, else nothing is evicted."""
    with Mount("tmpfs", folder, mebibytes) as mount:
        store = Store(mount.path / "store", 64 * MIB, MIB)
        kept = (mebibytes - 4) * MIB * 6 // 10
        model = Model(RECORDS, kept_bytes=kept if mebibytes > 4 else None, life_bytes=2 * MIB)
        follower = Checker(store, model, folder / "journal", row)
        for seed in seeds:
            history = History(seed, asks=200, removes=0.02, early=early)
            row.failed += run(lambda history=history: live(store, follower.journal, RECORDS, history)) != 0
            follower.check()
        regions = len(list(store.path.glob("*.region")))
        row.notes.append(f"{regions} of 64 regions")
        if mebibytes <= 4 and not row.refusals["NO_SPACE"]:
            row.failed += 1
            row.notes.append("nothing was refused")


def filled(folder: Path, kind: str, row: Row) -> None:
    """Take the room of a file system away before a writer lives on it, and give it back while it lives."""
    with Mount(kind, folder, 24) as mount:
        store = Store(mount.path / "store", 16 * MIB, MIB)
        # What cannot be preallocated meets its end in the middle of a region, and the oldest makes room.
        model = Model(RECORDS, kept_bytes=None if kind == "ext4" else MIB // 4, life_bytes=0)
        follower = Checker(store, model, folder / "journal", row)
        first = History(1, asks=20, removes=0.0)
        row.failed += run(lambda: live(store, follower.journal, RECORDS, first)) != 0
        follower.check()
        ballast = mount.fill(but=128 * KIB)
        second = History(2, asks=1500, removes=0.01)
        child = Child(lambda: live(store, follower.journal, RECORDS, second))
        child.go()
        released = 0
        while child.status is None and not released:
            steps, entries = read_journal(follower.journal, follower.entry)
            if sum(step.status == TierStatus.NO_SPACE for step in steps) >= 20:
                ballast.unlink()
                released = entries
            elif any(step.what == Ask.ENDED for step in steps):
                break
        row.failed += child.wait() != 0
        steps, _ = read_journal(follower.journal, follower.entry)
        after = [step for step in steps if step.what == Ask.PUT and released and step.asked > released + 200]
        taken = sum(step.status == TierStatus.OK for step in after)
        follower.check()
        row.notes.append(f"room again: {taken} of {len(after)} puts taken" if released else "never full")
        row.failed += not taken


def rows(folder: Path, lives: int) -> Iterator[Row]:
    """Run the part."""
    reason = cannot_mount("tmpfs")
    for mebibytes in (2, 12):
        row = Row(f"full tmpfs, {mebibytes} MiB", skipped=reason)
        if not reason:
            place = folder / str(mebibytes)
            place.mkdir()
            small(place, mebibytes, row, range(lives))
        yield row
    row = Row("full tmpfs, told OK when asked", must_find=("lost",), skipped=reason)
    if not reason:
        place = folder / "early"
        place.mkdir()
        small(place, 2, row, range(1), early=True)
    yield row


def long_rows(folder: Path) -> Iterator[Row]:
    """Run the part on loop mounts."""
    for kind in ("ext4", "ext2"):
        row = Row(f"full {kind}, room again" + ", not preallocated" * (kind == "ext2"), skipped=cannot_mount(kind))
        if not row.skipped:
            place = folder / kind
            place.mkdir()
            filled(place, kind, row)
        yield row
