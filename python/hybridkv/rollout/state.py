# SPDX-License-Identifier: Apache-2.0
"""Where a rollout stands, as data: written as one object of JSON and read back within bounds, field by field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

from hybridkv.arguments import integer
from hybridkv.binomial import most_rate
from hybridkv.errors import ArgumentError
from hybridkv.rollout.plan import RolloutPlan

SCHEMA = 1
"""Of what :func:`to_json` writes. It counts up when a field means something else, or goes."""

MOST_BYTES = 1 << 16
_MOST = 10**12
_SHOWN = 80


@dataclass(frozen=True)
class RolloutState:
    """Where a rollout stands.

    Attributes
    ----------
    stage : int
        Index into ``plan.stages``.
    epoch : int
        How often the stage changed: a sample of another epoch counts no more.
    samples, mismatches : int
        Comparisons of this stage.
    recent : tuple of int
        Numbers, among the samples of this stage, of the last mismatches; as many as a rollback takes at most.
    promotions, rollbacks : int
        Since the beginning.
    strikes : int
        Rollbacks since the last reset: they make a stage longer, and too many hold the rollout.
    seed : int
        Of the assignment of requests.
    """

    stage: int = 0
    epoch: int = 0
    samples: int = 0
    mismatches: int = 0
    recent: tuple[int, ...] = ()
    promotions: int = 0
    rollbacks: int = 0
    strikes: int = 0
    seed: int = 0

    def held(self, plan: RolloutPlan) -> bool:
        """Whether it stays in shadow until somebody resets it."""
        return self.strikes >= plan.most_rollbacks

    def wanted_samples(self, plan: RolloutPlan) -> int:
        """Return the samples that this stage takes at least."""
        return plan.samples << min(self.strikes, plan.most_rollbacks, 20)

    def upper_bound(self, plan: RolloutPlan) -> float:
        """Return the upper bound of the rate of mismatches, by the samples of this stage; 1.0 without any."""
        return most_rate(self.mismatches, self.samples, plan.confidence) if self.samples else 1.0


def to_json(plan: RolloutPlan, state: RolloutState) -> str:
    """Return plan and state as one object of JSON on one line."""
    document = {"schema": SCHEMA, "plan": asdict(plan), "state": asdict(state)}
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def from_json(text: str | bytes) -> tuple[RolloutPlan, RolloutState]:
    """Read what :func:`to_json` wrote.

    Parameters
    ----------
    text : str or bytes
        At most 64 KiB; bytes are UTF-8.

    Raises
    ------
    ArgumentError
        Naming what is wrong: no JSON, a name twice, unknown or missing fields, another schema, a value that the field
        does not take, a state that the plan cannot come to.
    """
    document = _object("rollout", _parsed(text), {"schema", "plan", "state"})
    schema = integer("rollout.schema", document["schema"], f"{SCHEMA}, as this version writes it")
    if schema != SCHEMA:
        raise ArgumentError("rollout.schema", f"{SCHEMA}, as this version writes it", schema)
    plan = _plan(_object("rollout.plan", document["plan"], {field.name for field in fields(RolloutPlan)}))
    state = _state(_object("rollout.state", document["state"], {field.name for field in fields(RolloutState)}))
    _check_fits(plan, state)
    return plan, state


def _parsed(text: str | bytes) -> Any:
    if not isinstance(text, (str, bytes)):
        raise ArgumentError("rollout", "a text of JSON", type(text).__name__)
    if len(text) > MOST_BYTES:
        raise ArgumentError("rollout", f"at most {MOST_BYTES} bytes", len(text))
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        return json.loads(decoded, parse_constant=_no_constant, parse_int=_int, object_pairs_hook=_once)
    except ArgumentError:
        raise
    except (ValueError, RecursionError) as error:
        raise ArgumentError("rollout", "one object of JSON in UTF-8", str(error)[:_SHOWN]) from error


def _no_constant(name: str) -> Any:
    raise ArgumentError("rollout", "finite numbers", name)


def _int(text: str) -> int:
    if len(text) > len(str(_MOST)) + 8:
        raise ArgumentError("rollout", "numbers of at most 20 digits", f"{len(text)} digits")
    return int(text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ArgumentError("rollout", "each name once", f"{len(pairs)} names, {len(made)} of them different")
    return made


def _object(where: str, value: object, names: set[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ArgumentError(where, "an object", type(value).__name__)
    if unknown := sorted(value.keys() - names):
        raise ArgumentError(where, f"no other fields than {', '.join(sorted(names))}", unknown[0][:_SHOWN])
    if absent := sorted(names - value.keys()):
        raise ArgumentError(f"{where}.{absent[0]}", "a value", "none")
    return value


def _plan(given: Mapping[str, Any]) -> RolloutPlan:
    if not isinstance(given["shares"], list):
        raise ArgumentError("plan.shares", "a list of shares", type(given["shares"]).__name__)
    return RolloutPlan(**{**given, "shares": tuple(given["shares"])})


def _state(given: Mapping[str, Any]) -> RolloutState:
    recent = given["recent"]
    if not isinstance(recent, list):
        raise ArgumentError("state.recent", "a list of numbers", type(recent).__name__)
    numbers = {name: _number(f"state.{name}", given[name]) for name in given if name not in ("recent", "seed")}
    seed = integer("state.seed", given["seed"], "an integer")
    return RolloutState(
        recent=tuple(_number(f"state.recent[{n}]", at) for n, at in enumerate(recent)), seed=seed, **numbers
    )


def _number(field: str, value: object) -> int:
    expected = f"an integer in [0, {_MOST}]"
    number = integer(field, value, expected)
    if not 0 <= number <= _MOST:
        raise ArgumentError(field, expected, value)
    return number


def _check_fits(plan: RolloutPlan, state: RolloutState) -> None:
    """Refuse a state that the plan cannot have come to: it was written by hand, or for another plan."""
    stages = len(plan.stages)
    if state.stage >= stages:
        raise ArgumentError("state.stage", f"below {stages}, the stages of the plan", state.stage)
    if state.mismatches > state.samples:
        raise ArgumentError("state.mismatches", f"at most the samples, {state.samples}", state.mismatches)
    rising = all(a < b for a, b in pairwise(state.recent))
    if not rising or len(state.recent) > plan.rollback_mismatches or len(state.recent) > state.mismatches:
        expected = f"at most {min(plan.rollback_mismatches, state.mismatches)} ascending numbers"
        raise ArgumentError("state.recent", expected, state.recent)
    if state.recent and not 1 <= state.recent[0] <= state.recent[-1] <= state.samples:
        raise ArgumentError("state.recent", f"numbers of samples, 1 to {state.samples}", state.recent)
    if state.strikes > state.rollbacks:
        raise ArgumentError("state.strikes", f"at most the rollbacks, {state.rollbacks}", state.strikes)
    if state.held(plan) and state.stage:
        raise ArgumentError("state.stage", "0: after so many rollbacks it is held in shadow", state.stage)
