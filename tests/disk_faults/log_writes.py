# SPDX-License-Identifier: Apache-2.0
"""Every state that a power cut could leave: the writes of a device, logged by dm-log-writes, replayed up to each flush
and with random subsets of what was not flushed.

The device mapper is that of a User-Mode Linux, so that the machine's own kernel needs none.
"""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .checker import Checker, Row
from .guest import RECORDS, store_at
from .journal import read_journal
from .model import Model
from .mounts import MIB, Mount, cannot_mount

_MAGIC = 0x6A736677736872
_FLUSH, _FUA, _DISCARD, _MARK = 1, 2, 4, 8
_SECTOR = 512
MODULES = Path("/usr/lib/uml/modules")
KERNEL = "linux.uml"
BOOT_SECONDS = 300

_INIT = """#!/bin/sh
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmp /tmp
mount -t hostfs -o {shared} shared /mnt
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
{{
busybox insmod {modules}/dm-mod.ko && busybox insmod {modules}/dm-log-writes.ko && cd {root} &&
export OPENBLAS_NUM_THREADS=1 PYTHONPATH={path} PYTHONDONTWRITEBYTECODE=1 &&
{python} -m tests.disk_faults.guest /mnt {mode} {asks} &&
echo done > /mnt/done
}} > /mnt/words 2>&1
sync
busybox poweroff -f
"""


class NoMachine(Exception):
    """There is a User-Mode Linux, and it does not start."""


@dataclass
class Entry:
    """One entry of the log: a write, a flush, a discard or a mark."""

    sector: int
    count: int
    flags: int
    data: bytes

    @property
    def mark(self) -> int | None:
        """Return the number of journal entries that a mark stands for."""
        if not self.flags & _MARK or not self.data.startswith(b"entry_"):
            return None
        return int(self.data.rstrip(b"\0").split(b"_")[1])


def read_log(image: Path) -> list[Entry]:
    """Return the entries of a log of writes."""
    data = memoryview(image.read_bytes())
    magic, _, entries, sector_bytes = struct.unpack_from("<QQQI", data, 0)
    if magic != _MAGIC:
        raise ValueError("no log of writes")
    out, at = [], sector_bytes
    for _ in range(entries):
        sector, count, flags, size = struct.unpack_from("<QQQQ", data, at)
        if flags & _MARK:
            out.append(Entry(sector, 0, flags, bytes(data[at + 32 : at + 32 + size])))
            at += sector_bytes
            continue
        at += sector_bytes
        # In sectors of 512 bytes, whatever the log's own are.
        length = 0 if flags & _DISCARD else count * _SECTOR
        out.append(Entry(sector, count, flags, bytes(data[at : at + length])))
        at += (length + sector_bytes - 1) // sector_bytes * sector_bytes
    return out


def write_log(folder: Path, *, syncs: bool, asks: int) -> list[Entry]:
    """Start the User-Mode Linux on two new images and return what it logged."""
    modules = next(MODULES.rglob("dm-log-writes.ko")).parent
    for name, size in (("data", 24), ("log", 256)):
        with (folder / name).open("wb") as file:
            file.truncate(size * MIB)
    root = Path(__file__).resolve().parents[2]
    path = ":".join(str(Path(each).resolve()) for each in sys.path if each and "site-packages" not in each)
    values = {"shared": folder, "modules": modules, "root": root, "path": path, "python": sys.executable}
    init = folder / "init"
    init.write_text(_INIT.format(**values, mode="syncs" if syncs else "nothing", asks=asks))
    init.chmod(0o755)
    machine = [
        "mem=512M",
        "rootfstype=hostfs",
        "rootflags=/",
        "ro",
        f"init={init}",
        "con=null",
        "con0=null,fd:1",
        "quiet",
    ]
    images = [f"ubda={folder / 'data'}", f"ubdb={folder / 'log'}"]
    done = subprocess.run(
        [KERNEL, *machine, *images], stdin=subprocess.DEVNULL, capture_output=True, timeout=BOOT_SECONDS, cwd=folder
    )
    words = folder / "words"
    if not words.exists():
        raise NoMachine(f"User-Mode Linux does not start here: {done.stdout.decode(errors='replace')[-300:]}")
    if not (folder / "done").exists():
        raise RuntimeError(f"the writer in User-Mode Linux did not end well:\n{words.read_text()[-2000:]}")
    return read_log(folder / "log")


