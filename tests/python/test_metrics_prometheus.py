# SPDX-License-Identifier: Apache-2.0
"""Metrics of caches as Prometheus scrapes them: what is told, of which cache, and what becomes of one that ends."""

from __future__ import annotations

import gc
import itertools
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import hybridkv as hk
from contract_support import full_swa, keys_of
from hybridkv import cli
from hybridkv.metrics import Collector, Family, Metrics, MovedCounts, Sample, Series
from hybridkv.metrics.cache_series import cache_families, read_cache
from transfer_world import World

prometheus_client = pytest.importorskip("prometheus_client")

from metrics_world import StandInCanary  # noqa: E402

ZERO = {"model": "", "cache": "0"}


def registered(collector: Collector) -> Any:
    registry = prometheus_client.CollectorRegistry()
    registry.register(collector)
    return registry


def scrape(registry: Any) -> str:
    return str(prometheus_client.generate_latest(registry).decode())


def value(registry: Any, name: str, **labels: str) -> float | None:
    found = registry.get_sample_value(f"hybridkv_{name}", {**ZERO, **labels})
    return None if found is None else float(found)


def used() -> Any:
    """A cache with one effective hit, one false hit, one miss."""
    cache = full_swa()
    cache.insert(keys_of(64))
    cache.match(keys_of(65)).lease.release()
    cache.evict(keys_of(64), {"swa": True})
    assert cache.match(keys_of(65)).outcome is hk.Outcome.FALSE_HIT
    assert cache.match(hk.block_keys(range(9, 50), 16)).outcome is hk.Outcome.MISS
    return cache


# -- what is told -----------------------------------------------------------------------------------


def test_a_scrape_is_an_exposition_of_what_was_counted() -> None:
    cache = used()
    text = scrape(registered(hk.metrics.prometheus(cache, model="m\\1\n", name='a"b')))
    labels = r'cache="a\"b",model="m\\1\n"'
    for line in (
        "# TYPE hybridkv_lookups_total counter",
        f"hybridkv_lookups_total{{{labels}}} 3.0",
        f"hybridkv_misses_total{{{labels}}} 1.0",
        f"hybridkv_effective_hits_total{{{labels}}} 1.0",
        f"hybridkv_effective_hits_tokens_total{{{labels}}} 64.0",
        "# TYPE hybridkv_pages gauge",
        f"hybridkv_open{{{labels}}} 1.0",
    ):
        assert _sorted_labels(line) in map(_sorted_labels, text.splitlines()), line
    registry = registered(hk.metrics.prometheus(cache))
    assert value(registry, "false_hits_total", check="groups", kind="window") == 1
    assert value(registry, "lost_tokens_total", check="groups", kind="window") == 64
    assert value(registry, "lost_by_code_tokens_total", code="expired") == 64
    assert value(registry, "reachable_step_tokens", group="full") == 16
    assert value(registry, "pages", group="full", state="cached") == 4
    assert value(registry, "stranded_pages", group="full") == 4
    assert value(registry, "stranded_bytes", group="full") == 4 * 64


def _sorted_labels(line: str) -> str:
    return re.sub(r"\{(.*)\}", lambda found: "{" + ",".join(sorted(found[1].split(","))) + "}", line)


def test_every_field_of_the_metrics_is_told_and_every_metric_is_read() -> None:
    with hk.MemoryTier(1 << 20) as tier:
        world = World(tier)
        keys = world.keys(16)
        world.write(keys)
        assert world.cache.offload(keys, boundaries=[16]).result(10).ok
        reading = read_cache(world.cache, stranded=True)
        told = {family.series.name: family for family in cache_families(reading)}
        world.cache.close()
    assert set(told) == {series.name for series in hk.metrics.SERIES}
    odd = {"published": "published_pages", "retired": "retired_pages", "quarantined": "quarantined_pages",
           "states": "state_units"}  # fmt: skip
    for field in fields(Metrics):
        if field.name in ("restores", "offloads"):
            for part in fields(MovedCounts):
                family = told[f"hybridkv_{field.name[:-1]}_{part.name}_total"]
                counts = getattr(reading.counts, field.name).values()
                assert sum(s.value for s in family.samples) == sum(getattr(c, part.name) for c in counts)
            continue
        name = f"hybridkv_{odd.get(field.name, field.name)}"
        family = told[f"{name}_total" if f"{name}_total" in told else name]
        got = getattr(reading.counts, field.name)
        if field.name != "pages":
            assert sum(s.value for s in family.samples) == _sum(got), field.name
    assert value_of(told["hybridkv_offload_successes_total"], "compressed") == 4
    assert value_of(told["hybridkv_tier_records"], "memory") == 5


