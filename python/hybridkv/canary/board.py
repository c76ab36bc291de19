# SPDX-License-Identifier: Apache-2.0
"""The breakers of one cache: of the model, of each group, and of the tier."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from hybridkv.canary.breaker import Breaker, BreakerPolicy, BreakerState, Scope
from hybridkv.errors import ArgumentError

Eras = Mapping[Scope, int]
"""Scopes that a sample counts for, and their eras when it was drawn."""


class Board:
    """Breakers by scope.

    Parameters
    ----------
    policy : BreakerPolicy or None
        Of each of them; None: they never trip by themselves.
    scopes : sequence of Scope
        The model's first.
    clock : callable
        Seconds that never go back.

    Notes
    -----
    Thread safety: any thread may call. ``tripped`` is read without the lock: a hit that is decided while a breaker
    trips may be decided either way.
    """

    def __init__(self, policy: BreakerPolicy | None, scopes: Sequence[Scope], clock: Callable[[], float]) -> None:
        self._trips = policy is not None
        self._breakers = {scope: Breaker(policy or BreakerPolicy()) for scope in scopes}
        self._clock = clock
        self._lock = threading.RLock()  # a sample that is collected meanwhile withdraws its trial
        self.tripped: frozenset[Scope] = frozenset()
        self.resets = 0

    def states(self) -> dict[Scope, BreakerState]:
        """Return the state of every scope."""
        with self._lock:
            now = self._clock()
            return {scope: breaker.state(now) for scope, breaker in self._breakers.items()}

    def trips(self) -> dict[Scope, int]:
        """Return how often each scope tripped."""
        with self._lock:
            return {scope: breaker.trips for scope, breaker in self._breakers.items()}

    def why(self, scope: Scope) -> str:
        """Return why a scope tripped last."""
        return self._breakers[scope].why

    def eras(self, scopes: Iterable[Scope]) -> dict[Scope, int]:
        """Return the eras of scopes now."""
        with self._lock:
            return {scope: self._breakers[scope].era for scope in scopes}

    def begin_trial(self, scopes: Sequence[Scope]) -> Eras | None:
        """Let a hit go as a trial of scopes that are off; None where one of them wants none."""
        with self._lock:
            now = self._clock()
            if not all(self._breakers[scope].wants_trial(now) for scope in scopes):
                return None
            for scope in scopes:
                self._breakers[scope].begin_trial()
            return {scope: self._breakers[scope].era for scope in scopes}

    def withdraw_trial(self, trials: Eras) -> None:
        """Take back a trial that was not compared."""
        with self._lock:
            for scope, era in trials.items():
                self._breakers[scope].withdraw_trial(era)

    def note(self, drawn: Eras, trials: Eras, blamed: Sequence[Scope], why: str) -> tuple[Scope, ...]:
        """Note how a comparison ended.

        Parameters
        ----------
        drawn : mapping of Scope to int
            Scopes that the hit depends on, with their eras when it was drawn.
        trials : mapping of Scope to int
            Scopes of which it was a trial.
        blamed : sequence of Scope
            To which the mismatch is laid; empty where there was none. Where none of the scopes on trial is among them,
            all of those are: a trial that ended wrong must not close a breaker.
        why : str
            For whoever reads of the trip.

        Returns
        -------
        tuple of Scope
            Those that tripped by this.
        """
        tripped = []
        with self._lock:
            now = self._clock()
            acquitted = bool(blamed) and not any(scope in blamed for scope in trials)
            for scope, era in trials.items():
                mismatch = acquitted or scope in blamed
                self._breakers[scope].end_trial(era, now, mismatch=mismatch)
            for scope, era in drawn.items():
                if scope in trials or not self._trips:
                    continue
                if self._breakers[scope].note(era, now, mismatch=scope in blamed, why=why):
                    tripped.append(scope)
            self._tell()
        return tuple(tripped)

    def trip(self, scope: Scope, why: str) -> None:
        """Turn a scope off by hand."""
        with self._lock:
            self._of(scope).trip(self._clock(), why)
            self._tell()

    def reset(self, scope: Scope | None) -> int:
        """Turn a scope on by hand, or all; return how many were off."""
        with self._lock:
            chosen = list(self._breakers.values()) if scope is None else [self._of(scope)]
            now = self._clock()
            off = [breaker for breaker in chosen if breaker.state(now) is not BreakerState.CLOSED]
            for breaker in off:
                breaker.reset()
            self.resets += len(off)
            self._tell()
            return len(off)

    def _of(self, scope: Scope) -> Breaker:
        breaker = self._breakers.get(scope) if isinstance(scope, tuple) else None
        if breaker is None:
            raise ArgumentError("scope", f"one of {', '.join(map(str, self._breakers))}", scope)
        return breaker

    def _tell(self) -> None:
        now = self._clock()
        off = (scope for scope, breaker in self._breakers.items() if breaker.state(now) is not BreakerState.CLOSED)
        self.tripped = frozenset(off)
