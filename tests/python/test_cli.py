# SPDX-License-Identifier: Apache-2.0
"""The command line: what is listed, what it prints, what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hybridkv as hk
from hybridkv import cli, extras
from hybridkv.demo import parts
from hybridkv.doctor import cache_facts

ROWS = [
    '{"timestamp": 0, "input_length": 1024, "output_length": 0, "hash_ids": [0, 1]}',
    '{"timestamp": 1, "input_length": 1600, "output_length": 0, "hash_ids": [0, 1, 2, 3]}',
]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "two.jsonl"
    path.write_text("\n".join(ROWS) + "\n")
    return str(path)


COMMANDS = [
    "demo",
    "plan",
    "replay",
    "compare",
    "explain",
    "inspect",
    "verify",
    "probe",
    "metrics",
    "doctor",
]


def test_help_lists_the_commands_that_exist_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    assert caught.value.code == 0
    listed = re.findall(r"^    (\w+) ", capsys.readouterr().out, flags=re.MULTILINE)
    assert listed == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([command, "--help"])
    assert caught.value.code == 0
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [[], ["plan"], ["replay"], ["compare"], ["inspect"], ["verify"]])
def test_commands_that_are_missing_or_incomplete_exit_with_two(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--trace", "no/such/file"], "No such file"),
        (["--windows", "some"], "windows: expected all, ends"),
        (["--model", "gpt-7"], "model: expected one of"),
        (["--budget-gib", "1,x"], "budget_gib: expected numbers"),
        (["--budget-gib", "0"], "budget_gib: expected above 0"),
        (["--budget-gib", "nan"], "budget_gib: expected above 0"),
        (["--unit-tokens", "0"], "unit_tokens: expected at least 1"),
        (["--requests", "0"], "requests: expected at least 1"),
        (["--block-tokens", "16"], "two.jsonl:1: hash_ids: expected 64 ids"),
    ],
)
def test_refusals_name_what_was_expected(
    trace: str, argv: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", "--part", "traces", "--trace", trace, *argv]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("hybridkv demo: ")
    assert reason in printed.err


def test_demo_of_traces_prints_one_json_object(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["demo", "--part", "traces", "--trace", trace, "--trace", trace, "--json"]
    assert cli.main([*argv, "--budget-gib", "0.5,2", "--windows", "512"]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)["traces"]
    assert document["windows"] == "every 512 tokens"
    assert [trace["name"] for trace in document["traces"]] == ["two", "two"]
    budgets = [run["budget_bytes"] for run in document["traces"][0]["runs"]]
    assert budgets == [2**29, 2**31] * 2
    assert [run["hybrid"]["usable_tokens"] for run in document["traces"][0]["runs"]] == [1024] * 4
    assert printed.err == ""


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    there = extras._there
    monkeypatch.setattr(extras, "_there", lambda module: module.partition(".")[0] != "torch" and there(module))


@pytest.fixture
def no_clone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("hybridkv.replay.runs.DEMO_TRACES", ("gone.jsonl",))


@pytest.mark.usefixtures("no_clone")
def test_demo_of_traces_away_from_a_clone_asks_for_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--part", "traces"]) == 2
    printed = capsys.readouterr()
    assert "--trace PATH" in printed.err
    assert "No traces: " in printed.out


@pytest.mark.usefixtures("no_clone", "no_torch")
def test_demo_that_can_run_nothing_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo"]) == 2
    printed = capsys.readouterr().err
    assert "nothing could run" in printed
    assert "--trace PATH" in printed
    assert re.search(r"torch.* not installed: pip install '\.\[transformers", printed)


@pytest.mark.usefixtures("no_torch")
def test_demo_without_torch_names_the_extra_and_replays_the_traces(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", "--trace", trace, "--model", "gemma-3-4b"]) == 0
    printed = capsys.readouterr()
    assert re.search(r"^No models: torch.* not installed: pip install '\.\[transformers", printed.out, re.MULTILINE)
    assert "two: 2 requests, 2.6k prompt tokens" in printed.out
    assert printed.err == ""


@pytest.mark.usefixtures("no_torch")
def test_demo_prints_one_json_object_with_what_was_left_out(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--trace", trace, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "hybridkv.demo/1"
    assert [document[name] for name in ("models", "picture", "faults")] == [None] * 3
    assert document["traces"]["schema"] == "hybridkv.replay/1"
    assert [found["name"] for found in document["traces"]["traces"]] == ["two"]
    assert list(document["skipped"]) == ["models"]


@pytest.mark.parametrize("part", [["--part", "models"], ["--faults"]])
@pytest.mark.usefixtures("no_torch")
def test_demo_of_a_part_that_needs_torch_is_refused_without_it(
    part: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", *part]) == 2
    assert "pip install '.[transformers" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["--trace", "no/such/file"], ["--windows", "some"], ["--budget-gib", "x"]])
def test_demo_refuses_options_before_anything_runs(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ran(*args: object, **options: object) -> parts.Part:
        raise AssertionError("a part ran")

    monkeypatch.setattr(parts, "models_part", ran)
    assert cli.main(["demo", *argv]) == 2
    assert capsys.readouterr().out == ""


def test_demo_fails_where_a_part_found_what_must_not_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = parts.Part("a table", {"models": []}, failure="3 answers are not those of recomputation")
    monkeypatch.setattr(parts, "models_part", lambda picture, *, shown: bad)
    assert cli.main(["demo", "--part", "models"]) == 1
    printed = capsys.readouterr()
    assert "a table" in printed.out
    assert "3 answers are not those of recomputation" in printed.err


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], Path("hybridkv-boundaries.png")),
        (["--json"], None),
        (["--picture", "none"], None),
        (["--json", "--picture", "a.svg"], Path("a.svg")),
    ],
)
def test_demo_draws_where_it_is_asked_to(
    argv: list[str], expected: Path | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Path | None] = []

    def run(picture: Path | None, *, shown: bool) -> parts.Part:
        drawn.append(picture)
        return parts.Part("", {"models": []})

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(parts, "models_part", run)
    assert cli.main(["demo", "--part", "models", *argv]) == 0
    assert drawn == [expected]


def test_doctor_tells_the_versions(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert list(facts) == [
        "schema",
        "kind",
        "hybridkv",
        "key_profile",
        "format_schema",
        "record_version",
        "store_version",
        "cpu_features",
        "cuda",
        "python",
        "numpy",
        "platform",
        "torch",
        "gpu",
        "engines",
        "formats",
        "kernels",
    ]
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", facts["hybridkv"])
    assert min(facts[name] for name in ("key_profile", "format_schema", "record_version", "store_version")) >= 1
    assert facts["cpu_features"]["sha256"] in ("portable", "sha_ni")
    assert facts["cpu_features"]["crc32c"] in ("portable", "streams", "folded")
    assert facts["cpu_features"]["kernels"] in ("portable", "avx2", "avx512")
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert cli.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    told = [line.split()[0] for line in lines[: lines.index("")]]
    assert told == [
        "hybridkv",
        "key",
        "format",
        "record",
        "store",
        "cpu",
        "cuda",
        "python",
        "numpy",
        "platform",
        "torch",
        "gpu",
    ]
    assert lines[0].split() == ["hybridkv", facts["hybridkv"]]
    assert (facts["schema"], facts["kind"]) == (1, "host")
    assert facts["gpu"]["devices"] or facts["gpu"]["reason"]


@pytest.fixture
def written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """What ``doctor --json`` wrote."""
    assert cli.main(["doctor", "--json"]) == 0
    path = tmp_path / "host.json"
    path.write_text(capsys.readouterr().out)
    return path


def test_doctor_compares_two_hosts(written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--compare", str(written), str(written)]) == 0
    assert capsys.readouterr().out.startswith("no difference")
    other = tmp_path / "other.json"
    other.write_text(json.dumps(json.loads(written.read_text()) | {"key_profile": 9}))
    assert cli.main(["doctor", "--compare", str(written), str(other)]) == 1
    printed = capsys.readouterr()
    assert printed.err == "" and "lost hits: key_profile: 1 against 9" in printed.out
    assert cli.main(["doctor", "--compare", str(written), str(other), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["kind"], document["counts"]["lost hits"]) == (1, "comparison", 1)
    other.write_text(json.dumps(json.loads(written.read_text()) | {"python": "3.9"}))
    assert cli.main(["doctor", "--compare", str(written), str(other)]) == 0


def test_doctor_answers_the_checklist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = hk.HybridCache(hk.CacheSpec.homogeneous(layers=1, page_bytes=64), blocks=4)
    facts = tmp_path / "facts.json"
    facts.write_text(json.dumps(cache_facts(cache)))
    assert cli.main(["doctor", "--cache", str(facts), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["cache"]["kind"] == "cache"
    answers = {item["name"]: item["answer"] for item in document["readiness"]["items"]}
    assert (answers["verify"], answers["salt"], answers["counted"]) == ("yes", "no", "no")
    assert document["readiness"]["met"] == sum(answer == "yes" for answer in answers.values())
    assert cli.main(["doctor", "--readiness"]) == 0
    assert "questions cannot be answered" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--compare", "HOST", "none.json"], "none.json"),
        (["--compare", "CACHE", "HOST"], "kind"),
        (["--cache", "HOST"], "cache.kind"),
        (["--cache", "BAD"], "cache: expected one object of JSON"),
        (["--cache", "TYPE"], "cache.verify"),
        (["--compare", "HOST", "HOST", "--readiness"], "compare"),
    ],
)
def test_doctor_refuses_what_it_did_not_write(
    argv: list[str], named: str, written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {
        "BAD": "{",
        "CACHE": '{"schema": 1, "kind": "cache"}',
        "TYPE": '{"schema": 1, "kind": "cache", "verify": 7}',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    paths = {"HOST": str(written), **{name: str(tmp_path / name) for name in texts}}
    assert cli.main(["doctor", *(paths.get(argument, argument) for argument in argv)]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and named in printed.err and printed.err.startswith("hybridkv doctor: ")


def test_the_module_runs_and_importing_it_brings_no_extra() -> None:
    program = (
        "import sys, hybridkv.cli, hybridkv.demo.parts; "
        "print(sorted({'torch', 'transformers', 'matplotlib', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    done = subprocess.run([sys.executable, "-m", "hybridkv", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("hybridkv ")
