# SPDX-License-Identifier: Apache-2.0
"""What a probe found, as data and as text."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from hybridkv.probe.control import Control
from hybridkv.probe.identity import Identity
from hybridkv.probe.isolation import Isolation
from hybridkv.probe.options import ProbeOptions
from hybridkv.probe.power import rate_seen
from hybridkv.probe.search import Reuse
from hybridkv.probe.trials import DESIGNS, Observation
from hybridkv.probe.verdict import EXIT_STATUS, WANTED, ProbeVerdict, exceeding

SCHEMA = 1
"""Version of the JSON object: it counts up when a field means something else or goes."""

_SHOWN_FAILURES = 5
_SHOWN_ROWS = 8


@dataclass
class ProbeReport:
    """A probe, whole or as far as it came.

    Attributes
    ----------
    url, model, form : str
        What was probed, and how it was asked.
    verdict : ProbeVerdict
    reason : str
        Of the verdict, one sentence.
    reuse : Reuse or None
    isolation : Isolation
    control : Control
    observations : list of Observation
        One for each trial that was answered.
    confirmed : dict of str to int
        Of four repetitions of a trial that differed, how many differed again.
    smallest : Observation or None
        The shortest prompt with a changed answer; its requests reproduce it where their first pieces are replaced by
        fresh ones.
    identity : Identity
    stopped : str
        Why the probe ended early; empty where it did not.
    failures : list of str
        Requests that were not answered as they should.
    requests, retried : int
    seconds : float
    """

    url: str
    options: ProbeOptions
    seed: int
    model: str = ""
    form: str = ""
    logprobs: bool = False
    verdict: ProbeVerdict = ProbeVerdict.CANNOT_TELL
    reason: str = ""
    reuse: Reuse | None = None
    isolation: Isolation = field(default_factory=Isolation)
    control: Control = field(default_factory=Control)
    observations: list[Observation] = field(default_factory=list)
    confirmed: dict[str, int] = field(default_factory=dict)
    smallest: Observation | None = None
    identity: Identity = field(default_factory=Identity)
    stopped: str = ""
    failures: list[str] = field(default_factory=list)
    requests: int = 0
    retried: int = 0
    seconds: float = 0.0

    @property
    def exit_status(self) -> int:
        """Of the command, by the verdict."""
        return EXIT_STATUS[self.verdict]

    @property
    def compared(self) -> list[Observation]:
        """Hits that were compared with a computation from scratch."""
        return [one for one in self.observations if one.reused and one.apart is not None]

    def power(self) -> dict[str, Any]:
        """Say which rate of false hits would have been seen with a probability of 95 %.

        Returns
        -------
        dict
            ``compared`` hits; ``seen_share``, of the faults that change as much as another block before the suffix;
            ``rate_for_one`` that shows one changed answer, ``rate_for_verdict`` that shows the two it takes. None where
            no rate would.
        """
        count, share = len(self.compared), self.control.seen_share
        return {
            "probability": 0.95,
            "compared": count,
            "seen_share": share,
            "rate_for_one": rate_seen(count, seen_share=share),
            "rate_for_verdict": rate_seen(count, seen_share=share, wanted=WANTED),
        }

    def not_covered(self) -> list[str]:
        """Say what was not looked at, and why."""
        made = {one.trial.design for one in self.compared}
        found = []
        for design in DESIGNS:
            if design in made or design == "twin":
                continue
            if design in ("branch", "turn") and not self.isolation.way:
                why = "no lane apart (a salt, another key, a reference)"
            elif design == "continued" and self.form != "ids":
                why = "no ids of tokens"
            else:
                why = "no hit of that kind came"
            found.append(f"{design}: {why}")
        if not self.isolation.suffix:
            found.append("log-probabilities of prompts: none that come with reuse")
        found += [f"{what}: not tried" for what in ("user",) if self.identity.user == "not tried"]
        if not self.options.other_models:
            found.append("other models and adapters: none named")
        return found

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data, without any key."""
        reuse, smallest = self.reuse, self.smallest
        wrong = set(map(id, exceeding(self.observations, self.control)))
        return {
            "schema": SCHEMA,
            "kind": "probe",
            "url": self.url,
            "model": self.model,
            "form": self.form,
            "verdict": self.verdict.value,
            "reason": self.reason,
            "exit_status": self.exit_status,
            "reuse": None if reuse is None else {
                "reported": reuse.reported, "step_tokens": reuse.step, "shortest_tokens": reuse.least,
                "longest_tried_tokens": reuse.longest_tried,
            },
            "isolation": {"way": self.isolation.way, "tried": dict(self.isolation.tried)},
            "control": self.control.as_json(),
            "trials": [{**one.as_json(), "exceeds": id(one) in wrong} for one in self.observations],
            "confirmed": dict(self.confirmed),
            "smallest": None if smallest is None else {
                **smallest.as_json(), "requests": list(smallest.requests),
                "first_position_nats": {"hit": smallest.tops[0], "scratch": smallest.tops[1]},
            },
            "identity": self.identity.as_json(),
            "power": self.power(),
            "not_covered": self.not_covered(),
            "stopped": self.stopped or None,
            "failures": list(self.failures),
            "requests": self.requests,
            "retried": self.retried,
            "retries_allowed": self.options.retries,
            "seconds": self.seconds,
            "seed": self.seed,
        }  # fmt: skip

    def as_text(self) -> str:
        """Return it as text."""
        parts = [
            [f"{self.verdict.value}: {self.reason}"],
            self._how(),
            self._table(),
            self._smallest(),
            [self._power()],
            [f"not looked at: {line}" for line in self.not_covered()],
            self._trouble(),
        ]
        return "\n\n".join("\n".join(lines) for lines in parts if lines)

    def _how(self) -> list[str]:
        lines = [f"service    {self.url}, model {self.model or '(none)'}, asked by {self.form or '(nothing)'}"]
        reuse = self.reuse
        if reuse is not None and reuse.least:
            lines.append(f"reuse      in steps of {reuse.step} tokens, from prompts of {reuse.least} tokens on")
        elif reuse is not None:
            lines.append("reuse      none is reported" if reuse.reported else "reuse      not told")
        if self.isolation.tried:
            tried = ", ".join(f"{way} {said}" for way, said in self.isolation.tried.items())
            lines.append(f"scratch    {self.isolation.way or 'no way'} ({tried})")
        control = self.control
        if control.same or control.chunked:
            lines.append(
                f"noise      {control.noise:.2g} nats over {len(control.same)} equal and {len(control.chunked)} cut "
                f"pairs; tolerance {control.tolerance:.2g}"
            )
        if control.changed:
            lines.append(
                f"scale      another block before the suffix changes {min(control.changed):.2g} nats or more; "
                f"{control.seen_share:.0%} of such changes would be seen"
            )
        identity = self.identity.as_json()
        lines.append(f"shared     between users: {identity['user']}")
        for name, said in self.identity.models.items():
            change = self.identity.changes.get(name)
            more = "" if change is None else f", changes by {change:.2g} nats"
            lines.append(f"           with model {name}: {said}{more}")
        return lines

    def _table(self) -> list[str]:
        rows: dict[str, list[Observation]] = defaultdict(list)
        for one in self.observations:
            rows[one.trial.name].append(one)
        if not rows:
            return []
        wrong = set(map(id, exceeding(self.observations, self.control)))

        def worst(ones: list[Observation]) -> float:
            return max((one.apart.largest for one in ones if one.apart), default=-1.0)

        ordered = sorted(rows.items(), key=lambda item: -worst(item[1]))
        lines = [f"{'trial':34} {'cached':>12} {'near':>9} {'far':>9} {'differ':>8}"]
        for name, ones in ordered[:_SHOWN_ROWS]:
            with_both = [one.apart for one in ones if one.apart is not None]
            near = f"{max(a.near for a in with_both):9.2g}" if with_both else f"{'-':>9}"
            far = f"{max(a.far for a in with_both):9.2g}" if with_both else f"{'-':>9}"
            counts = [one.cached_tokens for one in ones if one.cached_tokens is not None]
            cached = f"{min(counts)}-{max(counts)}" if counts else "-"
            lines.append(f"{name:34} {cached:>12} {near} {far} {sum(id(one) in wrong for one in ones)}/{len(ones)}")
        if len(ordered) > _SHOWN_ROWS:
            lines.append(f"and {len(ordered) - _SHOWN_ROWS} kinds of trial that differ less")
        return lines

    def _smallest(self) -> list[str]:
        one = self.smallest
        if one is None:
            return []
        hit, scratch = (dict(sorted(top.items(), key=lambda item: -item[1])) for top in one.tops)
        other = "from scratch  " if one.from_other is None else "other prompt  "
        return [
            f"smallest   {one.trial.name}: prompt of {one.total} tokens, {one.cached_tokens} cached, "
            f"{len(one.requests)} requests",
            f"           behind the hit {_brief(hit)}",
            f"           {other} {_brief(scratch)}",
            *(f"           {name}: {again} of 4 repetitions differ" for name, again in self.confirmed.items()),
        ]

    def _power(self) -> str:
        power = self.power()
        if not power["compared"]:
            return "power      no hit was compared"
        rate = power["rate_for_verdict"]
        shown = "too few to show any rate of false hits" if rate is None else f"a rate of {rate:.1%} would be seen"
        return (
            f"power      {power['compared']} hits compared: {shown} with 95 % probability, where false hits change "
            f"answers by more than {self.control.tolerance:.2g} nats and come at random"
        )

    def _trouble(self) -> list[str]:
        lines = [f"stopped    {self.stopped}"] if self.stopped else []
        lines += [f"failure    {text}" for text in self.failures[:_SHOWN_FAILURES]]
        if len(self.failures) > _SHOWN_FAILURES:
            lines.append(f"           and {len(self.failures) - _SHOWN_FAILURES} more")
        lines.append(f"requests   {self.requests}, {self.retried} of them sent again; {self.seconds:.1f} s")
        return lines


def _brief(top: dict[str, float]) -> str:
    shown = [
        f"{''.join(c if c.isprintable() else '?' for c in token)[:20]} {value:.3f}" for token, value in top.items()
    ]
    return ", ".join(shown[:3])
