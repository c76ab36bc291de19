# SPDX-License-Identifier: Apache-2.0
"""A captured graph without a device: what an engine's routing does can be tested where there is no GPU.

A capture records calls and the memory they were given: address, shape, strides. It runs nothing. A replay runs the
calls on whatever lies at those addresses then, as a device does, with the numbers and lengths of the capture. What
was freed is not looked at again: :class:`Memory` fills it with poison and hands it out anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridkv.arguments import byte_count
from hybridkv.errors import ArgumentError
from hybridkv.pools import ArrayFacts, array_facts, is_torch
from hybridkv.stream_capture import CaptureError, capturing, is_capturing

_POISON = 0xFF  # NaN in every float, -1 in every integer
_UNIT = 256
_ARRAY = ("__array_interface__", "__cuda_array_interface__", "__dlpack_device__")


class Memory:
    """Memory of a device that there is not: arrays of it are handed out, freed, poisoned and handed out again.

    Parameters
    ----------
    size : int
        Bytes.

    Notes
    -----
    One thread at a time.
    """

    __slots__ = ("_bytes", "_free", "_taken")

    def __init__(self, size: int) -> None:
        self._bytes = np.full(byte_count("size", size) + _UNIT, _POISON, np.uint8)
        start = -self._bytes.__array_interface__["data"][0] % _UNIT
        self._free = [(start, size)]
        self._taken: dict[int, tuple[int, int]] = {}

    def take(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return an array of zeros at the lowest address with room.

        Raises
        ------
        ArgumentError
            There is no room.
        """
        extents = (shape,) if isinstance(shape, int) else shape
        size = math.prod(extents) * np.dtype(dtype).itemsize
        room = -(-max(size, 1) // _UNIT) * _UNIT
        for number, (start, there) in enumerate(self._free):
            if room <= there:
                self._free[number] = start + room, there - room
                array = self._bytes[start : start + size].view(dtype).reshape(extents)
                array[...] = 0
                self._taken[array.__array_interface__["data"][0]] = start, room
                return array
        raise ArgumentError("shape", f"room for {size} bytes in one piece", self._free)

    def free(self, array: npt.NDArray[Any]) -> None:
        """Give an array back: its bytes are poison from now on, until somebody else gets them.

        Raises
        ------
        ArgumentError
            Not an array of this memory, or one that was given back before.
        """
        taken = self._taken.pop(array.__array_interface__["data"][0], None)
        if taken is None:
            raise ArgumentError("array", "an array of this memory that was not freed", array.shape)
        start, room = taken
        self._bytes[start : start + room] = _POISON
        self._free = _merged([*self._free, (start, room)])


class Event:
    """An event that a graph records: it has passed once the replay has come to it."""

    __slots__ = ("_passed",)

    def __init__(self) -> None:
        self._passed = False

    def query(self) -> bool:
        """Whether what was in front of it is done."""
        return self._passed


class _Place(NamedTuple):
    """An array of a recorded call. `facts` keeps its memory alive, as a graph must."""

    facts: ArrayFacts
    torch_dtype: Any


class CapturedCalls:
    """A graph: calls on fixed memory, from :func:`capture`."""

    __slots__ = ("_calls", "_open")

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]] = []
        self._open = True

    def call(self, function: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        """Record a call; it runs at each replay.

        Arrays, also within lists and mappings, are recorded as the memory they are; everything else as it is now.

        Raises
        ------
        ArgumentError
            The capture is over, or device memory.
        """
        if not self._open:
            raise ArgumentError("call", "a call while the graph is captured", "one behind it")
        self._calls.append((function, tuple(map(_recorded, args)), {n: _recorded(a) for n, a in kwargs.items()}))

    def record(self, event: Event) -> None:
        """Record an event: open again where a replay begins, passed where it comes by."""
        self.call(_pass, event)

    def replay(self) -> None:
        """Run the recorded calls on what lies at the recorded addresses now.

        Raises
        ------
        ArgumentError
            The capture is not over.
        CaptureError
            Inside a capture.
        """
        if self._open:
            raise ArgumentError("replay", "a graph whose capture is over", "one that is captured")
        if is_capturing():
            raise CaptureError("replay", "no stream that captures a graph", "a replay")
        for _, args, _ in self._calls:
            for event in args:
                if isinstance(event, Event):
                    event._passed = False
        for function, args, kwargs in self._calls:
            function(*map(_there, args), **{name: _there(value) for name, value in kwargs.items()})


@contextmanager
def capture() -> Iterator[CapturedCalls]:
    """Capture a graph: calls of it are recorded, and calls of this package that no graph holds are refused.

    Examples
    --------
    >>> import numpy as np, hybridkv as hk
    >>> pool, ids, out = np.arange(4), np.zeros(2, np.int32), np.zeros(2, int)
    >>> with hk.graph.standin.capture() as graph:
    ...     graph.call(np.take, pool, ids, out=out)
    >>> ids[:] = [3, 1]
    >>> graph.replay()
    >>> out.tolist()
    [3, 1]
    """
    graph = CapturedCalls()
    with capturing():
        yield graph
    graph._open = False


def _recorded(value: Any) -> Any:
    if is_torch(value) or any(hasattr(value, name) for name in _ARRAY):
        facts = array_facts("call", value)
        if not facts.host:
            raise ArgumentError("call", "memory of the host", "memory of a device")
        return _Place(facts, value.dtype if is_torch(value) else None)
    if isinstance(value, (list, tuple)):
        return [_recorded(item) for item in value]
    if isinstance(value, dict):
        return {name: _recorded(item) for name, item in value.items()}
    return value


def _there(value: Any) -> Any:
    if isinstance(value, _Place):
        return _array_at(value)
    if isinstance(value, list):
        return [_there(item) for item in value]
    if isinstance(value, dict):
        return {name: _there(item) for name, item in value.items()}
    return value


class _Fixed:
    """Memory at an address, for numpy."""

    def __init__(self, facts: ArrayFacts) -> None:
        self.__array_interface__ = {
            "shape": facts.shape, "strides": facts.strides, "typestr": facts.dtype.str,
            "data": (facts.address, not facts.writable), "version": 3,
        }  # fmt: skip


def _array_at(place: _Place) -> Any:
    facts = place.facts
    array = np.asarray(_Fixed(facts)) if math.prod(facts.shape) else np.empty(facts.shape, facts.dtype)
    if place.torch_dtype is None:
        return array
    from torch import from_numpy

    bits = np.dtype(f"i{facts.dtype.itemsize}")
    return from_numpy(array.view(bits)).view(place.torch_dtype)


def _pass(event: Event) -> None:
    event._passed = True


def _merged(pieces: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return pieces of memory by address, neighbours as one."""
    merged: list[tuple[int, int]] = []
    for start, size in sorted(pieces):
        if merged and sum(merged[-1]) == start:
            merged[-1] = merged[-1][0], merged[-1][1] + size
        elif size:
            merged.append((start, size))
    return merged
