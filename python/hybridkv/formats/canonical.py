# SPDX-License-Identifier: Apache-2.0
"""One way to write named values as bytes, the same in every process, Python version and platform, and its digest.

A value is its kind, the length of its body and the body, so that ("ab", "c") differs from ("a", "bc")::

    kind 1 byte | length u64, big endian | body

    n None   b bool: 00 or 01   i int: decimal digits in ASCII   f float: IEEE 754 binary64, big endian
    s str: UTF-8   y bytes   l sequence: its values   m mapping: names and values by turns, names in code point order

Nothing of it depends on hashes, on the order of a mapping or on how Python prints a number.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping

from hybridkv.errors import ArgumentError

FINGERPRINT_BYTES = 16
"""Of SHA-256, the first: 128 bits, as wide as a key."""


def canonical_bytes(tag: str, items: Iterable[tuple[str, object]]) -> bytes:
    """Return named values as bytes, in the given order, behind a tag that says what they are of.

    Parameters
    ----------
    tag : str
        What the bytes describe; those of different tags never meet.
    items : iterable of (str, object)
        Names and values: None, bool, int, float, str, bytes, or mappings and sequences of those.

    Returns
    -------
    bytes

    Raises
    ------
    ArgumentError
        A value of another type.
    """
    return _value(tag) + b"".join(_value(name) + _value(value) for name, value in items)


def framed_digest(tag: str, items: Iterable[tuple[str, object]]) -> bytes:
    """Return the first 16 bytes of SHA-256 over :func:`canonical_bytes`.

    Parameters
    ----------
    tag, items
        As of :func:`canonical_bytes`.

    Returns
    -------
    bytes
        16 bytes.
    """
    return hashlib.sha256(canonical_bytes(tag, items)).digest()[:FINGERPRINT_BYTES]


def _value(value: object) -> bytes:
    if value is None:
        kind, body = b"n", b""
    elif isinstance(value, bool):
        kind, body = b"b", b"\1" if value else b"\0"
    elif isinstance(value, int):
        kind, body = b"i", b"%d" % value
    elif isinstance(value, float):
        kind, body = b"f", struct.pack(">d", value)
    elif isinstance(value, str):
        kind, body = b"s", value.encode("utf-8", "surrogatepass")
    elif isinstance(value, bytes):
        kind, body = b"y", value
    elif isinstance(value, Mapping):
        kind, body = b"m", b"".join(_value(str(k)) + _value(value[k]) for k in sorted(value, key=str))
    elif isinstance(value, (tuple, list)):
        kind, body = b"l", b"".join(_value(v) for v in value)
    else:
        raise ArgumentError("value", "None, bool, int, float, str, bytes, a mapping or a sequence", value)
    return kind + struct.pack(">Q", len(body)) + body
