# SPDX-License-Identifier: Apache-2.0
"""Options of ``generate``: each gives what ``model.generate`` gives, or is refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tokenizers import Regex, Tokenizer  # noqa: E402
from tokenizers.decoders import Fuse  # noqa: E402
from tokenizers.models import WordLevel  # noqa: E402
from tokenizers.pre_tokenizers import Split  # noqa: E402
from transformers import (  # noqa: E402
    GenerationConfig,
    MaxLengthCriteria,
    PreTrainedTokenizerFast,
    WatermarkingConfig,
)

import tiny_models  # noqa: E402
from conversations import GREEDY, assert_idle, prompts  # noqa: E402
from hybridkv.adapters.transformers import PrefixReuse  # noqa: E402
from hybridkv.errors import ArgumentError  # noqa: E402

PROMPT = 50
KNOWN = 40  # tokens of every prompt that are stored before
ENDS = list(range(110))  # so many that some row ends early


@pytest.fixture(scope="module", params=["llama", "deepseek_v4", "qwen3_next"])
def model(request: pytest.FixtureRequest) -> Any:
    return tiny_models.tiny(request.param)


@pytest.fixture(scope="module")
def llama() -> Any:
    return tiny_models.tiny("llama")


def left_padded() -> tuple[torch.Tensor, torch.Tensor]:
    """Three rows of 50, 43 and 47 tokens, and their mask."""
    mask = torch.ones(3, PROMPT, dtype=torch.int64)
    mask[1, :7] = 0
    mask[2, :3] = 0
    return prompts(3, PROMPT) * mask, mask


def warm(model: Any, ids: torch.Tensor) -> PrefixReuse:
    reuse = PrefixReuse(model, memory_bytes=8 << 20)
    reuse.forward(ids[:, :KNOWN])
    return reuse


def both(model: Any, ids: torch.Tensor, make: Callable[[], dict[str, Any]]) -> tuple[Any, Any]:
    """What the model and what the reuse answer, each from the same seed and with arguments of its own."""
    reuse = warm(model, ids)
    torch.manual_seed(11)
    wanted = model.generate(ids, attention_mask=torch.ones_like(ids), **make())
    torch.manual_seed(11)
    got = reuse.generate(ids, **make())
    assert [row.usable for row in reuse.last_rows] == [KNOWN] * len(got if isinstance(got, torch.Tensor) else got[0])
    assert_idle(reuse)
    return wanted, got


def fixed(**arguments: Any) -> Callable[[], dict[str, Any]]:
    return lambda: dict(arguments)


def keeps_even(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    allowed = torch.arange(scores.shape[-1]) % 2 == (input_ids[:, -1:] % 2)
    return scores.masked_fill(~allowed, -torch.inf)


class StopAtRow:
    """Stops the first row after so many tokens; others go on."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        stop = torch.zeros(input_ids.shape[0], dtype=torch.bool)
        stop[0] = input_ids.shape[1] >= self.tokens
        return stop


