# SPDX-License-Identifier: Apache-2.0
"""Pool memory as an engine hands it over: where the arrays lie, without copying and without importing torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from operator import index
from typing import Any, NamedTuple

import numpy as np

from hybridkv.dlpack import CUDA_DEVICES, device_tensor, told_writable
from hybridkv.errors import ArgumentError
from hybridkv.group import CacheGroup

_CPU_DEVICES = (1, 3)  # DLPack: kDLCPU, kDLCUDAHost
_DLPACK_KINDS = {0: "i", 1: "u"}  # kDLInt, kDLUInt
ADDRESSES = 2**63
"""No address, extent or stride is as large."""


# Those that kernels tell apart; of others only the width counts. numpy has no bfloat16: uint16 holds its bits.
_NUMPY_NAMES = (
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
)
_TORCH_DTYPES = {f"torch.{name}": name for name in _NUMPY_NAMES}
_TORCH_DTYPES["torch.bfloat16"] = "uint16"
_DLPACK_FLOATS = {(2, 32): "float32", (4, 16): "uint16"}  # kDLFloat, kDLBfloat


class ArrayFacts(NamedTuple):
    """Where an array lies: address, shape, strides in bytes, dtype, and what may be done to it.

    `device` is the number of its CUDA device where the array tells it, else None.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    host: bool
    writable: bool
    keepalive: object
    device: int | None = None


class PoolArray(NamedTuple):
    """One array of a pool, [[pages, page_bytes]] in bytes.

    Attributes
    ----------
    base : int
        Address of page 0.
    stride : int
        Bytes from page to page.
    page_bytes : int
        Bytes of one page in this array.
    row_stride : int
        Bytes from row to row inside a page where the array has three dimensions, else 0.
    pages : int
    host : bool
        Whether the CPU may read it.
    keepalive : object
        The array itself.
    extent : int
        Bytes from the first to the last of a page, gaps between its rows included.
    writable : bool
        Whether anything may be loaded into it, as far as the array tells.
    device : int or None
        The number of its CUDA device where the array tells it.
    """

    base: int
    stride: int
    page_bytes: int
    row_stride: int
    pages: int
    host: bool
    keepalive: object
    extent: int
    writable: bool
    device: int | None


def pool_arrays(group: CacheGroup, page_bytes: int, arrays: object, pages: int) -> list[PoolArray]:
    """Read what ``cache.bind`` was given.

    Parameters
    ----------
    group : CacheGroup
    page_bytes : int
        Bytes of a page over all layers: what one array must hold.
    arrays : array or sequence of arrays
        One array for all layers, or one for each layer. numpy, DLPack, ``__array_interface__`` or
        ``__cuda_array_interface__``; [[pages, page_bytes]] of any dtype, or [[pages, rows, row_bytes]].
    pages : int
        Pages that the pool must hold.

    Returns
    -------
    list of PoolArray

    Raises
    ------
    ArgumentError
        Naming field, expected and got: not an array, too few pages, pages too small, bytes of a page not in one
        piece, wrong number of arrays.
    """
    layers = group.layer_count
    many = isinstance(arrays, (list, tuple))
    items: Sequence[Any] = arrays if many else [arrays]  # type: ignore[assignment]
    if len(items) not in {1, layers}:
        raise ArgumentError("arrays", f"one array, or one for each of {layers} layers", f"{len(items)} arrays")
    need = page_bytes if len(items) == 1 else group.page_bytes
    made = []
    for number, item in enumerate(items):
        array = pool_array(f"arrays[{number}]", array_facts(f"arrays[{number}]", item))
        if array.pages < pages:
            raise ArgumentError(f"arrays[{number}]", f"at least {pages} pages", f"{array.pages} pages")
        if array.page_bytes < need:
            raise ArgumentError(f"arrays[{number}]", f"pages of at least {need} bytes", f"{array.page_bytes} bytes")
        made.append(array._replace(page_bytes=need, extent=array.extent if array.row_stride else need))
    if len({array.host for array in made}) != 1:
        raise ArgumentError("arrays", "arrays on one device", "host and device arrays")
    return made


