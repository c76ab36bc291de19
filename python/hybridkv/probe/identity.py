# SPDX-License-Identifier: Apache-2.0
"""Between whom prefixes are shared: users, models and adapters, as far as it can be seen from outside."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hybridkv.probe.compare import difference
from hybridkv.probe.endpoint import EndpointError
from hybridkv.probe.isolation import APART, BLIND, FAILED, REFUSED, SHARED, Isolation
from hybridkv.probe.search import reused
from hybridkv.probe.service import Lane, Service

_ROUNDS = 2  # one changed answer alone may be a hiccup


@dataclass
class Identity:
    """Who shares prefixes with whom.

    Attributes
    ----------
    user : str
        Requests with another ``user`` field: "apart", "shared", "refused", "not tried". Shared is not wrong: the same
        tokens have the same state. Who asks can tell from it, and from the time to the first token, what others asked.
    models : dict of str to str
        The same for each other model or adapter, where shared is wrong unless it is another name of the same weights.
    changes : dict of str to float
        Largest change in nats of such a model's answer behind another one's prefix, where it could be compared; of two
        prompts that of the one which changed less.
    """

    user: str = "not tried"
    models: dict[str, str] = field(default_factory=dict)
    changes: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"user": self.user, "models": dict(self.models), "model_change_nats": dict(self.changes)}


def examine(service: Service, isolation: Isolation, found: Identity, *, tokens: int) -> None:
    """Look who shares prefixes of so many tokens; what is found so far is kept where it ends early."""
    found.user = _user(service, tokens)
    for model in service.options.other_models:
        for _ in range(_ROUNDS):
            found.models[model] = _model(service, isolation, found, model, tokens)


def _user(service: Service, tokens: int) -> str:
    one = Lane("one user", {**service.lane.fields, "user": "hybridkv-probe-1"})
    other = Lane("other user", {**service.lane.fields, "user": "hybridkv-probe-2"})
    prompt = service.prompts.fresh(tokens)
    try:
        service.ask(prompt, one)
        if not reused(service, service.ask(prompt, one)):
            return BLIND
        return SHARED if reused(service, service.ask(prompt, other)) else APART
    except EndpointError as error:
        return _refused(service, error)


def _model(service: Service, isolation: Isolation, found: Identity, model: str, tokens: int) -> str:
    prompt = service.prompts.fresh(tokens)
    try:
        service.ask(prompt)
        if not reused(service, service.ask(prompt)):
            return BLIND
        warm = service.ask(prompt, model=model)
        if isolation.way:
            scratch = service.ask(prompt, isolation.lane(), model=model)
            if not reused(service, scratch):
                change = difference(warm, scratch, total=tokens, boundary=0).largest
                found.changes[model] = min(change, found.changes.get(model, change))
        return SHARED if reused(service, warm) else APART
    except EndpointError as error:
        return _refused(service, error)


def _refused(service: Service, error: EndpointError) -> str:
    if not error.refused:
        return FAILED
    service.forget_failure()
    return REFUSED
