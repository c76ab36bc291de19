# SPDX-License-Identifier: Apache-2.0
"""Digests from files: what they depend on, what they do not, and what is refused."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from hybridkv import digests
from hybridkv.checkpoint_files import tokenizer_files

Tensors = Mapping[str, tuple[str, list[int], bytes]]

ONE: Tensors = {"a": ("F32", [2, 2], bytes(range(16))), "b": ("BF16", [3], b"012345"), "empty": ("F32", [0], b"")}


def write(path: Path, tensors: Tensors, **metadata: str) -> Path:
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at, data = 0, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(content)]}
        at, data = at + len(content), data + content
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
    return path


def raw(path: Path, header: object, data: bytes = b"", *, length: int | None = None) -> Path:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(encoded) if length is None else length).to_bytes(8, "little") + encoded + data)
    return path


def test_content_decides_and_not_how_it_is_spread(tmp_path: Path) -> None:
    whole = write(tmp_path / "model.safetensors", ONE)
    digest = digests.weights_digest(whole)
    assert len(digest) == 32
    assert digests.weights_digest(tmp_path) == digests.weights_digest(str(whole)) == digest
    parts = tmp_path / "parts"
    parts.mkdir()
    first = write(parts / "x-1.safetensors", {"b": ONE["b"], "empty": ONE["empty"]}, format="pt")
    second = write(parts / "x-2.safetensors", {"a": ONE["a"]})
    assert digests.weights_digest([second, first]) == digest
    index = {"weight_map": {"a": second.name, "b": first.name, "empty": first.name}}
    (parts / "model.safetensors.index.json").write_text(json.dumps(index))
    write(parts / "unused.safetensors", {"z": ("U8", [1], b"z")})
    assert digests.weights_digest(parts) == digest


def test_every_change_of_a_tensor_is_seen(tmp_path: Path) -> None:
    a, b = ONE["a"], ONE["b"]
    others: list[Tensors] = [
        {**ONE, "a": ("F32", [2, 2], bytes(range(1, 17)))},
        {**ONE, "a": ("I32", a[1], a[2])},
        {**ONE, "a": ("F32", [4], a[2])},
        {"A": a, "b": b, "empty": ONE["empty"]},
        {"a": a, "b": b},
        {"a": ("F32", [2, 2], bytes(range(15)) + b"\x10"), "b": b, "empty": ONE["empty"]},
        {"a": ("BF16", [3], b[2]), "b": ("F32", [2, 2], a[2]), "empty": ONE["empty"]},
    ]
    seen = {digests.weights_digest(write(tmp_path / f"{n}.safetensors", one)) for n, one in enumerate([ONE, *others])}
    assert len(seen) == 1 + len(others)


def test_a_large_tensor_is_streamed(tmp_path: Path) -> None:
    content = bytes(range(256)) * 8192 * 2  # 4 MiB: several chunks
    one = write(tmp_path / "1.safetensors", {"w": ("U8", [len(content)], content)})
    two = write(tmp_path / "2.safetensors", {"w": ("U8", [len(content)], content[:-1] + b"x")})
    assert digests.weights_digest(one) != digests.weights_digest(two)


ENTRY = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("header", "data", "length"),
    [
        (b"", b"", None),
        (b"{", b"", None),
        (b"[]", b"", None),
        (b"7 ", b"", None),
        (b"{}", b"", 2**63),
        (b"{}", b"", 3),
        (b"[" * 100_000, b"", None),
        ({"w": ENTRY}, b"123", None),
        ({"w": ENTRY}, b"12345", None),
        ({"w": {**ENTRY, "data_offsets": [1, 4]}}, b"1234", None),
        ({"w": {**ENTRY, "data_offsets": [4, 0]}}, b"1234", None),
        ({"w": {**ENTRY, "data_offsets": [-1, 4]}}, b"1234", None),
        ({"w": {**ENTRY, "data_offsets": [0, 2**64]}}, b"1234", None),
        ({"w": {**ENTRY, "data_offsets": [0, True]}}, b"1", None),
        ({"w": {**ENTRY, "data_offsets": 4}}, b"1234", None),
        ({"w": {**ENTRY, "dtype": 7}}, b"1234", None),
        ({"w": {**ENTRY, "shape": [1.5]}}, b"1234", None),
        ({"w": {**ENTRY, "shape": "4"}}, b"1234", None),
        ({"w": 7}, b"1234", None),
        ({"w": ENTRY, "v": ENTRY}, b"1234", None),
        (b'{"w": %s, "w": %s}' % ((json.dumps(ENTRY).encode(),) * 2), b"1234", None),
        ({"w": {**ENTRY, "shape": [3]}}, b"1234", None),
        ({"w": {**ENTRY, "shape": [5]}}, b"1234", None),
        ({"w": {**ENTRY, "dtype": "F32"}}, b"1234", None),
        ({"w": {**ENTRY, "dtype": "F4"}}, b"1234", None),
        ({"w": {**ENTRY, "dtype": "F99"}}, b"1234", None),
        ({"w": {**ENTRY, "shape": [2**61] * 9}}, b"1234", None),
        ({"w": {**ENTRY, "shape": [0]}}, b"1234", None),
        ({"\ud800": ENTRY}, b"1234", None),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, header: object, data: bytes, length: int | None) -> None:
    file = raw(tmp_path / "x.safetensors", header, data, length=length)
    with pytest.raises(hk.ArgumentError) as refused:
        digests.weights_digest(file)
    assert refused.value.field == "path"
    assert "x.safetensors" in str(refused.value)


def test_files_that_are_not_there_or_are_no_files_are_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.safetensors"
    os.mkfifo(pipe)
    for path in (tmp_path / "gone", tmp_path, pipe, "", "a\0b", [], 7, [tmp_path / "gone"]):
        with pytest.raises(hk.ArgumentError):
            digests.weights_digest(path)  # type: ignore[arg-type]
    one = write(tmp_path / "1.safetensors", ONE)
    with pytest.raises(hk.ArgumentError, match="in two files"):
        digests.weights_digest([one, one])


@pytest.mark.parametrize("name", ["../out.safetensors", "/etc/passwd", "a/b", "..", "", "a\\b", 7, "gone.safetensors"])
def test_an_index_does_not_lead_out_of_its_folder(tmp_path: Path, name: object) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write(tmp_path / "out.safetensors", ONE)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(hk.ArgumentError):
        digests.weights_digest(folder)
    for content in ("7", "{}", '{"weight_map": []}', '{"weight_map": {}}', "{"):
        (folder / "model.safetensors.index.json").write_text(content)
        with pytest.raises(hk.ArgumentError):
            digests.weights_digest(folder)


def test_shapes_that_fit_are_taken(tmp_path: Path) -> None:
    tensors: Tensors = {
        "four bits": ("F4", [3, 4], b"123456"),
        "one": ("F64", [], b"12345678"),
        "none": ("U8", [2**50, 0], b""),
    }
    assert len(digests.weights_digest(write(tmp_path / "x.safetensors", tensors))) == 32


def test_a_shard_without_its_fellows_is_no_checkpoint(tmp_path: Path) -> None:
    first = write(tmp_path / "model-00001-of-00002.safetensors", {"a": ONE["a"]})
    with pytest.raises(hk.ArgumentError, match="shards 1 to 2 of 'model'"):
        digests.weights_digest(tmp_path)
    write(tmp_path / "model-00002-of-00002.safetensors", {"b": ONE["b"]})
    whole = digests.weights_digest(tmp_path)
    write(tmp_path / "model-00003-of-00002.safetensors", {"c": ONE["b"]})
    with pytest.raises(hk.ArgumentError, match="and 3 is missing or one too many"):
        digests.weights_digest(tmp_path)
    (tmp_path / "model-00003-of-00002.safetensors").unlink()
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": first.name}}))
    with pytest.raises(hk.ArgumentError, match="shards 1 to 2"):
        digests.weights_digest(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": first.name, "b": "model-00002-of-00002.safetensors"}}))
    assert digests.weights_digest(tmp_path) == whole
    write(tmp_path / "model-9-of-2-00000-of-99999.safetensors", {"d": ONE["b"]})  # the index does not name it
    assert digests.weights_digest(tmp_path) == whole


@pytest.mark.parametrize(
    "named",
    [{"a": "1", "b": "1"}, {"a": "2", "b": "1"}, {"a": "1"}, {"a": "1", "b": "2", "c": "2"}, {"b": "2", "c": "1"}],
    ids=str,
)
def test_an_index_names_the_tensors_of_its_shards(named: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path / "1.safetensors", {"a": ONE["a"]})
    write(tmp_path / "2.safetensors", {"b": ONE["b"]})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}))
    assert digests.weights_digest(tmp_path) == digests.weights_digest(
        [tmp_path / "1.safetensors", tmp_path / "2.safetensors"]
    )
    index.write_text(json.dumps({"weight_map": {name: f"{shard}.safetensors" for name, shard in named.items()}}))
    if named == {"a": "1"}:  # the other shard is none of this checkpoint
        assert digests.weights_digest(tmp_path) == digests.weights_digest(tmp_path / "1.safetensors")
        return
    with pytest.raises(hk.ArgumentError, match="only one of this shard and its index knows"):
        digests.weights_digest(tmp_path)


def test_a_name_that_a_configuration_has_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"rope_theta": 1, "rope_theta": 2}')
    with pytest.raises(hk.ArgumentError, match="'rope_theta' twice"):
        digests.rope_settings(tmp_path / "config.json")


def test_an_adapter_is_its_content_and_how_it_is_applied(tmp_path: Path) -> None:
    def adapter(name: str, rank: int, content: bytes, base: str = "somewhere") -> bytes:
        folder = tmp_path / name
        folder.mkdir()
        write(folder / "adapter_model.safetensors", {"lora": ("U8", [len(content)], content)})
        config = {"r": rank, "base_model_name_or_path": base}
        (folder / "adapter_config.json").write_text(json.dumps(config))
        return digests.adapter_digest(folder)

    one = adapter("one", 8, b"1234")
    assert adapter("same", 8, b"1234", "elsewhere") == one
    assert adapter("rank", 16, b"1234") != one
    assert adapter("content", 8, b"1235") != one
    (tmp_path / "one" / "adapter_config.json").unlink()
    with pytest.raises(hk.ArgumentError):
        digests.adapter_digest(tmp_path / "one")
    (tmp_path / "one" / "adapter_config.json").write_text("[]")
    with pytest.raises(hk.ArgumentError):
        digests.adapter_digest(tmp_path / "one")


def test_a_tokenizer_is_all_its_files(tmp_path: Path) -> None:
    with pytest.raises(hk.ArgumentError):
        digests.tokenizer_digest(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    one = digests.tokenizer_digest(tmp_path)
    assert digests.tokenizer_digest(tmp_path / "tokenizer.json") == one
    (tmp_path / "weights.bin").write_text("no part of it")
    assert digests.tokenizer_digest(tmp_path) == one
    (tmp_path / "chat_template.jinja").write_text("{{ x }}")
    two = digests.tokenizer_digest(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{ }")
    assert len({one, two, digests.tokenizer_digest(tmp_path)}) == 3


VOCABULARIES = (
    *(
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer.model.v3",
        "spiece.model",
        "sentencepiece.bpe.model",
        "spm.model",
    ),
    *("vocab.json", "vocab.txt", "merges.txt", "vocab.bpe", "encoder.json", "bpe.codes", "source.spm", "target.spm"),
    *("qwen.tiktoken", "o200k_base.tiktoken", "tiktoken.model", "tekken.json", "dict.txt", "target_vocab.json"),
)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_every_vocabulary_counts(name: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / name).write_text("one")
    one = digests.tokenizer_digest(tmp_path)
    (tmp_path / name).write_text("two")
    assert digests.tokenizer_digest(tmp_path) != one


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "tokenization_x.py",
        "chat_template.jinja",
    ],
)
def test_settings_count_and_are_no_tokenizer(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("one")
    with pytest.raises(hk.ArgumentError, match="a vocabulary"):
        digests.tokenizer_digest(tmp_path)
    (tmp_path / "vocab.json").write_text("{}")
    one = digests.tokenizer_digest(tmp_path)
    (tmp_path / name).write_text("two")
    assert digests.tokenizer_digest(tmp_path) != one


def test_a_vocabulary_that_is_no_file_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text("{}")
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(hk.ArgumentError, match="not a regular file"):
        digests.tokenizer_digest(tmp_path)


def test_what_tokenizers_of_transformers_name_as_theirs_counts(tmp_path: Path) -> None:
    """Read in the sources of the installed version, so that a new name is noticed here."""
    transformers = pytest.importorskip("transformers")
    named: set[str] = set()
    for source in Path(transformers.__file__).parent.rglob("tokenization_*.py"):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
                target = node.targets[0]
                if isinstance(target, ast.Name) and target.id.lower() == "vocab_files_names":
                    named |= {
                        v.value for v in node.value.values if isinstance(v, ast.Constant) and isinstance(v.value, str)
                    }
    assert len(named) > 20
    (tmp_path / "vocab.txt").write_text("a")
    for name in named:
        (tmp_path / name).write_text("a")
    listed = {file.name for file in tokenizer_files(tmp_path)}
    assert named - listed == set()


def test_settings_come_from_a_configuration(tmp_path: Path) -> None:
    config = {
        "hidden_size": 64,
        "rope_theta": 1e6,
        "rope_scaling": {"factor": 4.0},
        "max_position_embeddings": 8192,
        "partial_rotary_factor": 0.5,
        "quantization_config": {"bits": 4},
        "dtype": "bfloat16",
        "text_config": {"rope_theta": 1e4, "vocab_size": 9},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    rope = digests.rope_settings(config)
    assert rope == digests.rope_settings(tmp_path / "config.json")
    names = {"rope_theta", "rope_scaling", "max_position_embeddings", "partial_rotary_factor", "text_config.rope_theta"}
    assert set(rope) == names
    assert digests.quantisation_settings(config) == {"quantization_config": {"bits": 4}, "dtype": "bfloat16"}
    one = hk.Identity("m", rope=rope, quantisation=digests.quantisation_settings(config))
    two = hk.Identity("m", rope=digests.rope_settings({**config, "rope_scaling": {"factor": 8.0}}))
    assert one.differences(two) == ("rope", "quantisation")
    (tmp_path / "config.json").write_text("[]")
    for wrong in (tmp_path / "config.json", tmp_path / "gone"):
        with pytest.raises(hk.ArgumentError):
            digests.rope_settings(wrong)


def test_scales_count_by_name_type_shape_and_bytes() -> None:
    one = {"0.k": 0.5, "0.v": np.array([1, 2], np.float32)}
    same = {"0.v": np.array([1, 2], np.dtype(">f4")), "0.k": np.float64(0.5)}
    assert digests.scales_digest(one) == digests.scales_digest(same)
    others = [
        {**one, "0.k": 0.25},
        {**one, "0.v": np.array([1, 3], np.float32)},
        {**one, "0.v": np.array([[1, 2]], np.float32)},
        {**one, "0.v": np.array([1, 2], np.float64)},
        {"1.k": 0.5, "0.v": one["0.v"]},
    ]
    assert len({digests.scales_digest(each) for each in [one, *others]}) == 1 + len(others)
    for wrong in (7, {7: 1}, {"a": "x"}, {"a": object()}, {"a": [[1], [1, 2]]}):
        with pytest.raises(hk.ArgumentError):
            digests.scales_digest(wrong)  # type: ignore[arg-type]


def test_a_media_digest_is_whole_and_all_of_it_counts() -> None:
    digest = digests.media_digest(b"an image")
    assert len(digest) == 32
    assert digest == digests.media_digest(bytearray(b"an image"))
    ids = range(64)
    for full in (digest, digest * 2):  # 32 and 64 bytes
        keys = hk.block_keys(ids, 16, media=[(16, 16, full)])
        for at in range(len(full)):
            other = full[:at] + bytes([full[at] ^ 1]) + full[at + 1 :]
            changed = hk.block_keys(ids, 16, media=[(16, 16, other)])
            same = (keys.digests == changed.digests).all(axis=1).tolist()
            assert same == [True, False, False, False], at
    with pytest.raises(hk.ArgumentError):
        digests.media_digest("a name")  # type: ignore[arg-type]


def test_a_tenant_has_a_salt_of_its_own() -> None:
    secret = bytes(range(32))
    salts = {digests.tenant_salt(secret, name) for name in ("a", "b", "ab")}
    salts.add(digests.tenant_salt(secret[::-1], "a"))
    assert len(salts) == 4
    assert digests.tenant_salt(secret, "a") == digests.tenant_salt(secret, "a")
    assert all(len(salt) == 32 for salt in salts)
    for wrong in ((secret[:31], "a"), (secret, ""), ("x" * 32, "a"), (secret, None)):
        with pytest.raises(hk.ArgumentError) as refused:
            digests.tenant_salt(*wrong)  # type: ignore[arg-type]
        assert secret.hex() not in repr(refused.value)
