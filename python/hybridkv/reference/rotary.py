# SPDX-License-Identifier: Apache-2.0
"""The rotary embedding of rows: frequencies, YaRN, and the rotation of pairs of channels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hybridkv.coverage import positive_int, real_number, truth
from hybridkv.errors import SpecError
from hybridkv.reference.arrays import Doubles


@dataclass(frozen=True)
class Yarn:
    """Scaling of frequencies for a longer context (arXiv 2309.00071, "NTK by parts").

    Parameters
    ----------
    factor : float
        By how much positions grow beyond what was trained, at least 1.
    original_positions : int
        Positions that were trained.
    beta_fast, beta_slow : float
        Turns over the trained positions at which a frequency is kept, and at which it is divided by the factor.
    truncate : bool
        Whether the ends of the ramp between the two are rounded outwards to whole pairs.

    Raises
    ------
    SpecError
        A factor below 1, no positions, betas not above 0 or in the wrong order, what is no number.

    Notes
    -----
    No scaling of attention belongs to it here: DeepSeek-V4 forces that factor to 1.
    """

    factor: float
    original_positions: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def __post_init__(self) -> None:
        for name in ("factor", "beta_slow", "beta_fast"):
            object.__setattr__(self, name, _finite(f"yarn.{name}", getattr(self, name)))
        if self.factor < 1:
            raise SpecError("yarn.factor", "a finite number of at least 1", self.factor)
        positive_int("yarn.original_positions", self.original_positions)
        if self.beta_slow <= 0:
            raise SpecError("yarn.beta_slow", "a number above 0", self.beta_slow)
        if self.beta_fast < self.beta_slow:
            raise SpecError("yarn.beta_fast", f"at least beta_slow, {self.beta_slow}", self.beta_fast)
        object.__setattr__(self, "truncate", _flag("yarn.truncate", self.truncate))


@dataclass(frozen=True)
class Rope:
    """A rotary embedding of the last channels of a row.

    Parameters
    ----------
    dims : int
        Rotated channels, even.
    theta : float
        Base of the frequencies, above 1.
    yarn : Yarn, optional
        Scaling of the frequencies.
    interleaved : bool
        True: pairs are channels (0, 1), (2, 3), ...; False: channel i and i + dims / 2 ("halves").

    Raises
    ------
    SpecError
        Dims that are odd or below 2, theta not above 1.

    Examples
    --------
    >>> Rope(64, 10000.0).frequencies()[:2].round(3).tolist()
    [1.0, 0.75]
    """

    dims: int
    theta: float
    yarn: Yarn | None = None
    interleaved: bool = True

    def __post_init__(self) -> None:
        if positive_int("rope.dims", self.dims) % 2:
            raise SpecError("rope.dims", "an even number", self.dims)
        object.__setattr__(self, "theta", _finite("rope.theta", self.theta))
        if self.theta <= 1:
            raise SpecError("rope.theta", "a finite number above 1", self.theta)
        if self.yarn is not None and not isinstance(self.yarn, Yarn):
            raise SpecError("rope.yarn", "a Yarn or None", self.yarn)
        object.__setattr__(self, "interleaved", _flag("rope.interleaved", self.interleaved))

    def frequencies(self) -> Doubles:
        """Return the angle per position of each pair.

        Returns
        -------
        float64 ndarray, [[dims / 2]]
            Radians: theta**(-2 i / dims), scaled by YaRN where there is one.
        """
        pairs = np.arange(self.dims // 2, dtype=np.float64)
        plain = np.power(float(self.theta), -2.0 * pairs / self.dims)
        if self.yarn is None:
            return plain
        low, high = self._ramp(self.yarn)
        slowed = np.clip((pairs - low) / (high - low), 0.0, 1.0)
        return plain * (1.0 - slowed) + plain / self.yarn.factor * slowed

    def _ramp(self, yarn: Yarn) -> tuple[float, float]:
        """First pair that is slowed at all and first pair that is slowed in full, not necessarily whole."""

        def pair_of(turns: float) -> float:
            span = yarn.original_positions / (2 * math.pi * turns)
            return self.dims * math.log(span) / (2 * math.log(self.theta))

        low, high = pair_of(yarn.beta_fast), pair_of(yarn.beta_slow)
        if yarn.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.dims - 1)
        return low, high if high > low else low + 0.001  # the limit of a step, as every implementation has it

    def rotate(self, rows: Doubles, positions: npt.ArrayLike) -> Doubles:
        """Rotate the last channels of rows.

        Parameters
        ----------
        rows : float64 ndarray, [[..., channels]]
            At least ``dims`` channels.
        positions : array_like
            Broadcasts against [[...]].

        Returns
        -------
        float64 ndarray, [[..., channels]]
            A pair (a, b) at angle t becomes (a cos t - b sin t, b cos t + a sin t).
        """
        angles = np.asarray(positions, np.float64)[..., None] * self.frequencies()
        cosines, sines = np.cos(angles), np.sin(angles)
        out = rows.astype(np.float64)
        first, second = self.pairs()
        a, b = rows[..., first], rows[..., second]
        out[..., first] = a * cosines - b * sines
        out[..., second] = b * cosines + a * sines
        return out

    def pairs(self) -> tuple[slice, slice]:
        """Return the first and the second channels of all pairs, as slices from the end of a row."""
        if self.interleaved:
            return slice(-self.dims, None, 2), slice(1 - self.dims, None, 2)
        return slice(-self.dims, -(self.dims // 2)), slice(-(self.dims // 2), None)


def _finite(field: str, value: object) -> float:
    number = real_number(value)
    if number is None or not math.isfinite(number):
        raise SpecError(field, "a finite number", value)
    return float(number)


def _flag(field: str, value: object) -> bool:
    if (told := truth(value)) is None:
        raise SpecError(field, "True or False", value)
    return told
