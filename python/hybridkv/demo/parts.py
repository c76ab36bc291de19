# SPDX-License-Identifier: Apache-2.0
"""The parts of ``hybridkv demo``: real models, traces, faults, the disk. Each says what it lacks where it cannot run.

With ``--json`` the demo prints ``{schema, version, seconds, models, picture, traces, faults, disk, rollout, skipped}``:
``models`` is the list of :mod:`hybridkv.demo.report`, ``traces`` the object of :mod:`hybridkv.replay.report`,
``faults`` and ``disk`` the lists of :mod:`hybridkv.demo.faults` and :mod:`hybridkv.demo.disk`, ``rollout`` the object
of :mod:`hybridkv.demo.rollout`, each null where that part did not run; ``picture`` is a path or null; ``skipped`` maps
what was asked for and could not run to the reason.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridkv import extras
from hybridkv.errors import ArgumentError
from hybridkv.printed import printable
from hybridkv.replay import report as replay_report
from hybridkv.replay import runs as replay_runs

if TYPE_CHECKING:
    from hybridkv.demo.serving import ModelResult

SCHEMA = "hybridkv.demo/1"

PICTURE = "hybridkv-boundaries.png"
"""Name of the picture where no other is asked for."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one part of the demo found.

    Attributes
    ----------
    text : str
        For people.
    data : dict
        For programs: entries of the JSON object.
    skipped : dict of str to str
        What could not run, and why.
    failure : str
        What it found that must not be; "" where all is as it should be.
    """

    text: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failure: str = ""


def default_picture() -> Path:
    """Return where the picture goes: ``build/`` where there is one, else the working directory."""
    folder = Path("build")
    return (folder if folder.is_dir() else Path()) / PICTURE


def models_part(picture: Path | None, *, shown: bool) -> Part:
    """Run the real models.

    Parameters
    ----------
    picture : Path or None
        Where to draw the boundaries; None: nowhere.
    shown : bool
        Whether to show a progress bar on a terminal.

    Returns
    -------
    Part
        Empty but for the reason where torch or transformers is not installed.
    """
    reason = extras.absent(extras.MODELS)
    if reason is not None:
        return Part(skipped={"models": reason})
    from hybridkv.demo import report, runs

    began = time.perf_counter()
    results = runs.run_models(shown=shown)
    text, skipped = report.as_text(results), {}
    drawn = None
    if picture is not None:
        reason = extras.absent(extras.PICTURE)
        if reason is None:
            drawn = _draw(results, picture)
            text += f"\n\nPicture of the boundaries of one conversation: {printable(drawn)}"
        else:
            skipped["picture"] = reason
    text += f"\n\n{time.perf_counter() - began:.1f} s"
    data = {"models": report.as_json(results), "picture": drawn}
    return Part(text, data, skipped, report.failure(results))


def _draw(results: Sequence[ModelResult], path: Path) -> str:
    from hybridkv.demo.picture import save_picture

    save_picture(results[0].boundaries, path)
    return str(path)


def traces_part(paths: Sequence[Path] | None, options: replay_runs.Options, *, version: str, shown: bool) -> Part:
    """Replay traces.

    Parameters
    ----------
    paths : sequence of Path or None
        Trace files; None: those of the clone.
    options : hybridkv.replay.runs.Options
        What to replay, and how.
    version : str
        Of the package.
    shown : bool
        Whether to show a progress bar on a terminal.

    Returns
    -------
    Part
        Empty but for the reason where no paths are given and there is no clone around.
    """
    began = time.perf_counter()
    if paths is None:
        try:
            paths = replay_runs.find_demo_traces()
        except ArgumentError as error:
            return Part(skipped={"traces": str(error)})
    results = replay_runs.replay(paths, options, shown=shown)
    seconds = time.perf_counter() - began
    data = replay_report.as_json(results, options, version=version, seconds=seconds)
    return Part(replay_report.as_text(results, options, seconds=seconds), {"traces": data})


def faults_part() -> Part:
    """Break one state of a model at a time.

    Returns
    -------
    Part
        Empty but for the reason where torch or transformers is not installed, or there is no clone around.
    """
    reason = extras.absent(extras.MODELS)
    if reason is not None:
        return Part(skipped={"faults": reason})
    from hybridkv.demo import faults
    from hybridkv.demo.threads import one_thread

    try:
        kit = faults.find_kit()
    except ArgumentError as error:
        return Part(skipped={"faults": str(error)})
    with one_thread():
        rows = faults.run_faults(kit)
    accepted = sum(not row.is_refused for row in rows)
    failure = f"{accepted} broken states were accepted" if accepted else ""
    return Part(faults.as_text(rows), {"faults": faults.as_json(rows)}, failure=failure)


def disk_part(folder: Path | None, *, shown: bool) -> Part:
    """Resume conversations of a process that is gone.

    Parameters
    ----------
    folder : Path or None
        Where the stores go and stay; None: a temporary folder.
    shown : bool
        Whether to show a progress bar on a terminal.

    Returns
    -------
    Part
        Empty but for the reason where torch or transformers is not installed.
    """
    reason = extras.absent(extras.MODELS)
    if reason is not None:
        return Part(skipped={"disk": reason})
    from hybridkv.demo import disk

    began = time.perf_counter()
    results = disk.run_disk(folder, shown=shown)
    text = f"{disk.as_text(results)}\n\n{time.perf_counter() - began:.1f} s"
    failure = "; ".join(result.failure for result in results if result.failure)
    return Part(text, {"disk": disk.as_json(results)}, failure=failure)


def rollout_part(*, shown: bool) -> Part:
    """Switch reuse on by steps, with a fault on the way.

    Parameters
    ----------
    shown : bool
        Whether to show a progress bar on a terminal.

    Returns
    -------
    Part
        Empty but for the reason where torch or transformers is not installed.
    """
    reason = extras.absent(extras.MODELS)
    if reason is not None:
        return Part(skipped={"rollout": reason})
    from hybridkv.demo import rollout
    from hybridkv.demo.threads import one_thread

    with one_thread():
        result = rollout.run_rollout(shown=shown)
    return Part(rollout.as_text(result), {"rollout": rollout.as_json(result)}, failure=result.failure)


def as_json(parts: Sequence[Part], *, version: str, seconds: float) -> dict[str, Any]:
    """Join parts to one JSON object; see the head of this module."""
    joined: dict[str, Any] = {"schema": SCHEMA, "version": version, "seconds": round(seconds, 3)}
    joined.update(models=None, picture=None, traces=None, faults=None, disk=None, rollout=None)
    for part in parts:
        joined.update(part.data)
    return {**joined, "skipped": {name: why for part in parts for name, why in part.skipped.items()}}
