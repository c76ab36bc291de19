# SPDX-License-Identifier: Apache-2.0
"""The kit as a table, and from outside the tests."""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is absent: the kit breaks states of its models")


from faults import FAULTS
from faults.show import main, show, table
from test_faults_pages import NOT_IN_PAGES

ROOT = Path(__file__).resolve().parents[1] / "faults"


def test_every_row_of_the_table_is_refused_and_would_have_done_harm() -> None:
    rows = show("deepseek_v4")
    assert len(rows) > 100
    assert all(row.is_refused for row in rows)
    assert all(row.changed_by > 0 for row in rows)
    assert {row.name for row in rows if row.in_pages == "-"} == {row.name for row in rows} & NOT_IN_PAGES
    assert {row.in_pages for row in rows} == {
        "-",
        "INTEGRITY/content",
        "GROUPS/missing",
        "COMPLETE/missing",
        "COMPLETE/lagging",
    }
    assert {row.kind for row in rows} == {"COMPRESSED", "TAIL", "WINDOW", "INDEXER", "DISK"}
    assert sum(bool(row.raised) for row in rows) < 0.1 * len(rows)
    assert all(math.isinf(row.changed_by) for row in rows if row.raised)
    lines = table(rows).splitlines()
    assert len(lines) == len(rows) + 1
    assert not any("ACCEPTED" in line for line in lines)


def test_a_cache_that_accepts_is_shown_to(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without verification, and without checksums, the table says so and the program fails."""
    from faults.pages import Opened
    from hybridkv.adapters.transformers.image_part import StatePart

    match = Opened.match
    monkeypatch.setattr(Opened, "match", lambda opened, verify="all": match(opened, "off"))
    monkeypatch.setattr(StatePart, "is_whole", lambda part: True)
    assert main(["llama"]) == 1
    printed = capsys.readouterr().out
    assert "ACCEPTED" in printed
    assert "every fault was refused" not in printed


def test_it_is_loaded_by_its_place_as_the_demo_does() -> None:
    spec = importlib.util.spec_from_file_location(
        "elsewhere_faults", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
    )
    assert spec is not None and spec.loader is not None
    kit: Any = importlib.util.module_from_spec(spec)
    sys.modules["elsewhere_faults"] = kit
    try:
        spec.loader.exec_module(kit)
        assert list(kit.FAULTS) == list(FAULTS)
        shown = importlib.import_module("elsewhere_faults.show").show("llama", names=["history: all zero"])
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "elsewhere_faults"]:
            del sys.modules[name]
    assert [row.in_pages for row in shown] == ["INTEGRITY/content"]
