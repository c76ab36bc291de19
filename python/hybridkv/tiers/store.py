# SPDX-License-Identifier: Apache-2.0
"""A disk tier's directory, read from outside: its files, regions and records, and whether its bytes are right."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from hybridkv import _core
from hybridkv.arguments import count, flag
from hybridkv.tiers.disk import ENGINES, Recovered, directory_path, index_of
from hybridkv.tiers.records import Damage, RecordKey, RecordKind
from hybridkv.tiers.writers_file import writers_at

FILES = ("superblock", "draft", "region", "unknown", "writers", "set_aside")
STATES = ("sealed", "open", "given_up", "empty", "foreign", "damaged")
STANDINGS = ("live", "superseded", "removed", "orphan", "tombstone")
PLACES = ("superblock", "file", "header", "footer", "envelope", "part", "fill")


@dataclass(frozen=True, slots=True)
class Flaw:
    """Bytes that are not what they should be.

    Attributes
    ----------
    at : str
        "superblock"; of a region "file" (too short, or unreadable outside of records), "header", "footer"; of a record
        "envelope", "part"; "fill": zeros that are none, of any of them, where no content is touched.
    damage : str
        Name of a :class:`~hybridkv.tiers.Damage` in small letters, or that of an errno, such as "EIO", where the device
        could not read.
    offset : int
        In the file, where what is wrong begins.
    part : int or None
        Index in the record's part table.
    """

    at: str
    damage: str
    offset: int
    part: int | None


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """One record as it lies in a region.

    Attributes
    ----------
    key : RecordKey
        Its name; of a tombstone that of the record that it removes.
    standing : str
        "live": can be asked for. Else why not: "superseded" by a later record of the key, "removed" by a later
        tombstone of it or of what it stands on, "orphan" without the block record that it stands on. Or "tombstone".
    parent, identity : bytes
        16 bytes each; zeros: none.
    tokens, payload_bytes, parts : int
        Length of the prefix; bytes and number of the parts. 0 where the envelope is damaged.
    offset, bytes : int
        Place in the file and what it takes there, fills included.
    flags : int
        The writer's own.
    pinned : bool
    above : int
        Of a live one with flaws: records that stand on it, and go with it.
    flaws : tuple of Flaw
    """

    key: RecordKey
    standing: str
    parent: bytes
    identity: bytes
    tokens: int
    payload_bytes: int
    parts: int
    offset: int
    bytes: int
    flags: int
    pinned: bool
    above: int
    flaws: tuple[Flaw, ...]

    @property
    def readable(self) -> bool:
        """Whether nothing of what a get reads and compares is wrong, as far as it was read here.

        A get may read up to the end of a unit, so a fill has to be there; what is in it is not looked at.
        """
        return all(flaw.at == "fill" and flaw.damage == "content" for flaw in self.flaws)


@dataclass(frozen=True, slots=True)
class StoredRegion:
    """One region file.

    Attributes
    ----------
    at : int
        Its place among the store's regions.
    file : str
    epoch : int
        Of its life; 0: none yet, or none that can be told.
    bytes : int
        Length of the file.
    state : str
        "sealed" with a footer; "open" without, so that it was read record by record; "given_up" after an I/O error;
        "empty"; "foreign", of another store or number; "damaged", without header and footer.
    header_bytes, footer_bytes, torn_bytes : int
        Taken by its header, its footer, and records that are not whole.
    torn, stale : int
        Records that a scan found not whole, and of a former life.
    records : tuple of StoredRecord
        By offset.
    flaws : tuple of Flaw
        Outside of records.
    """

    at: int
    file: str
    epoch: int
    bytes: int
    state: str
    header_bytes: int
    footer_bytes: int
    torn_bytes: int
    torn: int
    stale: int
    records: tuple[StoredRecord, ...]
    flaws: tuple[Flaw, ...]

    def bytes_of(self, record: StoredRecord) -> int:
        """Bytes of the record that the file has."""
        return max(0, min(record.offset + record.bytes, self.bytes) - record.offset)


@dataclass(frozen=True, slots=True)
class StoreFile:
    """A name in the directory.

    Attributes
    ----------
    name : str
    kind : str
        "superblock", "draft" (of it or of "writers"), "region", "writers", "set_aside" (a "writers" that could not be
        read) or "unknown".
    bytes : int
    error : str or None
        Name of an errno, where it is no regular file or cannot be opened.
    """

    name: str
    kind: str
    bytes: int
    error: str | None


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A row of a record's part table."""

    group: int
    layer: int
    block: int
    rows: int
    offset: int
    bytes: int
    crc: int


