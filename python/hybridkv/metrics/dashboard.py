# SPDX-License-Identifier: Apache-2.0
"""A dashboard for Grafana: what is reused and whether it is right, what is lost and why, memory, the tier."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

VARIABLES = ("job", "instance", "model", "cache")
"""Labels that the dashboard lets its reader choose."""

COLUMNS = 24
"""Width of a dashboard in Grafana's units."""

_SCHEMA = 39  # of dashboards, Grafana 10 and later
_HEIGHT = 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_CHOSEN = ", ".join(f'{label}=~"${label}"' for label in VARIABLES)
_EACH = "sum by (instance, model, cache)"
_METRIC = re.compile(r"(hybridkv_\w+)(?:\{([^}]*)\})?")


@dataclass(frozen=True)
class Query:
    """One line, or one set of lines: an expression without the chosen labels, and what to call it."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One picture."""

    title: str
    meaning: str
    queries: tuple[Query, ...]
    unit: str = "short"
    width: int = 8
    stat: bool = False
    least: float | None = 0
    alarm: bool = False  # above 0 is red


def _each(expr: str, legend: str) -> Query:
    return Query(f"{_EACH} ({expr})", f"{legend} {{{{model}}}} {{{{cache}}}}")


def _by(labels: str, expr: str) -> Query:
    names = labels.split(", ")
    return Query(f"sum by ({labels}) ({expr})", " ".join(f"{{{{{name}}}}}" for name in names))


def _rate(name: str, more: str = "") -> str:
    return f"rate(hybridkv_{name}{{{more}}}[$__rate_interval])"


def _share(part: str, whole: str) -> Query:
    return Query(f"{_EACH} ({part}) / {_EACH} ({whole})", "")


def _named(query: Query, legend: str) -> Query:
    return Query(query.expr, f"{legend} {{{{model}}}} {{{{cache}}}}")


def _rate_pair(suffix: str) -> tuple[Query, ...]:
    lookups = _rate(f"lookups{suffix}_total")
    matched = f"{lookups} - {_rate(f'misses{suffix}_total')}"
    effective = _rate(f"effective_hits{suffix}_total")
    return _named(_share(matched, lookups), "hash hits"), _named(_share(effective, lookups), "effective")


_ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Is reuse right?",
        (
            Panel(
                "Canary mismatches",
                "Answers that reuse changed, in the chosen time. Any is one too many.",
                (Query("sum by (end) (increase(hybridkv_canary_mismatches_total[$__range]))", "{{end}} end"),),
                width=6, stat=True, alarm=True,
            ),
            Panel(
                "Samples compared",
                "What those are out of: without samples nothing is known.",
                (Query("sum(increase(hybridkv_canary_samples_total[$__range]))", "samples"),),
                width=6, stat=True,
            ),
            Panel(
                "Integrity failures",
                "Tokens of pages, or records, that did not hold what was stored; none of them was used.",
                (
                    Query('sum(increase(hybridkv_lost_tokens_total{check="integrity"}[$__range]))', "tokens lost"),
                    Query(
                        'sum(increase(hybridkv_load_failures_total{status=~"corrupt|mismatch"}[$__range]))', "records"
                    ),
                ),
                width=6, stat=True, alarm=True,
            ),
            Panel(
                "Reuse turned off",
                "Scopes whose breaker is open.",
                (Query('hybridkv_canary_breaker_state{state="open"}', "{{scope}}"),),
                width=6, stat=True, alarm=True,
            ),
        ),
    ),
    (
        "What is reused",
        (
            Panel("Hit rate by tokens", "What a prefix hash promises, and what held: the gap is false hits.",
                  _rate_pair("_tokens"), "percentunit", 12),
            Panel("Hit rate by requests", "The same by requests.", _rate_pair(""), "percentunit", 12),
            Panel("Lost tokens by check and state", "Matched and not usable.",
                  (_by("check, kind", _rate("lost_tokens_total")),)),
            Panel("Lost tokens by what was wrong", "missing: never stored; stale, expired: gone since.",
                  (_by("code", _rate("lost_by_code_tokens_total")),)),
            Panel("False hits", "Look-ups of which something was known and nothing usable.",
                  (_by("check, kind", _rate("false_hits_total")),)),
        ),
    ),
    (
        "Memory",
        (
            Panel("Pages", "Of each pool, by state.", (_by("group, state", "hybridkv_pages"),)),
            Panel("Stranded bytes", "Cached and of no use: no usable length needs them.",
                  (_by("group", "hybridkv_stranded_bytes"),), "bytes"),
            Panel("Pages published and retired", "A cache that turns over has too few.",
                  (_each(_rate("published_pages_total"), "published"), _each(_rate("retired_pages_total"), "retired"))),
            Panel("Not admitted", "Requests that had to wait, or can never fit.",
                  (_by("reason", _rate("not_admitted_total")),)),
            Panel("Leaks, and leases open", "Leaks must be 0; what is open is 0 when idle.",
                  (_each("increase(hybridkv_leaks_total[$__rate_interval])", "leaks"),
                   _each("hybridkv_pending", "open"))),
            Panel("Steps without a captured graph", "By reason.", (_by("reason", _rate("eager_total")),)),
        ),
    ),
    (
        "Tier",
        (
            Panel("Pages that came back", "Share of the pages asked of the tier, by state.",
                  (Query(f"sum by (kind) ({_rate('restore_successes_total')}) / "
                         f"sum by (kind) ({_rate('restore_attempts_total')})", "{{kind}}"),), "percentunit"),
            Panel("Bytes moved", "Loaded and stored.",
                  (_each(_rate("restore_bytes_total"), "loaded"),
                   _each(_rate("offload_bytes_total"), "stored")), "Bps"),
            Panel("Load failures", "By status.", (_by("status", _rate("load_failures_total")),)),
            Panel("Store failures", "By status.", (_by("status", _rate("store_failures_total")),)),
            Panel("How full", "Bytes of those that it may hold.",
                  (Query("sum by (tier) (hybridkv_tier_bytes) / sum by (tier) (hybridkv_tier_capacity_bytes)",
                         "{{tier}}"),), "percentunit"),
            Panel("Breaker open, read only", "1 where it is.",
                  (Query("hybridkv_tier_breaker_open", "{{tier}} open"),
                   Query("hybridkv_tier_read_only", "{{tier}} read only")), alarm=True),
            Panel("Lost to other writers", "Look-ups beside records that cannot be read, by what differs.",
                  (_by("differs", _rate("tier_skew_total")),)),
        ),
    ),
)  # fmt: skip


