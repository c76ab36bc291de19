# SPDX-License-Identifier: Apache-2.0
"""Tenants that share a cache, and stores that somebody else wrote: what must be impossible."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from hybridkv import digests
from hybridkv.tiers import RecordKey, RecordKind, Store
from store_support import call, open_tier
from tier_support import Asker, DictTier, record
from transfer_world import UNIT, World

DRAFT = "superblock.new"
SECRET = bytes(range(32))
ONE, TWO = (digests.tenant_salt(SECRET, name) for name in ("one", "two"))
TIERS: dict[str, Callable[[Path], hk.Tier]] = {
    "memory": lambda path: hk.MemoryTier(4 << 20),
    "disk": lambda path: hk.DiskTier(path / "store", 64 * (64 << 10), region_bytes=64 << 10),
    "adapter": lambda path: DictTier(),
    "stack": lambda path: hk.TierStack(
        [hk.MemoryTier(1 << 20), hk.DiskTier(path / "store", 64 * (64 << 10), region_bytes=64 << 10)]
    ),
}


@pytest.fixture(params=TIERS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with TIERS[request.param](tmp_path) as tier:
        made = World(tier)
        yield made
        made.cache.close()


def of(world: World, salt: bytes, tokens: int) -> hk.BlockKeys:
    return hk.block_keys(range(1, tokens + 1), UNIT, identity=replace(world.spec.identity, salt=salt))


def settle(world: World) -> None:
    for _ in range(5):
        world.cache.tier.wait(0.002)  # type: ignore[union-attr]
        world.cache.poll()


# -- salts --------------------------------------------------------------------------------------------


def test_another_salt_finds_nothing_in_table_tips_and_tier(world: World) -> None:
    mine, longer, other = of(world, ONE, 30), of(world, ONE, 33), of(world, TWO, 33)
    world.write(mine)  # with a tip
    assert world.reuse(longer) == 30
    assert sees_nothing(world, other)
    assert world.cache.offload(mine).result(30).ok
    world.forget(mine)
    assert sees_nothing(world, other)
    for _ in range(20):  # a tier without an index is asked first
        transfer = world.cache.prefetch(longer)
        if transfer is not None:
            transfer.result(30)
        settle(world)
    assert world.reuse(longer) == 30
    assert sees_nothing(world, other)


def sees_nothing(world: World, keys: hk.BlockKeys) -> bool:
    """Every question that takes keys answers as it does of tokens that nobody ever had."""
    unknown = hk.block_keys(range(5000, 5000 + keys.tokens), UNIT, identity=keys.identity)  # type: ignore[arg-type]
    return answers(world, keys) == answers(world, unknown)


def answers(world: World, keys: hk.BlockKeys) -> list[Any]:
    cache = world.cache
    verdict = cache.match(keys, limit=keys.tokens + 1)
    exactly = cache.match_at(keys, 16)
    for _ in range(3):
        assert cache.prefetch(keys) is None
        settle(world)
    told: list[Any] = [verdict.outcome, verdict.why, verdict.matched_tokens, verdict.lost, verdict.remedy]
    told += [verdict.plan.loads, verdict.plan.restore_tokens, verdict.boundaries.tolist(), repr(verdict)]
    told += [exactly.outcome, exactly.why, cache.restorable(keys), cache.inspect(keys), cache.spans(keys)]
    told += [cache.evict(keys), verdict.lease, exactly.lease]
    assert verdict.outcome is hk.Outcome.MISS
    return told


def test_a_fill_of_one_tenant_does_not_hold_up_another(world: World) -> None:
    """Whether another tenant computes the same prompt just now shows neither in pages nor in what is private."""
    mine = world.cache.reserve(of(world, ONE, 16))
    theirs = world.cache.reserve(of(world, TWO, 16))
    taken = [fill.page_ids("kv") for fill in (mine, theirs)]
    assert not set(taken[0].tolist()) & set(taken[1].tolist())
    mine.publish()
    theirs.publish()
    assert world.cache.metrics().duplicates == 0
    for salt in (ONE, TWO):
        verdict = world.cache.match(of(world, salt, 17))
        assert verdict.usable_tokens == 16
        assert verdict.lease is not None
        verdict.lease.release()


def test_keys_of_two_salts_have_nothing_in_common() -> None:
    world_identity = hk.Identity("m")
    rows = [hk.block_keys(range(4096), 16, identity=replace(world_identity, salt=salt)).digests for salt in (ONE, TWO)]
    first, second = ({row.tobytes() for row in each} for each in rows)
    assert len(first) == len(second) == 256
    assert not first & second
    halves = [{row[:8] for row in each} for each in (first, second)]
    assert not halves[0] & halves[1]


@pytest.mark.parametrize("salt", [TWO, b"", ONE[:-1], ONE + b"\0"])
def test_a_store_restores_nothing_without_the_salt(salt: bytes, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with hk.DiskTier(path, 64 * (64 << 10), region_bytes=64 << 10) as tier:
        world = World(tier)
        keys = of(world, ONE, 30)
        world.write(keys)
        assert world.cache.offload(keys, durable=True).result(30).ok
        world.cache.close()
    content = b"".join(file.read_bytes() for file in sorted(path.iterdir()))
    assert ONE not in content
    assert np.array(range(1, 31), np.uint32).tobytes() not in content
    with hk.DiskTier(path, 64 * (64 << 10), region_bytes=64 << 10) as tier:
        world = World(tier)
        assert world.cache.restorable(of(world, salt, 31)) is None
        assert world.cache.match(of(world, salt, 31)).outcome is hk.Outcome.MISS
        assert world.cache.restorable(of(world, ONE, 31)) is not None
        world.cache.close()


def test_an_answer_about_a_salt_is_that_of_any_miss() -> None:
    """A verdict says of another's prompt what it says of a prompt that nobody had; its repr and its reason too."""
    world = World(None)
    world.write(of(world, ONE, 32))
    seen = world.cache.match(of(world, TWO, 33))
    never = world.cache.match(hk.block_keys(range(900, 933), UNIT, identity=replace(world.spec.identity, salt=TWO)))
    assert repr(seen) == repr(never)
    assert (seen.why, seen.lost, seen.remedy) == (never.why, never.lost, never.remedy)


