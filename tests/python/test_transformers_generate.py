# SPDX-License-Identifier: Apache-2.0
"""``generate`` through PrefixReuse gives the tokens of ``model.generate``: 100 conversations of ten architectures, and
300 in a soak.

Pools are too small for them, so that pages are evicted all the time; several conversations of different length and
of different reusable length go into one call. See :mod:`conversations` for what they do and what is a tie.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

import conversations  # noqa: E402
import tiny_models  # noqa: E402
from conversations import SETTINGS, TIE, Call, Setting, Tally, play  # noqa: E402
from hybridkv.adapters.transformers.families import FAMILIES  # noqa: E402
from hybridkv.adapters.transformers.pages import Pages  # noqa: E402
from hybridkv.demo.models import tiny_deepseek_v4  # noqa: E402

SOAK = os.environ.get("HYBRIDKV_SOAK") == "1"
CONVERSATIONS = 5  # of each setting that an architecture plays
TURNS = 4
PLAYED = len(SETTINGS) if SOAK else 2  # settings of an architecture; together they play all
TOTAL = CONVERSATIONS * PLAYED * len(tiny_models.ARCHITECTURES)


@functools.cache
def played(name: str) -> Tally:
    """All conversations of one architecture."""
    model = tiny_models.tiny(name)
    total = Tally()
    first = list(tiny_models.ARCHITECTURES).index(name)
    for number in range(first, first + PLAYED):
        at = number % len(SETTINGS)
        total += play(model, SETTINGS[at], CONVERSATIONS, TURNS, seed=at)
    return total


@pytest.mark.parametrize("name", tiny_models.ARCHITECTURES)
def test_generate_gives_the_tokens_of_the_model(name: str) -> None:
    tally = played(name)
    assert tally.wrong == []
    assert tally.reused_tokens > tally.prompt_tokens // 4
    assert tally.mixed_calls > PLAYED and tally.padded_rows > 3 * PLAYED
    assert tally.edits > 0 and tally.early_ends > 0
    assert FAMILIES[name].replay or not tally.replayed_tokens


def test_all_conversations_together(capsys: pytest.CaptureFixture[str]) -> None:
    total = sum((played(name) for name in tiny_models.ARCHITECTURES), Tally())
    with capsys.disabled():
        print(f"\ngenerate: {total.told()}")
    assert total.conversations == TOTAL
    assert total.ties <= total.conversations // 100
    assert total.replayed_tokens > 0 and total.evictions > 200


# -- shapes of windows, units and pools that no sane model has ------------------------------------------


def odd(seed: int) -> tuple[Any, Setting, int, int]:
    """A model, a setting, and how many conversations of how many turns."""
    dice = np.random.default_rng(seed)
    name = ("deepseek_v4", "gemma3_text", "gpt_oss", *tiny_models.ARCHITECTURES)[dice.integers(13)]
    window = int(dice.choice([2, 3, 5, 16, 17, 32, 33, 40, 64]))
    unit = int(dice.choice([1, 3, 7, 8, 16, 24]))
    dtype = (None, None, None, torch.float64)[dice.integers(4)]
    if name == "deepseek_v4":
        csa, hca = ((4, 16), (4, 8), (4, 6), (2, 8), (4, 32), (8, 16))[dice.integers(6)]
        model = tiny_deepseek_v4(seed, window=window, csa=csa, hca=hca, dtype=dtype)
        unit = int(np.lcm(csa, hca) * dice.integers(1, 4))
    elif name in ("gemma3_text", "gpt_oss"):
        model = with_window(name, seed, window)
    else:
        model = tiny_models.tiny(name, seed, dtype)
    setting = Setting(
        stride_units=(None, 1, 2, 4)[dice.integers(4)],
        keep_tips=bool(dice.integers(2)),
        chunk_tokens=(None, None, 1, 5, 16, 23, 64)[dice.integers(7)],
        replay=bool(dice.integers(3)),
        sampling=bool(dice.integers(2)),
        system_tokens=(int(dice.integers(1, 60)), int(dice.integers(60, 150))),
        unit_tokens=unit,
        room_tokens=int(dice.integers(6, 60)) * 16,
        states=float(dice.choice([1, 0.5, 0.25])),
        descriptors=float(dice.choice([1, 3])),
    )
    return model, setting, int(dice.integers(2, 6)), int(dice.integers(2, 5))


def with_window(name: str, seed: int, window: int) -> Any:
    fields = {**tiny_models.tiny(name).config.to_dict(), "sliding_window": window}
    config = AutoConfig.for_model(**{key: value for key, value in fields.items() if key != "transformers_version"})
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("seed", range(12))
def test_odd_shapes(seed: int) -> None:
    assert play(*odd(seed), seed=seed).wrong == []


@pytest.mark.soak
def test_odd_shapes_for_long() -> None:
    for seed in range(12, 400):
        assert play(*odd(seed), seed=seed).wrong == [], seed


# -- that this can fail ----------------------------------------------------------------------------------


BREAKABLE = [
    ("deepseek_v4", "swa"),
    ("deepseek_v4", "overlap"),
    ("deepseek_v4", "csa"),
    ("gemma3_text", "swa"),
    ("qwen3_next", "state"),
    ("llama", "kv"),
]


@pytest.mark.parametrize(("name", "group"), BREAKABLE)
def test_a_state_that_comes_back_broken_is_a_wrong_answer(
    name: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Pages.read

    def broken(self: Pages, *args: Any, **kwargs: Any) -> Any:
        state = read(self, *args, **kwargs)
        return {place: rows * 0 if place.group == group else rows for place, rows in state.items()}

    monkeypatch.setattr(Pages, "read", broken)
    tally = play(tiny_models.tiny(name), Setting(1), 3, 3, seed=0)
    assert tally.reused_tokens > 0 and tally.wrong


def a_call(sampling: bool = False) -> Call:
    return Call(np.random.default_rng(0), Setting(1, sampling=sampling), [[5] * 40, [6] * 40])


def test_another_token_is_no_tie() -> None:
    model = tiny_models.tiny("llama")
    for sampling in (False, True):
        call = a_call(sampling)
        wanted = call._expected(model)
        for row, right in enumerate(wanted):
            other = [*right[:-1], (right[-1] + 1) % 256]
            assert "would be a tie" in call._judged(model, row, other, right, wanted)
            assert "expected" in call._judged(model, row, right[:-1], right, wanted)


def test_the_other_of_two_equal_tokens_is_a_tie() -> None:
    model = tiny_models.tiny("llama")
    call = a_call()
    call.arguments["eos_token_id"] = None
    first = call._expected(model)[0][0]
    twin = (first + 100) % 256
    with torch.no_grad():
        model.lm_head.weight[twin] = model.lm_head.weight[first]
    wanted = call._expected(model)
    right = wanted[0]
    other = [twin if token == first else first if token == twin else token for token in right]
    assert other != right and call._judged(model, 0, other, right, wanted) == TIE


def test_what_is_measured_as_the_models_own_difference() -> None:
    model = tiny_models.tiny("deepseek_v4")
    ids = conversations.random_ids(np.random.default_rng(0), 70)
    assert 0 < conversations.chunking_difference(model, ids) < 1e-3
    with torch.no_grad():
        assert torch.equal(conversations.in_chunks(model, ids, 70), model(input_ids=torch.tensor([ids])).logits[0])
