# SPDX-License-Identifier: Apache-2.0
"""Pictures of runs: effective hit rate against memory, lost tokens by cause over time, what the pools hold over time.

Needs matplotlib, which is imported where something is drawn.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridkv.planner.quantities import byte_text
from hybridkv.replay.grid import Run, TraceRuns
from hybridkv.replay.grid_report import policy_name
from hybridkv.replay.losses import EVICTED, IN_TIER, NOT_STORED, STEPS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, PALE, GRID_LINE = "#24292F", "#57606A", "#EAEEF2"
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
USABLE, NEW = "#009E73", "#DDE2E7"
CAUSES = {EVICTED: "#0072B2", NOT_STORED: "#56B4E9", STEPS: "#999999", IN_TIER: "#CC79A7"}
NOT_KEPT = ("#D55E00", "#A0522D", "#8C564B")
STATE_EVICTED = ("#E69F00", "#F0E442", "#BCBD22")

MOST_PANELS = 12
"""Runs that are drawn over time; of more, the first so many."""


def draw_trace(one: TraceRuns, folder: Path) -> list[Path]:
    """Draw the three pictures of a trace.

    Parameters
    ----------
    one : TraceRuns
        All runs of a trace.
    folder : Path
        Where to; it is there.

    Returns
    -------
    list of Path
        ``NAME-hit-rate.png``, ``NAME-lost.png`` and ``NAME-states.png``.
    """
    name = re.sub(r"[^\w.-]", "_", one.trace.name) or "trace"
    drawn = []
    for what, figure in (("hit-rate", hit_rate(one)), ("lost", lost(one)), ("states", states(one))):
        path = folder / f"{name}-{what}.png"
        figure.savefig(path, dpi=140)
        drawn.append(path)
    return drawn


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _frame(axes: Any) -> None:
    axes.tick_params(labelsize=8, colors=INK, length=0)
    axes.grid(axis="y", color=GRID_LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _percent(value: float, _: object) -> str:
    return f"{value:.0%}"


# -- effective hit rate against memory --------------------------------------------------------------


def hit_rate(one: TraceRuns) -> Figure:
    """Draw the part of prompt tokens that was saved, a line for each policy, against the memory it had.

    Parameters
    ----------
    one : TraceRuns

    Returns
    -------
    matplotlib.figure.Figure
    """
    figure = _figure(9.5, 5.2)
    axes = figure.add_subplot()
    lines: dict[str, list[Run]] = {}
    for run in one.runs:
        lines.setdefault(_line_name(run, one), []).append(run)
    for number, (name, runs) in enumerate(lines.items()):
        ordered = sorted(runs, key=lambda run: run.lane.pools.budget_bytes)
        sizes = [run.lane.pools.budget_bytes for run in ordered]
        colour = LINES[number % len(LINES)]
        dashes = ("-", "--", ":", "-.")[number // len(LINES) % 4]
        saved = [run.samples[-1].usable / max(1, run.samples[-1].tokens) for run in ordered]
        hashed = [run.lane.tally.promised_tokens / max(1, run.samples[-1].tokens) for run in ordered]
        axes.plot(sizes, saved, color=colour, linestyle=dashes, marker="o", markersize=5, label=name)
        axes.plot(sizes, hashed, color=colour, linewidth=0.9, linestyle=(0, (1, 2)), marker="_", markersize=7)
    tokens = max(1, one.runs[0].samples[-1].tokens)
    axes.axhline(one.ever_seen / tokens, color=PALE, linewidth=1, linestyle=(0, (6, 3)))
    axes.annotate(
        f"a cache that never forgets: {one.ever_seen / tokens:.1%}",
        (0, one.ever_seen / tokens),
        (2, 3),
        ("axes fraction", "data"),
        "offset points",
        fontsize=8,
        color=PALE,
    )
    every = sorted({run.lane.pools.budget_bytes for run in one.runs})
    axes.set_xscale("log")
    axes.set_xticks(every, [byte_text(size) for size in every])
    axes.minorticks_off()
    axes.set_ylim(0, 1.08 * max(one.ever_seen / tokens, *(axes.get_ylim()[1:]), 0.05))
    axes.yaxis.set_major_formatter(_percent)
    axes.set_xlabel("memory for pages", fontsize=9, color=INK)
    axes.set_title(f"{one.trace.name}: part of prompt tokens saved", loc="left", fontsize=11, color=INK)
    axes.plot([], [], color=PALE, linewidth=0.9, linestyle=(0, (1, 2)), label="what hashes alone promise")
    _frame(axes)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _line_name(run: Run, one: TraceRuns) -> str:
    """What tells a line from the others: that which differs among the runs."""
    parts = [
        run.model if len({other.model for other in one.runs}) > 1 else "",
        policy_name(run) if len({other.policy for other in one.runs}) > 1 else "",
        run.eviction if len({other.eviction for other in one.runs}) > 1 else "",
        _tier_name(run) if len({other.place for other in one.runs}) > 1 else "",
    ]
    return ", ".join(filter(None, parts)) or f"{run.model}, {policy_name(run)}"


def _tier_name(run: Run) -> str:
    return "no tier" if run.place is None else str(run.place)


# -- over time -------------------------------------------------------------------------------------


def lost(one: TraceRuns) -> Figure:
    """Draw what became of prompt tokens in each step of time, a panel for each run.

    Parameters
    ----------
    one : TraceRuns

    Returns
    -------
    matplotlib.figure.Figure
    """
    causes = sorted({cause for run in one.runs for cause in run.samples[-1].causes})
    colours = _cause_colours(causes)

    def panel(axes: Any, run: Run) -> None:
        edges, counts = _steps(run, causes)
        widths = np.diff(edges)
        base = np.zeros(widths.size)
        total = np.maximum(1, counts.sum(axis=0))
        for name, row in zip(("saved", *causes, "new"), counts, strict=True):
            part = row / total
            axes.bar(edges[:-1], part, widths, base, align="edge", color=colours[name], linewidth=0, label=name)
            base += part
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(_percent)

    title = f"{one.trace.name}: prompt tokens of each step of time, by what became of them"
    return _panels(one, title, panel)


def _cause_colours(causes: Sequence[str]) -> dict[str, str]:
    colours = {"saved": USABLE, "new": NEW, **CAUSES}
    for palette, ending in ((NOT_KEPT, "not kept"), (STATE_EVICTED, "evicted")):
        names = [cause for cause in causes if cause.endswith(ending) and cause not in colours]
        colours.update((name, palette[number % len(palette)]) for number, name in enumerate(names))
    return colours


def _steps(run: Run, causes: Sequence[str]) -> tuple[Any, Any]:
    """Return edges in the unit of the axis, and tokens of each step by what became of them."""
    edges = np.asarray([0.0, *(sample.seconds for sample in run.samples)])
    rows = [[0, *(sample.usable for sample in run.samples)]]
    rows += [[0, *(sample.causes.get(cause, 0) for sample in run.samples)] for cause in causes]
    rows += [[0, *(sample.new for sample in run.samples)]]
    if edges[-1] == 0:  # a trace that tells no time
        edges = np.asarray([0, *(sample.requests for sample in run.samples)], dtype=np.float64)
    return edges / _axis(run)[0], np.diff(np.asarray(rows, dtype=np.float64), axis=1)


def _axis(run: Run) -> tuple[float, str]:
    span = run.samples[-1].seconds
    for seconds, name in ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds")):
        if span > 2 * seconds:
            return seconds, f"{name} of the trace"
    return (1.0, "seconds of the trace") if span else (1.0, "requests")


def states(one: TraceRuns) -> Figure:
    """Draw how full each pool is in the course of the trace, a panel for each run.

    Parameters
    ----------
    one : TraceRuns

    Returns
    -------
    matplotlib.figure.Figure
    """

    def panel(axes: Any, run: Run) -> None:
        edges, _ = _steps(run, ())
        pages = run.lane.pools.pages
        for number, group in enumerate(run.lane.spec.groups):
            full = [0.0, *(sample.cached[group.name] / pages[group.name] for sample in run.samples)]
            colour, dashes = LINES[number % len(LINES)], ("-", (0, (4, 2)), (0, (1, 1)))[number % 3]
            if max(full) > 0:
                label = f"{group.name} ({group.kind.name.lower()})"
                axes.step(edges, full, where="post", color=colour, linestyle=dashes, linewidth=1.6, label=label)
        axes.set_ylim(0, 1.04)
        axes.yaxis.set_major_formatter(_percent)

    return _panels(one, f"{one.trace.name}: part of each pool that holds states", panel)


def _panels(one: TraceRuns, title: str, panel: Callable[[Any, Run], None]) -> Figure:
    """Draw one small picture for each run, with one legend for all."""
    runs = one.runs[:MOST_PANELS]
    columns = min(4 if len(runs) > 9 else 3, len(runs))
    rows = math.ceil(len(runs) / columns)
    figure = _figure(4.2 * columns + 1.2, 2.5 * rows + 1.3)
    found: dict[str, Any] = {}
    for number, run in enumerate(runs):
        axes = figure.add_subplot(rows, columns, number + 1)
        panel(axes, run)
        _frame(axes)
        name = _line_name(run, one)
        axes.set_title(f"{name}, {byte_text(run.lane.pools.budget_bytes)}", loc="left", fontsize=8.5, color=PALE)
        if number + columns >= len(runs):
            axes.set_xlabel(_axis(run)[1], fontsize=8, color=INK)
        handles, names = axes.get_legend_handles_labels()
        for name, handle in zip(names, handles, strict=True):
            found.setdefault(name, handle)
    more = f" (the first {len(runs)} of {len(one.runs)} runs)" if len(runs) < len(one.runs) else ""
    figure.suptitle(title + more, x=0.01, ha="left", fontsize=11, color=INK)
    figure.legend(
        found.values(),
        found.keys(),
        loc="outside lower center",
        ncols=min(6, max(1, len(found))),
        frameon=False,
        fontsize=8,
    )
    return figure
