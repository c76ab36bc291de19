# SPDX-License-Identifier: Apache-2.0
"""Who wrote a state: every fact that can change bytes counts, and what stands for the weights is theirs alone."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is absent: producers are its models")

import torch

from hybridkv.adapters.transformers import weights
from hybridkv.adapters.transformers.layout import CacheLayout
from hybridkv.adapters.transformers.producer import HARMLESS, Producer, group_format
from hybridkv.adapters.transformers.weights import checkpoint_digest, weights_digest
from hybridkv.demo.models import tiny_deepseek_v4, tiny_llama
from hybridkv.errors import ArgumentError, UnsupportedModel
from image_support import empty, ids_of, model_of, prefilled, producer_of
from tiny_models import ARCHITECTURES


def of(built: Any, **how: Any) -> Producer:
    return Producer.of(built.config, CacheLayout(built.config, empty(built)), **how)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_facts_name_everything(name: str) -> None:
    facts = producer_of(name).facts
    assert {"transformers", "torch", "model_type", "attention", "experts", "weights", "build"} <= set(facts)
    assert facts["model_type"] == name and facts["attention"] == "eager"
    layers = {key for key in facts if key.startswith("layers[")}
    assert len(layers) == 2 * len(empty(model_of(name)).layers)
    assert all(isinstance(value, (bool, int, float, str)) for value in facts.values())
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts


def test_a_producer_is_the_same_every_time_and_at_every_position() -> None:
    model = model_of("deepseek_v4")
    layout = CacheLayout(model.config, empty(model))
    made = [Producer.of(model.config, layout, model=model, past=prefilled(model, ids_of(p))) for p in (1, 3, 4, 16, 40)]
    made += [of(model, model=model), of(tiny_deepseek_v4(0), model=tiny_deepseek_v4(0))]
    assert {one.digest for one in made} == {producer_of("deepseek_v4").digest}
    assert all(one.differences(other) == [] for one in made for other in made)


def test_every_field_counts_but_the_harmless_ones() -> None:
    """Fields of the configuration are changed one by one, and one that nobody knows is added."""
    model = tiny_deepseek_v4(0)
    layout = CacheLayout(model.config, empty(model))
    ours = Producer.of(model.config, layout)
    counted = 0
    for name, value in {**model.config.to_dict(), "invented": None, **dict.fromkeys(HARMLESS)}.items():
        changed = _Dict({**model.config.to_dict(), name: _other(value)}, model.config)
        found = ours.differences(Producer.of(changed, layout))
        assert bool(found) != (name in HARMLESS), name
        counted += bool(found)
        assert (ours.digest == Producer.of(changed, layout).digest) == (not found)
    assert counted > 40
    assert all(len(reason) > 10 for reason in HARMLESS.values())


class _Dict:
    """A configuration that says something else of itself."""

    def __init__(self, fields: dict[str, Any], real: Any) -> None:
        self._fields, self._real = fields, real

    def to_dict(self) -> dict[str, Any]:
        return self._fields

    def get_text_config(self, **how: Any) -> Any:
        return self._real


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, dict):
        return {**value, "more": 1}
    return [*value, "more"] if isinstance(value, list) else f"{value} more"


def test_numbers_are_compared_as_numbers_and_truth_is_none() -> None:
    model = model_of("llama")
    layout = CacheLayout(model.config, empty(model))

    def told(value: Any) -> Producer:
        return Producer.of(_Dict({"theta": value}, model.config), layout)

    assert told(16) == told(16.0) and told(16).digest == told(16.0).digest
    for one, other in ((1, True), (0, False), (1, "1"), (None, 0), (1.5, 1), ([1, 2], [12]), ({"a": 1}, {"b": 1})):
        assert told(one).differences(told(other)) and told(one).digest != told(other).digest
    assert told(float("inf")).facts["config.theta"] == "inf"  # no number that JSON cannot hold


def test_formats_of_two_producers_are_never_equal() -> None:
    model = model_of("deepseek_v4")
    layout = CacheLayout(model.config, empty(model))
    ours, theirs = producer_of("deepseek_v4"), of(model)
    for group in layout.groups.values():
        made = group_format(group, ours, "float32", 128)
        assert made == group_format(group, ours, "float32", 128)
        others = [(group, theirs, "float32", 128), (group, ours, "bfloat16", 128), (group, ours, "float32", 64)]
        assert all(made.fingerprint != group_format(*other).fingerprint for other in others)
        assert made.kernel_version == f"transformers {ours.version}" and made.weights == ours.weights
        assert group.format is not None and made.layout == group.format.layout and made.theta == group.format.theta
        assert {d.field for d in made.diff(group_format(group, theirs, "float32", 128))} == {"weights", "roles"}


def test_scores_are_kept_before_their_bias_in_tails_and_after_it_in_overlaps() -> None:
    """Measured: rows of the open window do not change with the position bias, those of the closed one do."""
    plain, biased = tiny_deepseek_v4(0), tiny_deepseek_v4(0)
    with torch.no_grad():
        for name, parameter in biased.named_parameters():
            if name.endswith("layers.1.self_attn.compressor.position_bias"):
                parameter += 1
    one, other = (prefilled(model, ids_of(7)).layers[1] for model in (plain, biased))
    assert torch.equal(one.buffer_gate["compressor"], other.buffer_gate["compressor"])
    assert not torch.equal(one.overlap_gate["compressor"], other.overlap_gate["compressor"])
    layout = CacheLayout(plain.config, empty(plain))
    made = {name: group_format(group, of(plain), "float32", 1).bias_added for name, group in layout.groups.items()}
    assert (made["pending"], made["hca_tail"], made["overlap"]) == (False, False, True)


# -- weights of a loaded model ----------------------------------------------------------------------


class Tiny(torch.nn.Module):
    def __init__(self, *, tied: bool = True, persistent: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = torch.nn.Embedding(7, 3), torch.nn.Linear(3, 7, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        self.register_buffer("table", torch.arange(6).reshape(2, 3), persistent=persistent)


DTYPES = (torch.int32, torch.float32, torch.int16, torch.bfloat16, torch.float16)


def changed(change: Callable[[Tiny], object]) -> str:
    model = Tiny()
    with torch.no_grad():
        change(model)
    return weights_digest(model)


def test_weights_count_by_name_dtype_shape_and_content() -> None:
    same = weights_digest(Tiny())
    assert same == weights_digest(Tiny()) and len(same) == 64
    others = [
        changed(lambda m: m.embed.weight[6, 2].add_(1e-7)),
        changed(lambda m: m.embed.weight[0, 0].neg_()),
        changed(lambda m: m.table.add_(1)),
        changed(lambda m: setattr(m, "table", m.table.int())),
        changed(lambda m: setattr(m, "table", m.table.reshape(3, 2))),
        changed(lambda m: m.register_buffer("more", torch.zeros(1))),
        changed(lambda m: m.half()),
        weights_digest(Tiny(tied=False)),
    ]
    assert weights_digest(Tiny(persistent=False)) == same  # a buffer counts whether a checkpoint holds it or not
    assert len({same, *others}) == len(others) + 1


def test_the_same_bytes_of_two_dtypes_are_two_contents() -> None:
    tables = [torch.zeros(2, 3, dtype=dtype) for dtype in DTYPES]
    seen = {changed(functools.partial(Tiny.__setattr__, name="table", value=table)) for table in tables}
    assert len(seen) == len(tables)


def test_zero_and_minus_zero_are_two_contents() -> None:
    zero, minus = (changed(lambda m, s=s: m.embed.weight.fill_(s)) for s in (0.0, -0.0))  # type: ignore[misc]
    assert zero != minus


def test_tied_weights_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    real = weights._bytes_of
    monkeypatch.setattr(weights, "_bytes_of", lambda t: read.append(t.numel()) or real(t))
    weights_digest(Tiny())
    assert sorted(read) == [6, 21]


def test_strides_and_chunks_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    same = weights_digest(Tiny())
    monkeypatch.setattr(weights, "_CHUNK_ELEMENTS", 4)
    assert weights_digest(Tiny()) == same
    turned = Tiny()
    turned.table = turned.table.T.contiguous().T
    assert not turned.table.is_contiguous() and weights_digest(turned) == same


def test_weights_without_content_are_refused() -> None:
    for broken in (Tiny().to("meta"), Tiny()):
        if not broken.table.is_meta:
            broken.table = torch.eye(3).to_sparse()
        with pytest.raises(UnsupportedModel, match="model"):
            weights_digest(broken)


# -- weights in a folder ----------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards, a configuration and a tokenizer."""
    from safetensors.torch import save_file

    path = tmp_path / "checkpoint"
    path.mkdir()
    generator = torch.Generator().manual_seed(0)
    for shard in (1, 2):
        tensors = {f"layer{shard}.{i}": torch.randn(64, 64, generator=generator) for i in range(3)}
        save_file(tensors, path / f"model-{shard}.safetensors")
    index = {"weight_map": {f"layer{s}.{i}": f"model-{s}.safetensors" for s in (1, 2) for i in range(3)}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    (path / "config.json").write_text('{"model_type": "llama"}')
    (path / "tokenizer.json").write_text('{"version": "1.0"}')
    (path / "README.md").write_text("weights")
    return path


def rewritten(file: Path, data: bytes) -> None:
    """Replace content and leave size and time as they are."""
    facts = file.stat()
    file.write_bytes(data)
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def test_FC_082_a_cheap_fingerprint_stands_for_the_weights(folder: Path) -> None:
    """One name, other shards: size, time, header, samples, configuration and tokenizer, each by itself."""
    same = checkpoint_digest(folder)
    assert checkpoint_digest(folder) == same and len(same) == 64
    shard = folder / "model-2.safetensors"
    content = shard.read_bytes()
    seen = {same}

    def differs() -> None:
        now = checkpoint_digest(folder)
        assert now not in seen and not now.startswith("unreadable")
        seen.add(now)

    rewritten(shard, content[:-1] + bytes([content[-1] ^ 1]))  # the last byte of the last tensor
    differs()
    rewritten(shard, content.replace(b"layer2.0", b"layer9.0"))
    differs()
    rewritten(shard, content)
    assert checkpoint_digest(folder) == same
    os.utime(shard, ns=(1, 1))
    differs()
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text((folder / name).read_text().replace(":", ": "))
        differs()
    (folder / "special_tokens_map.json").write_text("{}")
    differs()
    (folder / "README.md").write_text("other words")
    assert checkpoint_digest(folder) in seen


def test_FC_082_a_folder_that_cannot_be_read_matches_nothing(folder: Path) -> None:
    shard, config = folder / "model-2.safetensors", folder / "config.json"
    content = shard.read_bytes()
    assert not checkpoint_digest(folder).startswith("unreadable")
    for broken in (
        content[:100],
        content[:4],
        b"",
        b"\xff" * 8 + content[8:],
        content[:8] + b"[" + content[9:],
        content.replace(b'"data_offsets"', b'"data_offsetz"'),
        content[:-1],
        None,
    ):
        shard.unlink()
        if broken is not None:
            shard.write_bytes(broken)
        first, second = checkpoint_digest(folder), checkpoint_digest(folder)
        assert first.startswith("unreadable-") and second.startswith("unreadable-") and first != second
        shard.write_bytes(content)
    config.unlink()
    assert checkpoint_digest(folder).startswith("unreadable-")


def test_copies_of_a_folder_agree_where_times_do_not_count(folder: Path) -> None:
    same, timed = checkpoint_digest(folder, times=False), checkpoint_digest(folder)
    os.utime(folder / "model-1.safetensors", ns=(1, 1))
    assert checkpoint_digest(folder, times=False) == same and checkpoint_digest(folder) != timed
    (folder / "model-1.safetensors").write_bytes((folder / "model-2.safetensors").read_bytes())
    assert checkpoint_digest(folder, times=False) != same


def test_other_weights_files_are_sampled(folder: Path) -> None:
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    file = folder / "pytorch_model.bin"
    file.write_bytes(bytes(2**16))
    same = checkpoint_digest(folder, times=False)
    rewritten(file, bytes(2**15) + b"\1" + bytes(2**15 - 1))
    assert checkpoint_digest(folder) != same


def test_no_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="path"):
        checkpoint_digest(tmp_path / "nowhere")


def test_a_digest_of_files_can_stand_for_the_weights(folder: Path) -> None:
    model = tiny_llama()
    producer = of(model, model=model, weights=checkpoint_digest(folder))
    assert producer.weights == checkpoint_digest(folder)
    assert [d.field for d in producer.differences(of(model, model=model))] == ["weights"]
