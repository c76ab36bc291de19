# SPDX-License-Identifier: Apache-2.0
"""``hybridkv explain``: what a store has of a prompt, what a configuration can never do, and what is refused."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from hybridkv import cli
from hybridkv.explain.stored import explain_store
from hybridkv.tiers import RecordKind, Store

ROOT = Path(__file__).resolve().parents[2]
CONFIG = str(ROOT / "tests" / "data" / "configs" / "gemma-3-12b-it.json")
UNIT = 16


def _spec(dtype_bytes: int = 64) -> hk.CacheSpec:
    kv = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=dtype_bytes)
    swa = hk.CacheGroup("swa", hk.StateKind.WINDOW, hk.Window(17), page_bytes=64)
    return hk.CacheSpec(UNIT, [kv, swa], identity=hk.Identity("m"))


def _bound(spec: hk.CacheSpec, tier: hk.Tier) -> hk.HybridCache:
    cache = hk.HybridCache(spec, blocks=64, tier=tier)
    for group in spec.groups:
        cache.bind(group.name, np.zeros((64, group.page_bytes), np.uint8))
    return cache


def _stored(path: Path, spec: hk.CacheSpec, keys: hk.BlockKeys, *more: hk.BlockKeys) -> None:
    with hk.DiskTier(path, 8 << 20, region_bytes=1 << 20) as tier:
        cache = _bound(spec, tier)
        for each in (keys, *more):
            cache.insert(each)
            assert cache.offload(each).result(30)
        cache.flush()
        cache.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with 96 tokens of a prompt, states at 96 and at a tip of 37."""
    path = tmp_path_factory.mktemp("store")
    spec = _spec()
    _stored(path, spec, _keys(96, spec), _keys(37, spec))
    return path


def _keys(tokens: int, spec: hk.CacheSpec) -> hk.BlockKeys:
    return hk.block_keys(range(tokens), UNIT, identity=spec.identity)


