# SPDX-License-Identifier: Apache-2.0
"""A progress bar on stderr: rich where it is installed, a plain one otherwise, none where nobody looks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

_WIDTH = 32


@contextmanager
def progress(title: str, total: int, *, shown: bool, out: TextIO | None = None) -> Iterator[Callable[[], None]]:
    """Show a bar while the block runs.

    Parameters
    ----------
    title : str
        Text before the bar.
    total : int
        Number of steps.
    shown : bool
        Nothing is written where this is false or `out` is no terminal.
    out : file, optional
        Default: stderr.

    Yields
    ------
    callable
        To be called after each step.
    """
    out = sys.stderr if out is None else out
    if not shown or not out.isatty():
        yield lambda: None
        return
    rich = _rich_progress(out)
    if rich is not None:
        with rich:
            task = rich.add_task(title, total=total)
            yield lambda: rich.advance(task)
        return
    bar = _PlainBar(title, total, out)
    try:
        yield bar.step
    finally:
        bar.clear()


def _rich_progress(out: TextIO) -> Any:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        return None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(file=out), transient=True)


class _PlainBar:
    """Redraws one line, at most ten times a second."""

    def __init__(self, title: str, total: int, out: TextIO) -> None:
        self._title, self._total, self._out = title, max(1, total), out
        self._done = 0
        self._drawn = 0.0

    def step(self) -> None:
        self._done += 1
        now = time.monotonic()
        if now - self._drawn < 0.1 and self._done < self._total:
            return
        self._drawn = now
        full = _WIDTH * self._done // self._total
        bar = "#" * full + "-" * (_WIDTH - full)
        self._out.write(f"\r{self._title} [{bar}] {self._done}/{self._total}")
        self._out.flush()

    def clear(self) -> None:
        self._out.write("\r\x1b[K")
        self._out.flush()
