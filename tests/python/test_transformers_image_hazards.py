# SPDX-License-Identifier: Apache-2.0
"""What goes wrong where a cache is kept by other means, and why it does not here."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is absent: images are of its caches")

import torch
from transformers import DynamicCache

from hybridkv.adapters.transformers.image import CacheImage
from hybridkv.adapters.transformers.layers import tensors
from hybridkv.errors import RestoreRefused
from image_support import BATCH, CHUNK, STEPS, empty, ids_of, model_of, prefilled, producer_of, runner_of, worst
from tiny_models import ARCHITECTURES

RECURRENT = ("qwen3_next", "qwen3_5_text", "bamba", "jamba", "nemotron_h")
P = 50


def taken(name: str, p: int = P, **how: Any) -> tuple[Any, Any, CacheImage]:
    """Return a model, a cache at p, and its image."""
    model = model_of(name)
    past = prefilled(model, ids_of(p))
    return model, past, CacheImage.take(past, model.config, producer=producer_of(name), **how)


def continued(model: Any, past: Any, p: int = P) -> torch.Tensor:
    return runner_of(model).run(ids_of(p + CHUNK)[:, p:], past, p, all_logits=True)


def storages(layers: Any) -> set[int]:
    return {t.untyped_storage().data_ptr() for layer in layers for t in tensors(layer).values() if t.numel()}


def part_storages(image: CacheImage) -> set[int]:
    return {part.data.untyped_storage().data_ptr() for part in image.parts}


# -- the adapter that comes to mind first -----------------------------------------------------------


def test_keys_and_values_alone_are_silently_another_state() -> None:
    model, past, image = taken("deepseek_v4")
    obvious = DynamicCache(config=model.config)
    for index, layer in enumerate(past.layers):
        obvious.update(layer.keys, layer.values, index)
    assert obvious.get_seq_length() == 15  # not 50, and nothing was raised
    live = continued(model, past)
    assert worst(continued(model, obvious, 15), live) > 1
    assert torch.equal(continued(model, image.restore(model.config, producer=producer_of("deepseek_v4"))), live)


def test_a_cache_put_together_so_has_no_image() -> None:
    model, past, _ = taken("deepseek_v4")
    obvious = DynamicCache(config=model.config)
    for index, layer in enumerate(past.layers):
        obvious.update(layer.keys, layer.values, index)
    with pytest.raises(RestoreRefused) as caught:
        CacheImage.take(obvious, model.config)
    assert (caught.value.code, caught.value.field) == ("lagging", "layers[1].entry_count.compressor")
    with pytest.raises(RestoreRefused) as caught:
        CacheImage.take(obvious, model.config, tokens=ids_of(P))
    assert (caught.value.code, caught.value.field) == ("stale", "tokens")


# -- copies, never views ----------------------------------------------------------------------------


def test_an_image_is_as_large_as_its_rows() -> None:
    """A layer's window is a view of all that it was cut from; what copies the view copies that as well."""
    model, past, image = taken("deepseek_v4", 500)
    payload = sum(part.data.nbytes for part in image.parts)
    assert sum(part.data.untyped_storage().nbytes() for part in image.parts) == payload
    stream = io.BytesIO()
    torch.save(copy.deepcopy(past), stream)
    assert len(stream.getvalue()) > 5 * payload
    assert len(image.to_bytes()) < payload + 32_000
    again = image.restore(model.config, producer=producer_of("deepseek_v4"))
    held = {t.untyped_storage().data_ptr(): t for layer in again.layers for t in tensors(layer).values()}
    assert (
        sum(t.untyped_storage().nbytes() for t in held.values()) <= payload + 15 * 32 * 4 * BATCH
    )  # values of layer 0


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_nothing_is_shared(name: str) -> None:
    model, past, image = taken(name)
    one, two = (image.restore(model.config, producer=producer_of(name)) for _ in range(2))
    held = [storages(past.layers), part_storages(image), storages(one.layers), storages(two.layers)]
    for i, first in enumerate(held):
        for second in held[i + 1 :]:
            assert not first & second


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_image_stays_what_it_was_when_the_model_goes_on(name: str) -> None:
    model, past, image = taken(name)
    before = image.to_bytes()
    live = continued(model, past)
    assert image.to_bytes() == before
    first = image.restore(model.config, producer=producer_of(name))
    assert torch.equal(continued(model, first), live)
    assert image.to_bytes() == before  # nor did the restored cache write into it
    assert torch.equal(continued(model, image.restore(model.config, producer=producer_of(name))), live)


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_states_are_written_in_place(name: str) -> None:
    """The reason for the copies: what a view shows after one more token is another state."""
    model, past, _ = taken(name)
    views = [t for layer in past.layers if hasattr(layer, "conv_states") for t in tensors(layer).values()]
    before = [view.clone() for view in views]
    runner_of(model).run(ids_of(P + 1)[:, P:], past, P)
    assert not any(map(torch.equal, views, before))


