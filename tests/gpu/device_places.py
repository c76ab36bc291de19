# SPDX-License-Identifier: Apache-2.0
"""Where arrays of a device check lie: on a GPU, through torch, or in memory of the stand-in driver."""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]


class Place(Protocol):
    """A device's memory."""

    def put(self, array: Array) -> Any:
        """Return a copy of an array there, with the same strides."""

    def get(self, array: Any) -> Array:
        """Return what stands there now, once all that was launched has ended."""

    def write(self, array: Any, rows: Array, content: Array) -> None:
        """Store rows of bytes there; it has happened on return."""


class TorchDevice:
    """The current CUDA device of torch."""

    def put(self, array: Array) -> Any:
        import torch

        # torch has no unsigned 64-bit arithmetic everywhere, and bytes are all that counts
        same = {np.dtype(np.uint64): np.int64, np.dtype(np.uint16): np.int16}.get(array.dtype)
        plain = array if same is None else array.view(same)
        dense = torch.from_numpy(np.ascontiguousarray(plain)).cuda()
        if array.dtype == np.uint16:  # the bits of bfloat16
            dense = dense.view(torch.bfloat16)
        if plain.flags.c_contiguous:
            return dense
        strides = [stride // plain.itemsize for stride in plain.strides]
        there = torch.empty_strided(plain.shape, strides, dtype=dense.dtype, device="cuda")
        return there.copy_(dense)

    def get(self, array: Any) -> Array:
        import torch

        torch.cuda.synchronize()
        return array.cpu().numpy()

    def write(self, array: Any, rows: Array, content: Array) -> None:
        import torch

        array[torch.from_numpy(np.ascontiguousarray(rows)).cuda().long()] = torch.from_numpy(content.copy()).cuda()
        torch.cuda.synchronize()


class StandInArray:
    """A numpy array under ``__cuda_array_interface__``."""

    def __init__(self, array: Array) -> None:
        self.array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        told = self.array.__array_interface__
        return {**{key: told[key] for key in ("shape", "strides", "typestr", "data")}, "version": 3}


class Rehearsal:
    """Memory that is registered with the stand-in driver."""

    def __init__(self, library: str) -> None:
        self._driver = ctypes.CDLL(library)
        self._driver.fake_by_itself(ctypes.c_size_t(1 << 20))  # copies end as soon as somebody asks after them
        self._kept: list[Array] = []  # what is registered is nothing else's memory later

    def put(self, array: Array) -> StandInArray:
        low, high = np.lib.array_utils.byte_bounds(array)
        raw = np.zeros(high - low + 64, np.uint8)
        start = -raw.ctypes.data % 64
        there = np.ndarray(array.shape, array.dtype, raw.data, start, array.strides)
        there[...] = array
        self._kept.append(raw)
        if raw.nbytes:
            self._driver.fake_register(ctypes.c_void_p(raw.ctypes.data), ctypes.c_size_t(raw.nbytes))
        return StandInArray(there)

    def get(self, array: StandInArray) -> Array:
        return array.array

    def write(self, array: StandInArray, rows: Array, content: Array) -> None:
        array.array[rows] = content