def dashboard() -> dict[str, Any]:
    """Return the dashboard.

    Returns
    -------
    dict
        To be written as JSON and imported into Grafana (10 or newer); it asks for a Prometheus data source.
    """
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in _ROWS:
        panels.append({"type": "row", "title": title, "collapsed": False, "panels": [],
                       "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": top}})  # fmt: skip
        top += 1
        left = 0
        for panel in row:
            if left + panel.width > COLUMNS:
                left, top = 0, top + _HEIGHT
            panels.append(_panel(panel, left, top))
            left += panel.width
        top += _HEIGHT
    for number, made in enumerate(panels, 1):
        made["id"] = number
    return {
        "uid": "hybridkv",
        "title": "hybridkv: prefix reuse",
        "tags": ["hybridkv", "kv-cache"],
        "schemaVersion": _SCHEMA,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_data_source(), *(_variable(i) for i in range(len(VARIABLES)))]},
        "panels": panels,
    }


def _panel(panel: Panel, left: int, top: int) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.alarm:
        steps.append({"color": "red", "value": 0.001})
    defaults: dict[str, Any] = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.least is not None:
        defaults["min"] = panel.least
    if not panel.alarm:
        defaults["color"] = {"mode": "palette-classic"}
    return {
        "type": "stat" if panel.stat else "timeseries",
        "title": panel.title,
        "description": panel.meaning,
        "datasource": _SOURCE,
        "gridPos": {"h": _HEIGHT, "w": panel.width, "x": left, "y": top},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"reduceOptions": {"calcs": ["lastNotNull"]}} if panel.stat else {"tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": _SOURCE, "expr": _chosen(query.expr),
             "legendFormat": query.legend}
            for i, query in enumerate(panel.queries)
        ],
    }  # fmt: skip


def _chosen(expr: str) -> str:
    """Put the matchers of the chosen labels to every metric of an expression."""
    return _METRIC.sub(lambda found: f"{found[1]}{{{', '.join(filter(None, (found[2], _CHOSEN)))}}}", expr)


def _data_source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1}


def _variable(number: int) -> dict[str, Any]:
    """Return a list of the values of one label, among those that fit the choices before it."""
    name = VARIABLES[number]
    before = ", ".join(f'{label}=~"${label}"' for label in VARIABLES[:number])
    query = f"label_values(hybridkv_lookups_total{{{before}}}, {name})"
    return {
        "name": name, "type": "query", "datasource": _SOURCE, "query": query, "definition": query, "refresh": 2,
        "sort": 1, "multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip
