# SPDX-License-Identifier: Apache-2.0
"""Values of the fields of a format, each in the one form that is hashed."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hybridkv.coverage import SIZE_LIMIT, real_number, truth, whole_number
from hybridkv.errors import SpecError
from hybridkv.frozen_mapping import FrozenMapping
from hybridkv.texts import encodable


def normal(name: str, declared: str, value: object) -> object:
    """Return a field's value in the one form that is hashed: two forms of a value would be equal and not equal.

    Numbers and bools of numpy become Python's, an empty str of an optional field is None, a mapping one that nobody
    changes, its names in order.

    Parameters
    ----------
    name : str
        Of the field.
    declared : str
        Its type, as the annotation says it.
    value : object
        What was given.

    Raises
    ------
    SpecError
        Another type, or out of range.
    """
    where = f"format.{name}"
    if declared.startswith("Mapping"):
        return _mapping(where, value)
    wanted = declared.split(" ")[0]
    if wanted == "float" and (number := real_number(value)) is not None:
        return _finite(where, number)
    if wanted == "int":
        whole = whole_number(value)
        if whole is not None and 0 <= whole < SIZE_LIMIT:
            return whole
    if wanted == "bool" and (told := truth(value)) is not None:
        return told
    if wanted == "str" and isinstance(value, str):
        text = _text(where, value)
        return text if text or "None" not in declared else None
    expected = {"int": "an int >= 0, below 2**48", "float": "a number"}.get(wanted, f"a {wanted}")
    raise SpecError(where, expected, value)


def _mapping(where: str, value: object) -> FrozenMapping[object]:
    if not isinstance(value, Mapping):
        raise SpecError(where, "a mapping", value)
    found: dict[str, object] = {}
    for name, item in value.items():
        if not isinstance(name, str):
            raise SpecError(where, "names that are str", name)
        if (text := _text(where, name)) in found:
            raise SpecError(where, "every name once", text)
        found[text] = _scalar(f"{where}[{text!r}]", item)
    return FrozenMapping(sorted(found.items()))


def _text(where: str, value: str) -> str:
    """Return a str of no other type: a subclass may compare, and print, as it likes."""
    return encodable(where, str.__str__(value))


def _scalar(where: str, value: object) -> object:
    """Numbers become floats, so that 16 and 16.0 in two configs are one value."""
    if (told := truth(value)) is not None:
        return told
    if isinstance(value, str):
        return _text(where, value)
    if (number := real_number(value)) is not None:
        return _finite(where, number)
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
