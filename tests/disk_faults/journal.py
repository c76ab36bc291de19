# SPDX-License-Identifier: Apache-2.0
"""What a writer asked and was told, entry by entry in a file that outlives it."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from hybridkv.tiers import TierStatus

_ENTRY = struct.Struct("<BBBxII")


class Ask(IntEnum):
    """What was asked, or that an answer came, or what a life of the writer came to."""

    ANSWER = 0
    PUT = 1
    REMOVE = 2
    GET = 3
    FLUSH = 4
    WRONG = 5  # an OK get with other bytes
    OPENED = 6
    REFUSED = 7  # the store was not opened: a typed error
    ENDED = 8  # closed without a crash


class Journal:
    """The writer's end. An ask is entered before it is made, an answer after it came."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._next = os.fstat(self._file).st_size // _ENTRY.size

    def ask(self, what: Ask, name: int = 0, durable: bool = False) -> int:
        """Enter an ask; return its number."""
        number = self._next
        self._write(what, 0, durable, number, name)
        return number

    def answer(self, number: int, status: TierStatus) -> None:
        """Enter what became of an ask."""
        self._write(Ask.ANSWER, int(status), False, number, 0)

    def _write(self, what: Ask, status: int, durable: bool, number: int, name: int) -> None:
        os.write(self._file, _ENTRY.pack(what, status, durable, number, name))
        self._next += 1


@dataclass
class Step:
    """One ask with its answer, both with their places in the order of entries."""

    what: Ask
    name: int
    durable: bool
    asked: int
    status: TierStatus | None = None
    answered: int = 1 << 62


def read_journal(path: Path, first: int = 0) -> tuple[list[Step], int]:
    """Return the steps from an entry on, and the number of the next entry."""
    data = path.read_bytes() if path.exists() else b""
    data = data[: len(data) // _ENTRY.size * _ENTRY.size]  # the last entry may be torn
    steps: dict[int, Step] = {}
    for index, (what, status, durable, number, name) in enumerate(_ENTRY.iter_unpack(data)):
        if index < first:
            continue
        if what == Ask.ANSWER:
            if number in steps and steps[number].status is None:  # the first one counts: it is what was promised
                steps[number].status, steps[number].answered = TierStatus(status), index
        else:
            steps[number] = Step(Ask(what), name, bool(durable), index)
    return list(steps.values()), len(data) // _ENTRY.size


def size_of(path: Path) -> int:
    """Return how many entries a journal has."""
    return path.stat().st_size // _ENTRY.size if path.exists() else 0
