# SPDX-License-Identifier: Apache-2.0
"""A cache over a disk tier: through any history every byte that is handed out is the one that was written."""

from __future__ import annotations

import contextlib
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridkv as hk
from contract_support import check_counters
from disk_world import REGION, bring_back, disk, flip, prefix, regions, tmpfs
from hybridkv.tiers import TierStatus
from transfer_world import PAGE, UNIT, World, spec

KIND = hk.StateKind
IDENTITY = hk.Identity(model="small")


def group(name: str, coverage: Any, units: int = 1, kind: hk.StateKind | None = None, **more: Any) -> hk.CacheGroup:
    kinds = {hk.Prefix: KIND.COMPRESSED, hk.Checkpoint: KIND.TAIL}
    return hk.CacheGroup(
        name,
        kinds.get(type(coverage), KIND.WINDOW) if kind is None else kind,
        coverage,
        page_bytes=PAGE,
        layers=more.pop("layers", (0, 1)),
        block_tokens=units * UNIT,
        **more,
    )


def spec_of(*groups: hk.CacheGroup) -> hk.CacheSpec:
    return hk.CacheSpec(UNIT, list(groups), identity=IDENTITY)


SPECS: dict[str, Callable[[], hk.CacheSpec]] = {
    "small": spec,
    "history": lambda: spec_of(group("kv", hk.Prefix())),
    "several histories": lambda: spec_of(
        group("kv", hk.Prefix()), group("wide", hk.Prefix(), 2), group("wider", hk.Prefix(), 4)
    ),
    "states alone": lambda: spec_of(group("swa", hk.Window(6)), group("tail", hk.Checkpoint())),
    "chunks": lambda: spec_of(group("kv", hk.Prefix()), group("chunk", hk.Chunk(8)), group("tail", hk.Checkpoint())),
    "rebuildable": lambda: spec_of(
        group("kv", hk.Prefix()),
        group("swa", hk.Window(6), layers=(0, 1), rebuildable=True),
        group("tail", hk.Checkpoint(), layers=(2, 3)),
    ),
    "many": lambda: spec_of(
        *(group("p" * n, hk.Prefix(), n % 2 + 1) for n in range(1, 5)),
        *(group("w" * n, hk.Window(3 * n)) for n in range(5, 8)),
        *(group("t" * n, hk.Checkpoint()) for n in range(8, 10)),
    ),
}

STEPS = st.lists(
    st.tuples(st.sampled_from("wwooffrrmcspxd"), st.integers(0, 5), st.integers(1, 8)), min_size=4, max_size=30
)


class History:
    """Steps over one directory; a step that does not fit does nothing."""

    def __init__(self, path: Path, make: Callable[[], hk.CacheSpec], **options: Any) -> None:
        self.path = path
        self.make = make
        self.options = options
        self.damaged = False
        self.moving: list[hk.Transfer] = []
        self.open()

    def open(self) -> None:
        self.tier = disk(self.path, 4, breaker_after=0, **self.options)
        self.world = World(self.tier, of=self.make(), blocks=24)
        if not self.damaged:
            assert (self.tier.recovered.torn, self.tier.recovered.orphans) == (0, 0)

    def close(self) -> None:
        self.settle()
        usage = self.tier.usage()
        assert self.damaged or usage.corrupt == usage.mismatched == usage.io_errors == 0
        assert usage.bytes <= usage.capacity_bytes
        self.world.expect_idle()
        check_counters(self.world.cache)
        self.check_moved()
        self.world.cache.close()
        self.tier.close()

    def settle(self) -> None:
        for transfer in self.moving:
            result = transfer.result(30)
            assert result.stored <= result.records
            if transfer.kind == "restore":
                assert (result.why is None) == (result.status in {TierStatus.OK, TierStatus.CANCELLED})
        self.moving.clear()

    def check_moved(self) -> None:
        found = self.world.cache.metrics()
        for moved in (*found.offloads.values(), *found.restores.values()):
            assert moved.successes <= moved.attempts
            assert (moved.bytes == 0) == (moved.successes == 0)

    def keys(self, which: int, units: int) -> hk.BlockKeys:
        return prefix(self.world, which % 4, units * UNIT)

    def step(self, what: str, which: int, units: int) -> None:
        keys, cache = self.keys(which, units), self.world.cache
        if what == "w":
            self.world.write(keys)
        elif what == "o":
            self.moving.append(cache.offload(keys, durable=which == 0, pinned=which == 1))
        elif what == "f":
            cache.evict(keys)
        elif what == "r":
            bring_back_what_is_left(self.world, keys)
        elif what == "m":
            self.world.reuse(keys)
        elif what == "c" and self.moving:
            self.moving[which % len(self.moving)].cancel()
        elif what == "p":
            transfer = cache.prefetch(keys)
            self.moving += [] if transfer is None else [transfer]
        elif what == "s":
            self.settle()
        elif what in "xd":
            self.close()
            if what == "d":
                self.damage(which, units)
            self.open()

    def damage(self, which: int, units: int) -> None:
        files = regions(self.path)
        if not files:  # nothing was stored yet
            return
        self.damaged = True
        flip(files[which % len(files)], (which * 12347 + units * 4096 + 77) % REGION, 1 << units % 8)


