# SPDX-License-Identifier: Apache-2.0
"""Damage to a store on purpose: one byte of one record, where it lies in its region file."""

from __future__ import annotations

import struct
from pathlib import Path

from hybridkv.errors import ArgumentError
from hybridkv.keys import BlockKeys
from hybridkv.tiers import RecordKind

_MAGIC = b"HKVR"
_KIND, _DIGEST, _SIZES = 6, 16, 88  # offsets in an envelope: docs/record-format.md


def longest_boundary(store: Path, keys: BlockKeys, unit_tokens: int) -> int:
    """Return the longest aligned length of a prefix that a store has a boundary record for, in tokens; 0: none."""
    files = [path.read_bytes() for path in _regions(store)]
    for unit in range(len(keys), 0, -1):
        if any(_find(data, RecordKind.BOUNDARY, keys.digests[unit - 1].tobytes()) >= 0 for data in files):
            return unit * unit_tokens
    return 0


def longest_tip(store: Path, keys: BlockKeys) -> tuple[int, bytes]:
    """Return the longest length inside a unit that a store has a record for, in tokens, and its digest; 0: none."""
    files = [path.read_bytes() for path in _regions(store)]
    unit_tokens = keys.unit_tokens
    for unit in range(len(keys), -1, -1):
        for length in range(min(unit_tokens - 1, keys.tokens - unit * unit_tokens), 0, -1):
            digest = keys._core.tip_key(unit, length)
            if any(_find(data, RecordKind.BOUNDARY, digest) >= 0 for data in files):
                return unit * unit_tokens + length, digest
    return 0, b""


def damage(store: Path, kind: RecordKind, digest: bytes) -> None:
    """Flip one bit in the middle of a record's payload.

    Parameters
    ----------
    store : Path
        Directory of a :class:`~hybridkv.DiskTier` that is not open.
    kind : RecordKind
    digest : bytes
        16 bytes, a row of :attr:`BlockKeys.digests <hybridkv.BlockKeys.digests>`, or of :func:`longest_tip`.

    Raises
    ------
    ArgumentError
        There is no such record.
    """
    found = False
    for path in _regions(store):
        data = path.read_bytes()
        at = _find(data, kind, digest)
        if at < 0:
            continue
        size, offset = struct.unpack_from("<QI", data, at + _SIZES)
        where = at + offset + size // 2
        with path.open("r+b") as file:
            file.seek(where)
            file.write(bytes([data[where] ^ 0x10]))
        found = True
    if not found:
        raise ArgumentError("digest", f"that of a {kind.name.lower()} record of {store}", digest.hex())


def _regions(store: Path) -> list[Path]:
    return sorted(store.glob("*.region"))


def _find(data: bytes, kind: RecordKind, digest: bytes) -> int:
    """Return where the envelope of a record begins; -1: nowhere."""
    at = data.find(digest)
    while at >= 0:
        start = at - _DIGEST
        if start >= 0 and data[start : start + 4] == _MAGIC and data[start + _KIND] == kind:
            return start
        at = data.find(digest, at + 1)
    return -1
