# SPDX-License-Identifier: Apache-2.0
"""Two caches side by side: their manifests are compared by the one rule, :func:`hybridkv.formats.negotiate`."""

from __future__ import annotations

from collections.abc import Iterator

from hybridkv.doctor.documents import Json, Reader
from hybridkv.doctor.manifests import TOLD_OF_IDENTITY, manifest_of
from hybridkv.doctor.severities import COSMETIC, FALSE_HIT, LOST_HITS, REFUSED, difference
from hybridkv.formats import COSMETIC as SAME_BYTES
from hybridkv.formats import Difference, Manifest, negotiate

_OF_KEYS = ("identity", "unit_tokens", "key_profile")
"""Fields by which keys of one are never keys of the other."""


def cache_differences(a: Reader | None, b: Reader | None) -> Iterator[Json]:
    """Tell what differs between two caches, as far as facts of both are there.

    Raises
    ------
    ArgumentError
        Facts without a manifest, or that contradict it.
    """
    if a is None or b is None:
        return
    ours, theirs = manifest_of(a), manifest_of(b)
    for found in negotiate(ours, theirs).differences:
        yield _told(found, a, b)
    yield from _undeclared(ours, theirs)
    yield from _salts(a.inside("identity"), b.inside("identity"))
    if a.text("verify") != b.text("verify"):
        consequence = "damaged bytes are noticed where pages are verified, and read where they are not"
        severity = FALSE_HIT if "off" in (a.text("verify"), b.text("verify")) else COSMETIC
        yield difference("cache.verify", a.text("verify"), b.text("verify"), severity, consequence)


def _told(found: Difference, a: Reader, b: Reader) -> Json:
    """Return a difference of two manifests as one of doctor's."""
    field, ours, theirs = f"cache.{found.field}", found.ours, found.theirs
    if found.group:
        field = f"cache.groups.{found.group}" + ("" if found.field == "group" else f".{found.field}")
    part = found.field.removeprefix("identity.")
    if part in TOLD_OF_IDENTITY:
        one, other = a.inside("identity"), b.inside("identity")
        ours, theirs = one.text(part) if one else ours, other.text(part) if other else theirs
    if found.severity == SAME_BYTES:
        return difference(field, ours, theirs, COSMETIC, "nothing: the bytes are read as they are")
    if found.field.partition(".")[0] in _OF_KEYS:
        return difference(field, ours, theirs, LOST_HITS, f"keys never meet: {found.reason}")
    if found.reason:
        return difference(field, ours, theirs, REFUSED, f"what one wrote is refused by the other: {found.reason}")
    consequence = "other records, found by nobody on the other side, unless they are converted, which loses nothing"
    return difference(field, ours, theirs, LOST_HITS, consequence)


def _undeclared(ours: Manifest, theirs: Manifest) -> Iterator[Json]:
    """Tell groups whose sizes agree and whose formats nobody declares."""
    for group in ours.groups:
        other = theirs.group(group.name)
        if other is not None and group.format is None and group.fingerprint == other.fingerprint:
            consequence = (
                "sizes agree and no format is declared: equal size proves nothing, every hit may be a false one"
            )
            yield difference(f"cache.groups.{group.name}.format", None, None, FALSE_HIT, consequence)


def _salts(one: Reader | None, other: Reader | None) -> Iterator[Json]:
    salted, its = (one.flag("salted") if one else None), (other.flag("salted") if other else None)
    if salted != its:
        consequence = (
            "keys of one are salted, of the other not: they never meet; whose are not can be guessed by tenants"
        )
        yield difference("cache.identity.salted", salted, its, LOST_HITS, consequence)
