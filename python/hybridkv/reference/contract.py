# SPDX-License-Identifier: Apache-2.0
"""What every kernel asks of its arguments, and the refusal that names the argument."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.coverage import whole_number
from hybridkv.errors import KernelContract
from hybridkv.reference.small_floats import BFLOAT16, Doubles, widen


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


def writable_pages(name: str, value: object, page_bytes: int) -> npt.NDArray[np.uint8]:
    """Return an array of pages that can be written in place.

    Parameters
    ----------
    name : str
        Of the argument.
    value : object
        uint8 [[pages, page bytes or more]]; the distance of pages is free, the bytes of one are contiguous.
    page_bytes : int
        What a page must hold.

    Returns
    -------
    uint8 ndarray
        ``value``.

    Raises
    ------
    KernelContract
        Not that, read-only, or pages that overlap.
    """
    pages = readable_pages(name, value, page_bytes)
    if not pages.flags.writeable:
        raise KernelContract(name, "an array that can be written", "a read-only one")
    if pages.shape[0] > 1 and abs(pages.strides[0]) < page_bytes:
        raise KernelContract(name, f"pages at least {page_bytes} bytes apart", pages.strides[0])
    return pages


def readable_pages(name: str, value: object, page_bytes: int) -> npt.NDArray[np.uint8]:
    """Return an array of pages, as :func:`writable_pages` without what writing needs."""
    pages = array(name, value, (np.uint8,), (None, None))
    if pages.shape[1] < page_bytes:
        raise KernelContract(name, f"pages of at least {page_bytes} bytes", pages.shape[1])
    if pages.size and pages.strides[1] != 1 and pages.shape[1] > 1:
        raise KernelContract(name, "contiguous bytes within a page", f"stride {pages.strides[1]}")
    return pages
