# SPDX-License-Identifier: Apache-2.0
"""Versions of one model on one tier: what each looks up, stores and loads, in this process or in another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import hybridkv as hk
from hybridkv.formats import RankGeometry

REGION = 1 << 20


def version(
    theta: float = 1.0, *, unit: int = 16, shard: str | None = None, ranks: RankGeometry | None = None, **identity: Any
) -> hk.CacheSpec:
    """One group of history whose rows are declared, in pages of 64 bytes."""
    made = hk.KvFormat("rows", "bfloat16", theta=theta, shard=shard)
    return hk.CacheSpec(
        unit,
        [hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64, format=made)],
        identity=hk.Identity("m", **identity),
        ranks=ranks or RankGeometry(),
    )


class Side:
    """One version on a tier: what it looks up, stores and loads."""

    def __init__(self, described: hk.CacheSpec, tier: hk.Tier, *, first: int = 0, **options: Any) -> None:
        self.keys = hk.block_keys(range(first, first + 64), described.unit_tokens, identity=described.identity)
        self.cache = hk.HybridCache(described, blocks=16, tier=tier, **options)
        self.pools = {g.name: np.zeros((self.cache.pages[g.name], g.page_bytes), np.uint8) for g in described.groups}
        for name, pool in self.pools.items():
            self.cache.bind(name, pool)

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *exception: object) -> None:
        self.cache.close()

    @property
    def skew(self) -> dict[str, int]:
        return dict(self.cache.metrics().tier_skew)

    def write(self, value: int) -> None:
        fill = self.cache.reserve(self.keys)
        for name, pool in self.pools.items():
            pages = fill.page_ids(name)
            pool[pages[pages >= 0]] = value
        fill.publish()
        assert self.cache.offload(self.keys).result().status.name == "OK"
        self.cache.evict(self.keys)

    def look(self) -> hk.Verdict:
        return self.cache.match(self.keys, limit=65)

    def read(self) -> int:
        """What is in the pages of history that a restore brings."""
        assert self.cache.restore(self.look().plan).result().tokens == 64
        with self.look().lease as lease:  # type: ignore[union-attr]
            return int(self.pools["kv"][lease.page_ids("kv")].max())


def opened(path: Path | str) -> hk.DiskTier:
    return hk.DiskTier(path, 8 * REGION, region_bytes=REGION)


def in_another_process(path: Path, code: str) -> str:
    """Run code with a tier on that store open as `tier`; return what it printed."""
    program = (
        "from dataclasses import replace\nimport hybridkv as hk\nfrom hybridkv.formats import RankGeometry\n"
        "from tier_sides import *\n"
        f"with opened({str(path)!r}) as tier:\n" + "".join(f"    {line}\n" for line in code.splitlines())
    )
    here = [str(Path(__file__).parent), str(Path(hk.__file__).parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(here)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
