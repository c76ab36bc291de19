# SPDX-License-Identifier: Apache-2.0
"""Trials: each makes one hit at a chosen length and compares what follows with the same tokens computed from scratch.

========= ======================================== ================================ =========================
design    makes the hit                            compared with                    needs a lane apart
========= ======================================== ================================ =========================
repeat    a prompt, then the same again            its first answer                 no
continued an answer of many tokens, then the       the rest of that first answer    no; ids of tokens
          prompt with the first part of it
branch    a prompt, then one that shares so many   itself in a lane apart           yes
          tokens and goes on otherwise
turn      a prompt, then prompt, answer and a      itself in a lane apart           yes
          new question
twin      a prompt, then one of which only the     itself in a lane apart; without  no
          first piece is another: not a hit        one: the first prompt's answer
========= ======================================== ================================ =========================

``repeat`` goes on from where an earlier request ended, ``branch`` and ``continued`` from inside one: a manager that
keeps a window for ends alone is right in the first and wrong in the others. Suffixes are one token, so that the first
answer token stands next to the boundary, or long, so that a window has faded and a tail has not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hybridkv.probe.answers import Answer
from hybridkv.probe.compare import Difference, difference
from hybridkv.probe.isolation import Isolation
from hybridkv.probe.prompts import Prompt
from hybridkv.probe.search import Reuse, common_tokens, reused
from hybridkv.probe.service import Lane, Service

DESIGNS = ("repeat", "continued", "branch", "turn", "twin")

_MOST_BACK = 32  # tokens of a first answer before the boundary of a continued trial
_SLACK_TOKENS = 4  # of a shared length, where it is counted in words


@dataclass(frozen=True)
class Trial:
    """One trial to make.

    Attributes
    ----------
    design : str
        One of :data:`DESIGNS`.
    boundary : int
        Length in tokens that is looked at.
    shared : int
        Tokens shared with what is cached: the boundary, or one beside it.
    suffix : int
        Tokens behind them.
    """

    design: str
    boundary: int
    shared: int
    suffix: int

    @property
    def name(self) -> str:
        """As reports name it."""
        return f"{self.design} at {self.shared}, suffix {self.suffix}"


@dataclass(frozen=True)
class Observation:
    """What came of a trial.

    Attributes
    ----------
    trial : Trial
    total : int
        Tokens of the prompt that could be reused.
    cached_tokens : int or None
        What the service says that it reused of it.
    reused : int
        The same without what all prompts have in common.
    apart : Difference or None
        None where there is nothing to compare with.
    impossible : str
        Why `cached_tokens` cannot be true; empty where it can.
    requests : tuple of dict
        Bodies of the requests, in order; the last is the one that is compared with.
    tops : tuple
        Log-probabilities of the first generated token: of the hit, and from scratch (of the other prompt, where
        `from_other` is told).
    from_other : float or None
        Largest change in nats from the answer to the other prompt of a twin, where nothing else can be compared:
        tokens said to be reused that were never the same, and an answer that is the other prompt's, are a false hit.
    """

    trial: Trial
    total: int
    cached_tokens: int | None
    reused: int
    apart: Difference | None
    impossible: str
    requests: tuple[dict[str, Any], ...]
    tops: tuple[dict[str, float], ...] = ()
    from_other: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data, without the requests."""
        return {
            "trial": self.trial.name,
            "design": self.trial.design,
            "boundary_tokens": self.trial.boundary,
            "shared_tokens": self.trial.shared,
            "prompt_tokens": self.total,
            "cached_tokens": self.cached_tokens,
            "change_nats": None if self.apart is None else self.apart.as_json(),
            "impossible": self.impossible or None,
            "change_from_other_prompt_nats": self.from_other,
        }


def plan(reuse: Reuse, isolation: Isolation, service: Service) -> list[Trial]:
    """Choose trials around every boundary, those that tell most first.

    Parameters
    ----------
    reuse, isolation, service
        As found.

    Returns
    -------
    list of Trial
        One round.
    """
    options, step = service.options, reuse.step
    far = options.far_tokens
    by_ids = service.form.kind == "ids"
    boundaries = _boundaries(reuse, options.windows, options.lengths, options.longest - far - step)
    found: list[Trial] = []
    for boundary in boundaries:
        if isolation.way:
            found += [Trial("branch", boundary, boundary, 1), Trial("branch", boundary, boundary, far)]
            found.append(Trial("turn", boundary, boundary, 1))
        if by_ids:
            found.append(Trial("continued", boundary, boundary, 1))
        found += [Trial("repeat", boundary, boundary, 1), Trial("repeat", boundary, boundary, max(2, step - 1))]
    for boundary in boundaries:
        if isolation.way:
            found += [Trial("branch", boundary, boundary - 1, 2), Trial("branch", boundary, boundary + 1, 1)]
        found += [Trial("repeat", boundary, boundary - 1, 1), Trial("twin", boundary, boundary, 1)]
    return found


