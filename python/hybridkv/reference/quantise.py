# SPDX-License-Identifier: Apache-2.0
"""Quantisers: channels to bytes and back, with a scale for each tile of channels.

With limit the largest value of the element type (448 for e4m3, 6 for e2m1), a tile of values y gets

    a = max(max |y|, floor)
    s = 2**ceil(log2(a / limit))     or     s = a / limit
    q = encode(y / s)

and is worth ``decode(q) * s``. ``ceil(log2())`` is taken from the exponents of a and of the limit, so that no
rounding of a logarithm decides a byte.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.coverage import real_number, truth
from hybridkv.errors import SpecError
from hybridkv.reference.arrays import Bytes, Doubles, widen
from hybridkv.reference.small_floats import BFLOAT16, E2M1, E4M3, SmallFloat

SMALL_FLOATS = {kind.name: kind for kind in (E4M3, E2M1, BFLOAT16)}
"""Element types that are rounded by hand, by name."""

WIDE_FLOATS: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}
"""Element types that numpy has; the second is for comparing, no kernel writes it."""

ELEMENT_BITS = {name: kind.bits for name, kind in SMALL_FLOATS.items()} | {"float32": 32, "float64": 64}

SCALE_BYTES = {"ue8m0": 1, "float8_e4m3": 1, "float32": 4}
"""Bytes of a scale by encoding."""

UE8M0_BIAS = 127
UE8M0_NAN = 255


@dataclass(frozen=True)
class ScaleRule:
    """How a tile's scale is derived and kept.

    Parameters
    ----------
    encoding : {"ue8m0", "float32", "float8_e4m3"}
        ``ue8m0``: one byte, log2(s) + 127. ``float8_e4m3``: s is the nearest one. ``float32``: the nearest one.
    floor : float
        Smallest absolute maximum before the scale is derived, above 0: it decides the byte of a tile near zero.
    power_of_two : bool
        The first form of s above. Always with ``ue8m0``, never with ``float8_e4m3``.

    Raises
    ------
    SpecError
        A field that is none of these.
    """

    encoding: str
    floor: float
    power_of_two: bool = True

    def __post_init__(self) -> None:
        if self.encoding not in SCALE_BYTES:
            raise SpecError("scale.encoding", f"one of {sorted(SCALE_BYTES)}", self.encoding)
        floor, power_of_two = real_number(self.floor), truth(self.power_of_two)
        if floor is None or not 0 < floor < math.inf:
            raise SpecError("scale.floor", "a finite number above 0", self.floor)
        object.__setattr__(self, "floor", floor)
        if power_of_two is not None:
            object.__setattr__(self, "power_of_two", power_of_two)
        fixed = {"ue8m0": True, "float8_e4m3": False}.get(self.encoding, self.power_of_two)
        if not isinstance(self.power_of_two, bool) or self.power_of_two is not fixed:
            expected = f"{fixed} with {self.encoding}" if isinstance(self.power_of_two, bool) else "True or False"
            raise SpecError("scale.power_of_two", expected, self.power_of_two)

    @property
    def scale_bytes(self) -> int:
        """Bytes of one scale."""
        return SCALE_BYTES[self.encoding]

    def scales(self, tiles: Doubles, limit: float) -> tuple[Doubles, Bytes]:
        """Derive the scale of each tile.

        Parameters
        ----------
        tiles : float64 ndarray, [[..., channels of a tile]]
            Values. A NaN does not count towards the maximum; an infinity gives the largest scale there is.
        limit : float
            Largest value of the element type.

        Returns
        -------
        scales : float64 ndarray, [[...]]
            As a reader will see them.
        stored : uint8 ndarray, [[..., scale_bytes]]
            Little-endian.
        """
        largest = np.maximum(np.fmax.reduce(np.abs(tiles), axis=-1, initial=0.0), self.floor)
        if self.power_of_two:
            exponents = np.clip(scale_exponents(largest, limit), -UE8M0_BIAS, UE8M0_BIAS)
            scales = np.ldexp(1.0, exponents)
            if self.encoding == "ue8m0":
                return scales, (exponents + UE8M0_BIAS).astype(np.uint8)[..., None]
        else:
            scales = largest / limit
        if self.encoding == "float8_e4m3":
            codes = E4M3.encode(scales)
            return E4M3.decode(codes), codes.astype(np.uint8)[..., None]
        narrow = np.minimum(scales, np.finfo(np.float32).max).astype("<f4")
        return narrow.astype(np.float64), np.ascontiguousarray(narrow[..., None]).view(np.uint8)

    def decode(self, stored: Bytes) -> Doubles:
        """Return scales from their bytes.

        Parameters
        ----------
        stored : uint8 ndarray, [[..., scale_bytes]]
            As :meth:`scales` returns them.

        Returns
        -------
        float64 ndarray, [[...]]
            The UE8M0 byte 255 is NaN.
        """
        if self.encoding == "ue8m0":
            return decode_ue8m0(stored[..., 0])
        if self.encoding == "float8_e4m3":
            return E4M3.decode(stored[..., 0])
        return widen(np.ascontiguousarray(stored).view("<f4")[..., 0])


def scale_exponents(largest: npt.ArrayLike, limit: float) -> npt.NDArray[np.int64]:
    """Return ceil(log2(largest / limit)), exactly.

    Parameters
    ----------
    largest : array_like
        float64 above 0; infinity gives an exponent beyond every format's.
    limit : float
        Above 0.

    Returns
    -------
    int64 ndarray
        The smallest k with largest <= limit * 2**k.

    Notes
    -----
    With largest = m * 2**e and limit = n * 2**f, both m and n in [0.5, 1): k = e - f where m <= n, else one more.
    """
    numbers = np.asarray(largest, np.float64)
    mantissas, exponents = np.frexp(np.where(np.isfinite(numbers), numbers, np.finfo(np.float64).max))
    limit_mantissa, limit_exponent = np.frexp(limit)
    result: npt.NDArray[np.int64] = exponents.astype(np.int64) - int(limit_exponent) + (mantissas > limit_mantissa)
    return result


def decode_ue8m0(codes: npt.ArrayLike) -> Doubles:
    """Return 2**(code - 127), NaN for 255.

    Parameters
    ----------
    codes : array_like
        uint8 of any shape.

    Returns
    -------
    float64 ndarray
        Same shape; exact.
    """
    whole = np.asarray(codes).astype(np.int64)
    return np.where(whole == UE8M0_NAN, np.nan, np.ldexp(1.0, whole - UE8M0_BIAS))


def encode_elements(values: Doubles, element: str) -> Bytes:
    """Round values to an element type and lay them out.

    Parameters
    ----------
    values : float64 ndarray, [[rows, channels]]
        Scaled already. An even number of channels for ``float4_e2m1``.
    element : str
        A name of :data:`ELEMENT_BITS`.

    Returns
    -------
    uint8 ndarray, [[rows, bytes]]
        Little-endian; of two e2m1 codes in a byte the even channel has the low four bits.
    """
    kind: SmallFloat | None = SMALL_FLOATS.get(element)
    if kind is None:
        with np.errstate(over="ignore"):  # too large for a float32 is infinity, as everywhere
            wide = np.ascontiguousarray(values.astype(WIDE_FLOATS[element]))
        return wide.view(np.uint8)
    codes = kind.encode(values)
    if kind.bits == 4:
        return (codes[:, 0::2] | (codes[:, 1::2] << 4)).astype(np.uint8)
    return np.ascontiguousarray(codes).view(np.uint8)


def decode_elements(stored: Bytes, element: str) -> Doubles:
    """Return the values of elements from their bytes.

    Parameters
    ----------
    stored : uint8 ndarray, [[rows, bytes]]
        As :func:`encode_elements` returns them.
    element : str
        A name of :data:`ELEMENT_BITS`.

    Returns
    -------
    float64 ndarray, [[rows, channels]]
        Before any scale; exact.
    """
    kind: SmallFloat | None = SMALL_FLOATS.get(element)
    stored = np.ascontiguousarray(stored)
    if kind is None:
        return widen(stored.view(WIDE_FLOATS[element]))
    if kind.bits == 4:
        pairs = np.stack([stored & 0xF, stored >> 4], axis=-1)
        return kind.decode(pairs.reshape(len(stored), 2 * stored.shape[1]))
    return kind.decode(stored.view(kind.dtype))
