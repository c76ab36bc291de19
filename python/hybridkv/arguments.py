# SPDX-License-Identifier: Apache-2.0
"""Arguments of the cache, checked: every refusal names the field, what was expected and what came."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.errors import ArgumentError

VERIFY_MODES = {"off": 0, "sampled": 1, "all": 2}
"""Content verification, by the number the core knows it by."""

EVICTION_ORDERS = {"none": 0, "lru": 1, "usability": 2}
"""Orders in which cached pages make room, by the number the core knows them by."""

_MAX_IDS = 2**32 - 3


def integer(field: str, value: object, expected: str) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise ArgumentError(field, expected, repr(value) if isinstance(value, str) else value)
    return int(value)


def flag(field: str, value: object) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise ArgumentError(field, "True or False", repr(value))
    return bool(value)


def byte_count(field: str, value: object) -> int:
    expected = "a number of bytes, at least 1 and below 2^62"
    number = integer(field, value, expected)
    if not 1 <= number < 2**62:
        raise ArgumentError(field, expected, value)
    return number


def count(field: str, value: object) -> int:
    expected = f"an integer in [1, {_MAX_IDS}]"
    number = integer(field, value, expected)
    if not 1 <= number <= _MAX_IDS:
        raise ArgumentError(field, expected, value)
    return number


def length(field: str, value: object) -> int:
    expected = "a number of tokens, 0 or more and below 2^62"
    number = integer(field, value, expected)
    if not 0 <= number < 2**62:
        raise ArgumentError(field, expected, value)
    return number


def finite_number(field: str, value: object, expected: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ArgumentError(field, expected, repr(value) if isinstance(value, str) else value)
    try:
        number = float(value)
    except OverflowError:
        raise ArgumentError(field, expected, value) from None
    if not math.isfinite(number):
        raise ArgumentError(field, expected, value)
    return number


def positive_number(field: str, value: object) -> float:
    expected = "a finite number above 0"
    number = finite_number(field, value, expected)
    if number <= 0:
        raise ArgumentError(field, expected, value)
    return number


def seconds_of(field: str, value: object) -> float:
    expected = "seconds, 0 or more"
    number = finite_number(field, value, expected)
    if number < 0:
        raise ArgumentError(field, expected, value)
    return number


def members(field: str, values: Iterable[Any], expected: str) -> list[Any]:
    """Return what an iterable gives; what its own code raises on the way passes."""
    try:
        steps = iter(values)
    except TypeError:
        raise ArgumentError(field, expected, type(values).__name__) from None
    return list(steps)


def verify_mode(verify: str) -> int:
    try:
        return VERIFY_MODES[verify]
    except (KeyError, TypeError):
        raise ArgumentError("verify", f"one of {list(VERIFY_MODES)}", verify) from None


def eviction_order(eviction: str) -> int:
    try:
        return EVICTION_ORDERS[eviction]
    except (KeyError, TypeError):
        raise ArgumentError("eviction", f"one of {list(EVICTION_ORDERS)}", eviction) from None


def block_indices(name: str, blocks: npt.ArrayLike) -> npt.NDArray[np.int64]:
    field = f"groups[{name}]"
    try:
        array = np.asarray(list(blocks) if isinstance(blocks, (range, set, frozenset)) else blocks)
    except (ValueError, TypeError):
        raise ArgumentError(field, "True or indices of own blocks", blocks) from None
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise ArgumentError(field, "True or indices [[n]] of own blocks, integers", blocks)
    if array.min() < 0:
        raise ArgumentError(field, "own blocks, 0 or more", int(array.min()))
    blocks = array.astype(np.int64)
    return blocks if np.all(blocks[1:] > blocks[:-1]) else np.unique(blocks)
