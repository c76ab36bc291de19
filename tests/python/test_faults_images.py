# SPDX-License-Identifier: Apache-2.0
"""Every fault in a cache's image, and in a cache that an image is taken of, is refused, by the code that it must."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import pytest

pytest.importorskip("transformers", reason="transformers is absent: the kit breaks states of its models")


from fault_cases import CASES, HARMLESS, SOAK, live_model
from faults import FAULTS, Context, Fault, State, Way
from faults.fault import same_bytes
from faults.images import continued, flipped, image_at, producer_of, state_of, torn
from faults.live import Live
from hybridkv.adapters.transformers import layers as cache_layers
from hybridkv.adapters.transformers.image import CacheImage
from hybridkv.adapters.transformers.image_part import StatePart
from hybridkv.adapters.transformers.layout import check_position
from hybridkv.adapters.transformers.producer import Producer
from hybridkv.errors import RestoreRefused
from tiny_models import ARCHITECTURES

IMAGE_CODES = {
    "groups: sliding layer's length says one token less": "stale",
    "groups: every layer's length says 16 tokens more": "stale",
}
"""An image has a position for each part: a window of another position is stale, where a layer's count was lagging."""

WHOLE_CACHES = {
    "groups: whole state of four tokens ago under this key",
    "groups: whole state of one token ago under this key",
}
"""Nothing is wrong with such a cache but the tokens that it is said to stand for."""


@dataclass
class Case:
    live: Live
    producer: Producer
    tokens: int
    image: CacheImage
    state: State
    context: Context

    @functools.cached_property
    def broken(self) -> list[tuple[Fault, State]]:
        """Every fault that acts here, with the state that it leaves."""
        applied = ((fault, fault.apply(self.state, self.context)) for fault in FAULTS.values())
        return [(fault, state) for fault, state in applied if state is not None]

    def restored(self, image: CacheImage) -> str:
        """The code by which an image is refused."""
        with pytest.raises(RestoreRefused) as caught:
            continued(self.live, image, self.producer, self.tokens)
        return str(caught.value.code)


@functools.cache
def live_producer(name: str, seed: int = 0) -> tuple[Live, Producer]:
    live = live_model(name, seed)
    return live, producer_of(live)


@functools.cache
def case_of(name: str, seed: int, tokens: int) -> Case:
    live, producer = live_producer(name, seed)
    image = image_at(live, tokens, producer)
    return Case(live, producer, tokens, image, state_of(image, live), live.context(tokens))


@pytest.mark.parametrize(("name", "seed", "tokens"), CASES)
def test_the_unbroken_image_goes_on_bit_for_bit(name: str, seed: int, tokens: int) -> None:
    case = case_of(name, seed, tokens)
    again = CacheImage.from_bytes(case.image.to_bytes())
    wanted = case.live.uninterrupted(tokens)
    assert same_bytes(continued(case.live, case.image, case.producer, tokens), wanted)
    assert same_bytes(continued(case.live, again, case.producer, tokens), wanted)


@pytest.mark.parametrize(("name", "seed", "tokens"), CASES)
def test_parts_that_were_written_over_are_refused_by_the_code_of_the_fault(name: str, seed: int, tokens: int) -> None:
    case = case_of(name, seed, tokens)
    codes = {
        fault.name: case.restored(torn(case.image, case.live, fault, state, case.context))
        for fault, state in case.broken
    }
    assert codes
    assert codes == {fault: IMAGE_CODES.get(fault, FAULTS[fault].code) for fault in codes}


@pytest.mark.parametrize(("name", "seed", "tokens"), CASES)
def test_bytes_that_were_written_over_are_refused(name: str, seed: int, tokens: int) -> None:
    case = case_of(name, seed, tokens)
    for fault, state in case.broken:
        data = torn(case.image, case.live, fault, state, case.context).to_bytes()
        with pytest.raises(RestoreRefused) as caught:
            CacheImage.from_bytes(data)
        expected = {"content"} if fault.code == "content" else {"content", "malformed"}
        assert caught.value.code in expected, fault.name


