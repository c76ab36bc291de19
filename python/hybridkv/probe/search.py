# SPDX-License-Identifier: Apache-2.0
"""Whether prefixes are reused at all, from which length on, and in which step: ``cached_tokens`` tells it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hybridkv.probe.answers import Answer
from hybridkv.probe.service import Service

_SHORTEST = 32
_BRANCHES = 5  # so many random lengths have a common divisor beyond the step in one of 27 cases or so
_STRAY_TOKENS = 2  # that prompts of unlike first pieces may begin with: a start token, a collision


@dataclass
class Reuse:
    """What a service says of its reuse.

    Attributes
    ----------
    reported : bool
        It tells ``cached_tokens``.
    step : int
        Greatest common divisor of the shared lengths it reused; 0 where it reused nothing.
    least : int
        Tokens of the shortest prompt of which anything was reused; 0 where nothing was.
    longest_tried : int
        Tokens of the longest prompt that was repeated.
    """

    reported: bool = False
    step: int = 0
    least: int = 0
    longest_tried: int = 0


def common_tokens(service: Service) -> int:
    """Return how many tokens two fresh prompts may have in common: what a chat's template puts before them."""
    return _STRAY_TOKENS + math.ceil(service.prompts.around)


def reused(service: Service, answer: Answer) -> int:
    """Return the tokens that were reused of the prompt itself; 0 where it is no more than a template."""
    return answer.reused if answer.reused > common_tokens(service) else 0


def find_reuse(service: Service) -> Reuse:
    """Repeat prompts, each twice as long as the one before, until something is reused; then find the step.

    Parameters
    ----------
    service : Service
        Reached.

    Returns
    -------
    Reuse
    """
    found = Reuse()
    steps: list[int] = []
    tokens = _SHORTEST
    while tokens <= service.options.longest and not found.least:
        prompt = service.prompts.fresh(tokens)
        service.ask(prompt)
        again = service.ask(prompt)
        found.reported |= again.cached_tokens is not None
        found.longest_tried = service.prompts.tokens(prompt, again)
        if not found.reported:
            return found
        if reused(service, again):
            found.least = found.longest_tried
            steps.append(again.reused)
        tokens *= 2
    if found.least:
        # A repeat may be reused up to any token, where ends are kept; what others share, in steps alone.
        branches = [_branch(service, found.least) for _ in range(_BRANCHES)]
        found.step = math.gcd(*(tokens for tokens in branches if tokens)) or math.gcd(*steps)
    return found


def _branch(service: Service, least: int) -> int:
    """Return the tokens reused of a random shared length."""
    shared = min(service.options.longest, least + service.prompts.below(3 * least))
    base = service.prompts.fresh(shared)
    first, second = _suffixes(service, 8)
    service.ask(base.then(first))
    return reused(service, service.ask(base.then(second)))


def _suffixes(service: Service, tokens: int) -> tuple[tuple[object, ...], tuple[object, ...]]:
    first = service.prompts.pieces(tokens)
    return first, service.prompts.pieces(tokens, other_than=first)
