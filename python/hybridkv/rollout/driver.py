# SPDX-License-Identifier: Apache-2.0
"""A rollout: requests are assigned to reuse or shadow, and what comparisons say moves it on, or back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hybridkv.canary.sample import Hit, Outcome, Sample
from hybridkv.canary.shares import Share
from hybridkv.canary.watch import Asked, Canary
from hybridkv.errors import ArgumentError
from hybridkv.rollout.plan import RolloutPlan
from hybridkv.rollout.state import RolloutState, from_json, to_json

if TYPE_CHECKING:
    from hybridkv.keys import BlockKeys


@dataclass(frozen=True)
class RolloutMetrics:
    """Where a rollout stands, for who watches it.

    Attributes
    ----------
    stage : str
        "shadow", "canary 1%" and the like, or "full".
    share : float
        Of requests that reuse.
    samples, mismatches : int
        Comparisons of this stage.
    wanted_samples : int
        That it takes at least.
    upper_bound : float
        Of the rate of mismatches, by them.
    promotions, rollbacks : int
        Since the beginning.
    held : bool
        Whether it stays in shadow until somebody resets it.
    """

    stage: str
    share: float
    samples: int
    mismatches: int
    wanted_samples: int
    upper_bound: float
    promotions: int
    rollbacks: int
    held: bool


class Rollout:
    """Moves a cache from shadow to full reuse, by what its canary compares.

    Parameters
    ----------
    canary : Canary
        Draws and compares. In shadow its samples are hits that are not used; its rate decides how long a stage takes.
        Its ``shadow`` stays off: the rollout says for each request.
    plan : RolloutPlan, optional
    seed : int, optional
        Of the assignment. A request that reuses at one share does so at each larger one.

    Raises
    ------
    ArgumentError
        Naming the field.

    Notes
    -----
    Any thread may call. Decisions of a request are those of its name: retries and ranks decide alike as long as they
    stand at the same stage. The canary's breakers work beside it: they are quicker, and narrower.
    """

    def __init__(self, canary: Canary, plan: RolloutPlan | None = None, *, seed: int = 0) -> None:
        if not isinstance(canary, Canary):
            raise ArgumentError("canary", "a Canary", type(canary).__name__)
        if plan is not None and not isinstance(plan, RolloutPlan):
            raise ArgumentError("plan", "a RolloutPlan", type(plan).__name__)
        Share(0, seed=seed, purpose="rollout")  # refuses what is no seed
        self.canary = canary
        self.plan = RolloutPlan() if plan is None else plan
        self._state = RolloutState(seed=int(seed))
        self._lock = threading.RLock()

    @classmethod
    def from_json(cls, canary: Canary, text: str | bytes) -> Rollout:
        """Go on where a rollout stood when :meth:`to_json` wrote it.

        Parameters
        ----------
        canary : Canary
        text : str or bytes

        Raises
        ------
        ArgumentError
            Naming what is wrong with it; nothing is guessed.
        """
        plan, state = from_json(text)
        made = cls(canary, plan, seed=state.seed)
        made._state = state
        return made

    def to_json(self) -> str:
        """Return plan and state as one object of JSON: what a restart, or another host, needs."""
        return to_json(self.plan, self._state)

    @property
    def state(self) -> RolloutState:
        """Where it stands, as data that does not change."""
        return self._state

    # -- requests ----------------------------------------------------------------------------------

    def reuses(self, request: str | bytes | int) -> bool:
        """Whether a request belongs to those that reuse at this stage.

        Parameters
        ----------
        request : str, bytes or int
            Its name.

        Raises
        ------
        ArgumentError
            No name.
        """
        state = self._state
        return Share(self.plan.stages[state.stage], seed=state.seed, purpose="rollout").takes(request)

    @contextmanager
    def asking(self, request: str | bytes | int) -> Iterator[Asked]:
        """Decide and draw for the matches that the calling thread makes inside; see :meth:`.Canary.asking`."""
        epoch = self._state.epoch
        with self.canary.asking(request, shadow=not self.reuses(request)) as asked:
            yield asked
        for sample in asked.samples:
            sample.epoch = epoch

    def match(self, keys: BlockKeys, *, request: str | bytes | int, **question: Any) -> Hit:
        """Match as the cache does; the hit of a request that does not reuse is withheld, or a sample in shadow.

        Parameters
        ----------
        keys, **question
            As of :meth:`HybridCache.match <hybridkv.HybridCache.match>`.
        request : str, bytes or int
            Its name.

        Returns
        -------
        Hit
        """
        with self.asking(request) as asked:
            verdict = self.canary.cache.match(keys, **question)
        return Hit(verdict, asked.samples[0] if asked.samples else None)

    # -- outcomes ----------------------------------------------------------------------------------

    def note(self, sample: Sample, outcome: Outcome) -> bool:
        """Take note of a comparison, and go on or back where that is due.

        Parameters
        ----------
        sample : Sample
            Of :meth:`match` or :meth:`asking`. One of a stage that is over counts no more: what it compared is no
            evidence of what came after.
        outcome : Outcome
            What its :meth:`.Sample.settle` returned.

        Returns
        -------
        bool
            Whether the stage is another one now.

        Raises
        ------
        ArgumentError
            No sample, no outcome.
        """
        if not isinstance(sample, Sample) or sample.epoch is None:
            raise ArgumentError("sample", "a sample that this rollout drew", type(sample).__name__)
        if not isinstance(outcome, Outcome):
            raise ArgumentError("outcome", "what settle returned", type(outcome).__name__)
        with self._lock:
            before = self._state
            if sample.epoch != before.epoch:
                return False
            self._state = moved(self.plan, counted(self.plan, before, mismatch=outcome.mismatch))
            return self._state.epoch != before.epoch

    def rollback(self) -> None:
        """Go back to shadow by hand; it counts as any other rollback."""
        with self._lock:
            self._state = rolled_back(self._state)

    def reset(self) -> None:
        """Forget the rollbacks that hold it, or make its stages longer. Where it stands does not change."""
        with self._lock:
            self._state = replace(self._state, strikes=0)

    def metrics(self) -> RolloutMetrics:
        """Read where it stands."""
        state, plan = self._state, self.plan
        return RolloutMetrics(
            stage=plan.name(state.stage),
            share=plan.stages[state.stage],
            samples=state.samples,
            mismatches=state.mismatches,
            wanted_samples=state.wanted_samples(plan),
            upper_bound=state.upper_bound(plan),
            promotions=state.promotions,
            rollbacks=state.rollbacks,
            held=state.held(plan),
        )


def counted(plan: RolloutPlan, state: RolloutState, *, mismatch: bool) -> RolloutState:
    """Return the state with one comparison more."""
    samples = state.samples + 1
    if not mismatch:
        return replace(state, samples=samples)
    recent = (*state.recent, samples)[-plan.rollback_mismatches :]
    return replace(state, samples=samples, mismatches=state.mismatches + 1, recent=recent)


def moved(plan: RolloutPlan, state: RolloutState) -> RolloutState:
    """Return the state one stage on, or back in shadow, or as it is: by its own samples alone."""
    recent = state.recent
    if len(recent) == plan.rollback_mismatches and state.samples - recent[0] < plan.window_samples:
        return rolled_back(state)
    if state.stage == len(plan.stages) - 1 or state.held(plan):
        return state
    if state.samples < state.wanted_samples(plan) or state.upper_bound(plan) > plan.rate_bound:
        return state
    return _at(state, state.stage + 1, promotions=state.promotions + 1)


def rolled_back(state: RolloutState) -> RolloutState:
    """Return the state back in shadow."""
    return _at(state, 0, rollbacks=state.rollbacks + 1, strikes=state.strikes + 1)


def _at(state: RolloutState, stage: int, **changed: int) -> RolloutState:
    """Return the state at a stage whose samples are still to come."""
    return replace(state, stage=stage, epoch=state.epoch + 1, samples=0, mismatches=0, recent=(), **changed)