SAME: dict[str, Callable[[], dict[str, Any]]] = {
    "greedy": fixed(**GREEDY),
    "one_token": fixed(max_new_tokens=1),
    "many_tokens": fixed(max_new_tokens=70),
    "max_length": fixed(max_length=57),
    "min_length": fixed(max_new_tokens=12, min_length=57, eos_token_id=ENDS, pad_token_id=0),
    "min_new_tokens": fixed(max_new_tokens=12, min_new_tokens=5, eos_token_id=ENDS, pad_token_id=0),
    "an_end": fixed(max_new_tokens=9, eos_token_id=7, pad_token_id=9),
    "ends_in_a_list": fixed(max_new_tokens=12, eos_token_id=ENDS, pad_token_id=3),
    "ends_in_a_tensor": fixed(max_new_tokens=12, eos_token_id=torch.tensor(ENDS)),
    "ends_without_padding_id": fixed(max_new_tokens=12, eos_token_id=ENDS),
    "sampling": fixed(max_new_tokens=8, do_sample=True, temperature=0.8, top_k=20, top_p=0.9),
    "sampling_with_ends": fixed(max_new_tokens=12, do_sample=True, eos_token_id=ENDS, pad_token_id=0),
    "a_configuration": lambda: {
        "generation_config": GenerationConfig(
            max_new_tokens=8, do_sample=True, top_k=9, eos_token_id=ENDS, pad_token_id=1
        )
    },
    "scores": fixed(**GREEDY, return_dict_in_generate=True, output_scores=True, output_logits=True),
    "penalties": fixed(**GREEDY, repetition_penalty=1.4, no_repeat_ngram_size=2, encoder_repetition_penalty=1.2),
    "penalty_of_length": fixed(
        max_new_tokens=9, exponential_decay_length_penalty=(2, 2.0), eos_token_id=5, pad_token_id=0
    ),
    "suppressed": fixed(
        max_new_tokens=6,
        begin_suppress_tokens=list(range(99)),
        suppress_tokens=list(range(200, 220)),
        bad_words_ids=[[3, 4]],
    ),
    "forced_end": fixed(max_new_tokens=6, forced_eos_token_id=4, pad_token_id=0),
    "guidance": fixed(**GREEDY, guidance_scale=1.5),
    "guidance_away": lambda: {**GREEDY, "guidance_scale": 1.5, "negative_prompt_ids": prompts(3, 5, seed=4)},
    "watermark": lambda: {
        **GREEDY,
        "watermarking_config": WatermarkingConfig(bias=2.0, seeding_scheme="selfhash", context_width=2),
    },
    "logits_processor": lambda: {**GREEDY, "logits_processor": [keeps_even]},
    "stopping_criteria": lambda: {"max_new_tokens": 20, "stopping_criteria": [MaxLengthCriteria(56)]},
    "a_row_that_stops": lambda: {
        "max_new_tokens": 9,
        "stopping_criteria": [StopAtRow(53)],
        "eos_token_id": 0,
        "pad_token_id": 8,
    },
    "prefix_allowed_tokens_fn": lambda: {
        **GREEDY,
        "prefix_allowed_tokens_fn": lambda row, ids: [row, row + 40, row + 90],
    },
    "several_sequences": fixed(max_new_tokens=6, do_sample=True, num_return_sequences=3),
    "chunks": fixed(**GREEDY, prefill_chunk_size=8),
    "chunks_of_a_configuration": lambda: {
        "generation_config": GenerationConfig(max_new_tokens=6, prefill_chunk_size=8)
    },
    "old_configurations": fixed(**GREEDY, cache_implementation="hybrid"),
    "no_limit_of_time": fixed(**GREEDY, max_time=600.0),
}


@pytest.mark.parametrize("option", SAME)
def test_an_option_does_what_it_does_without_reuse(model: Any, option: str) -> None:
    wanted, got = both(model, prompts(3, PROMPT), SAME[option])
    if option == "scores":
        for name in ("scores", "logits"):
            for ours, theirs in zip(getattr(got, name), getattr(wanted, name), strict=True):
                assert torch.allclose(ours, theirs, atol=1e-2)
        wanted, got = wanted.sequences, got.sequences
    assert torch.equal(wanted, got)
    assert wanted.shape[1] > PROMPT


def test_some_row_ends_early_where_it_may(llama: Any) -> None:
    ids = prompts(3, PROMPT)
    for option in ("ends_in_a_list", "ends_in_a_tensor", "ends_without_padding_id", "sampling_with_ends"):
        answers = llama.generate(ids, attention_mask=torch.ones_like(ids), **SAME[option]())[:, PROMPT:].tolist()
        assert any(token in ENDS for answer in answers for token in answer[:-1]), option
    stopped = llama.generate(ids, attention_mask=torch.ones_like(ids), **SAME["a_row_that_stops"]())
    assert stopped[0, PROMPT + 3 :].tolist() == [8] * 6 and stopped[1, -1] != 8


def test_stop_strings(llama: Any) -> None:
    letters = [chr(0x21 + token) for token in range(256)]
    split = Tokenizer(WordLevel({letter: token for token, letter in enumerate(letters)}, unk_token=letters[255]))
    split.pre_tokenizer = Split(Regex("."), "isolated")
    split.decoder = Fuse()
    ids = prompts(1, PROMPT)
    free = llama.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=9)
    stop = "".join(letters[token] for token in free[0, PROMPT + 2 : PROMPT + 4])
    words = PreTrainedTokenizerFast(tokenizer_object=split)
    wanted, got = both(llama, ids, fixed(max_new_tokens=9, stop_strings=[stop], tokenizer=words, pad_token_id=0))
    assert torch.equal(wanted, got) and wanted.shape[1] == PROMPT + 4


class Heard:
    def __init__(self) -> None:
        self.tokens: list[int] = []

    def put(self, value: torch.Tensor) -> None:
        self.tokens += value.flatten().tolist()

    def end(self) -> None:
        self.tokens.append(-1)


