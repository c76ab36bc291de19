# SPDX-License-Identifier: Apache-2.0
"""Files that others may have put there: none is waited for, none is read beyond a bound, none breaks a command.

Each was found by a fuzz run (tests/fuzz), or by what one was written for.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import hybridkv as hk
from doctor_support import host
from hybridkv import cli, digests
from hybridkv.formats import Manifest
from hybridkv.formats.manifest_file import read_manifests
from hybridkv.regular_file import open_regular, read_regular
from hybridkv.replay import trace


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """A pipe into which nobody writes: who opens it to read waits for ever, or as long as `not_waited_for` lets it."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


@contextmanager
def not_waited_for() -> Iterator[None]:
    """Interrupt what waits."""

    def give_up(number: int, frame: object) -> None:
        raise AssertionError("a pipe was waited for")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(30)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_a_regular_file_is_opened_and_nothing_else(tmp_path: Path, pipe: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_bytes(b"1234")
    link.symlink_to(file)
    assert read_regular(file, 4) == read_regular(link, 4) == b"1234"
    for path in (pipe, tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"), not_waited_for():
            open_regular(path)
    with pytest.raises(OSError, match="symbolic links"):
        open_regular(link, follow=False)
    with pytest.raises(OSError, match="more than 3 bytes"):
        read_regular(file, 3)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "gone")
    with pytest.raises(ValueError, match="null"):
        open_regular("a\0b")


def test_a_pipe_is_no_configuration_and_no_manifests(pipe: Path) -> None:
    with pytest.raises(hk.ArgumentError, match="not a regular file"), not_waited_for():
        hk.CacheSpec.from_config(pipe, unit_tokens=16)
    with pytest.raises(hk.ArgumentError, match="not a regular file"), not_waited_for():
        digests.rope_settings(pipe)
    with pytest.raises(hk.TierError, match="not a regular file"), not_waited_for():
        read_manifests(pipe)


def test_a_file_of_manifests_is_no_link(tmp_path: Path) -> None:
    """A link would be read where it leads and then replaced, and what is there be told in the refusal."""
    ours, link = tmp_path / "ours", tmp_path / "link"
    manifest = Manifest.of(hk.CacheSpec.homogeneous(2, 64))
    ours.write_bytes(manifest.to_bytes() + b"\n")
    link.symlink_to(ours)
    assert read_manifests(ours) == (manifest,)
    with hk.MemoryTier(1 << 20) as tier:
        for path in (link, tmp_path):
            with pytest.raises(hk.TierError, match="manifests: expected a file"):
                tier.keep_manifests(path)
        with pytest.raises(hk.ArgumentError, match="path"):
            tier.keep_manifests(tmp_path / "a\0b")
        assert tier.manifests == ()
    assert link.is_symlink()


def test_a_configuration_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}" + " " * 100)
    monkeypatch.setattr("hybridkv.spec.MOST_CONFIG_BYTES", 100)
    with pytest.raises(hk.ArgumentError, match="more than 100 bytes"):
        hk.CacheSpec.from_config(path, unit_tokens=16)


def test_a_line_of_a_trace_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.jsonl"
    row = json.dumps({"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]})
    path.write_text(f"{row}\n{row}")  # the last line ends with the file
    assert len(trace.load_trace(path, block_tokens=512).requests) == 2
    monkeypatch.setattr(trace, "MOST_LINE", len(row) + 1)
    assert len(trace.load_trace(path, block_tokens=512).requests) == 2
    monkeypatch.setattr(trace, "MOST_LINE", len(row))
    with pytest.raises(hk.ArgumentError, match=f"t.jsonl:1: expected a line of at most {len(row)} characters"):
        trace.load_trace(path, block_tokens=512)


def test_a_row_format_that_nests_without_end_is_refused() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from hybridkv.adapters.torch_ops.arguments import row_format_of

    for text in ("[" * 20_000, '{"parts": ' + "[" * 20_000):
        with pytest.raises(hk.KernelContract, match="row_format"):
            row_format_of(text)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "model.safetensors.index.json"])
def test_a_pipe_in_a_checkpoint_is_not_waited_for(name: str, tmp_path: Path, pipe: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    checkpoint_digest = _checkpoint(folder)
    assert not checkpoint_digest(folder).startswith("unreadable-")
    (folder / name).unlink(missing_ok=True)
    pipe.rename(folder / name)
    with not_waited_for():
        assert checkpoint_digest(folder).startswith("unreadable-")


@pytest.mark.parametrize("offset", ["Infinity", "-Infinity", "NaN", "1e999", "null", "[]"])
def test_an_offset_that_is_no_number_makes_a_checkpoint_unreadable(offset: str, tmp_path: Path) -> None:
    checkpoint_digest = _checkpoint(tmp_path, end=offset)
    assert checkpoint_digest(tmp_path).startswith("unreadable-")


def _checkpoint(folder: Path, end: str = "4") -> Callable[[Path], str]:
    pytest.importorskip("transformers")
    from hybridkv.adapters.transformers.weights import checkpoint_digest

    header = f'{{"a": {{"dtype": "U8", "shape": [4], "data_offsets": [0, {end}]}}}}'.encode()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"1234")
    return checkpoint_digest


def test_half_a_surrogate_pair_of_a_document_is_printed_as_an_escape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = host(monkeypatch)
    for name, version in (("ours", "3.12"), ("theirs", "\ud800")):
        (tmp_path / name).write_text(json.dumps({**facts, "python": version}))
    told = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", told)
    assert cli.main(["doctor", "--compare", str(tmp_path / "ours"), str(tmp_path / "theirs")]) == 0
    assert told.errors == "strict"
    told.seek(0)
    assert "cosmetic: python: 3.12 against \\ud800" in told.read()