@pytest.mark.parametrize(("name", "seed", "tokens"), CASES)
def test_whole_parts_that_were_not_taken_together_are_refused(name: str, seed: int, tokens: int) -> None:
    """Each part's checksum is right: what tells is the digest over all of them."""
    case = case_of(name, seed, tokens)
    refused = {}
    for fault, state in case.broken:
        if fault.code == "content":
            image = torn(case.image, case.live, fault, state, case.context, sealed=True)
            assert all(part.is_whole() for part in image.parts)
            refused[fault.name] = case.restored(image)
    assert set(refused.values()) == {"content"}


@pytest.mark.parametrize("name", ["deepseek_v4", "gpt_oss", "deepseek_v32", "qwen3_next", "llama"])
def test_without_its_checksums_the_same_images_change_the_logits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kit can fail: a restore that does not look at content accepts them."""
    case = case_of(name, 0, 79)
    wanted = case.live.uninterrupted(79)
    monkeypatch.setattr(StatePart, "is_whole", lambda part: True)
    harmless = []
    for fault, state in case.broken:
        finite = all(rows.isfinite().all() for rows in state.values())  # copies are compared as numbers: NaN differs
        if fault.code == "content" and finite:
            image = torn(case.image, case.live, fault, state, case.context)
            if same_bytes(continued(case.live, image, case.producer, 79), wanted):
                harmless.append(fault.name)
    assert set(harmless) <= set(HARMLESS)


@pytest.mark.parametrize(("name", "seed", "tokens"), CASES)
def test_a_cache_of_a_wrong_structure_is_refused_before_an_image_is_taken(name: str, seed: int, tokens: int) -> None:
    case = case_of(name, seed, tokens)
    counted = any(map(cache_layers.counts, case.live.filled(tokens).layers))
    for fault, state in case.broken:
        past = case.live.unchecked(state, case.context, fault)
        if fault.code == "content":
            check_position(case.live.layout, past, tokens)  # whole numbers cannot tell
            continue
        with pytest.raises(RestoreRefused) as caught:
            check_position(case.live.layout, past, tokens)
        same = {fault.code} | ({"partial"} if fault.way is Way.DROP or not counted else set())
        assert caught.value.code in same, fault.name
        with pytest.raises(RestoreRefused) as taken:
            ids = case.live.prompt[:tokens].numpy()
            CacheImage.take(past, case.live.model.config, producer=case.producer, tokens=ids)
        codes = {"stale"} if fault.name in WHOLE_CACHES else {"missing", "partial", "lagging", "stale"}
        assert taken.value.code in codes, fault.name


def test_whole_numbers_see_less_than_half_of_the_faults() -> None:
    case = case_of("deepseek_v4", 0, 79)
    codes = [fault.code for fault, _ in case.broken]
    assert 0.15 * len(codes) < sum(code != "content" for code in codes) < 0.35 * len(codes)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_whole_image_under_the_wrong_tokens_is_refused(name: str) -> None:
    live, producer = live_producer(name)
    window = live.context(79).window_tokens()
    for tokens in (79 - 1, 79 - 4, 79 - window, 79 + 1):
        image = image_at(live, tokens, producer)
        with pytest.raises(RestoreRefused) as caught:
            image.restore(live.model.config, producer=producer, tokens=live.prompt[:79].numpy())
        assert caught.value.code == "stale"
    with pytest.raises(RestoreRefused) as caught:
        case_of(name, 0, 79).image.restore(live.model.config, producer=producer, tokens=live.other_prompt[:79].numpy())
    assert caught.value.code == "foreign"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_image_of_other_weights_is_refused_by_its_format(name: str) -> None:
    live, producer = live_producer(name)
    changed = Live(live.changed)
    image = image_at(changed, 79, producer_of(changed))
    with pytest.raises(RestoreRefused) as caught:
        image.restore(live.model.config, producer=producer, tokens=live.prompt[:79].numpy())
    assert caught.value.code == "format"
    assert [difference.field for difference in caught.value.differences] == ["weights"]


def test_a_cut_image_is_refused_as_truncated_and_any_flipped_bit_as_something() -> None:
    data = case_of("deepseek_v4", 0, 79).image.to_bytes()
    for kept in (0, 7, 8, 100, len(data) // 4, len(data) // 2, len(data) - 1):
        with pytest.raises(RestoreRefused) as caught:
            CacheImage.from_bytes(data[:kept])
        assert caught.value.code == "truncated"
    step = 13 if SOAK else 997
    for at in range(0, len(data), step):
        with pytest.raises(RestoreRefused):
            CacheImage.from_bytes(flipped(data, at))
