# SPDX-License-Identifier: Apache-2.0
"""Question: how does a match compare with vLLM's and SGLang's on the same machine in the same run?

Each peer runs in an environment of its own, which a variable names; without it the bench is skipped.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from pathlib import Path

import pytest

import hybridkv as hk

_PEERS = {
    "vllm": ("HYBRIDKV_VLLM_PYTHON", "vllm_match.py"),
    "sglang": ("HYBRIDKV_SGLANG_PYTHON", "sglang_match.py"),
}


@pytest.mark.parametrize("peer", sorted(_PEERS))
def test_match_beside_a_peer(timer, prompt, smoke, peer):
    variable, script = _PEERS[peer]
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"{variable} does not name an interpreter that has {peer} (bench/README.md says how to make one)")
    sizes = [512] if smoke else [8192, 65536]
    command = [python, str(Path(__file__).parent / "peers" / script), *map(str, sizes)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    run = timer.benchmark.pedantic(
        subprocess.run,
        args=(command,),
        kwargs={"capture_output": True, "text": True, "env": environment, "timeout": 600},
        rounds=1,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    theirs: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    spec = hk.CacheSpec(
        16,
        [
            hk.CacheGroup("full", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64),
            hk.CacheGroup("window", hk.StateKind.WINDOW, hk.Window(128), page_bytes=64),
        ],
    )
    for tokens in sizes:
        keys, other = prompt(tokens, 16, spec.identity), prompt(tokens, 16, spec.identity, seed=1)
        cache = hk.HybridCache(spec, blocks=2 * len(keys))
        cache.insert(keys[: len(keys)])
        hit, miss = timer.rounds(lambda: cache.match(keys).lease.release(), lambda: cache.match(other))  # noqa: B023
        cache.evict(keys[: len(keys)], {"window": True})
        assert cache.match(keys).outcome is hk.Outcome.FALSE_HIT
        (false_hit,) = timer.rounds(lambda: cache.match(keys))  # noqa: B023
        for name, ours in (("hit", hit), ("miss", miss), ("false_hit", false_hit)):
            figure = theirs.get(f"{name}_{tokens}_us")
            if figure is None or smoke:
                continue
            what = f"{name.replace('_', ' ')}, {tokens} tokens"
            timer.figure(f"{peer}: {what} (min)", [figure])
            timer.figure(f"{peer} over ours: {what}", [figure / statistics.median(ours)], unit="times", at_least=True)
