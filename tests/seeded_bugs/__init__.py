# SPDX-License-Identifier: Apache-2.0
"""Seeded bugs as data: one exact replacement in a source each, and the test that must notice it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Bug:
    """One bug: `old` stands exactly once in `file`; with `new` in its place `caught_by` must fail.

    `caught_by` is a C++ program of CMake ("sim.word_test", with `only` to select a test by its sentence), a program
    of the model checker ("relacy.life"), or a node of pytest ("tests/python/test_x.py::test_y"). `needs` names a
    package without which that test is skipped.
    """

    name: str
    what: str
    file: str
    old: str
    new: str
    caught_by: str
    only: str = ""
    needs: str = ""


def all_bugs() -> list[Bug]:
    """Collect the bugs of every module here, in the order of their names."""
    rooms = [import_module(f"{__name__}.{room.name}") for room in iter_modules(__path__)]
    return [bug for room in sorted(rooms, key=lambda room: room.__name__) for bug in room.BUGS]


def misplaced(bugs: list[Bug], root: Path = ROOT) -> list[str]:
    """Find bugs whose old text is not exactly once in their file, and names that are not unique."""
    found = []
    for bug in bugs:
        path = root / bug.file
        count = path.read_text(encoding="utf-8").count(bug.old) if path.exists() else 0
        if count != 1:
            found.append(f"{bug.name}: its text stands {count} times in {bug.file}")
        if bug.old == bug.new:
            found.append(f"{bug.name}: changes nothing")
    names = [bug.name for bug in bugs]
    return found + [f"{name}: two bugs of that name" for name in sorted({n for n in names if names.count(n) > 1})]
