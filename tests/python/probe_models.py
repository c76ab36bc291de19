# SPDX-License-Identifier: Apache-2.0
"""Models that a stand-in of a hosted service runs: a toy of numpy with every kind of state, and the real tiny ones.

A manager that takes a hash hit for a hit stands between: it goes on from whatever state is there, whole or broken.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float64]
Ids = tuple[int, ...]


class Session(Protocol):
    """A model behind some tokens."""

    def feed(self, ids: Sequence[int], *, last: bool = False) -> Rows:
        """Run tokens. Returns: logits [[tokens, vocabulary]], or those of the last alone."""


class Backend(Protocol):
    """A model whose states can be broken."""

    def scratch(self) -> Session: ...

    def restored(self, ids: Ids, tokens: int, chain: Ids, fault: Any) -> Session:
        """Go on behind the first tokens of `ids` from the state that `chain` left, broken by a fault."""


# -- the toy ----------------------------------------------------------------------------------------------------

VOCABULARY = 256
WINDOW, RATIO = 16, 8
_WIDTH = 24


@dataclass(frozen=True)
class ToyState:
    """History, window, tail, compressed entries and the sparse router's keys after some tokens."""

    history: Rows
    window: Ids = ()
    tail: Ids = ()
    compressed: Rows = field(default_factory=lambda: np.zeros(_WIDTH))
    indexer: Rows = field(default_factory=lambda: np.zeros(_WIDTH))


ToyFault = Callable[[ToyState, Ids, int, Ids, "Toy"], ToyState]
"""(right state, prompt, tokens, requests' tokens that stored it, model) -> broken state."""


class Toy:
    """A hybrid model of a few thousand numbers; logits of one token take microseconds."""

    def __init__(self, seed: int = 0, *, rounding: float = 0.0) -> None:
        random_ = np.random.default_rng(seed)
        self.history, self.near, self.tail, self.keys = random_.normal(0, 1, (4, VOCABULARY, _WIDTH))
        self.out = random_.normal(0, 0.5, (VOCABULARY, 3 * _WIDTH))
        self._noise = np.random.default_rng(seed + 1)
        self._rounding = rounding  # of a state that is stored or chunked: what bfloat16 does

    def scratch(self) -> ToySession:
        return ToySession(self, ToyState(np.zeros(_WIDTH)))

    def state(self, ids: Ids) -> ToyState:
        state = ToyState(np.zeros(_WIDTH))
        for token in ids:
            state = self.stepped(state, token)
        return state

    def restored(self, ids: Ids, tokens: int, chain: Ids, fault: ToyFault | None) -> ToySession:
        state = self.state(ids[:tokens])
        state = state if fault is None else fault(state, ids, tokens, chain, self)
        return ToySession(self, state)

    def stepped(self, state: ToyState, token: int) -> ToyState:
        """Return the state after one more token."""
        tail = (*state.tail, token)
        compressed, indexer = state.compressed, state.indexer
        if len(tail) == RATIO:
            compressed = 0.8 * compressed + self.tail[list(tail)].sum(0) / 2
            indexer = 0.8 * indexer + self.keys[list(tail)].sum(0) / 2
            tail = ()
        history = 0.98 * state.history + 0.3 * self.history[token]
        return ToyState(history, (*state.window, token)[-WINDOW:], tail, compressed, indexer)

    def features(self, state: ToyState) -> Rows:
        """Return what the logits are made of, [[numbers]]."""
        window = list(reversed(state.window))
        near = (1 / (1 + np.arange(len(window)) / 4)) @ self.near[window] if window else np.zeros(_WIDTH)
        return np.concatenate([state.history, near, state.compressed * np.tanh(state.indexer)])


class ToySession:
    """The toy behind some tokens."""

    def __init__(self, model: Toy, state: ToyState) -> None:
        self.model, self.state = model, state

    def feed(self, ids: Sequence[int], *, last: bool = False) -> Rows:
        if self.model._rounding:
            noise = self.model._noise.normal(0, self.model._rounding, _WIDTH)
            self.state = replace(self.state, history=self.state.history + noise)
        found = []
        for number, token in enumerate(ids, 1):
            self.state = self.model.stepped(self.state, token)
            if not last or number == len(ids):
                found.append(self.model.features(self.state))
        return np.tanh(np.stack(found)) @ self.model.out.T


