# SPDX-License-Identifier: Apache-2.0
"""What became of a transfer, and of everything that was handed to a tier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hybridkv.tiers import TierStatus
from hybridkv.verdict import Why

LACKING = {-1: "states", -2: "history"}  # of what memory lacked, by the core's number

LOST = frozenset(
    {
        TierStatus.CORRUPT,
        TierStatus.MISMATCH,
        TierStatus.TIMEOUT,
        TierStatus.UNAVAILABLE,
        TierStatus.IO_ERROR,
        TierStatus.INVALID,
        TierStatus.CLOSED,
        TierStatus.READ_ONLY,
    }
)
"""What a record may come to that was to be stored, apart from room, admission, a lacking parent and cancellation."""


@dataclass(frozen=True)
class TransferResult:
    """What became of a transfer.

    Attributes
    ----------
    status : TierStatus
        OK, or that of the first record that failed; CANCELLED. BUSY where a restore loaded what it could, and another
        request that was loading or computing the rest did not bring it in time, or gave it up: match again.
    tokens : int
        The longest of ``boundaries``, or 0.
    records, stored : int
        Records that were to move, and that did.
    bytes : int
        Bytes of those that did.
    why : Why or None
        Of a restore that failed: INTEGRITY where the record was damaged, torn, gone or could not be read, and so says
        the next match until the block is computed again; also where the tier was out of reach or too slow: then the
        next match names the restore again. ABI where it is of another format. Kind DISK. ``status`` BUSY: the first
        page that was left to another request, with the code ``filling``.
    left_out : tuple of int
        Of an offload: boundaries that have no complete state in memory, and so no record. Their history may be stored:
        it can be read and not resumed.
    elsewhere : int
        Of a restore: pages that another request was already loading or computing: waited for, not loaded twice.
    boundaries : tuple of int
        Lengths in tokens, ascending. Of an offload those asked for that can be resumed from the tier now: stored by it
        or known there before. Of a restore the length that it made usable.
    tips : tuple of int
        Those of them that end inside a unit.
    blocks : mapping of str to int
        By group, pages that were stored or published.
    missed : mapping of int to str
        Lengths asked for that are not among ``boundaries``, and why: ``"states"`` where memory lacks a window, a state
        or a tip's page; ``"history"`` where it lacks a block below; else the name of the status that a record came to.
    device_error : str
        Empty, or what the CUDA driver said of a copy between a pool's device and the host that failed (``status`` is
        UNAVAILABLE then, and the tier not to blame), or what asking for ``after`` raised (CANCELLED).
    """

    status: TierStatus
    tokens: int
    records: int
    stored: int
    bytes: int
    why: Why | None
    left_out: tuple[int, ...]
    elsewhere: int
    boundaries: tuple[int, ...] = ()
    tips: tuple[int, ...] = ()
    blocks: Mapping[str, int] = field(default_factory=dict, hash=False)
    missed: Mapping[int, str] = field(default_factory=dict, hash=False)
    device_error: str = ""

    @property
    def ok(self) -> bool:
        """Whether everything that was to move did."""
        return self.status is TierStatus.OK


@dataclass(frozen=True)
class FlushResult:
    """What is durable now that was not when the cache was flushed before.

    Attributes
    ----------
    records, bytes : int
        Records that offloads stored since, and their bytes.
    refused : mapping of str to int
        Records that the tier did not take, by the name of the status: NO_SPACE where it is full, DECLINED where write
        admission leaves them out, MISS where the block below is not there, CANCELLED where their offload was
        cancelled. What was not sent because a record before it failed counts as that one.
    durable : bool
        False of a tier that loses everything with the process anyway.
    """

    records: int
    bytes: int
    refused: Mapping[str, int] = field(hash=False)
    durable: bool
