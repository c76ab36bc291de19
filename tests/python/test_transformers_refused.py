# SPDX-License-Identifier: Apache-2.0
"""PrefixReuse: models, settings and inputs that are refused, each by its name."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import hybridkv as hk  # noqa: E402
import tiny_models  # noqa: E402
from hybridkv.adapters.transformers import PrefixReuse  # noqa: E402
from hybridkv.demo.models import tiny_deepseek_v4  # noqa: E402
from reuse_support import some_ids  # noqa: E402


@pytest.fixture(scope="module")
def v4() -> Any:
    return tiny_deepseek_v4(3)


def test_rows_of_another_dtype_are_refused(v4: Any) -> None:
    reuse = PrefixReuse(v4, memory_bytes=8 << 20)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(hk.ArgumentError, match="autocast"):
        reuse.forward(some_ids(40))
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(hk.ArgumentError, match="autocast"):
        PrefixReuse(v4, memory_bytes=8 << 20)
    attention = v4.model.layers[0].self_attn
    forward = attention.kv_proj.forward
    attention.kv_proj.forward = lambda x: forward(x).to(torch.bfloat16).double()  # as some wrapper might
    try:
        with pytest.raises((hk.RestoreRefused, RuntimeError)):
            reuse.forward(some_ids(40))
    finally:
        del attention.kv_proj.forward
    assert reuse.cache.metrics().pending == 0 and reuse.cache.metrics().leaks == 0


def test_two_models_share_a_cache_only_if_they_are_one(v4: Any) -> None:
    spec = PrefixReuse.spec_of(v4)
    cache = hk.HybridCache(spec, blocks=64)
    PrefixReuse(v4, cache=cache)
    with pytest.raises(hk.ArgumentError, match="without pools"):
        PrefixReuse(v4, cache=cache)
    with pytest.raises(hk.ArgumentError, match="cache"):
        PrefixReuse(tiny_deepseek_v4(5), cache=hk.HybridCache(spec, blocks=64))
    with pytest.raises(hk.ArgumentError, match="cache"):
        PrefixReuse(v4, cache=object())


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"input_ids": [[1, 2], [3]]}, "input_ids"),
        ({"input_ids": [[1.5, 2.0]]}, "input_ids"),
        ({"input_ids": [[]]}, "input_ids"),
        ({"input_ids": [[[1]]]}, "input_ids"),
        ({"input_ids": [[-1, 3]]}, "input_ids"),
        ({"input_ids": "text"}, "input_ids"),
        ({"input_ids": [[256, 3]]}, "input_ids"),
        ({"input_ids": [[1, 2]], "attention_mask": [[1, 0]]}, "attention_mask"),
        ({"input_ids": [[1, 2, 3]], "attention_mask": [[1, 0, 1]]}, "attention_mask"),
        ({"input_ids": [[1, 2]], "attention_mask": [[0, 0]]}, "attention_mask"),
        ({"input_ids": [[1, 2]], "attention_mask": [[1, 1, 1]]}, "attention_mask"),
        ({"input_ids": [[1, 2]], "attention_mask": [[1, 2]]}, "attention_mask"),
    ],
)
def test_bad_inputs_are_refused_by_name(v4: Any, arguments: dict[str, Any], field: str) -> None:
    reuse = PrefixReuse(v4, memory_bytes=4 << 20)
    with pytest.raises(hk.ArgumentError) as caught:
        reuse.forward(**arguments)
    assert caught.value.field == field
    assert reuse.cache.metrics().lookups == 0


@pytest.mark.parametrize(
    ("arguments", "error", "field"),
    [
        ({"unit_tokens": 10}, hk.ArgumentError, "unit_tokens"),
        ({"unit_tokens": 0}, hk.ArgumentError, "unit_tokens"),
        ({"checkpoint_tokens": 24}, hk.ArgumentError, "checkpoint_tokens"),
        ({"memory_bytes": 1000}, hk.ArgumentError, "memory_bytes"),
        ({"chunk_tokens": 0}, hk.ArgumentError, "chunk_tokens"),
        ({"verify": "some"}, hk.ArgumentError, "verify"),
        ({"tier": "disk"}, hk.ArgumentError, "tier"),
        ({"identity": "me"}, hk.SpecError, "identity"),
        ({"policy": 3}, hk.ArgumentError, "policy"),
        ({"replay": "no"}, hk.ArgumentError, "replay"),
        ({"keep_tips": "x"}, hk.ArgumentError, "keep_tips"),
        ({"weights": 3}, hk.ArgumentError, "weights"),
        ({"memory_bytes": "1"}, hk.ArgumentError, "memory_bytes"),
    ],
)
def test_bad_settings_are_refused_by_name(v4: Any, arguments: dict[str, Any], error: Any, field: str) -> None:
    with pytest.raises(error) as caught:
        PrefixReuse(v4, **arguments)
    assert field in caught.value.field


def test_models_that_cannot_be_served_are_refused(v4: Any) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    unknown = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(
            "gpt2", vocab_size=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=None, eos_token_id=None
        )
    ).eval()
    with pytest.raises(hk.UnsupportedModel, match="model_type"):
        PrefixReuse(unknown)
    training = tiny_deepseek_v4(6).train()
    with pytest.raises(hk.ArgumentError, match="eval"):
        PrefixReuse(training)
    with pytest.raises(hk.ArgumentError, match="model"):
        PrefixReuse("deepseek")
    reuse = PrefixReuse(training.eval(), memory_bytes=4 << 20)
    training.train()
    with pytest.raises(hk.ArgumentError, match="eval"):
        reuse.forward(some_ids(4))


@pytest.mark.parametrize("name", tiny_models.ARCHITECTURES)
def test_the_trial_finds_out_how_a_model_goes_on(name: str) -> None:
    reuse = PrefixReuse(tiny_models.tiny(name), memory_bytes=8 << 20)
    assert reuse._runner.single_steps == reuse.measured.layout.family.single_steps == (name == "jamba")


def test_a_model_that_goes_on_wrongly_is_refused() -> None:
    """As DeepSeek-V4 does in transformers 5.8: neither in chunks nor token by token is it the whole prompt."""
    model = tiny_deepseek_v4(7)
    attention = model.model.layers[1].self_attn
    forward = attention.forward

    def forgetting(*arguments: Any, **more: Any) -> Any:
        output, weights = forward(*arguments, **more)
        past = more["cache"] if "cache" in more else more["past_key_values"]
        return output * (1.0 if past.get_seq_length() == output.shape[1] else 0.5), weights

    attention.forward = forgetting
    with pytest.raises(hk.UnsupportedModel, match="token by token"):
        PrefixReuse(model)


def test_encoders_and_models_made_for_inference() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    encoder = T5ForConditionalGeneration(
        T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    )
    with pytest.raises(hk.UnsupportedModel, match="t5"):
        PrefixReuse(encoder.eval())
    with torch.inference_mode():
        model = tiny_deepseek_v4(8)
    reuse = PrefixReuse(model, memory_bytes=8 << 20)
    ids = some_ids(50)
    reuse.forward(ids[:, :40])
    assert reuse.forward(ids).rows[0].usable == 40


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
def test_rotation_by_the_length_of_the_sequence_is_refused(rope_type: str) -> None:
    model = tiny_models.tiny("llama")
    told = {"rope_type": rope_type, "rope_theta": 10000.0, "factor": 4.0}
    if rope_type == "longrope":
        told |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 64}
    model.config.rope_parameters = told
    with pytest.raises(hk.UnsupportedModel, match=rope_type):
        PrefixReuse(model)
    model.config.rope_parameters = {"full_attention": told}
    with pytest.raises(hk.UnsupportedModel, match=rope_type):
        PrefixReuse(model)


def test_pools_outlive_where_they_were_made(v4: Any) -> None:
    ids = some_ids(50)
    llama = tiny_models.tiny("llama")
    with torch.inference_mode():
        reuse = PrefixReuse(v4, memory_bytes=4 << 20)
    reuse.forward(ids[:, :40])
    assert reuse.forward(ids).rows[0].usable == 40
    with torch.device("meta"):
        reuse = PrefixReuse(llama, memory_bytes=4 << 20)
    reuse.forward(ids[:, :40])
    assert reuse.forward(ids).rows[0].usable == 40


def test_a_model_whose_state_is_not_all_in_its_cache_is_refused(v4: Any) -> None:
    """The trial at start: a layer that remembers something elsewhere does not continue bit for bit."""
    model = tiny_deepseek_v4(7)
    attention = model.model.layers[2].self_attn
    forward = attention.forward
    calls: list[int] = []

    def remembering(*arguments: Any, **more: Any) -> Any:
        calls.append(1)
        output, weights = forward(*arguments, **more)
        return output + 0.01 * len(calls), weights

    attention.forward = remembering
    with pytest.raises(hk.UnsupportedModel, match="restored state"):
        PrefixReuse(model)


def test_a_recurrent_state_that_will_not_be_read_is_refused() -> None:
    reuse = PrefixReuse(tiny_models.tiny("qwen3_next"), memory_bytes=8 << 20)
    past = reuse.forward(some_ids(20)).past
    layer = past.layers[0]
    layer.has_previous_state = dict.fromkeys(layer.has_previous_state, False)
    with pytest.raises(hk.RestoreRefused) as caught:
        reuse.measured.layout.state(past, 20)
    assert caught.value.code == "missing" and "has_previous_state" in caught.value.field


def test_pools_that_were_exchanged_are_refused(v4: Any) -> None:
    reuse = PrefixReuse(v4, memory_bytes=8 << 20)
    reuse.cache.bind("swa", reuse.pages.arrays("swa").copy())
    with pytest.raises(hk.ArgumentError, match="'swa'"):
        reuse.forward(some_ids(20))


def test_a_model_of_another_dtype_than_before_is_refused() -> None:
    model = tiny_models.tiny("llama")
    reuse = PrefixReuse(model, memory_bytes=8 << 20)
    model.to(torch.float64)
    with pytest.raises(hk.ArgumentError, match="as when this PrefixReuse was made"):
        reuse.forward(some_ids(20))


def test_a_part_of_the_model_in_training_mode_is_refused(v4: Any) -> None:
    model = tiny_deepseek_v4(9)
    model.model.layers[2].train()
    with pytest.raises(hk.ArgumentError, match=r"layers\.2"):
        PrefixReuse(model)


def test_a_cache_over_another_spec_is_refused_by_the_field(v4: Any) -> None:
    for settings, field in (({"replay": False}, "rebuildable"), ({"unit_tokens": 32}, "unit_tokens")):
        other = PrefixReuse.spec_of(v4, **settings)
        with pytest.raises(hk.ArgumentError) as caught:
            PrefixReuse(v4, cache=hk.HybridCache(other, blocks=64))
        assert caught.value.field.endswith(field) and len(str(caught.value)) < 400
