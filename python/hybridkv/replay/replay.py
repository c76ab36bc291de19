# SPDX-License-Identifier: Apache-2.0
"""One request after the other through one cache: match, lease, reserve, publish.

The model. Requests are served one at a time in the order of the trace; what one leaves behind the next may
find. A request is matched; the lease is taken over by the fill of its prompt; all whole units of the prompt
that ids name are published, and after them those of the answer, where the next turn names them
(:mod:`~hybridkv.replay.answers`). Window and checkpoint pages are published only at the boundaries that the
policy keeps, and only for tokens that this request computed itself: where it resumed at t, nothing at or
below t is claimed anew. So a prefix shared by two conversations keeps its history, and its window only
where somebody's prompt or answer happened to end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hybridkv import (
    BlockKeys,
    CacheSpec,
    HybridCache,
    Lease,
    OutOfPages,
    Plan,
    RestoreRefused,
    Tier,
    Verdict,
    block_keys,
)
from hybridkv.policy import LruPolicy
from hybridkv.replay.losses import Losses
from hybridkv.replay.pools import Pools, Windows, block_of, is_history
from hybridkv.replay.tally import Tally
from hybridkv.replay.tokens import answered_tokens, prompt_tokens
from hybridkv.replay.trace import Trace


@dataclass(frozen=True, slots=True)
class Part:
    """Whole units to be published.

    Attributes
    ----------
    keys : BlockKeys
        From the start of the sequence.
    start_tokens : int
        Tokens that were published before this part.
    """

    keys: BlockKeys
    start_tokens: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of the units of one request beside their keys.

    Attributes
    ----------
    prompt : numpy.ndarray
        int64 [[units]]: numbers of the whole units of the prompt that ids name, equal ones alike.
    answer : numpy.ndarray or None
        The same of prompt and answer, where the next turn names it.
    tokens : int
        Tokens of the prompt that a cache which never forgets could give.
    """

    prompt: npt.NDArray[np.int64]
    answer: npt.NDArray[np.int64] | None
    tokens: int


@dataclass(frozen=True, slots=True)
class Work:
    """One request, hashed.

    Attributes
    ----------
    keys : BlockKeys
        The whole prompt, a partial last unit included.
    tokens : int
        Length of the prompt.
    prompt : Part or None
        Whole units of the prompt that ids name; None where there is none.
    answer : Part or None
        Whole units of prompt and answer, where the next turn names them and they reach beyond the prompt's.
    seen : Seen or None
        Where units were numbered (:mod:`~hybridkv.replay.units`): what lets a lane tell why tokens are lost.
    """

    keys: BlockKeys
    tokens: int
    prompt: Part | None
    answer: Part | None
    seen: Seen | None = None


def prepare(trace: Trace, turns: list[int | None], unit_tokens: int) -> Iterator[Work]:
    """Hash the requests of a trace, once for all lanes.

    Parameters
    ----------
    trace : Trace
        The requests.
    turns : list of int or None
        Next turn of each, see :func:`hybridkv.replay.answers.next_turns`.
    unit_tokens : int
        Tokens of a key.

    Yields
    ------
    Work
        In the order of the trace.
    """
    for request, turn in zip(trace.requests, turns, strict=True):
        keys = block_keys(prompt_tokens(trace, request), unit_tokens)
        named = trace.named_tokens(request) // unit_tokens
        answer = None
        if turn is not None:
            tokens = answered_tokens(trace, request, trace.requests[turn])
            units = tokens.size // unit_tokens
            if units > named:
                answer = Part(block_keys(tokens[: units * unit_tokens], unit_tokens), named * unit_tokens)
        yield Work(keys, request.input_tokens, Part(keys[:named], 0) if named else None, answer)


TREE = "tree"
"""Eviction by :class:`hybridkv.policy.LruPolicy`, in Python; the other orders are the core's own."""


