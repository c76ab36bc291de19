# SPDX-License-Identifier: Apache-2.0
"""Hazards of models, one test each: what is no prefix state, or no longer one, and that it is refused or noticed."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache  # noqa: E402

import tiny_models  # noqa: E402
from conversations import GREEDY, answered, assert_idle, in_chunks, logits_of, prompts  # noqa: E402
from hybridkv import HybridCache  # noqa: E402
from hybridkv.adapters.transformers import PrefixReuse  # noqa: E402
from hybridkv.adapters.transformers.runner import Runner  # noqa: E402
from hybridkv.errors import ArgumentError, UnsupportedModel  # noqa: E402


@pytest.fixture(scope="module")
def v4() -> Any:
    return tiny_models.tiny("deepseek_v4")


def made(model: Any) -> PrefixReuse:
    return PrefixReuse(model, memory_bytes=8 << 20)


def test_hazard_there_is_more_than_one_way_to_bfloat16() -> None:
    cast = tiny_models.tiny("deepseek_v4").to(torch.bfloat16)
    loaded = tiny_models.tiny("deepseek_v4", dtype=torch.bfloat16)
    ours, theirs = PrefixReuse.spec_of(cast), PrefixReuse.spec_of(loaded)
    dtypes = [{p.dtype for n, p in model.named_parameters() if "position_bias" in n} for model in (cast, loaded)]
    assert dtypes == [{torch.bfloat16}, {torch.float32}]  # the hazard: same configuration, other rounding
    assert ours.groups != theirs.groups and ours.identity != theirs.identity
    with pytest.raises(ArgumentError) as caught:
        PrefixReuse(loaded, cache=HybridCache(ours, blocks=32))
    assert caught.value.field.startswith("cache.spec.groups[")
    for model in (cast, loaded):
        reuse = made(model)
        ids = prompts()
        first = reuse.generate(ids, **GREEDY)
        reuse.generate(first, **GREEDY)
        assert reuse.last_rows[0].usable == 65


def test_hazard_training_mode_drops_out(v4: Any) -> None:
    reuse = made(v4)
    ids = prompts()
    wanted = reuse.generate(ids, **GREEDY)
    v4.train()
    try:
        for call in (lambda: reuse.generate(ids, **GREEDY), lambda: reuse.forward(ids), lambda: made(v4)):
            with pytest.raises(ArgumentError) as caught:
                call()
            assert caught.value.field == "model"
    finally:
        v4.eval()
    assert torch.equal(reuse.generate(ids, **GREEDY), wanted)
    assert_idle(reuse)


def test_hazard_weights_change_under_the_cache() -> None:
    model = tiny_models.tiny("deepseek_v4")
    reuse = made(model)
    ids = prompts()
    reuse.generate(ids, **GREEDY)
    other = tiny_models.tiny("deepseek_v4", seed=3).state_dict()
    for change in (
        lambda: model.load_state_dict(other),
        lambda: [p.mul_(1.1) for p in model.parameters()],
        lambda: [p.data.mul_(1.1) for p in model.parameters()],  # which torch does not count as a change
        lambda: model.lm_head.weight.copy_(other["lm_head.weight"].flip(0)),
        lambda: setattr(model.lm_head, "weight", torch.nn.Parameter(other["lm_head.weight"].clone())),
    ):
        with torch.no_grad():
            change()
        assert torch.equal(reuse.generate(ids, **GREEDY), answered(model, ids))
        assert reuse.last_rows[0].usable == 0  # nothing of the old weights
        assert torch.equal(reuse.generate(ids, **GREEDY), answered(model, ids))
        assert reuse.last_rows[0].usable == 48  # the new ones are reused again
    assert_idle(reuse)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "factor": 4.0},
        {
            "rope_type": "longrope",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "short_factor": [1.0] * 8,
            "long_factor": [3.0] * 8,
        },
    ],
    ids=["dynamic", "longrope"],
)
def test_hazard_rotation_by_the_length_of_the_prompt(rope: dict[str, Any]) -> None:
    model = tiny_models.tiny("llama")
    fields = model.config.to_dict()
    fields.update(rope_parameters={"rope_theta": 10000.0, **rope}, max_position_embeddings=64)
    config = AutoConfig.for_model(**{name: value for name, value in fields.items() if name != "transformers_version"})
    config._attn_implementation = "eager"
    turning = AutoModelForCausalLM.from_config(config).eval()
    ids = prompts(1, 90)[0].tolist()
    chunked, whole = in_chunks(turning, ids, 16), in_chunks(turning, ids, 90)
    assert (chunked - whole)[-1].abs().max() > 0.1  # the hazard: rows of a short prefix are not those of a long one
    with pytest.raises(UnsupportedModel) as caught:
        made(turning)
    assert caught.value.field == "rope_parameters"


def test_hazard_attention_to_later_tokens() -> None:
    fields = {**tiny_models.tiny("gemma3_text").config.to_dict(), "use_bidirectional_attention": True}
    config = AutoConfig.for_model(**{name: value for name, value in fields.items() if name != "transformers_version"})
    config._attn_implementation = "eager"
    with pytest.raises(UnsupportedModel) as caught:
        made(AutoModelForCausalLM.from_config(config).eval())
    assert caught.value.field == "use_bidirectional_attention"


def test_hazard_autocast_makes_rows_of_another_dtype(v4: Any) -> None:
    reuse = made(v4)
    ids = prompts()
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ArgumentError, match="autocast"):
        reuse.generate(ids, **GREEDY)
    assert_idle(reuse)
    assert torch.equal(reuse.generate(ids, **GREEDY), answered(v4, ids))


def test_hazard_the_argument_of_the_cache_was_renamed() -> None:
    class Renamed(torch.nn.Module):
        device = torch.device("cpu")

        def forward(self, input_ids: Any = None, past_key_values: Any = None, use_cache: bool = True) -> None:
            raise NotImplementedError

    assert Runner(Renamed(), single_steps=False).cache_argument == "past_key_values"
    model = tiny_models.tiny("llama")
    argument = Runner(model, single_steps=False).cache_argument
    past = DynamicCache(config=model.config)
    logits_of(model, prompts(), **{argument: past})
    assert past.get_seq_length() == 60
