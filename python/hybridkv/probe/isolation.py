# SPDX-License-Identifier: Apache-2.0
"""Ways of having the same tokens computed from scratch though they are cached: without one, few hits can be judged.

What a changed first token does to an answer is no noise: the prompt is another one. To judge a hit the same tokens have
to be computed without it, so requests go by another lane: one whose prefixes the service keeps apart. A lane is
believed where a prompt that is cached in the own lane is not reused in it.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from hybridkv.probe.endpoint import Endpoint, EndpointError
from hybridkv.probe.prompts import Prompt
from hybridkv.probe.search import reused
from hybridkv.probe.service import Lane, Service

APART, SHARED, REFUSED, NOT_TRIED = "apart", "shared", "refused", "not tried"
BLIND, FAILED = "not reused when repeated", "failed"


@dataclass
class Isolation:
    """How requests are computed from scratch.

    Attributes
    ----------
    way : str or None
        "reference", "cache_salt", "other key" or "echo"; None where no way was found.
    tried : dict of str to str
        Each way, with "apart", "shared", "refused", "not tried", "failed", or "not reused when repeated".
    suffix : bool
        Echoed log-probabilities come with reuse, so that suffixes of prompts can be compared too.
    """

    way: str | None = None
    tried: dict[str, str] = field(default_factory=dict)
    suffix: bool = False
    _lane: Callable[[], Lane] | None = None

    def lane(self) -> Lane:
        """Return a lane in which no prompt was asked that is not asked twice by it."""
        assert self._lane is not None, "asked only where a way was found"
        return self._lane()


def find_isolation(service: Service, tokens: int, *, other: Endpoint | None, reference: Endpoint | None) -> Isolation:
    """Try every way.

    Parameters
    ----------
    service : Service
        Whose lane is set, where salts are kept apart.
    tokens : int
        Length of prompts of which a repeat is reused.
    other : Endpoint or None
        The same service with another tenant's key.
    reference : Endpoint or None
        The same model without reuse.

    Returns
    -------
    Isolation
    """
    found = Isolation(tried=dict.fromkeys(("reference", "cache_salt", "other key", "echo"), NOT_TRIED))
    lanes: dict[str, Callable[[], Lane]] = {}
    if reference is not None:  # whoever names it answers for it
        found.tried["reference"] = APART
        lanes["reference"] = lambda: Lane("reference", endpoint=reference)
    numbers = itertools.count()
    salt = f"hybridkv-probe-{secrets.token_hex(8)}"

    def salted() -> Lane:
        return Lane("cache_salt", {"cache_salt": f"{salt}-{next(numbers)}"})

    own = salted()
    found.tried["cache_salt"] = _apart(service, tokens, own, salted())
    if found.tried["cache_salt"] == APART:
        service.lane = Lane("own", own.fields)
        lanes["cache_salt"] = salted
    if other is not None:
        lane = Lane("other key", service.lane.fields, endpoint=other)
        found.tried["other key"] = _apart(service, tokens, service.lane, lane)
        lanes["other key"] = lambda: lane
    if service.form.kind == "ids":
        lane_echo = Lane("echo", service.lane.fields, echo=True)
        found.tried["echo"] = _apart(service, tokens, service.lane, lane_echo, repeated=False)
        found.suffix = found.tried["echo"] == SHARED
        lanes["echo"] = lambda: lane_echo
    ways = [way for way in found.tried if found.tried[way] == APART]
    if ways:
        found.way, found._lane = ways[0], lanes[ways[0]]
    return found


def _apart(service: Service, tokens: int, own: Lane, other: Lane, *, repeated: bool = True) -> str:
    """Say whether what is cached in one lane is reused in another; and that the other one reuses its own."""
    prompt: Prompt = service.prompts.fresh(tokens)
    try:
        service.ask(prompt, own)
        if not reused(service, service.ask(prompt, own)):
            return BLIND
        if reused(service, service.ask(prompt, other)):
            return SHARED
        if repeated and not reused(service, service.ask(prompt, other)):
            return BLIND
    except EndpointError as error:
        if error.refused or error.status in (401, 403):
            service.forget_failure()
            return REFUSED
        return FAILED  # in service.failures
    return APART
