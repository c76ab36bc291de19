# SPDX-License-Identifier: Apache-2.0
"""What one side declares of its cache, for another side to compare: groups, units, formats, ranks, identity, versions.

As bytes a manifest is one object of JSON, ``sort_keys``, without spaces, in ASCII. It is data: whatever comes is
parsed by ``json`` within bounds and checked field by field, and what is not a manifest is a typed error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from hybridkv.coverage import positive_int, whole_number
from hybridkv.errors import ArgumentError, SpecError
from hybridkv.formats.canonical import FINGERPRINT_BYTES, framed_digest
from hybridkv.formats.documents import from_document, to_document
from hybridkv.formats.kv_format import KvFormat
from hybridkv.formats.ranks import RankGeometry
from hybridkv.frozen_mapping import FrozenMapping
from hybridkv.texts import encodable

if TYPE_CHECKING:
    from hybridkv.identity import Identity
    from hybridkv.spec import CacheSpec

MANIFEST_SCHEMA = 1
"""Of the object that :meth:`Manifest.to_bytes` writes."""

MOST_BYTES = 1 << 20
"""Of a manifest as bytes."""

MOST_GROUPS = 64


@dataclass(frozen=True)
class GroupManifest:
    """What a side declares of one cache group.

    Parameters
    ----------
    name : str
    kind : int
        Number of the :class:`~hybridkv.StateKind`.
    coverage : tuple of (int, int)
        Rule and parameter.
    block_tokens, tokens_per_row, page_bytes : int
    row_bytes, rows_per_page : int or None
    layers : tuple of int or str
        Of the whole model, unique across stages.
    parts : tuple of (str, int)
        Names and bytes, in order; empty where layers are alike.
    draft : bool
        Whether it belongs to a draft head.
    format : KvFormat or None
    fingerprint : bytes
        16 bytes: what the core compares.
    """

    name: str
    kind: int
    coverage: tuple[int, int]
    block_tokens: int
    tokens_per_row: int
    page_bytes: int
    row_bytes: int | None
    rows_per_page: int | None
    layers: tuple[int | str, ...]
    parts: tuple[tuple[str, int], ...]
    draft: bool
    format: KvFormat | None
    fingerprint: bytes


@dataclass(frozen=True)
class Manifest:
    """What one side declares.

    Parameters
    ----------
    unit_tokens : int
        Tokens that one key names.
    groups : tuple of GroupManifest
        In spec order.
    ranks : RankGeometry
    identity : bytes
        16 bytes that stand for the identity, its salt left out.
    identity_parts : mapping of str to str
        A digest of each part of the identity but the salt, so that the part that differs can be named.
    key_profile, record_layout : int
        Version of the definition of keys, and of how pages become parts of a record.
    records : tuple of (bytes, bytes)
        Fingerprints of its block and boundary records in a tier, 16 bytes each.

    Examples
    --------
    >>> import hybridkv as hk
    >>> ours = Manifest.of(hk.CacheSpec.homogeneous(2, 64))
    >>> Manifest.from_bytes(ours.to_bytes()) == ours
    True
    """

    unit_tokens: int
    groups: tuple[GroupManifest, ...]
    ranks: RankGeometry
    identity: bytes
    identity_parts: Mapping[str, str]
    key_profile: int
    record_layout: int
    records: tuple[bytes, bytes]

    def __post_init__(self) -> None:
        object.__setattr__(self, "identity_parts", FrozenMapping(sorted(self.identity_parts.items())))

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @classmethod
    def of(cls, spec: CacheSpec, *, ranks: RankGeometry | None = None, draft: Iterable[str] = ()) -> Manifest:
        """Return the manifest of a spec.

        Parameters
        ----------
        spec : CacheSpec
        ranks : RankGeometry, optional
            In place of the spec's own.
        draft : iterable of str, optional
            Names of the groups of a draft head.

        Returns
        -------
        Manifest

        Raises
        ------
        ArgumentError
            No spec, no geometry; a name that no group has.
        """
        from hybridkv.keys import KEY_PROFILE
        from hybridkv.record_formats import RECORD_LAYOUT, record_formats
        from hybridkv.spec import CacheSpec

        if not isinstance(spec, CacheSpec):
            raise ArgumentError("spec", "a CacheSpec", type(spec).__name__)
        if ranks is not None and not isinstance(ranks, RankGeometry):
            raise ArgumentError("ranks", "a RankGeometry", type(ranks).__name__)
        if ranks is not None:
            spec = replace(spec, ranks=ranks)
        drafting = {spec.group(name).name for name in draft}
        groups = tuple(
            GroupManifest(
                name=group.name,
                kind=int(group.kind),
                coverage=(group.coverage.rule, group.coverage.parameter),
                block_tokens=group.block_tokens or spec.unit_tokens,
                tokens_per_row=group.tokens_per_row,
                page_bytes=group.page_bytes,
                row_bytes=group.row_bytes,
                rows_per_page=group.rows_per_page,
                layers=tuple(group.layers),
                parts=tuple((group.parts or {}).items()),
                draft=group.name in drafting,
                format=group.format,
                fingerprint=group.fingerprint,
            )
            for group in spec.groups
        )
        return cls(
            unit_tokens=spec.unit_tokens,
            groups=groups,
            ranks=spec.ranks,
            identity=spec.identity.fingerprint,
            identity_parts=_identity_parts(spec.identity),
            key_profile=KEY_PROFILE,
            record_layout=RECORD_LAYOUT,
            records=record_formats(spec),
        )

    @property
    def fingerprint(self) -> bytes:
        """16 bytes that stand for all of it."""
        return framed_digest("hybridkv.manifest", [("bytes", self.to_bytes())])

    def group(self, name: str) -> GroupManifest | None:
        """Return the group of a name, or None."""
        return next((group for group in self.groups if group.name == name), None)

    def to_bytes(self) -> bytes:
        """Return it as JSON in ASCII; the same for equal manifests."""
        document = {
            "schema": MANIFEST_SCHEMA,
            "unit_tokens": self.unit_tokens,
            "groups": [_group_document(group) for group in self.groups],
            "ranks": self.ranks.to_document(),
            "identity": self.identity.hex(),
            "identity_parts": dict(self.identity_parts),
            "key_profile": self.key_profile,
            "record_layout": self.record_layout,
            "records": [record.hex() for record in self.records],
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Read what :meth:`to_bytes` wrote, here or elsewhere.

        Parameters
        ----------
        data : bytes
            At most :data:`MOST_BYTES`; not trusted.

        Returns
        -------
        Manifest

        Raises
        ------
        SpecError
            It is no manifest, or one of a newer schema; naming the field.
        ArgumentError
            ``data`` is not bytes.
        """
        document = _parsed(data)
        schema = document.get("schema")
        if isinstance(schema, bool) or schema != MANIFEST_SCHEMA:
            raise SpecError("manifest.schema", f"{MANIFEST_SCHEMA}, the newest that this version reads", schema)
        _exactly("manifest", document, {"schema", *(f.name for f in fields(cls))})
        groups = _list("groups", document["groups"], MOST_GROUPS)
        ranks = _exactly("manifest.ranks", document["ranks"], None)
        parts = _exactly("manifest.identity_parts", document["identity_parts"], None)
        records = _list("records", document["records"], 2)
        if len(records) != 2:
            raise SpecError("manifest.records", "two fingerprints", len(records))
        made = cls(
            unit_tokens=positive_int("manifest.unit_tokens", document["unit_tokens"]),
            groups=tuple(_group(number, group) for number, group in enumerate(groups)),
            ranks=RankGeometry.from_document(ranks),
            identity=_digest("identity", document["identity"]),
            identity_parts={name: _digest("identity_parts", told).hex() for name, told in parts.items()},
            key_profile=positive_int("manifest.key_profile", document["key_profile"]),
            record_layout=positive_int("manifest.record_layout", document["record_layout"]),
            records=(_digest("records", records[0]), _digest("records", records[1])),
        )
        if len({group.name for group in made.groups}) != len(made.groups) or not made.groups:
            raise SpecError("manifest.groups", "at least one group, of different names", len(made.groups))
        return made


