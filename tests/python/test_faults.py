# SPDX-License-Identifier: Apache-2.0
"""The fault kit itself: what it covers, and that every fault does harm where nothing is checked."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is absent: the kit breaks states of its models")


from fault_cases import CASES, POSITIONS, live_model
from faults import FAULTS, Fault, Way, same
from faults.fault import same_bytes
from hybridkv.kinds import Check, StateKind
from tiny_models import ARCHITECTURES

CODES = {"missing", "partial", "lagging", "content"}


def test_it_holds_at_least_sixty_faults_under_one_name_each() -> None:
    assert len(FAULTS) >= 60
    assert all(name == fault.name for name, fault in FAULTS.items())


def test_it_holds_every_way_of_being_wrong_and_every_kind_of_state() -> None:
    assert {fault.way for fault in FAULTS.values()} == set(Way)
    assert {fault.kind for fault in FAULTS.values()} == set(StateKind)


def test_every_fault_names_the_check_and_the_code_that_refuse_it() -> None:
    assert {fault.code for fault in FAULTS.values()} == CODES
    for fault in FAULTS.values():
        assert isinstance(fault.check, Check)
        assert (fault.code == "content") == (fault.check is Check.INTEGRITY)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_it_breaks_every_group_of_every_architecture(name: str) -> None:
    live = live_model(name)
    broken: set[str] = set()
    for tokens in POSITIONS:
        state, context = live.state(tokens), live.context(tokens)
        for fault in FAULTS.values():
            other = fault.apply(state, context)
            if other is not None:
                broken |= {p.group for p in state if p not in other or not same_bytes(state[p], other[p])}
    assert broken == set(live.layout.groups)


@pytest.mark.parametrize(("name", "seed"), list(dict.fromkeys((name, seed) for name, seed, _ in CASES)))
def test_with_all_checks_off_every_fault_changes_the_logits(name: str, seed: int) -> None:
    live = live_model(name, seed)
    acted: dict[str, list[bool]] = defaultdict(list)
    for tokens in [tokens for *case, tokens in CASES if case == [name, seed]]:
        right, context, state = live.uninterrupted(tokens), live.context(tokens), live.state(tokens)
        assert same_bytes(live.restored(state, tokens), right)  # the unbroken state does not
        for fault in FAULTS.values():
            broken = fault.apply(state, context)
            if broken is not None:
                answer = live.answer(broken, context, fault)
                acted[fault.name].append(isinstance(answer, str) or not same_bytes(answer, right))
    assert acted, "no fault applies"
    assert [fault for fault, changed in acted.items() if not any(changed)] == []
    harmless = sum(not changed for found in acted.values() for changed in found)
    assert harmless <= 0.05 * sum(map(len, acted.values())), "many faults do no harm"


def test_every_fault_applies_to_some_architecture() -> None:
    left = set(FAULTS)
    for name in ARCHITECTURES:
        live = live_model(name)
        for tokens in POSITIONS:
            state, context = live.state(tokens), live.context(tokens)
            left -= {fault.name for fault in FAULTS.values() if fault.apply(state, context) is not None}
    assert left == set()


def test_most_faults_raise_nothing() -> None:
    live = live_model("deepseek_v4")
    state, context = live.state(79), live.context(79)
    answers = {}
    for fault in FAULTS.values():
        broken = fault.apply(state, context)
        if broken is not None:
            answers[fault.name] = live.answer(broken, context, fault)
    raised = {name for name, answer in answers.items() if isinstance(answer, str)}
    assert raised == {
        "window: gone",
        "window: one row short",
        "window: one row too many",
        "history: cut to whole blocks",
        "overlap: one row short",
    }
    assert len(answers) > 100


def test_a_fault_leaves_the_state_that_it_is_given_alone() -> None:
    live = live_model("deepseek_v4")
    state, context = live.state(79), live.context(79)
    sources = [state, context.foreign, context.other_weights, live.state(78), live.state(75)]
    before = [{place: rows.clone() for place, rows in source.items()} for source in sources]
    for fault in FAULTS.values():
        broken = fault.apply(state, context)
        for place, rows in (broken or {}).items():
            if not same_bytes(rows, state.get(place, rows[:0])):
                rows.zero_()  # tensors of its own: what is done to them is done to nobody
        assert all(map(same, sources, before)), fault.name


def test_tail_faults_do_not_act_where_no_tail_is() -> None:
    live = live_model("deepseek_v4")
    for tokens, rows in ((64, 0), (68, 4), (79, 15)):
        context, state = live.context(tokens), live.state(tokens)
        hca, csa = FAULTS["tail: HCA buffer gone"], FAULTS["tail: CSA buffers gone"]
        assert (hca.apply(state, context) is None) == (rows == 0)
        assert (csa.apply(state, context) is None) == (tokens % 4 == 0)
        assert FAULTS["overlap: gone"].apply(state, context) is not None  # no position is safe


def test_faults_of_states_that_a_model_has_not_do_not_apply() -> None:
    live = live_model("llama")
    state, context = live.state(79), live.context(79)
    kinds = {f.kind for f in FAULTS.values() if f.apply(state, context) is not None}
    assert kinds == {StateKind.COMPRESSED, StateKind.DISK}


def test_the_kit_tells_a_fault_that_does_nothing() -> None:
    """A change that leaves every byte as it is counts as no fault, not as one that was missed."""
    idle = Fault("idle", Way.ZERO, StateKind.WINDOW, ("swa",), Check.INTEGRITY, "content", _unchanged)
    live = live_model("gpt_oss")
    assert idle.apply(live.state(64), live.context(64)) is None


def _unchanged(state: Any, context: Any) -> Any:
    return dict(state)
