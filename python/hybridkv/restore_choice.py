# SPDX-License-Identifier: Apache-2.0
"""Which restore is worth its time: what a tier has of a prefix, as candidates of a cost model."""

from __future__ import annotations

from collections.abc import Sequence

from hybridkv.cost import Candidate, Choice, CostModel
from hybridkv.spec import CacheSpec

_MOST = 64  # candidates that are listed; exact fractions of thousands would take longer than a restore

Option = tuple[int, int, list[int]]
"""Tokens, where the engine resumes, pages to be loaded by group."""


def choose_restore(
    model: CostModel, spec: CacheSpec, tier: str, options: Sequence[Option], usable: int, target: int
) -> Choice:
    """Choose among restores and computing on from what is usable.

    Parameters
    ----------
    model : CostModel
    spec : CacheSpec
    tier : str
        Name of the tier that is read from.
    options : sequence
        What can be restored, each longer than `usable`, shortest first.
    usable : int
        Length that is usable without any.
    target : int
        Length up to which the states are wanted.

    Returns
    -------
    Choice
        Of many options, those that take least, at most 63, and computing are listed.
    """
    layers = len({layer for group in spec.groups for layer in group.layers}) or 1
    sizes = [group.total_page_bytes for group in spec.groups]
    candidates = []
    for tokens, resume, pages in options:
        size = sum(count * page for count, page in zip(pages, sizes, strict=True))
        candidates.append(
            Candidate(tokens, loads={tier: size}, replay_layer_tokens=(tokens - resume) * layers, layers=layers)
        )
    if len(candidates) >= _MOST:
        candidates = _quickest(model, tier, candidates, target)
    return model.choose([Candidate(usable, layers=layers), *candidates], target)


def _quickest(model: CostModel, tier: str, candidates: list[Candidate], target: int) -> list[Candidate]:
    """Return those that take least, to the accuracy of a float; where that is not known, those that leave least."""
    known = model.tiers.get(tier)
    per_token = None
    if model.tokens_per_second is not None:
        per_token = 1 / model.tokens_per_second
    elif model.layer_tokens_per_second is not None:
        per_token = candidates[0].layers / model.layer_tokens_per_second

    def order(candidate: Candidate) -> tuple[bool, float, int]:
        work = target - candidate.tokens + candidate.replay_layer_tokens / candidate.layers
        if (candidate.load_bytes and known is None) or (work and per_token is None):
            return True, work, candidate.load_bytes
        load = known.seconds(candidate.load_bytes) if known is not None else 0.0
        return False, load + work * (per_token or 0.0), candidate.load_bytes

    return sorted(candidates, key=order)[: _MOST - 1]
