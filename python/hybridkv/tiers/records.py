# SPDX-License-Identifier: Apache-2.0
"""What is asked of a tier and what it answers: names of records, parts, items, statuses, reports, counts.

``docs/record-format.md`` tells what a record is, to the byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

import numpy.typing as npt

from hybridkv.arguments import integer
from hybridkv.errors import ArgumentError

_NONE = bytes(16)
_Member = TypeVar("_Member", bound=IntEnum)


class RecordKind(IntEnum):
    """Kinds of record that can be asked for."""

    BLOCK = 1
    """The history and indexer pages of one block, shared by every boundary above it."""
    BOUNDARY = 2
    """What a resume exactly at one length needs besides: windows, chunks, checkpoints, a tip's partial pages."""


class TierStatus(IntEnum):
    """What became of an item."""

    OK = 0
    MISS = 1
    """No such record; of a put: its parent is not there. Not an error."""
    BUSY = 2
    NO_SPACE = 3
    """The tier or its file system is full; nothing was lost."""
    CORRUPT = 4
    """A record was there and was not what it said: it is dropped and counted."""
    MISMATCH = 5
    """A sound record, of another key or format, or without a part that was asked for."""
    TIMEOUT = 6
    """The deadline passed. Where the report says ``released=False`` another follows."""
    UNAVAILABLE = 7
    """The circuit breaker is open, or the tier cannot be reached."""
    IO_ERROR = 8
    INVALID = 9
    """The ask itself: repeated labels, no bytes, too large, a key that names nothing."""
    CANCELLED = 10
    CLOSED = 11
    READ_ONLY = 12
    """Writes were given up after repeated failure; reads go on."""
    DECLINED = 13
    """Of a put: there is room, and write admission leaves the record out; nothing was lost."""


class Damage(IntEnum):
    """Why bytes are not the record that was asked for, of a ``CORRUPT`` or ``MISMATCH``."""

    NONE = 0
    SHORT = 1
    MAGIC = 2
    VERSION = 3
    HEADER = 4
    EPOCH = 5
    FOREIGN = 6
    FORMAT = 7
    PARTS = 8
    CONTENT = 9


class Priority(IntEnum):
    """Whom a get is for: a request that waits, one that will, or nobody yet."""

    DEMAND = 0
    PREFETCH = 1
    WRITE = 2


