# SPDX-License-Identifier: Apache-2.0
"""The manifest in the facts of a cache: written into them, and read back as data of others."""

from __future__ import annotations

import json
from collections.abc import Iterator

from hybridkv.coverage import Checkpoint, Chunk, Prefix, Window
from hybridkv.doctor.documents import Json, Reader, shown
from hybridkv.errors import ArgumentError, SpecError
from hybridkv.formats import Manifest
from hybridkv.formats.manifest import GroupManifest, identity_part
from hybridkv.kinds import StateKind
from hybridkv.texts import encodable

_RULES = {rule.rule: rule.__name__ for rule in (Prefix, Window, Chunk, Checkpoint)}
TOLD_OF_IDENTITY = ("model", "weights", "adapter")
"""Parts of an identity that facts have in words."""


def manifest_document(manifest: Manifest) -> Json:
    """Return a manifest as the object of JSON that :func:`manifest_of` reads."""
    made: Json = json.loads(manifest.to_bytes())
    return made


def told_of_group(group: GroupManifest) -> Json:
    """Return what facts tell of a group beside the manifest."""
    rule, parameter = group.coverage
    return {
        "name": group.name,
        "kind": StateKind(group.kind).name.lower(),
        "coverage": [_RULES[rule], parameter],
        "block_tokens": group.block_tokens,
        "page_bytes": group.page_bytes,
        "fingerprint": group.fingerprint.hex(),
    }


def manifest_of(cache: Reader) -> Manifest:
    """Read the manifest in the facts of a cache, which may not contradict what they tell beside it.

    Parameters
    ----------
    cache : Reader
        Of the facts; not trusted.

    Returns
    -------
    Manifest

    Raises
    ------
    ArgumentError
        There is none, it is none, or a fact differs from it; naming the field.
    """
    where = f"{cache.where}.manifest"
    document = cache.raw("manifest")
    if document is None:
        raise ArgumentError(where, "a manifest: facts of this version (hybridkv.doctor.cache_facts)", "none")
    try:
        made = Manifest.from_bytes(json.dumps(document).encode())
    except SpecError as error:
        raise ArgumentError(f"{cache.where}.{error.field}", error.expected, shown(error.got)) from error
    except (TypeError, ValueError, RecursionError) as error:  # what no JSON can say, from a caller
        raise ArgumentError(where, "an object of JSON", type(error).__name__) from error
    _check(cache, made)
    return made


def _check(cache: Reader, manifest: Manifest) -> None:
    """Refuse facts beside the manifest that it does not have."""
    for name in ("key_profile", "unit_tokens"):
        cache.require(name, getattr(manifest, name))
    identity = cache.inside("identity")
    if identity is not None:
        identity.require("fingerprint", manifest.identity.hex())
        for name, text in _words(identity):
            if name in manifest.identity_parts and identity_part(name, text) != manifest.identity_parts[name]:
                raise ArgumentError(f"{identity.where}.{name}", "what its manifest stands for", shown(text))
    groups = cache.each("groups")
    if groups is None:
        return
    if len(groups) != len(manifest.groups):
        raise ArgumentError(f"{cache.where}.groups", f"{len(manifest.groups)}, as its manifest has", len(groups))
    for told, group in zip(groups, manifest.groups, strict=True):
        for name, value in told_of_group(group).items():
            told.require(name, value)


def _words(identity: Reader) -> Iterator[tuple[str, str]]:
    for name in TOLD_OF_IDENTITY:
        text = identity.text(name)
        if text is not None:
            yield name, encodable(f"{identity.where}.{name}", text, ArgumentError)
