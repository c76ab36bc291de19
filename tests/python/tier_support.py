# SPDX-License-Identifier: Apache-2.0
"""Records to put into tiers, and tiers of Python: one over a dict, and one that does what a bad store does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import hybridkv as hk
from hybridkv.tiers import GetItem, Part, PartLabel, PutItem, RecordKey, RecordKind, Report

SIZES = (64, 4096, 100)
FORMAT = b"a format of rows"


def key(name: int, kind: RecordKind = RecordKind.BLOCK) -> RecordKey:
    return RecordKey(name.to_bytes(16, "little"), FORMAT, kind)


def pages(name: int, sizes: Sequence[int] = SIZES) -> list[npt.NDArray[np.uint8]]:
    random = np.random.default_rng(name)
    return [random.integers(0, 256, size, np.uint8) for size in sizes]


def parts(arrays: Sequence[npt.NDArray[Any]], block: int = 1) -> tuple[Part, ...]:
    return tuple(Part(array, group=index, layer=1, block=block) for index, array in enumerate(arrays))


def room(sizes: Sequence[int] = SIZES) -> list[npt.NDArray[np.uint8]]:
    return [np.full(size, 0xEE, np.uint8) for size in sizes]


def record(name: int, sizes: Sequence[int] = SIZES, **fields: Any) -> PutItem:
    kind = fields.pop("kind", RecordKind.BLOCK)
    return PutItem(key(name, kind), parts(pages(name, sizes)), **fields)


class Asker:
    """One ask at a time and its last report; each is checked against the promise of one status and one release."""

    def __init__(self, tier: hk.Tier) -> None:
        self.tier = tier
        self.seen: dict[tuple[int, int], list[Report]] = {}

    def take(self) -> None:
        for report in self.tier.poll():
            before = self.seen.setdefault((report.batch, report.item), [])
            if report.late:
                assert [(old.status.name, old.released) for old in before] == [("TIMEOUT", False)]
                assert report.released
            else:
                assert not before
                assert report.released or report.status.name == "TIMEOUT"
            before.append(report)

    def first(self, batch: int, item: int = 0) -> Report:
        return self._wait(batch, item, 1)

    def last(self, batch: int, item: int = 0) -> Report:
        first = self.first(batch, item)
        return first if first.released else self._wait(batch, item, 2)

    def _wait(self, batch: int, item: int, reports: int) -> Report:
        for _ in range(600):
            self.take()
            if len(self.seen.get((batch, item), [])) >= reports:
                return self.seen[batch, item][reports - 1]
            self.tier.wait(0.1)
        raise AssertionError("no report within a minute")

    def put(self, item: PutItem) -> str:
        return self.last(self.tier.put([item])).status.name

    def get(self, name: RecordKey, wanted: Sequence[Part]) -> Report:
        return self.last(self.tier.get([GetItem(name, tuple(wanted))]))

    def remove(self, name: RecordKey) -> str:
        return self.last(self.tier.remove([name])).status.name

    def probe(self, name: RecordKey) -> str:
        return self.last(self.tier.probe([name])).status.name

    def flush(self) -> str:
        return self.last(self.tier.flush()).status.name

    def has(self, name: int, sizes: Sequence[int] = SIZES, kind: RecordKind = RecordKind.BLOCK) -> bool:
        """Say whether the record is there with every byte as it was put."""
        arrays = room(sizes)
        if self.get(key(name, kind), parts(arrays)).status.name != "OK":
            return False
        return all(np.array_equal(ours, theirs) for ours, theirs in zip(arrays, pages(name, sizes), strict=True))


class DictTier(hk.TierAdapter):
    """Records in a dict: the envelope, and the bytes of each part by its label."""

    def __init__(self, **options: Any) -> None:
        self.records: dict[RecordKey, tuple[bytes, dict[PartLabel, bytes]]] = {}
        self.pinned: set[RecordKey] = set()
        self.gate = threading.Event()  # calls wait for it: cleared, the store is frozen
        self.gate.set()
        self.synced = 0
        super().__init__(**options)

    def store(self, key: RecordKey, envelope: bytes, parts: Sequence[memoryview], pinned: bool) -> None:
        self.gate.wait()
        labels = [PartLabel(*label) for label in labels_of(envelope)]
        held = {label: bytes(part) for label, part in zip(labels, parts, strict=True)}
        self.records.setdefault(key, (envelope, held))
        if pinned:
            self.pinned.add(key)

    def load(self, key: RecordKey, parts: Sequence[PartLabel]) -> tuple[bytes, Sequence[Any]] | None:
        self.gate.wait()
        if key not in self.records:
            return None
        envelope, held = self.records[key]
        return envelope, [held.get(label, b"") for label in parts]

    def discard(self, key: RecordKey) -> bool:
        self.gate.wait()
        return self.records.pop(key, None) is not None

    def contains(self, key: RecordKey) -> bool:
        self.gate.wait()
        return key in self.records

    def sync(self) -> None:
        self.gate.wait()
        self.synced += 1

    def __exit__(self, *exception: object) -> None:
        self.gate.set()  # also where a test failed while it was shut
        super().__exit__(*exception)


def labels_of(envelope: bytes) -> list[tuple[int, int, int, int]]:
    """Labels out of an envelope's part table, as docs/record-format.md has it."""
    count = int.from_bytes(envelope[100:104], "little")
    table = [envelope[128 + 32 * i :][:32] for i in range(count)]
    return [
        (
            int.from_bytes(entry[0:2], "little"),
            int.from_bytes(entry[2:4], "little"),
            int.from_bytes(entry[4:8], "little"),
            int.from_bytes(entry[8:12], "little"),
        )
        for entry in table
    ]


class HostileTier(DictTier):
    """A dict whose answers `spoil` changes on their way out, or that raises instead."""

    spoil: Callable[[bytes, list[Any]], Any] = staticmethod(lambda envelope, buffers: (envelope, buffers))
    raises: BaseException | None = None

    def load(self, key: RecordKey, parts: Sequence[PartLabel]) -> Any:
        if self.raises is not None:
            raise self.raises
        found = super().load(key, parts)
        return found if found is None else self.spoil(found[0], list(found[1]))


TIERS: dict[str, Callable[..., hk.Tier]] = {
    "memory": lambda **options: hk.MemoryTier(1 << 24, **options),
    "memory, threaded": lambda **options: hk.MemoryTier(1 << 24, threaded=True, **options),
    "adapter": lambda **options: DictTier(**options),
    "adapter of 3 threads": lambda **options: DictTier(threads=3, **options),
    "stack": lambda **options: hk.TierStack([hk.MemoryTier(1 << 24), hk.MemoryTier(1 << 24)], **options),
}
"""Those that need no directory."""
