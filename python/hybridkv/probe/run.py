# SPDX-License-Identifier: Apache-2.0
"""The probe from end to end: reach, search, isolate, calibrate, try, confirm, shrink, judge."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from hybridkv.probe import trials
from hybridkv.probe.control import measure, sensitivity
from hybridkv.probe.endpoint import Endpoint, EndpointError
from hybridkv.probe.identity import examine
from hybridkv.probe.isolation import find_isolation
from hybridkv.probe.options import ProbeOptions
from hybridkv.probe.prompts import Prompts
from hybridkv.probe.report import ProbeReport
from hybridkv.probe.search import Reuse, find_reuse
from hybridkv.probe.service import Service, Spent, reach
from hybridkv.probe.trials import Trial
from hybridkv.probe.verdict import WANTED, exceeding, judge

_CONFIRMATIONS = 4  # more trials of a kind that differed
_CONFIRMED = 3  # kinds of trials that are tried again, those that differed most
_SHRINKS = 6
_BLIND_STEP = 16  # where the service tells no step

Step = Callable[[], None]


def probe(url: str, options: ProbeOptions | None = None, *, progress: Step = lambda: None) -> ProbeReport:
    """Check from outside whether a service's prefix reuse changes its answers.

    Parameters
    ----------
    url : str
        Base address of an OpenAI-compatible service.
    options : ProbeOptions, optional
        What is asked, and how much.
    progress : callable, optional
        Called after each trial.

    Returns
    -------
    ProbeReport
        Verdict, evidence, what was not looked at. What the service does wrong on the way is in the report and no
        exception; what was known by then is kept.

    Raises
    ------
    ArgumentError
        An address, a key or an option that is not legal.

    Examples
    --------
    >>> from hybridkv.probe import ProbeOptions, probe
    >>> report = probe("http://127.0.0.1:9/v1", ProbeOptions(model="m", retries=0, timeout_s=1.0))
    >>> report.verdict.value, report.exit_status
    ('cannot tell', 4)
    """
    options = options or ProbeOptions()
    began = time.monotonic()
    endpoint = _endpoint(url, options.key_env, options)
    other = _endpoint(url, options.other_key_env, options) if options.other_key_env else None
    reference = _endpoint(options.reference, options.key_env, options) if options.reference else None
    seed = secrets.randbits(63) if options.seed is None else options.seed
    service = Service(endpoint, options, Prompts(seed, options.vocabulary))
    report = ProbeReport(url=endpoint.shown, options=options, seed=seed)
    try:
        _look(service, report, other, reference, progress)
    except Spent as spent:
        report.stopped = spent.reason
    except EndpointError as error:
        report.stopped = str(error)
    report.verdict, report.reason = judge(
        report.reuse, report.control, report.observations, report.identity,
        logprobs=report.logprobs, stopped=report.stopped,
    )  # fmt: skip
    report.model, report.form = service.model, service.form.kind
    report.failures = list(service.failures)
    points = [one for one in (endpoint, other, reference) if one is not None]
    report.requests, report.retried = sum(p.requests for p in points), sum(p.retried for p in points)
    report.seconds = time.monotonic() - began
    return report


def _endpoint(url: str, key_env: str | None, options: ProbeOptions) -> Endpoint:
    return Endpoint(
        url, key_env=key_env, timeout_s=options.timeout_s, retries=options.retries, plain_key=options.plain_key
    )


def _look(
    service: Service, report: ProbeReport, other: Endpoint | None, reference: Endpoint | None, progress: Step
) -> None:
    options = service.options
    reach(service)
    report.logprobs = service.form.logprobs
    report.reuse = reuse = find_reuse(service)
    if not service.form.logprobs:
        return
    told = bool(reuse.least)
    if told:
        report.isolation = find_isolation(service, max(reuse.least, 2 * reuse.step), other=other, reference=reference)
    else:  # it may reuse all the same: repeats show whether anything changes
        reuse = Reuse(reported=reuse.reported, step=_BLIND_STEP, least=2 * _BLIND_STEP)
    planned = trials.plan(reuse, report.isolation, service)
    longest = max(trial.shared + trial.suffix for trial in planned)
    calibrate = partial(
        measure, service, report.isolation, reuse, report.control, tokens=longest, pairs=options.controls
    )
    calibrate()
    sensitivity(service, report.control, tokens=longest, pairs=max(2, options.controls // 2))
    rounds = options.samples if told else 1
    for _ in range(rounds):
        for trial in planned:
            _try(service, report, trial)
            progress()
    if exceeding(report.observations, report.control):
        calibrate()
        _confirm(service, report)
    if told:
        examine(service, report.isolation, report.identity, tokens=max(reuse.least, 2 * reuse.step))
    _shrink(service, report, reuse)


def _try(service: Service, report: ProbeReport, trial: Trial) -> bool:
    """Make a trial; one whose answer is refused is counted and left out. Returns whether it changed an answer."""
    try:
        seen = trials.run(service, report.isolation, trial)
    except EndpointError:
        return False  # in service.failures; three in a row end the probe
    report.observations.append(seen)
    return bool(exceeding([seen], report.control))


def _confirm(service: Service, report: ProbeReport) -> None:
    """Try again what differed most; the tolerance has been measured again before."""
    wrong = exceeding(report.observations, report.control)
    wrong.sort(key=lambda one: -(one.apart.largest if one.apart else 0.0))
    kinds = list(Counter(one.trial for one in wrong))
    for trial in kinds[:_CONFIRMED]:
        for _ in range(_CONFIRMATIONS):
            report.confirmed[trial.name] = report.confirmed.get(trial.name, 0) + _try(service, report, trial)


def _shrink(service: Service, report: ProbeReport, reuse: Reuse) -> None:
    """Look for the shortest prompt that still answers otherwise behind a hit."""
    wrong = exceeding(report.observations, report.control)
    if len(wrong) < WANTED:
        return
    best = min(wrong, key=lambda one: one.total)
    step = reuse.step
    for _ in range(_SHRINKS):
        shared = (best.trial.shared // 2) // step * step
        if shared < step or shared >= best.trial.shared:
            break
        if not _try(service, report, replace(best.trial, boundary=shared, shared=shared)):
            break
        best = report.observations[-1]
    report.smallest = min(exceeding(report.observations, report.control), key=lambda one: one.total)
