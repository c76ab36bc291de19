# SPDX-License-Identifier: Apache-2.0
"""Seeded bugs: the list fits the sources, and a bug that nothing notices is told."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import mutants
from seeded_bugs import ROOT, Bug, all_bugs, misplaced

ISSUE = (
    "dropped release", "missing generation bump", "pin without re-check", "double free", "leak on abort", "drop twice",
    "eviction of a pinned page",
)  # fmt: skip
CHANGE = Bug(
    "whatever can be converted is exact",
    "",
    "python/hybridkv/formats/kv_format.py",
    "return Compatibility.CONVERTIBLE if CONVERTIBLE in severities else Compatibility.EXACT",
    "return Compatibility.EXACT",
    "tests/python/test_formats.py",
)
HARMLESS = replace(CHANGE, name="harmless", new=f"{CHANGE.old}  # seeded")


def test_every_bug_fits_its_source() -> None:
    assert misplaced(all_bugs()) == []


def test_a_bug_whose_text_moved_is_told() -> None:
    bug = all_bugs()[0]
    assert misplaced([replace(bug, old="no such text")]) == [f"{bug.name}: its text stands 0 times in {bug.file}"]
    assert misplaced([replace(bug, old="return")])
    assert misplaced([replace(bug, new=bug.old)]) == [f"{bug.name}: changes nothing"]
    assert misplaced([bug, bug]) == [f"{bug.name}: two bugs of that name"]
    assert misplaced([replace(bug, file="csrc/gone.h")])


def test_the_bugs_that_were_asked_for_are_there() -> None:
    assert set(ISSUE) <= {bug.name for bug in all_bugs()}


def test_the_table_is_the_list() -> None:
    written = (ROOT / "docs" / "seeded-bugs.md").read_text(encoding="utf-8")
    assert written == mutants.document(all_bugs()), "python tests/mutants.py BUILD --write"


def _text_of(program: Path) -> str:
    """A program with the headers of tests that it includes, where a suite that several run may stand."""
    texts: dict[Path, str] = {}
    ahead = [program]
    while ahead:
        path = ahead.pop()
        if path in texts or not path.exists():
            continue
        texts[path] = path.read_text(encoding="utf-8")
        ahead += [ROOT / "tests" / "cpp" / name for name in re.findall(r'#include "([^"]+)"', texts[path])]
    return "\n".join(texts.values())


def test_a_program_that_catches_is_on_disk() -> None:
    for bug in all_bugs():
        file, _, node = bug.caught_by.partition("::")
        if file.startswith("tests/"):
            text = (ROOT / file).read_text(encoding="utf-8")
            assert all(f" {part}(" in text for part in node.split("::")[-1:] if part), bug
        else:
            folder, _, name = file.partition(".")
            text = _text_of(ROOT / "tests" / "cpp" / folder / f"{name}.cpp")
            assert bug.only in text, bug


def test_a_bug_that_nothing_notices_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workshop = mutants.Workshop(tmp_path)
    assert mutants.unnoticed(workshop, [CHANGE, HARMLESS]) == ["harmless"]
    assert "NOTHING" in capsys.readouterr().out
    source = (workshop.tree / CHANGE.file).read_text(encoding="utf-8")
    assert source == (ROOT / CHANGE.file).read_text(encoding="utf-8"), "the bug was taken out again"


def test_a_bug_whose_test_would_be_skipped_is_left_out() -> None:
    bugs = [CHANGE, replace(CHANGE, needs="json"), replace(CHANGE, needs="no_such_package")]
    assert mutants.tryable(bugs) == (bugs[:2], bugs[2:])


def test_a_test_that_fails_without_any_bug_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants.Workshop, "__init__", lambda self, folder: None)
    monkeypatch.setattr(mutants.Workshop, "fails", lambda self, test, only: "always")
    with pytest.raises(SystemExit, match="fails without any bug"):
        mutants.unnoticed(mutants.Workshop(tmp_path), [CHANGE])
