# SPDX-License-Identifier: Apache-2.0
"""Every metric there is, as text, as a table of Markdown, as JSON."""

from __future__ import annotations

from typing import Any

from hybridkv.metrics.cache_series import SERIES
from hybridkv.metrics.canary_series import CANARY_SERIES
from hybridkv.metrics.series import BASE_LABELS, Series


def every_series() -> tuple[Series, ...]:
    """Return every metric, those of canaries last."""
    return (*SERIES, *CANARY_SERIES)


def as_text() -> str:
    """Return a line for each metric: name with its own labels, type, unit."""
    rows = [(_with_labels(series), series.kind, series.unit) for series in every_series()]
    wide = max(len(name) for name, _, _ in rows)
    lines = [f"{name:<{wide}}  {kind:<7}  {unit}" for name, kind, unit in rows]
    return "\n".join([*lines, f"Each with the labels {', '.join(BASE_LABELS)} as well."])


def as_table() -> str:
    """Return a table of Markdown."""
    head = "| metric | type | labels | unit | meaning |\n|---|---|---|---|---|"
    rows = (
        f"| `{s.name}` | {s.kind} | {', '.join(f'`{label}`' for label in s.labels)} | {s.unit} | {s.meaning} |"
        for s in every_series()
    )
    return "\n".join([head, *rows])


def as_json() -> dict[str, Any]:
    """Return the metrics as values of JSON."""
    return {
        "base_labels": list(BASE_LABELS),
        "metrics": [
            {"name": s.name, "type": s.kind, "labels": list(s.labels), "unit": s.unit, "meaning": s.meaning}
            for s in every_series()
        ],
    }


def _with_labels(series: Series) -> str:
    return f"{series.name}{{{','.join(series.labels)}}}" if series.labels else series.name
