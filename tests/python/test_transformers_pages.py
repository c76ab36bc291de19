# SPDX-License-Identifier: Apache-2.0
"""Rows in pages: what a boundary puts into pages comes back bit for bit, or is not there at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import DynamicCache  # noqa: E402

import tiny_models  # noqa: E402
from hybridkv import Check, Outcome, StateKind  # noqa: E402
from hybridkv.adapters.transformers import PrefixReuse  # noqa: E402
from hybridkv.adapters.transformers.layout import is_checkpoint, is_state  # noqa: E402
from hybridkv.adapters.transformers.rebuild import rebuilt  # noqa: E402
from hybridkv.adapters.transformers.stops import in_window, needed_blocks, plan_stops  # noqa: E402
from hybridkv.demo.models import tiny_deepseek_v4  # noqa: E402

SUFFIX = 6


def some_ids(length: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, length)


def run(reuse: PrefixReuse, past: Any, ids: np.ndarray[Any, Any], start: int) -> Any:
    return reuse._runner.run(torch.from_numpy(ids[None, start:]), past, start, all_logits=True)


def through_pages(reuse: PrefixReuse, ids: np.ndarray[Any, Any]) -> Any:
    """The cache at the end of `ids`, read back from the pages of a match that must reuse all of it."""
    verdict = reuse.cache.match(reuse.keys([*ids, 0]), verify="all")
    assert verdict.outcome is Outcome.REUSABLE and verdict.usable_tokens == len(ids), verdict
    with verdict.lease as lease:
        state = reuse.pages.read(lease, len(ids))
    return rebuilt(reuse.measured.layout, [state], len(ids))


def assert_bitwise(reuse: PrefixReuse, ids: np.ndarray[Any, Any], tokens: int) -> None:
    """Continue from pages and from the live cache that was stored; every logit must be the same."""
    out = reuse.forward(torch.from_numpy(ids[None, :tokens]))
    again = through_pages(reuse, ids[:tokens])
    live = out.past
    for begin, end in ((tokens, tokens + SUFFIX - 2), (tokens + SUFFIX - 2, tokens + SUFFIX - 1)):
        logits = [run(reuse, past, ids[:end], begin) for past in (live, again)]
        assert torch.equal(*logits), (tokens, begin)


@pytest.mark.parametrize("name", tiny_models.ARCHITECTURES)
def test_a_boundary_through_pages_continues_bit_for_bit(name: str) -> None:
    model = tiny_models.tiny(name)
    lengths = range(1, 72) if name == "deepseek_v4" else (1, 2, 3, 15, 16, 17, 31, 32, 50, 77, 100)
    reuse = PrefixReuse(model, memory_bytes=16 << 20)
    for tokens in [*lengths, *((96, 127, 128, 129, 255, 256) if name == "deepseek_v4" else ())]:
        assert_bitwise(reuse, some_ids(tokens + SUFFIX, seed=tokens), tokens)


@pytest.mark.parametrize("window", [2, 5, 16, 17, 18, 33, 40, 64, 100])
@pytest.mark.parametrize("step_units", [1, 3])
def test_windows_of_any_width_come_back(window: int, step_units: int) -> None:
    reuse = PrefixReuse(tiny_deepseek_v4(1, window=window), checkpoint_tokens=16 * step_units, memory_bytes=16 << 20)
    for tokens in (1, 16, 37, 48, 96, 101, 144, 150):
        assert_bitwise(reuse, some_ids(tokens + SUFFIX, seed=1000 * window + tokens), tokens)
    for tokens in (48, 96, 144):  # boundaries on the way of the longest prompt are whole too
        verdict = reuse.cache.match(reuse.keys(some_ids(156, seed=1000 * window + 150)), limit=tokens + 1, verify="all")
        assert verdict.usable_tokens == tokens
        verdict.lease.release()


def test_wide_compression_raises_the_unit() -> None:
    reuse = PrefixReuse(tiny_deepseek_v4(2, window=32, hca=128), memory_bytes=16 << 20)
    assert reuse.cache.spec.unit_tokens == 128
    for tokens in (1, 100, 127, 128, 129, 200, 256, 300):
        assert_bitwise(reuse, some_ids(tokens + SUFFIX, seed=tokens), tokens)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.float16], ids=str)
def test_pages_hold_rows_of_the_models_own_dtype(dtype: Any) -> None:
    model = tiny_models.tiny("deepseek_v4", dtype=dtype)
    reuse = PrefixReuse(model, memory_bytes=16 << 20)
    for tokens in (5, 16, 50, 77):
        assert_bitwise(reuse, some_ids(tokens + SUFFIX, seed=tokens), tokens)


@pytest.mark.parametrize("name", ["deepseek_v4", "gemma3_text", "qwen3_next"])
def test_every_byte_of_a_published_page_is_defined(name: str) -> None:
    reuse = PrefixReuse(tiny_models.tiny(name), memory_bytes=4 << 20)
    for pool in reuse.pages.pools.values():
        pool.fill_(0xA5)  # what an earlier owner left
    ids = some_ids(53)
    reuse.forward(torch.from_numpy(ids[None]))
    seen = reuse.cache.inspect(reuse.keys(ids))
    for group in reuse.cache.spec.groups:
        pages = [info.page for info in seen[group.name] if info.phase == "ready"]
        for page in pages:
            left = reuse.pages.pools[group.name][page] == 0xA5
            assert left.float().mean() < 0.05, (group.name, page)  # chance alone


@pytest.mark.parametrize("window", [2, 16, 17, 33, 40])
def test_stops_leave_no_needed_block_out(window: int) -> None:
    reuse = PrefixReuse(tiny_deepseek_v4(0, window=window), memory_bytes=4 << 20)
    groups = reuse.pages.groups
    for start in (0, 16, 37, 64):
        for target in range(start + 1, start + 120, 7):
            stops = plan_stops(groups, start, target, [target], most_tokens=40)
            assert list(stops) == sorted(stops) and max(stops) == target
            assert all(b - a <= 40 for a, b in zip([start, *stops], stops, strict=False))
            for name, group in groups.items():
                if not is_state(group):
                    continue
                taken = {block: stop for stop, blocks in stops.items() for block in blocks.get(name, [])}
                for block in needed_blocks(group, target):
                    end = min((block + 1) * 16, target)
                    if end <= start:
                        continue  # what the run resumed from
                    stop = taken[block]
                    assert stop == end if is_checkpoint(group) else in_window(group, block, end, stop)


def test_a_window_that_was_not_in_memory_is_not_written() -> None:
    reuse = PrefixReuse(tiny_deepseek_v4(0), memory_bytes=4 << 20)
    swa = reuse.pages.groups["swa"]
    assert reuse.pages.written_span(swa, 1, 32, 32) is not None
    assert reuse.pages.written_span(swa, 1, 32, 33) is None  # its first needed row has slid out
    overlap = reuse.pages.groups["overlap"]
    assert reuse.pages.written_span(overlap, 1, 32, 33) is None


def test_a_flipped_byte_in_any_group_is_a_false_hit_of_integrity() -> None:
    reuse = PrefixReuse(tiny_models.tiny("deepseek_v4"), memory_bytes=4 << 20, replay=False)
    for number, group in enumerate(reuse.cache.spec.groups):
        ids = some_ids(55, seed=number)
        reuse.forward(torch.from_numpy(ids[None]))
        verdict = reuse.cache.match(reuse.keys([*ids, 0]), verify="all")
        assert verdict.usable_tokens == 55
        held = verdict.lease.page_ids(group.name)
        verdict.lease.cancel()
        page = int(held[held >= 0][-1])
        reuse.pages.pools[group.name][page, 3] ^= 0x10
        broken = reuse.cache.match(reuse.keys([*ids, 0]), verify="all")
        assert broken.why is not None and (broken.why.check, broken.why.code) == (Check.INTEGRITY, "content")
        assert broken.why.group == group.name and broken.why.kind is StateKind(group.kind)
        if broken.lease is not None:
            broken.lease.cancel()


def test_the_live_cache_is_not_the_stored_one() -> None:
    """Recurrent layers write in place: what is stored must not move with them."""
    for name in ("qwen3_next", "jamba"):
        reuse = PrefixReuse(tiny_models.tiny(name), memory_bytes=8 << 20)
        ids = some_ids(40)
        out = reuse.forward(torch.from_numpy(ids[None]))
        before = {group: pool.clone() for group, pool in reuse.pages.pools.items()}
        run(reuse, out.past, np.concatenate([ids, ids[:8]]), 40)
        assert all(torch.equal(before[group], pool) for group, pool in reuse.pages.pools.items())


def test_an_empty_cache_is_rebuilt_empty() -> None:
    reuse = PrefixReuse(tiny_models.tiny("llama"), memory_bytes=4 << 20)
    past = rebuilt(reuse.measured.layout, [{}], 0)
    assert isinstance(past, DynamicCache) and past.get_seq_length() == 0
