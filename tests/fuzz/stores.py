# SPDX-License-Identifier: Apache-2.0
"""The core's parsers of what lies in a store, driven from Python; checksums are right, as a forger makes them."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import hybridkv as hk
from hybridkv.tiers import GetItem, Part, PutItem, RecordKey, RecordKind, Store

from .kept import IN_MEMORY, Try
from .mutations import mutated, set_field

_TABLE = [0] * 256
for _byte in range(256):
    _value = _byte
    for _ in range(8):
        _value = _value >> 1 ^ (0x82F63B78 if _value & 1 else 0)
    _TABLE[_byte] = _value

REGION, UNIT = 64 << 10, 4096
FIXED, ENTRY, CRC_AT = 128, 32, 124


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def sealed_envelope(data: bytearray) -> bytearray:
    """Make the checksum of an envelope right for the part table that it says it has."""
    if len(data) >= FIXED:
        parts = int.from_bytes(data[100:104], "little")
        covered = bytes(data[:CRC_AT]) + bytes(data[FIXED : FIXED + ENTRY * min(parts, 4096)])
        data[CRC_AT:FIXED] = crc32c(covered).to_bytes(4, "little")
    return data


_ENVELOPE_FIELDS = (
    *((0, 4), (4, 2), (6, 1), (7, 1), (8, 8), (16, 8), (32, 8), (48, 8), (64, 8), (80, 8), (88, 8), (96, 4), (100, 4)),
    *((104, 4), (128, 2), (130, 2), (132, 4), (136, 4), (140, 4), (144, 8), (152, 8), (160, 2), (184, 8)),
)


def forged_envelope(dice: random.Random, data: bytes) -> bytes:
    """Change a field or two of an envelope, and as a rule its checksum with it."""
    made = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 3))):
        at, width = dice.choice(_ENVELOPE_FIELDS)
        if at + width <= len(made):
            set_field(dice, made, at, width)
    if dice.random() < 0.1:
        made = bytearray(mutated(dice, [bytes(made)]))
    return bytes(sealed_envelope(made) if dice.random() < 0.9 else made)


class Held(hk.TierAdapter):
    """Records in a dict, changed by a function on their way out."""

    def __init__(self) -> None:
        self.records: dict[RecordKey, tuple[bytes, list[bytes]]] = {}
        self.change: Callable[[bytes, list[bytes]], tuple[bytes, list[bytes]]] = lambda envelope, parts: (
            envelope,
            parts,
        )
        super().__init__()

    def store(self, key: RecordKey, envelope: bytes, parts: Sequence[memoryview], pinned: bool) -> None:
        self.records[key] = (bytes(envelope), [bytes(part) for part in parts])

    def load(self, key: RecordKey, parts: Sequence[Any]) -> tuple[bytes, Sequence[Any]] | None:
        found = self.records.get(key)
        if found is None:
            return None
        envelope, held = self.change(*found)
        return envelope, held[: len(parts)] if len(held) > len(parts) else held

    def discard(self, key: RecordKey) -> bool:
        return key in self.records

    def contains(self, key: RecordKey) -> bool:
        return key in self.records


SIZES = (64, 100)


def _key(number: int, kind: RecordKind = RecordKind.BLOCK) -> RecordKey:
    return RecordKey(number.to_bytes(16, "little"), b"a format of rows", kind)


def _content(number: int) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
    return [np.random.default_rng(number).integers(0, 256, size, np.uint8) for size in SIZES]


def _parts(arrays: Sequence[Any]) -> tuple[Part, ...]:
    return tuple(Part(array, group=at, layer=0, block=1) for at, array in enumerate(arrays))


def _settled(tier: hk.Tier, batch: int) -> list[Any]:
    for _ in range(600):
        found = [report for report in tier.poll() if report.batch == batch]
        if found:
            return found
        tier.wait(0.1)
    raise AssertionError("no report within a minute")


@contextmanager
def envelopes() -> Iterator[Try]:
    """One record whose envelope is another at every get: never OK with bytes that are not those that were put."""
    sound = _content(1)
    with Held() as tier:
        _settled(tier, tier.put([PutItem(_key(1), _parts(sound))]))
        dice_now: list[random.Random] = []
        tier.change = lambda envelope, parts: (forged_envelope(dice_now[0], envelope), parts)
        room = [np.zeros(size, np.uint8) for size in SIZES]

        def one(dice: random.Random) -> bool:
            dice_now[:] = [dice]
            for array in room:
                array.fill(0xEE)
            report = _settled(tier, tier.get([GetItem(_key(1), _parts(room))]))[0]
            if report.status.name == "OK":
                assert all(np.array_equal(ours, theirs) for ours, theirs in zip(room, sound, strict=True))
            return bool(report.status.name == "OK")

        yield one


def _small_model() -> hk.CacheSpec:
    kind = hk.StateKind
    groups = [
        hk.CacheGroup("kv", kind.COMPRESSED, hk.Prefix(), page_bytes=64, block_tokens=4, row_bytes=16, rows_per_page=4),
        hk.CacheGroup("swa", kind.WINDOW, hk.Window(6), page_bytes=64, block_tokens=4),
        hk.CacheGroup("tail", kind.TAIL, hk.Checkpoint(), page_bytes=64, block_tokens=4),
    ]
    return hk.CacheSpec(4, groups, identity=hk.Identity("small"))


def _bound(tier: hk.Tier, spec: hk.CacheSpec) -> tuple[hk.HybridCache, dict[str, Any]]:
    cache = hk.HybridCache(spec, blocks=32, tier=tier, verify="off")
    pools = {group.name: np.zeros((cache.pages[group.name], 64), np.uint8) for group in spec.groups}
    for name, pool in pools.items():
        cache.bind(name, pool)
    return cache, pools


def _forged_record(dice: random.Random, envelope: bytes, parts: list[bytes]) -> tuple[bytes, list[bytes]]:
    """Change the content of a part and make both checksums right: what a CRC cannot tell from the truth."""
    made = bytearray(envelope)
    held = list(parts)
    if held and dice.random() < 0.7:
        at = dice.randrange(len(held))
        size = len(held[at])
        changed = mutated(dice, [held[at]])
        held[at] = (changed + bytes(size))[:size] if dice.random() < 0.7 else changed
        entry = FIXED + ENTRY * at
        made[entry + 12 : entry + 16] = crc32c(held[at]).to_bytes(4, "little")
        made[entry + 24 : entry + 32] = len(held[at]).to_bytes(8, "little")
        return bytes(sealed_envelope(made)), held
    return forged_envelope(dice, envelope), held


def _load(cache: hk.HybridCache, tier: hk.Tier, keys: hk.BlockKeys) -> None:
    """Restore what can be; what is there is known once the tier has said so, tips once their list was read."""
    idle = 0
    while idle < 2:
        transfer = cache.prefetch(keys)
        if transfer is not None:
            transfer.result(10)
            idle = 0
            if transfer.progress == 0.0 or not transfer._core.state()[5]:
                return
        else:
            idle += 1
            assert tier.drain(10)
            cache.poll()


PREFIXES = 64


def _prefixes(spec: hk.CacheSpec) -> list[tuple[Any, dict[RecordKey, tuple[bytes, list[bytes]]]]]:
    """Return the token ids of prefixes that share nothing, each with its records: of blocks, a boundary and tips."""
    made: list[tuple[Any, dict[RecordKey, tuple[bytes, list[bytes]]]]] = []
    with Held() as store:
        cache, _ = _bound(store, spec)
        for number in range(PREFIXES):
            ids = np.arange(1, 24, dtype=np.uint32) + 100 * number
            keys = hk.block_keys(ids, 4, identity=spec.identity)
            before = set(store.records)
            cache.insert(keys[:5])
            cache.insert(keys)
            cache.offload(keys).result(10)
            cache.evict(keys)
            made.append((ids, {key: store.records[key] for key in store.records if key not in before}))
        cache.close()
    return made


@contextmanager
def records_under_a_cache() -> Iterator[Try]:
    """A prefix with tips in a store that lies: it is restored, or not; a prefix of other tokens never is.

    A cache and its tier serve as many inputs as there are prefixes, each another prefix: opening them takes longer than
    all else. So pages that an input does not give back are seen as well, at its end.
    """
    spec = _small_model()
    prefixes = _prefixes(spec)
    with contextlib.ExitStack() as opened:
        left: list[tuple[Any, dict[RecordKey, tuple[bytes, list[bytes]]]]] = []
        now: list[Any] = []

        def one(dice: random.Random) -> bool:
            if not left:
                opened.close()
                left.extend(prefixes)
                tier = opened.enter_context(Held())
                cache, _ = _bound(tier, spec)
                opened.callback(cache.close)
                now[:] = tier, cache
            return _lied_to(dice, *now, *left.pop())

        yield one


def _lied_to(dice: random.Random, tier: Held, cache: hk.HybridCache, ids: Any, records: Any) -> bool:
    identity = cache.spec.identity
    tier.records = dict(records)
    for key in dice.sample(sorted(records, key=repr), dice.choice((1, 2, len(records)))):
        tier.records[key] = _forged_record(dice, *records[key])
    beyond = np.append(ids, ids[:3] + 50)
    asked = hk.block_keys(beyond, 4, identity=identity)
    _load(cache, tier, asked)
    verdict = cache.match(asked)
    if verdict.lease is not None:
        assert verdict.usable_tokens <= len(ids)
        verdict.lease.release()
    other = hk.block_keys(ids + 1, 4, identity=identity)
    assert cache.match(other).outcome is hk.Outcome.MISS
    assert cache.verify()
    for length in range(len(beyond), len(ids) - 3, -1):  # of a tip with its own keys alone
        cache.evict(hk.block_keys(beyond[:length], 4, identity=identity))
    assert all(counts.free == cache.pages[name] for name, counts in cache.metrics().pages.items())
    return bool(verdict.usable_tokens == len(ids))


_SUPERBLOCK = (32, ((0, 4), (4, 4), (8, 8), (24, 8)))
_HEADER = (44, ((0, 4), (4, 4), (8, 8), (24, 8), (32, 8), (40, 4)))


def _forge_head(dice: random.Random, data: bytearray, at: int, of: tuple[int, Any]) -> None:
    crc_at, fields = of
    for _ in range(dice.choice((1, 2))):
        field, width = dice.choice(fields)
        set_field(dice, data, at + field, width)
    if dice.random() < 0.8:
        data[at + crc_at : at + crc_at + 4] = crc32c(bytes(data[at : at + crc_at])).to_bytes(4, "little")


def _forge_footer(dice: random.Random, data: bytearray) -> None:
    trailer = len(data) - 64
    count = int.from_bytes(data[trailer + 36 : trailer + 40], "little")
    first = trailer - 64 * min(count, 64)
    if count and dice.random() < 0.7:
        entry = first + 64 * dice.randrange(min(count, 64))
        field, width = dice.choice(
            ((0, 8), (16, 8), (32, 8), (48, 4), (52, 4), (56, 4), (60, 1), (61, 1), (62, 1), (63, 1))
        )
        set_field(dice, data, entry + field, width)
    else:
        field, width = dice.choice(((0, 4), (4, 4), (8, 8), (24, 8), (32, 4), (36, 4), (44, 4)))
        set_field(dice, data, trailer + field, width)
        count = int.from_bytes(data[trailer + 36 : trailer + 40], "little")
        first = trailer - 64 * count if 64 * count <= trailer else trailer
    if dice.random() < 0.9:
        data[trailer + 40 : trailer + 44] = crc32c(bytes(data[first:trailer])).to_bytes(4, "little")
        data[trailer + 60 :] = crc32c(bytes(data[trailer : trailer + 60])).to_bytes(4, "little")


def _forge_region(dice: random.Random, data: bytearray) -> None:
    how = dice.random()
    if how < 0.15:
        _forge_head(dice, data, 0, _HEADER)
    elif how < 0.5:
        _forge_footer(dice, data)
    else:
        starts = [at for at in range(UNIT, len(data), UNIT) if data[at : at + 4] == b"HKVR"]
        if not starts:
            return
        at = dice.choice(starts)
        size = FIXED + ENTRY * min(int.from_bytes(data[at + 100 : at + 104], "little"), 8)
        data[at : at + size] = forged_envelope(dice, bytes(data[at : at + size]))[:size].ljust(size, b"\0")
        if dice.random() < 0.5:  # without a footer it is scanned
            data[-64:] = bytes(64)


def _made_store(path: Path) -> None:
    with hk.DiskTier(path, 6 * REGION, region_bytes=REGION, engine="threads", direct=False) as tier:
        for number in range(1, 24):
            parent = _key(number - 1).digest if number > 1 else bytes(16)
            item = PutItem(_key(number), _parts(_content(number)), parent=parent, tokens=4 * number)
            _settled(tier, tier.put([item]))
        item = PutItem(_key(9, RecordKind.BOUNDARY), _parts(_content(9)), parent=_key(9).digest, tokens=36)
        _settled(tier, tier.put([item]))
        _settled(tier, tier.remove([_key(22)]))
        _settled(tier, tier.flush())


@contextmanager
def stores() -> Iterator[Try]:
    """A store of which a file is another at every opening: walked over to the last byte, opened as a tier, read."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        sound, here = Path(folder) / "sound", Path(folder) / "here"
        _made_store(sound)
        files = {path.name: path.read_bytes() for path in sound.iterdir()}
        here.mkdir()
        outside = Path(folder) / "outside"
        outside.write_bytes(b"not the store's")

        stale = set(files)  # names of what is not as in the sound store

        def one(dice: random.Random) -> None:
            chosen = dice.choice([name for name in sorted(files) if name.endswith(".region")] * 3 + ["superblock"])
            data = bytearray(files[chosen])
            if chosen == "superblock":
                _forge_head(dice, data, 0, _SUPERBLOCK)
            else:
                _forge_region(dice, data)
            if dice.random() < 0.05:
                data = bytearray(mutated(dice, [bytes(data)]))
            for name in stale - {chosen}:
                _restored(here / name, files.get(name))
            stale.clear()
            stale.add(chosen)
            _restored(here / chosen, bytes(data))
            if dice.random() < 0.05:
                stale.add(_stranger(dice, here, outside, files))
            try:
                _walk(here, chosen)
                if dice.random() < 0.3:
                    stale.update(files)
                    _read(here)
            finally:
                assert outside.read_bytes() == b"not the store's"
                if stale.issuperset(files):
                    _cleared(here)

        yield one


