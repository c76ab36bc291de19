# SPDX-License-Identifier: Apache-2.0
"""Two managers over the same requests: where they disagree, and the smallest requests that show it again."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hybridkv.arguments import count
from hybridkv.errors import ArgumentError
from hybridkv.keys import readable_ids
from hybridkv.minimal import minimal
from hybridkv.rollout.managers import Decision, Manager, Tokens

_MOST_ASKS = 2000
"""Decisions that the shrinking of one disagreement takes at most."""

_KEPT = 16

Pair = tuple[Manager, Manager]


@dataclass(frozen=True, eq=False)
class Reproduction:
    """The smallest requests found that show a disagreement.

    Attributes
    ----------
    stored : tuple of array
        Prompts that were stored before, in order; empty where the managers could not be made anew.
    prompt : array
        [[tokens]] int64, the one that they disagree about. No shorter prefix of it shows the same.
    old, new : Decision
        About it.
    from_fresh : bool
        Whether it shows in managers that know nothing but ``stored``; else it took the ones that were watched.
    """

    stored: tuple[Tokens, ...]
    prompt: Tokens
    old: Decision
    new: Decision
    from_fresh: bool


@dataclass(frozen=True, eq=False)
class Disagreement:
    """One request about which two managers disagree.

    Attributes
    ----------
    number : int
        Of the request, from 0.
    kind : str
        "more": the new one would reuse more, which is a false hit unless the old one left something. "less". "outcome":
        neither reuses more, and they call it differently.
    old, new : Decision
    smallest : Reproduction
    """

    number: int
    kind: str
    old: Decision
    new: Decision
    smallest: Reproduction


@dataclass(frozen=True)
class SideBySideReport:
    """What two managers said.

    Attributes
    ----------
    requests, agreed : int
    disagreed : mapping of str to int
        By kind.
    old_tokens, new_tokens : int
        That each would have reused.
    kept : tuple of Disagreement
        The first of each kind, and the first of all up to 16, each with its reproduction.
    """

    requests: int
    agreed: int
    disagreed: Mapping[str, int]
    old_tokens: int
    new_tokens: int
    kept: tuple[Disagreement, ...]

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "requests": self.requests,
            "agreed": self.agreed,
            "disagreed": dict(self.disagreed),
            "old_tokens": self.old_tokens,
            "new_tokens": self.new_tokens,
            "kept": [
                {
                    "number": each.number,
                    "kind": each.kind,
                    "old": each.old._asdict(),
                    "new": each.new._asdict(),
                    "smallest": {
                        "stored": [prompt.tolist() for prompt in each.smallest.stored],
                        "prompt": each.smallest.prompt.tolist(),
                        "old": each.smallest.old._asdict(),
                        "new": each.smallest.new._asdict(),
                        "from_fresh": each.smallest.from_fresh,
                    },
                }
                for each in self.kept
            ],
        }

    def as_text(self) -> str:
        """Return it for people: a line for each disagreement that was kept."""
        counts = ", ".join(f"{number} {kind}" for kind, number in self.disagreed.items()) or "none"
        lines = [f"{self.requests} requests, {self.agreed} decided alike; the new one otherwise: {counts}"]
        for each in self.kept:
            small = each.smallest
            stored = f" after {'+'.join(str(len(p)) for p in small.stored)} stored" if small.stored else ""
            lines.append(
                f"request {each.number}: {each.kind}; {len(small.prompt)} tokens{stored} show it: "
                f"old {_told(small.old)}, new {_told(small.new)}"
            )
        return "\n".join(lines)


class SideBySide:
    """Asks two managers about the same requests.

    Parameters
    ----------
    old, new : Manager
        Such as two :class:`.CacheManager`, or an engine's own manager beside one.
    fresh : callable, optional
        Returns a pair of such managers that know nothing: with it a disagreement is shown from nothing, by the fewest
        stored prompts, each as short as can be. Default: only the prompt is shortened, against the managers as they
        are.
    most_asks : int, optional
        Decisions that shrinking takes at most, for each disagreement that is kept.
    history : int, optional
        Stored prompts that are remembered for it.

    Raises
    ------
    ArgumentError
        Naming the field.

    Notes
    -----
    Any thread may call; requests are then in the order of the calls. Decisions count as look-ups of the managers.

    Examples
    --------
    >>> import hybridkv as hk
    >>> from hybridkv.rollout import CacheManager, SideBySide
    >>> window = hk.CacheGroup("swa", hk.StateKind.WINDOW, hk.Window(17), page_bytes=64, block_tokens=16)
    >>> history = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64, block_tokens=16)
    >>> def pair():
    ...     old = hk.HybridCache(hk.CacheSpec(16, [history]), blocks=64)  # a hash hit is a hit
    ...     return CacheManager(old), CacheManager(hk.HybridCache(hk.CacheSpec(16, [history, window]), blocks=64))
    >>> old, new = pair()
    >>> side = SideBySide(old, new, fresh=pair)
    >>> side.store(range(100))
    >>> new.cache.evict(new.keys(range(100)), {"swa": True})
    7
    >>> side.observe(range(50)).kind
    'less'
    """

    def __init__(
        self,
        old: Manager,
        new: Manager,
        *,
        fresh: Callable[[], Pair] | None = None,
        most_asks: int = _MOST_ASKS,
        history: int = 1024,
    ) -> None:
        for field, manager in (("old", old), ("new", new)):
            if not isinstance(manager, Manager):
                raise ArgumentError(field, "a manager, with decide and store", type(manager).__name__)
        if fresh is not None and not callable(fresh):
            raise ArgumentError("fresh", "a callable that returns two managers, or None", fresh)
        self._pair: Pair = (old, new)
        self._fresh = fresh
        self._most_asks, self._most_stored = count("most_asks", most_asks), count("history", history)
        self._stored: list[Tokens] = []
        self._kept: list[Disagreement] = []
        self._counts: Counter[str] = Counter()
        self._reused = [0, 0]
        self._lock = threading.Lock()

    def store(self, tokens: Any) -> None:
        """Let both sides store a prompt that was computed.

        Parameters
        ----------
        tokens : array or sequence of int
            [[tokens]].
        """
        ids = _ids(tokens)
        with self._lock:
            for manager in self._pair:
                manager.store(ids)
            self._stored = [*self._stored, ids][-self._most_stored :]

    def observe(self, tokens: Any) -> Disagreement | None:
        """Ask both sides about a request.

        Parameters
        ----------
        tokens : array or sequence of int
            [[tokens]].

        Returns
        -------
        Disagreement or None
            None where they would serve it alike. A disagreement of a kind that is kept often enough is not shrunk: its
            ``smallest`` is the request itself.
        """
        ids = _ids(tokens)
        with self._lock:
            old, new = (manager.decide(ids) for manager in self._pair)
            number = self._counts.total()
            self._reused[0] += old.usable_tokens
            self._reused[1] += new.usable_tokens
            kind = _kind(old, new)
            self._counts[kind] += 1
            if not kind:
                return None
            known = any(each.kind == kind for each in self._kept)
            if known and len(self._kept) >= _KEPT:
                return Disagreement(number, kind, old, new, Reproduction((), ids, old, new, False))
            smallest = _Shrinking(self._pair, self._fresh, self._most_asks, kind).smallest(self._stored, ids)
            made = Disagreement(number, kind, old, new, smallest)
            self._kept.append(made)
            return made

    def report(self) -> SideBySideReport:
        """Return what was said so far."""
        with self._lock:
            kinds = {kind: number for kind, number in self._counts.items() if kind}
            total = self._counts.total()
            old, new = self._reused
            return SideBySideReport(total, self._counts[""], kinds, old, new, tuple(self._kept))


class _Shrinking:
    """Makes one disagreement smaller, within a number of decisions."""

    def __init__(self, pair: Pair, fresh: Callable[[], Pair] | None, most_asks: int, kind: str) -> None:
        self._pair, self._fresh, self._left, self._kind = pair, fresh, most_asks, kind

    def smallest(self, stored: Sequence[Tokens], prompt: Tokens) -> Reproduction:
        if self._fresh is not None:
            kept = [*stored]
            if self._decided(kept, prompt) is not None:
                kept = minimal(kept, lambda part: self._decided(part, prompt) is not None, most_calls=self._left)
                short = _shortest(prompt, lambda tokens: self._decided(kept, tokens) is not None)
                for at, whole in enumerate(kept):
                    kept[at] = _shortest(whole, partial(self._with, kept, at, short))
                return self._made(tuple(kept), short, fresh=True)
        return self._made((), _shortest(prompt, lambda tokens: self._decided(None, tokens) is not None), fresh=False)

    def _with(self, stored: list[Tokens], at: int, prompt: Tokens, tokens: Tokens) -> bool:
        return self._decided([*stored[:at], tokens, *stored[at + 1 :]], prompt) is not None

    def _decided(self, stored: Sequence[Tokens] | None, prompt: Tokens) -> tuple[Decision, Decision] | None:
        """Return what both decide where they still disagree in that way; None elsewhere, or where all asks are spent.

        ``stored`` None asks the managers as they are.
        """
        if self._left <= 0:
            return None
        self._left -= 1
        return self._disagreed(stored, prompt)

    def _disagreed(self, stored: Sequence[Tokens] | None, prompt: Tokens) -> tuple[Decision, Decision] | None:
        pair = self._pair
        if stored is not None:
            assert self._fresh is not None
            pair = self._fresh()
            for tokens in stored:
                for manager in pair:
                    manager.store(tokens)
        old, new = (manager.decide(prompt) for manager in pair)
        return (old, new) if _kind(old, new) == self._kind else None

    def _made(self, stored: tuple[Tokens, ...], prompt: Tokens, *, fresh: bool) -> Reproduction:
        decided = self._disagreed(stored if fresh else None, prompt)
        assert decided is not None  # of the same managers about the same prompt
        return Reproduction(stored, prompt, *decided, fresh)


def _shortest(tokens: Tokens, shows: Callable[[Tokens], bool]) -> Tokens:
    """Return the shortest prefix found that shows it: by steps of half its length, then smaller ones."""
    best, step = len(tokens), max(1, len(tokens) // 2)
    while step:
        if best > step and shows(tokens[: best - step]):
            best -= step
        elif step == 1:
            break
        else:
            step //= 2
    return tokens[:best]


def _kind(old: Decision, new: Decision) -> str:
    """Say how they disagree; empty where they do not."""
    if old.is_as(new):
        return ""
    if old.usable_tokens != new.usable_tokens:
        return "more" if new.usable_tokens > old.usable_tokens else "less"
    return "outcome"


def _told(decision: Decision) -> str:
    rest = f" ({decision.why})" if decision.why else ""
    return f"{decision.outcome} at {decision.usable_tokens}{rest}"


def _ids(tokens: Any) -> Tokens:
    """Return token ids as an array of its own."""
    expected = "an integer array or sequence of ids [[tokens]]"
    try:
        ids = np.array(readable_ids(tokens))
    except ValueError as error:  # rows of different length, for one
        raise ArgumentError("tokens", expected, type(tokens).__name__) from error
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise ArgumentError("tokens", expected, f"{ids.dtype}, shape {ids.shape}")
    return ids.astype(np.int64)
