# SPDX-License-Identifier: Apache-2.0
"""A picture of :class:`~hybridkv.demo.boundaries.Boundaries`: one lane for each cache group over a conversation.

Needs matplotlib, and imports it: import this module only where a picture is wanted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hybridkv.demo.boundaries import Boundaries, Lane, Lengths
from hybridkv.kinds import StateKind

# Okabe and Ito's colours, which readers who confuse red and green can tell apart.
GOOD, BAD, GAP, INK, PALE = "#009E73", "#D55E00", "#C9CDD2", "#24292F", "#57606A"
COLOURS = {
    StateKind.COMPRESSED: "#0072B2",
    StateKind.INDEXER: "#56B4E9",
    StateKind.WINDOW: "#E69F00",
    StateKind.TAIL: "#CC79A7",
}
KINDS = {
    StateKind.COMPRESSED: "history",
    StateKind.INDEXER: "router",
    StateKind.WINDOW: "window",
    StateKind.TAIL: "tail",
}
LANE = 0.62  # height of the marks of a lane, of 1
GAP_BELOW_PROMISE = 0.55  # space between the promise, the groups and what is usable


def save_picture(found: Boundaries, path: Path) -> None:
    """Draw boundaries to a file.

    Parameters
    ----------
    found : Boundaries
        At least one lane.
    path : Path
        Its suffix decides the format: png, svg or pdf. Folders are not made.
    """
    figure = draw(found)
    figure.savefig(path, dpi=160)


def draw(found: Boundaries) -> Figure:
    """Draw boundaries.

    Parameters
    ----------
    found : Boundaries
        At least one lane.

    Returns
    -------
    matplotlib.figure.Figure
    """
    count = len(found.lanes)
    figure = Figure(figsize=(11.5, 2.1 + 0.36 * (count + 2)), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    candidates = np.union1d(found.promised, found.usable)
    top = count + 2 * GAP_BELOW_PROMISE + 1
    rows = [top, *(top - 1 - GAP_BELOW_PROMISE - lane for lane in range(count)), 0.0]
    _turns(axes, found, top)
    _promise(axes, found, rows[0])
    for row, lane in zip(rows[1:-1], found.lanes, strict=True):
        _lane(axes, lane, np.intersect1d(lane.lengths, candidates), np.setdiff1d(candidates, lane.lengths), row)
    _marks(axes, np.setdiff1d(candidates, found.usable), rows[-1], GAP, width=1.6)
    _marks(axes, found.usable, rows[-1], GOOD, width=2.4, height=0.8)
    axes.set_yticks(rows, ["hash-hit rule", *(lane.group for lane in found.lanes), "all groups"])
    _notes(axes, found, rows)
    _frame(axes, found, top)
    return figure


def _promise(axes: Any, found: Boundaries, row: float) -> None:
    """Draw what hashes promise: green where it holds, red where it would be a false hit."""
    holds = np.intersect1d(found.promised, found.usable)
    _marks(axes, holds, row, GOOD, width=2.4, height=0.8)
    _marks(axes, np.setdiff1d(found.promised, found.usable), row, BAD, width=2.4, height=0.8)


def _lane(axes: Any, lane: Lane, there: Lengths, missing: Lengths, row: float) -> None:
    if lane.kind in (StateKind.COMPRESSED, StateKind.INDEXER) and there.size:
        axes.barh(row, there.max(), height=LANE, color=COLOURS[lane.kind], alpha=0.22, linewidth=0)
    _marks(axes, missing, row, GAP, width=1.6)
    _marks(axes, there, row, COLOURS[lane.kind], width=2.0)


def _marks(axes: Any, lengths: Lengths, row: float, colour: str, *, width: float, height: float = LANE) -> None:
    axes.vlines(lengths, row - height / 2, row + height / 2, colors=colour, linewidth=width)


def _turns(axes: Any, found: Boundaries, top: float) -> None:
    """Shade the answers and name the turns above the lanes."""
    begin = 0
    for turn, prompt_end in enumerate(found.prompt_ends):
        end = found.answer_ends[turn] if turn < len(found.answer_ends) else prompt_end
        axes.axvspan(prompt_end, end, color="#EAEEF2", linewidth=0, zorder=0)
        axes.axvline(prompt_end, color=PALE, linewidth=0.9, linestyle=(0, (4, 3)), zorder=0)
        axes.axvline(end, color=PALE, linewidth=0.9, linestyle=(0, (1, 2)), zorder=0)
        name = f"prompt {turn + 1}" if turn else "prompt 1, with the system prompt"
        axes.text((begin + prompt_end) / 2, top + 0.75, name, ha="center", va="bottom", fontsize=8, color=PALE)
        begin = end


def _notes(axes: Any, found: Boundaries, rows: list[float]) -> None:
    """Write on the right what each lane is."""
    false = np.setdiff1d(found.promised, found.usable).size
    names = [f"{found.promised.size} lengths promised,\n{false} would be false hits"]
    names += [f"{KINDS[lane.kind]}: {lane.needs}" for lane in found.lanes]
    names.append(f"{found.usable.size} lengths usable")
    for row, name in zip(rows, names, strict=True):
        strong = row in (rows[0], rows[-1])
        axes.annotate(
            name,
            (1.0, row),
            xycoords=("axes fraction", "data"),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=INK if strong else PALE,
        )


def _frame(axes: Any, found: Boundaries, top: float) -> None:
    axes.set_xlim(0, found.tokens + found.unit_tokens / 2)
    axes.set_ylim(-0.9, top + 1.35)
    axes.set_xlabel("tokens from the start of the conversation", fontsize=9, color=INK)
    axes.set_title(found.title, loc="left", fontsize=12, color=INK, pad=22)
    axes.annotate(found.note, (0, 1), (0, 8), "axes fraction", "offset points", fontsize=8.5, color=PALE)
    axes.tick_params(axis="both", labelsize=9, colors=INK, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    handles = [
        axes.vlines([], 0, 0, colors=GOOD, linewidth=3, label="could resume here"),
        axes.vlines([], 0, 0, colors=BAD, linewidth=3, label="promised, and a false hit"),
        axes.vlines([], 0, 0, colors=GAP, linewidth=3, label="this group could not"),
        axes.plot([], [], color=PALE, linewidth=1, linestyle=(0, (4, 3)), label="end of a prompt")[0],
        axes.plot([], [], color=PALE, linewidth=1, linestyle=(0, (1, 2)), label="end of an answer")[0],
    ]
    axes.figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8.5)
