# SPDX-License-Identifier: Apache-2.0
"""``hybridkv plan``: what it reads, what it prints, what it refuses; loads counted in traces."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import hybridkv as hk
from hybridkv import cli
from hybridkv.planner import Fleet, Load, load_of_trace
from hybridkv.planner.quantities import byte_text, parse_count, parse_seconds, seconds_text
from hybridkv.replay.trace import Trace, load_trace

ROOT = Path(__file__).resolve().parents[2]
CONFIGS, TRACES = ROOT / "tests" / "data" / "configs", ROOT / "tests" / "data" / "traces"
FLASH = str(CONFIGS / "deepseek-v4-flash.json")
ASKED = [FLASH, "--memory", "80GiB", "--context", "32Ki"]


def run(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["plan", *argv]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


# -- what it prints ---------------------------------------------------------------------------------


def test_what_to_do_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    printed = run(
        [*ASKED, "--concurrency", "8", "--disk-capacity", "4TiB", "--hosts", "4", "--prefixes", "10000"], capsys
    )
    lines = printed.splitlines()
    assert lines[0].startswith(
        "DeepseekV4ForCausalLM: 80 GiB of memory for pages, 8 requests at a time of 32,768 tokens"
    )
    assert lines[3] == "What to do" and lines[4].startswith("  design       hybrid: ")
    assert all(len(line) <= 118 and line == line.rstrip() for line in lines)
    titles = [line for line in lines if line and not line.startswith((" ", "!"))]
    for title in (
        "Bytes by state",
        "The two designs",
        "Pools",
        "Units",
        "States of kept",
        "Restore",
        "Hot",
        "By length",
        "Fleet",
    ):
        assert sum(line.startswith(title) for line in titles) == 1, title
    assert re.search(r"^  swa +WINDOW +window 128 +43 +- +3\.07 MiB ", printed, re.MULTILINE)


def test_a_homogeneous_model_gets_no_table_of_two(capsys: pytest.CaptureFixture[str]) -> None:
    printed = run([str(CONFIGS / "llama-3.1-8b.json"), "--memory", "80GiB", "--context", "8192"], capsys)
    assert "design       homogeneous: " in printed
    assert "The two designs" not in printed and "States of kept" not in printed and "Fleet" not in printed


def test_what_cannot_be_had_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    printed = run([FLASH, "--memory", "1GiB", "--context", "1Mi", "--concurrency", "4"], capsys)
    assert re.search(
        r"^! admission +0 requests, not 4: 4 of 1,048,576 tokens need 15\.\d GiB, memory is", printed, re.M
    )
    assert "Pools" not in printed


def test_json_is_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(run([*ASKED, "--concurrency", "3", "--json"], capsys))
    assert document["schema"] == "hybridkv.plan/1"
    assert document["question"]["load"]["concurrency"] == 3
    assert document["hybrid"]["sizes"]["bytes_per_token"] == 3850.25
    again = hk_answer(document["question"]["memory_bytes"], Load(32_768, 3))
    assert document == again


def hk_answer(memory: int, load: Load) -> dict[str, Any]:
    from hybridkv.planner import plan

    document = plan(FLASH, memory, load).to_dict()
    assert isinstance(document, dict)
    return document


def test_every_option_arrives(capsys: pytest.CaptureFixture[str]) -> None:
    said = (
        "--concurrency 2 --step 4096 --prefix 16Ki --ends 0 --reused 0.25 --elsewhere 0.5 --requests-per-second 1.5 "
        "--unit-tokens 512 --dtype bfloat16 --rate 1000 --hosts 2 --prefixes 1k --unrouted "
        "--host-capacity 64GiB --host-read 40GB --host-write 30GB --host-latency 1us "
        "--disk-capacity 2TB --disk-read 5GB --disk-write 1GB --disk-latency 0.1ms --json"
    )
    asked = json.loads(run([*ASKED, *said.split()], capsys))["question"]
    assert asked["load"] == {
        "context_tokens": 32_768,
        "concurrency": 2,
        "step_tokens": 4096,
        "prefix_tokens": 16_384,
        "ends": 0,
        "reused_share": 0.25,
        "elsewhere_share": 0.5,
        "requests_per_second": 1.5,
        "prefixes": None,
    }
    assert asked["fleet"] == {"hosts": 2, "prefixes": 1000, "routed": False}
    assert asked["tokens_per_second"] == 1000
    assert [place["name"] for place in asked["places"]] == ["host", "disk"]
    assert asked["places"][1]["read"] == {"bytes_per_second": 5e9, "latency_s": 1e-4}
    assert asked["places"][1]["write_bytes_per_second"] == 1e9 and asked["places"][1]["capacity_bytes"] == 2 * 10**12
    assert (asked["places"][0]["unit_bytes"], asked["places"][1]["unit_bytes"]) == (1, 4096)


def test_rows_of_a_named_format(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(run([*ASKED, "--rows", "indexer=indexer_mxfp4", "--json"], capsys))
    assert document["hybrid"]["sizes"]["bytes_per_token"] == 3514.25


@pytest.mark.parametrize(
    ("argv", "field"),
    [
        ([FLASH, "--memory", "0", "--context", "8192"], "memory: "),
        ([FLASH, "--memory", "-5", "--context", "8192"], "memory: "),
        ([FLASH, "--memory", "much", "--context", "8192"], "memory: "),
        ([FLASH, "--memory", "1e400", "--context", "8192"], "memory: "),
        ([FLASH, "--memory", "80GiB"], "context: "),
        ([FLASH, "--memory", "80GiB", "--context", "2Mi"], "context_tokens: expected at most 1048576, the model's"),
        ([*ASKED, "--context", "-1"], "context: "),
        ([*ASKED, "--context", "8192.5"], "context: "),
        ([*ASKED, "--concurrency", "0"], "concurrency: "),
        ([*ASKED, "--prefix", "64Ki"], "prefix_tokens: expected at most the context"),
        ([*ASKED, "--ends", "-1"], "ends: "),
        ([*ASKED, "--reused", "1.5"], "reused: expected a share, 0 to 1"),
        ([*ASKED, "--reused", "half"], "reused: expected a share, 0 to 1"),
        ([*ASKED, "--elsewhere", "nan"], "elsewhere: "),
        ([*ASKED, "--requests-per-second", "0"], "requests_per_second: "),
        ([*ASKED, "--rate", "fast"], "rate: "),
        ([*ASKED, "--unit-tokens", "0"], "unit_tokens: "),
        ([*ASKED, "--unit-tokens", "48"], "groups['hca'].tokens_per_row: "),
        ([*ASKED, "--dtype", "int3"], "dtype: "),
        ([*ASKED, "--rows", "indexer"], "rows: expected GROUP=FORMAT"),
        ([*ASKED, "--rows", "indexer=int3"], "rows: expected one of"),
        ([*ASKED, "--rows", "kv=indexer_fp8"], "group: "),
        ([*ASKED, "--hosts", "0"], "hosts: "),
        ([*ASKED, "--prefixes", "1.5"], "prefixes: "),
        ([*ASKED, "--disk-read", "3GB"], "disk_capacity: "),
        ([*ASKED, "--disk-capacity", "0"], "disk_capacity: "),
        ([*ASKED, "--disk-capacity", "1TB", "--disk-latency", "soon"], "disk_latency: "),
        ([*ASKED, "--trace", "no/such/file"], "trace: "),
        (["no/such/config.json", "--memory", "80GiB", "--context", "8192"], "config: "),
        ([str(TRACES / "README.md"), "--memory", "80GiB", "--context", "8192"], "config: "),
    ],
)
def test_refusals_name_the_field_and_exit_with_two(
    argv: list[str], field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", *argv]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"hybridkv plan: {field}") and printed.out == ""


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"model_type": "gpt9"}, "model_type"),
        ({}, "model_type"),
        ({"model_type": "llama", "num_hidden_layers": -1}, "num_hidden_layers"),
        ({"max_position_embeddings": "long"}, "max_position_embeddings"),
    ],
)
def test_models_that_are_not_known_are_refused(
    config: dict[str, object], field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = json.loads((CONFIGS / "llama-3.1-8b.json").read_text(encoding="utf-8"))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config if "model_type" in config or not config else {**whole, **config}))
    assert cli.main(["plan", str(tmp_path), "--memory", "8GiB", "--context", "64"]) == 2
    assert f"hybridkv plan: {field}: " in capsys.readouterr().err


def test_two_configurations_of_one_layout_have_one_plan(tmp_path: Path) -> None:
    """Layers by their types or by ratios: the bytes are those of the layout."""
    from hybridkv.planner import plan

    legacy = json.loads(Path(FLASH).read_text(encoding="utf-8"))
    names = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    modern = {**legacy, "compress_rates": {names[4]: 4, names[128]: 128}}
    ratios = modern.pop("compress_ratios")
    modern["layer_types"] = [names[ratio] for ratio in ratios[: modern["num_hidden_layers"]]]
    assert plan(legacy, 80 << 30, Load(8192)).to_dict() == plan(modern, 80 << 30, Load(8192)).to_dict()


# -- loads ------------------------------------------------------------------------------------------


def trace_of(rows: list[tuple[float, int, int, list[int]]], tmp_path: Path, block: int = 16) -> Trace:
    path = tmp_path / "t.jsonl"
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    path.write_text("".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows))
    return load_trace(path, block_tokens=block)


def test_a_trace_is_counted(tmp_path: Path) -> None:
    rows: list[tuple[float, int, int, list[int]]] = [
        (0, 64, 16, [0, 1, 2, 3]),
        (500, 64, 10, [0, 1, 9, 10]),  # two blocks of the first: no end of it
        (2000, 96, 10, [0, 1, 2, 3, 4, 5]),  # the first goes on: its answer was named
    ]
    load, facts = load_of_trace(
        trace_of(rows, tmp_path), tokens_per_second=64.0, answer_tokens_per_second=16.0, step_tokens=32
    )
    assert (facts.requests, facts.longest_tokens, facts.mean_tokens, facts.seconds) == (3, 106, 87, 2.0)
    assert facts.in_flight == 2  # two of 2.0 and 1.6 s; the third comes as the first ends
    assert (facts.chains, facts.distinct_tokens, facts.ends) == (2, 8 * 16, 4)
    assert (facts.reused_tokens, facts.prompt_tokens) == (32 + 64, 224)
    assert (facts.hits, facts.hits_elsewhere) == (2, 1)
    assert load.context_tokens == 106 and load.concurrency == 2 and load.step_tokens == 32
    assert (load.prefixes, load.prefix_tokens, load.ends) == (2, 87, 2)
    assert load.reused_share == 96 / 224 and load.elsewhere_share == 0.5 and load.requests_per_second == 1.5


def test_a_trace_in_seconds_is_slower(tmp_path: Path) -> None:
    rows: list[tuple[float, int, int, list[int]]] = [(n, 16, 50, [n]) for n in range(10)]
    trace = trace_of(rows, tmp_path)
    assert load_of_trace(trace)[1].in_flight == 10  # all within 10 ms
    assert load_of_trace(trace, tick_s=1.0)[1].in_flight == 2  # 1.0008 s each, one a second
    assert load_of_trace(trace, tick_s=1.0, concurrency=7)[0].concurrency == 7


def test_a_trace_without_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(hk.ArgumentError) as refused:
        load_of_trace(trace_of([(0, 0, 0, [])], tmp_path))
    assert refused.value.field == "trace"


@pytest.mark.parametrize("name", ["mooncake_conversation", "agent_miniswe_blk16", "agent_magagent_blk16"])
def test_real_traces_give_what_an_infinite_cache_would_reuse(name: str) -> None:
    trace = load_trace(TRACES / f"{name}.jsonl")
    load, facts = load_of_trace(trace)
    ids = [block for request in trace.requests for block in request.block_ids.tolist()]
    share = 1 - len(set(ids)) / len(ids)  # by references to blocks
    assert abs(load.reused_share - share) < 0.02
    assert load.prefixes is not None
    assert 0 <= load.prefixes * load.kept_tokens - facts.distinct_tokens < load.kept_tokens
    assert load.prefixes * load.ends >= facts.ends > 0


def test_what_is_said_beside_a_trace_stands_over_it(capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(TRACES / "agent_miniswe_blk16.jsonl")
    argv = [FLASH, "--memory", "40GiB", "--trace", trace, "--json"]
    counted = json.loads(run(argv, capsys))["question"]
    said = json.loads(run([*argv, "--concurrency", "3", "--reused", "0.5", "--context", "100000"], capsys))["question"]
    assert counted["trace"] == said["trace"] and counted["load"]["concurrency"] == counted["trace"]["in_flight"]
    changed = {"context_tokens": 100_000, "concurrency": 3, "reused_share": 0.5}
    assert said["load"] == {**counted["load"], **changed}
    assert cli.main(["plan", *argv, "--context", "1000"]) == 2
    assert "context: expected at least" in capsys.readouterr().err
    assert "counted in agent_miniswe_blk16: 135 requests" in run(argv[:-1], capsys)


def test_bad_lines_of_a_trace_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.jsonl"
    good = '{"timestamp": 0, "input_length": 16, "output_length": 0, "hash_ids": [0]}\n'
    path.write_text(good + good.replace('"timestamp": 0', '"timestamp": -1'))
    assert cli.main(["plan", FLASH, "--memory", "1GiB", "--trace", str(path)]) == 2
    assert "bad.jsonl:2: timestamp" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Load(0), "context_tokens"),
        (lambda: Load(64, concurrency=0), "concurrency"),
        (lambda: Load(64, step_tokens=0), "step_tokens"),
        (lambda: Load(64, prefix_tokens=65), "prefix_tokens"),
        (lambda: Load(64, prefix_tokens=0), "prefix_tokens"),
        (lambda: Load(64, ends=-1), "ends"),
        (lambda: Load(64, reused_share=-0.1), "reused_share"),
        (lambda: Load(64, elsewhere_share="x"), "elsewhere_share"),  # type: ignore[arg-type]
        (lambda: Load(64, requests_per_second=0), "requests_per_second"),
        (lambda: Load(64, prefixes=0), "prefixes"),
        (lambda: Load(True), "context_tokens"),
        (lambda: Fleet(0), "hosts"),
        (lambda: Fleet(1, 0), "prefixes"),
        (lambda: Fleet(1, routed="yes"), "routed"),  # type: ignore[arg-type]
    ],
)
def test_a_bad_load_is_named(make: Any, field: str) -> None:
    with pytest.raises(hk.ArgumentError) as refused:
        make()
    assert refused.value.field == field


# -- numbers ----------------------------------------------------------------------------------------


def test_numbers_as_people_write_them() -> None:
    written = {"131072": 131_072, "128Ki": 131_072, "128k": 128_000, "1M": 10**6, "1.5Ki": 1536, " 2Mi ": 2**21}
    assert {text: parse_count("x", text) for text in written} == written
    sizes = {"80GiB": 80 << 30, "3GB": 3 * 10**9, "4 TiB": 4 << 40, "1.5TB": 15 * 10**11, "4096": 4096, "64KB": 64_000}
    assert {text: parse_count("x", text, of_bytes=True) for text in sizes} == sizes
    for text in ("", "0", "-1", "1.5", "1e3", "3GB", "x", "1i", "99999999Pi", "0.0001Ki"):
        with pytest.raises(hk.ArgumentError):
            parse_count("x", text)
    assert [parse_seconds("x", text) for text in ("0", "0.5", "1ms", "100us", "2 s")] == [0, 0.5, 1e-3, 1e-4, 2]
    for text in ("-1", "1h", "", "nan"):
        with pytest.raises(hk.ArgumentError):
            parse_seconds("x", text)
    assert [byte_text(n) for n in (0, 999, 1024, 3_644_416, 99.9 * 2**30, 5 << 50)] == [
        "0 B", "999 B", "1 KiB", "3.48 MiB", "99.9 GiB", "5 PiB"
    ]  # fmt: skip
    assert [seconds_text(s) for s in (None, 0.0, 2.5e-7, 1.21e-3, 0.275, 52.4, 1234.0)] == [
        "-", "0 us", "0.25 us", "1.21 ms", "275 ms", "52.4 s", "1,234 s"
    ]  # fmt: skip


# -- the document -----------------------------------------------------------------------------------


def test_the_output_of_the_document_is_real(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each ``hybridkv plan`` of docs/planning.md prints what stands below it; '...' stands for lines left out."""
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs" / "planning.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(hybridkv plan .*?)```\n+```text\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 3
    for command, told in blocks:
        printed = run(shlex.split(command.replace("\\\n", " "))[2:], capsys)
        for part in told.split("...\n"):
            assert part in printed, f"{command}\n{printed}"
