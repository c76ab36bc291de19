# SPDX-License-Identifier: Apache-2.0
"""The disk demo: a process is killed, another resumes its conversations, and it says where that does not come out.

The run itself is a soak test: ``make demo`` does it, and fails where a turn does not come out.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is absent: the demo's models need it")
pytest.importorskip("transformers", reason="transformers is absent: the demo's models need it")

import hybridkv as hk
from hybridkv import cli
from hybridkv.demo import disk, parts
from hybridkv.demo.disk import DiskResult, Resumed
from hybridkv.demo.disk_damage import damage
from hybridkv.demo.disk_life import TALKS
from hybridkv.tiers import RecordKind


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "stores"


@pytest.fixture(scope="module")
def result(folder: Path) -> DiskResult:
    (found,) = disk.run_disk(folder, speakers=["deepseek-v4"])
    return found


@pytest.mark.soak
def test_conversations_of_a_killed_process_resume(result: DiskResult) -> None:
    assert result.failure == ""
    assert {turn.conversation for turn in result.resumed} == set(TALKS)
    for turn in result.resumed:
        assert turn.same_text
        assert 0 < turn.restored_tokens < turn.prompt_tokens
        assert turn.computed_tokens == turn.prompt_tokens - turn.restored_tokens
        assert turn.bitwise or turn.damaged is not None
    assert result.before["evicted_pages"] > 0 and result.before["reloaded_turns"] > 0
    assert result.opened["scanned_regions"] >= 1  # nobody closed it


@pytest.mark.soak
def test_damaged_records_are_passed_over(result: DiskResult) -> None:
    turns = {turn.conversation: turn for turn in result.resumed if turn.damaged is not None}
    assert {name: turn.damaged for name, turn in turns.items()} == {
        "broken vase": "tip",
        "short read": "block record",
    }
    assert turns["short read"].restored_tokens == turns["short read"].damaged_tokens - 16
    assert turns["broken vase"].restored_tokens == turns["broken vase"].damaged_tokens // 16 * 16
    assert all(turn.restored_tokens % 16 for turn in result.resumed if turn.damaged is None)  # tips
    refused = sum(len(turn.refused) for turn in turns.values())
    assert refused + result.opened["torn"] >= 2


@pytest.mark.soak
def test_the_report_tells_all_of_it(result: DiskResult) -> None:
    text = disk.as_text([result])
    for turn in result.resumed:
        assert f"{turn.conversation:<14} {turn.prompt_tokens:>6} {turn.restored_tokens:>9}" in text
    (told,) = json.loads(json.dumps(disk.as_json([result])))
    assert [turn["bitwise"] for turn in told["resumed"]] == [turn.bitwise for turn in result.resumed]
    assert told["before"]["records"] == result.before["records"] and "answers" not in told["before"]


@pytest.mark.soak
def test_the_stores_stay_and_are_not_written_over(result: DiskResult, folder: Path) -> None:
    with hk.DiskTier(folder / "deepseek-v4", 48 << 20) as tier:
        assert tier.recovered.records > 0
    with pytest.raises(hk.ArgumentError, match="disk: expected a new or empty directory"):
        disk.run_disk(folder)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("which", "change"),
    [
        (0, {"same_text": False}),
        (0, {"worst_difference": 0.1}),
        (0, {"bitwise": False}),
        (0, {"restored_tokens": 0}),
        (0, {"damaged": "block record", "damaged_tokens": 16}),
    ],
)
def test_what_must_not_be_is_a_failure(result: DiskResult, which: int, change: dict[str, object]) -> None:
    turns = list(result.resumed)
    turns[which] = dataclasses.replace(turns[which], **change)
    assert turns[which].conversation in dataclasses.replace(result, resumed=tuple(turns)).failure
    before = {**result.before, "not_written": {"IO_ERROR": 1}}
    assert "IO_ERROR" in dataclasses.replace(result, before=before).failure


def test_a_first_process_that_tells_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk.sys, "executable", shutil.which("false"))
    with pytest.raises(hk.ArgumentError, match="a first process that tells what it stored"):
        disk._first_process("deepseek-v4", tmp_path)


def test_a_record_that_is_not_there_cannot_be_damaged(tmp_path: Path) -> None:
    with pytest.raises(hk.ArgumentError, match="block record"):
        damage(tmp_path, RecordKind.BLOCK, bytes(16))


def test_the_command_line_hands_the_folder_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Path | None] = []

    def run(folder: Path | None, *, shown: bool) -> parts.Part:
        asked.append(folder)
        return parts.Part("", {"disk": []})

    monkeypatch.setattr(parts, "disk_part", run)
    assert cli.main(["demo", "--disk"]) == 0
    assert cli.main(["demo", "--json", "--disk", str(tmp_path)]) == 0
    assert asked == [None, tmp_path]


def test_the_line_of_a_turn_says_what_differs() -> None:
    turn = Resumed("late parcel", 90, 80, 2048, 10, None, 0, (), False, False, 1.0)
    opened = {"seconds": 0.0, "records": 1, "scanned_regions": 0, "regions": 1, "torn": 0}
    before = {"turns": 1, "prompt_tokens": 80, "page_bytes": 1, "evicted_pages": 0, "reloaded_turns": 0}
    result = DiskResult("M", "layers", {**before, "records": 1, "record_bytes": 1}, opened, (turn,))
    assert "other pieces" in disk.as_text([result]) and "OTHER text, 1e+00" in disk.as_text([result])
