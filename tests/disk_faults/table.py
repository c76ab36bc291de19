# SPDX-License-Identifier: Apache-2.0
"""Runs the parts and prints what they found as one table."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from . import calls, damage, frozen, full, kills, log_writes, power, surroundings
from .checker import Row
from .mounts import Mount, cannot_mount

Part = Callable[[Path], Iterator[Row]]


def _full(folder: Path) -> Iterator[Row]:
    yield from full.rows(folder, 8)
    yield from full.long_rows(folder)


def _engines(folder: Path) -> tuple[str, ...]:
    return ("threads", "uring") if surroundings.has_uring(folder) else ("threads",)


PARTS: dict[str, Part] = {
    "kills": lambda folder: kills.rows(folder, 50, _engines(folder)),
    "calls": lambda folder: calls.rows(folder, 1),
    "damage": lambda folder: damage.rows(folder, 600),
    "full": _full,
    "power": lambda folder: power.rows(folder, 20, _engines(folder)),
    "log_writes": lambda folder: log_writes.rows(folder, 40, 1),
    "surroundings": surroundings.rows,
    "frozen": lambda folder: frozen.rows(folder, _engines(folder)),
}
# What fits into a test run: seconds.
SHORT: dict[str, Part] = {
    "kills": lambda folder: kills.rows(folder, 5, ("threads",)),
    "calls": lambda folder: calls.rows(folder, 37, (False,)),
    "damage": lambda folder: damage.rows(folder, 16),
    "full": lambda folder: full.rows(folder, 1),
}


def main(arguments: list[str]) -> int:
    """Run the parts that are named, or all; return 0 where every one shows what it is there to show."""
    parser = argparse.ArgumentParser(prog="python -m tests.disk_faults", description=__doc__)
    parser.add_argument("--short", action="store_true", help="what fits into a test run")
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}")
    chosen = parser.parse_args(arguments)
    parts = SHORT if chosen.short else PARTS
    unknown = set(chosen.parts) - parts.keys()
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    found: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="hybridkv_faults_") as folder, _scratch(Path(folder)) as scratch:
        for name in chosen.parts or parts:
            started, place = time.monotonic(), scratch / name
            place.mkdir()
            for row in _run(name, parts[name], place):
                found.append(row)
                print(line(row), flush=True)
            print(f"  {name}: {time.monotonic() - started:.0f} s", flush=True)
    print("\n" + table(found))
    bad = [row for row in found if not row.is_well]
    print("\n" + ("all parts are well" if not bad else f"{len(bad)} parts are NOT well"))
    return bool(bad)


def _run(name: str, part: Part, place: Path) -> Iterator[Row]:
    """Run a part; where it ends with an error, that is a row too, and the others go on."""
    try:
        yield from part(place)
    except Exception as error:
        traceback.print_exc()
        yield Row(name, failed=1, notes=[f"{type(error).__name__}: {error}"])


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """Give an ext4 of its own, in memory, whose syncs wait for nobody else's; without root the temporary directory."""
    if cannot_mount("ext4"):
        yield folder
        return
    with Mount("tmpfs", folder, 3072) as memory, Mount("ext4", memory.path, 2048) as mount:
        yield mount.path


def table(found: list[Row]) -> str:
    """Return the summary."""
    lines = [HEAD, *(line(row) for row in found)]
    sound = [row for row in found if not row.must_find and not row.skipped]
    total = Row("all but the controls")
    for row in sound:
        for kind in ("rounds", "acknowledged", "wrong", "lost", "returned", "open", "failed"):
            setattr(total, kind, getattr(total, kind) + getattr(row, kind))
        total.refusals.update(row.refusals)
    return "\n".join([*lines, line(total)])


HEAD = f"{'part':60} {'rounds':>6} {'acked':>6} {'wrong':>5} {'lost':>5} {'back':>5} {'open':>5} {'failed':>6}  verdict"


def line(row: Row) -> str:
    """Return a row of the table, with what was refused and noted under it."""
    if row.skipped:
        return f"{row.part:60} skipped: {row.skipped}"
    counts = f"{row.wrong:5} {row.lost:5} {row.returned:5} {row.open:5} {row.failed:6}"
    verdict = ("found, as it must be" if row.must_find else "well") if row.is_well else "NOT WELL"
    text = f"{row.part:60} {row.rounds:6} {row.acknowledged:6} {counts}  {verdict}"
    if row.refusals:
        text += "\n      refused: " + ", ".join(f"{name} {count}" for name, count in sorted(row.refusals.items()))
    return text + "".join(f"\n      {note}" for note in row.notes)
