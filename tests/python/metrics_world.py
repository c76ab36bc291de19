# SPDX-License-Identifier: Apache-2.0
"""A scrape of everything there is, and made-up hours that follow it: what alerts and dashboards are tried on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache

import prometheus_client
from prometheus_client.parser import text_string_to_metric_families

import hybridkv as hk
from hybridkv.metrics import Family, canary_families
from promql import Labels, Points
from transfer_world import World

TARGET = {"job": "engine", "instance": "host:9000"}
MINUTES = 180

Change = Callable[[float], float]  # minutes since the start -> what is added to the value of the scrape


class StandInCanary:
    """A canary whose numbers are set: what a Source has to offer, and no more."""

    def __init__(self) -> None:
        self.samples = 40
        self.mismatches = {"first": 0, "last": 0}
        self.states = {"model:small": "closed", "group:swa": "closed"}

    def families(self) -> tuple[Family, ...]:
        return canary_families(
            samples=self.samples,
            mismatches=self.mismatches,
            trips=dict.fromkeys(self.states, 0),
            states=self.states,
            shadow={"reuse": 3},
        )


@cache
def scraped() -> dict[str, dict[Labels, float]]:
    """{metric: {labels: value}} of a cache with a tier and a canary, through a registry and its exposition."""
    with hk.MemoryTier(1 << 20) as tier:
        world = World(tier)
        keys = world.keys(16)
        world.write(keys)
        assert world.cache.offload(keys, boundaries=[16]).result(10).ok
        world.reuse(keys)
        registry = prometheus_client.CollectorRegistry()
        registry.register(hk.metrics.prometheus(world.cache).add(StandInCanary(), model="small", name="0"))
        text = prometheus_client.generate_latest(registry).decode()
        world.cache.close()
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset({**sample.labels, **TARGET}.items())] = sample.value
    return found


def _a_minute(by: float) -> Change:
    return lambda minute: by * minute


HEALTHY: dict[tuple[str, str], Change] = {
    ("hybridkv_lookups_total", ""): _a_minute(20),
    ("hybridkv_lookups_tokens_total", ""): _a_minute(20_000),
    ("hybridkv_misses_total", ""): _a_minute(5),
    ("hybridkv_misses_tokens_total", ""): _a_minute(8_000),
    ("hybridkv_effective_hits_total", ""): _a_minute(14),
    ("hybridkv_effective_hits_tokens_total", ""): _a_minute(11_000),
    ("hybridkv_false_hits_total", "check=groups,kind=window"): _a_minute(1),
    ("hybridkv_lost_tokens_total", "check=groups,kind=window"): _a_minute(1_000),
    ("hybridkv_restore_attempts_total", "kind=compressed"): _a_minute(10),
    ("hybridkv_restore_successes_total", "kind=compressed"): _a_minute(9.8),
    ("hybridkv_load_failures_total", "status=miss"): _a_minute(0.2),
    ("hybridkv_canary_samples_total", ""): _a_minute(1),
    ("hybridkv_pending", ""): lambda minute: 3,
}
"""What changes where all is well: {(metric, labels that name one of its series): change}."""


def history(changes: Mapping[tuple[str, str], Change], names: Collection[str]) -> dict[str, dict[Labels, Points]]:
    """Three hours of samples of some metrics, one a minute: the scrape, and what is added to it.

    What is added is what HEALTHY says, or what these changes say instead.
    """
    merged = {**HEALTHY, **changes}
    by_series = {(name, _series(name, labels)): change for (name, labels), change in merged.items()}
    assert len(by_series) == len(merged), "two changes of one series"
    world: dict[str, dict[Labels, Points]] = {}
    for name in names:
        for labels, value in scraped()[name].items():
            change = by_series.get((name, labels))
            added = [change(m) if change else 0.0 for m in range(MINUTES + 1)]
            world.setdefault(name, {})[labels] = [(60.0 * m, value + more) for m, more in enumerate(added)]
    return world


@cache
def _series(name: str, labels: str) -> Labels:
    """Find the one series of a metric that has these labels."""
    (found,) = [series for series in scraped()[name] if _named(labels) <= series]
    return found


def _named(labels: str) -> Labels:
    return frozenset(tuple(pair.split("=", 1)) for pair in labels.split(",") if pair)  # type: ignore[misc]
