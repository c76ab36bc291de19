# SPDX-License-Identifier: Apache-2.0
"""Failures of stored states seen in public, on images: see tests/data/cases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is absent: images are of its caches")

import torch

from hybridkv.adapters.transformers.image import CacheImage
from hybridkv.adapters.transformers.image_part import StatePart
from hybridkv.demo.models import tiny_deepseek_v4
from hybridkv.errors import RestoreRefused
from image_support import empty, ids_of, model_of, prefilled, producer_of, runner_of

P = 50


def taken(name: str) -> CacheImage:
    model = model_of(name)
    return CacheImage.take(prefilled(model, ids_of(P)), model.config, producer=producer_of(name))


def told(image: CacheImage, parts: tuple[StatePart, ...]) -> CacheImage:
    """The image with other parts, all digests made again: only its meaning is wrong."""
    sealed = ("group", "part", "layer", "path", "position", "format", "data")
    again = tuple(StatePart.sealed(**{name: getattr(part, name) for name in sealed}) for part in parts)
    facts = {name: getattr(image, name) for name in ("position", "batch", "prefixes", "producer")}
    return CacheImage.sealed(**facts, parts=again)


def refused(name: str, image: CacheImage) -> RestoreRefused:
    with pytest.raises(RestoreRefused) as caught:
        image.restore(model_of(name).config, producer=producer_of(name))
    return caught.value


def test_FC_014_no_row_leaves_the_window_early() -> None:
    """Window 8: the query at t sees itself and seven before it, so that at 7, 8 and 9 seven rows are kept."""
    model = tiny_deepseek_v4(0, window=8)
    ids, runner, past = ids_of(20), runner_of(model), empty(model)
    following = None  # the logits that the image of one token before goes on with
    for t in range(1, 12):
        logits = runner.run(ids[:, t - 1 : t], past, t - 1)
        image = CacheImage.take(past, model.config)
        assert {part.rows for part in image.parts if part.group == "swa"} == {min(t, 7)}
        assert following is None or torch.equal(logits, following)
        again = image.restore(model.config)
        following = runner.run(ids[:, t : t + 1], again, t)
        shorter = told(image, tuple(replace(p, data=p.data[:, 1:]) for p in image.parts if p.rows > 1))
        with pytest.raises(RestoreRefused):
            shorter.restore(model.config)


def test_FC_028_a_checkpoint_holds_the_state_at_its_own_length_or_is_not_made() -> None:
    """Drafts were accepted over the end of an interval: there is a state, but of another length than the key says."""
    model = model_of("bamba")
    past = prefilled(model, ids_of(51))
    with pytest.raises(RestoreRefused) as caught:
        CacheImage.take(past, model.config, tokens=ids_of(48))
    assert (caught.value.code, caught.value.expected, caught.value.got) == ("stale", "51 tokens", "48 tokens")


def test_FC_029_a_state_is_there_only_where_an_image_brought_it() -> None:
    model = model_of("bamba")
    fresh, again = empty(model), taken("bamba").restore(model.config, producer=producer_of("bamba"))
    for layer, restored in zip(fresh.layers, again.layers, strict=True):
        if hasattr(layer, "has_previous_state"):
            assert not layer.has_previous_state[0] and restored.has_previous_state[0]


def test_FC_092_what_an_axis_means_is_declared() -> None:
    """Two rows by two heads or two heads by two rows: equal in size, told apart by the name of the layout alone."""
    image = taken("llama")
    first = image.parts[0]
    assert first.format.layout == "kv_heads" and first.shape[2] == 2
    other = replace(first, format=replace(first.format, layout="heads_kv"))
    why = refused("llama", told(image, (other, *image.parts[1:])))
    assert (why.code, [d.field for d in why.differences]) == ("format", ["layout"])
    turned = replace(first, data=first.data.transpose(1, 2).contiguous())
    assert refused("llama", told(image, (turned, *image.parts[1:]))).code == "partial"


def test_FC_094_a_group_of_one_side_only_is_refused() -> None:
    """The writer drafts, the reader does not: its group has no place here, and its configuration says so too."""
    image = taken("deepseek_v4")
    draft = replace(image.parts[0], group="draft")
    assert refused("deepseek_v4", told(image, (*image.parts, draft))).code == "unknown"
    drafting = tiny_deepseek_v4(0)
    drafting.config.num_nextn_predict_layers = 2
    with pytest.raises(RestoreRefused) as caught:
        image.restore(drafting.config, model=drafting)
    assert [d.field for d in caught.value.differences] == ["config.num_nextn_predict_layers"]


def test_FC_097_bytes_of_a_row_come_from_the_rows() -> None:
    image = taken("deepseek_v4")
    index = next(part for part in image.parts if part.group == "indexer")
    assert index.format.row_bytes == index.data[0, 0].nbytes == 64
    wrong = replace(index, format=replace(index.format, row_bytes=132))
    parts = tuple(wrong if part is index else part for part in image.parts)
    why = refused("deepseek_v4", told(image, parts))
    assert [(d.field, d.ours, d.theirs) for d in why.differences] == [("row_bytes", 64, 132)]


def test_FC_098_what_belongs_to_the_rows_is_a_member_of_the_record() -> None:
    """Values without their scores: restored into a fresh pool, they would be read beside zeros."""
    image = taken("deepseek_v4")
    gates = [part for part in image.parts if "gate" in part.path]
    assert len(gates) == 10
    for gate in gates:
        rest = tuple(part for part in image.parts if part is not gate)
        why = refused("deepseek_v4", told(image, rest))
        assert (why.code, why.field) == ("missing", gate.name)
    payload = sum(part.data.nbytes for part in image.parts)
    with pytest.raises(RestoreRefused, match="truncated"):
        CacheImage.from_bytes(image.to_bytes()[: -min(gate.data.nbytes for gate in gates)])
    assert len(image.to_bytes()) > payload


def test_FC_101_two_number_formats_are_refused_before_a_byte_is_read() -> None:
    ids = ids_of(P)
    writer, reader = (tiny_deepseek_v4(0, dtype=dtype) for dtype in (torch.bfloat16, None))
    image = CacheImage.take(prefilled(writer, ids), writer.config)
    image.parts[0].data.zero_()  # not reached
    with pytest.raises(RestoreRefused) as caught:
        image.restore(reader.config)
    assert (caught.value.code, caught.value.field) == ("format", "config.dtype")


def test_FC_104_layers_of_two_stages_have_numbers_of_their_own() -> None:
    image = taken("llama")
    half = image.parts[:4]
    assert {part.layer for part in half} == {0, 1}
    why = refused("llama", told(image, (*half, *half)))
    assert (why.code, why.expected) == ("unknown", "each part once")


def test_FC_032_FC_103_every_group_and_head_is_named_in_the_manifest() -> None:
    """What a reader must have is listed, with the width of each row: nothing follows from what happens to be there."""
    facts: dict[str, Any] = dict(taken("llama").producer.facts)
    assert facts["config.num_key_value_heads"] == 2 and facts["rows[0.keys]"] == "float32 [2, 16]"
    assert facts["layers[3].paths"] == "keys values"
