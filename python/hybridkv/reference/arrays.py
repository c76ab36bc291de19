# SPDX-License-Identifier: Apache-2.0
"""The two kinds of arrays that the reference computes with: numbers in float64, and bytes."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Doubles: TypeAlias = npt.NDArray[np.float64]
Bytes: TypeAlias = npt.NDArray[np.uint8]


def widen(values: npt.NDArray[Any]) -> Doubles:
    """Return floats of any width in float64; exact, and NaN of any kind is NaN without a warning."""
    with np.errstate(invalid="ignore"):
        return values.astype(np.float64)