def test_a_streamer_hears_prompt_and_answer(llama: Any) -> None:
    ids = prompts(1, PROMPT)
    wanted, got = Heard(), Heard()
    llama.generate(ids, attention_mask=torch.ones_like(ids), streamer=wanted, **GREEDY)
    warm(llama, ids).generate(ids, streamer=got, **GREEDY)
    assert got.tokens == wanted.tokens and got.tokens[-1] == -1


# -- whose setting counts --------------------------------------------------------------------------------


@pytest.fixture
def own_settings(llama: Any) -> Iterator[Any]:
    """The model; its own generation configuration is put back afterwards."""
    before = llama.generation_config
    yield llama
    llama.generation_config = before


MERGED: dict[str, tuple[dict[str, Any], Callable[[], dict[str, Any]]]] = {
    "of_the_model": ({"max_new_tokens": 5, "eos_token_id": ENDS, "pad_token_id": 9}, dict),
    "of_a_given_configuration_and_of_the_model": (
        {"eos_token_id": ENDS, "pad_token_id": 9},
        lambda: {"generation_config": GenerationConfig(max_new_tokens=12)},
    ),
    "a_limit_of_the_model_beside_a_length": ({"max_new_tokens": 4}, fixed(max_length=60)),
    "none_over_the_models": ({"eos_token_id": ENDS, "pad_token_id": 9}, fixed(max_new_tokens=12, eos_token_id=None)),
    "sequences_of_the_model": (
        {"num_return_sequences": 2, "do_sample": True},
        lambda: {"generation_config": GenerationConfig(max_new_tokens=5)},
    ),
    "an_old_kind_of_cache": ({"cache_implementation": "hybrid"}, fixed(**GREEDY)),
}


@pytest.mark.parametrize("case", MERGED)
def test_settings_are_merged_as_generate_merges_them(own_settings: Any, case: str) -> None:
    settings, make = MERGED[case]
    own_settings.generation_config = GenerationConfig(**settings)
    wanted, got = both(own_settings, prompts(3, PROMPT), make)
    assert torch.equal(wanted, got)


