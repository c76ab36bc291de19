# SPDX-License-Identifier: Apache-2.0
"""What ``hybridkv inspect`` and ``hybridkv verify`` say of a store: one object of JSON each, and its text."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hybridkv.errors import ArgumentError, TierError
from hybridkv.printed import page
from hybridkv.store_writers import writers_error_lines, writers_lines, writers_of
from hybridkv.tiers import DiskTier, Flaw, PutItem, RecordKey, RecordKind, Store, StoredRecord, StoredRegion, TierStatus
from hybridkv.tiers.store import STANDINGS

SCHEMA = 2
"""Version of both objects: it counts up when a field means something else or goes."""

KINDS = (*(kind.name.lower() for kind in RecordKind), "listing")
"""Rows of what can be asked for. A listing is kept as a boundary record is, and holds nothing of a prefix."""

TIP, LISTING = 0x80, 0x40
"""Flags of a boundary record: it is of a tip; it says below which unit tips are stored (``csrc/cache/tier_link.h``)."""

_AT_ONCE = 1000  # records of a batch of removes, below what a tier takes
_GONE = (TierStatus.OK, TierStatus.MISS)
_SPARE_REGIONS = 2  # so that tombstones evict nothing

Json = dict[str, Any]


def inspect(store: Store, *, records: bool, key: bytes | None = None) -> Json:
    """Look at a store without reading payloads.

    Parameters
    ----------
    store : Store
    records : bool
        Name every record in ``listed``.
    key : bytes, optional
        Name the records of this digest in ``listed``, with their parts.

    Returns
    -------
    dict

    Raises
    ------
    TierError
        A header or footer cannot be read; no record has the digest.
    """
    tally = _Tally()
    regions: list[Json] = []
    listed: list[Json] = []
    for region in store.regions():
        regions.append(tally.add(region))
        for record in region.records:
            if records or record.key.digest == key:
                listed.append(_record(region, record))
                if key is not None:
                    listed[-1]["part_table"] = [
                        {name: getattr(part, name) for name in part.__slots__} for part in store.parts(region, record)
                    ]
    if key is not None and not listed:
        raise TierError("key", "the digest of a record of the store", key.hex())
    others = [file for file in store.files if file.kind not in ("region", "superblock", "writers")]
    of = tally.bytes
    for kind in ("superblock", "writers"):
        of[kind] = sum(file.bytes for file in store.files if file.kind == kind)
    of["other_files"] = sum(file.bytes for file in others)
    of["total"] = sum(file.bytes for file in store.files)
    return {
        **_head(store),
        "region_bytes": store.region_bytes,
        "index_bytes": store.index_bytes,
        "records": tally.kinds,
        "tips": tally.tips,
        "dead": tally.dead,
        "pinned": tally.pinned,
        "formats": [
            {"format": form, "kind": kind, **counted} for (form, kind), counted in sorted(tally.formats.items())
        ],
        "identities": [{"identity": name, **counted} for name, counted in sorted(tally.identities.items())],
        "regions": regions,
        "bytes": dict(of),
        "recovery": {name: getattr(store.recovered, name) for name in store.recovered.__slots__ if name != "seconds"},
        "other_files": [{"name": file.name, "bytes": file.bytes, "error": file.error} for file in others],
        **writers_of(store, tally.formats),
        "flaws": tally.flaws + len(store.flaws),
        "listed": listed if records or key is not None else None,
    }


def verify(store: Store, step: Callable[[], None]) -> Json:
    """Read and compare every byte of a store.

    Parameters
    ----------
    store : Store
    step : callable
        Called after each region.

    Returns
    -------
    dict
        ``sound`` says whether everything that can be asked for, and every header and footer, is what it should be.

    Raises
    ------
    TierError
        A header or footer cannot be read.
    """
    began = time.perf_counter()
    damaged: list[Json] = []
    flaws: list[Json] = [_flaw(flaw, "superblock") for flaw in store.flaws]
    gone: list[RecordKey] = []
    counts: Counter[str] = Counter()
    read = sum(file.bytes for file in store.files if file.kind in ("superblock", "writers"))
    for region in store.regions(every_byte=True):
        read += region.bytes
        counts.update(torn=region.torn, stale=region.stale, torn_bytes=region.torn_bytes)
        counts.update(records=len(region.records), live=sum(r.standing == "live" for r in region.records))
        flaws += [_flaw(flaw, region.file) for flaw in region.flaws]
        for record in region.records:
            if record.flaws:
                damaged.append(_record(region, record))
            if record.standing == "live" and not record.readable:
                gone.append(record.key)
        step()
    seconds = time.perf_counter() - began
    wrong = bool(flaws) or any(record["standing"] == "live" for record in damaged)
    return {
        **_head(store),
        "region_bytes": store.region_bytes,
        "regions": len(store),
        "sound": not wrong,
        "records": counts["records"],
        "live": counts["live"],
        "damaged": damaged,
        "unreadable": len(gone),
        "lost_with_them": store.lost_with(gone) - len(set(gone)) if gone else 0,
        "other_flaws": flaws,
        "leftovers": {name: counts[name] for name in ("torn", "stale", "torn_bytes")},
        "bytes_read": read,
        "seconds": round(seconds, 3),
        "bytes_per_second": round(read / seconds) if seconds else 0,
        "writers_error": store.writers.error,
        "quarantined": None,
    }


def quarantine(path: str, document: Json) -> None:
    """Remove what :func:`verify` found unreadable, through the tier, so that it cannot be asked for again.

    A listing is written anew: it says nothing but what its name does, and sound tips are found by it alone.

    Parameters
    ----------
    path : str
        The store, which nobody has open.
    document : dict
        What `verify` returned. ``quarantined`` becomes the number of records by status, with ``removed``, how many the
        index lost by it, ``rewritten``, how many listings were written anew, and ``reclaimed``, how many made room.

    Raises
    ------
    TierError
        The store is open elsewhere, or cannot be had.
    """
    damaged = [record for record in document["damaged"] if record["standing"] == "live" and not record["readable"]]
    keys = [_key_of(record) for record in damaged]
    listings = [
        PutItem(_key_of(record), (), bytes.fromhex(record["parent"]), flags=record["flags"])
        for record in damaged
        if record["is"] == "listing"
    ]
    statuses: Counter[str] = Counter()
    written: Counter[str] = Counter()
    regions = max(4, document["regions"] + _SPARE_REGIONS)
    with DiskTier(path, regions * document["region_bytes"]) as tier:
        before = tier.usage().records
        for first in range(0, len(keys), _AT_ONCE):
            tier.remove(keys[first : first + _AT_ONCE])
            _count_reports(tier, statuses)
        left = tier.usage()
        for first in range(0, len(listings), _AT_ONCE):
            tier.put(listings[first : first + _AT_ONCE])
            _count_reports(tier, written)
        after = tier.usage()
        document["quarantined"] = {
            "asked": len(keys),
            "statuses": dict(sorted(statuses.items())),
            "removed": before - left.records - left.reclaimed,
            "rewritten": written["OK"],
            "reclaimed": after.reclaimed,
        }


def _key_of(record: Json) -> RecordKey:
    kind = RecordKind[record["kind"].upper()]
    return RecordKey(bytes.fromhex(record["digest"]), bytes.fromhex(record["format"]), kind)


def _count_reports(tier: DiskTier, statuses: Counter[str]) -> None:
    tier.drain()
    while reports := tier.poll():
        statuses.update(report.status.name for report in reports)


def quarantined(document: Json) -> bool:
    """Whether every record that was to be removed is: a MISS went with what it stood on, a moment before."""
    done = document["quarantined"]
    return bool(sum(done["statuses"].get(status.name, 0) for status in _GONE) == done["asked"])


def _head(store: Store) -> Json:
    return {
        "schema": SCHEMA,
        "path": store.path,
        "store": store.name.hex(),
        "layout_version": store.layout_version,
    }


def _flaw(flaw: Flaw, file: str) -> Json:
    return {"file": file, "at": flaw.at, "damage": flaw.damage, "offset": flaw.offset, "part": flaw.part}


def _record(region: StoredRegion, record: StoredRecord) -> Json:
    return {
        "file": region.file,
        "offset": record.offset,
        "digest": record.key.digest.hex(),
        "format": record.key.format.hex(),
        "kind": record.key.kind.name.lower(),
        "is": _what(record),
        "standing": record.standing,
        "tokens": record.tokens if _envelope_holds(record) else None,
        "parent": record.parent.hex(),
        "identity": record.identity.hex() if _envelope_holds(record) else None,
        "bytes": record.bytes,
        "payload_bytes": record.payload_bytes if _envelope_holds(record) else None,
        "parts": record.parts if _envelope_holds(record) else None,
        "flags": record.flags,
        "pinned": record.pinned,
        "readable": record.readable,
        "takes_along": record.above,
        "flaws": [_flaw(flaw, region.file) for flaw in record.flaws],
    }


def _what(record: StoredRecord) -> str:
    """Return the kind, and of boundary records whether it is of a tip, or lists tips."""
    if record.key.kind is RecordKind.BOUNDARY and record.standing != "tombstone":
        if record.flags & TIP:
            return "tip"
        if record.flags & LISTING:
            return "listing"
    return record.key.kind.name.lower()


def _envelope_holds(record: StoredRecord) -> bool:
    return all(flaw.at != "envelope" for flaw in record.flaws)


class _Tally:
    """Counts over regions; every byte of a region goes to exactly one of ``bytes``."""

    def __init__(self) -> None:
        self.kinds = {kind: {"records": 0, "bytes": 0, "longest_tokens": 0} for kind in KINDS}
        self.tips = {"records": 0, "bytes": 0, "longest_tokens": 0}
        self.dead = {name: {"records": 0, "bytes": 0} for name in STANDINGS if name != "live"}
        self.pinned = {"records": 0, "bytes": 0}
        self.formats: dict[tuple[str, str], dict[str, int]] = {}
        self.identities: dict[str, dict[str, int]] = {}
        self.flaws = 0
        names = ("superblock", "headers", "footers", "live", "dead", "tombstones", "torn", "free")
        self.bytes: Json = dict.fromkeys((*names, "writers", "other_files", "total"), 0)

    def add(self, region: StoredRegion) -> Json:
        live = dead = tombstones = 0
        for record in region.records:
            size = region.bytes_of(record)
            if record.standing == "live":
                live += size
                self._live(record, size)
                continue
            _count(self.dead[record.standing], size)
            if record.standing == "tombstone":
                tombstones += size
            else:
                dead += size
        torn = max(0, min(region.torn_bytes, region.bytes - region.header_bytes - live - dead - tombstones))
        used = region.header_bytes + region.footer_bytes + live + dead + tombstones + torn
        parts = {
            "headers": region.header_bytes,
            "footers": region.footer_bytes,
            "live": live,
            "dead": dead,
            "tombstones": tombstones,
            "torn": torn,
            "free": region.bytes - used,
        }
        for name, size in parts.items():
            self.bytes[name] += size
        flaws = len(region.flaws) + sum(len(record.flaws) for record in region.records)
        self.flaws += flaws
        return {
            "file": region.file,
            "epoch": region.epoch,
            "state": region.state,
            "records": len(region.records),
            "live_records": sum(record.standing == "live" for record in region.records),
            "torn": region.torn,
            "bytes": {"total": region.bytes, **parts},
            "flaws": [_flaw(flaw, region.file) for flaw in region.flaws],
            "record_flaws": flaws - len(region.flaws),
        }

    def _live(self, record: StoredRecord, size: int) -> None:
        what = _what(record)
        kind = "boundary" if what == "tip" else what
        for counted in (self.kinds[kind], self.tips) if what == "tip" else (self.kinds[kind],):
            _count(counted, size)
            counted["longest_tokens"] = max(counted["longest_tokens"], record.tokens)
        name = (record.key.format.hex(), kind)
        _count(self.formats.setdefault(name, {"records": 0, "bytes": 0}), size)
        if _envelope_holds(record):
            _count(self.identities.setdefault(record.identity.hex(), {"records": 0, "bytes": 0}), size)
        if record.pinned:
            _count(self.pinned, size)


def _count(counted: dict[str, int], size: int) -> None:
    counted["records"] += 1
    counted["bytes"] += size


# ---- text -----------------------------------------------------------------------------------


def inspect_text(document: Json) -> str:
    """Return the text of an inspection."""
    lines = [*_head_lines(document), ""]
    lines += _record_lines(document)
    lines += writers_lines(document)
    lines += ["", *_region_lines(document["regions"]), ""]
    of = document["bytes"]
    lines += ["bytes: " + ", ".join(f"{name.replace('_', ' ')} {size:,}" for name, size in of.items() if size)]
    found = document["recovery"]
    lines += [
        f"opening it finds {found['records']:,} records; {found['scanned_regions']:,} regions to scan; left out: "
        f"{found['torn']:,} torn, {found['stale']:,} stale, {found['orphans']:,} orphans, {found['removed']:,} removed",
        f"its index takes {document['index_bytes']:,} bytes of memory",
    ]
    for file in document["other_files"]:
        size = f"{file['bytes']:,} bytes" if file["error"] is None else f"no regular file ({file['error']})"
        lines += [f"not of the store: {file['name']}, {size}"]
    if document["flaws"]:
        lines += [f"{document['flaws']:,} flaws in headers, footers or envelopes: hybridkv verify tells them"]
    for record in document["listed"] or ():
        lines += ["", *_listed_lines(record)]
    return page(lines)


def verify_text(document: Json) -> str:
    """Return the text of a verification."""
    seconds, read = document["seconds"], document["bytes_read"]
    lines = [
        *_head_lines(document),
        f"read {read:,} bytes in {seconds:.2f} s, {document['bytes_per_second'] / 1e9:.2f} GB/s: "
        f"{_records(document['records'])}, {document['live']:,} of them can be asked for",
    ]
    left = document["leftovers"]
    if left["torn"] or left["stale"]:
        lines += [
            f"left by a crash, or damaged since, and left out by any opening: {left['torn']:,} records that are not "
            f"whole ({left['torn_bytes']:,} bytes), {left['stale']:,} of a former life"
        ]
    for flaw in document["other_flaws"]:
        lines += [f"DAMAGED {flaw['file']} at {flaw['offset']:,}: {flaw['at']}: {flaw['damage']}"]
    for record in document["damaged"]:
        lines += _damaged_lines(record)
    lines += writers_error_lines(document)
    if document["unreadable"]:
        lines += [
            f"{_records(document['unreadable'])} cannot be read any more; {document['lost_with_them']:,} that stand on "
            "such go with them"
        ]
    if done := document["quarantined"]:
        statuses = ", ".join(f"{count:,} {name}" for name, count in done["statuses"].items()) or "nothing to do"
        lines += [f"quarantine: {statuses}; {_records(done['removed'])} removed, with what stood on them"]
        if done["rewritten"]:
            lines += [f"  {done['rewritten']:,} listings of tips written anew, so that the tips are found"]
        if done["reclaimed"]:
            lines += [f"  {done['reclaimed']:,} others made room for the tombstones: the file system is full"]
    lines += ["sound" if document["sound"] else "NOT SOUND"]
    return page(lines)


def _head_lines(document: Json) -> list[str]:
    return [f"{document['path']}: store {document['store']}, layout {document['layout_version']}"]


def _record_lines(document: Json) -> Iterator[str]:
    yield f"{'records':<12} {'number':>10} {'bytes':>18} {'longest prefix':>16}"
    for kind, counted in document["records"].items():
        longest = f"{counted['longest_tokens']:,} tokens"
        yield f"{kind:<12} {counted['records']:>10,} {counted['bytes']:>18,} {longest:>16}"
        if kind == "boundary" and (tips := document["tips"])["records"]:
            longest = f"{tips['longest_tokens']:,} tokens"
            yield f"  {'of tips':<10} {tips['records']:>10,} {tips['bytes']:>18,} {longest:>16}"
    for name, counted in (("pinned", document["pinned"]), *document["dead"].items()):
        yield f"  {name:<10} {counted['records']:>10,} {counted['bytes']:>18,}"
    yield ""
    yield f"{'format':<34} {'kind':<9} {'number':>10} {'bytes':>18}"
    for row in document["formats"]:
        yield f"{row['format']:<34} {row['kind']:<9} {row['records']:>10,} {row['bytes']:>18,}"


def _region_lines(regions: Iterable[Json]) -> Iterator[str]:
    names = ("live", "dead", "tombstones", "torn", "free")
    yield f"{'region':<16} {'epoch':>6} {'state':<8} {'records':>8}" + "".join(f" {name:>13}" for name in names)
    for row in regions:
        sizes = "".join(f" {row['bytes'][name]:>13,}" for name in names)
        yield f"{row['file']:<16} {row['epoch']:>6} {row['state']:<8} {row['records']:>8,}{sizes}"
        for flaw in row["flaws"]:
            yield f"  {flaw['at']} at {flaw['offset']:,}: {flaw['damage']}"


def _listed_lines(record: Json) -> Iterator[str]:
    tokens = "?" if record["tokens"] is None else f"{record['tokens']:,}"
    pinned = ", pinned" if record["pinned"] else ""
    yield f"{record['digest']} {_named(record)}, {record['standing']}{pinned}, {tokens} tokens"
    yield f"  {record['file']} at {record['offset']:,}, {record['bytes']:,} bytes, format {record['format']}"
    yield f"  parent {record['parent']}, identity {record['identity']}"
    yield f"  flags {record['flags']}, parts {record['parts']}"
    for flaw in record["flaws"]:
        yield f"  {_flaw_text(flaw)}"
    for part in record.get("part_table", ()):
        yield (
            f"  group {part['group']} layer {part['layer']} block {part['block']} rows {part['rows']}: "
            f"{part['bytes']:,} bytes at {part['offset']:,}, CRC {part['crc']:08x}"
        )


def _damaged_lines(record: Json) -> Iterator[str]:
    tokens = "? tokens" if record["tokens"] is None else f"{record['tokens']:,} tokens"
    what = "DAMAGED" if record["standing"] == "live" else f"damaged, and {record['standing']} already:"
    yield f"{what} {record['file']} at {record['offset']:,}: {_named(record)} {record['digest']}, {tokens}"
    for flaw in record["flaws"]:
        yield f"  {_flaw_text(flaw)}"
    if record["standing"] == "live" and record["readable"]:
        yield "  no content is touched"
    elif record["takes_along"]:
        yield f"  above it: {_records(record['takes_along'])}"


def _named(record: Json) -> str:
    kind, what = record["kind"], record["is"]
    return str(kind) if what == kind else f"{kind} ({what})"


def _records(number: int) -> str:
    return f"{number:,} record" + "s" * (number != 1)


def _flaw_text(flaw: Json) -> str:
    part = "" if flaw["part"] is None else f" {flaw['part']}"
    return f"{flaw['at']}{part} at {flaw['offset']:,}: {flaw['damage']}"


def digest(text: str) -> bytes:
    """Return the 16 bytes of a digest in hexadecimal.

    Raises
    ------
    ArgumentError
        It is none.
    """
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 16:
        raise ArgumentError("key", "32 hexadecimal digits", text)
    return found