def _sum(counts: Any) -> int:
    return sum(map(_sum, counts.values())) if hasattr(counts, "values") else counts


def value_of(family: Family, *labels: str) -> float:
    (found,) = [sample.value for sample in family.samples if sample.labels == labels]
    return found


def test_what_is_lost_adds_up_by_check_and_by_code() -> None:
    found = used().metrics()
    assert _sum(found.lost_tokens) == _sum(found.lost_by_code_tokens) == found.false_hits_tokens == 64
    assert found.adds_up
    cache = full_swa()
    cache.insert(keys_of(64))
    with cache.match(keys_of(65)).lease:
        assert cache.metrics().pending_tokens == 64 and cache.metrics().adds_up
    assert (found.hit_rate, found.effective_hit_rate) == (2 / 3, 1 / 3)
    assert (found.hit_rate_tokens, found.effective_hit_rate_tokens) == (128 / 171, 64 / 171)
    assert MovedCounts(4, 3, 0).success_rate == 0.75 and MovedCounts(0, 0, 0).success_rate == 0.0


def test_a_lease_that_failed_is_lost_for_its_content() -> None:
    cache = full_swa()
    cache.insert(keys_of(64))
    cache.match(keys_of(65)).lease.fail("bytes differ")
    found = cache.metrics()
    assert found.lost_by_code_tokens["content"] == found.false_hits_tokens == 64 and found.adds_up


# -- which caches -----------------------------------------------------------------------------------


def test_several_caches_have_one_exposition() -> None:
    caches = [used(), full_swa(), full_swa()]
    collector = hk.metrics.prometheus(caches[0])
    registry = registered(collector)
    collector.add(caches[1]).add(caches[2], model="draft", name="d")
    text = scrape(registry)
    assert text.count("# TYPE hybridkv_lookups_total counter") == text.count("# HELP hybridkv_pages ") == 1
    assert [value(registry, "lookups_total", cache=name) for name in "01"] == [3, 0]
    assert value(registry, "lookups_total", model="draft", cache="d") == 0
    collector.remove(caches[0])
    assert value(registry, "lookups_total") is None and value(registry, "lookups_total", cache="1") == 0


def test_two_collectors_in_one_registry_are_refused() -> None:
    cache, other = full_swa(), full_swa()
    registry = registered(hk.metrics.prometheus(cache))
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(hk.metrics.prometheus(other))


def test_a_cache_that_was_reset_goes_on_counting() -> None:
    cache = used()
    registry = registered(hk.metrics.prometheus(cache))
    cache.reset()
    assert value(registry, "lookups_total") == 3
    assert value(registry, "pages", group="full", state="cached") == 0
    cache.match(keys_of(65))
    assert value(registry, "lookups_total") == 4


def test_a_closed_cache_keeps_its_counts_until_it_is_gone() -> None:
    cache = used()
    registry = registered(hk.metrics.prometheus(cache))
    cache.close()
    assert value(registry, "lookups_total") == 3 and value(registry, "open") == 0
    assert "hybridkv_pages{" not in scrape(registry)
    del cache
    gc.collect()
    assert not scrape(registry)