REFUSED: dict[str, dict[str, Any]] = {
    "num_beams": {"num_beams": 2},
    "use_mtp": {"use_mtp": True},
    "prompt_lookup_num_tokens": {"prompt_lookup_num_tokens": 3},
    "assistant_early_exit": {"assistant_early_exit": 2},
    "cache_implementation": {"cache_implementation": "static"},
    "penalty_alpha": {"penalty_alpha": 0.5, "top_k": 4},
    "dola_layers": {"dola_layers": "low"},
    "force_words_ids": {"force_words_ids": [[3]], "num_beams": 2},
    "token_healing": {"token_healing": True},
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("place", ["argument", "given", "model"])
def test_what_forks_or_takes_back_the_cache_is_refused_wherever_it_is_set(
    own_settings: Any, name: str, place: str
) -> None:
    settings = {"max_new_tokens": 4, **REFUSED[name]}
    ids = prompts(3, PROMPT)
    reuse = warm(own_settings, ids)
    arguments: dict[str, Any] = {}
    if place == "argument":
        arguments = settings
    elif place == "given":
        arguments = {"generation_config": GenerationConfig(**settings)}
    else:
        own_settings.generation_config = GenerationConfig(**settings)
        arguments = {"generation_config": GenerationConfig(max_new_tokens=4)}
    with pytest.raises(ArgumentError) as caught:
        reuse.generate(ids, **arguments)
    assert caught.value.field == name
    assert_idle(reuse)


REFUSED_ARGUMENTS: dict[str, Any] = {
    "num_return_sequences": 2,  # of greedy search
    "assistant_model": object(),
    "custom_generate": lambda model, input_ids, **_: input_ids,
    "inputs_embeds": torch.zeros(3, PROMPT, 64),
    "position_ids": torch.arange(PROMPT)[None],
    "past_key_values": object(),
    "cache": object(),
    "use_cache": False,
    "token_type_ids": torch.zeros(3, PROMPT, dtype=torch.int64),
    "logits_to_keep": 3,
    "generator": torch.Generator(),
    "a_typo": 1,
}


@pytest.mark.parametrize("name", REFUSED_ARGUMENTS)
def test_arguments_that_no_key_stands_for_are_refused(llama: Any, name: str) -> None:
    reuse = warm(llama, prompts(3, PROMPT))
    with pytest.raises(ArgumentError) as caught:
        reuse.generate(prompts(3, PROMPT), max_new_tokens=4, **{name: REFUSED_ARGUMENTS[name]})
    assert caught.value.field == name
    assert_idle(reuse)


@pytest.mark.parametrize("new_tokens", [0, -2, 1.5, "4"])
def test_a_number_of_tokens_is_refused_before_the_prompt_is_run(llama: Any, new_tokens: Any) -> None:
    reuse = warm(llama, prompts(3, PROMPT))
    before = reuse.cache.metrics().lookups
    with pytest.raises(ArgumentError) as caught:
        reuse.generate(prompts(3, PROMPT), max_new_tokens=new_tokens)
    assert caught.value.field == "max_new_tokens" and reuse.cache.metrics().lookups == before


def test_errors_of_generate_itself_come_through(llama: Any) -> None:
    ids = prompts(3, PROMPT)
    reuse = warm(llama, ids)
    for arguments in (
        {"max_length": PROMPT},
        {"max_new_tokens": 4, "temperature": -1.0, "do_sample": True},
    ):
        with pytest.raises(ValueError, match=r"\w") as wanted:
            llama.generate(ids, attention_mask=torch.ones_like(ids), **arguments)
        with pytest.raises(ValueError, match=re.escape(str(wanted.value))):
            reuse.generate(ids, **arguments)
    assert_idle(reuse)


# -- rows of different length ----------------------------------------------------------------------------


def alone(model: Any, ids: torch.Tensor, mask: torch.Tensor, row: int, **arguments: Any) -> list[int]:
    """What the model says to one row without its padding."""
    own = ids[row : row + 1, int((mask[row] == 0).sum()) :]
    out = model.generate(own, attention_mask=torch.ones_like(own), **arguments)
    return [int(token) for token in out[0, own.shape[1] :]]


LENGTHS: dict[str, tuple[dict[str, Any], Callable[[int], dict[str, Any]]]] = {
    # What is asked for all, and what that is for a row with so much padding.
    "max_length": ({"max_length": 58}, lambda pads: {"max_length": 58 - pads}),
    "max_length_of_a_configuration": (
        {"generation_config": GenerationConfig(max_length=58)},
        lambda pads: {"max_length": 58 - pads},
    ),
    "min_length": (
        {"max_length": 60, "min_length": 56, "eos_token_id": ENDS, "pad_token_id": 7},
        lambda pads: {"max_length": 60 - pads, "min_length": 56 - pads, "eos_token_id": ENDS, "pad_token_id": 7},
    ),
    "new_tokens_before_length": ({"max_new_tokens": 4, "max_length": 58}, lambda pads: {"max_new_tokens": 4}),
    "ends": (
        {"max_new_tokens": 9, "eos_token_id": ENDS, "pad_token_id": 7},
        lambda pads: {"max_new_tokens": 9, "eos_token_id": ENDS, "pad_token_id": 7},
    ),
    "ends_without_padding_id": (
        {"max_new_tokens": 9, "eos_token_id": [7, *ENDS]},
        lambda pads: {"max_new_tokens": 9, "eos_token_id": [7, *ENDS], "pad_token_id": 7},
    ),
}


@pytest.mark.parametrize("case", LENGTHS)
def test_lengths_count_the_padded_input(llama: Any, case: str) -> None:
    arguments, own = LENGTHS[case]
    ids, mask = left_padded()
    reuse = PrefixReuse(llama, memory_bytes=8 << 20)
    got = reuse.generate(ids, attention_mask=mask, **arguments)
    wanted = [alone(llama, ids, mask, row, **own(int((mask[row] == 0).sum()))) for row in range(3)]
    assert torch.equal(got[:, :PROMPT], ids)
    longest = max(len(answer) for answer in wanted)
    assert [row[PROMPT:].tolist() for row in got] == [answer + [7] * (longest - len(answer)) for answer in wanted]


def test_allowed_tokens_are_those_of_the_row_of_the_call(llama: Any) -> None:
    ids, mask = left_padded()
    allowed = {0: [1, 2, 3], 1: [10, 11, 12], 2: [20, 21]}
    seen: list[tuple[int, int]] = []

    def of(row: int, tokens: torch.Tensor) -> list[int]:
        seen.append((row, len(tokens)))
        return allowed[row]

    got = PrefixReuse(llama, memory_bytes=8 << 20).generate(
        ids, attention_mask=mask, prefix_allowed_tokens_fn=of, **GREEDY
    )
    for row in range(3):
        assert set(got[row, PROMPT:].tolist()) <= set(allowed[row])
        own = {"prefix_allowed_tokens_fn": lambda _, tokens, row=row: allowed[row], **GREEDY}
        assert got[row, PROMPT:].tolist() == alone(llama, ids, mask, row, **own)
    assert {(0, 50), (1, 43), (2, 47)} <= set(seen)


@pytest.mark.parametrize(
    "arguments",
    [
        {"return_dict_in_generate": True},
        {"generation_config": GenerationConfig(return_dict_in_generate=True, max_new_tokens=4)},
        {"streamer": Heard()},
        {"guidance_scale": 1.5, "negative_prompt_ids": prompts(3, 5)},
    ],
    ids=["return_dict", "return_dict_of_a_configuration", "streamer", "negative_prompts"],
)
def test_what_belongs_to_rows_of_one_length_is_refused_for_others(llama: Any, arguments: dict[str, Any]) -> None:
    ids, mask = left_padded()
    reuse = PrefixReuse(llama, memory_bytes=8 << 20)
    with pytest.raises(ArgumentError) as caught:
        reuse.generate(ids, attention_mask=mask, **arguments)
    assert caught.value.field == "attention_mask"
    assert_idle(reuse)


def test_several_sequences_of_padded_rows(llama: Any) -> None:
    ids, mask = left_padded()
    reuse = PrefixReuse(llama, memory_bytes=8 << 20)
    got = reuse.generate(
        ids, attention_mask=mask, do_sample=True, top_k=1, num_return_sequences=2, max_new_tokens=5
    )  # one candidate: sampling is greedy
    for row in range(3):
        for copy in (0, 1):
            assert got[2 * row + copy, PROMPT:].tolist() == alone(llama, ids, mask, row, max_new_tokens=5)


# -- inputs ----------------------------------------------------------------------------------------------


def test_any_integers_will_do(llama: Any) -> None:
    ids = prompts(3, PROMPT)
    wanted = llama.generate(ids, attention_mask=torch.ones_like(ids), **GREEDY)
    reuse = PrefixReuse(llama, memory_bytes=8 << 20)
    for given in (ids, ids.int(), ids.to(torch.uint8), ids.numpy(), ids.tolist(), ids[:, ::1].t().contiguous().t()):
        assert torch.equal(reuse.generate(given, **GREEDY), wanted)
    assert torch.equal(reuse.generate(inputs=ids, **GREEDY), wanted)
    assert torch.equal(reuse.generate(ids, attention_mask=torch.ones(3, PROMPT, dtype=torch.bool), **GREEDY), wanted)
    assert torch.equal(reuse.generate(ids[0], **GREEDY), wanted[:1])


@pytest.mark.parametrize(
    ("field", "ids", "mask"),
    [
        ("input_ids", torch.zeros(0, 5, dtype=torch.int64), None),
        ("input_ids", torch.zeros(2, 0, dtype=torch.int64), None),
        ("input_ids", torch.zeros(1, 2, 3, dtype=torch.int64), None),
        ("input_ids", torch.zeros(2, 3), None),
        ("input_ids", torch.zeros(2, 3, dtype=torch.bfloat16), None),
        ("input_ids", torch.zeros(2, 3, dtype=torch.int64, device="meta"), None),
        ("input_ids", None, None),
        ("input_ids", "text", None),
        ("input_ids", [[1, 2], [3]], None),
        ("input_ids", [[-1]], None),
        ("input_ids", [[256]], None),
        ("input_ids", np.array([[2**63 + 2]], dtype=np.uint64), None),
        ("attention_mask", [[1, 2, 3]], [[1, 1]]),
        ("attention_mask", [[1, 2, 3]], [[1, 1, 0]]),
        ("attention_mask", [[1, 2, 3]], [[1, 0, 1]]),
        ("attention_mask", [[1, 2, 3]], [[0, 0, 0]]),
        ("attention_mask", [[1, 2, 3]], [[2, 1, 1]]),
        ("attention_mask", [[1, 2, 3]], torch.ones(1, 3)),
        ("attention_mask", [[1, 2, 3]], torch.ones(1, 1, 3, 3, dtype=torch.int64)),
    ],
)
def test_bad_rows_are_refused(llama: Any, field: str, ids: Any, mask: Any) -> None:
    reuse = PrefixReuse(llama, memory_bytes=8 << 20)
    for call in (lambda: reuse.generate(ids, attention_mask=mask, **GREEDY), lambda: reuse.forward(ids, mask)):
        with pytest.raises(ArgumentError) as caught:
            call()
        assert caught.value.field == field
    assert reuse.cache.metrics().lookups == 0
