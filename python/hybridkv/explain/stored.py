# SPDX-License-Identifier: Apache-2.0
"""What a store on disk has of a prompt, without the engine that wrote it, and without a change to the store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hybridkv import _core
from hybridkv.cache import HybridCache
from hybridkv.explain.explanation import Explanation
from hybridkv.formats import Manifest
from hybridkv.keys import BlockKeys
from hybridkv.printed import page
from hybridkv.spec import CacheSpec
from hybridkv.tiers import PartLabel, RecordKey, RecordKind, Store, TierAdapter

_AT_ONCE = 1000  # records asked about at a time, below what a tier takes
_SECONDS = 60.0
_LENGTHS_PER_LISTING = 256

_Name = tuple[bytes, bytes, int]


@dataclass(frozen=True)
class StoredExplanation:
    """What a store has of a prompt.

    Attributes
    ----------
    found : Explanation
        Of a cache with nothing in its pools, over this store: ``restore_tokens`` is what a restore makes usable.
    records : int
        Records of the prompt that this spec can read.
    other_formats : int
        Records of its keys that another spec wrote: other bytes, or another rank.
    other_identities : int
        Live records of the store under another identity.
    """

    found: Explanation
    records: int
    other_formats: int
    other_identities: int

    def to_json(self) -> dict[str, Any]:
        """Return all of it as one object of JSON."""
        return {**asdict(self), "found": self.found.to_json()}

    def __str__(self) -> str:
        lines = [f"{self.records} records of this prompt are in the store."]
        if self.other_formats:
            lines.append(
                f"{self.other_formats} more are of another format: another spec, dtype or rank wrote them (hybridkv "
                "inspect STORE names the writers)."
            )
        if not self.records and not self.other_formats and self.other_identities:
            lines.append(
                f"None has a key of this prompt, and {self.other_identities} are of another identity: model, weights, "
                "adapter, salt and unit_tokens make keys."
            )
        return page(lines) + "\n\n" + str(self.found)


def explain_store(path: str | os.PathLike[str], spec: CacheSpec, keys: BlockKeys) -> StoredExplanation:
    """Explain what a store has of a prompt.

    Parameters
    ----------
    path : path-like
        The directory of a disk tier; nobody may have it open.
    spec : CacheSpec
        Of the engine that is to read it.
    keys : BlockKeys
        Of the prompt, with the engine's identity.

    Returns
    -------
    StoredExplanation

    Raises
    ------
    TierError
        There is no store, it is open elsewhere, or a header cannot be read.
    ArgumentError
        Keys of another unit.
    """
    own = Manifest.of(spec)
    names: set[_Name] = set()
    others = 0
    with Store(path) as store:
        for region in store.regions():
            for record in region.records:
                if record.standing != "live" or not record.readable:
                    continue
                names.add(record.key._core())
                others += record.identity not in (own.identity, bytes(16))
    asked = list(_keys_of(keys, own.records, names))
    with _Recorded(names) as tier:
        tier.learn(asked)
        cache = HybridCache(spec, blocks=max(len(keys), 1), pages={g.name: 1 for g in spec.groups}, tier=tier)
        found = cache.explain(keys)
        cache.close()
    digests = {digest.tobytes() for digest in keys.digests}
    foreign = sum(digest in digests and form not in own.records for digest, form, _ in names)
    return StoredExplanation(found, len(asked), foreign, others)


def _keys_of(keys: BlockKeys, records: tuple[bytes, bytes], names: set[_Name]) -> Iterator[RecordKey]:
    """Name the records of a prompt that are there: a block and a boundary after each unit, listings and tips."""
    digests = [digest.tobytes() for digest in keys.digests]
    for digest in digests:
        for kind in RecordKind:
            key = RecordKey(digest, records[kind is RecordKind.BOUNDARY], kind)
            if key._core() in names:
                yield key
    core = keys._core
    if not core.has_tokens:
        return
    for unit in range(core.first_tip_unit, core.end_unit + 1):
        for listing, lengths in _listings(core, unit):
            key = RecordKey(listing, records[1], RecordKind.BOUNDARY)
            if key._core() not in names:
                continue
            yield key
            tips = (RecordKey(core.tip_key(unit, n), records[1], RecordKind.BOUNDARY) for n in lengths)
            yield from (tip for tip in tips if tip._core() in names)


def _listings(core: _core.KeyChain, unit: int) -> Iterator[tuple[bytes, range]]:
    """Name the listings of tips after a unit, each with the lengths that it stands for (csrc/cache/tier_link.h)."""
    directory = core.tip_directory_key(unit)
    longest = core.unit_tokens - 1 if unit < core.end_unit else core.rest_tokens
    low = int.from_bytes(directory[:8], "little")
    for number in range(longest // _LENGTHS_PER_LISTING + 1):
        lengths = range(max(number * _LENGTHS_PER_LISTING, 1), min((number + 1) * _LENGTHS_PER_LISTING, longest + 1))
        yield (low ^ number).to_bytes(8, "little") + directory[8:], lengths


class _Recorded(TierAdapter):
    """A tier that knows which records there are, and gives none."""

    name = "store"

    def __init__(self, names: set[_Name]) -> None:
        self._names = names
        super().__init__()

    def learn(self, keys: Sequence[RecordKey]) -> None:
        """Have it asked about each record, so that a look-up knows it."""
        for begin in range(0, len(keys), _AT_ONCE):
            self.probe(keys[begin : begin + _AT_ONCE])
            self.drain(_SECONDS)
            while self.poll():
                pass

    def store(self, key: RecordKey, envelope: bytes, parts: Sequence[memoryview], pinned: bool) -> None:
        """Refuse: the store is only looked at."""
        raise PermissionError("read only")

    def load(self, key: RecordKey, parts: Sequence[PartLabel]) -> None:
        """Give nothing."""

    def discard(self, key: RecordKey) -> bool:
        """Remove nothing."""
        return False

    def contains(self, key: RecordKey) -> bool:
        """Say whether the store has a record."""
        return key._core() in self._names
