# SPDX-License-Identifier: Apache-2.0
"""Every fault in stored pages is refused by a check of the cache, or caught by its verification."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

pytest.importorskip("transformers", reason="transformers is absent: the kit breaks states of its models")


import hybridkv as hk
from fault_cases import CASES, HARMLESS, live_model
from faults import FAULTS, Context, Fault, State, same
from faults.fault import same_bytes
from faults.pages import StoredPrefix, missing_blocks
from tiny_models import ARCHITECTURES

NOT_IN_PAGES = {
    "window: one row too many",
    "history: one entry twice",
    "groups: sliding layer's length says one token less",
    "groups: every layer's length says 16 tokens more",
    "groups: entry counts one less, entries kept",
}
"""A page has no room for rows too many, and no counts: where a row lies says which token it stands for."""


@functools.cache
def stored_prefix(name: str, seed: int, tokens: int) -> tuple[StoredPrefix, Context]:
    live = live_model(name, seed)
    return StoredPrefix(live.model, live.prompt, tokens), live.context(tokens)


@functools.cache
def broken_states(name: str, seed: int, tokens: int) -> list[tuple[Fault, State]]:
    """Every fault that acts there, with the state that it leaves."""
    stored, context = stored_prefix(name, seed, tokens)
    applied = ((fault, fault.apply(stored.state, context)) for fault in FAULTS.values())
    return [(fault, state) for fault, state in applied if state is not None]


def differing(right: State, broken: State) -> set[str]:
    """Groups in which two states differ."""
    return {p.group for p in right if p not in broken or not same_bytes(right[p], broken[p])}


def settled(verdict: hk.Verdict) -> hk.Verdict:
    """Give a verdict's lease back, if it has one."""
    if verdict.lease is not None:
        verdict.lease.cancel()
    return verdict


@pytest.mark.parametrize(("name", "seed", "tokens"), CASES)
def test_unbroken_pages_go_on_bit_for_bit(name: str, seed: int, tokens: int) -> None:
    stored, _ = stored_prefix(name, seed, tokens)
    live = live_model(name, seed)
    opened = stored.opened()
    verdict = settled(opened.match())
    assert (verdict.outcome, verdict.usable_tokens, verdict.why) == (hk.Outcome.REUSABLE, tokens, None)
    state = opened.state()
    assert state is not None
    assert same(state, live.layout.state(stored.past, tokens))


@pytest.mark.parametrize(("name", "seed", "tokens"), CASES)
def test_pages_that_were_written_over_are_caught_by_verification(name: str, seed: int, tokens: int) -> None:
    stored, _ = stored_prefix(name, seed, tokens)
    cannot, caught = set(), 0
    for fault, broken in broken_states(name, seed, tokens):
        opened = stored.opened()
        if not opened.overwrite(stored.state, broken):
            cannot.add(fault.name)
            continue
        verdict = settled(opened.match("all"))
        why = verdict.why
        assert why is not None, fault.name
        assert (why.check, why.code) == (hk.Check.INTEGRITY, "content"), fault.name
        assert why.group in differing(stored.state, broken), fault.name
        assert verdict.matched_tokens == tokens
        assert (verdict.outcome, verdict.usable_tokens) == (hk.Outcome.FALSE_HIT, 0), fault.name
        assert opened.cache.metrics().lost_tokens[hk.Check.INTEGRITY][why.kind] > 0
        # The page is out of use. Others that were broken may follow it, one a match, until what is left is right.
        for _ in range(64):
            again = settled(opened.match("all"))
            if again.why is None or again.why.check is not hk.Check.INTEGRITY:
                break
        assert again.usable_tokens in [0, *stored.boundaries[:-1]], fault.name
        caught += 1
    assert cannot <= NOT_IN_PAGES
    assert caught > 25


@pytest.mark.parametrize("name", ["deepseek_v4", "gemma3_text", "deepseek_v32", "qwen3_next", "llama"])
def test_without_verification_the_same_pages_change_the_logits(name: str) -> None:
    stored, _ = stored_prefix(name, 0, 79)
    live = live_model(name)
    right = live.restored(stored.state, 79)
    harmless = []
    for fault, broken in broken_states(name, 0, 79):
        opened = stored.opened()
        if opened.overwrite(stored.state, broken):
            read = opened.state()
            assert read is not None, "a reader without verification resumes there"
            if same_bytes(live.restored(read, 79), right):
                harmless.append(fault.name)
    assert set(harmless) <= set(HARMLESS)


@pytest.mark.parametrize(("name", "seed", "tokens"), CASES)
def test_pages_that_were_not_published_are_refused_by_a_check(name: str, seed: int, tokens: int) -> None:
    stored, _ = stored_prefix(name, seed, tokens)
    for fault, broken in broken_states(name, seed, tokens):
        without = missing_blocks(stored.state, broken, stored)
        if not without:
            continue
        verdict = settled(stored.opened(without=without).match("off"))
        assert verdict.usable_tokens < tokens, fault.name
        why = verdict.why
        if why is None:  # not even a hash-hit rule finds it: a tip counts when its history is known
            assert verdict.matched_tokens < tokens, fault.name
            continue
        assert why.check in (hk.Check.COMPLETE, hk.Check.GROUPS), fault.name
        assert why.code in {"missing", "lagging"}, fault.name
        # Without a boundary below, the state that an earlier length would need costs most.
        assert why.group in without or len(stored.boundaries) == 1, fault.name


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_pages_of_a_writer_that_says_what_it_writes_are_refused_by_their_format(name: str) -> None:
    stored, context = stored_prefix(name, 0, 79)
    groups = stored.measured.layout.groups
    told = 0
    for fault in FAULTS.values():
        mine = [groups[group] for group in fault.groups if group in groups]
        if not fault.declares or not mine or fault.apply(stored.state, context) is None:
            continue
        formats = {group.name: replace(group.format, **fault.declares) for group in mine if group.format is not None}
        assert formats
        opened = stored.opened(formats=formats)
        verdict = settled(opened.match("off"))
        assert verdict.why is not None, fault.name
        assert hk.Check.ABI in verdict.lost, fault.name
        if len(stored.boundaries) > 1:
            assert (verdict.why.check, verdict.why.code) == (hk.Check.ABI, "format"), fault.name
            assert verdict.why.group in formats
        assert verdict.usable_tokens < 79
        same_writer = settled(opened.match("off", formats=formats))
        assert same_writer.usable_tokens == 79  # who reads what was written may
        told += 1
    assert told >= 5
