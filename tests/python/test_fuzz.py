# SPDX-License-Identifier: Apache-2.0
"""The short form of the fuzz runs (``make fuzz``), and that a parser which misbehaves is noticed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import hybridkv as hk
from fuzz.campaign import run
from fuzz.parsers import Parser, parsers
from fuzz.stores import crc32c
from house.parser_table import READ_BY
from hybridkv.tiers import Store
from store_support import call, fill, open_tier

TESTS = Path(__file__).parents[1]
INPUTS, SEED = 1000, 7
APART = ("checkpoint", "image", "row-format")  # they need torch; no line of the core is in them: they run here


def short(names: list[str]) -> list[dict[str, Any]]:
    """Run parsers in a process of their own: a crash is an exit status, and memory has a limit."""
    command = [
        sys.executable,
        "-m",
        "fuzz",
        "--weighted",
        "--json",
        "--seed",
        str(SEED),
        "--inputs",
        str(INPUTS),
        *names,
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)])}
    found = subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    return [json.loads(line) for line in found.stdout.splitlines()]


def test_no_input_breaks_a_parser(capsys: pytest.CaptureFixture[str]) -> None:
    names = [parser.name for parser in parsers() if parser.name not in APART]
    told = short(names)
    assert [one["parser"] for one in told] == names
    with capsys.disabled():
        print("\nfuzz: " + ", ".join(f"{one['parser']} {one['inputs']}" for one in told))
    for one in told:
        assert one["inputs"] >= 50, one
        assert one["refused"] > 0, f"{one}: nothing was refused, so nothing was looked at"
        assert one["refused"] < one["inputs"], f"{one}: nothing passed"


@pytest.mark.parametrize("name", APART)
def test_no_input_breaks_a_parser_that_needs_torch(name: str) -> None:
    pytest.importorskip("transformers")
    parser = next(parser for parser in parsers() if parser.name == name)
    told = run(parser, INPUTS // 4, 60, SEED)
    assert told.failures == []
    assert 0 < told.refused < told.inputs == INPUTS // 4


def told_of(read: Callable[[random.Random], object], inputs: int = 20) -> list[str]:
    @contextmanager
    def prepare() -> Iterator[Callable[[random.Random], object]]:
        yield read

    return run(Parser("seeded", "", prepare), inputs, 60, 1).failures


def test_a_parser_that_misbehaves_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def untyped(dice: random.Random) -> None:
        if dice.random() < 0.5:
            raise KeyError("x")

    def typed(dice: random.Random) -> None:
        raise hk.ArgumentError("x", "y", "z")

    def slow(dice: random.Random) -> None:
        until = time.process_time() + 0.02
        while time.process_time() < until:
            pass

    assert told_of(typed) == []
    failures = told_of(untyped)
    assert failures
    assert "KeyError" in failures[0]
    assert "seeded --seed 1 --at" in failures[0]
    monkeypatch.setattr("fuzz.campaign.SLOWEST", 0.01)
    assert told_of(slow, 1)
    monkeypatch.setattr("fuzz.campaign.SLOWEST", 10)
    monkeypatch.setattr("fuzz.campaign.HANGS", 0.05)
    os.mkfifo(tmp_path / "pipe")
    assert "Hung: no end within 0.05 s" in told_of(lambda dice: (tmp_path / "pipe").read_bytes(), 1)[0]
    assert told_of(typed) == []
    peaks = iter((1 << 30, 2 << 30))
    monkeypatch.setattr("fuzz.campaign._peak", lambda: next(peaks))
    assert "grew by 1073741824 bytes" in told_of(typed)[0]


def through(parser: Parser) -> set[str]:
    """Return the files of which a function is called while a parser reads some inputs."""
    seen: set[str] = set()
    sys.setprofile(lambda frame, event, argument: seen.add(frame.f_code.co_filename) if event == "call" else None)
    try:
        assert run(parser, 100, 60, SEED).failures == []
    finally:
        sys.setprofile(None)
    return seen


TABLE = {parser.name: parser for parser in parsers()}
NAMED = sorted({name for names in READ_BY.values() for name in names})


@pytest.mark.parametrize("name", NAMED)
def test_a_parser_goes_through_the_files_that_the_table_names(name: str) -> None:
    """The house rule "what parses is fuzzed" believes the table; files of the core are named there alone."""
    parser = TABLE[name]
    if parser.needs:
        pytest.importorskip(parser.needs)
    files = [file for file, names in READ_BY.items() if name in names and file.endswith(".py")]
    seen = through(parser) if files else set()
    package = Path(hk.__file__).parent
    real = {str(Path(file).resolve()) for file in seen}
    assert [file for file in files if str((package / Path(*Path(file).parts[2:])).resolve()) not in real] == []


def test_an_input_is_the_same_again() -> None:
    seen: list[list[float]] = [[], []]
    for one in seen:
        told_of(lambda dice, one=one: one.append(dice.random()))  # type: ignore[misc]
    assert seen[0] == seen[1]
    assert len(set(seen[0])) == 20


@pytest.mark.parametrize("footer", [True, False], ids=["in a footer", "in an envelope"])
@pytest.mark.parametrize("kind", [0, 3, 255])
def test_a_tombstone_of_no_kind_removes_nothing(
    tmp_path: Path, footer: bool, kind: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found by a fuzz run: a tombstone that a forger wrote made ``inspect`` fail with an error of no type of ours."""
    from tier_support import Asker

    with open_tier(tmp_path) as tier:
        fill(Asker(tier))
    forged = 0
    for path in tmp_path.glob("*.region"):
        data = bytearray(path.read_bytes())
        for at in range(4096, len(data), 4096):
            if data[at : at + 4] == b"HKVR" and data[at + 6] == 3:
                data[at + 7] = kind
                data[at + 124 : at + 128] = crc32c(bytes(data[at : at + 124])).to_bytes(4, "little")
                forged += 1
        trailer = len(data) - 64
        if data[trailer : trailer + 4] == b"HKVF":
            first = trailer - 64 * int.from_bytes(data[trailer + 36 : trailer + 40], "little")
            for entry in range(first, trailer, 64):
                if data[entry + 60] == 3:
                    data[entry + 61] = kind
            data[trailer + 40 : trailer + 44] = crc32c(bytes(data[first:trailer])).to_bytes(4, "little")
            data[trailer + 60 :] = crc32c(bytes(data[trailer : trailer + 60])).to_bytes(4, "little")
            if not footer:
                data[-64:] = bytes(64)
        path.write_bytes(data)
    assert forged == 1
    with Store(tmp_path) as store:
        for region in store.regions(every_byte=True):
            assert all(record.standing != "tombstone" for record in region.records)
    code, told = call(capsys, "inspect", tmp_path)
    assert code == 0, told
