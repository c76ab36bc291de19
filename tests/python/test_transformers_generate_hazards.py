# SPDX-License-Identifier: Apache-2.0
"""Hazards of caches in transformers, one test each: what goes wrong without care, and that it does not go wrong here.

Where a hazard is silent, the test first shows it on the model alone: a model that no longer has it fails there, and
the care can go.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import DynamicCache, GenerationConfig  # noqa: E402

import tiny_models  # noqa: E402
from conversations import GREEDY, answered, assert_idle, in_chunks, logits_of, prompts  # noqa: E402
from hybridkv import Outcome  # noqa: E402
from hybridkv.adapters.transformers import PrefixReuse  # noqa: E402
from hybridkv.adapters.transformers.rebuild import rebuilt  # noqa: E402
from hybridkv.adapters.transformers.store import Store  # noqa: E402
from hybridkv.errors import ArgumentError, RestoreRefused  # noqa: E402

RECURRENT = ["qwen3_next", "qwen3_5_text", "bamba", "jamba", "nemotron_h"]
ROUNDING = 1e-3  # far above what chunking changes in these models, far below what a wrong state does


@pytest.fixture(scope="module")
def v4() -> Any:
    return tiny_models.tiny("deepseek_v4")


def made(model: Any, **arguments: Any) -> PrefixReuse:
    return PrefixReuse(model, memory_bytes=8 << 20, **arguments)


def going_on(reuse: PrefixReuse, past: Any, ids: torch.Tensor, start: int) -> torch.Tensor:
    return reuse._runner.run(ids[:, start:], past, start, all_logits=True)


def cached(reuse: PrefixReuse, past: Any) -> dict[str, Any]:
    """The argument that hands a cache to the model."""
    return {reuse._runner.cache_argument: past}


def tensors_of(past: Any) -> Iterator[tuple[int, str, torch.Tensor]]:
    for index, layer in enumerate(past.layers):
        for name, value in vars(layer).items():
            entries = value if isinstance(value, dict) else {"": value}
            for entry, tensor in entries.items():
                if isinstance(tensor, torch.Tensor):
                    yield index, f"{name}.{entry}", tensor


# -- padding -----------------------------------------------------------------------------------------------


def test_hazard_left_padding_goes_into_compressed_windows(v4: Any) -> None:
    ids = prompts()
    pads = torch.zeros(1, 5, dtype=torch.int64)
    mask = torch.cat([pads, torch.ones_like(ids)], dim=1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    padded = logits_of(v4, torch.cat([pads, ids], dim=1), attention_mask=mask, position_ids=positions)
    alone = logits_of(v4, ids)
    assert (padded[:, -1] - alone[:, -1]).abs().max() > 0.1  # the hazard

    reuse = made(v4)
    out = reuse.forward(torch.cat([pads, ids], dim=1), mask)
    assert (out.logits[:, -1] - alone[:, -1]).abs().max() < ROUNDING
    got = reuse.generate(torch.cat([pads, ids], dim=1), attention_mask=mask, **GREEDY)
    assert torch.equal(got[:, 5:], answered(v4, ids))
    # What it stored is the state of the row, not of the padded one.
    assert reuse.cache.match(reuse.keys([0] * 5 + ids[0].tolist())).outcome is Outcome.MISS
    again = reuse.generate(torch.cat([ids, prompts(seed=1)], dim=1), **GREEDY)
    assert reuse.last_rows[0].usable == 60 and torch.equal(
        again, answered(v4, torch.cat([ids, prompts(seed=1)], dim=1))
    )


@pytest.mark.parametrize("name", ["llama", "deepseek_v4", "bamba"])
def test_hazard_a_prompt_may_contain_the_padding_id(name: str) -> None:
    model = tiny_models.tiny(name)
    ids = prompts()
    ids[0, :9] = 0
    ids[0, 30] = 0
    own = {**GREEDY, "pad_token_id": 0}
    inferred = model.generate(ids, **own)
    wanted = answered(model, ids, pad_token_id=0)
    if name != "deepseek_v4":  # whose compressed windows ignore the mask
        assert not torch.equal(inferred, wanted)  # the hazard: the mask was inferred, and masks tokens of the prompt
    reuse = made(model)
    for _ in range(2):
        assert torch.equal(reuse.generate(ids, **own), wanted)
    longer = torch.cat([wanted, torch.zeros(1, 3, dtype=torch.int64)], dim=1)
    assert torch.equal(reuse.generate(longer, **own), answered(model, longer, pad_token_id=0))
    assert reuse.last_rows[0].usable == 65


# -- who writes, and what is shared ------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECURRENT)
def test_hazard_recurrent_states_are_written_in_place(name: str) -> None:
    model = tiny_models.tiny(name)
    reuse = made(model)
    ids = prompts(2)
    past = reuse.forward(ids[:, :40]).past
    before = {(index, path): (tensor, tensor.clone()) for index, path, tensor in tensors_of(past)}
    going_on(reuse, past, ids[:, :46], 40)
    now = {(index, path): tensor for index, path, tensor in tensors_of(past)}
    assert any(now[key] is held and not torch.equal(held, old) for key, (held, old) in before.items())  # the hazard

    wanted = answered(model, ids)
    for _ in range(2):  # the second call resumes from what the first one stored and went on from
        assert torch.equal(reuse.generate(ids, **GREEDY), wanted)
        assert [row.usable for row in reuse.last_rows] in ([40, 40], [48, 48])


@pytest.mark.parametrize("name", tiny_models.ARCHITECTURES)
def test_hazard_the_callers_cache_is_no_part_of_what_is_stored(name: str) -> None:
    model = tiny_models.tiny(name)
    reuse = made(model)
    ids = prompts(2)
    out = reuse.forward(ids[:, :40])
    stored = {group: pool.clone() for group, pool in reuse.pages.pools.items()}
    for past in (out.past, out.past_of(1)):
        for _, _, tensor in tensors_of(past):
            tensor.fill_(7)
    assert all(torch.equal(pool, stored[group]) for group, pool in reuse.pages.pools.items())
    assert torch.equal(reuse.generate(ids, **GREEDY), answered(model, ids))
    assert [row.usable for row in reuse.last_rows] == [40, 40]


def test_hazard_a_view_keeps_the_storage_that_it_was_cut_from(v4: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    live = DynamicCache(config=v4.config)
    reuse = made(v4)
    reuse._runner.run(prompts(2, 200), live, 0)
    assert any(t.untyped_storage().nbytes() > 2 * t.nbytes for _, _, t in tensors_of(live))  # the hazard

    kept: list[torch.Tensor] = []
    publish = Store.publish

    def seen(self: Store, keys: Any, written: Any, in_use: Any, **more: Any) -> bool:
        for name, blocks in written.items():
            if reuse.pages.groups[name].coverage.rule != 0:  # windows and checkpoints: they wait for their boundary
                kept.extend(tensor for content in blocks.values() for tensor in content.state.values())
        return publish(self, keys, written, in_use)

    monkeypatch.setattr(Store, "publish", seen)
    out = reuse.forward(prompts(2, 200))
    assert kept
    for tensor in [*kept, *(tensor for _, _, tensor in tensors_of(out.past)), *(row.logits for row in out.rows)]:
        assert tensor.untyped_storage().nbytes() == tensor.nbytes


def test_hazard_keys_and_values_are_one_tensor_where_the_layer_says_so(v4: Any) -> None:
    live = DynamicCache(config=v4.config)
    reuse = made(v4)
    reuse._runner.run(prompts(2), live, 0)
    out = reuse.forward(prompts(2))
    shared = [layer.values is layer.keys for layer in live.layers]
    assert shared == [False, True, True, True, True]  # the hazard
    for past in (out.past, out.past_of(0)):
        assert [layer.values is layer.keys for layer in past.layers] == shared
        assert past.layers[0].values.data_ptr() != past.layers[0].keys.data_ptr()


def test_hazard_a_shallow_copy_moves_with_the_original(v4: Any) -> None:
    reuse = made(v4)
    ids = prompts()
    out = reuse.forward(ids[:, :50])
    layer = copy.copy(out.past.layers[1])
    going_on(reuse, out.past, ids, 50)
    assert (layer.cumulative_length, layer.entry_count["compressor"]) == (50, 15)  # the hazard: half of it moved
    assert torch.equal(reuse.generate(ids, **GREEDY), answered(v4, ids))
    assert reuse.last_rows[0].usable == 50


# -- positions ---------------------------------------------------------------------------------------------


def test_hazard_bamba_counts_from_zero_without_positions() -> None:
    model = tiny_models.tiny("bamba")
    reuse = made(model)
    ids = prompts()
    whole = logits_of(model, ids)[:, 50:]
    past = reuse.forward(ids[:, :50]).past
    without = logits_of(model, ids[:, 50:], **cached(reuse, past))
    assert (without - whole).abs().max() > 0.1  # the hazard
    out = reuse.forward(ids)
    assert out.rows[0].usable == 50 and (out.logits - whole).abs().max() < ROUNDING
    assert torch.equal(reuse.generate(ids, **GREEDY), answered(model, ids))


def test_hazard_jamba_starts_anew_where_more_than_one_token_comes_in() -> None:
    model = tiny_models.tiny("jamba")
    reuse = made(model)
    ids = prompts()
    whole = logits_of(model, ids)[:, 50:]
    past = reuse.forward(ids[:, :50]).past
    together = logits_of(model, ids[:, 50:], position_ids=torch.arange(50, 60)[None], **cached(reuse, past))
    assert (together - whole).abs().max() > 0.1  # the hazard
    out = reuse.forward(ids)
    assert out.rows[0].usable == 50 and (out.logits - whole).abs().max() < ROUNDING
    assert torch.equal(reuse.generate(ids, **GREEDY), answered(model, ids))
    for arguments in ({"checkpoint_tokens": 16}, {"chunk_tokens": 7}):
        assert torch.equal(made(model, **arguments).generate(ids, **GREEDY), answered(model, ids))


def test_hazard_layers_may_disagree_about_the_position(v4: Any) -> None:
    reuse = made(v4)
    ids = prompts()
    right = going_on(reuse, reuse.forward(ids[:, :50]).past, ids, 50)
    past = reuse.forward(ids[:, :50]).past
    past.layers[0].cumulative_length += 16
    assert not torch.equal(logits_of(v4, ids[:, 50:], **cached(reuse, past)), right)  # the hazard: nothing was raised
    past = reuse.forward(ids[:, :50]).past
    past.layers[3].cumulative_length -= 1
    with pytest.raises(RestoreRefused) as caught:
        reuse.measured.layout.state(past, 50)
    assert caught.value.code == "lagging" and "layers[3]" in str(caught.value)


def test_hazard_keys_and_values_alone_are_another_state(v4: Any) -> None:
    reuse = made(v4)
    ids = prompts()
    full = reuse.forward(ids[:, :50]).past
    obvious = DynamicCache(config=v4.config)
    for index, layer in enumerate(full.layers):
        obvious.update(layer.keys, layer.values, index)
    assert obvious.get_seq_length() == 15  # the hazard: it should be 50, and the next forward says nothing
    assert (logits_of(v4, ids[:, 50:], **cached(reuse, obvious)) - logits_of(v4, ids)[:, 50:]).abs().max() > 0.1
    assert full.get_seq_length() == 50
    with pytest.raises(RestoreRefused):
        reuse.measured.layout.state(obvious, 50)


# -- what callers do to caches -----------------------------------------------------------------------------


def test_hazard_crop_takes_back_a_part_of_the_state(v4: Any) -> None:
    reuse = made(v4)
    ids = prompts()
    past = reuse.forward(ids[:, :10]).past
    assert past.is_croppable
    past.crop(-1)
    cropped = going_on(reuse, past, ids[:, :20], 9)
    assert (cropped - logits_of(v4, ids[:, :20])[:, 9:]).abs().max() > 0.1  # the hazard
    past = reuse.forward(ids[:, :10]).past
    past.crop(-1)
    with pytest.raises(RestoreRefused):
        reuse.measured.layout.state(past, 9)
    # Whatever takes tokens back is refused; the stored states never saw it.
    for arguments in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": v4}, {"use_mtp": True}):
        with pytest.raises(ArgumentError):
            reuse.generate(ids, max_new_tokens=4, **arguments)
    assert torch.equal(reuse.generate(ids[:, :20], **GREEDY), answered(v4, ids[:, :20]))
    assert reuse.last_rows[0].usable == 10


def test_hazard_a_layer_that_records_its_past_is_refused(v4: Any) -> None:
    reuse = made(v4)
    past = reuse.forward(prompts()).past
    past.layers[0].record_past = True
    with pytest.raises(RestoreRefused, match="record_past"):
        reuse.measured.layout.state(past, 60)


def test_hazard_rows_are_not_repeated_in_the_cache(v4: Any) -> None:
    reuse = made(v4)
    ids = prompts(2)
    past = reuse.forward(ids[:, :50]).past
    past.batch_repeat_interleave(2)
    with pytest.raises(RuntimeError):
        logits_of(v4, ids[:, 50:].repeat_interleave(2, dim=0), **cached(reuse, past))  # the hazard
    torch.manual_seed(5)
    wanted = answered(v4, ids, do_sample=True, num_return_sequences=3)
    torch.manual_seed(5)
    assert torch.equal(reuse.generate(ids, **{**GREEDY, "do_sample": True}, num_return_sequences=3), wanted)
    assert [row.usable for row in reuse.last_rows] == [50] * 6
    assert_idle(reuse)


def test_hazard_beams_reorder_rows_in_the_cache(v4: Any) -> None:
    reuse = made(v4)
    for arguments in ({"num_beams": 2}, {"generation_config": GenerationConfig(num_beams=2, max_new_tokens=4)}):
        with pytest.raises(ArgumentError) as caught:
            reuse.generate(prompts(2), **arguments)
        assert caught.value.field == "num_beams"
    # Rows are put together by the adapter itself, in any order.
    ids = prompts(3)
    parts = [reuse.forward(ids[row : row + 1, :50]).past for row in (2, 0)]
    layout = reuse.measured.layout
    both = rebuilt(layout, [layout.state(past, 50) for past in parts], 50)
    one_by_one = [
        going_on(reuse, reuse.forward(ids[row : row + 1, :50]).past, ids[row : row + 1], 50) for row in (2, 0)
    ]
    together = going_on(reuse, both, ids[[2, 0]], 50)
    assert (together - torch.cat(one_by_one)).abs().max() < ROUNDING


@pytest.mark.parametrize("name", ["deepseek_v4", "qwen3_next", "gemma3_text"])
def test_hazard_rows_of_one_cache_share_a_position(name: str) -> None:
    model = tiny_models.tiny(name)
    reuse = made(model)
    ids = prompts(3)
    reuse.forward(ids[:1, :50])
    reuse.forward(ids[1:2, :33])
    assert torch.equal(reuse.generate(ids, **GREEDY), answered(model, ids))
    assert [row.usable for row in reuse.last_rows] == [50, 33, 0]
    out = reuse.forward(torch.cat([ids, prompts(3, 5, seed=3)], dim=1))
    assert {row.usable for row in out.rows} == {60} and out.past.get_seq_length() == 65


def test_hazard_offloading_moves_keys_and_values_only(v4: Any) -> None:
    reuse = made(v4)
    for kind in ("offloaded", "offloaded_static", "static", "quantized"):
        for arguments in (
            {"cache_implementation": kind},
            {"generation_config": GenerationConfig(cache_implementation=kind, max_new_tokens=4)},
        ):
            with pytest.raises(ArgumentError) as caught:
                reuse.generate(prompts(), **arguments)
            assert caught.value.field == "cache_implementation"


# -- caches and layers before their first token --------------------------------------------------------------


def test_hazard_a_cache_without_configuration_has_other_layers(v4: Any) -> None:
    reuse = made(v4)
    ids = prompts()
    with pytest.raises(AttributeError):
        logits_of(v4, ids, **cached(reuse, DynamicCache()))  # the hazard
    for argument in ("cache", "past_key_values"):
        with pytest.raises(ArgumentError) as caught:
            reuse.generate(ids, max_new_tokens=4, **{argument: DynamicCache()})
        assert caught.value.field == argument
    live = DynamicCache(config=v4.config)
    reuse._runner.run(ids, live, 0)
    for past in (reuse.forward(ids).past, reuse.forward(ids).past_of(0)):
        assert [type(layer) for layer in past.layers] == [type(layer) for layer in live.layers]


@pytest.mark.parametrize("name", tiny_models.ARCHITECTURES)
def test_hazard_flags_and_counts_of_a_restored_layer_are_set(name: str) -> None:
    model = tiny_models.tiny(name)
    reuse = made(model)
    ids = prompts()
    live = DynamicCache(config=model.config)
    reuse._runner.run(ids, live, 0)
    restored = reuse.forward(ids).past
    for ours, theirs in zip(restored.layers, live.layers, strict=True):
        assert set(vars(ours)) == set(vars(theirs))
        for attribute, value in vars(theirs).items():
            if not isinstance(value, torch.Tensor | dict):
                assert getattr(ours, attribute) == value, attribute
    longer = torch.cat([ids, prompts(seed=2)], dim=1)
    own = 0.1 if name == "nemotron_h" else ROUNDING  # its single steps round otherwise than its chunks
    for length in (61, 77, 120):
        logits = going_on(reuse, reuse.forward(ids).past_of(0), longer[:, :length], 60)
        assert (logits - logits_of(model, longer[:, :length])[:, 60:]).abs().max() < own


@pytest.mark.parametrize("name", tiny_models.ARCHITECTURES)
def test_hazard_a_prompt_of_one_token_starts_from_an_empty_cache(name: str) -> None:
    model = tiny_models.tiny(name)
    reuse = made(model)
    for tokens in (1, 2, 1, 3):
        ids = prompts(1, tokens)
        assert torch.equal(reuse.generate(ids, **GREEDY), answered(model, ids))
    assert reuse.last_rows[0].usable == 2  # the end of the second prompt


def test_what_rounding_stands_on() -> None:
    """A model's own difference between whole and chunked is below it, where chunks are possible."""
    for name in tiny_models.ARCHITECTURES:
        model = tiny_models.tiny(name)
        ids = prompts()[0].tolist()
        step = 1 if name in ("jamba", "bamba") else 16
        own = float((in_chunks(model, ids, step) - in_chunks(model, ids, 60)).abs().max())
        assert own < ROUNDING, name