def bring_back_what_is_left(world: World, keys: hk.BlockKeys) -> None:
    """As bring_back, beside transfers that may take part of it away again."""
    verdict = world.cache.match(keys, limit=keys.tokens + 1)
    plan = verdict.plan
    if verdict.lease is not None:
        verdict.lease.release()
    if verdict.remedy is hk.Remedy.RESTORE:
        result = world.cache.restore(plan).result(30)
        assert result.ok == (result.why is None)
    world.reuse(keys)


def live(path: Path, make: Callable[[], hk.CacheSpec], steps: list[tuple[str, int, int]], **options: Any) -> History:
    history = History(path, make, **options)
    for step in steps:
        try:
            history.step(*step)
        except hk.OutOfPages:
            history.settle()
    history.close()
    history.open()
    for which in range(4):
        keys = history.keys(which, 8)
        history.world.cache.evict(keys)
        with contextlib.suppress(hk.OutOfPages):
            bring_back(history.world, keys)
    history.close()
    return history


@pytest.mark.parametrize("engine", ["auto", "threads"])
@pytest.mark.parametrize("name", SPECS)
def test_whatever_comes_back_was_written(name: str, engine: str) -> None:
    @settings(max_examples=6, deadline=None)
    @given(STEPS)
    def run(steps: list[tuple[str, int, int]]) -> None:
        with tempfile.TemporaryDirectory() as path:
            live(Path(path) / "store", SPECS[name], steps, engine=engine)

    run()


def test_whatever_comes_back_was_written_through_the_page_cache(tmp_path: Path) -> None:
    number = iter(range(1000))
    with tmpfs(tmp_path / "room", "8m") as room:

        @settings(max_examples=6, deadline=None)
        @given(STEPS)
        def run(steps: list[tuple[str, int, int]]) -> None:
            with tempfile.TemporaryDirectory(dir=room, prefix=str(next(number))) as path:
                live(Path(path) / "store", spec, steps)

        run()


def test_a_byte_of_every_record_is_damaged_and_none_comes_back_wrong(tmp_path: Path) -> None:
    with disk(tmp_path, 4, region=1 << 20) as tier:
        world = World(tier)
        keys = world.keys(16)
        world.write(keys)
        assert world.cache.offload(keys, durable=True).result(30).records == 8
        world.cache.close()
    found = []
    for record in range(8):
        flip(regions(tmp_path)[0], 4096 + 8192 * record + 4096 + 17)
        with disk(tmp_path, 4, region=1 << 20, breaker_after=0) as tier:
            world = World(tier)
            asked = keys if record < 4 else keys[: record - 3]  # blocks first, then the states at 4, 8, 12 and 16
            found.append(bring_back(world, asked))
            assert tier.usage().corrupt == 1
            assert world.cache.metrics().load_failures["corrupt"] == 1
            verdict = world.cache.match(asked, limit=asked.tokens + 1)
            if verdict.lease is not None:
                verdict.lease.release()
            assert verdict.why is not None
            assert (verdict.why.check, verdict.why.code) == (hk.Check.INTEGRITY, "load")
            world.expect_idle()
            world.cache.close()
        flip(regions(tmp_path)[0], 4096 + 8192 * record + 4096 + 17)
    assert found == [0, 4, 8, 12] * 2, "what lies below what is damaged is had"


def test_what_is_made_on_disk_is_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with disk(path) as tier:
        world = World(tier)
        world.write(world.keys(16))
        assert world.cache.offload(world.keys(16), durable=True).result(30).ok
        world.cache.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o600}
