# SPDX-License-Identifier: Apache-2.0
"""Identity: what must be equal, besides the tokens, before bytes may be reused."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import NoReturn

from hybridkv.coverage import real_number, truth
from hybridkv.errors import ArgumentError, SpecError
from hybridkv.formats.canonical import framed_digest
from hybridkv.texts import encodable

DIGEST_BYTES = (16, 64)
"""Fewest and most bytes of a declared digest: a shorter one can be met by chance, or on purpose."""

#: Begins the fifth part of a root that has declared fields; `extra` may not begin with it.
DECLARED_TAG = b"hybridkv declared 1\0"

_DEEPEST = 16  # mappings and lists in one another, of settings
_MOST_SETTINGS = 4096  # values, of one field

_FIRST = ("model", "weights", "adapter", "salt", "extra")
_DIGESTS = ("weights_digest", "adapter_digest", "kv_scales", "tokenizer", "draft")
_SETTINGS = ("rope", "quantisation")

Settings = Mapping[str, object] | tuple[object, ...] | None
"""What `rope=` and `quantisation=` take: a part of a configuration, or such a field of another identity."""


class _Salt(bytes):
    """A salt: bytes that nothing prints, pickles or copies out by accident."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<salt>"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __copy__(self) -> _Salt:
        return self

    def __deepcopy__(self, memo: object) -> _Salt:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a salt is not pickled: give the identity its salt where it is used")


@dataclass(frozen=True, repr=False)
class Identity:
    """The part of a key that is not tokens. Keys of different identities never match.

    Names alone do not tell two contents of one name apart: the digests do (:mod:`hybridkv.digests` computes them from
    files). A declared field that is not set is no part of a key, so that keys of identities without it stay what they
    are; set and not set differ.

    Parameters
    ----------
    model : str
        Name of the model.
    weights : str
        Revision of the weights.
    adapter : str
        Name and revision of an adapter (LoRA), empty without one.
    salt : bytes
        Separates tenants. Where they are hostile to one another it must be secret and set by the
        gateway: without it nobody can compute a key, nor search for two token sequences of one key. It
        is not shown by ``repr`` and not pickled.
    extra : bytes
        Whatever else changes the bytes.
    weights_digest : bytes, optional
        Of the content of the weights, 16 to 64 bytes.
    adapter_digest : bytes, optional
        Of the content of the adapter: two of one name do not share.
    rope : mapping, optional
        Settings of the rotary embedding: numbers, bools, strings, None, lists and mappings of them. 10000 and 10000.0
        are one value. Kept as a tuple.
    quantisation : mapping, optional
        Settings of how weights and activations are quantised, likewise.
    kv_dtype : str, optional
        Element type of the cache, such as ``"fp8_e4m3"``.
    kv_scales : bytes, optional
        Digest of the scales that the cache is quantised with.
    tokenizer : bytes, optional
        Digest of the tokenizer: ids of another one name other text.
    draft : bytes, optional
        Digest of the draft model and of how it is used; :attr:`digest` of its own identity, say.

    Raises
    ------
    SpecError
        A field is None where it may not be, of another type, empty, out of its bounds, or a text
        that UTF-8 cannot encode.

    Examples
    --------
    >>> Identity("gemma-3-1b", weights="r1") == Identity("gemma-3-1b", weights="r2")
    False
    >>> Identity("m", rope={"rope_theta": 1e4}) == Identity("m", rope={"rope_theta": 10000})
    True
    >>> Identity("m", salt=b"secret of tenant 1")
    Identity(model='m')
    """

    model: str = ""
    weights: str = ""
    adapter: str = ""
    salt: bytes = b""
    extra: bytes = b""
    weights_digest: bytes | None = field(default=None, kw_only=True)
    adapter_digest: bytes | None = field(default=None, kw_only=True)
    rope: Settings = field(default=None, kw_only=True)
    quantisation: Settings = field(default=None, kw_only=True)
    kv_dtype: str | None = field(default=None, kw_only=True)
    kv_scales: bytes | None = field(default=None, kw_only=True)
    tokenizer: bytes | None = field(default=None, kw_only=True)
    draft: bytes | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for name in _FIRST:
            _require(name, getattr(self, name), bytes if name in ("salt", "extra") else str)
        if self.extra.startswith(DECLARED_TAG):
            raise SpecError("identity.extra", "bytes that do not begin as those of declared fields do", "such bytes")
        if self.salt:
            object.__setattr__(self, "salt", _Salt(self.salt))
        for name in _DIGESTS:
            value = getattr(self, name)
            if value is None:
                continue
            _require(name, value, bytes)
            least, most = DIGEST_BYTES
            if not least <= len(value) <= most:
                raise SpecError(f"identity.{name}", f"a digest of {least} to {most} bytes", f"{len(value)} bytes")
        for name in _SETTINGS:
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, _settings(f"identity.{name}", value))
        if self.kv_dtype is not None:
            _require("kv_dtype", self.kv_dtype, str)
            if not self.kv_dtype:
                raise SpecError("identity.kv_dtype", "a name of a type", "an empty str")

    def parts(self) -> tuple[bytes, bytes, bytes, bytes, bytes]:
        """The five parts as bytes, in the order in which the root of a key frames them; the salt is one of them.

        The fifth is `extra`, or where a declared field is set: a tag, the SHA-256 of the declared fields, and `extra`.
        """
        declared = b"".join(_framed(name) + _framed(value) for name, value in self._declared())
        extra = DECLARED_TAG + hashlib.sha256(declared).digest() + self.extra if declared else bytes(self.extra)
        return (
            self.model.encode(),
            self.weights.encode(),
            self.adapter.encode(),
            bytes(self.salt),
            extra,
        )

    @property
    def salted(self) -> bool:
        """Whether it has a salt, of which nothing else is told."""
        return bool(self.salt)

    @property
    def digest(self) -> bytes:
        """32 bytes, SHA-256 of everything but the salt: to compare two sides, or as the `draft` of another identity."""
        model, weights, adapter, _, extra = self.parts()
        return hashlib.sha256(b"".join(_framed(part) for part in (model, weights, adapter, extra))).digest()

    @cached_property
    def fingerprint(self) -> bytes:
        """16 bytes that tell identities apart in a manifest and in a store's records; the salt is no part of them."""
        items = [(name, getattr(self, name)) for name in ("model", "weights", "adapter")]
        return framed_digest("hybridkv.identity", [*items, ("extra", self.parts()[-1])])

    def differences(self, other: Identity) -> tuple[str, ...]:
        """Tell the names of the fields in which another identity differs; of the salt no more than its name.

        Parameters
        ----------
        other : Identity

        Raises
        ------
        ArgumentError
            No Identity.
        """
        if not isinstance(other, Identity):
            raise ArgumentError("other", "an Identity", type(other).__name__)
        return tuple(f.name for f in fields(self) if getattr(self, f.name) != getattr(other, f.name))

    def _declared(self) -> Iterator[tuple[str, object]]:
        for name in (*_DIGESTS, *_SETTINGS, "kv_dtype"):
            value = getattr(self, name)
            if value is not None:
                yield name, value

    def __repr__(self) -> str:
        shown = ((f.name, getattr(self, f.name)) for f in fields(self) if f.name != "salt")
        return f"Identity({', '.join(f'{name}={value!r}' for name, value in shown if value)})"