def array_facts(name: str, item: Any) -> ArrayFacts:
    """Read where an array lies and how, whatever kind of array it is.

    Parameters
    ----------
    name : str
        The argument, for the refusal.
    item : array
        numpy, torch, DLPack, ``__array_interface__`` or ``__cuda_array_interface__``; or what was read of one before.

    Returns
    -------
    ArrayFacts

    Raises
    ------
    ArgumentError
        Naming field, expected and got.
    """
    try:
        return _facts(name, item)
    except (ArgumentError, MemoryError):
        raise
    except Exception as error:  # whatever an array interface of others raises, or lacks
        got = f"{type(item).__module__}.{type(item).__name__}: {type(error).__name__}: {error}"
        raise ArgumentError(name, "an array (numpy, DLPack, __array_interface__)", got) from error


def _facts(name: str, item: Any) -> ArrayFacts:
    if not isinstance(item, np.ndarray):
        if isinstance(item, ArrayFacts):
            return item
        if is_torch(item):  # before its interfaces, which refuse gradients and dtypes that numpy lacks
            return _torch_facts(name, item)
        interface = getattr(item, "__cuda_array_interface__", None)
        if interface is not None:
            return _device_facts(name, interface, item)
    if not isinstance(item, np.ndarray) and hasattr(item, "__dlpack_device__"):
        device = int(item.__dlpack_device__()[0])
        if device in CUDA_DEVICES:
            return _dlpack_facts(item)
        if device not in _CPU_DEVICES:
            raise ArgumentError(name, "an array of the CPU or of CUDA", f"DLPack device type {device}")
        view = np.from_dlpack(item)
        writable = view.flags.writeable or told_writable(item)
    elif isinstance(item, np.ndarray) or hasattr(item, "__array_interface__"):
        view = np.asarray(item)
        writable = view.flags.writeable
    else:
        raise ArgumentError(name, "an array (numpy, DLPack, __array_interface__)", type(item).__name__)
    if view.dtype.hasobject:
        raise ArgumentError(name, "bytes of a page, no Python objects", f"an array of {view.dtype}")
    address = view.__array_interface__["data"][0]
    return ArrayFacts(address, view.shape, view.strides, view.dtype, True, writable, (item, view))


def is_torch(item: Any) -> bool:
    """Say whether an array is a tensor of torch, of a class of its own too, without importing it."""
    kind: Any = type(item)
    return _is_tensor_class(kind)


@lru_cache(maxsize=256)
def _is_tensor_class(kind: type) -> bool:
    return hasattr(kind, "data_ptr") and any(base.__module__.partition(".")[0] == "torch" for base in kind.__mro__)


def _torch_facts(name: str, item: Any) -> ArrayFacts:
    """Read a tensor without DLPack, which numpy takes for no dtype of its own (bfloat16, float8)."""
    device = item.device
    host = device.type == "cpu"
    if not host and device.type != "cuda":
        raise ArgumentError(name, "a tensor of the CPU or of CUDA", f"a tensor on {device}")
    address, shape, dtype = item.data_ptr(), tuple(item.shape), torch_dtype(item)
    if address == 0 and 0 not in shape:  # a storage that was given back, zeros that are none
        raise ArgumentError(name, "a tensor that has memory", "one without")
    if item.is_neg() or item.is_conj():
        raise ArgumentError(name, "bytes that are the values (tensor.resolve_neg(), resolve_conj())", "a lazy view")
    width, steps = dtype.itemsize, item.stride()
    if 0 not in shape:  # a storage may be made smaller than the tensors that lie in it
        reach = item.storage_offset() + 1 + sum([(n - 1) * step for n, step in zip(shape, steps, strict=True)])
        if reach * width > item.untyped_storage().nbytes():
            held = f"{item.untyped_storage().nbytes()} bytes"
            raise ArgumentError(name, f"a tensor that has memory, {reach * width} bytes of storage", held)
    strides = tuple([step * width for step in steps])
    return ArrayFacts(address, shape, strides, dtype, host, True, item, device.index)


def torch_dtype(item: Any) -> np.dtype[Any]:
    """Return the dtype of a tensor, as far as kernels tell them apart."""
    return _torch_dtype(item.dtype, item.element_size())