def test_a_shallow_copy_of_a_layer_moves_with_it() -> None:
    model, past, _ = taken("deepseek_v4")
    shallow = copy.copy(past.layers[1])
    runner_of(model).run(ids_of(P + 8)[:, P:], past, P)
    assert (shallow.entry_count["compressor"], shallow.cumulative_length) == (14, 50)


# -- a restored layer is a live layer ---------------------------------------------------------------


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("p", [1, 3, 16, 50])
def test_every_attribute_is_what_it_is_in_the_live_cache(name: str, p: int) -> None:
    model, past, image = taken(name, p)
    again = image.restore(model.config, producer=producer_of(name))
    for live, restored in zip(past.layers, again.layers, strict=True):
        assert type(live) is type(restored)
        for attribute, value in _flat(vars(live)).items():
            other = _flat(vars(restored)).get(attribute)
            if isinstance(value, torch.Tensor) and value.ndim > 1:
                dead = 1 if attribute.startswith("conv_states") else 0
                if value.numel() or other is not None:
                    assert value.dtype == other.dtype and torch.equal(value[..., dead:], other[..., dead:]), attribute
            elif isinstance(value, torch.Tensor):
                assert isinstance(other, torch.Tensor) and value.dtype == other.dtype, attribute
            else:
                assert value == other, attribute


def _flat(held: dict[str, Any]) -> dict[str, Any]:
    """Attributes by path, dicts opened."""
    found: dict[str, Any] = {}
    for name, value in held.items():
        parts = value.items() if isinstance(value, dict) else None
        found.update({name: value} if parts is None else {f"{name}.{key}": part for key, part in parts})
    return found


def test_keys_and_values_of_compressed_layers_are_one_tensor() -> None:
    model, past, image = taken("deepseek_v4")
    again = image.restore(model.config, producer=producer_of("deepseek_v4"))
    for live, restored in zip(past.layers, again.layers, strict=True):
        assert (live.values is live.keys) == (restored.values is restored.keys)
        assert torch.equal(restored.values, restored.keys)
    assert {part.path for part in image.parts} & {"values"} == set()


@pytest.mark.parametrize("name", ["deepseek_v4", "qwen3_next", "gemma3_text"])
def test_rows_can_be_reordered_afterwards(name: str) -> None:
    model, past, image = taken(name)
    again = image.restore(model.config, producer=producer_of(name))
    order = torch.tensor([1, 0])
    for cache in (past, again):
        cache.reorder_cache(order)
    suffix = ids_of(P + CHUNK)[:, P:].flip(0)
    first, second = (runner_of(model).run(suffix, cache, P, all_logits=True) for cache in (past, again))
    assert torch.equal(first, second)


