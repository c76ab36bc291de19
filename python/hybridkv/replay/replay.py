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
from collections.abc import Iterator
from dataclasses import dataclass

from hybridkv import BlockKeys, CacheSpec, HybridCache, Lease, OutOfPages, block_keys
from hybridkv.policy import LruPolicy
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
    """

    keys: BlockKeys
    tokens: int
    prompt: Part | None
    answer: Part | None


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
    """

    def __init__(self, spec: CacheSpec, pools: Pools, windows: Windows) -> None:
        self.spec = spec
        self.pools = pools
        self.windows = windows
        self.tally = Tally()
        self.cache = HybridCache(spec, blocks=pools.units, pages=pools.pages, eviction="none")  # by the policy below
        self._step = spec.boundary_tokens
        self._history = {group.name: True for group in spec.groups if is_history(group.coverage)}
        self._states = {g.name: block_of(spec, g.name) for g in spec.groups if not is_history(g.coverage)}
        self._needs: dict[int, dict[str, tuple[int, ...]]] = {}
        self.policy = LruPolicy(self.cache)

    def serve(self, work: Work) -> None:
        """Replay one request.

        Parameters
        ----------
        work : Work
            The request.
        """
        began = time.perf_counter_ns()
        verdict = self.cache.match(work.keys)
        took = time.perf_counter_ns() - began
        self.tally.note(verdict, work.tokens, took)
        usable = verdict.usable_tokens
        self.policy.touch(work.keys, verdict.matched_tokens // self._step * self._step, states=False)
        if usable:
            self.policy.touch(work.keys, usable)
        if work.prompt is None:
            if verdict.lease is not None:
                verdict.lease.release()
            return
        if self._store(work.prompt, usable, verdict.lease) and work.answer is not None:
            self._store(work.answer, work.answer.start_tokens, None)

    def _store(self, part: Part, start: int, lease: Lease | None) -> bool:
        """Reserve and publish whole units, evicting where pages run out; False where they do not fit at
        all."""
        whole = part.keys.tokens // self._step * self._step
        boundaries = self.windows.boundaries(start // self._step * self._step, whole, self._step)
        states: dict[str, set[int]] = {}
        for boundary in boundaries:
            for name, blocks in self._needed(boundary).items():
                states.setdefault(name, set()).update(blocks)
        kept = {name: tuple(sorted(blocks)) for name, blocks in states.items()}
        while True:
            try:
                fill = self.cache.reserve(part.keys, lease=lease, groups={**self._history, **kept})
                break
            except OutOfPages as short:
                lacking = short.needed - short.free
                fits = self._fits(part, kept)
                if not fits or not self.policy.make_room(short.pool, [part.keys], pages=lacking):
                    self.tally.not_stored += 1
                    if lease is not None:
                        lease.release()
                    return False
        fill.publish()
        for boundary in boundaries:
            self.policy.stored(part.keys, boundary)
        self.policy.stored(part.keys, part.keys.tokens, states=False)
        return True

    def _fits(self, part: Part, kept: dict[str, tuple[int, ...]]) -> bool:
        """Whether a part would find room in empty pools: for what does not, nothing is evicted."""
        history = {name: part.keys.tokens // block_of(self.spec, name) for name in self._history}
        states = {name: len(blocks) for name, blocks in kept.items()}
        return all(pages <= self.pools.pages[name] for name, pages in {**history, **states}.items())

    def _needed(self, tokens: int) -> dict[str, tuple[int, ...]]:
        """Blocks of window and checkpoint groups that a resume at `tokens` reads."""
        found = self._needs.get(tokens)
        if found is None:
            needs = self.spec.requirements(tokens)
            found = {name: tuple(int(block) for block in needs[name].blocks) for name in self._states}
            found = self._needs[tokens] = {name: blocks for name, blocks in found.items() if blocks}
        return found