def test_a_collector_keeps_no_cache_alive_and_its_labels_go_on() -> None:
    cache, kept = full_swa(), full_swa()
    collector = hk.metrics.prometheus(cache, name="a").add(kept, name="b")
    registry = registered(collector)
    cache.match(keys_of(17))
    cache.close()
    after = full_swa()
    collector.add(after, name="a")  # takes over from one that has ended
    assert value(registry, "lookups_total", cache="a") == 0 and value(registry, "open", cache="a") == 1
    with pytest.raises(hk.ArgumentError, match=r"name: .*\('', 'b'\)"):
        collector.add(full_swa(), name="b")
    del after
    gc.collect()
    assert 'cache="a"' not in scrape(registry) and 'cache="b"' in scrape(registry)


def test_a_tier_is_told_while_its_cache_is_open() -> None:
    with hk.MemoryTier(1 << 20) as tier:
        world = World(tier)
        registry = registered(hk.metrics.prometheus(world.cache, model=""))
        assert value(registry, "tier_capacity_bytes", tier="memory") == 1 << 20
        assert value(registry, "load_failures_total", status="corrupt") == 0, "what appears with 1 shows no increase"
        assert value(registry, "tier_skew_total", differs="unknown writer") == 0
        world.cache.close()
        assert value(registry, "tier_capacity_bytes", tier="memory") is None


def test_what_cannot_be_told_is_left_out() -> None:
    registry = registered(hk.metrics.prometheus(full_swa(eviction="none")))
    assert "hybridkv_stranded" not in scrape(registry)
    cache = full_swa()
    registry = registered(hk.metrics.prometheus(cache, stranded=False))
    assert value(registry, "stranded_pages", group="full") is None and value(registry, "pending") == 0


# -- other sources ----------------------------------------------------------------------------------


def test_whatever_has_families_is_told_beside_the_cache() -> None:
    canary, cache = StandInCanary(), full_swa()
    collector = hk.metrics.prometheus(cache)
    registry = registered(collector.add(canary, name="0"))
    canary.mismatches["last"] = 2
    canary.states["group:swa"] = "open"
    assert value(registry, "canary_samples_total") == 40
    assert value(registry, "canary_mismatches_total", end="last") == 2
    states = {s: value(registry, "canary_breaker_state", scope="group:swa", state=s) for s in ("closed", "open")}
    assert states == {"closed": 0, "open": 1}
    collector.remove(canary)
    assert "canary" not in scrape(registry)


class _Odd:
    def __init__(self, *families: Family) -> None:
        self._families = families

    def families(self) -> tuple[Family, ...]:
        return self._families


def test_what_no_exposition_can_hold_is_refused() -> None:
    cache = full_swa()
    collector = hk.metrics.prometheus(cache)
    other = Series("hybridkv_lookups_total", "counter", "requests", ("why",), "Others.")
    pages = Family(hk.metrics.SERIES[0], [Sample(1)])
    for source, field in ((cache, "source"), (3, "source"), (_Odd(Family(other, [Sample(1, ("x",))])), "source")):
        with pytest.raises(hk.ArgumentError, match=rf"^{field}: "):
            collector.add(source)  # type: ignore[arg-type]
    with pytest.raises(hk.ArgumentError, match=r"^name: "):
        collector.add(_Odd(pages), name="0")
    for more in ({"model": 3}, {"name": b"a"}, {"stranded": 1}):
        with pytest.raises(hk.ArgumentError, match=rf"^{next(iter(more))}: "):
            collector.add(full_swa(), **more)  # type: ignore[arg-type]
    with pytest.raises(hk.ArgumentError, match=r"^samples: "):
        Family(other, [Sample(1)])
    with pytest.raises(hk.ArgumentError, match=r"^samples: "):
        Family(other, [Sample(1, ("x",)), Sample(2, ("x",))])
    with pytest.raises(hk.ArgumentError, match=r"^states: "):
        hk.metrics.canary_families(samples=0, mismatches={}, trips={}, states={"model:a": "ajar"}, shadow={})


