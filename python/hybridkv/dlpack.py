# SPDX-License-Identifier: Apache-2.0
"""DLPack tensors of devices, read where they lie: numpy takes those of the CPU alone."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

CUDA_DEVICES = (2, 13)  # kDLCUDA, kDLCUDAManaged

_LARGEST_RANK = 64


class _Tensor(ctypes.Structure):
    """DLTensor of dlpack.h, which is the first member of what a capsule named "dltensor" holds."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class DeviceTensor:
    """What a capsule tells; `strides` None: dense. `capsule` keeps the memory."""

    address: int
    device: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    code: int
    bits: int
    capsule: object


def device_tensor(item: Any) -> DeviceTensor:
    """Read the tensor of an item whose ``__dlpack_device__`` is CUDA's.

    Parameters
    ----------
    item : object
        With ``__dlpack__``. Its producer does not wait for any stream: the order of what runs on the device is the
        caller's, as it is for every other argument of a kernel.

    Returns
    -------
    DeviceTensor
        Strides in elements.

    Raises
    ------
    ValueError
        Not a capsule of DLPack, or not a tensor that can be described in bytes.
    """
    capsule = item.__dlpack__(stream=-1)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _Tensor.from_address(pointer(capsule, b"dltensor"))
    if not 0 <= tensor.rank <= _LARGEST_RANK or tensor.lanes != 1 or tensor.bits % 8 or tensor.bits == 0:
        raise ValueError(f"a tensor of {tensor.rank} dimensions, {tensor.lanes} lanes of {tensor.bits} bits")
    shape = tuple(tensor.shape[: tensor.rank])
    strides = tuple(tensor.strides[: tensor.rank]) if tensor.strides else None
    address = (tensor.data or 0) + tensor.byte_offset
    return DeviceTensor(address, tensor.device_id, shape, strides, tensor.code, tensor.bits, capsule)
