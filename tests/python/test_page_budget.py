# SPDX-License-Identifier: Apache-2.0
"""Pools from one budget: exact pages, nothing that no mix of requests can use, and the numbers of admission."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridkv as hk
from hybridkv import Checkpoint, Chunk, Prefix, StateKind, Window
from hybridkv.coverage import Coverage
from hybridkv.page_budget import size_pages, worst_pages

CONFIGS = Path(__file__).resolve().parents[1] / "data" / "configs"
GIB = 2**30
MODELS = [
    ("deepseek-v4-flash", 40 * GIB, 131_072, 8192),
    ("deepseek-v4-pro", 80 * GIB, 65_536, 4096),
    ("gemma-3-12b-it", 60 * GIB, 32_768, 2048),
    ("gpt-oss-20b", 40 * GIB, 32_768, 2048),
    ("llama-4-scout", 100 * GIB, 65_536, 2048),
    ("jamba-1.5-mini", 40 * GIB, 65_536, 4096),
    ("bamba-9b-rebuilt", 20 * GIB, 32_768, 2048),
    ("qwen3-next-defaults", 60 * GIB, 65_536, 8192),
    ("nemotron-3-nano-30b-a3b", 40 * GIB, 131_072, 8192),
]


def spec_of(model: str) -> hk.CacheSpec:
    return hk.CacheSpec.from_config(CONFIGS / f"{model}.json")


def cache_of(spec: hk.CacheSpec, plan: hk.PagePlan, step: int | None) -> hk.HybridCache:
    # Descriptors are no part of this: as few as blocks, since nothing is published here.
    return hk.HybridCache(spec, blocks=64, pages=plan.pages, admission=hk.Admission(step_tokens=step))


def admitted(cache: hk.HybridCache, tokens: int) -> hk.Ticket | None:
    try:
        return cache.admit(None, tokens)
    except hk.NotAdmitted:
        return None


def promised_bytes(spec: hk.CacheSpec, plan: hk.PagePlan, lengths: list[int], step: int | None) -> int:
    total = 0
    for length in lengths:
        need = worst_pages(spec, length, step_tokens=step)
        total += sum(number * plan.page_bytes[name] for name, number in need.items())
    return total


@pytest.mark.parametrize(("model", "budget", "tokens", "step"), MODELS)
def test_requests_fill_at_least_97_percent_of_the_budget(model: str, budget: int, tokens: int, step: int) -> None:
    spec = spec_of(model)
    plan = size_pages(spec, budget, max_tokens=tokens, step_tokens=step)
    cache = cache_of(spec, plan, step)
    tickets = [cache.admit(None, length) for length, number in plan.mix for _ in range(number)]
    lengths = [ticket.max_tokens for ticket in tickets]
    assert promised_bytes(spec, plan, lengths, step) >= 0.97 * budget
    assert plan.bytes <= budget and plan.waste <= 0.03
    with pytest.raises(hk.NotAdmitted) as refused:
        cache.admit(None, 1)
    assert refused.value.reason == "pages" and refused.value.retry
    for ticket in tickets:
        ticket.close()
    cache.close()


@pytest.mark.parametrize(("model", "budget", "tokens", "step"), MODELS)
def test_whoever_takes_the_longest_first_fills_it_as_well(model: str, budget: int, tokens: int, step: int) -> None:
    spec = spec_of(model)
    plan = size_pages(spec, budget, max_tokens=tokens, step_tokens=step)
    cache, tickets, low = cache_of(spec, plan, step), [], tokens
    while low:
        ticket = admitted(cache, low)
        if ticket is None:
            low //= 2
        else:
            tickets.append(ticket)
    assert promised_bytes(spec, plan, [ticket.max_tokens for ticket in tickets], step) >= 0.97 * budget
    for ticket in tickets:
        ticket.close()


@pytest.mark.parametrize(("model", "budget", "tokens", "step"), MODELS)
def test_history_really_fills_its_pools(model: str, budget: int, tokens: int, step: int) -> None:
    spec = spec_of(model)
    plan = size_pages(spec, budget // 4, max_tokens=tokens // 4, step_tokens=step)
    cache = cache_of(spec, plan, step)
    tickets = [cache.admit(None, length) for length, number in plan.mix for _ in range(number)]
    for ticket in tickets:
        while ticket.grown_tokens < ticket.max_tokens:
            ticket.grow(min(step, ticket.max_tokens - ticket.grown_tokens))
            new = [7] * (ticket.grown_tokens - ticket.tokens)
            ticket.advance(ticket.grown_tokens, new)
    pages = cache.metrics().pages
    for group in spec.groups:
        assert (
            sum((pages[group.name].free, pages[group.name].filling, pages[group.name].held)) <= plan.pages[group.name]
        )
        if isinstance(group.coverage, Prefix):
            assert pages[group.name].free == 0
    for ticket in tickets:
        ticket.close(keep_tip=False)


@pytest.mark.parametrize(("model", "budget", "tokens", "step"), MODELS)
def test_every_page_belongs_to_a_request_of_the_mix(model: str, budget: int, tokens: int, step: int) -> None:
    spec = spec_of(model)
    plan = size_pages(spec, budget, max_tokens=tokens, step_tokens=step)
    sums = dict.fromkeys(plan.pages, 0)
    for length, number in plan.mix:
        for name, each in worst_pages(spec, length, step_tokens=step).items():
            sums[name] += number * each
    assert plan.pages == sums
    assert plan.mix[0][0] == tokens


@pytest.mark.parametrize("model", ["deepseek-v4-flash", "gemma-3-12b-it", "jamba-1.5-mini", "qwen3-next-defaults"])
def test_one_common_page_would_lose_more(model: str) -> None:
    """The same pages, each as large as the largest: what the budget would have to be."""
    _, budget, tokens, step = next(row for row in MODELS if row[0] == model)
    plan = size_pages(spec_of(model), budget, max_tokens=tokens, step_tokens=step)
    assert plan.group_bytes == {name: n * plan.page_bytes[name] for name, n in plan.pages.items()}
    assert sum(plan.pages.values()) * max(plan.page_bytes.values()) > 1.03 * budget


def test_bytes_are_stored_per_group() -> None:
    """Nine groups, 500 GiB of a host: stored bytes / used bytes near 1."""
    sizes = [3 << 20, 1_000_003, 77_777, 4096, 584 * 64, 132 * 64]
    groups = [hk.CacheGroup(f"h{i}", StateKind.COMPRESSED, Prefix(), page_bytes=size) for i, size in enumerate(sizes)]
    groups += [
        hk.CacheGroup("swa", StateKind.WINDOW, Window(128), page_bytes=65_537),
        hk.CacheGroup("chunk", StateKind.WINDOW, Chunk(512), page_bytes=300_000),
        hk.CacheGroup("state", StateKind.TAIL, Checkpoint(), page_bytes=1 << 20),
    ]
    spec = hk.CacheSpec(256, groups)
    plan = size_pages(spec, 500 * GIB, max_tokens=100_000, step_tokens=4096)
    stored = sum(
        number * pages * spec[name].total_page_bytes
        for length, number in plan.mix
        for name, pages in worst_pages(spec, length, step_tokens=4096).items()
    )
    assert 0.999 < stored / plan.bytes <= 1 and plan.waste < 0.001


def test_a_state_larger_than_the_budget_is_refused_with_the_least_that_is_enough() -> None:
    state = hk.CacheGroup("state", StateKind.TAIL, Checkpoint(), page_bytes=3 << 20)
    spec = hk.CacheSpec(256, [state])
    with pytest.raises(hk.SpecError) as refused:
        size_pages(spec, 2 << 20, max_tokens=256)
    assert refused.value.field == "budget_bytes" and f"at least {6 << 20} bytes" in str(refused.value.expected)
    assert size_pages(spec, 6 << 20, max_tokens=256).pages == {"state": 2}
    assert size_pages(spec, 3 << 20, max_tokens=255).pages == {"state": 1}  # no boundary, no spare


@pytest.mark.parametrize(("model", "budget", "tokens", "step"), MODELS[:6])
@pytest.mark.parametrize("wanted", [1, 3])
def test_the_least_budget_admits_what_was_asked_for(
    model: str, budget: int, tokens: int, step: int, wanted: int
) -> None:
    spec = spec_of(model)
    with pytest.raises(hk.SpecError) as refused:
        size_pages(spec, 1, max_tokens=tokens, step_tokens=step, requests=wanted)
    least = int(str(refused.value.expected).split()[2])
    with pytest.raises(hk.SpecError):
        size_pages(spec, least - 1, max_tokens=tokens, step_tokens=step, requests=wanted)
    plan = size_pages(spec, least, max_tokens=tokens, step_tokens=step, requests=wanted)
    assert plan.mix == ((tokens, wanted),) and plan.bytes == least
    cache = cache_of(spec, plan, step)
    tickets = [cache.admit(None, tokens) for _ in range(wanted)]
    for ticket in tickets:
        ticket.close()
    for name, pages in plan.pages.items():  # one page less anywhere and the last is refused
        cache = hk.HybridCache(
            spec, blocks=64, pages={**plan.pages, name: max(1, pages - 1)}, admission=hk.Admission(step_tokens=step)
        )
        held = [admitted(cache, tokens) for _ in range(wanted)]
        assert pages == 1 or held[-1] is None
        for one in held:
            if one is not None:
                one.close()


def test_pages_only_where_a_coverage_can_use_them() -> None:
    spec = spec_of("deepseek-v4-flash")
    plan = size_pages(spec, 40 * GIB, max_tokens=131_072, step_tokens=8192, kept_boundaries=10)
    running = sum(number for _, number in plan.mix)
    # No state of these is ever needed at a boundary: the live page alone, and none at rest.
    assert plan.pages["pending"] == running and plan.pages["hca_tail"] == running
    # Elsewhere a spare too, where the request reaches a boundary, and one page for each boundary kept.
    spares = sum(number for length, number in plan.mix if length >= 256)
    assert plan.pages["swa"] == plan.pages["overlap"] == running + spares + 10
    assert plan.pages["csa"] == plan.pages["hca"] == plan.pages["indexer"]
    assert plan.pages["csa"] == sum(-(-length // 256) * number for length, number in plan.mix)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_pool_of_the_worst_case_admits_and_one_page_less_never_does(data: st.DataObject) -> None:
    number = st.integers
    unit = 4
    groups = [
        hk.CacheGroup("kv", StateKind.COMPRESSED, Prefix(), page_bytes=64, block_tokens=4 * data.draw(number(1, 3)))
    ]
    rules: list[Coverage] = [Window(data.draw(number(1, 40))), Chunk(data.draw(number(1, 40)))]
    rules += [Checkpoint(), Checkpoint(every=data.draw(number(1, 20)))]
    for i, rule in enumerate(data.draw(st.lists(st.sampled_from(rules), max_size=3))):
        block = 4 * data.draw(number(1, 3))
        groups.append(hk.CacheGroup(f"g{i}", StateKind.WINDOW, rule, page_bytes=64, block_tokens=block))
    spec = hk.CacheSpec(unit, groups)
    tokens, step, states = data.draw(number(1, 90)), data.draw(number(1, 90)), data.draw(number(0, 2))
    steps, name = Random(data.draw(number(0, 99))), data.draw(st.sampled_from(spec.groups)).name
    need = worst_pages(spec, tokens, step_tokens=step, states=states)
    limits = hk.Admission(max_requests=1, max_combinations=1, watermark=0.9, step_tokens=step)
    cache = hk.HybridCache(spec, blocks=64, pages=need, admission=limits)
    ticket = cache.admit(None, tokens, states=states)
    while ticket.grown_tokens < tokens:  # and it finishes
        ticket.grow(min(steps.randint(1, step), tokens - ticket.grown_tokens))
        ticket.advance(ticket.grown_tokens, [3] * (ticket.grown_tokens - ticket.tokens))
    ticket.close()
    if need[name] > 1:
        cache = hk.HybridCache(spec, blocks=64, pages={**need, name: need[name] - 1}, admission=limits)
        with pytest.raises(hk.NotAdmitted) as refused:
            cache.admit(None, tokens, states=states)
        assert refused.value.reason == "never" and not refused.value.retry


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 400), st.integers(1, 64), st.integers(1, 5), st.integers(0, 3))
def test_a_plan_keeps_to_its_budget(budget: int, tokens: int, step: int, wanted: int, kept: int) -> None:
    full = hk.CacheGroup("full", StateKind.COMPRESSED, Prefix(), page_bytes=7)
    swa = hk.CacheGroup("swa", StateKind.WINDOW, Window(33), page_bytes=5)
    state = hk.CacheGroup("state", StateKind.TAIL, Checkpoint(), page_bytes=11)
    spec = hk.CacheSpec(16, [full, swa, state])
    try:
        plan = size_pages(spec, budget, max_tokens=tokens, step_tokens=step, requests=wanted, kept_boundaries=kept)
    except hk.SpecError as refused:
        assert budget < int(str(refused.expected).split()[2])
        return
    assert plan.bytes <= budget
    assert dict(plan.mix).get(tokens, 0) >= wanted
    one = sum(n * plan.page_bytes[name] for name, n in worst_pages(spec, 1, step_tokens=step).items())
    # What is left is less than one block more in every group, and less than the least request.
    assert budget - plan.bytes < max(one, 7 + 5 + 11)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"budget_bytes": 0}, "budget_bytes"),
        ({"budget_bytes": 1.5}, "budget_bytes"),
        ({"requests": 0}, "requests"),
        ({"step_tokens": 0}, "step_tokens"),
        ({"states": -1}, "states"),
        ({"kept_boundaries": -1}, "kept_boundaries"),
        ({"spec": None}, "spec"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, object], field: str) -> None:
    given: dict[str, object] = {"spec": hk.CacheSpec.homogeneous(2, 64), "budget_bytes": 10_000, "max_tokens": 64}
    with pytest.raises(hk.ArgumentError) as refused:
        size_pages(**{**given, **change})  # type: ignore[arg-type]
    assert refused.value.field == field


def test_a_stride_is_what_a_page_takes() -> None:
    group = hk.CacheGroup(
        "kv", StateKind.COMPRESSED, Prefix(), page_bytes=100, alignment=64, page_stride=128, layers=range(3)
    )
    plan = size_pages(hk.CacheSpec(16, [group]), 384 * 5 + 1, max_tokens=16)
    assert plan.page_bytes == {"kv": 384} and plan.pages == {"kv": 5} and plan.bytes == 384 * 5
