# SPDX-License-Identifier: Apache-2.0
"""Question: how near does a long prefix, offloaded and restored by another process through the cache, come to the disk?

`disk_prefix.py` is the program; alone it takes 1 Mi tokens, here fewer.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import hybridkv as hk

PROGRAM = Path(__file__).with_name("disk_prefix.py")
UNIT = 256


@pytest.fixture(scope="module")
def program() -> ModuleType:
    """The program, whose folder is no package."""
    spec = importlib.util.spec_from_file_location("disk_prefix", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def figures(tmp_path: Path, tokens: int, region_mib: int) -> dict:
    command = [sys.executable, str(PROGRAM), "--json", "--tokens", str(tokens), "--dir", str(tmp_path)]
    run = subprocess.run([*command, "--region-mib", str(region_mib)], capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_a_long_prefix_through_the_disk(timer, smoke, tmp_path):
    tokens, region_mib = (2048, 8) if smoke else (1 << 17, 64)
    found = timer.benchmark.pedantic(figures, args=(tmp_path, tokens, region_mib), rounds=1)
    back = found["restore"]
    assert found["wrong"] == back["wrong"] == 0 and back["usable"] == tokens
    assert back["compared"] == back["bytes"] == found["offload"]["bytes"] > 3850 * tokens
    assert back["records"] == found["offload"]["records"] == tokens // UNIT + 1
    assert list(tmp_path.iterdir()) == []
    if smoke:
        return
    name = f"prefix of {tokens} tokens"
    timer.figure(f"{name}: durable offload over raw write", [found["offload_of_raw"]], unit="times", at_least=True)
    timer.figure(f"{name}: restore over raw read", [found["restore_of_raw"]], must=0.85, aim=0.92, unit="times",
                 at_least=True)  # fmt: skip
    timer.figure(f"{name}: restore, CPU-seconds a GB", [back["cpu_seconds"] / (back["bytes"] / 1e9)], must=0.25,
                 unit="s")  # fmt: skip


def test_a_wrong_byte_is_seen(program):
    prefix = program.Prefix(2 * UNIT)
    cache = prefix.cache(hk.MemoryTier(1 << 20))
    prefix.fill(cache)
    with cache.match(prefix.keys, limit=prefix.tokens + 1).lease as lease:
        assert prefix.wrong(lease) == (0, lease_bytes(prefix, lease))
        page = int(lease.page_ids("indexer")[1])
        prefix.pools["indexer"][page, 20, -1] ^= 1
        assert prefix.wrong(lease)[0] == 1
        prefix.pools["indexer"][page, 20, -1] ^= 1
        other = int(lease.page_ids("indexer")[0])
        prefix.pools["indexer"][[page, other]] = prefix.pools["indexer"][[other, page]]
        assert prefix.wrong(lease)[0] > 0  # pages that were exchanged are of other blocks
    cache.close()


def lease_bytes(prefix, lease) -> int:
    return sum(int((lease.page_ids(g.name) >= 0).sum()) * g.total_page_bytes for g in prefix.spec.groups)