def _require(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        got = "None" if value is None else type(value).__name__
        raise SpecError(f"identity.{name}", kind.__name__, got)
    if isinstance(value, str):
        encodable(f"identity.{name}", value)


def _settings(where: str, value: object) -> tuple[object, ...]:
    """Return settings in the one form that is hashed, in which they can be given again."""
    if not isinstance(value, Mapping) and not (isinstance(value, tuple) and value[:1] == ("mapping",)):
        raise SpecError(where, "a mapping", type(value).__name__)
    made = _plain(where, value, 0, [_MOST_SETTINGS])
    assert isinstance(made, tuple)
    return made


def _plain(where: str, value: object, depth: int, left: list[int]) -> object:
    """Return a value as nested tuples of plain ones; numbers that are whole are ints."""
    left[0] -= 1
    if depth > _DEEPEST or left[0] < 0:
        raise SpecError(where, f"at most {_MOST_SETTINGS} values, {_DEEPEST} deep", "more")
    if isinstance(value, Mapping) or (isinstance(value, tuple) and value[:1] == ("mapping",)):
        try:
            pairs = (
                [(key, value[key]) for key in value] if isinstance(value, Mapping) else [(k, v) for k, v in value[1:]]
            )
            items = dict(pairs)
        except (TypeError, ValueError):
            raise SpecError(where, "pairs of names and values", "something else") from None
        if not all(isinstance(key, str) for key in items):
            raise SpecError(where, "keys that are strings", [type(key).__name__ for key in items][:8])
        for key in items:
            encodable(where, key)
        return ("mapping", *((key, _plain(f"{where}[{key!r}]", items[key], depth + 1, left)) for key in sorted(items)))
    if isinstance(value, list) or (isinstance(value, tuple) and value[:1] == ("list",)):
        listed = value if isinstance(value, list) else value[1:]
        return ("list", *(_plain(where, item, depth + 1, left) for item in listed))
    if value is None:
        return value
    if isinstance(value, str):
        return encodable(where, value)
    if isinstance(value, tuple) and value in (("bool", False), ("bool", True)):
        return value
    if (told := truth(value)) is not None:
        return ("bool", told)  # else it would equal a number
    number = real_number(value)
    if isinstance(number, int):
        if number.bit_length() > 1024:
            raise SpecError(where, "numbers of at most 1024 bits", f"{number.bit_length()} bits")
        return number
    if isinstance(number, float):
        if not math.isfinite(number):
            raise SpecError(where, "finite numbers", value)
        return int(number) if number.is_integer() else number
    raise SpecError(where, "numbers, bools, strings, None, lists and mappings", type(value).__name__)


def _framed(value: object) -> bytes:
    """Encode a value as type, length and bytes, so that ("ab", "c") differs from ("a", "bc") and 1 from True."""
    if value is None:
        kind, body = b"n", b""
    elif isinstance(value, bool):
        kind, body = b"b", bytes([value])
    elif isinstance(value, int):
        kind, body = b"i", value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
    elif isinstance(value, float):
        kind, body = b"f", value.hex().encode()
    elif isinstance(value, str):
        kind, body = b"s", value.encode()
    elif isinstance(value, bytes):
        kind, body = b"y", value
    else:
        assert isinstance(value, tuple)
        kind, body = b"l", b"".join(_framed(item) for item in value)
    return kind + len(body).to_bytes(8, "big") + body
