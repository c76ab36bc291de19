# SPDX-License-Identifier: Apache-2.0
"""Field cases of a store on disk: what breaks off, fills up, is shared or killed; see field_cases.json."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import hybridkv as hk
from disk_world import RECORD, REGION, bring_back, disk, flip, killed_store, prefix, regions, tmpfs
from hybridkv.record_formats import record_formats
from hybridkv.tiers import Answer, RecordKey, RecordKind, TierStatus
from tier_support import Asker, DictTier
from transfer_world import World


class BreakingTier(DictTier):
    """A store whose writes break off after some parts, from the second record on."""

    left = 1

    def store(self, key: RecordKey, envelope: bytes, parts: Sequence[memoryview], pinned: bool) -> None:
        super().store(key, envelope, parts, pinned)
        self.left -= 1
        if self.left < 0:
            held = self.records[key][1]
            held.popitem()
            raise OSError(28, "No space left on device")


def name_of(world: World, keys: hk.BlockKeys, block: int) -> RecordKey:
    return RecordKey(keys.digests[block].tobytes(), record_formats(world.spec)[0], RecordKind.BLOCK)


def test_FC_151_a_write_that_broke_off_leaves_nothing_to_read() -> None:
    tier = BreakingTier(breaker_after=0, threads=1)
    world = World(tier)
    keys = world.keys(16)
    world.write(keys)
    result = world.cache.offload(keys).result(10)
    assert (result.status, result.stored) == (TierStatus.NO_SPACE, 1)
    world.forget(keys)
    assert tier.look(name_of(world, keys, 1)).answer is not Answer.HERE
    verdict = world.cache.match(keys)
    assert (verdict.matched_tokens, verdict.plan.restore_tokens) == (4, 0)
    world.cache.close()
    tier.close()
    with DictTier() as again:  # which kept the pieces, and finds them
        again.records = tier.records
        later = World(again)
        assert later.cache.prefetch(keys) is None
        assert again.drain(10)
        later.cache.poll()
        assert bring_back(later, keys) == 0
        later.expect_idle()
        later.cache.close()


def test_FC_152_two_sessions_through_a_store_too_small_for_both(tmp_path: Path) -> None:
    with disk(tmp_path, 8, keep_share=0.0) as tier:
        world = World(tier, blocks=8)
        for session in (0, 10):
            for turn in range(6):
                keys = prefix(world, session + turn)
                world.write(keys)
                assert world.cache.offload(keys).result(30).ok
                world.forget(keys)
        found = [bring_back(world, prefix(world, turn)) for turn in (*range(6), *range(10, 16))]
        assert tier.usage().reclaimed > 0
        assert found[-1] == 16 and 0 in found[:6], "the newest is there, the oldest made room"
        assert set(found) <= {0, 4, 8, 12, 16}
        world.expect_idle()
        world.cache.close()


@pytest.mark.parametrize("ends", ["fails", "cancelled"])
def test_FC_154_a_write_that_fails_after_it_was_announced_leaves_no_trace(ends: str) -> None:
    tier = BreakingTier(breaker_after=0, threads=1)
    tier.left = 0
    world = World(tier)
    keys = world.keys(16)
    world.write(keys)
    tier.gate.clear()
    store = world.cache.offload(keys)
    probe = tier.look(name_of(world, keys, 0)).answer
    assert probe is not Answer.HERE, "between the word and the deed nobody is told that it is there"
    if ends == "cancelled":
        store.cancel()
    tier.gate.set()
    result = store.result(10)
    assert not result.ok
    assert result.stored == 0
    assert [tier.look(name_of(world, keys, block)).answer is Answer.HERE for block in range(4)] == [False] * 4
    world.forget(keys)
    assert world.cache.match(keys).outcome is hk.Outcome.MISS
    assert {counts.held for counts in world.cache.metrics().pages.values()} == {0}, "no reader is left"
    world.cache.close()
    tier.close()


def test_FC_155_two_stores_on_a_disk_too_small_for_both(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "full", "1536k") as room:
        tiers = [disk(room / name, 16) for name in ("one", "two")]  # 1 MiB each
        worlds = [World(tier, blocks=8) for tier in tiers]
        outcomes: list[dict[int, bool]] = [{}, {}]
        for number in range(24):
            for world, ok in zip(worlds, outcomes, strict=True):
                keys = prefix(world, number)
                world.write(keys)
                result = world.cache.offload(keys).result(30)
                assert result.status in {TierStatus.OK, TierStatus.NO_SPACE}, result
                ok[number] = result.ok
                world.forget(keys)
        for world, ok in zip(worlds, outcomes, strict=True):
            found = {number: bring_back(world, prefix(world, number)) for number in ok}
            assert all(found[number] < 16 for number in ok if not ok[number]), "what found no space is not there"
            assert any(tokens == 16 for tokens in found.values())
            world.expect_idle()
            world.cache.close()
        for tier in tiers:
            tier.close()
        for name in ("one", "two"):
            with disk(room / name, 16) as again:
                assert (again.recovered.torn, again.recovered.scanned_regions) == (0, 0)


def test_FC_157_a_second_owner_of_a_directory_is_refused(tmp_path: Path) -> None:
    with disk(tmp_path) as tier:
        world = World(tier)
        keys = prefix(world, 0)
        world.write(keys)
        before = sorted(tmp_path.iterdir())
        with pytest.raises(hk.TierError, match="open"):
            disk(tmp_path)
        opening = f"import hybridkv as hk; hk.DiskTier({str(tmp_path)!r}, {16 * REGION}, region_bytes={REGION})"
        other = subprocess.run([sys.executable, "-c", opening], capture_output=True, text=True, check=False)
        assert other.returncode != 0
        assert "TierError" in other.stderr
        assert sorted(tmp_path.iterdir()) == before
        assert world.cache.offload(keys).result(30).ok
        world.forget(keys)
        assert bring_back(world, keys) == 16
        world.cache.close()
    disk(tmp_path).close()


def test_FC_158_a_store_whose_writer_was_killed_accounts_for_every_record(tmp_path: Path) -> None:
    killed_store(tmp_path, prefixes=3)
    with disk(tmp_path) as tier:
        found, usage = tier.recovered, tier.usage()
        assert found.records >= 3 * 8
        assert (found.records, found.bytes) == (usage.records, usage.bytes)
        assert found.bytes == found.records * RECORD
        assert found.scanned_regions > 0
        assert (found.orphans, found.unknown_files) == (0, 0)
        files = sorted(file.name for file in tmp_path.iterdir())
        assert files == [*(file.name for file in regions(tmp_path)), "superblock", "writers"], "no temporary is left"
        world = World(tier)
        assert [bring_back(world, prefix(world, number)) for number in range(3)] == [16, 16, 16]
        assert bring_back(world, world.keys(200, first=900_001)) % 4 == 0  # whatever was whole
        world.expect_idle()
        world.cache.close()


def test_FC_131_what_was_unfinished_is_dropped_and_dropping_it_twice_is_harmless(tmp_path: Path) -> None:
    killed_store(tmp_path, prefixes=2)
    counts = []
    for _ in range(3):
        with disk(tmp_path) as tier:
            counts.append((tier.recovered.records, tier.recovered.bytes))
    assert counts[0] == counts[1] == counts[2]
    with disk(tmp_path) as tier:
        world = World(tier)
        name = name_of(world, prefix(world, 0), 0)
        asker = Asker(tier)
        world.cache.close()
        assert [asker.remove(name) for _ in range(2)] == ["OK", "MISS"]
    with disk(tmp_path) as tier:
        world = World(tier)
        assert tier.recovered.records <= counts[0][0] - 8, "with everything that stood on it"
        assert bring_back(world, prefix(world, 0)) == 0
        assert bring_back(world, prefix(world, 1)) == 16
        world.cache.close()


def test_FC_160_what_lost_its_base_is_neither_a_hit_nor_in_the_way(tmp_path: Path) -> None:
    killed_store(tmp_path, prefixes=1, region=1 << 20)
    flip(regions(tmp_path)[0], 4096 + 4096)  # the first page of the first block, of a region without a footer
    with disk(tmp_path, 4, region=1 << 20, keep_share=0.0) as tier:  # recovery is over once it is open
        found = tier.recovered
        assert found.torn >= 1
        assert found.orphans >= 7, "every block and state above it"
        world = World(tier, blocks=8)
        keys = prefix(world, 0)
        assert world.cache.match(keys).outcome is hk.Outcome.MISS
        assert world.cache.prefetch(keys) is None
        before = tier.usage()
        world.write(keys)
        assert world.cache.offload(keys).result(30).stored == 8, "written again, all of it"
        assert tier.usage().records == before.records + 8
        for number in range(1, 70):  # reclaim goes over the orphans
            other = prefix(world, number)
            world.write(other)
            assert world.cache.offload(other).result(30).ok
            world.forget(other)
        assert bring_back(world, prefix(world, 69)) == 16
        assert tier.usage().reclaimed > 0
        world.expect_idle()
        world.cache.close()