class Replayed:
    """States of the device, each mounted and read."""

    def __init__(self, folder: Path, journal: Path, row: Row) -> None:
        self.mount = Mount("ext4", folder, 24)
        self.journal, self.row = journal, row

    def state(self, image: bytes | bytearray, entries: int) -> None:
        """Hold a state of the device against the journal as it was then: so many entries, and one more perhaps."""
        self.mount.unmount()
        self.mount.image.write_bytes(image)
        self.mount.mount()
        cut = self.journal.with_name("journal_then")
        size = self.journal.stat().st_size // len_of_all(self.journal)
        cut.write_bytes(self.journal.read_bytes()[: (entries + 1) * size])
        store = store_at(self.mount.path)
        Checker(store, Model(RECORDS), cut, self.row).check(cut_at=entries)


def len_of_all(journal: Path) -> int:
    """Return the number of entries."""
    return read_journal(journal)[1]


def apply(image: bytearray, entry: Entry) -> None:
    """Do to the image what the entry did to the device."""
    at = entry.sector * _SECTOR
    if entry.flags & _DISCARD:
        image[at : at + entry.count * _SECTOR] = bytes(entry.count * _SECTOR)
    elif not entry.flags & _MARK:
        image[at : at + len(entry.data)] = entry.data


def replay(folder: Path, log: list[Entry], row: Row, subsets: int) -> None:
    """Check the state at each flush or forced write since the writer began, and random subsets of what came after."""
    image = bytearray(24 * MIB)
    begin = next(index for index, entry in enumerate(log) if entry.flags & _MARK and entry.data.startswith(b"begin"))
    for entry in log[:begin]:
        apply(image, entry)
    draw = random.Random(len(log))
    waiting: list[Entry] = []  # written since the last flush
    told, before, points = 0, 0, 0
    replayed = Replayed(folder, folder / "journal", row)
    try:
        for entry in log[begin:]:
            if entry.mark is not None:
                told = entry.mark
            elif entry.flags & _MARK:
                continue
            elif entry.flags & (_FLUSH | _FUA):
                points += 1
                before = before if waiting else told
                replayed.state(image, before)
                for _ in range(subsets if waiting else 0):
                    torn = bytearray(image)
                    for each in draw.sample(waiting, draw.randrange(len(waiting) + 1)):
                        apply(torn, each)
                    replayed.state(torn, before)
                for each in (*waiting, entry):
                    apply(image, each)
                waiting.clear()
                before = told
            else:
                if not waiting:
                    before = told
                waiting.append(entry)
    finally:
        replayed.mount.unmount()
    row.notes.append(f"{len(log) - begin} entries of the log, {points} flushes and forced writes")


def cannot_run() -> str:
    """Say why there is no User-Mode Linux with a device mapper here; empty where there is."""
    for program in (KERNEL, "busybox", "dmsetup", "blockdev"):
        if shutil.which(program, path="/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin") is None:
            return f"{program} is absent (apt user-mode-linux busybox-static dmsetup)"
    if next(MODULES.rglob("dm-log-writes.ko"), None) is None:
        return "no dm-log-writes for User-Mode Linux"
    return cannot_mount("ext4")


def rows(folder: Path, asks: int, subsets: int) -> Iterator[Row]:
    """Run the part: with syncs, and with syncs that do nothing."""
    reason = cannot_run()
    for syncs in (True, False):
        row = Row("states of the device at each flush", skipped=reason)
        if not syncs:
            row = Row("states of the device, syncs do nothing", skipped=reason, must_find=("lost", "returned"))
        if not reason:
            place = folder / ("syncs" if syncs else "nothing")
            place.mkdir()
            try:
                log = write_log(place, syncs=syncs, asks=asks)
            except NoMachine as error:
                row.skipped = reason = str(error)
            else:
                replay(place, log, row, subsets)
        yield row
