# SPDX-License-Identifier: Apache-2.0
"""The page that padding points to must stay finite: a masked row times NaN is NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.errors import ArgumentError
from hybridkv.kernel_arguments import host_values
from hybridkv.pools import array_facts, is_torch

# What numpy has no type for, by bits: an element is not finite where all of the mask are set. That is the exponent; of
# e4m3fn, which has no infinity, everything behind the sign.
_MASKS = {
    "bfloat16": ("u2", 0x7F80),
    "float8_e5m2": ("u1", 0x7C),
    "float8_e4m3fn": ("u1", 0x7F),
}
DTYPES = ("float16", "float32", "float64", *_MASKS)
"""What the bytes of a null page can be read as."""


def page_is_finite(name: str, item: Any, page: slice, dtype: str | None) -> bool:
    """Say whether all values of one page of a pool are finite.

    Parameters
    ----------
    name : str
        Of the pool, for refusals.
    item : array
        [[pages, ...]], on the host or, of torch, on any device: then it waits for the device.
    page : slice
        The page, along the first dimension.
    dtype : str or None
        What its bytes are, one of :data:`DTYPES`. None: as the array says.

    Raises
    ------
    ArgumentError
        A pool of bytes without a dtype to read them as, an unknown one, or device memory that is not torch's.
    """
    values = _page_bytes(name, item, page)
    told = dtype if dtype is not None else _own_dtype(item)
    if told not in DTYPES:
        raise ArgumentError(f"dtypes[{name}]", f"one of {list(DTYPES)}", told)
    if told in _MASKS:
        bits, mask = _MASKS[told]
        return not bool(((values.view(bits) & mask) == mask).any())
    return bool(np.isfinite(values.view(told)).all())


def _own_dtype(item: Any) -> str:
    return str(item.dtype).removeprefix("torch.") if is_torch(item) else array_facts("pool", item).dtype.name


def _page_bytes(name: str, item: Any, page: slice) -> npt.NDArray[np.uint8]:
    """Return a copy of the bytes of a page."""
    if is_torch(item):
        from torch import uint8

        copy: npt.NDArray[np.uint8] = item[page].detach().contiguous().view(uint8).cpu().numpy().reshape(-1)
        return copy
    facts = array_facts(name, item)
    if not facts.host:
        raise ArgumentError(f"buffers[{name}]", "a pool of the host, or a tensor of torch", "other device memory")
    return np.ascontiguousarray(host_values(facts)[page]).reshape(-1).view(np.uint8)
