# SPDX-License-Identifier: Apache-2.0
"""What a transfer says it came to, what a flush makes durable, and how little write-through looks at."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from hybridkv.tiers import Store, TierStatus
from tier_support import Asker, DictTier, record
from transfer_world import World, spec

MIB = 1 << 20


def disk(path: Path, **options: Any) -> hk.DiskTier:
    return hk.DiskTier(path, 8 * MIB, region_bytes=MIB, **options)


def test_a_result_names_what_was_stored_and_published_and_what_was_not_and_why(tmp_path: Path) -> None:
    with disk(tmp_path) as tier:
        world = World(tier)
        keys = world.keys(18)
        world.write(keys)
        assert world.cache.evict(keys, {"tail": [1]}) == 1
        stored = world.cache.offload(keys, boundaries=[4, 8, 18]).result(10)
        assert stored.ok and stored.boundaries == (4, 18) and stored.tips == (18,)
        assert dict(stored.missed) == {8: "states"} and stored.left_out == (8,)
        assert stored.blocks == {"kv": 5, "idx": 5, "swa": 3, "tail": 2}  # swa 0 at 4, swa 3 and the tip's at 18
        again = world.cache.offload(keys, boundaries=[4, 18]).result(10)
        assert again.boundaries == (4, 18) and again.blocks == {} and again.bytes == 0
        gap = world.keys(12, first=300)
        world.write(gap)
        world.cache.evict(gap, {"kv": [1]})
        assert world.cache.offload(gap, boundaries=[4, 12]).result(10).missed == {12: "history"}
        world.forget(keys)
        plan = world.cache.match(world.keys(20)).plan
        back = world.cache.restore(plan).result(10)
        assert back.boundaries == back.tips == (18,) and not back.missed
        assert back.blocks == {"kv": 5, "idx": 5, "swa": 2, "tail": 1}
        world.cache.close()


def test_a_result_names_the_status_of_what_the_tier_refused(tmp_path: Path) -> None:
    with disk(tmp_path, admission="second_touch") as tier:
        world = World(tier)
        world.write(world.keys(8))
        refused = world.cache.offload(world.keys(8)).result(10)
        assert refused.status is TierStatus.DECLINED and refused.tokens == 0
        assert refused.boundaries == () and refused.missed == {4: "DECLINED", 8: "DECLINED"}
        flushed = world.cache.flush(10)  # nobody lost anything: the tier did not want it
        assert flushed.records == 0 and dict(flushed.refused) == {"DECLINED": refused.records}
        stored = world.cache.offload(world.keys(8)).result(10)  # all of it, the second time
        assert stored.ok and stored.stored == refused.records and stored.boundaries == (4, 8) and stored.tokens == 8
        world.cache.close()


def test_a_conversation_that_goes_on_is_stored_by_second_touch_up_to_where_it_went_on(tmp_path: Path) -> None:
    with disk(tmp_path, admission="second_touch") as tier:
        world = World(tier, tier_writes="through")
        for tokens in (8, 16, 22, 30):  # the third ends in a tip
            keys = world.keys(tokens)
            world.cache.reserve(keys, lease=world.cache.match(keys).lease).publish()
            world.cache.flush(10)
        world.forget(keys)
        assert world.cache.restorable(keys).restore_tokens == 22
        world.cache.close()


@pytest.mark.parametrize("how", ["publish", "abort"])
def test_a_restore_that_waits_for_another_looks_at_its_events(how: str) -> None:
    with hk.MemoryTier(MIB) as tier:
        world = World(tier)
        keys = world.keys(8)
        world.write(keys)
        world.cache.offload(keys).result(10)
        world.forget(keys)
        plan = world.cache.match(keys, limit=9).plan
        fill = world.cache.reserve(keys, groups={"kv": [1]})
        back = world.cache.restore(plan)
        passed: list[bool] = []
        fill_ends = fill.publish if how == "publish" else fill.abort
        fill_ends(after=SimpleNamespace(query=lambda: bool(passed)))
        assert not back.done()
        passed.append(True)
        result = back.result(5)
        assert result.ok == (how == "publish") and result.elsewhere == 1
        assert result.status is (TierStatus.OK if how == "publish" else TierStatus.BUSY)
        world.cache.close()


def test_what_the_tier_has_no_room_for_is_not_offered_again() -> None:
    with hk.MemoryTier(4000) as tier:
        world = World(tier, tier_writes="back")
        world.write(world.keys(40))
        refused = world.cache.flush(10).refused
        assert refused["NO_SPACE"] >= 8
        again = 0
        for first in range(100, 1000, 100):
            world.write(world.keys(4, first))
            again += sum(world.cache.flush(10).refused.values())
        assert again == 0  # the new ones have room, in the place of older ones
        world.cache.close()


def test_a_record_that_the_tier_cannot_take_is_lost_and_flush_says_so(tmp_path: Path) -> None:
    page = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=MIB)
    of = hk.CacheSpec(4, [page])
    with disk(tmp_path) as tier:  # whose regions are no larger
        cache = hk.HybridCache(of, blocks=4, tier=tier)
        cache.bind("kv", np.zeros((4, MIB), np.uint8))
        keys = hk.block_keys(range(8), 4)
        cache.insert(keys)
        assert cache.offload(keys).result(10).status is TierStatus.INVALID
        with pytest.raises(hk.TierError, match="2 INVALID"):
            cache.flush(10)
        cache.close()


LIFE = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import hybridkv as hk
from transfer_world import World

tier = hk.DiskTier(Path(sys.argv[1]), 8 << 20, region_bytes=1 << 20)
world = World(tier, tier_writes="back")
world.write(world.keys(18))
result = world.cache.flush(30)
print(result.records, result.durable, flush=True)
time.sleep(600)
"""