def _content(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_a_store_answers_as_a_cache_over_it_would(store: Path) -> None:
    spec, before = _spec(), _content(store)
    for tokens in (20, 37, 38, 60, 96, 97, 130):
        keys = _keys(tokens, spec)
        answer = explain_store(store, spec, keys)
        with hk.DiskTier(store, 8 << 20, region_bytes=1 << 20) as tier:
            cache = _bound(spec, tier)
            plan = cache.match(keys).plan
            cache.close()
        assert answer.found.restore_tokens == plan.restore_tokens, tokens
    assert explain_store(store, spec, _keys(97, spec)).found.restore_tokens == 96
    assert {name: data for name, data in _content(store).items() if name in before}.keys() == before.keys()


def test_looking_changes_no_byte(store: Path) -> None:
    before = _content(store)
    explain_store(store, _spec(), _keys(97, _spec()))
    assert _content(store) == before


def test_what_another_spec_or_identity_wrote_is_counted_apart(store: Path) -> None:
    spec = _spec()
    other = explain_store(store, _spec(128), _keys(97, spec))
    assert (other.records, other.found.restore_tokens) == (0, 0) and other.other_formats > 5
    assert "of another format" in str(other)
    stranger = hk.CacheSpec(UNIT, spec.groups, identity=hk.Identity("n"))
    answer = explain_store(store, stranger, _keys(97, stranger))
    assert (answer.records, answer.other_formats) == (0, 0) and answer.other_identities > 5
    assert "another identity" in str(answer)
    json.dumps(answer.to_json())


def test_a_missing_state_is_named(store: Path, tmp_path: Path) -> None:
    """The boundary record at 96 is not there: history alone leads to no length."""
    spec = _spec()
    keys = _keys(97, spec)
    with Store(store) as opened:
        kinds = [record.key.kind for region in opened.regions() for record in region.records]
    assert kinds.count(RecordKind.BLOCK) >= 6
    path = tmp_path / "other"
    path.mkdir()
    with hk.DiskTier(path, 8 << 20, region_bytes=1 << 20) as tier:
        cache = _bound(spec, tier)
        cache.insert(keys[:6], {"kv": True, "swa": [0, 1]})
        cache.offload(keys[:6]).result(30)
        cache.flush()
        cache.close()
    answer = explain_store(path, spec, keys)
    last = answer.found.boundaries[-1]
    assert answer.found.restore_tokens < 96 and not last.usable and "swa" in last.groups


def test_a_record_that_was_removed_is_not_there(store: Path) -> None:
    spec = _spec()
    keys = _keys(97, spec)
    last = explain_store(store, spec, keys)
    with Store(store) as opened:
        keys_of = [r.key for region in opened.regions() for r in region.records if r.standing == "live"]
    boundary = next(k for k in keys_of if k.kind is RecordKind.BOUNDARY and k.digest == keys.digests[5].tobytes())
    with hk.DiskTier(store, 8 << 20, region_bytes=1 << 20) as tier:
        tier.remove([boundary])
        tier.drain(30)
        tier.flush()
        tier.drain(30)
    after = explain_store(store, spec, keys)
    assert after.records == last.records - 1 and after.found.restore_tokens < 96


# -- the command ------------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> tuple[int, str, str]:
    code = cli.main(["explain", *map(str, argv)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An empty store, and the ids of a prompt."""
    path = tmp_path_factory.mktemp("gemma")
    with hk.DiskTier(path, 4 << 20, region_bytes=1 << 20):
        pass
    ids = tmp_path_factory.mktemp("ids") / "prompt.json"
    ids.write_text(json.dumps(list(range(2000))))
    return path, ids


def test_static_checks_of_a_config(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--config", CONFIG, "--prompt", "200", "--prompt", "4Ki")
    assert code == 0 and out.startswith("This configuration cannot hit below 256 tokens")
    assert "1 of 2 prompt lengths" in out
    code, out, _ = run(capsys, "--config", CONFIG, "--memory", "8GiB", "--context", "8Ki", "--json")
    document = json.loads(out)
    assert document["least_tokens"] == 256 and all(group["pages"] > 0 for group in document["groups"])
    code, out, _ = run(capsys, "--config", CONFIG, "--every", "4Ki", "--prompt", "3000", "--step", "1Ki")
    assert "CheckpointPolicy(every=256)" in out


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--config", "/nowhere"], "config"),
        (["--config", CONFIG, "--tokens", "x"], "tokens"),
        (["--config", CONFIG, "--picture", "x.png"], "picture"),
        (["/nowhere", "--config", CONFIG], "tokens"),
        (["/nowhere", "--config", CONFIG, "--tokens", "/nowhere/ids"], "tokens"),
        (["--config", CONFIG, "--memory", "1GiB"], "context"),
        (["--config", CONFIG, "--context", "1Ki"], "memory"),
        (["--config", CONFIG, "--prompt", "-1"], "prompt"),
        (["--config", CONFIG, "--salt-hex", "xyz"], "salt_hex"),
        (["--config", CONFIG, "--unit-tokens", "0"], "unit_tokens"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused_by_name(argv: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "") and named in err


@pytest.mark.parametrize(
    "text", ["", "[]", "1 2 x", '{"a": 1}', "[1, true]", "[1, -2]", "[1.5]", "4294967296", "[" * 9999]
)
def test_files_of_tokens_that_are_none(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = tmp_path / "ids"
    ids.write_text(text)
    code, out, err = run(capsys, tmp_path, "--config", CONFIG, "--tokens", ids)
    assert (code, out) == (2, "") and "tokens" in err and len(err) < 1000


def test_a_store_by_the_command(gemma: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, ids = gemma
    argv: list[str | Path] = [path, "--config", CONFIG, "--tokens", ids, "--model", "gemma"]
    code, out, _ = run(capsys, *argv)
    assert code == 0 and out.startswith("0 records of this prompt are in the store.") and "lengths" in out
    code, out, _ = run(capsys, *argv, "--json")
    document: dict[str, Any] = json.loads(out)
    assert (document["records"], document["found"]["tokens"]) == (0, 2000)
    pytest.importorskip("matplotlib")
    code, _, err = run(capsys, *argv, "--picture", tmp_path / "x.docx")
    assert code == 2 and "picture" in err
    assert run(capsys, *argv, "--picture", tmp_path / "x.png")[0] == 0
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_the_output_of_the_document_is_real(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each ``hybridkv explain`` of docs/explaining.md prints what stands below it."""
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs" / "explaining.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\nhybridkv explain ([^`]*)```\n+```text\n([^`]*)```", text)
    assert blocks
    for command, told in blocks:
        _, printed, _ = run(capsys, *shlex.split(command.replace("\\\n", " ")))
        assert told == printed, command
