# SPDX-License-Identifier: Apache-2.0
"""Managers that can stand side by side: what they decide about a prompt, and how they come to know one."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from hybridkv.cache import HybridCache
from hybridkv.errors import ArgumentError
from hybridkv.identity import Identity
from hybridkv.keys import BlockKeys, block_keys

Tokens = npt.NDArray[np.int64]
"""Token ids of a prompt, [[tokens]] int64."""


class Decision(NamedTuple):
    """What a manager says of a prompt.

    Attributes
    ----------
    outcome : str
        MISS, FALSE_HIT or REUSABLE.
    usable_tokens : int
        Where it would resume; 0 unless REUSABLE.
    matched_tokens : int
        What it knows of the prompt.
    why : str
        Why not more; empty where nothing was lost.
    """

    outcome: str
    usable_tokens: int
    matched_tokens: int = 0
    why: str = ""

    def is_as(self, other: Decision) -> bool:
        """Whether a request would be served alike: the same outcome, from the same token on."""
        return self[:2] == other[:2]


@runtime_checkable
class Manager(Protocol):
    """What stands on one side. An engine's own manager is one with two methods."""

    def decide(self, tokens: Tokens) -> Decision:
        """Say what of a prompt would be reused, and change nothing that a later decision depends on."""

    def store(self, tokens: Tokens) -> None:
        """Come to know a prompt that was computed."""


class CacheManager:
    """A :class:`~hybridkv.HybridCache` as a manager.

    Parameters
    ----------
    cache : HybridCache
    identity : Identity, optional
        Of its keys. Default: that of its spec.
    stores : bool, optional
        Whether :meth:`store` publishes every page of a prompt, without bytes. False where an engine stores by itself.

    Raises
    ------
    ArgumentError
        Naming the field.
    """

    def __init__(self, cache: HybridCache, *, identity: Identity | None = None, stores: bool = True) -> None:
        if not isinstance(cache, HybridCache):
            raise ArgumentError("cache", "a HybridCache", type(cache).__name__)
        self.cache, self._identity, self._stores = cache, identity, stores

    def decide(self, tokens: Tokens) -> Decision:
        """Match, and withdraw the hit."""
        verdict = self.cache.match(self.keys(tokens))
        why = verdict.why
        if verdict.lease is not None:
            verdict.lease.cancel()
        told = "" if why is None else f"{why.check.name}/{why.code} in {why.group}"
        return Decision(verdict.outcome.name, verdict.usable_tokens, verdict.matched_tokens, told)

    def store(self, tokens: Tokens) -> None:
        """Publish whole units and the tip; OutOfPages passes."""
        if self._stores:
            self.cache.insert(self.keys(tokens))

    def keys(self, tokens: Tokens) -> BlockKeys:
        """Return the keys of a prompt."""
        identity = self.cache.spec.identity if self._identity is None else self._identity
        return block_keys(tokens, self.cache.spec.unit_tokens, identity=identity)
