# SPDX-License-Identifier: Apache-2.0
"""A circuit breaker on outcomes of comparisons: when reuse goes off, and what it takes to come on again.

Closed: hits are used. After ``mismatches`` of them within a window of samples it trips: hits are withheld. When its
time is over it is half open: so many hits go as trials, each of them compared, and none of their reused answers is
used. If all are clean it closes; one mismatch, and it is open again for twice as long. Whatever was drawn before it
tripped moves nothing any more.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from hybridkv.arguments import count, positive_number
from hybridkv.binomial import chance
from hybridkv.canary.power import fraction
from hybridkv.errors import ArgumentError


class BreakerState(StrEnum):
    """What becomes of hits."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half open"


class Scope(NamedTuple):
    """What a breaker stands for.

    Attributes
    ----------
    kind : str
        "model": every hit. "group": hits that read a page of the group. "tier": loads, and hits that read a page which
        the tier has too.
    name : str
        Of the model, the group or the tier.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True)
class BreakerPolicy:
    """When a breaker trips, and when it closes.

    Parameters
    ----------
    mismatches : int, optional
        It trips at so many within the window. 1 where the comparison gives no false alarm.
    window_samples : int, optional
        The last so many comparisons of its scope.
    cooldown_s : float, optional
        Seconds that it is open before trials begin. Twice as long after each trial that failed.
    most_cooldown_s : float, optional
        The longest.
    trial_samples : int, optional
        Trials that have to be clean, all of them, before it closes.

    Raises
    ------
    ArgumentError
        Naming the field; more mismatches than a window has samples.
    """

    mismatches: int = 2
    window_samples: int = 500
    cooldown_s: float = 60.0
    most_cooldown_s: float = 3600.0
    trial_samples: int = 20

    def __post_init__(self) -> None:
        for field in ("mismatches", "window_samples", "trial_samples"):
            count(f"breaker.{field}", getattr(self, field))
        for field in ("cooldown_s", "most_cooldown_s"):
            positive_number(f"breaker.{field}", getattr(self, field))
        if self.mismatches > self.window_samples:
            expected = f"at most window_samples, {self.window_samples}"
            raise ArgumentError("breaker.mismatches", expected, self.mismatches)
        if self.most_cooldown_s < self.cooldown_s:
            expected = f"at least cooldown_s, {self.cooldown_s}"
            raise ArgumentError("breaker.most_cooldown_s", expected, self.most_cooldown_s)

    def false_trip_chance(self, false_alarm_rate: float) -> float:
        """Return the probability that one whole window of benign comparisons trips it.

        Parameters
        ----------
        false_alarm_rate : float
            Share of benign comparisons that are called different, as ``comparison.false_alarm_bound``.

        Raises
        ------
        ArgumentError
            No share.
        """
        return chance(fraction("false_alarm_rate", false_alarm_rate, zero=True), self.window_samples, self.mismatches)


class Breaker:
    """The state of one scope.

    Parameters
    ----------
    policy : BreakerPolicy

    Attributes
    ----------
    era : int
        How often it changed between on and off: what was drawn in another era moves nothing.
    trips : int
        How often it tripped, by hand included; trials that failed are none.
    why : str
        Of the last trip.

    Notes
    -----
    Thread safety: none; the time is given.
    """

    def __init__(self, policy: BreakerPolicy) -> None:
        self._policy = policy
        self._recent: deque[int] = deque(maxlen=policy.mismatches)  # numbers of the last mismatched samples
        self._samples = 0
        self._closed = True
        self._opened_s = 0.0
        self._cooldown_s = policy.cooldown_s
        self._trials = 0  # under way
        self._clean = 0  # of this half-open time
        self.era = 0
        self.trips = 0
        self.why = ""

    def state(self, now_s: float) -> BreakerState:
        """Return the state at a time, in seconds of the clock that it was told before."""
        if self._closed:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if now_s - self._opened_s >= self._cooldown_s else BreakerState.OPEN

    def wants_trial(self, now_s: float) -> bool:
        """Whether a hit may go as a trial: half open, and fewer under way than are wanted."""
        wanted = self._policy.trial_samples - self._clean
        return self.state(now_s) is BreakerState.HALF_OPEN and self._trials < wanted

    def begin_trial(self) -> None:
        """Let a hit go as a trial."""
        self._trials += 1

    def withdraw_trial(self, era: int) -> None:
        """Take back a trial that was not compared: it tells nothing."""
        if era == self.era:
            self._trials -= 1

    def end_trial(self, era: int, now_s: float, *, mismatch: bool) -> None:
        """Note how a trial ended; one of an era that is over moves nothing."""
        if era != self.era:
            return
        self._trials -= 1
        if mismatch:
            self._cooldown_s = min(self._policy.most_cooldown_s, 2 * self._cooldown_s)
            self._open(now_s)
            return
        self._clean += 1
        if self._clean >= self._policy.trial_samples:
            self.reset()

    def note(self, era: int, now_s: float, *, mismatch: bool, why: str = "") -> bool:
        """Note a comparison of a hit that was no trial; say whether the breaker tripped by this."""
        if era != self.era or not self._closed:
            return False
        self._samples += 1
        if not mismatch:
            return False
        self._recent.append(self._samples)
        within = self._samples - self._recent[0] < self._policy.window_samples
        if len(self._recent) < self._policy.mismatches or not within:
            return False
        self.trip(now_s, why)
        return True

    def trip(self, now_s: float, why: str) -> None:
        """Turn reuse off."""
        self.trips += 1
        self.why = why
        self._cooldown_s = self._policy.cooldown_s
        self._open(now_s)

    def reset(self) -> None:
        """Turn reuse on again, with an empty window and the first cooldown."""
        self.era += 1
        self._closed = True
        self._recent.clear()
        self._samples = 0
        self._trials = self._clean = 0
        self._cooldown_s = self._policy.cooldown_s

    def _open(self, now_s: float) -> None:
        self.era += 1
        self._closed = False
        self._opened_s = now_s
        self._trials = self._clean = 0
