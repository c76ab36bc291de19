# SPDX-License-Identifier: Apache-2.0
"""Two hosts, or two caches, side by side: what would be a false hit between them, and what is only lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hybridkv.doctor.cache_comparison import cache_differences
from hybridkv.doctor.documents import SCHEMA, Json, Reader
from hybridkv.doctor.severities import (
    COSMETIC,
    FALSE_HIT,
    LOST_HITS,
    REFUSED,
    SEVERITIES,
    UNEQUAL,
    difference,
)

_MOST_DIFFERENCES = 1000


def compare(ours: Json, theirs: Json) -> Json:
    """Tell what differs between two hosts of which both wrote down their facts.

    Parameters
    ----------
    ours, theirs : dict
        What :func:`~hybridkv.doctor.doctor` returned, with ``cache`` where facts of one were given.

    Returns
    -------
    dict
        ``differences``, worst first: ``field``, ``ours``, ``theirs``, ``severity``, ``consequence``; ``counts`` of each
        severity; ``cannot_tell``, what neither facts decide.

    Raises
    ------
    ArgumentError
        A fact of a wrong type.
    """
    a, b = Reader("ours", ours), Reader("theirs", theirs)
    found = [
        *_versions(a, b),
        *_engines(a, b),
        *_formats(a, b),
        *_gpus(a, b),
        *cache_differences(a.inside("cache"), b.inside("cache")),
    ]
    found.sort(key=lambda found: SEVERITIES.index(found["severity"]))
    counts = {severity: sum(d["severity"] == severity for d in found) for severity in SEVERITIES}
    return {
        "schema": SCHEMA,
        "kind": "comparison",
        "counts": counts,
        "differences": found[:_MOST_DIFFERENCES],
        "cannot_tell": _cannot_tell(a, b),
    }


_NUMBERS = (
    ("key_profile", LOST_HITS, "keys of one are found by nobody on the other: every look-up there is a miss"),
    (
        "format_schema",
        LOST_HITS,
        "fingerprints of the same format differ: what one wrote is another format to the other",
    ),
    ("record_version", REFUSED, "records of one are refused by the other as of another version"),
    (
        "store_version",
        REFUSED,
        "a store of the newer one is refused by the older one; the older is migrated or refused",
    ),
)
_TEXTS = (
    ("hybridkv", COSMETIC, "nothing by itself: what changes bytes has a number of its own above"),
    ("torch", UNEQUAL, "other kernels of torch: recomputing gives other last bits, so a canary needs a tolerance"),
    ("python", COSMETIC, "nothing: keys and fingerprints are the same in every Python"),
    ("numpy", COSMETIC, "nothing: no byte of a page depends on it"),
    ("platform", COSMETIC, "nothing: keys and fingerprints are the same on every platform"),
)


def _versions(a: Reader, b: Reader) -> Iterator[Json]:
    for field, severity, consequence in _NUMBERS:
        ours, theirs = a.number(field), b.number(field)
        if ours != theirs:
            yield difference(field, ours, theirs, severity, consequence)
    for field, severity, consequence in _TEXTS:
        text, other = a.text(field), b.text(field)
        if text != other:
            yield difference(field, text, other, severity, consequence)


def _engines(a: Reader, b: Reader) -> Iterator[Json]:
    ours, theirs = a.inside("engines"), b.inside("engines")
    for name in dict.fromkeys((ours.names() if ours else []) + (theirs.names() if theirs else [])):
        one, other = ours.inside(name) if ours else None, theirs.inside(name) if theirs else None
        version, its = one.text("version") if one else None, other.text("version") if other else None
        if version == its:
            continue
        field = f"engines.{name}"
        if version is None or its is None:
            yield difference(
                field, version, its, COSMETIC, f"{name} runs on one of them only: nothing of its is shared"
            )
        elif not (one and one.flag("known") and other and other.flag("known")):
            consequence = (
                f"nothing is known of what one of these versions of {name} writes: unless both declare their formats "
                "and kernel_version, bytes of equal size would be taken for one's own"
            )
            yield difference(field, version, its, FALSE_HIT, consequence)
        elif one.text("revision") != other.text("revision"):
            consequence = (
                f"states of the same names and shapes with other numbers ({one.text('revision') or 'none'} against "
                f"{other.text('revision') or 'none'}): a hit changes every output unless kernel_version is declared"
            )
            yield difference(field, version, its, FALSE_HIT, consequence)
        else:
            yield difference(
                field, version, its, UNEQUAL, f"both versions of {name} are known to write the same formats"
            )


def _formats(a: Reader, b: Reader) -> Iterator[Json]:
    ours, theirs = _by_name(a), _by_name(b)
    for key in dict.fromkeys([*ours, *theirs]):
        field = f"formats.{key[0]}.{key[1]}"
        one, other = ours.get(key), theirs.get(key)
        if one is None or other is None:
            there: tuple[object, object] = ("written", None) if one is not None else (None, "written")
            consequence = "written on one of them only; where keys meet, the other tells it by its fingerprint: ABI"
            yield difference(field, *there, REFUSED, consequence)
            continue
        mine, its = one.text("fingerprint"), other.text("fingerprint")
        if mine != its and mine is not None and its is not None:
            consequence = (
                "one name, two meanings: told apart by fingerprint (ABI), and by name alone taken for one's own"
            )
            yield difference(field, mine, its, FALSE_HIT, consequence)
        here, there_too = one.flag("written_here"), other.flag("written_here")
        if here is not None and there_too is not None and here != there_too:
            severity, consequence = _written_on_one(one, theirs if here else ours)
            yield difference(f"{field}.written_here", here, there_too, severity, consequence)


def _written_on_one(entry: Reader, others: Mapping[tuple[str, str], Reader]) -> tuple[str, str]:
    """Judge a format that the engine writes on the GPUs of one host; `others` are what it may write on the other's."""
    size = entry.number("row_bytes")
    for (engine, name), its in others.items():
        there = engine == entry.text("engine") and name != entry.text("name") and its.flag("written_here")
        if there and size is not None and size == its.number("row_bytes"):
            consequence = (
                f"rows of {size} bytes are {name} on the other's GPUs: equal size, other bytes; a false hit unless "
                "the scale or gpu_family is declared"
            )
            return FALSE_HIT, consequence
    if size is None:
        return (
            FALSE_HIT,
            "whether the other's GPUs write rows of this size in another format is not known: declare formats",
        )
    return REFUSED, "no rows of this size are written on the other's GPUs: told by size, and by its fingerprint (ABI)"


