# SPDX-License-Identifier: Apache-2.0
"""The demo's two models: of like size, made anew the same, and with everything in them that the facts ask for."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is absent: the demo's models need it")
pytest.importorskip("transformers", reason="transformers is absent: the demo's models need it")

from hybridkv.demo.models import VOCABULARY, tiny_deepseek_v4, tiny_llama  # noqa: E402


def size(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_both_models_are_of_like_size_and_speak_bytes() -> None:
    ours, llama = tiny_deepseek_v4(), tiny_llama()
    assert 0.8 < size(llama) / size(ours) < 1.25
    for model in (ours, llama):
        assert model.config.vocab_size == VOCABULARY == 256
        assert not model.training
        assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize("make", [tiny_deepseek_v4, tiny_llama])
def test_a_seed_names_the_weights_and_the_global_random_state_is_left_alone(make: Any) -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, again, other = make(3).state_dict(), make(3).state_dict(), make(4).state_dict()
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_biases_sinks_and_the_table_of_experts_are_random() -> None:
    model = tiny_deepseek_v4()
    for name, parameter in model.named_parameters():
        if name.endswith(("position_bias", "sinks")):
            assert (parameter != 0).all(), name
    tables = [buffer for name, buffer in model.named_buffers() if name.endswith("tid2eid")]
    assert len(tables) == 2
    for table in tables:
        assert set(table.flatten().tolist()) == {0, 1, 2, 3}
        assert (table[:, 0] != table[:, 1]).all(), "a token goes to two experts, not twice to one"


def test_window_ratios_and_dtype_are_as_asked() -> None:
    model = tiny_deepseek_v4(window=32, csa=2, hca=8, dtype=torch.float64)
    assert model.config.sliding_window == 32
    assert sorted(model.config.compress_rates.values()) == [2, 8]
    assert next(model.parameters()).dtype == torch.float64
    assert next(tiny_llama(dtype=torch.bfloat16).parameters()).dtype == torch.bfloat16
    with torch.inference_mode():
        logits = model(torch.arange(40)[None]).logits
    assert logits.shape == (1, 40, VOCABULARY)
    assert logits.dtype == torch.float64