class Store:
    """A look at a store that changes nothing on disk.

    While it is open it holds the store: a tier cannot open it, and it cannot be had while a tier has it. What it calls
    live is what the next opening will find, given a capacity for the regions that are there.

    Parameters
    ----------
    path : path-like
        The directory.
    engine, direct, depth
        As of :class:`DiskTier`.

    Attributes
    ----------
    layout_version : int
    name : bytes
        16 bytes, drawn when the store was made.
    region_bytes : int
    recovered : Recovered
        What opening it finds.
    index_bytes : int
        Memory of its index.
    files : tuple of StoreFile
    flaws : tuple of Flaw
        Of the superblock.
    writers : WritersFound
        Manifests of who wrote into it, as far as its file has them, and what is wrong with the file.

    Raises
    ------
    TierError
        There is no store; it is open elsewhere, of a newer version, or cannot be read.
    ArgumentError
        An argument out of range.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, engine: str = "auto", direct: bool = True, depth: int = 16
    ) -> None:
        number = index_of("engine", ENGINES, engine)
        self.path = directory_path(path)
        self._core = _core.StoreWalk(self.path, number, flag("direct", direct), count("depth", depth))
        self.layout_version, self.name, self.region_bytes, flaws = self._core.superblock()
        self.flaws = _flaws(flaws)
        self.recovered = Recovered(**self._core.recovered())
        self.index_bytes: int = self._core.index_bytes()
        self.files = tuple(
            StoreFile(name, FILES[kind], size, errno.errorcode.get(error, str(error)) if error else None)
            for name, kind, size, error in self._core.files()
        )
        self.writers = writers_at(self.path)

    def __len__(self) -> int:
        """Return the number of regions."""
        return int(self._core.regions())

    def regions(self, *, every_byte: bool = False) -> Iterator[StoredRegion]:
        """Read the regions one after another.

        Parameters
        ----------
        every_byte : bool
            Read and compare all that is there. Default: headers, footers and envelopes alone.

        Yields
        ------
        StoredRegion

        Raises
        ------
        TierError
            A header or footer cannot be read.
        """
        for at in range(len(self)):
            yield _region(at, self._core.read(at, every_byte))

    def parts(self, region: StoredRegion, record: StoredRecord) -> tuple[StoredPart, ...]:
        """Return the part table of a record; empty where its envelope is damaged."""
        return tuple(StoredPart(*row) for row in self._core.parts(region.at, record.offset))

    def lost_with(self, keys: Sequence[RecordKey]) -> int:
        """Count the live records that go with these: themselves and what stands on them, each once."""
        return int(self._core.lost_with([(key.digest, key.format, int(key.kind)) for key in keys]))

    def close(self) -> None:
        """Let go of the store. Idempotent."""
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _flaws(rows: Sequence[tuple[int, int, int, int | None, int]]) -> tuple[Flaw, ...]:
    return tuple(
        Flaw(PLACES[at], errno.errorcode.get(error, str(error)) if error else Damage(damage).name.lower(), offset, part)
        for at, damage, error, part, offset in rows
    )


def _record(row: tuple[Any, ...]) -> StoredRecord:
    (
        digest,
        form,
        kind,
        standing,
        parent,
        identity,
        tokens,
        payload,
        parts,
        offset,
        size,
        flags,
        pinned,
        above,
        flaws,
    ) = row
    key = RecordKey(digest, form, RecordKind(kind))
    found = _flaws(flaws)
    return StoredRecord(
        key, STANDINGS[standing], parent, identity, tokens, payload, parts, offset, size, flags, pinned, above, found
    )


def _region(at: int, row: tuple[Any, ...]) -> StoredRegion:
    file, epoch, size, state, header, footer, torn_bytes, torn, stale, records, flaws = row
    found = tuple(_record(record) for record in records)
    return StoredRegion(
        at, file, epoch, size, STATES[state], header, footer, torn_bytes, torn, stale, found, _flaws(flaws)
    )
