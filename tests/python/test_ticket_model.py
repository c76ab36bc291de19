# SPDX-License-Identifier: Apache-2.0
"""Running requests beside the naive model of ticket_model.py, compared after every event.

A seeded driver does most events; a hypothesis state machine over the same events shrinks what it finds.
``HYBRIDKV_SOAK=1`` runs fresh seeds for longer. A failure prints the seed and the events up to it.
"""

from __future__ import annotations

import gc
import os
import random
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import ticket_model
from ticket_events import WEIGHTS, Events
from ticket_world import KINDS

SOAK = os.environ.get("HYBRIDKV_SOAK") == "1"
SECONDS = float(os.environ.get("HYBRIDKV_TICKET_SECONDS", "120"))  # of each kind of model, in a soak
LISTS = 60  # of each kind otherwise
EVENTS = 60
POOLS = (None, 14, 20)  # pages of each group: room, and short of it


def drive(kind: str, seed: int, events: int = EVENTS) -> Events:
    """One list of events from a seed."""
    randomness = random.Random(seed)
    world = Events(KINDS[kind], randomness.randint, randomness.choice(POOLS))
    # Weights are drawn anew for each list, so that some lists hold long runs of what is rare in others.
    weights = [weight * randomness.choice((0, 1, 1, 3)) for weight in WEIGHTS.values()]
    names = randomness.choices(list(WEIGHTS), weights if any(weights) else None, k=events)
    try:
        for name in ["admit", *names]:
            world.log.append(name)
            getattr(world, name)()
            world.check()
        world.log.append("end")
        world.end()
    except BaseException as error:
        error.add_note(f"kind {kind!r}, seed {seed}, event {len(world.log)} of {world.log[-12:]}")
        raise
    return world


@pytest.mark.parametrize("kind", KINDS)
def test_random_events_leave_cache_and_model_alike(kind: str) -> None:
    end, first = time.monotonic() + SECONDS, random.SystemRandom().randrange(1 << 40) if SOAK else 0
    seeds = 0
    while time.monotonic() < end if SOAK else seeds < LISTS:
        drive(kind, first + seeds)
        seeds += 1
    print(f"{kind}: {seeds} lists of {EVENTS} events from seed {first}")


class Machine(RuleBasedStateMachine):
    """The same events, chosen by hypothesis."""

    world: Events

    @initialize(kind=st.sampled_from(sorted(KINDS)), pages=st.sampled_from(POOLS), data=st.data())
    def begin(self, kind: str, pages: int | None, data: st.DataObject) -> None:
        self.world = Events(KINDS[kind], lambda low, high: data.draw(st.integers(low, high)), pages)
        self.world.admit((0, 2, 4))

    @invariant()
    def alike(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.draw = lambda low, high: low
            self.world.end()


def _rule(name: str) -> Callable[..., None]:
    def event(self: Machine, data: st.DataObject) -> None:
        self.world.draw = lambda low, high: data.draw(st.integers(low, high))
        getattr(self.world, name)()

    event.__name__ = name
    return rule(data=st.data())(event)  # type: ignore[no-any-return]


for _name in WEIGHTS:
    setattr(Machine, _name, _rule(_name))


def test_events_that_shrink_leave_cache_and_model_alike() -> None:
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=5000 if SOAK else 80,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_the_events_reach_what_they_are_for() -> None:
    """The lists hold enough of every kind of thing for agreement to mean something."""
    seen: dict[str, int] = {}
    for kind in KINDS:
        for seed in range(25):
            world = drive(kind, seed)
            metrics: Any = world.cache.metrics()
            for name in ("effective_hits", "withdrawn", "duplicates", "published", "retired", "misses"):
                seen[name] = seen.get(name, 0) + getattr(metrics, name)
            for name, count in world.seen.items():
                seen[name] = seen.get(name, 0) + count
    assert {name: count for name, count in seen.items() if count < 20} == {}, seen


def test_a_model_gone_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison is able to fail: a window that slides out one token early is seen within few lists."""
    right = ticket_model.Model.begins

    def early(self: ticket_model.Model, name: str, length: int) -> int:
        begin = right(self, name, length)
        return begin + 1 if self.groups[name].rule == "window" and begin else begin

    monkeypatch.setattr(ticket_model.Model, "begins", early)
    with pytest.raises(AssertionError):
        for seed in range(50):
            drive("window", seed)
    with warnings.catch_warnings():  # of what the list that was cut short left open
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
