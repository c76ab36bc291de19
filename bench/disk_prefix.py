# SPDX-License-Identifier: Apache-2.0
"""A long prefix of DeepSeek-V4-Flash to disk, out of memory, and back in another process, beside the disk itself.

    python bench/disk_prefix.py                     1 Mi tokens: 3.8 GB of memory, twice as much of disk
    python bench/disk_prefix.py --tokens 4096       a smoke

Two processes, one after another, so that the bytes lie in memory once at most. The first fills pools with bytes that
follow from group, layer, block and offset, offloads the prefix through a cache to a DiskTier, and ends. The second
knows nothing but the directory and the tokens: it paints its pools, matches, restores, and compares every byte of
every page with what it must be. Around them the caller moves bytes through O_DIRECT with nothing on top, in the same
file system: it reads the very region files before and after the restore, and writes a file of its own.
Prints a table, or with ``--json`` one object; exits with 1 where a byte was wrong.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import hybridkv as hk
from hybridkv.replay.shapes import find_shape

UNIT = 256
PIECE = 4 << 20  # of raw reads and writes
DEPTH = 8  # of them at a time
PAINT = 0xEE
TIMEOUT_S = 600.0  # the machine may be busy; this measures, it does not serve


class Meter:
    """Seconds, and seconds of all CPUs, from its making on."""

    def __init__(self) -> None:
        self._cpu, self._start = self._used(), time.perf_counter()

    def of(self, size: int) -> dict[str, float]:
        """What moving so many bytes took."""
        seconds = time.perf_counter() - self._start
        cpu = self._used() - self._cpu
        return {"seconds": seconds, "cpu_seconds": cpu, "bytes": size, "gb_per_second": size / 1e9 / seconds}

    @staticmethod
    def _used() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime


class Prefix:
    """Pools of the model, and what every byte of the prefix is."""

    def __init__(self, tokens: int) -> None:
        self.spec = find_shape("deepseek-v4-flash").make(UNIT)
        self.tokens = tokens
        ids = np.random.default_rng(0).integers(0, 129280, tokens, dtype=np.uint32)
        self.keys = hk.block_keys(ids, UNIT, identity=self.spec.identity)
        units = tokens // UNIT
        self.pages = {}
        for group in self.spec.groups:
            of_history = isinstance(group.coverage, hk.Prefix)
            self.pages[group.name] = units * UNIT // (group.block_tokens or UNIT) if of_history else 4
        self.pools = {
            g.name: np.empty((self.pages[g.name], g.layer_count, g.page_bytes), np.uint8) for g in self.spec.groups
        }
        for pool in self.pools.values():
            pool.fill(PAINT)  # takes the memory now, and a page that nobody wrote shows
        self._noise = np.random.default_rng(1).integers(0, 1 << 63, max(g.page_bytes for g in self.spec.groups) // 8)
        self._noise = self._noise.astype(np.uint64)

    def cache(self, tier: hk.Tier) -> hk.HybridCache:
        """A cache over the pools."""
        units = self.tokens // UNIT
        cache = hk.HybridCache(self.spec, blocks=units + 64, pages=self.pages, tier=tier, verify="off")
        for group in self.spec.groups:
            cache.bind(group.name, self.pools[group.name].reshape(self.pages[group.name], -1))
        return cache

    def content(self, number: int, group: hk.CacheGroup, block: int) -> np.ndarray:
        """What a page holds, [[layers, page_bytes / 8]] uint64: noise plus a word of the layer's and block's own."""
        own = [(((number << 16) | layer) << 32) | block for layer in range(group.layer_count)]
        words = np.array(own, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        words ^= words >> np.uint64(29)
        return self._noise[: group.page_bytes // 8] + words[:, None]

    def page(self, group: hk.CacheGroup, page: int) -> np.ndarray:
        """A page of the pool, as :meth:`content` gives it."""
        return self.pools[group.name][page].view(np.uint64)

    def fill(self, cache: hk.HybridCache) -> None:
        """Publish the prefix."""
        last = {g.name: [self.tokens // (g.block_tokens or UNIT) - 1] for g in self.spec.groups}
        groups = {g.name: True if isinstance(g.coverage, hk.Prefix) else last[g.name] for g in self.spec.groups}
        fill = cache.reserve(self.keys, groups=groups)
        for number, group in enumerate(self.spec.groups):
            for block, page in enumerate(fill.page_ids(group.name)):
                if page >= 0:
                    self.page(group, page)[:] = self.content(number, group, block)
        fill.publish()

    def wrong(self, lease: hk.Lease) -> tuple[int, int]:
        """Compare every byte that a lease holds: how many are wrong, of how many."""
        wrong = compared = 0
        for number, group in enumerate(self.spec.groups):
            for block, page in enumerate(lease.page_ids(group.name)):
                if page < 0:
                    continue
                found, wanted = self.page(group, page), self.content(number, group, block)
                compared += found.nbytes
                if not np.array_equal(found, wanted):
                    wrong += int((found.view(np.uint8) != wanted.view(np.uint8)).sum())
        return wrong, compared


def most_rss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def open_tier(folder: Path, tokens: int, region_mib: int) -> hk.DiskTier:
    spec = find_shape("deepseek-v4-flash").make(UNIT)
    region = region_mib << 20
    room = int(spec.bytes_per_token * tokens * 1.1) + 8 * region
    return hk.DiskTier(folder, room // region * region, region_bytes=region)


def offload(folder: Path, tokens: int, region_mib: int) -> dict[str, Any]:
    """First process: fill, offload durably, end."""
    prefix = Prefix(tokens)
    with open_tier(folder, tokens, region_mib) as tier:
        cache = prefix.cache(tier)
        prefix.fill(cache)
        meter = Meter()
        result = cache.offload(prefix.keys, boundaries=[tokens], durable=True, timeout_s=TIMEOUT_S).result()
        told = meter.of(result.bytes)
        if not result.ok or result.tokens != tokens:
            raise SystemExit(f"the prefix was not stored: {result}")
        told.update(records=result.stored, engine=tier.engine, rss=most_rss())
        cache.close()
    return told


def restore(folder: Path, tokens: int, region_mib: int) -> dict[str, Any]:
    """Second process: match, restore, compare."""
    prefix = Prefix(tokens)
    opened = Meter()
    with open_tier(folder, tokens, region_mib) as tier:
        told = {"open_seconds": opened.of(0)["seconds"], "records": tier.recovered.records}
        cache = prefix.cache(tier)
        verdict = cache.match(prefix.keys, limit=tokens + 1)
        if verdict.plan.restore_tokens != tokens:
            raise SystemExit(f"the store gives back {verdict.plan.restore_tokens} of {tokens} tokens: {verdict.why}")
        meter = Meter()
        result = cache.restore(verdict.plan, timeout_s=TIMEOUT_S).result()
        told.update(meter.of(result.bytes))
        if not result.ok:
            raise SystemExit(f"the prefix was not restored: {result}")
        again = cache.match(prefix.keys, limit=tokens + 1)
        if again.lease is None:
            raise SystemExit(f"what was restored is not usable: {again.why}")
        with again.lease as lease:
            told["wrong"], told["compared"] = prefix.wrong(lease)
        told.update(usable=again.usable_tokens, rss=most_rss())
        cache.close()
    return told


def _moved(path: Path, flags: int, size: int, move: Any) -> dict[str, float]:
    """Move a file's first bytes by pieces, some at a time, each thread through an aligned piece of its own."""
    descriptor = os.open(path, flags | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    try:
        if flags & os.O_CREAT:
            os.posix_fallocate(descriptor, 0, size)
        buffers = [mmap.mmap(-1, PIECE) for _ in range(DEPTH)]
        for buffer in buffers:
            buffer.write(os.urandom(PIECE))
        meter = Meter()

        def work(number: int) -> None:
            for offset in range(number * PIECE, size, DEPTH * PIECE):
                piece = memoryview(buffers[number])[: min(PIECE, size - offset)]
                if move(descriptor, [piece], offset) != len(piece):
                    raise OSError(f"short transfer at {offset} of {path}")

        with ThreadPoolExecutor(DEPTH) as threads:
            list(threads.map(work, range(DEPTH)))
        if flags & os.O_CREAT:
            os.fdatasync(descriptor)
        return meter.of(size)
    finally:
        os.close(descriptor)


def raw_read(folder: Path) -> dict[str, float]:
    """Read the region files as they lie there."""
    files = sorted(folder.glob("*.region"))
    parts = [_moved(file, os.O_RDONLY, file.stat().st_size, os.preadv) for file in files]
    total = {name: sum(part[name] for part in parts) for name in ("seconds", "cpu_seconds", "bytes")}
    return {**total, "gb_per_second": total["bytes"] / 1e9 / total["seconds"]}


def raw_write(folder: Path, size: int) -> dict[str, float]:
    """Write a preallocated file durably, and remove it."""
    path = folder / "raw"
    try:
        return _moved(path, os.O_RDWR | os.O_CREAT, -(-size // 4096) * 4096, os.pwritev)
    finally:
        path.unlink(missing_ok=True)


def _process(step: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Run one step in a process of its own."""
    options = ["--step", step, "--dir", str(folder), "--tokens", str(args.tokens), "--region-mib", str(args.region_mib)]
    done = subprocess.run([sys.executable, __file__, *options], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{step} ended with {done.returncode}")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def run(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All steps, in the order that the head of this module tells."""
    store = folder / "store"
    stored = _process("offload", store, args)
    written = raw_write(folder, stored["bytes"])
    before = raw_read(store)
    back = _process("restore", store, args)
    after = raw_read(store)
    fastest = max(before["gb_per_second"], after["gb_per_second"])
    return {
        "tokens": args.tokens,
        "offload": stored,
        "raw_write": written,
        "restore": back,
        "raw_reads": [before, after],
        "offload_of_raw": stored["gb_per_second"] / written["gb_per_second"],
        "restore_of_raw": back["gb_per_second"] / fastest,
        "wrong": back["wrong"],
    }


def as_text(told: dict[str, Any]) -> str:
    def line(name: str, part: dict[str, Any], rest: str = "") -> str:
        cpu = part["cpu_seconds"] / (part["bytes"] / 1e9)
        return (
            f"{name:<16} {part['seconds']:8.2f} s {part['gb_per_second']:7.2f} GB/s {part['cpu_seconds']:7.2f} CPU-s"
            f" {cpu:5.2f} CPU-s/GB  {rest}"
        )

    stored, back = told["offload"], told["restore"]
    before, after = told["raw_reads"]
    rss = f"{stored['rss'] / 1e9:.2f} and {back['rss'] / 1e9:.2f} GB"
    return "\n".join(
        [
            f"DeepSeek-V4-Flash, {told['tokens']:,} tokens, units of {UNIT}: {stored['records']:,} records,"
            f" {stored['bytes']:,} bytes ({stored['engine']})",
            line("offload, durable", stored, f"{told['offload_of_raw']:.2f} of raw"),
            line("raw write", told["raw_write"]),
            line("raw read", before, "the region files, before"),
            line(
                "restore",
                back,
                f"{told['restore_of_raw']:.2f} of the faster raw read; opened in {back['open_seconds']:.3f} s",
            ),
            line("raw read", after, "and after"),
            f"{back['compared']:,} bytes compared in the second process, {back['wrong']} wrong; most memory {rss}",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1 << 20, help=f"a multiple of {UNIT}")
    parser.add_argument("--dir", type=Path, help="where to make a folder for it (default: the temporary directory)")
    parser.add_argument("--region-mib", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--step", choices=("offload", "restore"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.tokens < UNIT or args.tokens % UNIT:
        parser.error(f"--tokens: a multiple of {UNIT}")
    if args.step:
        step = {"offload": offload, "restore": restore}[args.step]
        print(json.dumps(step(args.dir, args.tokens, args.region_mib)))
        return 0
    with tempfile.TemporaryDirectory(prefix="hybridkv-", dir=args.dir) as folder:
        told = run(args, Path(folder))
    print(json.dumps(told) if args.json else as_text(told))
    return 1 if told["wrong"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
