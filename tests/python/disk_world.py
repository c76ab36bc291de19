# SPDX-License-Identifier: Apache-2.0
"""A cache over a disk tier that can be opened again, killed, damaged and put on a file system that is full."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hybridkv as hk
from transfer_world import World

REGION = 64 << 10  # the smallest there is
RECORD = 8192  # of a record of the small model on disk: its envelope and its pages, each padded

_KILLED = """
import sys
import hybridkv as hk
from transfer_world import World

path, prefixes, region = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
tier = hk.DiskTier(path, 32 * region, region_bytes=region)  # room for all: nothing is evicted
world = World(tier)
for number in range(prefixes):
    keys = world.keys(16, first=1000 * number + 1)
    world.write(keys)
    assert world.cache.offload(keys, durable=True).result(30).ok
    print(number, flush=True)
keys = world.keys(200, first=900_001)
world.write(keys)
transfer = world.cache.offload(keys)
print("under way", flush=True)
while True:
    transfer.done()
"""


def disk(path: Path, regions: int = 32, region: int = REGION, **options: Any) -> hk.DiskTier:
    return hk.DiskTier(path, regions * region, region_bytes=region, **options)


def killed_store(path: Path, prefixes: int, region: int = REGION) -> None:
    """A store whose process was killed while it wrote: so many prefixes of 16 tokens are durable in it."""
    command = [sys.executable, "-c", _KILLED, str(path), str(prefixes), str(region)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as writer:
        assert writer.stdout is not None
        said = [writer.stdout.readline().strip() for _ in range(prefixes + 1)]
        writer.kill()
    assert said == [*map(str, range(prefixes)), "under way"]


def prefix(world: World, number: int, tokens: int = 16) -> hk.BlockKeys:
    return world.keys(tokens, first=1000 * number + 1)


def bring_back(world: World, keys: hk.BlockKeys) -> int:
    """Restore what the tier has, as often as a match names it; every byte of what is usable then is checked.

    Returns the usable tokens. What a plan promised comes, or the failure says why.
    """
    for _ in range(2 * len(keys) + 2):
        verdict = world.cache.match(keys, limit=keys.tokens + 1)
        plan, usable = verdict.plan, verdict.usable_tokens
        if verdict.lease is not None:
            verdict.lease.release()
        if verdict.remedy is not hk.Remedy.RESTORE:
            assert world.reuse(keys) == usable
            return usable
        result = world.cache.restore(plan).result(30)
        if result.ok:
            assert world.reuse(keys) >= plan.restore_tokens
        else:
            assert result.why is not None
            assert (result.why.check, result.why.kind) == (hk.Check.INTEGRITY, hk.StateKind.DISK)
    raise AssertionError("a plan that leads nowhere is named for ever")


def regions(path: Path) -> list[Path]:
    return sorted(path.glob("*.region"))


def flip(file: Path, at: int, mask: int = 1) -> None:
    """Change bits of one byte."""
    with file.open("r+b") as region:
        region.seek(at)
        byte = region.read(1)
        region.seek(at)
        region.write(bytes([byte[0] ^ mask]))


@contextlib.contextmanager
def tmpfs(where: Path, size: str) -> Iterator[Path]:
    """A file system of memory of that size; the test is skipped where none can be mounted."""
    where.mkdir()
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(where)],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("mount is not installed")
    if done.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here (needs root): {done.stderr.strip()}")
    try:
        yield where
    finally:
        subprocess.run(["umount", str(where)], check=True)
