# SPDX-License-Identifier: Apache-2.0
"""Small disk stores with known records, what is done to their files, and what a tier then finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hybridkv as hk
from hybridkv import cli
from hybridkv.tiers import GetItem, RecordKind, Store
from tier_support import Asker, key, parts, record, room

REGION = 64 << 10
UNIT = 4096
SIZES = (64, 4096, 100)  # of a record's parts: 3 units with its envelope
PARTS_AT = (0, 64, 64 + 4096)  # in its payload


def open_tier(path: Path, regions: int = 8) -> hk.DiskTier:
    return hk.DiskTier(path, regions * REGION, region_bytes=REGION)


def fill(ask: Asker) -> None:
    """Blocks 1 to 3 one above the other, a boundary on 2, and 4, which is removed again with 5 above it."""
    for name in range(1, 6):
        below = key(name - 1).digest if name > 1 else None
        item = record(name, tokens=256 * name, parent=below, pinned=name == 1, identity=b"i" * 16, flags=name)
        assert ask.put(item) == "OK"
    assert ask.put(record(2, kind=RecordKind.BOUNDARY, tokens=512, parent=key(2).digest)) == "OK"
    assert ask.remove(key(4)) == "OK"


def call(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> tuple[int, Any]:
    code = cli.main([*map(str, argv), "--json"])
    printed = capsys.readouterr()
    return code, json.loads(printed.out) if printed.out else printed.err


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def content(path: Path) -> dict[str, tuple[bytes, int]]:
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.iterdir()}


def where(path: Path, name: int, kind: RecordKind = RecordKind.BLOCK) -> tuple[Path, int]:
    """Region file and offset of a record."""
    with Store(path) as opened:
        for region in opened.regions():
            for found in region.records:
                if found.key == key(name, kind) and found.standing != "tombstone":
                    return path / region.file, found.offset
    raise AssertionError(f"no record {name}")


def statuses(path: Path) -> dict[tuple[int, str], str]:
    """What a tier answers to a get of each record that it has, or had."""
    out = {}
    with open_tier(path) as tier:
        ask = Asker(tier)
        for name, kind in [(name, RecordKind.BLOCK) for name in range(5, 0, -1)] + [(2, RecordKind.BOUNDARY)]:
            report = ask.last(tier.get([GetItem(key(name, kind), parts(room()))]))
            out[name, kind.name.lower()] = report.status.name
    return out


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def make_newer(store: Path) -> Path:
    data = bytearray((store / "superblock").read_bytes())
    data[4:8] = (2).to_bytes(4, "little")
    data[32:36] = crc32c(data[:32]).to_bytes(4, "little")
    (store / "superblock").write_bytes(data)
    return store
