# SPDX-License-Identifier: Apache-2.0
"""A mapping that nobody changes: what values that are hashed keep of a mapping that they were given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

_Value = TypeVar("_Value")


class FrozenMapping(Mapping[str, _Value]):
    """Names and values in the order in which they came; there is no way to set one.

    Two of them are equal where order, names and values are; a bool equals no number, as in what is hashed of it. With
    another mapping the order does not count.

    Parameters
    ----------
    items : iterable of (str, value)
        Each name once.

    Examples
    --------
    >>> kept = FrozenMapping([("factor", 16.0), ("truncate", True)])
    >>> kept == {"truncate": True, "factor": 16}, kept == {"truncate": 1, "factor": 16}
    (True, False)
    >>> kept["factor"] = 32.0
    Traceback (most recent call last):
    ...
    TypeError: 'FrozenMapping' object does not support item assignment
    """

    __slots__ = ("_values",)

    def __init__(self, items: Iterable[tuple[str, _Value]]) -> None:
        self._values = dict(items)

    def __getitem__(self, name: str) -> _Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        if isinstance(other, FrozenMapping) and tuple(self) != tuple(other):
            return False
        return self.keys() == other.keys() and all(_same(value, other[name]) for name, value in self.items())

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))

    def __repr__(self) -> str:
        return repr(self._values)

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenMapping, (tuple(self._values.items()),)


def _same(value: object, other: object) -> bool:
    return isinstance(value, bool) is isinstance(other, bool) and value == other


def as_json(value: object) -> object:
    """Return what ``json`` writes for a value: a dict for such a mapping, all else as it is."""
    return dict(value) if isinstance(value, FrozenMapping) else value
