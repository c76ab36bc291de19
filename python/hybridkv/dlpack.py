# SPDX-License-Identifier: Apache-2.0
"""DLPack tensors, read where they lie: of devices, which numpy does not take, and of the host what it does not say."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

CUDA_DEVICES = (2, 13)  # kDLCUDA, kDLCUDAManaged

_LARGEST_RANK = 64
_VERSION = (1, 0)  # the first whose capsules say whether the memory is read-only
_READ_ONLY = 1


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


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned of dlpack.h, from 1.0 on: what a capsule named "dltensor_versioned" holds."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


@dataclass(frozen=True)
class DeviceTensor:
    """What a capsule tells; `strides` None: dense. `capsule` keeps the memory. `writable` where it does not say."""

    address: int
    device: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    code: int
    bits: int
    capsule: object
    writable: bool


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
    capsule = _capsule_of(item, stream=-1)
    tensor, writable = _tensor_in(capsule)
    if not 0 <= tensor.rank <= _LARGEST_RANK or tensor.lanes != 1 or tensor.bits % 8 or tensor.bits == 0:
        raise ValueError(f"a tensor of {tensor.rank} dimensions, {tensor.lanes} lanes of {tensor.bits} bits")
    shape = tuple(tensor.shape[: tensor.rank])
    strides = tuple(tensor.strides[: tensor.rank]) if tensor.strides else None
    address = (tensor.data or 0) + tensor.byte_offset
    return DeviceTensor(address, tensor.device_id, shape, strides, tensor.code, tensor.bits, capsule, writable)


def told_writable(item: Any) -> bool:
    """Say whether an array of the host may be written, as far as it tells: numpy before 2.1 takes all for read-only.

    Raises
    ------
    ValueError
        Not a capsule of DLPack.
    """
    return _tensor_in(_capsule_of(item))[1]


def _capsule_of(item: Any, **how: Any) -> Any:
    """Ask for a capsule that says whether its memory is read-only; producers from before 1.0 take no such question."""
    try:
        return item.__dlpack__(max_version=_VERSION, **how)
    except TypeError:
        return item.__dlpack__(**how)


def _tensor_in(capsule: Any) -> tuple[_Tensor, bool]:
    """Return what a capsule holds, and whether it may be written."""
    pointer, named = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_IsValid
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    named.restype, named.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
    if not named(capsule, b"dltensor_versioned"):
        return _Tensor.from_address(pointer(capsule, b"dltensor")), True
    versioned = _Versioned.from_address(pointer(capsule, b"dltensor_versioned"))
    if versioned.major != _VERSION[0]:
        raise ValueError(f"a capsule of DLPack {versioned.major}.{versioned.minor}")
    return versioned.tensor, not versioned.flags & _READ_ONLY
