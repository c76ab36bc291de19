# SPDX-License-Identifier: Apache-2.0
"""Changes of an input: of bytes, of fields of known width, and of a JSON document's values."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

_EDGES = (0, 1, 2, 7, 8, 127, 128, 255, 256, 4095, 4096, 4097, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32,
          2**48, 2**62, 2**63 - 1, 2**63, 2**64 - 1)  # fmt: skip
_SCALARS: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**62, 2**64, -(2**63), 10**400, 0.5, 1e308, -0.0, float("nan"), float("inf"),
    "", "a", "x" * 300, "\0", "\ud800", "../../etc/passwd", "NaN", [], {}, [[]], {"": None},
)  # fmt: skip


def mutated(dice: random.Random, corpus: Sequence[bytes]) -> bytes:
    """Change a member of a corpus in one to four places."""
    data = bytearray(dice.choice(corpus))
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        data = dice.choice(_CHANGES if dice.random() < 0.98 else _SELDOM)(dice, data, corpus)
    return bytes(data)


def set_field(dice: random.Random, data: bytearray, at: int, width: int) -> None:
    """Write an edge value, a neighbour of what is there, or noise into a little-endian field."""
    old = int.from_bytes(data[at : at + width], "little")
    value = dice.choice(
        (dice.choice(_EDGES), old + dice.choice((-1, 1, 2, 4096)), old << 1, dice.getrandbits(8 * width))
    )
    data[at : at + width] = (value & (2 ** (8 * width) - 1)).to_bytes(width, "little")[: len(data) - at]


def _bit(dice: random.Random, data: bytearray, corpus: Sequence[bytes]) -> bytearray:
    if data:
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    return data


def _field(dice: random.Random, data: bytearray, corpus: Sequence[bytes]) -> bytearray:
    width = dice.choice((1, 2, 4, 8))
    if len(data) >= width:
        set_field(dice, data, dice.randrange(len(data) - width + 1), width)
    return data


def _cut(dice: random.Random, data: bytearray, corpus: Sequence[bytes]) -> bytearray:
    return data[: dice.randrange(len(data) + 1)]


def _drop(dice: random.Random, data: bytearray, corpus: Sequence[bytes]) -> bytearray:
    at = dice.randrange(len(data) + 1)
    return data[:at] + data[at + dice.choice((1, 2, 4, 8, 32)) :]


def _repeat(dice: random.Random, data: bytearray, corpus: Sequence[bytes]) -> bytearray:
    at = dice.randrange(len(data) + 1)
    return data[:at] + data[at : at + dice.choice((1, 8, 32))] * dice.choice((2, 3, 50)) + data[at:]


def _splice(dice: random.Random, data: bytearray, corpus: Sequence[bytes]) -> bytearray:
    other = dice.choice(corpus)
    return data[: dice.randrange(len(data) + 1)] + other[dice.randrange(len(other) + 1) :]


def _nest(dice: random.Random, data: bytearray, corpus: Sequence[bytes]) -> bytearray:
    """End within more lists than a parser that calls itself can follow; as a rule where a value of JSON begins."""
    starts = [0, *(at + 1 for at, byte in enumerate(data) if byte in b":[")]
    return data[: dice.choice(starts)] + b"[" * dice.choice((900, 20_000))


_Change = Callable[[random.Random, bytearray, Sequence[bytes]], bytearray]
_CHANGES: tuple[_Change, ...] = (_bit, _bit, _field, _field, _cut, _drop, _repeat, _splice)
_SELDOM: tuple[_Change, ...] = (_nest,)


def mutated_json(dice: random.Random, document: Any) -> Any:
    """Change a document of lists and mappings in one to three values; the original stays."""
    made = json.loads(json.dumps(document))
    for _ in range(dice.choice((1, 1, 2, 3))):
        made = _changed(dice, made)
    return made


def text_of(document: Any) -> bytes:
    """Return a document as JSON, NaN and lone surrogates among it."""
    return json.dumps(document).encode()


def _changed(dice: random.Random, document: Any) -> Any:
    holders = list(_holders(document))
    if not holders or dice.random() < 0.02:
        return _scalar(dice)
    holder = dice.choice(holders)
    if isinstance(holder, dict):
        _change_mapping(dice, holder)
    else:
        _change_list(dice, holder)
    return document


def _change_mapping(dice: random.Random, holder: dict[str, Any]) -> None:
    if not holder:
        holder[dice.choice(("a", "schema", ""))] = _scalar(dice)
        return
    name = dice.choice(list(holder))
    how = dice.randrange(6)
    if how == 0:
        del holder[name]
    elif how == 1:
        holder[dice.choice((name + "x", "", "__class__", "text_config"))] = holder.pop(name)
    elif how == 2:
        holder[name] = copy.deepcopy(holder[dice.choice(list(holder))])
    elif how == 3:
        holder[name] = deep(dice, holder[name])
    else:
        holder[name] = _near(dice, holder[name])


def _change_list(dice: random.Random, holder: list[Any]) -> None:
    if not holder:
        holder.append(_scalar(dice))
        return
    at, how = dice.randrange(len(holder)), dice.randrange(5)
    if how == 0:
        del holder[at]
    elif how == 1:
        holder.insert(at, copy.deepcopy(holder[at]))
    elif how == 2:
        holder.extend([holder[at]] * (1 if isinstance(holder[at], (list, dict)) else 100))  # inputs stay small
    else:
        holder[at] = _near(dice, holder[at])


def _near(dice: random.Random, value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and dice.random() < 0.5:
        return value + dice.choice((-1, 1, 2**16, 2**31, -value, -value - 1, value))
    if isinstance(value, str) and dice.random() < 0.5:
        return dice.choice((value[:-1], value + value, value.upper(), value + "\0", value.replace("/", "")))
    return _scalar(dice)


def _scalar(dice: random.Random) -> Any:
    return copy.deepcopy(dice.choice(_SCALARS))  # or the next change would change it for good


def deep(dice: random.Random, value: Any) -> Any:
    """Put a value inside many lists."""
    for _ in range(dice.choice((1, 10, 200))):
        value = [value]
    return value


def _holders(document: Any) -> list[Any]:
    found, left = [], [document]
    while left:
        one = left.pop()
        if isinstance(one, (dict, list)):
            found.append(one)
            left.extend(one.values() if isinstance(one, dict) else one)
    return found
