# SPDX-License-Identifier: Apache-2.0
"""``generate`` at the limits: no room, no tokens to spare, failures in the middle, several threads, odd moments."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiny_models  # noqa: E402
from conversations import GREEDY, Setting, answered, assert_idle, play, prompts, small  # noqa: E402
from hybridkv import HybridCache  # noqa: E402
from hybridkv.adapters.transformers import PrefixReuse  # noqa: E402
from hybridkv.adapters.transformers.pages import Pages  # noqa: E402
from hybridkv.demo.models import tiny_deepseek_v4  # noqa: E402
from hybridkv.errors import Closed  # noqa: E402
from hybridkv.policy import LruPolicy  # noqa: E402

THREE = ["llama", "deepseek_v4", "qwen3_next"]


# -- failures in the middle --------------------------------------------------------------------------------


def failing(place: str, step: int, error: BaseException) -> Any:
    """A logits processor, or a stopping criterion, that fails in one of its steps."""
    steps = iter([None] * (step - 1) + [error])

    def fail(input_ids: torch.Tensor, scores: Any) -> Any:
        planned = next(steps)
        if planned is not None:
            raise planned
        return scores if place == "logits_processor" else torch.zeros(len(input_ids), dtype=torch.bool)

    return fail if place == "logits_processor" else lambda input_ids, scores, **_: fail(input_ids, scores)


@pytest.mark.parametrize("name", THREE)
@pytest.mark.parametrize("place", ["logits_processor", "stopping_criteria"])
def test_a_failure_of_the_caller_withdraws_what_was_held(name: str, place: str) -> None:
    model = tiny_models.tiny(name)
    reuse = PrefixReuse(model, memory_bytes=8 << 20)
    ids = prompts(3)
    reuse.forward(ids[:, :40])
    settled = reuse.cache.metrics()
    failures = 0
    for error in (KeyError("the caller's"), KeyboardInterrupt()):
        for step in (1, 3, 7):
            with pytest.raises(type(error)):
                reuse.generate(ids, max_new_tokens=20, **{place: [failing(place, step, error)]})
            failures += 1
            assert_idle(reuse)
    metrics = reuse.cache.metrics()
    assert metrics.withdrawn == 3 * failures and metrics.effective_hits == settled.effective_hits
    assert torch.equal(reuse.generate(ids, max_new_tokens=20), answered(model, ids, max_new_tokens=20))
    assert [row.usable for row in reuse.last_rows] == [48] * 3  # what was kept before the failures is whole


@pytest.mark.parametrize("name", THREE)
def test_a_failure_of_the_model_leaks_nothing(name: str) -> None:
    model = tiny_models.tiny(name)
    reuse = PrefixReuse(model, memory_bytes=8 << 20)
    ids = prompts(2)
    reuse.forward(ids[:, :20])
    left = 0

    def fail(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise RuntimeError("out of memory")

    for at, call in ((1, lambda: reuse.forward(ids)), (3, lambda: reuse.generate(ids, **GREEDY))):
        left = at
        hook = model.model.layers[2].register_forward_hook(fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            call()
        hook.remove()
        assert_idle(reuse)
    assert torch.equal(reuse.generate(ids, **GREEDY), answered(model, ids))


def test_a_page_that_cannot_be_written_is_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_models.tiny("llama")
    write = Pages.write
    for failing in range(1, 6):
        reuse = PrefixReuse(model, memory_bytes=8 << 20)
        writes = 0

        def fail(self: Pages, *args: Any, failing: int = failing, **kwargs: Any) -> None:
            nonlocal writes
            writes += 1
            if writes == failing:
                raise OSError("the device is gone")
            write(self, *args, **kwargs)

        monkeypatch.setattr(Pages, "write", fail)
        with pytest.raises(OSError, match="the device is gone"):
            reuse.generate(prompts(), **GREEDY)
        monkeypatch.setattr(Pages, "write", write)
        gc.collect()
        assert_idle(reuse)
        assert torch.equal(reuse.generate(prompts(), **GREEDY), answered(model, prompts()))


# -- threads -----------------------------------------------------------------------------------------------


def at_once(work: Callable[[int], None], threads: int) -> list[BaseException]:
    """Run the work in several threads; what they raised."""
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=guarded, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return errors


@pytest.mark.parametrize("name", ["deepseek_v4", "gemma3_text", "qwen3_next", "llama"])
@pytest.mark.parametrize("room_tokens", [96, 4096])
def test_threads_that_share_prefixes_and_pages(name: str, room_tokens: int) -> None:
    model = tiny_models.tiny(name)
    reuse = small(model, Setting(1, room_tokens=room_tokens, states=1.0))
    system = prompts(1, 40)
    asked = [torch.cat([system, prompts(1, 5 + 3 * i, seed=i + 1)], dim=1) for i in range(6)]
    wanted = [answered(model, ids) for ids in asked]
    wrong: list[int] = []

    def work(number: int) -> None:
        dice = np.random.default_rng(number)
        torch.set_num_threads(1)
        for _ in range(6):
            which = int(dice.integers(6))
            got = reuse.generate(asked[which], **GREEDY)
            if not torch.equal(got, wanted[which]) or reuse.last_rows[0].tokens != asked[which].shape[1]:
                wrong.append(which)

    assert at_once(work, 4) == []
    assert wrong == []
    assert_idle(reuse)
    if room_tokens == 96:
        assert reuse.cache.metrics().retired > 0
    else:
        assert reuse.cache.metrics().effective_hits > 12


# -- no room -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", tiny_models.ARCHITECTURES)
def test_one_page_of_each_kind_changes_no_token(name: str) -> None:
    model = tiny_models.tiny(name)
    spec = PrefixReuse.spec_of(model)
    reuse = PrefixReuse(
        model, cache=HybridCache(spec, blocks=1, pages={group.name: 1 for group in spec.groups}, eviction="none")
    )
    ids = prompts(2, 50)
    for _ in range(2):
        assert torch.equal(reuse.generate(ids, **GREEDY), answered(model, ids))
    assert sum(reuse.not_stored.values()) > 0
    assert_idle(reuse)


def test_what_goes_between_calls_is_computed_again() -> None:
    model = tiny_models.tiny("deepseek_v4")
    reuse = small(model, Setting(1))
    for number in range(8):
        ids = prompts(2, 60, seed=number % 3)
        assert torch.equal(reuse.generate(ids, **GREEDY), answered(model, ids))
        if number in (3, 5):
            reuse.cache.reset()
        elif number == 4:
            reuse.cache.evict(reuse.keys(ids[0].numpy()), {"swa": True, "pending": True})
        elif number == 6:
            reuse.cache.evict(reuse.keys(ids[1].numpy()))
    assert_idle(reuse)
    reuse.cache.close()
    with pytest.raises(Closed):
        reuse.generate(prompts(), **GREEDY)


# -- lengths -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", tiny_models.ARCHITECTURES)
def test_prompts_of_any_length_and_prompts_that_are_all_known(name: str) -> None:
    model = tiny_models.tiny(name)
    reuse = PrefixReuse(model, memory_bytes=8 << 20)
    for tokens in (1, 2, 5, 15, 16, 17, 32, 33, 64, 2, 16):
        ids = prompts(1, 64, seed=tokens)[:, :tokens]
        wanted = answered(model, ids)
        for _ in range(2):
            assert torch.equal(reuse.generate(ids, **GREEDY), wanted), tokens
        # All of it is known, but one token that has to be run, and the next answer.
        assert torch.equal(reuse.generate(wanted, **GREEDY), answered(model, wanted)), tokens
        assert reuse.last_rows[0].usable == tokens + 5
    assert_idle(reuse)


@pytest.mark.parametrize("name", tiny_models.ARCHITECTURES)
def test_an_answer_over_many_boundaries_can_be_cut_anywhere(name: str) -> None:
    model = tiny_models.tiny(name)
    reuse = PrefixReuse(model, memory_bytes=8 << 20)
    ids = prompts(2, 9)
    whole = answered(model, ids, max_new_tokens=90)
    assert torch.equal(reuse.generate(ids, max_new_tokens=90), whole)
    strides = [] if name == "jamba" else list(range(16, 97, 16))
    assert [row.stored for row in reuse.last_rows] == [[9, *strides, 98]] * 2
    for cut in (98, 97, 81, 80, 40, 16, 10):
        part = torch.cat([whole[:, :cut], prompts(2, 3, seed=cut)], dim=1)
        assert torch.equal(reuse.generate(part, **GREEDY), answered(model, part)), cut
        known = max(t for t in (0, 9, *strides, 98) if t <= cut)
        assert [row.usable for row in reuse.last_rows] == [known] * 2


def test_rows_that_are_alike_share_one_prefix() -> None:
    model = tiny_models.tiny("deepseek_v4")
    reuse = PrefixReuse(model, memory_bytes=8 << 20)
    ids = prompts(1, 50).expand(4, -1)
    first = reuse.generate(ids, **GREEDY)
    assert torch.equal(first, answered(model, ids))
    longer = torch.cat([first, prompts(4, 3, seed=2)], dim=1)
    assert torch.equal(reuse.generate(longer, **GREEDY), answered(model, longer))
    assert [row.usable for row in reuse.last_rows] == [55] * 4
    assert reuse.cache.metrics().duplicates == 0
    assert_idle(reuse)


@pytest.mark.parametrize("tips", [True, False])
def test_a_stride_longer_than_any_prompt(tips: bool) -> None:
    model = tiny_models.tiny("deepseek_v4")
    reuse = PrefixReuse(model, memory_bytes=8 << 20, checkpoint_tokens=4096, keep_tips=tips, replay=False)
    first = reuse.generate(prompts(), **GREEDY)
    again = reuse.generate(first, **GREEDY)
    assert torch.equal(first, answered(model, prompts())) and torch.equal(again, answered(model, first))
    assert reuse.last_rows[0].usable == (65 if tips else 0)


def test_units_as_long_as_the_widest_compression() -> None:
    model = tiny_deepseek_v4(0, window=32, hca=128)
    reuse = PrefixReuse(model, memory_bytes=16 << 20)
    assert reuse.cache.spec.unit_tokens == 128
    ids = prompts(2, 200)
    for tokens in (5, 40, 127, 128, 129, 160, 200):
        first = reuse.generate(ids[:, :tokens], **GREEDY)
        assert torch.equal(first, answered(model, ids[:, :tokens]))
        longer = torch.cat([first, prompts(2, 5, seed=tokens)], dim=1)
        assert torch.equal(reuse.generate(longer, **GREEDY), answered(model, longer))
        assert [row.usable for row in reuse.last_rows] == [tokens + 5] * 2


# -- other numbers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["deepseek_v4", "llama", "gpt_oss", "jamba"])
def test_float64_models(name: str) -> None:
    tally = play(tiny_models.tiny(name, dtype=torch.float64), Setting(1), 3, 3, seed=1)
    assert tally.wrong == [] and tally.ties == 0 and tally.reused_tokens > 0


@pytest.mark.parametrize("name", ["deepseek_v4", "llama", "gemma3_text", "qwen3_next"])
def test_bfloat16_models(name: str) -> None:
    """Their own difference between chunks and whole is as large as many a gap: ties are no exception here."""
    tally = play(tiny_models.tiny(name, dtype=torch.bfloat16), Setting(1), 3, 3, seed=1)
    assert tally.wrong == [] and tally.reused_tokens > 0


def test_made_in_inference_mode_or_where_tensors_are_made_elsewhere() -> None:
    model = tiny_models.tiny("qwen3_next")
    with torch.inference_mode():
        first = PrefixReuse(model, memory_bytes=8 << 20)
    with torch.device("meta"):
        second = PrefixReuse(model, memory_bytes=8 << 20)
    for reuse in (first, second):
        assert torch.equal(reuse.generate(prompts(), **GREEDY), answered(model, prompts()))
        assert_idle(reuse)


def test_a_policy_that_fails_leaks_nothing() -> None:
    model = tiny_models.tiny("llama")
    cache = HybridCache(PrefixReuse.spec_of(model), blocks=64)

    class Failing(LruPolicy):
        def touch(self, *_: Any, **__: Any) -> None:
            raise OSError("no policy")

    reuse = PrefixReuse(model, cache=cache, policy=Failing(cache))
    reuse.generate(prompts(), **GREEDY)
    with pytest.raises(OSError, match="no policy"):
        reuse.generate(prompts(2), **GREEDY)
    gc.collect()
    assert_idle(reuse)


def test_a_caller_in_inference_mode() -> None:
    model = tiny_models.tiny("qwen3_next")
    reuse = PrefixReuse(model, memory_bytes=8 << 20)
    with torch.inference_mode():
        first = reuse.generate(prompts(), **GREEDY)
    assert torch.equal(first, answered(model, prompts()))
    assert torch.equal(reuse.generate(first, **GREEDY), answered(model, first))
    assert reuse.last_rows[0].usable == 65
