# SPDX-License-Identifier: Apache-2.0
"""Texts of others do nothing on a terminal, and files of others are never waited for."""

from __future__ import annotations

import ast
import copy
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import hybridkv as hk
from doctor_support import a_cache, facts_of, host
from hybridkv import cli
from hybridkv.doctor import compare
from hybridkv.doctor.report import comparison_text
from hybridkv.printed import page, printable, put

EVIL = "x\x1b[2J\x1b[31m\rno difference\nno difference\x07\x9b\u202e\ud800\x00"
PACKAGE = Path(hk.__file__).parent


def test_one_line_of_plain_characters_stays() -> None:
    assert printable("a name: Ünïcode 名前 \\n") == "a name: Ünïcode 名前 \\n"
    assert printable("\x1b[2J\n\r\t\x7f\x9b\u202e\u2028\ud800") == r"\x1b[2J\n\r\t\x7f\x9b\u202e\u2028\ud800"
    assert page(["one", "two\nthree"]) == "one\ntwo\\nthree"


def test_what_stdout_cannot_encode_is_an_escape(monkeypatch: pytest.MonkeyPatch) -> None:
    told = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", told)
    put("名 \ud800")
    told.seek(0)
    assert told.read() == "\\u540d \\ud800\n"


def test_a_message_is_one_line_that_can_be_printed() -> None:
    error = hk.ArgumentError(EVIL, EVIL, EVIL, more=EVIL)
    assert str(error).isprintable()
    assert error.got == EVIL  # as it came


def plain(text: str) -> bool:
    return all(line.isprintable() for line in text.splitlines()) and text.isascii()


@pytest.mark.parametrize("place", ["torch", "platform", "engine", "version", "format", "gpu", "verify"])
def test_a_file_cannot_fake_a_line(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours: dict[str, Any] = {**host(monkeypatch, ("sm90",), vllm="0.33.0"), "cache": facts_of(a_cache())}
    theirs = copy.deepcopy(ours)
    if place in ("torch", "platform"):
        theirs[place] = EVIL
    elif place == "engine":
        theirs["engines"][EVIL] = {"version": "1", "known": False}
    elif place == "version":
        theirs["engines"]["vllm"].update(version=EVIL, known=False)
    elif place == "format":
        theirs["formats"][0]["name"] = EVIL
    elif place == "gpu":
        theirs["gpu"]["families"] = [EVIL]
    else:
        theirs["cache"]["verify"] = EVIL
    text = comparison_text(compare(ours, theirs))
    assert plain(text)
    assert "no difference" not in text.splitlines()


def test_halves_of_pairs_in_a_file_are_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = host(monkeypatch)
    for name, version in (("ours", "3.12"), ("theirs", EVIL)):
        (tmp_path / name).write_text(json.dumps({**facts, "python": version}))
    assert cli.main(["doctor", "--compare", str(tmp_path / "ours"), str(tmp_path / "theirs")]) == 0
    assert plain(capsys.readouterr().out)


def test_names_of_files_in_a_store_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store"
    with hk.DiskTier(store, 16 << 20, region_bytes=4 << 20):
        pass
    (store / "x\x1b[2J\nsound").write_bytes(b"")
    assert cli.main(["inspect", str(store)]) == 0
    told = capsys.readouterr().out
    assert plain(told) and "x\\x1b[2J\\nsound" in told


def test_a_trace_of_any_name_is_replayed_in_plain_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t\x1b[2J\nok.jsonl"
    row = {"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}
    trace.write_text(json.dumps(row))
    assert cli.main(["replay", str(trace), "--block-tokens", "512"]) == 0
    told = capsys.readouterr()
    assert plain(told.out) and "\\x1b[2J\\nok" in told.out
    trace.write_text("no request")
    assert cli.main(["replay", str(trace)]) == cli.EXIT_REFUSED
    assert plain(capsys.readouterr().err)


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_a_file_that_is_none_is_refused_and_not_waited_for(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "it"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    for command in (["doctor", "--compare", str(path), str(path)], ["doctor", "--cache", str(path)]):
        assert cli.main(command) == cli.EXIT_REFUSED
    assert cli.main(["replay", str(path)]) == cli.EXIT_REFUSED
    assert "not a regular file" in capsys.readouterr().err


def test_nothing_opens_files_or_prints_past_the_one_place() -> None:
    """Every reader opens files in one place, and commands print in one place."""
    opens, prints = set(), set()
    found = [Path(folder) / name for folder, _, names in os.walk(PACKAGE, followlinks=True) for name in names]
    for path in (path for path in found if path.suffix == ".py"):
        name = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            on = getattr(node.func, "value", None)
            if called in ("open", "read_text", "read_bytes", "fdopen") and getattr(on, "id", "") not in ("cls",):
                opens.add(name)
            if called == "print":
                prints.add(name)
    # The null device, stores of its own, drafts, the directory of a store, a text of the package itself.
    ours = {"cli.py", "demo/disk_damage.py", "formats/manifest_file.py", "metrics/alerts.py", "tiers/writers_file.py"}
    assert opens - ours == {"regular_file.py"}
    assert prints == {"printed.py", "cli.py", "demo/disk_life.py"}  # to stderr; and for the parent process