def other_prompt(tokens: int) -> Ids:
    """Return what another request holds."""
    return tuple(random.Random(tokens).randrange(VOCABULARY) for _ in range(tokens))


TOY_FAULTS: dict[str, ToyFault] = {
    "window of four tokens ago": lambda s, ids, n, c, m: replace(s, window=m.state(ids[: n - 4]).window),
    "window of the end of the request": lambda s, ids, n, c, m: replace(s, window=m.state(c).window),
    "window of another request": lambda s, ids, n, c, m: replace(s, window=other_prompt(WINDOW)),
    "window zero": lambda s, ids, n, c, m: replace(s, window=()),
    "tail dropped": lambda s, ids, n, c, m: replace(s, tail=()),
    "indexer one entry behind": lambda s, ids, n, c, m: replace(s, indexer=m.state(ids[: n - RATIO]).indexer),
    "history of another request": lambda s, ids, n, c, m: replace(s, history=m.state(other_prompt(n)).history),
    "one block less": lambda s, ids, n, c, m: m.state(ids[: max(1, n - 16)]),
    "another format": lambda s, ids, n, c, m: replace(s, compressed=s.compressed[::-1].copy()),
}
"""False hits of the toy by name."""


# -- the real ones ----------------------------------------------------------------------------------------------


class Real:
    """A tiny model of transformers, its states broken by the fault kit."""

    def __init__(self, model: Any) -> None:
        from faults.live import Live

        self.live = Live(model)
        self.live.changed  # noqa: B018 - made once, before the copies

    def scratch(self) -> RealSession:
        from transformers import DynamicCache

        return RealSession(self.live, DynamicCache(config=self.live.model.config), 0)

    def restored(self, ids: Ids, tokens: int, chain: Ids, fault: Any) -> RealSession:
        import torch

        view = copy.copy(self.live)
        # A fault may ask for the state one token further on.
        view.prompt, view._states = torch.tensor([*ids, 0]), {}
        if fault is None:
            from hybridkv.adapters.transformers.rebuild import rebuilt

            return RealSession(view, rebuilt(view.layout, [view.state(tokens)], tokens), tokens)
        if isinstance(fault, int):  # so many tokens fewer, as if they were there
            return RealSession(view, view.filled(tokens - fault), tokens)
        context = view.context(tokens)
        broken = fault.apply(view.state(tokens), context)
        if broken is None:
            return RealSession(view, view.filled(tokens), tokens)
        return RealSession(view, view.unchecked(broken, context, fault), tokens)


class RealSession:
    """A real model behind some tokens."""

    def __init__(self, live: Any, past: Any, tokens: int) -> None:
        self.live, self.past, self.tokens = live, past, tokens

    def feed(self, ids: Sequence[int], *, last: bool = False) -> Rows:
        import torch

        logits = self.live.runner.run(torch.tensor([list(ids)]), self.past, self.tokens, all_logits=not last)
        self.tokens += len(ids)
        return np.asarray(logits[0].float().numpy(), dtype=np.float64)


# -- what serves them -------------------------------------------------------------------------------------------


@dataclass
class Served:
    """What an engine makes of one request: logits of what it generated, and those of the prompt's last tokens."""

    cached: int
    prompt: Rows
    ids: Ids
    rows: Rows


