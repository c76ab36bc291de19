# SPDX-License-Identifier: Apache-2.0
"""The records of a run: each a number that tells its parent, its parts and every byte of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

import hybridkv as hk
from hybridkv.tiers import GetItem, Part, PutItem, RecordKey, RecordKind

FORMAT = b"rows of a number"

Pages = list[npt.NDArray[np.uint8]]


@dataclass(frozen=True)
class Records:
    """Chains of block records, some grown out of others, each block with a boundary record on top.

    Attributes
    ----------
    chains, blocks : int
        How many chains of how many blocks.
    most_bytes : int
        Payload of the largest record.
    """

    chains: int
    blocks: int
    most_bytes: int

    @property
    def names(self) -> range:
        """Numbers of all records; even ones are boundaries, each of the block before it."""
        return range(1, 1 + 2 * self.chains * self.blocks)

    def parent(self, name: int) -> int | None:
        """Return the block that a record stands on."""
        if name % 2 == 0:
            return name - 1
        chain, block = divmod((name - 1) // 2, self.blocks)
        if block:
            return name - 2
        return 1 + 2 * ((chain - 1) * self.blocks + 1) if chain % 3 == 2 else None

    def ancestors(self, name: int) -> list[int]:
        """Return a record's blocks below it, nearest first."""
        below: list[int] = []
        at = self.parent(name)
        while at is not None:
            below.append(at)
            at = self.parent(at)
        return below

    @cached_property
    def subtrees(self) -> dict[int, list[int]]:
        """Everything that goes when a record goes, itself first."""
        out: dict[int, list[int]] = {name: [name] for name in self.names}
        for name in self.names:
            for below in self.ancestors(name):
                out[below].append(name)
        return out

    def pages(self, name: int) -> Pages:
        """Return the parts of a record."""
        return _pages(name, self.most_bytes)

    def bytes_of(self, name: int) -> int:
        """Return at least as many bytes as the record takes of a region."""
        return sum(page.size for page in self.pages(name)) + 3 * 4096

    def key(self, name: int) -> RecordKey:
        """Return the key of a record."""
        return RecordKey(name.to_bytes(16, "little"), FORMAT, RecordKind.BLOCK if name % 2 else RecordKind.BOUNDARY)

    def put(self, name: int, durable: bool, pinned: bool = False) -> PutItem:
        """Return the put of a record."""
        below = self.parent(name)
        return PutItem(
            self.key(name),
            _parts(self.pages(name)),
            parent=None if below is None else below.to_bytes(16, "little"),
            tokens=name,
            durable=durable,
            pinned=pinned,
        )

    def get(self, name: int) -> tuple[GetItem, Pages]:
        """Return a get of a whole record, and where its bytes will be."""
        room = [np.full(page.size, 0xEE, np.uint8) for page in self.pages(name)]
        return GetItem(self.key(name), _parts(room)), room

    def is_right(self, name: int, room: Pages) -> bool:
        """Say whether what was brought is the record, to the byte."""
        return all(np.array_equal(a, b) for a, b in zip(room, self.pages(name), strict=True))

    def here(self, tier: hk.Tier, name: int) -> bool:
        """Say whether the tier's index has the record."""
        return tier.look(self.key(name)).answer.name == "HERE"


@lru_cache(maxsize=1024)
def _pages(name: int, most_bytes: int) -> Pages:
    random = np.random.default_rng(name)
    whole = int(random.integers(1, most_bytes + 1))
    if name % 5 == 0:  # aligned, so that a get goes straight into the caller's memory
        whole = max(4096, whole // 4096 * 4096)
    cuts = [0, whole // 3, whole] if name % 3 == 0 and whole > 3 else [0, whole]
    content = np.frombuffer(random.bytes(whole), np.uint8)
    return [np.ascontiguousarray(content[a:b]) for a, b in pairwise(cuts)]


def _parts(pages: Pages) -> tuple[Part, ...]:
    return tuple(Part(page, group=index) for index, page in enumerate(pages))
