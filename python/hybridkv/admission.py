# SPDX-License-Identifier: Apache-2.0
"""Limits on who is admitted, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hybridkv.arguments import integer
from hybridkv.errors import ArgumentError

PREEMPT_ORDERS = ("youngest", "largest")
"""Who is preempted first, by the number the core knows it by."""

_MILLION = 1_000_000  # the core counts watermarks in millionths of a pool
_LIMIT = 2**62


@dataclass(frozen=True)
class Admission:
    """Limits on admission, beyond the rule that the worst case of every admitted request fits.

    Parameters
    ----------
    max_requests : int, optional
        Requests admitted at a time, at least 1. Default: as many as fit.
    max_combinations : int, optional
        Different sets of groups that admitted requests use, at least 1. A request may hold a page of every group it
        uses, however short it is, and it uses all of them unless it is admitted with ``groups=``: without that there is
        one set. Default: any number.
    watermark : float or (float, float), optional
        Share of every pool, 0 to 1. Nobody is admitted where less than the first would be neither held nor
        promised then; once that has kept somebody out, nobody is admitted until the second is there again. One
        number stands for both. Where no request runs it does not apply. Default: none.
    step_tokens : int, optional
        Most tokens that a request has in flight: grown, and not yet advanced with every effect of its steps passed.
        An engine that plans the next step while one runs has two steps in flight. Windows count pages for that many
        tokens beside their own, so that a small number admits more requests. Default: the request's ``max_tokens``.
    preempt : {"youngest", "largest"}, optional
        Order of preemption: the latest admission first, so that who has waited longest finishes first; or who holds
        most bytes first.

    Raises
    ------
    ArgumentError
        Naming the field.

    Examples
    --------
    >>> Admission(max_requests=256, watermark=(0.01, 0.05), step_tokens=8192).watermark
    (0.01, 0.05)
    """

    max_requests: int | None = None
    max_combinations: int | None = None
    watermark: float | tuple[float, float] | None = None
    step_tokens: int | None = None
    preempt: Literal["youngest", "largest"] = "youngest"

    def __post_init__(self) -> None:
        for field in ("max_requests", "max_combinations", "step_tokens"):
            value = getattr(self, field)
            if value is not None:
                object.__setattr__(self, field, _positive(field, value))
        if self.watermark is not None:
            object.__setattr__(self, "watermark", _watermark(self.watermark))
        if not isinstance(self.preempt, str) or self.preempt not in PREEMPT_ORDERS:
            raise ArgumentError("preempt", f"one of {list(PREEMPT_ORDERS)}", self.preempt)

    def _numbers(self) -> tuple[int, int, int, int, int]:
        """Return the limits as the core takes them: 0 for none, watermarks in millionths."""
        low, high = self.watermark if isinstance(self.watermark, tuple) else (0.0, 0.0)
        return (
            self.max_requests or 0,
            self.max_combinations or 0,
            _millionths(low),
            _millionths(high),
            self.step_tokens or 0,
        )


def _positive(field: str, value: object) -> int:
    expected = "None, or an integer in [1, 2**62)"
    number = integer(field, value, expected)
    if not 1 <= number < _LIMIT:
        raise ArgumentError(field, expected, value)
    return number


def _watermark(value: object) -> tuple[float, float]:
    expected = "None, a share of a pool, or two of them, the lower first, 0 <= low <= high <= 1"
    pair = value if isinstance(value, tuple) else (value, value)
    try:
        if len(pair) != 2 or any(isinstance(share, (bool, np.bool_, str, bytes)) for share in pair):
            raise ValueError
        low, high = (float(share) for share in pair)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError("watermark", expected, value) from None
    if not 0.0 <= low <= high <= 1.0:  # a nan is not either
        raise ArgumentError("watermark", expected, value)
    return low, high


def _millionths(share: float) -> int:
    return max(round(share * _MILLION), 1 if share > 0 else 0)
