# SPDX-License-Identifier: Apache-2.0
"""A hit that was drawn: what has to be computed for it, and what became of the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from hybridkv.canary.attribution import Answer, Attribution
from hybridkv.canary.board import Eras
from hybridkv.canary.breaker import Scope
from hybridkv.canary.compare import Judgement
from hybridkv.canary.ends import Ends
from hybridkv.errors import ArgumentError

if TYPE_CHECKING:
    from hybridkv.canary.watch import Canary
    from hybridkv.keys import BlockKeys
    from hybridkv.verdict import Verdict


class SampleKind(StrEnum):
    """Why a hit was drawn, and which of its two answers is for the user."""

    CANARY = "canary"
    """The reused answer is used; the other one may come later."""
    TRIAL = "trial"
    """A breaker is half open: the recomputed answer is used."""
    SHADOW = "shadow"
    """Reuse is not on for this request: the recomputed answer is used."""


@dataclass(frozen=True)
class Outcome:
    """What became of one comparison.

    Attributes
    ----------
    judgement : Judgement
    attribution : Attribution
    blamed : tuple of Scope
        To which the mismatch is laid; empty where there is none.
    tripped : tuple of Scope
        Breakers that tripped by it.
    """

    judgement: Judgement
    attribution: Attribution
    blamed: tuple[Scope, ...]
    tripped: tuple[Scope, ...]

    @property
    def mismatch(self) -> bool:
        """Whether either end is different."""
        return self.judgement.mismatch


class Sample:
    """A hit that was drawn. Settle it or abandon it, once; one that is dropped counts as abandoned.

    Attributes
    ----------
    kind : SampleKind
    keys : BlockKeys
        Of the request.
    tokens : int
        Length of the reused prefix: the first end is behind the token with this index.
    groups : tuple of str
        Of which the hit reads pages.
    loaded : bool
        Whether it reads a page that the tier has too, and that may have come from there.
    epoch : int or None
        Of the rollout that it was drawn in, where there is one.

    Notes
    -----
    Thread safety: one owner at a time; it may be settled on any thread, while its lease lives or after.
    """

    def __init__(
        self,
        canary: Canary,
        kind: SampleKind,
        keys: BlockKeys,
        tokens: int,
        groups: tuple[str, ...],
        loaded: bool,
        drawn: Eras,
        trials: Eras,
    ) -> None:
        self.kind, self.keys, self.tokens, self.groups, self.loaded = kind, keys, tokens, groups, loaded
        self.epoch: int | None = None
        self._canary, self._drawn, self._trials = canary, drawn, trials
        self._open = True

    @property
    def use_reused(self) -> bool:
        """Whether the reused answer is for the user; else the recomputed one is, and nothing reused may be kept."""
        return self.kind is SampleKind.CANARY

    def settle(
        self,
        reused: Ends,
        recomputed: Ends,
        *,
        differing: Sequence[str] = (),
        answer: Answer | None = None,
        loaded: bool | None = None,
    ) -> Outcome:
        """Compare the two answers, and let the breakers know.

        Parameters
        ----------
        reused, recomputed : Ends
            Logits of both ends of the suffix, with the prefix reused and from scratch.
        differing : sequence of str, optional
            Groups whose gathered content was not what was stored, see :class:`.StoredContent`.
        answer : callable, optional
            Asked, where there is a mismatch, for the answer with the states of some groups recomputed, so that it is
            known to which it belongs.
        loaded : bool, optional
            Whether anything was loaded from the tier for this hit. Default: whether it may have been.

        Returns
        -------
        Outcome

        Raises
        ------
        ArgumentError
            Something else than Ends, Ends of different models, unknown groups; it was settled before. What `answer`
            raises passes, and the sample is still open.
        """
        self._check_open()
        for name in differing:
            if name not in self.groups:
                raise ArgumentError("differing", f"of {', '.join(self.groups)}", name)
        return self._canary._settle(self, reused, recomputed, differing, answer, loaded)

    def abandon(self) -> None:
        """Give it up: the request did not run, or was not recomputed. Nothing is compared.

        Raises
        ------
        ArgumentError
            It was settled before.
        """
        self._check_open()
        self._canary._abandon(self)

    def _check_open(self) -> None:
        if not self._open:
            raise ArgumentError("sample", "a sample that is open", "one that was settled or abandoned")

    def __del__(self) -> None:
        if getattr(self, "_open", False):
            self._canary._abandon(self)

    def __repr__(self) -> str:
        return f"Sample({self.kind.value}, tokens={self.tokens}{'' if self._open else ', settled'})"


@dataclass(frozen=True)
class Hit:
    """The answer of a match that a canary watches.

    Attributes
    ----------
    verdict : Verdict
        As of the cache. Where a sample is no CANARY, its lease is for the comparison alone.
    sample : Sample or None
        Where it was drawn.
    """

    verdict: Verdict
    sample: Sample | None