@lru_cache(maxsize=64)
def _torch_dtype(dtype: object, width: int) -> np.dtype[Any]:
    known = _TORCH_DTYPES.get(str(dtype))
    return np.dtype((np.void, width)) if known is None else np.dtype(known)


def _dlpack_facts(item: Any) -> ArrayFacts:
    tensor = device_tensor(item)
    width = tensor.bits // 8
    dtype = np.dtype((np.void, width))
    if tensor.code in _DLPACK_KINDS:
        dtype = np.dtype(f"{_DLPACK_KINDS[tensor.code]}{width}")
    elif (tensor.code, tensor.bits) in _DLPACK_FLOATS:
        dtype = np.dtype(_DLPACK_FLOATS[tensor.code, tensor.bits])
    strides = dense_strides(tensor.shape, width)
    if tensor.strides is not None:
        strides = tuple(stride * width for stride in tensor.strides)
    keepalive = item, tensor
    return ArrayFacts(tensor.address, tensor.shape, strides, dtype, False, tensor.writable, keepalive, tensor.device)


def _device_facts(name: str, interface: Any, item: Any) -> ArrayFacts:
    """Read ``__cuda_array_interface__``, of which every entry may be missing or wrong."""
    dtype = np.dtype(interface["typestr"])
    if dtype.hasobject or dtype.itemsize == 0:
        raise ArgumentError(name, "bytes of a page", f"typestr {interface['typestr']!r}")
    shape = tuple(index(extent) for extent in interface["shape"])
    if any(not 0 <= extent < ADDRESSES for extent in shape):
        raise ArgumentError(name, "extents, 0 or more", f"shape {shape}")
    told = interface.get("strides")
    strides = dense_strides(shape, dtype.itemsize) if told is None else tuple(index(stride) for stride in told)
    if len(strides) != len(shape):
        raise ArgumentError(name, "one stride for each extent", f"strides {strides} of shape {shape}")
    address, read_only = interface["data"]
    return ArrayFacts(index(address), shape, strides, dtype, False, not read_only, item)


def dense_strides(shape: tuple[int, ...], width: int) -> tuple[int, ...]:
    """Return the strides in bytes of an array without gaps."""
    strides = []
    for extent in reversed(shape):
        strides.append(width)
        width *= extent
    return tuple(reversed(strides))


def pool_array(name: str, facts: ArrayFacts) -> PoolArray:
    """Take an array for pages; refuses one of which a page, or a row of it, is not in one piece."""
    address, shape, width = facts.address, facts.shape, facts.dtype.itemsize
    if len(shape) < 2:
        raise ArgumentError(name, "at least two dimensions [[pages, page_bytes]]", f"shape {shape}")
    dense = dense_strides(shape[1:], width)
    strides = facts.strides
    if strides[1:] != dense:  # where nobody steps, whoever made the array may have put any stride
        apart = zip(shape[1:], strides[1:], dense, strict=True)
        inner = (stride if extent > 1 and 0 not in shape else wanted for extent, stride, wanted in apart)
        strides = (strides[0], *inner)
    page_bytes = math.prod(shape[1:]) * width
    # Rows may be padded (a fact that match reports); what is inside a row may not.
    rows_apart = len(shape) == 3 and strides[2] == width and strides[1] >= dense[0]
    if strides[1:] != dense and not rows_apart:
        raise ArgumentError(name, "the bytes of a page in one piece", f"strides {strides} of shape {shape}")
    extent = (shape[1] - 1) * strides[1] + dense[0] if len(shape) == 3 else page_bytes
    if strides[0] < extent and shape[0] > 1:
        raise ArgumentError(name, f"a page stride of at least {extent} bytes", strides[0])
    row_stride = strides[1] if len(shape) == 3 else 0
    reach = address + shape[0] * max(strides[0], page_bytes)
    if not 0 <= address <= reach < ADDRESSES or not -ADDRESSES <= strides[0] < ADDRESSES:
        raise ArgumentError(name, "memory within 63 bits of address", f"{reach - address} bytes at {address}")
    kept, writable, device = facts.keepalive, facts.writable, facts.device
    return PoolArray(address, strides[0], page_bytes, row_stride, shape[0], facts.host, kept, extent, writable, device)
