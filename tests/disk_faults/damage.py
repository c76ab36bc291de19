# SPDX-License-Identifier: Apache-2.0
"""Region files changed under a closed store: flipped bytes, cut ends, missing files, forgeries."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from .checker import Checker, Row
from .kills import KIB
from .model import Model
from .processes import run
from .records import Records
from .writer import History, Store, live

_UNIT = 4096
_MAGIC = b"HKVR"
_FIXED, _ENTRY, _CRC_AT = 128, 32, 124


class Damaged:
    """A sound store, copied before each change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records = Records(chains=4, blocks=3, most_bytes=6 * KIB)
        self.sound = Store(folder / "sound", 64 * 64 * KIB, 64 * KIB)
        self.store = Store(folder / "store", self.sound.capacity_bytes, 64 * KIB)
        self.journal = folder / "journal"
        run(lambda: live(self.sound, self.journal, self.records, History(5, asks=60, gets=0.0)))
        self.regions = sorted(path.name for path in self.sound.path.glob("*.region"))

    def with_change(self, row: Row, region: str, data: bytes | None) -> None:
        """Open the store with a region file replaced, or removed, and read everything."""
        shutil.rmtree(self.store.path, ignore_errors=True)
        shutil.copytree(self.sound.path, self.store.path)
        if data is None:
            (self.store.path / region).unlink()
        else:
            (self.store.path / region).write_bytes(data)
        Checker(self.store, Model(self.records), self.folder / "no_journal", row).check(may_lose=True)

    def content(self, region: str) -> bytes:
        """Return a region file as it should be."""
        return (self.sound.path / region).read_bytes()

    def records_in(self, region: str) -> list[int]:
        """Return where records begin that have a payload."""
        data = self.content(region)
        starts = [at for at in range(_UNIT, len(data), _UNIT) if data[at : at + 4] == _MAGIC]
        return [at for at in starts if int.from_bytes(data[at + 100 : at + 104], "little")]


def crc32c(data: bytes) -> int:
    """Return the checksum of records, the slow way."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def forged(data: bytes, at: int) -> bytes:
    """Flip a bit of a record's first part and make all its checksums agree: what a tier without them would let pass."""
    out = bytearray(data)
    payload = at + int.from_bytes(out[at + 96 : at + 100], "little")
    entry = at + _FIXED
    size = int.from_bytes(out[entry + 24 : entry + 32], "little")
    out[payload] ^= 1
    out[entry + 12 : entry + 16] = crc32c(bytes(out[payload : payload + size])).to_bytes(4, "little")
    parts = int.from_bytes(out[at + 100 : at + 104], "little")
    covered = bytes(out[at : at + _CRC_AT]) + bytes(out[entry : entry + _ENTRY * parts])
    out[at + _CRC_AT : at + _CRC_AT + 4] = crc32c(covered).to_bytes(4, "little")
    return bytes(out)


def rows(folder: Path, changes: int) -> Iterator[Row]:
    """Run the part: so many flips and cuts."""
    damaged = Damaged(folder)
    draw = random.Random(changes)
    row = Row("a byte of a region file flipped")
    for number in range(changes):
        region = draw.choice(damaged.regions)
        data = bytearray(damaged.content(region))
        starts = damaged.records_in(region)
        # A third each: anywhere, in an envelope, in the first bytes of a payload.
        base = draw.choice(starts) if starts and number % 3 else 0
        at = draw.randrange(len(data)) if base == 0 else base + (number % 3 - 1) * _UNIT + draw.randrange(192)
        data[at % len(data)] ^= 1 << draw.randrange(8)
        damaged.with_change(row, region, bytes(data))
    yield row
    row = Row("a region file cut short")
    for _ in range(changes // 4):
        region = draw.choice(damaged.regions)
        data = damaged.content(region)
        damaged.with_change(row, region, data[: draw.randrange(len(data))])
    yield row
    row = Row("a region file removed")
    for region in damaged.regions:
        damaged.with_change(row, region, None)
    yield row
    row = Row("a byte flipped and every checksum made to agree", must_find=("wrong",))
    region = next(region for region in damaged.regions if damaged.records_in(region))
    for at in damaged.records_in(region):
        damaged.with_change(row, region, forged(damaged.content(region), at))
    yield row