def _by_name(side: Reader) -> dict[tuple[str, str], Reader]:
    listed = side.each("formats") or []
    return {(entry.text("engine") or "", entry.text("name") or ""): entry for entry in listed}


def _gpus(a: Reader, b: Reader) -> Iterator[Json]:
    ours, theirs = a.inside("gpu"), b.inside("gpu")
    mine = (ours.texts("families") if ours else None) or []
    its = (theirs.texts("families") if theirs else None) or []
    if mine and its and mine != its:
        consequence = (
            "formats whose bytes depend on the GPU family differ at equal size: declare gpu_family in the format"
        )
        yield difference("gpu.families", ", ".join(mine), ", ".join(its), FALSE_HIT, consequence)
    elif bool(mine) != bool(its):
        consequence = "one of them sees no GPU: whether its bytes are the other's cannot be told from here"
        yield difference("gpu.families", ", ".join(mine) or None, ", ".join(its) or None, UNEQUAL, consequence)
    if (ours and ours.text("driver")) != (theirs and theirs.text("driver")):
        told = (ours and ours.text("driver"), theirs and theirs.text("driver"))
        yield difference("gpu.driver", *told, COSMETIC, "nothing by itself: bytes do not depend on the driver")


def _cannot_tell(a: Reader, b: Reader) -> list[str]:
    told = ["whether two salts are the same: nothing of a salt is written down but whether one is set"]
    if a.inside("cache") is None or b.inside("cache") is None:
        told.append("units, identities, groups and declared formats: no facts of a cache on both sides (--cache)")
    for side in (a, b):
        engines = side.inside("engines")
        for name in engines.names() if engines else []:
            inside = engines.inside(name) if engines else None
            if inside is not None and inside.flag("known") is False:
                told.append(f"{side.where}: which formats {name} {inside.text('version')} writes")
    return told