class Lane:
    """One cache under one rule, with its own order of eviction and its own figures.

    Parameters
    ----------
    spec : CacheSpec
        The model.
    pools : Pools
        Sizes of the cache.
    windows : Windows
        Boundaries that keep their windows and checkpoints.
    eviction : str, optional
        :data:`TREE`, or an order of :class:`hybridkv.HybridCache`.
    units : int, optional
        Numbers of units that there are, where each work says which its units have: losses are told by cause then.
    tier : Tier, optional
        Where prefixes are stored when they are published, and restored from before a request is computed; its pools
        must be bound, see :func:`hybridkv.replay.places.bind_pages`. It is the lane's own: :meth:`close` closes it.
    """

    def __init__(
        self,
        spec: CacheSpec,
        pools: Pools,
        windows: Windows,
        *,
        eviction: str = TREE,
        units: int | None = None,
        tier: Tier | None = None,
    ) -> None:
        self.spec = spec
        self.pools = pools
        self.windows = windows
        self.tally = Tally()
        self.losses = None if units is None else Losses(units, spec.boundary_tokens, spec.unit_tokens)
        own = "none" if eviction == TREE else eviction
        writes = "none" if tier is None else "through"
        self.cache = HybridCache(
            spec, blocks=pools.units, pages=pools.pages, eviction=own, tier=tier, tier_writes=writes
        )
        self._step = spec.boundary_tokens
        self._history = {group.name: True for group in spec.groups if is_history(group.coverage)}
        self._states = {g.name: block_of(spec, g.name) for g in spec.groups if not is_history(g.coverage)}
        self._needs: dict[int, dict[str, npt.NDArray[np.int64]]] = {}
        self.policy = LruPolicy(self.cache) if eviction == TREE else None
        self.tier = tier

    @property
    def evicted_pages(self) -> int:
        """Pages that were taken away for others."""
        return self.cache.metrics().retired if self.policy is None else self.policy.evicted_pages

    def close(self) -> None:
        """Give up the tier, where there is one, and the cache with it; the figures stay."""
        if self.tier is not None:
            self.cache.close()
            self.tier.close()

    def serve(self, work: Work) -> None:
        """Replay one request.

        Parameters
        ----------
        work : Work
            The request.
        """
        if self.tier is not None:
            self.cache.flush()  # what was published before is written
        began = time.perf_counter_ns()
        verdict = self.cache.match(work.keys, limit=work.tokens)
        took = time.perf_counter_ns() - began
        if self.tier is not None:
            verdict = self._restored(work, verdict)
        self.tally.note(verdict, work.tokens, took)
        if self.losses is not None and work.seen is not None:
            self.losses.note(verdict, work.seen.prompt, work.seen.tokens, work.tokens)
        usable = verdict.usable_tokens
        if self.policy is not None:
            self.policy.touch(work.keys, verdict.matched_tokens // self._step * self._step, states=False)
            if usable:
                self.policy.touch(work.keys, usable)
        seen = work.seen
        if work.prompt is None:  # no whole unit of it is named; its answer may fill one
            if verdict.lease is not None:
                verdict.lease.release()
        elif not self._store(work.prompt, usable, verdict.lease, None if seen is None else seen.prompt):
            return
        if work.answer is not None:
            self._store(work.answer, work.answer.start_tokens, None, None if seen is None else seen.answer)

    def _restored(self, work: Work, verdict: Verdict) -> Verdict:
        """Load what the tier has of a prompt, and ask again; the verdict as it is where there is no room for it."""
        if verdict.plan is None or not verdict.plan.loads:
            return verdict
        before = verdict.usable_tokens
        if verdict.lease is not None:
            verdict.lease.cancel()
        if not self._restore(work.keys, verdict.plan):
            self.tally.not_restored += 1
        again = self.cache.match(work.keys, limit=work.tokens)
        self.tally.restored_tokens += max(0, again.usable_tokens - before)
        return again

    def _restore(self, keys: BlockKeys, plan: Plan) -> bool:
        """Load a plan, evicting where pages run out and the cache does not do it itself."""
        while True:
            try:
                self.cache.restore(plan).result()
                return True
            except RestoreRefused:
                return False
            except OutOfPages as short:
                lacking = max(1, short.needed - short.free)
                if self.policy is None or not self.policy.make_room(short.pool, [keys], pages=lacking):
                    return False

    def _store(self, part: Part, start: int, lease: Lease | None, units: npt.NDArray[np.int64] | None) -> bool:
        """Reserve and publish whole units, evicting where pages run out; False where they do not fit at
        all."""
        whole = part.keys.tokens // self._step * self._step
        boundaries = self.windows.boundaries(start // self._step * self._step, whole, self._step)
        kept = self._states_of(boundaries)
        while True:
            try:
                fill = self.cache.reserve(part.keys, lease=lease, groups={**self._history, **kept})
                break
            except OutOfPages as short:
                if not self._made_room(part, kept, short):
                    self.tally.not_stored += 1
                    if lease is not None:
                        lease.release()
                    return False
        fill.publish()
        if self.losses is not None and units is not None:
            self.losses.stored(units, boundaries)
        if self.policy is not None:
            for boundary in boundaries:
                self.policy.stored(part.keys, boundary)
            self.policy.stored(part.keys, part.keys.tokens, states=False)
        return True

    def _made_room(self, part: Part, kept: Mapping[str, npt.NDArray[np.int64]], short: OutOfPages) -> bool:
        if self.policy is None or not self._fits(part, kept):
            return False
        return self.policy.make_room(short.pool, [part.keys], pages=short.needed - short.free) > 0

    def _states_of(self, boundaries: list[int]) -> dict[str, npt.NDArray[np.int64]]:
        """Blocks of window and checkpoint groups that resumes at these lengths read."""
        if len(boundaries) == 1:
            return self._needed(boundaries[0])
        parts: dict[str, list[npt.NDArray[np.int64]]] = {}
        for boundary in boundaries:
            for name, blocks in self._needed(boundary).items():
                parts.setdefault(name, []).append(blocks)
        return {name: np.unique(np.concatenate(blocks)) for name, blocks in parts.items()}

    def _fits(self, part: Part, kept: Mapping[str, npt.NDArray[np.int64]]) -> bool:
        """Whether a part would find room in empty pools: for what does not, nothing is evicted."""
        history = {name: part.keys.tokens // block_of(self.spec, name) for name in self._history}
        states = {name: blocks.size for name, blocks in kept.items()}
        return all(pages <= self.pools.pages[name] for name, pages in {**history, **states}.items())

    def _needed(self, tokens: int) -> dict[str, npt.NDArray[np.int64]]:
        """Blocks of window and checkpoint groups that a resume at `tokens` reads."""
        found = self._needs.get(tokens)
        if found is None:
            needs = self.spec.requirements(tokens)
            blocks = {name: np.asarray(needs[name].blocks, dtype=np.int64) for name in self._states}
            found = self._needs[tokens] = {name: which for name, which in blocks.items() if which.size}
        return found
