# SPDX-License-Identifier: Apache-2.0
"""Alert rules and dashboard: every metric and label exists, and each alert fires where it should and nowhere else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import hybridkv as hk
from hybridkv import cli
from hybridkv.metrics.dashboard import COLUMNS, VARIABLES
from hybridkv.metrics.listing import every_series
from hybridkv.metrics.series import BASE_LABELS, SERVER_LABELS

parser = pytest.importorskip("promql_parser")
pytest.importorskip("prometheus_client")

import promql  # noqa: E402
from metrics_world import HEALTHY, MINUTES, Change, history, scraped  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in yaml.safe_load(hk.metrics.alert_rules())["groups"] for rule in group["rules"]
}
LABELS = {s.name: {*s.labels, *BASE_LABELS, *SERVER_LABELS} for s in every_series()}
Story = Mapping[tuple[str, str], Change]


def from_minute(start: float, by: float = 1.0) -> Change:
    """Nothing up to that minute, then a step."""
    return lambda minute: by if minute >= start else 0.0


def a_minute(by: float) -> Change:
    return lambda minute: by * minute


LATE, EARLY = MINUTES - 5, 10  # within every range of a rule, and outside all of them

FIRES: dict[str, list[Story]] = {
    "HybridkvCanaryMismatch": [
        {("hybridkv_canary_mismatches_total", f"end={end}"): from_minute(LATE)} for end in ("first", "last")
    ],
    "HybridkvReuseTripped": [
        {
            ("hybridkv_canary_breaker_state", "scope=group:swa,state=open"): from_minute(MINUTES),
            ("hybridkv_canary_breaker_state", "scope=group:swa,state=closed"): from_minute(MINUTES, -1),
        }
    ],
    "HybridkvIntegrityFailure": [
        {("hybridkv_lost_tokens_total", f"check=integrity,kind={kind}"): from_minute(LATE, 16)}
        for kind in ("compressed", "window", "tail")
    ],
    "HybridkvCorruptRecords": [
        {("hybridkv_load_failures_total", f"status={status}"): from_minute(LATE)} for status in ("corrupt", "mismatch")
    ],
    "HybridkvLeak": [{("hybridkv_leaks_total", ""): from_minute(LATE)}],
    "HybridkvLeaseForgotten": [
        {key: a_minute(0) for key in HEALTHY} | {("hybridkv_pending", ""): from_minute(0)}
    ],
    "HybridkvEffectiveFarBelowRaw": [
        {("hybridkv_effective_hits_tokens_total", ""): a_minute(5_900)},
        {("hybridkv_effective_hits_tokens_total", ""): a_minute(0)},
    ],
    "HybridkvStepTooCoarse": [
        {
            ("hybridkv_reachable_step_tokens", "group=kv"): from_minute(0, 1_021),
            ("hybridkv_effective_hits_total", ""): a_minute(0),
        }
    ],
    "HybridkvStranded": [{("hybridkv_stranded_pages", "group=swa"): from_minute(MINUTES - 40, 25)}],
    "HybridkvRestoreFailures": [{("hybridkv_restore_successes_total", "kind=compressed"): a_minute(8.9)}],
    "HybridkvTierBreakerOpen": [{("hybridkv_tier_breaker_open", ""): from_minute(MINUTES - 6)}],
    "HybridkvTierReadOnly": [{("hybridkv_tier_read_only", ""): from_minute(MINUTES)}],
    "HybridkvTierSkew": [{("hybridkv_tier_skew_total", "differs=unknown writer"): from_minute(LATE)}],
    "HybridkvCopyFailures": [{("hybridkv_copy_failures_total", ""): from_minute(LATE)}],
}  # fmt: skip

QUIET: dict[str, list[Story]] = {
    "HybridkvCanaryMismatch": [{("hybridkv_canary_mismatches_total", "end=first"): from_minute(EARLY)}],
    "HybridkvReuseTripped": [{("hybridkv_canary_breaker_state", "scope=group:swa,state=half open"): from_minute(0)}],
    "HybridkvIntegrityFailure": [{("hybridkv_lost_tokens_total", "check=complete,kind=window"): a_minute(50)}],
    "HybridkvCorruptRecords": [{("hybridkv_load_failures_total", "status=timeout"): a_minute(1)}],
    "HybridkvLeak": [{("hybridkv_leaks_total", ""): from_minute(EARLY)}],
    "HybridkvLeaseForgotten": [
        {key: a_minute(0) for key in HEALTHY},
        {key: a_minute(0) for key in HEALTHY} | {("hybridkv_pending", ""): from_minute(MINUTES - 20)},
    ],
    "HybridkvEffectiveFarBelowRaw": [
        {("hybridkv_effective_hits_tokens_total", ""): a_minute(6_100)},
        {  # too few to tell
            ("hybridkv_effective_hits_tokens_total", ""): a_minute(0), ("hybridkv_lookups_total", ""): a_minute(3),
        },
        {  # for some minutes alone
            ("hybridkv_effective_hits_tokens_total", ""):
                lambda minute: 11_000 * min(minute, MINUTES - 20) if minute < MINUTES else 11_000 * (MINUTES - 20),
        },
    ],
    "HybridkvStepTooCoarse": [
        {("hybridkv_reachable_step_tokens", "group=kv"): from_minute(0, 1_021)},  # tips are hit all the same
        {("hybridkv_effective_hits_total", ""): a_minute(0)},
    ],
    "HybridkvStranded": [
        {("hybridkv_stranded_pages", "group=swa"): from_minute(0, 15)},
        {("hybridkv_stranded_pages", "group=swa"): from_minute(MINUTES - 20, 25)},
    ],
    "HybridkvRestoreFailures": [
        {("hybridkv_restore_successes_total", "kind=compressed"): a_minute(9.1)},
        {
            ("hybridkv_restore_attempts_total", "kind=compressed"): a_minute(1),
            ("hybridkv_restore_successes_total", "kind=compressed"): a_minute(0),
        },
    ],
    "HybridkvTierBreakerOpen": [{("hybridkv_tier_breaker_open", ""): from_minute(MINUTES - 3)}],
    "HybridkvTierReadOnly": [{}],
    "HybridkvTierSkew": [{("hybridkv_tier_skew_total", "differs=unknown writer"): from_minute(EARLY)}],
    "HybridkvCopyFailures": [{("hybridkv_copy_failures_total", ""): from_minute(EARLY)}],
}  # fmt: skip


def firing(rule: Mapping[str, Any], story: Story) -> set[promql.Labels]:
    """Labels for which a rule fires at the end of a story: true all the time that its `for` says."""
    expr = parser.parse(rule["expr"])
    world = history(story, {selector.name for selector in promql.selectors(expr)})
    held = parser.parse_duration(rule["for"]).total_seconds() if "for" in rule else 0.0
    end = 60.0 * MINUTES
    times = [end - s for s in range(0, int(held) + 1, 60)]
    found = [promql.evaluate(expr, world, time) for time in times]
    assert all(isinstance(vector, dict) for vector in found)
    return set.intersection(*(set(vector) for vector in found))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", RULES)
def test_an_alert_fires_where_it_should_and_nowhere_else(name: str) -> None:
    for story in FIRES[name]:
        fired = firing(RULES[name], story)
        assert len(fired) == 1, f"{name} is silent"
        (labels,) = fired
        told = set(dict(labels))
        assert {"job", "instance", "model", "cache"} <= told
        asked = set(re.findall(r"\$labels\.(\w+)", json.dumps(RULES[name]["annotations"])))
        assert asked <= told, f"{name}: its text names {asked - told}, which it does not have"
    for story in QUIET[name]:
        assert not firing(RULES[name], story), f"{name} cries wolf"
    assert not firing(RULES[name], {}), f"{name} fires where all is well"


def test_every_alert_has_stories_a_severity_a_text_and_a_runbook() -> None:
    assert set(FIRES) == set(QUIET) == set(RULES)
    guide = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    anchors = {heading.lower() for heading in re.findall(r"^#+ (\w+)$", guide, re.MULTILINE)}
    for name, rule in RULES.items():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}, name
        assert rule["labels"] == {"severity": rule["labels"]["severity"]}
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"].endswith(".")
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert page == "docs/metrics.md" and anchor == name.lower() and anchor in anchors, name
        if "for" in rule:
            parser.parse_duration(rule["for"])


def unknown(expr: str) -> list[str]:
    """Metrics and labels of an expression that no metric of ours has."""
    tree = parser.parse(expr)
    found = []
    for selector in promql.selectors(tree):
        if selector.name not in LABELS or selector.name not in scraped():
            found.append(f"no metric {selector.name}")
            continue
        for matcher in selector.matchers.matchers:
            if matcher.name not in LABELS[selector.name]:
                found.append(f"{selector.name} has no label {matcher.name}")
            elif matcher.name not in (*BASE_LABELS, *SERVER_LABELS):
                values = {dict(labels).get(matcher.name, "") for labels in scraped()[selector.name]}
                if not any(re.fullmatch(matcher.value, value) for value in values):
                    found.append(f"{selector.name}: {matcher.name} is never {matcher.value}")
    for labels, inside in promql.grouped_by(tree):
        for selector in promql.selectors(inside):
            lacking = set(labels) - LABELS.get(selector.name, set())
            found += [f"{selector.name} has no label {label}" for label in lacking]
    return found


def queries() -> Iterator[tuple[str, str, str]]:
    """(panel, expression, legend) of the dashboard, with what Grafana puts in for its variables."""
    for panel in hk.metrics.dashboard()["panels"]:
        for target in panel.get("targets", ()):
            expr = target["expr"].replace("$__rate_interval", "5m").replace("$__range", "6h")
            yield panel["title"], expr, target["legendFormat"]


def test_every_metric_and_label_of_rules_and_dashboard_exists() -> None:
    wrong = {name: found for name, rule in RULES.items() if (found := unknown(rule["expr"]))}
    wrong |= {panel: found for panel, expr, _ in queries() if (found := unknown(expr))}
    assert not wrong
    for panel, expr, legend in queries():
        for selector in promql.selectors(parser.parse(expr)):
            chosen = {m.name for m in selector.matchers.matchers if m.value == f"${m.name}"}
            assert chosen == set(VARIABLES), f"{panel}: {selector} leaves out what its reader chose"
            assert set(re.findall(r"{{(\w+)}}", legend)) <= LABELS[selector.name], f"{panel}: {legend}"


def test_a_name_that_is_wrong_is_noticed() -> None:
    assert unknown("rate(hybridkv_lookup_total[5m])") == ["no metric hybridkv_lookup_total"]
    assert unknown('hybridkv_pages{kind="window"}') == ["hybridkv_pages has no label kind"]
    assert unknown('hybridkv_pages{state="freed"}') == ["hybridkv_pages: state is never freed"]
    assert unknown("sum by (check) (hybridkv_pages)") == ["hybridkv_pages has no label check"]
    with pytest.raises(ValueError, match=r"."):
        parser.parse("sum by (a) (rate(hybridkv_pages))")


def test_the_dashboard_is_one_that_grafana_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["metrics", "--dashboard"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made == json.loads(json.dumps(hk.metrics.dashboard()))
    panels = made["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= COLUMNS, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or (panel["description"].endswith(".") and panel["targets"])
    assert [v["name"] for v in made["templating"]["list"]] == ["datasource", *VARIABLES]
    shown = {selector.name for _, expr, _ in queries() for selector in promql.selectors(parser.parse(expr))}
    assert len(shown) >= 25


def test_the_rules_are_printed_as_they_are_shipped(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["metrics", "--alerts"]) == 0
    assert capsys.readouterr().out == hk.metrics.alert_rules()