# -- stores of somebody else --------------------------------------------------------------------------


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and not p.is_symlink()}


@pytest.mark.parametrize("what", ["superblock", "region", "next region", "draft", "folder"])
def test_a_link_in_a_store_is_not_followed(what: str, tmp_path: Path) -> None:
    store, outside = tmp_path / "store", tmp_path / "outside"
    outside.mkdir()
    with open_tier(store) as tier:
        ask = Asker(tier)
        assert ask.put(record(1)) == "OK"
    region = sorted(store.glob("*.region"))[0]
    (outside / "file").write_bytes(region.read_bytes() if what == "region" else b"precious")
    names = {
        "superblock": "superblock",
        "region": region.name,
        "next region": "000007.region",
        "draft": "superblock.new",
    }
    if what == "folder":
        names[what] = "000006.region"
    target = store / names[what]
    target.unlink(missing_ok=True)
    target.symlink_to(outside if what == "folder" else outside / "file")
    before = everything(outside)
    for use in (lambda: Store(store).close(), lambda: use_tier(store)):
        try:
            use()
        except hk.TierError:
            assert what in ("superblock", "region", "next region", "folder")
    assert everything(outside) == before
    assert sorted(os.listdir(outside)) == ["file"]


def use_tier(path: Path) -> None:
    with open_tier(path) as tier:
        ask = Asker(tier)
        for name in range(1, 20):
            ask.put(record(name, (40_000,)))
        assert not ask.has(999)


def test_names_in_a_store_are_names_and_no_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store"
    with open_tier(store) as tier:
        assert Asker(tier).put(record(1)) == "OK"
    before = everything(tmp_path)
    (store / "..%2f..%2fetc").write_text("x")
    (store / "000001.region-..").write_text("x")
    (store / "-rf").write_text("x")
    (store / "\x1b[2J").write_text("x")
    code, told = call(capsys, "inspect", store)
    assert code == 0, told
    use_tier(store)
    assert all((store / name).exists() for name in ("..%2f..%2fetc", "-rf"))
    after = everything(tmp_path)
    assert {name for name in after if not name.startswith("store/")} == set()
    assert set(before) <= set(after)


@pytest.mark.parametrize("path", ["", "a\0b", 7, None, b"x\0"])
def test_a_path_that_is_none_is_refused(path: Any) -> None:
    for use in (lambda: hk.DiskTier(path, 1 << 20), lambda: Store(path)):
        with pytest.raises(hk.HybridKVError):
            use()


def test_what_a_forger_puts_under_a_key_that_he_does_not_know_is_never_asked_for(tmp_path: Path) -> None:
    """Every byte of a store may be his: without the salt he knows no key, and a guess is never looked at."""
    path = tmp_path / "store"
    with hk.DiskTier(path, 64 * (64 << 10), region_bytes=64 << 10) as tier:
        world = World(tier)
        forged = of(world, b"a guess", 30)
        world.write(forged)
        assert world.cache.offload(forged).result(30).ok
        world.cache.close()
    with hk.DiskTier(path, 64 * (64 << 10), region_bytes=64 << 10) as tier:
        world = World(tier)
        keys = of(world, ONE, 31)
        assert world.cache.match(keys).outcome is hk.Outcome.MISS
        assert world.cache.prefetch(keys) is None
        world.cache.close()


def test_a_record_key_is_sixteen_whole_bytes() -> None:
    for digest in (b"", b"x" * 15, b"x" * 17, "x" * 16):
        with pytest.raises(hk.ArgumentError):
            RecordKey(digest, b"f" * 16, RecordKind.BLOCK)  # type: ignore[arg-type]
