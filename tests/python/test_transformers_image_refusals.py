# SPDX-License-Identifier: Apache-2.0
"""Every way in which an image does not belong where it is restored is told apart, with the field that shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is absent: images are of its caches")

import torch

from hybridkv.adapters.transformers.image import CacheImage
from hybridkv.adapters.transformers.image_part import StatePart
from hybridkv.adapters.transformers.layout import CacheLayout
from hybridkv.adapters.transformers.producer import Producer
from hybridkv.demo.models import tiny_deepseek_v4
from hybridkv.errors import ArgumentError, RestoreRefused, UnsupportedModel
from image_support import ids_of, model_of, prefilled, producer_of

NAME = "deepseek_v4"
P = 77
IDS = ids_of(P)
WINDOW, ENTRIES, INDEX = "0.keys", "1.compressed_kv.compressor", "1.compressed_kv.indexer"
OVERLAP, TAIL = "3.overlap_gate.indexer", "2.buffer_kv.compressor"

Change = Callable[[CacheImage], CacheImage]


def image_at(p: int, *, seed: int = 0) -> CacheImage:
    model, ids = model_of(NAME), ids_of(p, seed=seed)
    return CacheImage.take(prefilled(model, ids), model.config, producer=producer_of(NAME), tokens=ids)


@pytest.fixture(scope="module")
def image() -> CacheImage:
    return image_at(P)


def part_of(image: CacheImage, name: str) -> StatePart:
    return next(part for part in image.parts if part.name == name)


def sealed_again(image: CacheImage, **fields: Any) -> CacheImage:
    """An image that is wrong in some fields and knows nothing of it: its digest fits."""
    names = ("position", "batch", "prefixes", "producer", "parts")
    return CacheImage.sealed(**{**{name: getattr(image, name) for name in names}, **fields})


def resealed(part: StatePart, **fields: Any) -> StatePart:
    """A part that is wrong in some fields and knows nothing of it: its checksum fits."""
    names = ("group", "part", "layer", "path", "position", "format", "data")
    return StatePart.sealed(**{**{name: getattr(part, name) for name in names}, **fields})


def with_part(image: CacheImage, name: str, new: StatePart) -> CacheImage:
    return sealed_again(image, parts=tuple(new if part.name == name else part for part in image.parts))


def without(image: CacheImage, *names: str) -> CacheImage:
    return sealed_again(image, parts=tuple(part for part in image.parts if part.name not in names))


def of_position(p: int, group: str) -> Change:
    """Put all parts of a group of another position in, checksums and all."""

    def change(image: CacheImage) -> CacheImage:
        others = {part.name: part for part in image_at(p).parts if part.group == group}
        return sealed_again(image, parts=tuple(others.get(part.name, part) for part in image.parts))

    return change


def data_of(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """Change the content of a part and nothing else: neither its checksum nor the digest is made again."""

    def changed(image: CacheImage) -> CacheImage:
        parts = tuple(replace(p, data=change(p.data).contiguous()) if p.name == name else p for p in image.parts)
        return replace(image, parts=parts)

    return changed


def told(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """Change the content of a part and make its checksum and the digest again."""
    return lambda image: with_part(image, name, resealed(part_of(image, name), data=change(part_of(image, name).data)))


def exchanged(first: str, second: str, *, relabelled: bool) -> Change:
    """Exchange two parts of equal shape: their content, or the layers they are said to be of."""

    def change(image: CacheImage) -> CacheImage:
        a, b = part_of(image, first), part_of(image, second)
        if relabelled:
            new = {first: replace(b, layer=a.layer), second: replace(a, layer=b.layer)}
        else:
            new = {first: replace(a, data=b.data), second: replace(b, data=a.data)}
        return sealed_again(image, parts=tuple(new.get(part.name, part) for part in image.parts))

    return change


def foreign_part(image: CacheImage) -> CacheImage:
    """A part of another request, whole in itself, under the digest of this one."""
    other = part_of(image_at(P, seed=1), WINDOW)
    return replace(image, parts=tuple(other if part.name == WINDOW else part for part in image.parts))


def more_parts(name: str, **fields: Any) -> Change:
    return lambda image: sealed_again(image, parts=(*image.parts, resealed(part_of(image, name), **fields)))


def tail_too_many(image: CacheImage) -> CacheImage:
    """A tail where its window has just closed."""
    at_boundary, tail = image_at(64), part_of(image, TAIL)
    return sealed_again(at_boundary, parts=(*at_boundary.parts, resealed(tail, position=64)))


def tail_of_nothing(image: CacheImage) -> CacheImage:
    at_boundary, tail = image_at(64), part_of(image, TAIL)
    nothing = resealed(tail, position=64, data=tail.data[:, :0].contiguous())
    return sealed_again(at_boundary, parts=(*at_boundary.parts, nothing))


def format_of(name: str, **fields: Any) -> Change:
    def change(image: CacheImage) -> CacheImage:
        part = part_of(image, name)
        return with_part(image, name, resealed(part, format=replace(part.format, **fields)))

    return change


STATES: dict[str, tuple[Change, str, str]] = {
    "window of one token before": (of_position(P - 1, "swa"), "stale", WINDOW),
    "tail of one token before": (of_position(P - 1, "hca_tail"), "stale", TAIL),
    "overlap of the window before": (of_position(P - 4, "overlap"), "stale", "1.overlap_kv.compressor"),
    "history one entry behind": (of_position(P - 4, "csa"), "lagging", ENTRIES),
    "indexer one entry behind": (of_position(P - 4, "indexer"), "lagging", INDEX),
    "window of tokens to come": (of_position(P + 1, "swa"), "stale", WINDOW),
    "window lost": (lambda image: without(image, WINDOW), "missing", WINDOW),
    "indexer lost": (lambda image: without(image, INDEX), "missing", INDEX),
    "overlap lost": (lambda image: without(image, OVERLAP), "missing", OVERLAP),
    "tail lost": (lambda image: without(image, TAIL), "missing", TAIL),
    "all parts lost": (lambda image: sealed_again(image, parts=()), "missing", ENTRIES),
    "an attribute nobody knows": (more_parts(WINDOW, path="draft"), "unknown", "0.draft"),
    "a layer nobody knows": (more_parts(WINDOW, layer=5), "unknown", "5.keys"),
    "a group nobody knows": (more_parts(WINDOW, group="draft"), "unknown", WINDOW),
    "one part twice": (more_parts(WINDOW), "unknown", WINDOW),
    "a tail where none is due": (tail_too_many, "partial", TAIL),
    "a tail of no rows": (tail_of_nothing, "partial", TAIL),
    "one row short": (told(ENTRIES, lambda t: t[:, :-1].contiguous()), "partial", ENTRIES),
    "one row too many": (told(WINDOW, lambda t: torch.cat([t, t[:, :1]], 1)), "partial", WINDOW),
    "one sequence short": (told(WINDOW, lambda t: t[:1].contiguous()), "partial", WINDOW),
    "no rows": (told(WINDOW, lambda t: t.reshape(-1)), "partial", WINDOW),
    "another batch": (lambda image: sealed_again(image, batch=1, prefixes=image.prefixes[:1]), "partial", ENTRIES),
    "another position": (lambda image: sealed_again(image, position=P - 1), "stale", ENTRIES),
    "rounded": (told(ENTRIES, lambda t: t.bfloat16()), "format", ENTRIES),
    "another width": (told(ENTRIES, lambda t: t[..., :-1].contiguous()), "format", ENTRIES),
    "another layout": (format_of(ENTRIES, layout="fp8_ds_mla"), "format", f"{ENTRIES}.format"),
    "scores with their bias": (format_of(TAIL, bias_added=True), "format", f"{TAIL}.format"),
    "rows of other bytes": (format_of(INDEX, row_bytes=132), "format", f"{INDEX}.format"),
    "window zero": (data_of(WINDOW, torch.zeros_like), "content", WINDOW),
    "window rolled": (data_of(WINDOW, lambda t: t.roll(5, 1)), "content", WINDOW),
    "sequences exchanged": (data_of(WINDOW, lambda t: t.flip(0)), "content", WINDOW),
    "indexer shifted by one": (data_of(INDEX, lambda t: t.roll(1, 1)), "content", INDEX),
    "two rows exchanged": (data_of(ENTRIES, lambda t: t[:, [1, 0, *range(2, t.shape[1])]]), "content", ENTRIES),
    "one bit": (data_of(TAIL, lambda t: t + torch.finfo(t.dtype).eps * t), "content", TAIL),
    "-0 for 0": (lambda image: _signed_zero(image), "content", TAIL),
    "layers exchanged": (
        exchanged(ENTRIES, "3.compressed_kv.compressor", relabelled=False),
        "content",
        ENTRIES,
    ),
    "layers renamed": (exchanged(ENTRIES, "3.compressed_kv.compressor", relabelled=True), "content", ENTRIES),
    "values for gates": (
        exchanged("1.overlap_kv.compressor", "1.overlap_gate.compressor", relabelled=False),
        "content",
        "1.overlap_kv.compressor",
    ),
    "renamed position": (
        lambda image: with_part(image, WINDOW, replace(part_of(image_at(P - 1), WINDOW), position=P)),
        "content",
        WINDOW,
    ),
    "a part of another request": (foreign_part, "content", "digest"),
    "parts in another order": (lambda image: replace(image, parts=image.parts[::-1]), "content", "digest"),
    "a digest of before": (lambda image: replace(image, digest=image_at(P - 1).digest), "content", "digest"),
}


def _signed_zero(image: CacheImage) -> CacheImage:
    """Equal to torch, not to us."""
    zero = told(TAIL, torch.zeros_like)(image)
    return data_of(TAIL, torch.neg)(zero)


def refused(image: CacheImage, **how: Any) -> RestoreRefused:
    how = {"producer": producer_of(NAME), "tokens": IDS, **how}
    config = how.pop("config", model_of(NAME).config)
    with pytest.raises(RestoreRefused) as caught:
        image.restore(config, **how)
    return caught.value


def test_what_is_not_changed_is_accepted(image: CacheImage) -> None:
    again = sealed_again(image, parts=tuple(resealed(part) for part in image.parts))
    assert again.digest == image.digest
    for one in (image, again):
        past = one.restore(model_of(NAME).config, producer=producer_of(NAME), tokens=IDS)
        assert past.get_seq_length() == P


@pytest.mark.parametrize("case", STATES)
def test_a_broken_state_is_refused(case: str, image: CacheImage) -> None:
    change, code, field = STATES[case]
    why = refused(change(image), tokens=None)
    assert (why.code, why.field) == (code, field)
    assert bool(why.differences) == (code == "format" and field.endswith(".format"))


# -- tokens -----------------------------------------------------------------------------------------


def test_a_position_that_is_not_that_of_the_tokens_is_stale(image: CacheImage) -> None:
    why = refused(sealed_again(image, position=P - 1))
    assert (why.code, why.field) == ("stale", "tokens")


def test_other_tokens_are_foreign(image: CacheImage) -> None:
    other = IDS.clone()
    other[1, 40] += 1
    assert [refused(image, tokens=t).code for t in (other, IDS.flip(0))] == ["foreign", "foreign"]


def test_tokens_of_another_length_are_stale(image: CacheImage) -> None:
    for length in (P - 1, P + 1):
        why = refused(image, tokens=ids_of(length))
        assert (why.code, why.field, why.expected, why.got) == ("stale", "tokens", f"{P} tokens", f"{length} tokens")


def test_an_image_that_names_no_tokens_stands_for_none(image: CacheImage) -> None:
    why = refused(sealed_again(image, prefixes=()))
    assert (why.code, why.field) == ("foreign", "tokens")


# -- the producer -----------------------------------------------------------------------------------


FACTS: dict[str, object] = {
    "transformers": "5.8.0",
    "model_type": "deepseek_v32",
    "attention": "sdpa",
    "experts": "grouped_mm",
    "weights": "0" * 64,
    "build": "177 bfloat16",
    "build.digest": "0" * 32,
    "kernels[mamba-ssm]": "2.0",
    "config.index_topk": 8,
    "config.rope_parameters.main.rope_theta": 20000,
    "config.layer_types": "[]",
    "config.dtype": "bfloat16",
    "config.a_field_of_next_year": True,
    "layers[1].class": "DeepseekV4HCACache",
    "layers[1].paths": "keys",
}


@pytest.mark.parametrize("fact", FACTS)
def test_another_fact_is_another_format(fact: str, image: CacheImage) -> None:
    theirs = Producer({**image.producer.facts, fact: FACTS[fact]})
    why = refused(sealed_again(image, producer=theirs))
    assert (why.code, why.field, why.got) == ("format", fact, FACTS[fact])
    assert [(d.field, d.ours, d.theirs) for d in why.differences] == [
        (fact, producer_of(NAME).facts.get(fact), FACTS[fact])
    ]


def test_all_differences_are_told_the_version_first(image: CacheImage) -> None:
    theirs = Producer({**image.producer.facts, **FACTS})
    why = refused(sealed_again(image, producer=theirs))
    assert why.field == "transformers" and {d.field for d in why.differences} == set(FACTS)
    assert "config.index_topk" in str(why)


def test_rows_of_another_shape_are_another_format(image: CacheImage) -> None:
    theirs = Producer({**image.producer.facts, "rows[0.keys]": "bfloat16 [1, 32]"})
    why = refused(sealed_again(image, producer=theirs), producer=image.producer)
    assert (why.code, why.field) == ("format", "rows[0.keys]")


def test_what_only_one_side_knows_differs(image: CacheImage) -> None:
    why = refused(image, producer=None)
    assert why.code == "format" and {d.field for d in why.differences} == {"weights", "build", "build.digest"}
    model = model_of(NAME)
    unknown = CacheImage.take(prefilled(model, IDS), model.config)
    assert {d.field for d in refused(unknown, tokens=None).differences} == {"weights", "build", "build.digest"}
    assert unknown.restore(model.config).get_seq_length() == P  # the caller's word for it, on both sides


def test_cosmetic_facts_do_not_count(image: CacheImage) -> None:
    theirs = sealed_again(image, producer=Producer({**image.producer.facts, "torch": "9.9"}))
    assert theirs.restore(model_of(NAME).config, producer=producer_of(NAME)).get_seq_length() == P


REAL: dict[str, tuple[Callable[[], Any], set[str]]] = {
    "other weights": (lambda: tiny_deepseek_v4(1), {"weights"}),
    "one weight": (lambda: _one_weight(), {"weights"}),
    "another dtype": (
        lambda: tiny_deepseek_v4(0, dtype=torch.bfloat16),
        {"weights", "build", "build.digest", "config.dtype"},
    ),
    "cast after it was built": (lambda: tiny_deepseek_v4(0).bfloat16(), {"weights", "build", "build.digest"}),
    "another window": (lambda: tiny_deepseek_v4(0, window=32), {"config.sliding_window"}),
    "another experts' kernel": (lambda: _other_experts(), {"experts"}),
}


def _one_weight() -> Any:
    model = tiny_deepseek_v4(0)
    with torch.no_grad():
        model.lm_head.weight[200, 3] += 1e-6
    return model


def _other_experts() -> Any:
    model = tiny_deepseek_v4(0)
    model.config._experts_implementation = "batched_mm"
    return model


@pytest.mark.parametrize("case", REAL)
def test_another_model_refuses_the_image(case: str, image: CacheImage) -> None:
    build, fields = REAL[case]
    model = build()
    with pytest.raises(RestoreRefused) as caught:
        image.restore(model.config, model=model, tokens=IDS)
    assert caught.value.code == "format"
    assert fields <= {d.field for d in caught.value.differences}
    if case in ("other weights", "one weight", "another experts' kernel"):
        assert fields == {d.field for d in caught.value.differences}


def test_the_same_weights_built_twice_are_one_producer(image: CacheImage) -> None:
    model = tiny_deepseek_v4(0)
    model.config.use_cache, model.config._name_or_path, model.config.pad_token_id = False, "elsewhere", 7
    assert image.restore(model.config, model=model, tokens=IDS).get_seq_length() == P


def test_two_ways_to_bfloat16_are_two_producers() -> None:
    cast, made = tiny_deepseek_v4(0).bfloat16(), tiny_deepseek_v4(0, dtype=torch.bfloat16)
    ids = ids_of(20)
    image = CacheImage.take(prefilled(cast, ids), cast.config, model=cast)
    with pytest.raises(RestoreRefused) as caught:
        image.restore(made.config, model=made)
    assert {"build", "build.digest"} <= {d.field for d in caught.value.differences}
    other = CacheImage.take(prefilled(made, ids), made.config)
    gates = [one.producer.row("1.overlap_gate.compressor") for one in (image, other)]
    assert gates == ["bfloat16 [32]", "float32 [32]"]


# -- taking -----------------------------------------------------------------------------------------


def lagging(past: Any) -> None:
    past.layers[1].cumulative_length -= 1


def miscounted(past: Any) -> None:
    past.layers[1].entry_count["indexer"] -= 1


def tail_dropped(past: Any) -> None:
    past.layers[2].buffer_kv["compressor"] = past.layers[2].buffer_kv["compressor"][:, :0]


def overlap_dropped(past: Any) -> None:
    past.layers[1].overlap_kv["compressor"] = None


def recorded(past: Any) -> None:
    past.layers[0].record_past = True


def unrelated_values(past: Any) -> None:
    past.layers[0].values = past.layers[0].values + 1


CACHES: dict[str, tuple[Callable[[Any], None], str, str]] = {
    "a layer behind": (lagging, "lagging", "layers[1].cumulative_length"),
    "a count behind": (miscounted, "lagging", "layers[1].entry_count.indexer"),
    "a tail dropped": (tail_dropped, "partial", "layers[2].buffer_kv.compressor"),
    "an overlap dropped": (overlap_dropped, "missing", "layers[1].overlap_kv.compressor"),
    "a layer that keeps more than its window": (recorded, "partial", "layers[0].record_past"),
    "values that are not the keys": (unrelated_values, "content", "layers[0].values"),
}


@pytest.mark.parametrize("case", CACHES)
def test_no_image_is_taken_of_a_broken_cache(case: str) -> None:
    change, code, field = CACHES[case]
    model = model_of(NAME)
    past = prefilled(model, IDS)
    change(past)
    with pytest.raises(RestoreRefused) as caught:
        CacheImage.take(past, model.config, producer=producer_of(NAME))
    assert (caught.value.code, caught.value.field) == (code, field)


def test_no_image_is_taken_of_nothing_or_of_other_tokens() -> None:
    from transformers import DynamicCache

    model = model_of(NAME)
    with pytest.raises(RestoreRefused) as caught:
        CacheImage.take(DynamicCache(config=model.config), model.config)
    assert (caught.value.code, caught.value.field) == ("missing", "past")
    with pytest.raises(RestoreRefused) as caught:
        CacheImage.take(prefilled(model, IDS), model.config, tokens=ids_of(P - 1))
    assert (caught.value.code, caught.value.field) == ("stale", "tokens")


def test_a_tensor_that_no_group_claims_is_not_lost_silently() -> None:
    model = model_of(NAME)
    past = prefilled(model, IDS)
    past.layers[1].summary = torch.zeros(2, 3)
    with pytest.raises(UnsupportedModel, match=r"past.layers\[1\].summary"):
        CacheImage.take(past, model.config)


BAD_ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "no such row": ({"row": 2}, "row"),
    "a negative row": ({"row": -1}, "row"),
    "rows of truth": ({"row": True}, "row"),
    "tokens of one row": ({"tokens": IDS[0]}, "tokens"),
    "tokens of three rows": ({"tokens": ids_of(P, batch=3)}, "tokens"),
    "tokens that are no ids": ({"tokens": IDS.float()}, "tokens"),
    "tokens that are words": ({"tokens": ["a", "b"]}, "tokens"),
    "ragged tokens": ({"tokens": [[1, 2], [3]]}, "tokens"),
    "a producer that is none": ({"producer": "me"}, "producer"),
    "a model and a producer": ({"producer": "me", "model": "it"}, "producer"),
    "no cache": ({"past": "past"}, "past"),
    "no configuration": ({"config": {"model_type": NAME}}, "config"),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments_are_named(case: str) -> None:
    given, field = BAD_ARGUMENTS[case]
    model = model_of(NAME)
    arguments: dict[str, Any] = {"past": prefilled(model, IDS), "config": model.config, **given}
    with pytest.raises(ArgumentError) as caught:
        CacheImage.take(**arguments)
    assert caught.value.field == field


def test_a_producer_of_another_configuration_is_not_taken_for_this_one(image: CacheImage) -> None:
    other = tiny_deepseek_v4(0, window=32)
    with pytest.raises(ArgumentError, match=r"config\.sliding_window"):
        image.restore(other.config, producer=producer_of(NAME))
    with pytest.raises(ArgumentError, match=r"config\.sliding_window"):
        CacheImage.take(prefilled(other, IDS), other.config, producer=producer_of(NAME))


def test_an_unknown_architecture_is_refused(image: CacheImage) -> None:
    from transformers import AutoConfig

    config = AutoConfig.for_model("mistral", vocab_size=256, hidden_size=64, num_hidden_layers=2)
    with pytest.raises(UnsupportedModel, match="model_type"):
        image.restore(config)


def test_layouts_of_an_empty_and_of_a_filled_cache_agree() -> None:
    from transformers import DynamicCache

    from tiny_models import ARCHITECTURES

    for name in ARCHITECTURES:
        model = model_of(name)
        filled = CacheLayout(model.config, prefilled(model, ids_of(20)))
        assert CacheLayout(model.config, DynamicCache(config=model.config)).places == filled.places
