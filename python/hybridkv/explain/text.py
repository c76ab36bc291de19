# SPDX-License-Identifier: Apache-2.0
"""An explanation as text: a timeline of characters, and what each part of it means."""

from __future__ import annotations

from collections.abc import Iterator

from hybridkv.explain.explanation import BoundaryRun, Explanation
from hybridkv.explain.timeline import GroupTimeline
from hybridkv.printed import page

COLUMNS = 64
"""Characters of the timeline at most."""

_MARKS = {
    "here": "#",
    "in tier": "~",
    "restoring": "+",
    "filling": "+",
    "retiring": "-",
    "gone": "x",
    "never here": ".",
}
_LEGEND = (
    "# here   ~ in a tier   + being written or loaded   - on its way out   x gone   . never here   | usable   : refused"
)


def as_text(found: Explanation) -> str:
    """Return an explanation as text; names of others in it do nothing to a terminal."""
    return page(_lines(found))


def _lines(found: Explanation) -> Iterator[str]:
    yield from _head(found)
    yield ""
    yield from _timeline(found)
    for line in found.groups:
        again = ", can be computed again" if line.rebuildable else ""
        yield ""
        yield f"{line.group} ({line.kind}, blocks of {line.block_tokens}; a resume needs {line.needs}{again})"
        yield from (f"  {run}" for run in line.runs)
    yield ""
    yield "lengths"
    yield from (f"  {run}" for run in found.boundaries)
    if found.settings:
        yield ""
        yield "what would have kept it, or helps now"
        yield from (f"  {setting}" for setting in found.settings)
    yield ""
    yield from found.static.lines()


def _head(found: Explanation) -> Iterator[str]:
    yield (
        f"{found.tokens} tokens: {found.outcome}, {found.matched_tokens} matched, {found.usable_tokens} usable"
        + (f", {found.restore_tokens} after a restore from {found.tier}" if found.restore_tokens else "")
    )
    if found.why is not None:
        yield f"why not more: {found.why}; remedy: {found.remedy}"


def _timeline(found: Explanation) -> Iterator[str]:
    """Draw one line a group; a column is as many tokens as fit, and shows the worst state in it."""
    each = max(-(-found.tokens // COLUMNS), 1)
    columns = -(-found.tokens // each)
    width = max(len(line.group) for line in found.groups)
    width = max(width, len("lengths"))
    for line in found.groups:
        yield f"{line.group:<{width}} {_of_group(line, each, columns)}"
    yield f"{'lengths':<{width}} {_of_lengths(found.boundaries, found.static.least_tokens, each, columns)}"
    yield f"{'':<{width}} a column is {each} token{'s' if each > 1 else ''}"
    yield _LEGEND


def _of_group(line: GroupTimeline, each: int, columns: int) -> str:
    order = list(_MARKS)
    worst = [-1] * columns
    for run in line.runs:
        for column in range(run.from_tokens // each, min(-(-run.to_tokens // each), columns)):
            worst[column] = max(worst[column], order.index(run.state))
    return "".join(" " if state < 0 else _MARKS[order[state]] for state in worst)


def _of_lengths(runs: tuple[BoundaryRun, ...], step: int, each: int, columns: int) -> str:
    marks = [" "] * columns
    for run in runs:
        for length in {*range(run.from_tokens, run.to_tokens + 1, step), run.to_tokens}:
            column = min(length // each, columns - 1)
            if run.usable or marks[column] != "|":
                marks[column] = "|" if run.usable else ":"
    return "".join(marks)