def _boundaries(reuse: Reuse, windows: Any, lengths: Any, most: int) -> list[int]:
    step = reuse.step
    least = -(-max(reuse.least, 2 * step) // step) * step
    wanted = [least]
    for window in windows:
        above = -(-window // step) * step  # a window is whole from here on
        wanted += [above, above + step]
    wanted += [-(-length // step) * step for length in lengths]
    return sorted({max(boundary, least) for boundary in wanted if max(boundary, least) <= max(most, least)})


def run(service: Service, isolation: Isolation, trial: Trial) -> Observation:
    """Make a trial.

    Raises
    ------
    EndpointError, Spent
        As :meth:`Service.ask`.
    """
    return _RUN[trial.design](service, isolation, trial)


def _repeat(service: Service, isolation: Isolation, trial: Trial) -> Observation:
    prompt = service.prompts.fresh(trial.shared + trial.suffix)
    echo = isolation.suffix
    first, again = service.ask(prompt, echo=echo), service.ask(prompt, echo=echo)
    return _observed(service, trial, prompt, (first,), again, first)


def _continued(service: Service, isolation: Isolation, trial: Trial) -> Observation:
    back = min(_MOST_BACK, trial.shared - 1)
    prompt = service.prompts.fresh(trial.shared - back)
    held = back + trial.suffix
    first = service.ask(prompt, tokens=held + service.options.answer_tokens)
    if first.ids is None or len(first.ids) <= held:  # no ids, or an answer that ended
        return _observed(service, trial, prompt, (first,), first, None)
    longer = prompt.then(first.ids[:held])
    return _observed(service, trial, longer, (first,), service.ask(longer), first, skip=held)


def _branch(service: Service, isolation: Isolation, trial: Trial) -> Observation:
    base = service.prompts.fresh(trial.shared)
    # What is cached goes on well beyond the boundary: its end is another state than the one that is needed.
    cached = service.prompts.pieces(service.options.far_tokens)
    prompt = base.then(service.prompts.pieces(trial.suffix, other_than=cached))
    primed = service.ask(base.then(cached))
    return _against_scratch(service, isolation, trial, prompt, (primed,), shared=trial.shared)


def _turn(service: Service, isolation: Isolation, trial: Trial) -> Observation:
    prompt = service.prompts.fresh(trial.shared)
    first = service.ask(prompt)
    answer = first.ids if service.form.kind == "ids" else tuple(first.text.split())
    question = service.prompts.pieces(max(trial.suffix, 4))
    if service.form.kind == "chat":
        following = Prompt((*prompt.turns, answer or ("yes",), question))
    else:
        following = prompt.then((*(answer or ()), *question))
    return _against_scratch(service, isolation, trial, following, (first,))


def _twin(service: Service, isolation: Isolation, trial: Trial) -> Observation:
    prompt = service.prompts.fresh(trial.shared + trial.suffix)
    primed = service.ask(prompt)
    other = service.prompts.refreshed(prompt)
    if isolation.way:
        return _against_scratch(service, isolation, trial, other, (primed,), shared=0)
    warm = service.ask(other)
    seen = _observed(service, trial, other, (primed,), warm, None, shared=0)
    if not (seen.impossible and warm.top and primed.top):
        return seen
    apart = difference(warm, primed, total=seen.total, boundary=0)
    return replace(seen, from_other=apart.largest, tops=(dict(warm.top[0]), dict(primed.top[0])))


_RUN: dict[str, Callable[[Service, Isolation, Trial], Observation]] = {
    "repeat": _repeat,
    "continued": _continued,
    "branch": _branch,
    "turn": _turn,
    "twin": _twin,
}


def _against_scratch(
    service: Service,
    isolation: Isolation,
    trial: Trial,
    prompt: Prompt,
    before: tuple[Answer, ...],
    *,
    shared: int | None = None,
) -> Observation:
    warm = service.ask(prompt, echo=isolation.suffix)
    lane: Lane = isolation.lane()
    scratch = service.ask(prompt, lane, echo=isolation.suffix)
    if reused(service, scratch):  # the lane is not apart after all: no judge
        return _observed(service, trial, prompt, (*before, warm), warm, None, shared=shared)
    return _observed(service, trial, prompt, before, warm, scratch, shared=shared)


def _observed(
    service: Service,
    trial: Trial,
    prompt: Prompt,
    before: tuple[Answer, ...],
    warm: Answer,
    scratch: Answer | None,
    *,
    skip: int = 0,
    shared: int | None = None,
) -> Observation:
    total = service.prompts.tokens(prompt, warm)
    from_there = reused(service, warm)
    apart = None
    if scratch is not None and warm.top and scratch.top[skip:]:
        apart = difference(warm, scratch, total=total, boundary=from_there or min(trial.shared, total), skip=skip)
    asked = [*before, warm] if scratch is None or scratch in before else [*before, warm, scratch]
    return Observation(
        trial=trial,
        total=total,
        cached_tokens=warm.cached_tokens,
        reused=from_there,
        apart=apart,
        impossible=_impossible(service, before[0], warm, shared),
        requests=tuple(answer.body for answer in asked),
        tops=() if apart is None or scratch is None else (dict(warm.top[0]), dict(scratch.top[skip])),
    )


def _impossible(service: Service, first: Answer, warm: Answer, shared: int | None) -> str:
    """Say why what the service counts cannot be: more than was ever the same."""
    common = common_tokens(service)
    slack = _SLACK_TOKENS if service.prompts.words else 0
    if first.reused > common + slack:
        return f"{first.reused} tokens reused of a prompt that was never sent before"
    if shared is not None and warm.reused > max(shared, common) + slack:
        return f"{warm.reused} tokens reused where {shared} are shared"
    return ""