@pytest.mark.parametrize(
    ("name", "kind", "labels"),
    [
        ("lookups_total", "counter", ()),
        ("hybridkv_lookups", "counter", ()),
        ("hybridkv_pages_total", "gauge", ()),
        ("hybridkv_Pages", "gauge", ()),
        ("hybridkv_pages", "gauge", ("model",)),
        ("hybridkv_pages", "gauge", ("instance",)),
        ("hybridkv_pages", "gauge", ("kind", "kind")),
    ],
)
def test_a_metric_that_breaks_the_conventions_is_refused(name: str, kind: Any, labels: tuple[str, ...]) -> None:
    with pytest.raises(hk.ArgumentError, match=r"^(name|labels): "):
        Series(name, kind, "pages", labels, "Pages.")


# -- while others count -----------------------------------------------------------------------------


def test_a_reading_that_does_not_add_up_is_taken_again() -> None:
    cache = used()
    real, taken = cache.metrics, []

    class Between:
        """A cache that is read in the middle of a match, twice."""

        spec, _closed, tier = cache.spec, False, None

        def metrics(self) -> Metrics:
            taken.append(real())
            if len(taken) < 3:
                object.__setattr__(taken[-1], "misses", 0)
            return taken[-1]

    reading = read_cache(Between(), stranded=False)  # type: ignore[arg-type]
    assert len(taken) == 3 and reading.counts is taken[2] and reading.counts.adds_up
    assert not taken[0].adds_up and not taken[1].adds_up


def test_scrapes_beside_matches_never_go_down() -> None:
    cache = full_swa()
    cache.insert(keys_of(64))
    registry = registered(hk.metrics.prometheus(cache))
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            cache.match(keys_of(65)).lease.release()

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    seen = [dict(_counters(registry)) for _ in range(12)]
    over.set()
    for thread in asking:
        thread.join()
    for before, after in itertools.pairwise(seen):
        assert set(before) == set(after) and all(after[name] >= before[name] for name in before)
    assert cache.metrics().adds_up and seen[-1][("hybridkv_lookups_total", ())] > 0


def _counters(registry: Any) -> Iterator[tuple[tuple[str, tuple[str, ...]], float]]:
    for metric in registry.collect():
        if metric.type == "counter":
            for sample in metric.samples:
                yield (sample.name, tuple(v for k, v in sample.labels.items() if k not in ZERO)), sample.value


# -- from the command line --------------------------------------------------------------------------


def test_the_metrics_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["metrics"]) == 0
    lines = capsys.readouterr().out.splitlines()
    every = [*hk.metrics.SERIES, *hk.metrics.CANARY_SERIES]
    assert len(lines) == len(every) + 1 and lines[0].split() == ["hybridkv_lookups_total", "counter", "requests"]
    assert cli.main(["metrics", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [metric["name"] for metric in listed["metrics"]] == [series.name for series in every]
    assert listed["base_labels"] == ["model", "cache"]
    for args in (["--table", "--json"], ["--dashboard", "--alerts"]):
        with pytest.raises(SystemExit) as left:
            cli.main(["metrics", *args])
        assert left.value.code == 2
    assert "not allowed with" in capsys.readouterr().err


# -- the document -----------------------------------------------------------------------------------


def test_the_scrape_and_the_table_of_the_document_are_real(capsys: pytest.CaptureFixture[str]) -> None:
    """The scrape is what the code above it prints; '...' stands for lines left out."""
    guide = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    ((code, told),) = re.findall(
        r"^```python\n((?:(?!^```).)*?)^```\n\n```text\n(.*?)^```", guide, re.DOTALL | re.MULTILINE
    )
    exec(code, {})
    printed = capsys.readouterr().out
    at = 0
    for part in re.split(r"^\.\.\.\n", told, flags=re.MULTILINE):
        assert part in printed[at:], part
        at = printed.index(part, at) + len(part)
    assert cli.main(["metrics", "--table"]) == 0
    assert f"\n{capsys.readouterr().out}\n" in guide
