# SPDX-License-Identifier: Apache-2.0
"""Reading what ``hybridkv doctor`` and :func:`cache_facts` wrote: bounded, typed, and nothing but data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hybridkv.errors import ArgumentError
from hybridkv.regular_file import read_regular
from hybridkv.texts import path_text

SCHEMA = 1
"""Version of the objects that doctor writes and reads: it counts up when a field means something else or goes."""

MOST_BYTES = 4 << 20
_DEEPEST = 32
_MOST_DIGITS = 40
_SHOWN = 80

Json = dict[str, Any]


def read_document(field: str, path: str | Path, kind: str) -> Json:
    """Read one object of JSON that doctor wrote.

    Parameters
    ----------
    field : str
        What the refusal calls it.
    path : str or Path
        The file, at most 4 MiB of UTF-8.
    kind : {"host", "cache"}
        What it must be of.

    Returns
    -------
    dict

    Raises
    ------
    ArgumentError
        Naming what is wrong: no file, too long, no JSON, deeper than 32 levels, a name twice, another schema or kind.
    """
    name = path_text(field, path)
    try:
        raw = read_regular(name, MOST_BYTES)
    except OSError as error:
        raise ArgumentError(field, f"a file of at most {MOST_BYTES} bytes", f"{path}: {error.strerror}") from error
    return parse_document(field, raw, kind)


def parse_document(field: str, raw: bytes, kind: str) -> Json:
    """Parse the bytes of :func:`read_document`; the same refusals."""
    try:
        document = json.loads(raw.decode("utf-8"), parse_constant=_no_constant, parse_int=_int, object_pairs_hook=_once)
    except ArgumentError as error:
        raise ArgumentError(f"{field}.{error.field}", error.expected, error.got) from None
    except (ValueError, RecursionError) as error:
        raise ArgumentError(field, "one object of JSON in UTF-8", str(error)[:_SHOWN]) from error
    if not isinstance(document, dict):
        raise ArgumentError(field, "one object of JSON", type(document).__name__)
    if _depth(document) > _DEEPEST:
        raise ArgumentError(field, f"at most {_DEEPEST} levels", "more")
    schema = document.get("schema")
    if isinstance(schema, bool) or schema != SCHEMA or not isinstance(schema, int):
        raise ArgumentError(f"{field}.schema", f"{SCHEMA}, as this version writes it", shown(schema))
    if document.get("kind") != kind:
        raise ArgumentError(f"{field}.kind", repr(kind), shown(document.get("kind")))
    return document


def _no_constant(name: str) -> Any:
    raise ArgumentError("number", "a finite number", name)


def _int(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ArgumentError("number", f"at most {_MOST_DIGITS} digits", f"{len(text)} digits")
    return int(text)


def _once(pairs: list[tuple[str, Any]]) -> Json:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ArgumentError("names", "each name once in an object", shown(twice))
    return made


def _depth(document: object) -> int:
    deepest, level = 0, [document]
    while level:
        deepest += 1
        below: list[object] = []
        for value in level:
            below += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        level = below
    return deepest


def shown(value: object) -> str:
    """Return a value as text for a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


class Reader:
    """Fields of an object as the types that they must have; what is absent is None.

    Parameters
    ----------
    where : str
        What refusals call the object.
    document : object
    """

    def __init__(self, where: str, document: object) -> None:
        if not isinstance(document, dict):
            raise ArgumentError(where, "an object", shown(document))
        self.where, self._document = where, document

    def names(self) -> list[str]:
        """Names of the fields."""
        return list(self._document)

    def raw(self, name: str) -> object:
        """Return whatever is there, for who checks it."""
        return self._document.get(name)

    def require(self, name: str, value: object) -> None:
        """Refuse a field that is told and is another value than this."""
        told = self._document.get(name)
        if told is not None and (type(told), told) != (type(value), value):
            raise ArgumentError(f"{self.where}.{name}", f"{value!r}, as its manifest has", shown(told))

    def text(self, name: str) -> str | None:
        """Return a str."""
        value: str | None = self._typed(name, str, "a str")
        return value

    def flag(self, name: str) -> bool | None:
        """Return a bool."""
        value: bool | None = self._typed(name, bool, "true or false")
        return value

    def number(self, name: str) -> int | float | None:
        """Return a number, 0 or more."""
        value = self._document.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            raise ArgumentError(f"{self.where}.{name}", "a number, 0 or more", shown(value))
        return value

    def inside(self, name: str) -> Reader | None:
        """Return an object."""
        value = self._typed(name, dict, "an object")
        return None if value is None else Reader(f"{self.where}.{name}", value)

    def each(self, name: str) -> list[Reader] | None:
        """Return a list of objects."""
        value = self._typed(name, list, "a list of objects")
        if value is None:
            return None
        return [Reader(f"{self.where}.{name}[{number}]", item) for number, item in enumerate(value)]

    def texts(self, name: str) -> list[str] | None:
        """Return a list of str."""
        value = self._typed(name, list, "a list of str")
        if value is None:
            return None
        for item in value:
            if not isinstance(item, str):
                raise ArgumentError(f"{self.where}.{name}", "a list of str", shown(item))
        return list(value)

    def _typed(self, name: str, kind: type, expected: str) -> Any:
        value = self._document.get(name)
        if value is not None and not isinstance(value, kind):
            raise ArgumentError(f"{self.where}.{name}", expected, shown(value))
        return value
