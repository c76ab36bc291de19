# SPDX-License-Identifier: Apache-2.0
"""Numbers as people write and read them: bytes, tokens, seconds."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from hybridkv.errors import ArgumentError

_BINARY = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50}
_DECIMAL = {"K": 10**3, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_NUMBER = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([KkMGTP]?i?)(B?)")
_SECONDS = {"s": Fraction(1), "ms": Fraction(1, 10**3), "us": Fraction(1, 10**6)}
_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(s|ms|us)?")


def parse_count(field: str, text: str, *, of_bytes: bool = False) -> int:
    """Read a number of tokens or bytes: ``131072``, ``128Ki``, ``1M``; of bytes also ``80GiB``, ``3GB``.

    Parameters
    ----------
    field : str
        What an error names.
    text : str
    of_bytes : bool, optional

    Returns
    -------
    int
        At least 1.

    Raises
    ------
    ArgumentError
        Not a whole number of them, 0 or below.
    """
    expected = "bytes, 1 or more, as 80GiB or 3GB" if of_bytes else "a whole number, 1 or more, as 131072 or 128Ki"
    found = _NUMBER.fullmatch(text.strip())
    if found is None or (found[3] and not of_bytes) or found[2] == "i":
        raise ArgumentError(field, expected, text)
    factor = _BINARY.get(found[2]) or _DECIMAL.get(found[2])
    number = Fraction(found[1]) * (factor or 0)
    if number < 1 or number.denominator != 1 or number >= 2**62:
        raise ArgumentError(field, expected, text)
    return int(number)


def parse_number(field: str, text: str) -> float:
    """Read a number above 0. Raises ArgumentError where it is none."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number <= 0:
        raise ArgumentError(field, "a finite number above 0", text)
    return number


def parse_seconds(field: str, text: str) -> float:
    """Read seconds, 0 or more: ``0.001``, ``1ms``, ``100us``. Raises ArgumentError where it is none."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise ArgumentError(field, "seconds, 0 or more, as 0.001, 1ms or 100us", text)
    return float(Fraction(found[1]) * _SECONDS[found[2] or "s"])


def byte_text(size: float) -> str:
    """Return bytes in three figures: 3.48 MiB."""
    for power, unit in ((5, "PiB"), (4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 1024**power:
            number = size / 1024**power
            return f"{number:,.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"
    return f"{size:,.0f} B"


def seconds_text(seconds: float | None) -> str:
    """Return seconds in three figures: 1.21 ms."""
    if seconds is None:
        return "-"
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1 or unit == "us":
            number = seconds * factor
            return f"{number:,.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"
    raise AssertionError("unreachable")
