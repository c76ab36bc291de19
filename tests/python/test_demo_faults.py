# SPDX-License-Identifier: Apache-2.0
"""``hybridkv demo --faults``: the kit of the clone is found and run; away from a clone that is said."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is absent: the fault kit needs it")
pytest.importorskip("transformers", reason="transformers is absent: the fault kit breaks states of its models")

from hybridkv import cli
from hybridkv.demo import faults, parts
from hybridkv.errors import ArgumentError


def test_every_fault_of_the_clone_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--faults", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["models"], document["traces"], document["skipped"]) == (None, None, {})
    rows = document["faults"]
    assert len(rows) >= 45
    assert all(row["refused"] for row in rows)
    assert {row["kind"] for row in rows} == {"COMPRESSED", "TAIL", "WINDOW", "INDEXER", "DISK"}
    assert sum(not row["raised"] for row in rows) > 0.9 * len(rows), "unchecked, almost nothing raises"
    assert all(row["changed_by"] is None or row["changed_by"] > 0 for row in rows), "unchecked, each changes logits"


def test_a_fault_that_is_accepted_fails_the_demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def row(name: str, in_pages: str) -> Any:
        return SimpleNamespace(
            name=name,
            kind="WINDOW",
            broken="",
            in_pages=in_pages,
            in_image="-",
            changed_by=1.0,
            raised="",
            is_refused=bool(in_pages),
        )

    monkeypatch.setattr(faults, "run_faults", lambda kit: [row("one", "INTEGRITY/content"), row("other", "")])
    assert cli.main(["demo", "--faults"]) == 1
    printed = capsys.readouterr()
    assert "2 faults, 1 refused" in printed.out
    assert "ACCEPTED" in printed.out
    assert "1 broken states were accepted" in printed.err


def test_the_kit_is_found_from_inside_a_clone_and_not_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kit = tmp_path / "tests" / "faults"
    kit.mkdir(parents=True)
    (kit / "show.py").touch()
    inside = tmp_path / "python" / "somewhere"
    inside.mkdir(parents=True)
    with pytest.raises(ArgumentError, match="tests/faults"):
        faults.find_kit([inside])
    (tmp_path / "pyproject.toml").touch()
    assert faults.find_kit([inside]) == kit

    def missing() -> Path:
        raise ArgumentError("faults", "tests/faults of a clone above the working directory", "none")

    monkeypatch.setattr(faults, "find_kit", missing)
    assert cli.main(["demo", "--faults"]) == 2
    assert "tests/faults" in capsys.readouterr().err
    assert isinstance(parts.faults_part(), parts.Part)
