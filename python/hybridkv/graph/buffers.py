# SPDX-License-Identifier: Apache-2.0
"""What a captured graph assumed of each buffer, and the first thing that is otherwise now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from hybridkv.errors import ArgumentError
from hybridkv.graph.eager import Eager
from hybridkv.pools import ArrayFacts, array_facts, is_torch
from hybridkv.texts import encodable


class BufferFacts(NamedTuple):
    """One buffer as a graph addresses it.

    Attributes
    ----------
    address : int
    shape : tuple of int
    strides : tuple of int
        Bytes.
    dtype : str
        As its own library writes it: float8 of two kinds have one width.
    device : str
        "cpu", "cuda" or "cuda:1".
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: str


class Recorded(NamedTuple):
    """A buffer of a capture. `item` keeps its memory: a graph owns what it reads."""

    name: str
    group: str
    facts: BufferFacts
    item: Any
    quick: tuple[Any, ...] | None


def flattened(buffers: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return (name of the entry, array) of each array by its own name: those of a list are numbered."""
    if not isinstance(buffers, Mapping):
        raise ArgumentError("buffers", "a mapping of names to arrays, or lists of arrays", type(buffers).__name__)
    flat: dict[str, tuple[str, Any]] = {}
    for name, item in buffers.items():
        if not isinstance(name, str):
            raise ArgumentError("buffers", "names that are texts", name)
        encodable("buffers", name, ArgumentError)
        if isinstance(item, (list, tuple)):
            flat.update({f"{name}[{number}]": (name, one) for number, one in enumerate(item)})
        else:
            flat[name] = (name, item)
    return flat


def recorded(name: str, group: str, item: Any) -> Recorded:
    """Read a buffer.

    Raises
    ------
    ArgumentError
        Not an array, or one without memory.
    """
    return Recorded(name, group, buffer_facts(name, item), item, _quick(item))


def buffer_facts(name: str, item: Any) -> BufferFacts:
    """Read where an array lies and how.

    Raises
    ------
    ArgumentError
        Not an array, or one without memory.
    """
    facts = array_facts(f"buffers[{name}]", item)
    dtype = str(item.dtype) if is_torch(item) else facts.dtype.str
    return BufferFacts(facts.address, facts.shape, facts.strides, dtype, _device(facts))


def changed(was: Recorded, item: Any) -> Eager | None:
    """Return the first thing about a buffer that is not as it was captured.

    Raises
    ------
    ArgumentError
        Another object than was captured, and no array.
    """
    if was.quick is not None and _quick(item) == was.quick:
        return None
    if is_torch(item) and not was.facts.device.startswith(item.device.type):  # also one that we cannot address
        return _eager("device", was, was.facts.device, str(item.device))
    try:
        now = buffer_facts(was.name, item)
    except ArgumentError as error:
        if item is not was.item and not is_torch(item):
            raise
        return _eager("freed", was, "memory that it had at capture", error.got)  # what could be read then cannot now
    facts = was.facts
    for reason, expected, got in (
        ("device", facts.device, now.device),
        ("dtype", facts.dtype, now.dtype),
        (_resized(facts.shape, now.shape), facts.shape, now.shape),
        ("stride", facts.strides, now.strides),
        ("moved", hex(facts.address), hex(now.address)),
    ):
        if expected != got:
            return _eager(reason, was, expected, got)
    return None


def _resized(captured: tuple[int, ...], now: tuple[int, ...]) -> str:
    alike = len(captured) == len(now) > 0 and captured[1:] == now[1:]
    return "grown" if alike and now[0] > captured[0] else "shape"


def _eager(reason: str, was: Recorded, expected: object, got: object) -> Eager:
    return Eager(reason, was.group, field=was.name, expected=expected, got=got)


def _quick(item: Any) -> tuple[Any, ...] | None:
    """Return what is equal only where nothing has changed, at a tenth of the price; None for what has no such thing."""
    if type(item) is np.ndarray:
        return item.__array_interface__["data"][0], item.shape, item.strides, item.dtype
    if is_torch(item):
        # A storage that was resized lies elsewhere, or nowhere: its address tells.
        return item.data_ptr(), item.shape, item.stride(), item.dtype, item.device
    return None


def _device(facts: ArrayFacts) -> str:
    if facts.host:
        return "cpu"
    return "cuda" if facts.device is None else f"cuda:{facts.device}"
