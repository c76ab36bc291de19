# SPDX-License-Identifier: Apache-2.0
"""Field cases of prefixes that rest in a tier, as far as policies and plans decide them; see field_cases.json."""

from __future__ import annotations

import pytest

import hybridkv as hk
from contract_support import group

EVERY_POLICY = (hk.KeepWindows.all(), hk.KeepWindows.every(64), hk.KeepWindows.none(replay="triangular"))


def with_states(*names: str) -> hk.CacheSpec:
    """History, and a recurrent state under each name."""
    return hk.CacheSpec(16, [group("kv", hk.Prefix()), *(group(name, hk.Checkpoint()) for name in names)])


def test_FC_031_what_was_saved_without_its_checkpoint_is_never_resumed() -> None:
    spec = with_states("state")
    policy = hk.KeepWindows.all()
    assert [plan.tokens for plan in policy.plans(spec, 96, [])] == [0], "history alone: nothing but computing all"
    (_, saved) = policy.plans(spec, 96, [64])
    assert saved.tokens == 64 and list(saved.reads["state"].blocks) == [3]
    assert saved.record_bytes == spec["state"].total_page_bytes
    with pytest.raises(hk.SpecError, match="kept checkpoints"):  # and no policy that would make it of history
        hk.KeepWindows.none().plans(spec, 96, [])


def test_FC_032_a_draft_group_is_part_of_every_record() -> None:
    without, drafting = with_states("target"), with_states("target", "draft")
    for policy in EVERY_POLICY[:2]:
        (_, saved) = policy.plans(drafting, 96, [64])
        assert [name for name, need in saved.reads.items() if need.blocks] == ["kv", "target", "draft"]
        (_, older) = policy.plans(without, 96, [64])
        assert older.record_bytes < saved.record_bytes, "a record of a spec without it is another one"


@pytest.mark.parametrize("policy", EVERY_POLICY, ids=["all", "every", "none"])
def test_FC_035_no_plan_reaches_the_exact_end(policy: hk.KeepWindows) -> None:
    spec = hk.CacheSpec(64, [group("kv", hk.Prefix(), layers=(0,)), group("swa", hk.Window(65), layers=(0,))])
    plans = policy.plans(spec, 2234, [2234, 2048], limit=2234)
    assert max(plan.tokens for plan in plans if plan.replay is None) == 2048
    replayed = [plan.tokens for plan in plans if plan.replay is not None]
    assert replayed == ([2176] if policy.retain == "none" else [])
    ending_there = policy.plans(spec, 2176, [2176, 2048], limit=2176)
    assert max(plan.tokens for plan in ending_there if plan.replay is None) == 2048
    assert all(plan.tokens < 2176 for plan in ending_there)
