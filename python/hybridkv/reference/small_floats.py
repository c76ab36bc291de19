# SPDX-License-Identifier: Apache-2.0
"""Small floating-point types, exact to the bit: what a number becomes as a code, and what a code is worth.

A float64 holds every value of these types, and a division by a power of two is exact in it, so that one call of
``rint`` (round to nearest, ties to even) is the whole of rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Codes: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]
Doubles: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SmallFloat:
    """A type of sign, exponent and mantissa bits, at most 16 together; subnormals as in IEEE 754.

    Parameters
    ----------
    name : str
        As in :class:`~hybridkv.KvFormat`.
    exponent_bits, mantissa_bits : int
        Widths.
    bias : int
        Of the exponent.
    largest : int
        Code of the largest finite value.
    infinity : int or None
        Code of infinity; None for a type without: what is too large becomes the largest finite value.
    nan : int
        The code that every NaN becomes, whatever its sign.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    largest: int
    infinity: int | None
    nan: int

    @property
    def bits(self) -> int:
        """Width of a code."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint8 or uint16, little-endian: what holds a code."""
        return np.dtype("<u2") if self.bits > 8 else np.dtype(np.uint8)

    @property
    def largest_value(self) -> float:
        """Largest finite value, such as 448 for e4m3."""
        return float(self.decode(np.array(self.largest)))

    def encode(self, values: npt.ArrayLike) -> Codes:
        """Round to nearest, ties to even.

        Parameters
        ----------
        values : array_like
            float64 of any shape.

        Returns
        -------
        unsigned ndarray
            :attr:`dtype`, same shape. The sign of zero is kept. Beyond the largest finite value, once rounded:
            infinity, or the largest finite value where there is none. NaN: :attr:`nan`.
        """
        numbers = np.asarray(values, np.float64)
        magnitude = np.abs(numbers)
        finite = np.isfinite(magnitude)
        inside = np.where(finite, magnitude, 0.0)
        # frexp: inside = m * 2**e with m in [0.5, 1), so the leading bit is worth 2**(e - 1).
        exponents = np.where(inside > 0, np.frexp(inside)[1].astype(np.int64), -self.bias)
        biased = np.maximum(exponents - 1 + self.bias, 1)
        steps = np.rint(np.ldexp(inside, self.bias + self.mantissa_bits - biased)).astype(np.int64)
        # A normal number has 2**mantissa_bits <= steps: its leading bit counts the exponent up from biased - 1,
        # and so does a carry out of rounding. A subnormal one has biased == 1 and no such bit.
        codes = ((biased - 1) << self.mantissa_bits) + steps
        beyond = self.largest if self.infinity is None else self.infinity
        codes = np.where((codes > self.largest) | ~finite, beyond, codes)
        codes = codes | (np.signbit(numbers).astype(np.int64) << (self.bits - 1))
        codes = np.where(np.isnan(numbers), self.nan, codes)
        return codes.astype(self.dtype)

    def decode(self, codes: npt.ArrayLike) -> Doubles:
        """Return the values of codes.

        Parameters
        ----------
        codes : array_like
            Unsigned integers of any shape, below ``2**bits``.

        Returns
        -------
        float64 ndarray
            Same shape; exact.
        """
        whole = np.asarray(codes).astype(np.int64)
        magnitude = whole & ((1 << (self.bits - 1)) - 1)
        exponent = magnitude >> self.mantissa_bits
        steps = magnitude & ((1 << self.mantissa_bits) - 1)
        steps = steps + np.where(exponent > 0, 1 << self.mantissa_bits, 0)
        power = np.maximum(exponent, 1) - self.bias - self.mantissa_bits
        values = np.ldexp(steps.astype(np.float64), power)
        special = np.nan if self.infinity is None else np.where(magnitude == self.infinity, np.inf, np.nan)
        values = np.where(magnitude > self.largest, special, values)
        negative = (whole >> (self.bits - 1)) & 1 == 1
        result: Doubles = np.where(negative, -values, values)
        return result


E4M3 = SmallFloat("float8_e4m3", 4, 3, 7, 0x7E, None, 0x7F)
"""OCP FP8: to 448, no infinity; as ``cvt.rn.satfinite.e4m3x2`` of PTX converts."""

E2M1 = SmallFloat("float4_e2m1", 2, 1, 1, 0x7, None, 0x7)
"""OCP FP4: 0, 0.5, 1, 1.5, 2, 3, 4, 6 with a sign. It has no NaN: one becomes +6, as PTX converts."""

BFLOAT16 = SmallFloat("bfloat16", 8, 7, 127, 0x7F7F, 0x7F80, 0x7FC0)
"""The upper half of a float32."""


def widen(values: npt.NDArray[Any]) -> Doubles:
    """Return floats of any width in float64; exact, and NaN of any kind is NaN without a warning."""
    with np.errstate(invalid="ignore"):
        return values.astype(np.float64)
