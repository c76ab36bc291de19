# SPDX-License-Identifier: Apache-2.0
"""Question: what does it cost to name the units of a million tokens?"""

from __future__ import annotations

import numpy as np
import pytest

import hybridkv as hk


@pytest.mark.parametrize(("unit", "must_ns"), [(16, None), (64, 120), (256, None)])
def test_block_keys_of_a_million_tokens(timer, smoke, unit, must_ns):
    tokens = 4096 if smoke else 1 << 20
    ids = np.random.default_rng(0).integers(0, 129280, tokens, dtype=np.uint32)
    keys = hk.block_keys(ids, unit)
    assert len(keys) == tokens // unit
    assert keys == hk.block_keys(ids.tolist(), unit)
    units = tokens // unit
    timer.record(f"block_keys of 1M tokens, unit {unit}", lambda: hk.block_keys(ids, unit), trial_ms=25,
                 must=None if must_ns is None else must_ns * units / 1e3)  # fmt: skip


def test_continuing_a_long_prompt_costs_its_new_tokens_alone(timer, smoke):
    tokens = 4096 if smoke else 1 << 20
    ids = np.random.default_rng(0).integers(0, 129280, tokens + 1024, dtype=np.uint32)
    before = hk.block_keys(ids[:tokens], 64)
    after = ids[tokens:]
    assert hk.block_keys(after, 64, parent=before) == hk.block_keys(ids, 64)
    timer.record("block_keys of 1024 tokens after 1M, unit 64", lambda: hk.block_keys(after, 64, parent=before))