def test_what_was_flushed_is_there_behind_a_kill_and_a_write_back_cache_held_it_back(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", LIFE, str(tmp_path), here]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as life:
        assert life.stdout is not None
        said = life.stdout.readline().split()
        life.send_signal(signal.SIGKILL)
    assert said == ["10", "True"]  # four blocks, four boundaries, the listing, the tip
    with disk(tmp_path) as tier:
        world = World(tier)
        plan = world.cache.restorable(world.keys(20))
        assert plan is not None and plan.restore_tokens == 18
        world.cache.close()


def test_a_flush_waits_for_the_store_and_no_longer_than_it_is_told() -> None:
    with DictTier(breaker_after=0) as tier:
        world = World(tier)
        world.write(world.keys(8))
        tier.gate.clear()
        transfer = world.cache.offload(world.keys(8))
        with pytest.raises(TimeoutError, match="durable"):
            world.cache.flush(0.05)
        tier.gate.set()
        found = world.cache.flush(10)
        assert transfer.done() and found.records == 4 and found.bytes > 0
        assert found.durable is tier.durable and (tier.synced >= 1 or not tier.durable)
        assert world.cache.flush(10).records == 0
        world.expect_idle()
        world.cache.close()


def test_a_record_that_was_lost_on_its_way_is_an_error_once() -> None:
    class Broken(DictTier):
        broken = True

        def store(self, *arguments: Any) -> None:
            if self.broken:
                raise OSError(5, "Input/output error")
            super().store(*arguments)

    with Broken(breaker_after=0) as tier:
        world = World(tier)
        world.write(world.keys(8))
        world.cache.offload(world.keys(8))
        with pytest.raises(hk.TierError, match="IO_ERROR") as refused:
            world.cache.flush(10)
        assert refused.value.field == "flush"
        tier.broken = False
        assert world.cache.flush(10).records == 0
        assert world.cache.offload(world.keys(8)).result(10).ok
        assert world.cache.flush(10).records == 4
        world.cache.close()
        with pytest.raises(hk.Closed):
            world.cache.flush()
    with pytest.raises(hk.ArgumentError, match="tier"):
        World(None).cache.flush()
    with hk.MemoryTier(MIB) as memory:
        world = World(memory)
        for bad in ("soon", -1, 0):
            with pytest.raises(hk.ArgumentError, match="timeout"):
                world.cache.flush(bad)  # type: ignore[arg-type]
        assert not world.cache.flush(10).durable
        world.cache.close()


@pytest.mark.parametrize("mode", ["through", "back"])
def test_a_prefix_that_could_not_be_handed_over_is_an_error_once(mode: str) -> None:
    with hk.MemoryTier(MIB) as tier:
        cache = hk.HybridCache(spec(), blocks=16, tier=tier, tier_writes=mode, verify="off")
        keys = [hk.block_keys(range(at, at + 8), 4, identity=cache.spec.identity) for at in (1, 100)]
        with pytest.warns(RuntimeWarning, match="not stored") as warned:
            for each in keys:
                cache.insert(each)
            with pytest.raises(hk.TierError, match=r"2 prefixes not handed over \(pools\[kv\]") as refused:
                cache.flush(10)
        assert refused.value.field == "flush" and len(warned) == 1
        assert cache.flush(10).records == 0 and tier.usage().puts == 0
        cache.close()


@pytest.mark.parametrize("mode", ["through", "back"])
def test_a_cache_is_busy_while_its_own_writes_are_under_way_and_free_behind_a_flush(mode: str) -> None:
    with DictTier(breaker_after=0) as tier:
        world = World(tier, tier_writes=mode)
        tier.gate.clear()
        world.write(world.keys(8))
        if mode == "back":
            with pytest.raises(TimeoutError):
                world.cache.flush(0.05)
        for end in (world.cache.reset, world.cache.close):
            with pytest.raises(hk.Busy, match="transfers"):
                end()
        tier.gate.set()
        assert world.cache.flush(10).records == 4
        world.cache.reset()
        world.cache.close()


def test_a_pin_comes_with_the_first_offload_or_not_at_all(tmp_path: Path) -> None:
    pinned = {}
    for first in (False, True):
        path = tmp_path / str(first)
        with disk(path) as tier:
            world = World(tier)
            world.write(world.keys(8))
            for pin in (first, True):
                assert world.cache.offload(world.keys(8), pinned=pin).result(10).ok
            world.cache.close()
        with Store(path) as store:
            pinned[first] = {record.pinned for region in store.regions() for record in region.records}
    assert pinned == {False: {False}, True: {True}}


@pytest.mark.parametrize("gone", ["renamed", "removed"])
def test_a_store_whose_directory_goes_away_goes_on_in_files_that_nobody_finds(gone: str, tmp_path: Path) -> None:
    path, other = tmp_path / "store", tmp_path / "other"
    with disk(path) as tier:
        ask = Asker(tier)
        assert ask.put(record(1, durable=True)) == "OK"
        path.rename(other) if gone == "renamed" else shutil.rmtree(path)
        assert ask.put(record(2, durable=True)) == ask.flush() == "OK"
        assert ask.has(1) and ask.has(2)
        statuses = [ask.put(record(name, (MIB // 2,))) for name in range(3, 9)]
        assert set(statuses) == {"OK"} if gone == "renamed" else statuses[-1] == "NO_SPACE"
    assert not path.exists()
    with disk(other if gone == "renamed" else path) as tier:
        assert tier.recovered.records == (8 if gone == "renamed" else 0)


@pytest.mark.parametrize("hand", ["ticket", "fill"])
def test_write_through_never_walks_the_prefix(hand: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The core counts its look-ups elsewhere (tests/cpp/cache/write_through.h); here that it is what is called."""

    def walked(*_: Any) -> Any:
        raise AssertionError("every usable length was asked for")

    monkeypatch.setattr(hk.HybridCache, "_kept_boundaries", walked)
    with disk(tmp_path, windows=hk.KeepWindows.every(8)) as tier:
        world = World(tier, tier_writes="through", blocks=256)
        ticket = world.cache.admit("a", 60) if hand == "ticket" else None
        for tokens in range(6, 60, 6):
            before = tier.usage().puts
            if ticket is None:
                world.write(world.keys(tokens))
            else:
                lease = world.cache.match(world.keys(tokens)).lease
                ticket.close()
                ticket = world.cache.admit("a", 60, lease=lease)
                start = ticket.tokens
                ticket.grow(tokens - start)
                ticket.advance(tokens, range(start + 1, tokens + 1))
                ticket.close()
                ticket = world.cache.admit("a", 60)
            flushed = world.cache.flush(10)
            new = tokens // 4 - (tokens - 6) // 4
            assert flushed.records <= new + 2 + 2  # blocks; a boundary in between, the end; a listing and the tip
            assert tier.usage().puts - before == flushed.records > 0
        if ticket is not None:
            ticket.close()
        world.forget(world.keys(54))
        plan = world.cache.restorable(world.keys(60))
        assert plan is not None and plan.restore_tokens == 54
        world.cache.close()


def test_what_a_tier_knew_already_is_durable_too_once_it_is_said_to_be() -> None:
    with DictTier(durable=True) as tier:
        world = World(tier)
        keys = world.keys(16)
        world.write(keys)
        assert world.cache.offload(keys).result(10).ok
        before = tier.synced
        again = world.cache.offload(keys, durable=True).result(10)
        assert again.ok and again.records == 0 and again.boundaries
        assert tier.synced == before + 1
        world.cache.close()


def test_a_flush_that_nobody_waited_for_takes_no_loss_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise OSError("no")

    with DictTier(durable=True) as tier:
        world = World(tier)
        keys = world.keys(16)
        world.write(keys)
        monkeypatch.setattr(tier, "store", broken)
        assert not world.cache.offload(keys).result(10).ok
        tier.gate.clear()
        with pytest.raises(TimeoutError):
            world.cache.flush(0.05)
        tier.gate.set()
        with pytest.raises(hk.TierError, match="records"):
            world.cache.flush(10)
        world.cache.close()
