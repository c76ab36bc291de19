# SPDX-License-Identifier: Apache-2.0
"""A picture of an :class:`~hybridkv.explain.Explanation`: one lane for each group, and one of lengths.

Needs matplotlib, which is imported where something is drawn.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridkv.explain.explanation import Explanation
from hybridkv.explain.timeline import STATES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which readers who confuse red and green can tell apart.
COLOURS = {
    "here": "#0072B2",
    "in tier": "#56B4E9",
    "restoring": "#F0E442",
    "filling": "#F0E442",
    "retiring": "#CC79A7",
    "gone": "#D55E00",
    "never here": "#E3E6E9",
}
GOOD, BAD, INK, PALE = "#009E73", "#D55E00", "#24292F", "#57606A"
LANE = 0.62  # height of the marks of a lane, of 1


def save_picture(found: Explanation, path: Path) -> None:
    """Draw an explanation to a file.

    Parameters
    ----------
    found : Explanation
    path : Path
        Its suffix decides the format: png, svg or pdf. Folders are not made.
    """
    draw(found).savefig(path, dpi=160)


def draw(found: Explanation) -> Figure:
    """Draw an explanation.

    Parameters
    ----------
    found : Explanation

    Returns
    -------
    matplotlib.figure.Figure
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    count = len(found.groups)
    figure = Figure(figsize=(11.0, 1.9 + 0.42 * (count + 1)), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    rows = [count - at + 0.4 for at in range(count)]
    seen = set()
    for row, line in zip(rows, found.groups, strict=True):
        for run in line.runs:
            seen.add(run.state)
            axes.barh(
                row,
                run.to_tokens - run.from_tokens,
                left=run.from_tokens,
                height=LANE,
                color=COLOURS[run.state],
                edgecolor="white",
                linewidth=0.6,
                hatch="///" if run.departure is not None else None,
            )
    _lengths(axes, found)
    axes.set_yticks([*rows, 0.0], [*(f"{line.group} ({line.kind})" for line in found.groups), "lengths"])
    axes.set_xlim(0, max(found.tokens, 1))
    axes.set_ylim(-0.7, count + 1.0)
    axes.set_xlabel("tokens from the start of the prompt", fontsize=9, color=INK)
    axes.set_title(_title(found), loc="left", fontsize=10.5, color=INK)
    axes.tick_params(axis="both", labelsize=9, colors=INK, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    _legend(axes, seen)
    return figure


def _title(found: Explanation) -> str:
    head = f"{found.outcome}: {found.usable_tokens} of {found.matched_tokens} matched tokens are usable"
    return head if found.why is None else f"{head}\n{found.why}"


def _lengths(axes: Any, found: Explanation) -> None:
    step = found.static.least_tokens
    for run in found.boundaries:
        lengths = sorted({*range(run.from_tokens, run.to_tokens + 1, step), run.to_tokens})
        colour = GOOD if run.usable else BAD
        axes.vlines(lengths, -LANE / 2, LANE / 2, colors=colour, linewidth=2.2 if run.usable else 1.2)
    for tokens, style in ((found.usable_tokens, "-"), (found.matched_tokens, (0, (4, 3)))):
        if tokens:
            axes.axvline(tokens, color=PALE, linewidth=1.0, linestyle=style, zorder=3)


def _legend(axes: Any, seen: set[str]) -> None:
    handles = [axes.barh(0, 0, color=COLOURS[state], label=state) for state in STATES if state in seen]
    handles.append(axes.vlines([], 0, 0, colors=GOOD, linewidth=3, label="usable length"))
    handles.append(axes.vlines([], 0, 0, colors=BAD, linewidth=3, label="refused length"))
    handles.append(axes.plot([], [], color=PALE, linestyle=(0, (4, 3)), label="matched")[0])
    handles.append(axes.plot([], [], color=PALE, label="used")[0])
    axes.figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8.5)
