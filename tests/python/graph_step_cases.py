# SPDX-License-Identifier: Apache-2.0
"""Cases of steps whose tables no longer hold, as in `graph_cases.py`: between `staging.update` and the replay."""

from __future__ import annotations

from typing import Any

import pytest

from graph_cases import Outcome, case, started
from graph_support import PADDING, Engine, refused
from hybridkv.graph import Replay, TopologyChanged


def counted(engine: Engine, reason: str) -> tuple[int, int]:
    return engine.topology.counts[reason], engine.cache.metrics().eager[reason]


def staged(engine: Engine, batch: list[Any], **more: Any) -> Any:
    """Route a step and write its tables, as an engine does."""
    route = engine.topology.route(batch, **more)
    assert isinstance(route, Replay)
    assert engine.staging.update(batch) == route.bucket
    engine.topology.check(route=route)
    return route


def taker(engine: Engine, name: str, page: int) -> Any:
    """Another request that has taken a page, and written it."""
    other = engine.admit(name, [5, 5, 5, 5])
    assert page in other.page_ids("full")
    return other


def page_of(engine: Engine, page: int) -> Any:
    return engine.pools["full"][PADDING["full"].first + page].copy()


@case("ended")
def a_request_that_ended_before_its_replay() -> Outcome:
    engine = started()[0]
    short = engine.admit("short", [1, 2, 3, 4])
    engine.grow([short], [5])
    staged(engine, [short])
    page = int(short.page_ids("full")[1])
    short.close(keep_tip=False)  # cancelled
    del engine.histories[short]
    other = taker(engine, "other", page)
    right = page_of(engine, page)
    before = counted(engine, "ended")
    refused(engine, "ended")
    assert counted(engine, "ended") == (before[0] + 1, before[1] + 1)
    engine.values[...] = 77.0
    engine.graphs[2].replay()
    wrong = page_of(engine, page)
    engine.pools["full"][PADDING["full"].first + page] = right
    engine.grow([other], [6])
    engine.eager([other])
    return wrong, page_of(engine, page), right


@case("passed_on")
def a_page_that_went_to_another_before_the_replay() -> Outcome:
    engine = started()[0]
    short = engine.admit("short", [1, 2, 3, 4])
    engine.grow([short], [5])
    staged(engine, [short])
    page = int(short.page_ids("full")[1])
    short.rewind(1)  # a rejected draft
    refused(engine, "passed_on")
    taker(engine, "other", page)
    short.grow(1)
    assert page not in short.page_ids("full")
    right = page_of(engine, page)
    before = counted(engine, "passed_on")
    refused(engine, "passed_on")
    assert counted(engine, "passed_on") == (before[0] + 1, before[1] + 1)
    engine.values[...] = 77.0
    engine.graphs[2].replay()
    wrong = page_of(engine, page)
    engine.pools["full"][PADDING["full"].first + page] = right
    engine.eager([short])
    return wrong, page_of(engine, page), right


@case("restaged")
def tables_of_another_step() -> Outcome:
    engine, (one, other) = started()
    route = staged(engine, [one])
    later = engine.topology.route([other])
    engine.staging.update([other])
    engine.topology.check(route=later)
    before = counted(engine, "restaged")
    with pytest.raises(TopologyChanged) as caught:
        engine.topology.check(route=route)
    assert (caught.value.eager.reason, caught.value.eager.field) == ("restaged", "batch[0]")
    assert counted(engine, "restaged") == (before[0] + 1, before[1] + 1)
    kept = {name: pool.copy() for name, pool in engine.pools.items()}
    wrong = engine.run([one], route.bucket)
    for name, pool in engine.pools.items():
        pool[...] = kept[name]
    return wrong, engine.eager([one]), engine.right([one])
