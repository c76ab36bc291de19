# SPDX-License-Identifier: Apache-2.0
"""Values of the fields of a format, each in the one form that is hashed."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hybridkv.coverage import SIZE_LIMIT, encodable, whole_number
from hybridkv.errors import SpecError


def normal(name: str, declared: str, value: object) -> object:
    """Return a field's value in the one form that is hashed.

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
        if not value and "None" in declared:
            return None  # nothing is declared by it: it has no place in the fingerprint
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
