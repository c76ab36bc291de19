# SPDX-License-Identifier: Apache-2.0
"""When two answers count as different: in a bit, or by more than a tolerance that a benign control calibrated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from hybridkv.arguments import count, finite_number, members
from hybridkv.binomial import most_rate
from hybridkv.canary.ends import ENDS, Difference, End, Ends, difference
from hybridkv.canary.power import fraction
from hybridkv.errors import ArgumentError

LEAST_CONTROLS = 20
"""Controls that a calibration takes: of fewer the largest says little."""

MARGIN = 4.0
"""Threshold over the largest change among the controls: at twice the largest of 216, one of 208 more lay beyond."""


@dataclass(frozen=True)
class Judgement:
    """What became of one comparison.

    Attributes
    ----------
    difference : Difference
    ends : tuple of str
        The ends at which it counts as different.
    """

    difference: Difference
    ends: tuple[End, ...]

    @property
    def mismatch(self) -> bool:
        """Whether either end is different."""
        return bool(self.ends)


@runtime_checkable
class Comparison(Protocol):
    """What judges two answers to the same prompt."""

    @property
    def false_alarm_bound(self) -> float:
        """Most of what share of benign comparisons it calls different."""

    def judge(self, reused: Ends, recomputed: Ends) -> Judgement:
        """Compare both ends."""


@dataclass(frozen=True)
class Bitwise:
    """Any other bit counts.

    For engines whose recomputation is cut as the reuse was, with kernels of a fixed order: an uninterrupted run gives
    the same bits. Against another chunking or batch it would alarm at every sample.
    """

    @property
    def false_alarm_bound(self) -> float:
        """None where the engine is deterministic."""
        return 0.0

    def judge(self, reused: Ends, recomputed: Ends) -> Judgement:
        """Compare both ends bit for bit; see :func:`.difference` for what is refused."""
        apart = difference(reused, recomputed)
        changed = (end for end in ENDS if getattr(reused, end).tobytes() != getattr(recomputed, end).tobytes())
        return Judgement(apart, tuple(changed))


@dataclass(frozen=True)
class Tolerance:
    """Changes of a logit beyond a threshold count, at either end.

    Parameters
    ----------
    first, last : float
        The thresholds, above 0.
    controls : int, optional
        Benign comparisons that they come from; 0: they were given.
    confidence : float, optional
        With which :attr:`false_alarm_bound` holds.

    Raises
    ------
    ArgumentError
        A threshold that is no finite number above 0, and the like.
    """

    first: float
    last: float
    controls: int = 0
    confidence: float = 0.95

    def __post_init__(self) -> None:
        for end in ENDS:
            expected = "a finite number above 0"
            if finite_number(end, getattr(self, end), expected) <= 0:
                raise ArgumentError(end, expected, getattr(self, end))
        if self.controls:
            count("controls", self.controls)
        fraction("confidence", self.confidence, one=False)

    @classmethod
    def calibrated(
        cls,
        controls: Iterable[Difference],
        *,
        margin: float = MARGIN,
        floor: float = 0.0,
        confidence: float = 0.95,
        most_false_alarms: float | None = None,
    ) -> Tolerance:
        """Set the thresholds by benign comparisons.

        Parameters
        ----------
        controls : iterable of Difference
            At least 20 of answers to the same prompt that nothing was reused for, the prompt cut, or batched, as hits
            are cut and batched. Of prompts like those that are served.
        margin : float, optional
            Threshold over the largest change of an end, at least 1.
        floor : float, optional
            Least threshold, 0 or more. With deterministic controls of no change at all one is needed.
        confidence : float, optional
            With which the bound of false alarms holds.
        most_false_alarms : float, optional
            What :attr:`false_alarm_bound` must not exceed.

        Raises
        ------
        ArgumentError
            Too few controls, controls that are no number, thresholds of 0.

        Notes
        -----
        The thresholds are at least the largest of n changes at each end. Whatever the distribution is, another benign
        comparison exceeds either with a probability above b only where at most one of n would have: that is the bound,
        about 4.7 / n at a confidence of 0.95. A margin above 1 makes it smaller by an amount that nothing bounds.
        """
        found = members("controls", controls, "an iterable of Difference")
        for number, control in enumerate(found):
            if not isinstance(control, Difference):
                raise ArgumentError(f"controls[{number}]", "a Difference", type(control).__name__)
            finite_number(f"controls[{number}]", control.largest, "a change that is a number: it is benign")
        if len(found) < LEAST_CONTROLS:
            raise ArgumentError("controls", f"at least {LEAST_CONTROLS}", len(found))
        if finite_number("margin", margin, "a number, 1 or more") < 1:
            raise ArgumentError("margin", "a number, 1 or more", margin)
        least = finite_number("floor", floor, "a number, 0 or more")
        if least < 0:
            raise ArgumentError("floor", "a number, 0 or more", floor)
        largest = {end: max(getattr(control, end) for control in found) for end in ENDS}
        if least == 0 and not all(largest.values()):
            raise ArgumentError("floor", "above 0, or Bitwise: controls did not differ", floor)
        made = cls(max(least, margin * largest["first"]), max(least, margin * largest["last"]), len(found), confidence)
        if most_false_alarms is not None:
            wanted = fraction("most_false_alarms", most_false_alarms)
            if made.false_alarm_bound > wanted:
                expected = f"enough for a bound of {wanted}: that of these is {made.false_alarm_bound:.3g}"
                raise ArgumentError("controls", expected, len(found))
        return made

    @property
    def false_alarm_bound(self) -> float:
        """Most of what share of benign comparisons exceeds a threshold, at the confidence; 1.0 without controls."""
        # Thresholds at two ends: the comparisons that set them are two at most, so one of the rest may lie beyond.
        return most_rate(1, self.controls, self.confidence) if self.controls else 1.0

    def judge(self, reused: Ends, recomputed: Ends) -> Judgement:
        """Compare both ends; see :func:`.difference` for what is refused."""
        apart = difference(reused, recomputed)
        return Judgement(apart, tuple(end for end in ENDS if getattr(apart, end) > getattr(self, end)))
