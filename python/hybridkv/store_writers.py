# SPDX-License-Identifier: Apache-2.0
"""Who wrote into a store, as ``hybridkv inspect`` and ``hybridkv verify`` say it: what is theirs, and what differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from hybridkv.formats.manifest import Manifest
from hybridkv.formats.negotiation import negotiate
from hybridkv.tiers import RecordKind, Store

Json = dict[str, Any]


def writers_of(store: Store, formats: Mapping[tuple[str, str], Mapping[str, int]]) -> Json:
    """Name the writers that the store's file knows, the last to come last.

    Parameters
    ----------
    store : Store
    formats : mapping of (str, str) to mapping
        By fingerprint and kind of record: how many ``"records"`` are there.

    Returns
    -------
    dict
        ``writers``, each with what differs from the last one, as the last one would be told of it; and
        ``writers_error``, what is wrong with the file.
    """
    known = store.writers.manifests
    return {
        "writers": [_writer(writer, known[-1], formats) for writer in known],
        "writers_error": store.writers.error,
    }


def _writer(writer: Manifest, last: Manifest, formats: Mapping[tuple[str, str], Mapping[str, int]]) -> Json:
    records = {kind.name.lower(): form.hex() for kind, form in zip(RecordKind, writer.records, strict=False)}
    told = negotiate(last, writer)
    return {
        "manifest": writer.fingerprint.hex(),
        "identity": writer.identity.hex(),
        "unit_tokens": writer.unit_tokens,
        "key_profile": writer.key_profile,
        "ranks": asdict(writer.ranks),
        "groups": [group.name for group in writer.groups],
        "formats": records,
        "records": {kind: formats.get((form, kind), {"records": 0})["records"] for kind, form in records.items()},
        "differs": [
            {"where": d.where, "last": _told(d.ours), "here": _told(d.theirs), "severity": d.severity}
            for d in told.differences
        ],
    }


def _told(value: object) -> object:
    """Return a value of a manifest as JSON has it."""
    plain = value is None or isinstance(value, (bool, int, float, str))
    return value if plain else str(value)


def writers_lines(document: Json) -> Iterator[str]:
    """Return the text of what :func:`writers_of` named."""
    if document["writers"] or document["writers_error"]:
        yield ""
    for row in document["writers"]:
        records = ", ".join(f"{count:,} {kind}" for kind, count in row["records"].items())
        yield f"writer {row['manifest'][:8]}: records of its formats {records}; identity {row['identity']}"
        yield from (f"  {d['where']}: {d['here']!r}, of the last writer {d['last']!r}" for d in row["differs"])
    yield from writers_error_lines(document)


def writers_error_lines(document: Json) -> Iterator[str]:
    """Return the line of what is wrong with the file of writers, if anything is."""
    if document["writers_error"]:
        yield f"who wrote cannot all be told: {document['writers_error']}; no record is touched by that"