# -- one row of a batch -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_one_row_is_cut_out(name: str) -> None:
    model = model_of(name)
    past = prefilled(model, ids_of(P))
    whole = CacheImage.take(past, model.config, producer=producer_of(name))
    for row in range(BATCH):
        tokens = ids_of(P)[row]
        one = CacheImage.take(past, model.config, producer=producer_of(name), row=row, tokens=tokens)
        assert one.batch == 1
        for part, all_rows in zip(one.parts, whole.parts, strict=True):
            assert torch.equal(part.data, all_rows.data[row : row + 1])
        again = one.restore(model.config, producer=producer_of(name), tokens=tokens)
        suffix = ids_of(P + STEPS)[row : row + 1, P:]
        alone = runner_of(model).run(suffix, again, P, all_logits=True)
        beside = runner_of(model).run(ids_of(P + STEPS)[:, P:], copy.deepcopy(past), P, all_logits=True)
        assert worst(alone, beside[row : row + 1]) < 2e-2  # another batch, other roundings


def test_FC_034_a_checkpoint_is_what_the_batch_held_when_it_was_taken() -> None:
    model = model_of("bamba")
    ids = ids_of(P + 3, batch=3)
    past = empty(model)
    runner_of(model).run(ids[:, :P], past, 0)
    images = []
    for row in range(3):  # between one checkpoint and the next, the batch goes on
        p = P + row
        images.append(CacheImage.take(past, model.config, row=row, tokens=ids[row, :p]))
        runner_of(model).run(ids[:, p : p + 1], past, p)
    states = [image.parts[-1].data for image in images]
    assert not torch.equal(states[0], states[2])
    assert [image.position for image in images] == [50, 51, 52]
    for row, image in enumerate(images):
        assert image.restore(model.config, tokens=ids[row, : P + row]).get_seq_length() == P + row


# -- what must be there, and no more ----------------------------------------------------------------


def test_FC_025_a_tail_is_kept_where_a_window_is_open() -> None:
    model = model_of("deepseek_v4")
    for p, rows in ((64, 0), (71, 7), (79, 15), (80, 0)):
        image = taken("deepseek_v4", p)[2]
        tails = {part.rows for part in image.parts if part.group == "hca_tail"}
        assert tails == ({rows} if rows else set())
        assert image.restore(model.config, producer=producer_of("deepseek_v4")).get_seq_length() == p


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_FC_026_every_member_is_needed_and_no_other_is_taken(name: str) -> None:
    """A restore is a total function of the manifest: each part taken away is missing, each part more is unknown."""
    model, _, image = taken(name)
    facts = {"position": image.position, "batch": image.batch, "prefixes": (), "producer": image.producer}
    for number, part in enumerate(image.parts):
        rest = image.parts[:number] + image.parts[number + 1 :]
        for parts, code in ((rest, "missing"), ((*image.parts, part), "unknown")):
            with pytest.raises(RestoreRefused) as caught:
                CacheImage.sealed(**facts, parts=parts).restore(model.config, producer=producer_of(name))
            assert (caught.value.code, caught.value.field) == (code, part.name)


@pytest.mark.parametrize("name", RECURRENT)
def test_FC_031_history_without_its_checkpoint_is_not_restored(name: str) -> None:
    model, _, image = taken(name)
    facts = {"position": image.position, "batch": image.batch, "prefixes": (), "producer": image.producer}
    history = tuple(part for part in image.parts if part.group == "kv")
    with pytest.raises(RestoreRefused, match="rows of group state"):
        CacheImage.sealed(**facts, parts=history).restore(model.config, producer=producer_of(name))


def test_FC_041_the_group_that_is_missing_is_named() -> None:
    model, _, image = taken("deepseek_v4")
    facts = {"position": image.position, "batch": image.batch, "prefixes": (), "producer": image.producer}
    groups = {part.group for part in image.parts}
    assert len(groups) == 7
    for group in groups:
        parts = tuple(part for part in image.parts if part.group != group)
        with pytest.raises(RestoreRefused, match=f"rows of group {group}") as caught:
            CacheImage.sealed(**facts, parts=parts).restore(model.config, producer=producer_of("deepseek_v4"))
        assert caught.value.code == "missing"