class Answer(IntEnum):
    """What a tier knows of a key without any I/O."""

    ABSENT = 0
    HERE = 1
    OTHER_FORMAT = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class RecordKey:
    """The name of a record.

    Parameters
    ----------
    digest : bytes
        16 bytes: key of the block's last unit, or of the unit or tip that ends at the boundary. Not all zeros.
    format : bytes
        16 bytes: fingerprint of how the bytes of this kind of record are laid out.
    kind : RecordKind
        Block or boundary.

    Raises
    ------
    ArgumentError
        Anything else.
    """

    digest: bytes
    format: bytes
    kind: RecordKind = RecordKind.BLOCK

    def __post_init__(self) -> None:
        _sixteen("digest", self.digest)
        _sixteen("format", self.format)
        if self.digest == _NONE:
            raise ArgumentError("digest", "16 bytes that are not all zero", "zeros")
        object.__setattr__(self, "kind", chosen("kind", RecordKind, self.kind))

    def _core(self) -> tuple[bytes, bytes, int]:
        return self.digest, self.format, int(self.kind)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Bytes of one page: source of a put, target of a get.

    Parameters
    ----------
    data : numpy.ndarray
        C-contiguous, of any dtype; of a get writable. It is the tier's from the ask until the report that releases it:
        of a put it must not change meanwhile, of a get it must not be read.
    group : int
        Index of the cache group in the spec, below 2^16.
    layer : int
        Index of the pool's array, below 2^16; 0 where a pool is one array.
    block : int
        The group's own block, counted from the start of the prefix, below 2^32.
    rows : int
        Rows that the page attests, below 2^32; 0: the whole page.

    Raises
    ------
    ArgumentError
        A label out of range. Arrays are checked when they are asked with.
    """

    data: npt.NDArray[Any]
    group: int
    layer: int = 0
    block: int = 0
    rows: int = 0

    def __post_init__(self) -> None:
        for field, bits in (("group", 16), ("layer", 16), ("block", 32), ("rows", 32)):
            value = getattr(self, field)
            object.__setattr__(self, field, _below(field, value, bits))


@dataclass(frozen=True, slots=True, eq=False)
class PutItem:
    """A record to keep.

    Parameters
    ----------
    key : RecordKey
        Its name. A put of an existing key is ``OK`` and changes nothing.
    parts : tuple of Part
        Its bytes.
    parent : bytes, optional
        Digest of the block record below it. A tier that knows parents takes the record only while that is there
        (else ``MISS``) and drops it with it.
    identity : bytes
        16 bytes, for people.
    tokens : int
        Length of the prefix that ends with the record.
    flags : int
        The caller's own 8 bits; :meth:`Tier.look` gives them back.
    pinned : bool
        The tier keeps it as long as it can.
    durable : bool
        ``OK`` only once it survives a power cut; ``INVALID`` where the tier is not durable.

    Raises
    ------
    ArgumentError
        A field of another type or out of range.
    """

    key: RecordKey
    parts: tuple[Part, ...]
    parent: bytes | None = None
    identity: bytes = _NONE
    tokens: int = 0
    flags: int = 0
    pinned: bool = False
    durable: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.key, RecordKey):
            raise ArgumentError("key", "a RecordKey", self.key)
        if self.parent is not None:
            _sixteen("parent", self.parent)
        _sixteen("identity", self.identity)
        object.__setattr__(self, "tokens", _below("tokens", self.tokens, 63))
        object.__setattr__(self, "flags", _below("flags", self.flags, 8))


@dataclass(frozen=True, slots=True, eq=False)
class GetItem:
    """A record, and where any of its parts shall go, in any order; no part: whether it is there and sound.

    Parameters
    ----------
    key : RecordKey
        Its name.
    parts : tuple of Part
        Each found by its label, its array of the size that the record has.
    """

    key: RecordKey
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.key, RecordKey):
            raise ArgumentError("key", "a RecordKey", self.key)


@dataclass(frozen=True, slots=True)
class Report:
    """What became of one item of a batch.

    Attributes
    ----------
    batch : int
        What the ask returned.
    item : int
        Index in the batch.
    status : TierStatus
        Once an item.
    damage : Damage
        Of ``CORRUPT`` and ``MISMATCH``.
    released : bool
        The item's arrays are the caller's again. False for a ``TIMEOUT`` of a call that is still under way.
    late : bool
        The second report behind such a ``TIMEOUT``: the call ended, and the status is what became of it.
    """

    batch: int
    item: int
    status: TierStatus
    damage: Damage
    released: bool
    late: bool


@dataclass(frozen=True, slots=True)
class Presence:
    """What a tier knows of a key without any I/O; ``flags`` are those of the put."""

    answer: Answer
    flags: int


@dataclass(frozen=True, slots=True)
class TierUsage:
    """What a tier holds, has under way, and has counted since it was opened.

    ``quarantined`` are late calls whose arrays are not released;
    ``refused`` counts items that were answered INVALID, NO_SPACE, DECLINED, UNAVAILABLE, BUSY or READ_ONLY;
    ``put_known`` puts whose record was there already; ``reclaimed`` records that made room for others. ``arenas`` are
    registered now, ``arenas_fixed`` of them with the engine of a disk tier, whose requests need not look for their
    pages each time;
    ``fixed_requests`` counts those that did not, ``arena_reads`` the reads of gets into arenas among them.
    """

    records: int
    bytes: int
    capacity_bytes: int
    queued: int
    running: int
    quarantined: int
    hits: int
    misses: int
    corrupt: int
    mismatched: int
    timeouts: int
    puts: int
    put_known: int
    removed: int
    reclaimed: int
    refused: int
    io_errors: int
    breaker_opened: int
    bytes_read: int
    bytes_written: int
    arenas: int
    arenas_fixed: int
    fixed_requests: int
    arena_reads: int
    breaker_open: bool
    read_only: bool


def chosen(field: str, kind: type[_Member], value: Any) -> _Member:
    """Return the member of an enumeration, given it or its number."""
    try:
        return kind(value)
    except ValueError:
        raise ArgumentError(field, f"one of {[member.name for member in kind]}", value) from None


def _sixteen(field: str, value: object) -> None:
    if not isinstance(value, bytes) or len(value) != 16:
        got = f"{len(value)} bytes" if isinstance(value, bytes) else type(value).__name__
        raise ArgumentError(field, "16 bytes", got)


def _below(field: str, value: object, bits: int) -> int:
    expected = f"an integer in [0, 2^{bits})"
    number = integer(field, value, expected)
    if not 0 <= number < 1 << bits:
        raise ArgumentError(field, expected, value)
    return number
