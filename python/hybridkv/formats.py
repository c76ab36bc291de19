# SPDX-License-Identifier: Apache-2.0
"""Formats: what the bytes of a page mean to the kernels that read them (the kernel ABI).

Equal size and equal dtype prove nothing: two engines may write 132-byte indexer rows of which one is rotated
by a Hadamard matrix and the other is not. A :class:`KvFormat` declares every field that was seen to change
bytes; two formats are compared by a fingerprint, and the difference is told field by field.
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any

from hybridkv.coverage import SIZE_LIMIT, encodable, positive_int, whole_number
from hybridkv.errors import ArgumentError, SpecError

INCOMPATIBLE = "incompatible"
CONVERTIBLE = "convertible"
COSMETIC = "cosmetic"

_FINGERPRINT_BYTES = 16


class Compatibility(IntEnum):
    """What a reader can do with the bytes of a writer."""

    EXACT = 0
    """Byte-exact: the bytes can be read as they are."""
    CONVERTIBLE = 1
    """The same information in another arrangement: a false hit with the remedy CONVERT."""
    INCOMPATIBLE = 2
    """The bytes mean something else."""


@dataclass(frozen=True)
class FieldDiff:
    """One field in which two formats differ.

    Parameters
    ----------
    field : str
        Name of the field of :class:`KvFormat`.
    ours, theirs : object
        The two values; None where a format does not declare the field.
    severity : str
        ``"incompatible"``, ``"convertible"`` or ``"cosmetic"``.
    """

    field: str
    ours: object
    theirs: object
    severity: str


def _declared(severity: str, default: Any = None) -> Any:
    """Declare an optional keyword field of a format, with what a difference in it means."""
    return field(default=default, kw_only=True, metadata={"severity": severity})


@dataclass(frozen=True)
class KvFormat:
    """The declared format of the pages of a cache group.

    A field that is None (or an empty string) is not declared: it does not enter the fingerprint, so that
    fields added later leave old fingerprints as they are. A declared and an undeclared field differ.

    Parameters
    ----------
    layout : str
        Name of the row or state layout, such as ``"fp8_ds_mla"``.
    dtype : str
        Element type of the main part, such as ``"float8_e4m3"`` or ``"bfloat16"``.
    scale : str, optional
        Encoding of scales: ``"float32"``, ``"ue8m0"``, ``"e4m3"``.
    tile : int, optional
        Elements that share a scale.
    scale_placement : str, optional
        ``"inline"``, ``"page_footer"`` or ``"pool"``. Convertible.
    scale_floor : float, optional
        Smallest absolute maximum before a scale is derived.
    rope_dims : int, optional
        Rotated channels of a row.
    position_convention : str, optional
        Which position a row is rotated at, and how: pairs or halves.
    theta : float, optional
        Base of the rotary embedding.
    yarn : mapping of str to number or str, optional
        Scaling parameters of the rotary embedding (YaRN and its kin).
    hadamard : bool, optional
        Whether rows are rotated by a Hadamard matrix before they are quantised.
    norm_eps : float, optional
        Epsilon of the norm that the rows went through.
    rounding_point : str, optional
        Where values are rounded, such as ``"before_norm"`` or ``"after_norm"``.
    ratio : int, optional
        Tokens that one row stands for.
    overlap : bool, optional
        Whether a row also draws on the window before its own.
    state_format : str, optional
        Order of the rows of a state: ``"rows_mod_ring"``, ``"reference_order"``, ``"online_triple"``.
    bias_added : bool, optional
        Whether stored scores carry their position bias.
    ring_rows : int, optional
        Rows of the ring that a state is kept in. Convertible.
    spec_width : int, optional
        Draft tokens that the ring makes room for, 0 for none. Convertible.
    row_bytes : int, optional
        Bytes of one row of one layer.
    page_rows, page_stride, alignment, footer_offset : int, optional
        Rows of a page; bytes from page to page; alignment of the page base; offset of the scales in bytes.
        Convertible: they say where bytes lie, not what they mean.
    shard : str, optional
        Shard rule over tensor, pipeline and context ranks. Convertible.
    roles : mapping of str to str, optional
        Which layer plays which role.
    family, model, weights : str, optional
        Model family, model id and weights revision.
    kernel_version : str, optional
        Version of the package whose kernels wrote the bytes, where bytes depend on it.
    gpu_family : str, optional
        GPU family, where bytes depend on it.
    producer : str, optional
        Name of the engine. Cosmetic: no part of the fingerprint.
    schema : int, optional
        Version of this list of fields.

    Raises
    ------
    SpecError
        A field of a wrong type or out of range: ints are 0 or more and below 2**48, numbers are finite, strings
        are such that UTF-8 can encode them.

    Examples
    --------
    >>> ours = KvFormat("fp8_ds_mla", "float8_e4m3", scale="ue8m0", tile=64, page_rows=64)
    >>> theirs = KvFormat("fp8_ds_mla", "float8_e4m3", scale="ue8m0", tile=64, page_rows=128, producer="x")
    >>> [(d.field, d.severity) for d in ours.diff(theirs)]
    [('page_rows', 'convertible'), ('producer', 'cosmetic')]
    >>> compatible(ours, theirs).name
    'CONVERTIBLE'
    >>> len(ours.fingerprint)
    16
    """

    layout: str = field(metadata={"severity": INCOMPATIBLE})
    dtype: str = field(metadata={"severity": INCOMPATIBLE})
    scale: str | None = _declared(INCOMPATIBLE)
    tile: int | None = _declared(INCOMPATIBLE)
    scale_placement: str | None = _declared(CONVERTIBLE)
    scale_floor: float | None = _declared(INCOMPATIBLE)
    rope_dims: int | None = _declared(INCOMPATIBLE)
    position_convention: str | None = _declared(INCOMPATIBLE)
    theta: float | None = _declared(INCOMPATIBLE)
    yarn: Mapping[str, object] | None = _declared(INCOMPATIBLE)
    hadamard: bool | None = _declared(INCOMPATIBLE)
    norm_eps: float | None = _declared(INCOMPATIBLE)
    rounding_point: str | None = _declared(INCOMPATIBLE)
    ratio: int | None = _declared(INCOMPATIBLE)
    overlap: bool | None = _declared(INCOMPATIBLE)
    state_format: str | None = _declared(INCOMPATIBLE)
    bias_added: bool | None = _declared(INCOMPATIBLE)
    ring_rows: int | None = _declared(CONVERTIBLE)
    spec_width: int | None = _declared(CONVERTIBLE)
    row_bytes: int | None = _declared(INCOMPATIBLE)
    page_rows: int | None = _declared(CONVERTIBLE)
    page_stride: int | None = _declared(CONVERTIBLE)
    alignment: int | None = _declared(CONVERTIBLE)
    footer_offset: int | None = _declared(CONVERTIBLE)
    shard: str | None = _declared(CONVERTIBLE)
    roles: Mapping[str, object] | None = _declared(INCOMPATIBLE)
    family: str = _declared(INCOMPATIBLE, "")
    model: str = _declared(INCOMPATIBLE, "")
    weights: str = _declared(INCOMPATIBLE, "")
    kernel_version: str = _declared(INCOMPATIBLE, "")
    gpu_family: str = _declared(INCOMPATIBLE, "")
    producer: str = _declared(COSMETIC, "")
    schema: int = _declared(INCOMPATIBLE, 1)

    def __post_init__(self) -> None:
        for name in ("layout", "dtype"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise SpecError(f"format.{name}", "a non-empty str", value)
        positive_int("format.schema", self.schema)
        for f in fields(self):
            value = getattr(self, f.name)
            if value is not None or "None" not in str(f.type):
                object.__setattr__(self, f.name, _normal(f.name, str(f.type), value))

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @property
    def fingerprint(self) -> bytes:
        """16 bytes, the same in every process: equal exactly where no field but cosmetic ones differs."""
        return framed_digest("hybridkv.format", self._declared_items())

    @property
    def namespace(self) -> str:
        """Short name for stores that know only strings: layout, dtype and 64 bits of the fingerprint.

        Made of letters, digits, ``_``, ``.`` and ``-``, so that it is a file name and a tag alike.
        """
        readable = re.sub(r"[^A-Za-z0-9_.]+", "_", f"{self.layout}.{self.dtype}")
        return f"{readable}-{self.fingerprint.hex()[:16]}"

    def diff(self, other: KvFormat) -> list[FieldDiff]:
        """Tell every field in which another format differs, in order of declaration.

        Parameters
        ----------
        other : KvFormat
            The other side.

        Returns
        -------
        list of FieldDiff
            Empty where the formats are equal.

        Raises
        ------
        ArgumentError
            ``other`` is no KvFormat.
        """
        if not isinstance(other, KvFormat):
            raise ArgumentError("other", "a KvFormat", other)
        pairs = ((f, getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return [FieldDiff(f.name, a, b, f.metadata["severity"]) for f, a, b in pairs if a != b]

    def _declared_items(self) -> Iterable[tuple[str, object]]:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.metadata["severity"] != COSMETIC and value is not None and value != "":
                yield f.name, value


def compatible(reader: KvFormat, writer: KvFormat) -> Compatibility:
    """Tell what a reader can do with the bytes of a writer.

    Parameters
    ----------
    reader, writer : KvFormat
        The format that is needed, and the one that the bytes were written in.

    Returns
    -------
    Compatibility
        EXACT: no field but cosmetic ones differs. CONVERTIBLE: only where bytes lie differs.
        INCOMPATIBLE: all else.

    Raises
    ------
    ArgumentError
        An argument that is no KvFormat.

    Examples
    --------
    >>> compatible(KvFormat("a", "bfloat16"), KvFormat("a", "float16")).name
    'INCOMPATIBLE'
    """
    if not isinstance(reader, KvFormat):
        raise ArgumentError("reader", "a KvFormat", reader)
    if not isinstance(writer, KvFormat):
        raise ArgumentError("writer", "a KvFormat", writer)
    severities = {d.severity for d in reader.diff(writer)}
    if INCOMPATIBLE in severities:
        return Compatibility.INCOMPATIBLE
    return Compatibility.CONVERTIBLE if CONVERTIBLE in severities else Compatibility.EXACT


def framed_digest(tag: str, items: Iterable[tuple[str, object]]) -> bytes:
    """Return the first 16 bytes of SHA-256 over named values, each framed by its length.

    Parameters
    ----------
    tag : str
        What the digest is of; digests of different tags never meet.
    items : iterable of (str, object)
        Names and values: None, bool, int, float, str, bytes, or mappings and sequences of those.

    Returns
    -------
    bytes
        16 bytes.
    """
    digest = hashlib.sha256(_canonical(tag))
    for name, value in items:
        digest.update(_canonical(name) + _canonical(value))
    return digest.digest()[:_FINGERPRINT_BYTES]


def _canonical(value: object) -> bytes:
    """Encode a value as type, length and bytes, so that ("ab", "c") differs from ("a", "bc")."""
    if value is None:
        kind, body = b"n", b""
    elif isinstance(value, bool):
        kind, body = b"b", b"\1" if value else b"\0"
    elif isinstance(value, int):
        kind, body = b"i", str(value).encode()
    elif isinstance(value, float):
        kind, body = b"f", struct.pack(">d", value)
    elif isinstance(value, str):
        kind, body = b"s", value.encode()
    elif isinstance(value, bytes):
        kind, body = b"y", value
    elif isinstance(value, Mapping):
        kind, body = b"m", b"".join(_canonical(str(k)) + _canonical(value[k]) for k in sorted(value, key=str))
    elif isinstance(value, (tuple, list)):
        kind, body = b"l", b"".join(_canonical(v) for v in value)
    else:
        raise ArgumentError("value", "None, bool, int, float, str, bytes, a mapping or a sequence", value)
    return kind + struct.pack(">Q", len(body)) + body


def _normal(name: str, declared: str, value: object) -> object:
    """Return a field's value in the one form that is hashed, or raise :class:`SpecError`."""
    where = f"format.{name}"
    if declared.startswith("Mapping"):
        if not isinstance(value, Mapping):
            raise SpecError(where, "a mapping", value)
        items = sorted(((encodable(where, str(k)), v) for k, v in value.items()), key=lambda item: item[0])
        return {k: _scalar(f"{where}[{k!r}]", v) for k, v in items}
    wanted = declared.split(" ")[0]
    if wanted == "float" and isinstance(value, (int, float)) and not isinstance(value, bool):
        return _finite(where, value)
    if wanted == "int":
        number = whole_number(value)
        if number is not None and 0 <= number < SIZE_LIMIT:
            return number
    if wanted == "bool" and isinstance(value, bool):
        return value
    if wanted == "str" and isinstance(value, str):
        return encodable(where, value)
    expected = {"int": "an int >= 0, below 2**48", "float": "a number"}.get(wanted, f"a {wanted}")
    raise SpecError(where, expected, value)


def _scalar(where: str, value: object) -> object:
    """Numbers become floats, so that 16 and 16.0 in two configs are one value."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return encodable(where, value)
    if isinstance(value, (int, float)):
        return _finite(where, value)
    raise SpecError(where, "a number, a bool or a str", value)


def _finite(where: str, value: int | float) -> float:
    """One value for -0.0 and 0.0; none that differs from itself."""
    try:
        number = float(value) + 0.0
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise SpecError(where, "a finite number", value)
    return number