def _identity_parts(identity: Identity) -> dict[str, str]:
    """Return a digest of each part of an identity but the salt: equal where the parts are."""
    found = {}
    for f in fields(identity):
        value = getattr(identity, f.name)
        if f.name != "salt":
            found[f.name] = identity_part(f.name, value)
    return found


def identity_part(name: str, value: object) -> str:
    """Return what stands for one part of an identity in a manifest: 32 hex digits."""
    return framed_digest("hybridkv.identity.part", [(name, value)]).hex()


def _group_document(group: GroupManifest) -> dict[str, Any]:
    found = {f.name: getattr(group, f.name) for f in fields(GroupManifest)}
    return found | {
        "format": None if group.format is None else to_document(group.format),
        "fingerprint": group.fingerprint.hex(),
    }


def _parsed(data: object) -> dict[str, Any]:
    if not isinstance(data, bytes):
        raise ArgumentError("data", "bytes", type(data).__name__)
    if len(data) > MOST_BYTES:
        raise SpecError("manifest", f"at most {MOST_BYTES} bytes", len(data))
    try:
        found = json.loads(data.decode("ascii"), object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as why:  # bytes that are no ASCII, no JSON, or nested without end
        raise SpecError("manifest", "an object of JSON in ASCII", f"{type(why).__name__}: {why}") from None
    return _exactly("manifest", found, None)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise SpecError("manifest", "every name once", name)
        found[name] = value
    return found


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _exactly(where: str, value: object, names: set[str] | None) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SpecError(where, "an object", type(value).__name__)
    if names is not None and value.keys() != names:
        raise SpecError(where, ", ".join(sorted(names)), ", ".join(sorted(value)))
    for name in value:
        encodable(where, name)
    return value


def _list(name: str, value: object, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise SpecError(f"manifest.{name}", f"a list of at most {most}", type(value).__name__)
    return value


def _digest(name: str, value: object) -> bytes:
    if isinstance(value, str) and len(value) == 2 * FINGERPRINT_BYTES and set(value) <= set("0123456789abcdef"):
        return bytes.fromhex(value)
    raise SpecError(f"manifest.{name}", f"{2 * FINGERPRINT_BYTES} hex digits", value)


def _group(number: int, value: object) -> GroupManifest:
    where = f"manifest.groups[{number}]"
    told = _exactly(where, value, {f.name for f in fields(GroupManifest)})
    coverage = _list(f"groups[{number}].coverage", told["coverage"], 2)
    kind, rule, parameter = (
        _number(where, name, n) for name, n in zip(("kind", "rule", "parameter"), _three(told, coverage), strict=True)
    )
    if kind > 3 or rule > 3:
        raise SpecError(where, "a kind and a coverage rule, 0 to 3", (kind, rule))
    if not isinstance(told["name"], str) or not told["name"] or not isinstance(told["draft"], bool):
        raise SpecError(where, "a name, and draft true or false", (told["name"], told["draft"]))
    made = None if told["format"] is None else from_document(told["format"])
    fingerprint = _digest(f"groups[{number}].fingerprint", told["fingerprint"])
    if made is not None and made.fingerprint != fingerprint:
        raise SpecError(f"{where}.fingerprint", made.fingerprint.hex(), fingerprint.hex())
    sizes = {
        name: positive_int(f"{where}.{name}", told[name]) for name in ("block_tokens", "tokens_per_row", "page_bytes")
    }
    rows = {
        name: None if told[name] is None else positive_int(f"{where}.{name}", told[name])
        for name in ("row_bytes", "rows_per_page")
    }
    return GroupManifest(
        name=encodable(f"{where}.name", told["name"]),
        kind=kind,
        coverage=(rule, parameter),
        layers=_layers(where, told["layers"]),
        parts=_parts(where, told["parts"]),
        draft=told["draft"],
        format=made,
        fingerprint=fingerprint,
        **sizes,
        **rows,  # type: ignore[arg-type]
    )


def _three(told: dict[str, Any], coverage: list[Any]) -> tuple[Any, Any, Any]:
    return (told["kind"], *coverage) if len(coverage) == 2 else (told["kind"], None, None)


def _number(where: str, name: str, value: object) -> int:
    number = whole_number(value)
    if number is None or not 0 <= number < 1 << 48:
        raise SpecError(f"{where}.{name}", "an int >= 0, below 2**48", value)
    return number


def _layers(where: str, value: object) -> tuple[int | str, ...]:
    from hybridkv.group import layer_names

    if not isinstance(value, list):
        raise SpecError(f"{where}.layers", "a list", type(value).__name__)
    return layer_names(f"{where}.layers", value)


def _parts(where: str, value: object) -> tuple[tuple[str, int], ...]:
    if not isinstance(value, list) or any(not isinstance(pair, list) or len(pair) != 2 for pair in value):
        raise SpecError(f"{where}.parts", "a list of pairs", type(value).__name__)
    if any(not isinstance(name, str) for name, _ in value):
        raise SpecError(f"{where}.parts", "names of parts", value)
    return tuple((encodable(f"{where}.parts", name), positive_int(f"{where}.parts", size)) for name, size in value)