_NAMES = (
    *("000099.region", "000000.region", "1.region", "-00001.region", "0000001.region", "999999.region", "9e9.region"),
    *("000001.region-8", "000001.region-9999999", "000001.REGION", "000001.region ", "superblock.new", "x" * 200),
    *("\udcff.region", "\u0663.region"),
)


def _stranger(dice: random.Random, folder: Path, outside: Path, files: dict[str, bytes]) -> str:
    """Put something into a store that is no file of its own, or has the name of one."""
    name = dice.choice((*_NAMES, *files))
    path = folder / name
    path.unlink(missing_ok=True)
    kind = dice.randrange(5)
    if kind == 0:
        path.symlink_to(outside)
    elif kind == 1:
        os.mkfifo(path)
    elif kind == 2:
        path.mkdir()
    else:
        path.write_bytes(dice.choice((b"", b"x", *files.values())))
    return name


def _restored(path: Path, content: bytes | None) -> None:
    """Make a file what it was, where it was one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)


def _cleared(folder: Path) -> None:
    """Remove what a tier left: it may have made, changed and removed files."""
    for path in folder.iterdir():
        _restored(path, None)


def _walk(path: Path, chosen: str) -> None:
    """Walk over all of it, and read the part tables of the region that is not sound; the others' are as they were."""
    with Store(path, engine="threads", direct=False, depth=1) as opened:
        for region in opened.regions(every_byte=True):
            if chosen in ("superblock", region.file):
                for record in region.records:
                    opened.parts(region, record)
        opened.lost_with([_key(1)])


def _read(path: Path) -> None:
    with hk.DiskTier(path, 6 * REGION, region_bytes=REGION, engine="threads", direct=False) as tier:
        room = [np.zeros(size, np.uint8) for size in SIZES]
        for number in (1, 9, 22, 23):
            _settled(tier, tier.get([GetItem(_key(number), _parts(room))]))
