# SPDX-License-Identifier: Apache-2.0
"""What every kernel asks of its arguments, and the refusal that names the argument."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.coverage import whole_number
from hybridkv.errors import KernelContract
from hybridkv.reference.arrays import Doubles, widen
from hybridkv.reference.small_floats import BFLOAT16

MOST_THREADS = 64


def array(name: str, value: object, dtypes: tuple[Any, ...], shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
    """Return an argument that must be an array as it stands: a kernel converts nothing.

    Parameters
    ----------
    name : str
        Of the argument.
    value : object
        What was given.
    dtypes : tuple of dtype
        Those accepted.
    shape : tuple of int or None
        None: any size.

    Returns
    -------
    ndarray
        ``value``.

    Raises
    ------
    KernelContract
        No ndarray, another dtype, another shape.
    """
    if not isinstance(value, np.ndarray):
        raise KernelContract(name, "a numpy array", type(value).__name__)
    accepted = [np.dtype(d) for d in dtypes]
    if value.dtype not in accepted:
        raise KernelContract(name, f"dtype {' or '.join(str(d) for d in accepted)}", str(value.dtype))
    fits = value.ndim == len(shape) and all(n is None or n == m for n, m in zip(shape, value.shape, strict=True))
    if not fits:
        raise KernelContract(name, f"shape {list(shape)} (None: any)", list(value.shape))
    return value


def require_rows_apart(name: str, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> None:
    """Refuse an array [[m, n, channels]] of which two rows share memory, by its name.

    Parameters
    ----------
    name : str
        Of the argument.
    shape, strides : tuple of int
        Strides in bytes; channels are contiguous.
    itemsize : int
        Bytes of a channel.

    Raises
    ------
    KernelContract
        Rows that overlap.
    """
    reach = shape[2] * itemsize
    steps = sorted((abs(stride), extent) for stride, extent in zip(strides[:2], shape[:2], strict=True) if extent > 1)
    for step, extent in steps:
        if step < reach and 0 not in shape:
            raise KernelContract(name, f"rows that do not overlap, {reach} bytes apart or more", f"strides {strides}")
        reach += (extent - 1) * step


def real_rows(name: str, value: object, shape: tuple[int | None, ...]) -> Doubles:
    """Return rows of real numbers in float64.

    Parameters
    ----------
    name : str
        Of the argument.
    value : object
        float64, float32, or uint16 for the bits of bfloat16, which numpy does not have.
    shape : tuple of int or None
        As in :func:`array`.

    Returns
    -------
    float64 ndarray
        Exactly the numbers given.

    Raises
    ------
    KernelContract
        As in :func:`array`, or channels that are not contiguous.
    """
    given = array(name, value, (np.float64, np.float32, np.uint16), shape)
    if given.size and given.shape[-1] > 1 and given.strides[-1] != given.itemsize:
        raise KernelContract(name, "contiguous channels", f"stride {given.strides[-1]}")
    return BFLOAT16.decode(given) if given.dtype == np.uint16 else widen(given)


def number(name: str, value: object, expected: str, least: int) -> int:
    """Return an integer of at least ``least``; else a :class:`KernelContract` that names the argument."""
    whole = whole_number(value)
    if whole is None or whole < least:
        raise KernelContract(name, expected, value)
    return whole


def flag(name: str, value: object) -> bool:
    """Return True or False; else a :class:`KernelContract` that names the argument."""
    if not isinstance(value, (bool, np.bool_)):
        raise KernelContract(name, "True or False", value)
    return bool(value)


def no_stream(stream: object) -> None:
    """Refuse a stream: numpy arrays lie in host memory, where there is none."""
    if stream is not None:
        raise KernelContract("stream", "None for host arrays", stream)


def check_threads(threads: object) -> None:
    """Refuse a number of threads that no kernel takes; here it has no meaning."""
    if number("threads", threads, f"an int in [1, {MOST_THREADS}]", 1) > MOST_THREADS:
        raise KernelContract("threads", f"an int in [1, {MOST_THREADS}]", threads)