@dataclass
class HashHit:
    """A manager that reuses every block whose hash is known.

    Attributes
    ----------
    backend : Backend
    block : int
        Tokens of a block.
    fault : object
        What is wrong with states that it goes on from; None: nothing.
    rate : float
        Share of hits that are wrong.
    noise : float
        Standard deviation of what is added to logits of every request.
    reuses : bool
        Whether it reuses anything.
    key : callable
        (tokens, salt) -> what stands for them.
    """

    backend: Backend
    block: int = 16
    fault: Any = None
    rate: float = 1.0
    noise: float = 0.0
    reuses: bool = True
    key: Callable[[Ids, str], object] = lambda ids, salt: (ids, salt)
    hits: int = 0
    false_hits: int = 0
    _known: dict[object, Ids] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(5)

    def serve(self, ids: Ids, most: int, salt: str, echo: bool = False) -> Served:
        """Answer one request greedily."""
        tokens, chain = self._longest(ids, salt)
        if tokens:
            self.hits += 1
            wrong = self.fault is not None and self._random.random() < self.rate
            self.false_hits += wrong
            session = self.backend.restored(chain[:tokens] + ids[tokens:], tokens, chain, self.fault if wrong else None)
        else:
            session = self.backend.scratch()
        prompt = self._noisy(session.feed(ids[tokens:], last=not echo))
        rows, made = [prompt[-1]], [int(prompt[-1].argmax())]
        while len(made) < most:
            rows.append(self._noisy(session.feed(made[-1:]))[0])
            made.append(int(rows[-1].argmax()))
        self._store(ids + tuple(made[:-1]), salt)
        return Served(tokens, prompt, tuple(made), np.stack(rows))

    def _longest(self, ids: Ids, salt: str) -> tuple[int, Ids]:
        for tokens in range((len(ids) - 1) // self.block * self.block, 0, -self.block):
            chain = self._known.get(self.key(ids[:tokens], salt))
            if chain is not None and self.reuses:
                return tokens, chain
        return 0, ()

    def _store(self, ids: Ids, salt: str) -> None:
        for tokens in range(self.block, len(ids) + 1, self.block):
            self._known.setdefault(self.key(ids[:tokens], salt), ids)

    def _noisy(self, rows: Rows) -> Rows:
        return rows + self._random.normal(0, self.noise, rows.shape) if self.noise else rows


class Reusing:
    """hybridkv's own :class:`PrefixReuse`, one for each salt."""

    def __init__(self, model: Any, **arguments: Any) -> None:
        self._model, self._arguments = model, arguments
        self._by_salt: dict[str, Any] = {}
        self._first: dict[str, tuple[Ids, int]] = {}

    def serve(self, ids: Ids, most: int, salt: str, echo: bool = False) -> Served:
        """Answer one request greedily. The first of a salt meets an empty cache and is run without one."""
        if salt in self._by_salt:
            return self._run(self._by_salt[salt], ids, most)
        if salt not in self._first:
            self._first[salt] = (ids, most)
            return HashHit(_Plain(self._model)).serve(ids, most, salt, echo)
        reuse = self._by_salt[salt] = self._made(salt)
        self._run(reuse, *self._first[salt])
        return self._run(reuse, ids, most)

    def _made(self, salt: str) -> Any:
        from hybridkv import Identity
        from hybridkv.adapters.transformers import PrefixReuse

        identity = Identity("tiny", "random", salt=salt.encode())
        return PrefixReuse(self._model, memory_bytes=1 << 25, identity=identity, **self._arguments)

    def _run(self, reuse: Any, ids: Ids, most: int) -> Served:
        import torch

        made = reuse.generate(
            torch.tensor([ids]), max_new_tokens=most, do_sample=False, output_logits=True, return_dict_in_generate=True
        )
        rows = np.concatenate([step.float().numpy() for step in made.logits]).astype(np.float64)
        return Served(reuse.last_rows[0].usable, rows[:0], tuple(made.sequences[0, len(ids) :].tolist()), rows)


class _Plain:
    """A model without any reuse."""

    def __init__(self, model: Any) -> None:
        from hybridkv.adapters.transformers.runner import Runner

        self._model, self._runner = model, Runner(model, single_steps=False)

    def scratch(self) -> Any:
        from types import SimpleNamespace

        from transformers import DynamicCache

        live = SimpleNamespace(runner=self._runner)
        return RealSession(live, DynamicCache(config=self._model.config), 0)

    def restored(self, ids: Ids, tokens: int, chain: Ids, fault: Any) -> Any:
        raise AssertionError("nothing is stored that could be restored")
