# SPDX-License-Identifier: Apache-2.0
"""Tips in a tier: the end of a conversation outlives the process, whatever the tier is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hybridkv as hk
from hybridkv import cli
from hybridkv.tiers import Store
from store_support import call, flip
from tier_support import DictTier
from transfer_world import PAGE, UNIT, World, spec

MIB = 1 << 20


def disk(path: Path) -> hk.DiskTier:
    return hk.DiskTier(path, 8 * MIB, region_bytes=MIB)


def store_tip(tier: hk.Tier, tokens: int = 18, **options: Any) -> None:
    """Store a prefix that ends inside a unit, by a cache that is closed then."""
    world = World(tier, **options)
    keys = world.keys(tokens)
    world.write(keys)
    stored = world.cache.offload(keys).result(10)
    assert stored.ok and stored.tokens == tokens and stored.left_out == ()
    world.cache.close()


def brought_back(world: World, keys: hk.BlockKeys, tokens: int) -> None:
    verdict = world.cache.match(keys)
    assert (verdict.outcome, verdict.matched_tokens) == (hk.Outcome.FALSE_HIT, tokens)
    assert verdict.remedy is hk.Remedy.RESTORE and verdict.plan.restore_tokens == tokens
    assert verdict.plan.loads[-1] == ("tail", tokens // UNIT)
    back = world.cache.restore(verdict.plan).result(10)
    assert back.ok and back.tokens == tokens
    assert world.reuse(keys) == tokens
    world.expect_idle()
    world.cache.close()


def test_a_tip_outlives_the_process(tmp_path: Path) -> None:
    with disk(tmp_path) as tier:
        store_tip(tier)
    with disk(tmp_path) as tier:
        world = World(tier, layered=False)
        brought_back(world, world.keys(23), 18)


def test_a_tip_of_a_prompt_shorter_than_a_unit_outlives_the_process(tmp_path: Path) -> None:
    with disk(tmp_path) as tier:
        store_tip(tier, 3)
    with disk(tmp_path) as tier:
        world = World(tier)
        brought_back(world, world.keys(9), 3)


def test_a_tip_is_found_where_every_descriptor_is_taken() -> None:
    world = World(None, blocks=24)
    for number in range(20):
        first = 1 + 100 * number
        ticket = world.cache.admit("a", 8)
        ticket.grow(6)
        ticket.advance(6, range(first, first + 6))
        ticket.close()
        verdict = world.cache.match(world.keys(9, first=first))
        assert verdict.usable_tokens == 6, number
        verdict.lease.release()


def test_a_tip_is_found_in_a_stack_of_tiers(tmp_path: Path) -> None:
    with hk.TierStack([hk.MemoryTier(4 * MIB, threaded=True), disk(tmp_path)]) as stack:
        store_tip(stack)
    with hk.TierStack([hk.MemoryTier(4 * MIB, threaded=True), disk(tmp_path)]) as stack:
        world = World(stack)
        brought_back(world, world.keys(23), 18)


def test_a_tier_without_an_index_is_asked_three_times(tmp_path: Path) -> None:
    with DictTier() as tier:
        store_tip(tier)
        again = DictTier()
        again.records = tier.records
    with again:
        world = World(again)
        keys = world.keys(23)
        for _ in range(3):  # for history, for what lists tips behind it, for the tips
            plan = world.cache.restorable(keys)
            assert plan is None or plan.restore_tokens == 16
            assert world.cache._ask_tier(keys, 10)
            again.drain()
            world.cache.poll()
        brought_back(world, keys, 18)


@pytest.mark.parametrize("hand", ["ticket", "fill"])
def test_write_through_stores_the_end_of_a_request(hand: str, tmp_path: Path) -> None:
    with disk(tmp_path) as tier:
        world = World(tier, tier_writes="through")
        if hand == "fill":
            world.write(world.keys(18))
        else:
            ticket = world.cache.admit("a", 24)
            ticket.grow(18)
            ticket.advance(18, range(1, 19))
            ticket.close()
        assert world.cache.flush(10).durable
        world.cache.close()
    with disk(tmp_path) as tier:
        world = World(tier)
        plan = world.cache.restorable(world.keys(23))
        assert plan is not None and plan.restore_tokens == 18
        assert world.cache.restore(plan).result(10).ok
        world.cache.close()


def test_a_policy_without_ends_stores_no_tip(tmp_path: Path) -> None:
    with hk.DiskTier(tmp_path, 8 * MIB, region_bytes=MIB, windows=hk.KeepWindows.all(ends=False)) as tier:
        world = World(tier)
        keys = world.keys(18)
        world.write(keys)
        assert world.cache.offload(keys).result(10).tokens == 16
        world.forget(keys)
        assert world.cache.match(world.keys(23)).plan.restore_tokens == 16
        world.cache.close()


def test_a_damaged_tip_gives_way_to_the_boundary_below(tmp_path: Path) -> None:
    with disk(tmp_path) as tier:
        store_tip(tier)
    [region] = [f for f in tmp_path.iterdir() if f.suffix == ".region" and b"HKVR" in f.read_bytes()]
    keys = World(None).keys(23)
    name = keys._core.tip_key(4, 2)
    content = bytearray(region.read_bytes())
    at = content.index(b"HKVR", content.index(name) - 64)
    assert content[at + 16 : at + 32] == name
    content[at + 4096] ^= 1  # its first byte of payload
    region.write_bytes(content)
    with disk(tmp_path) as tier:
        world = World(tier)
        plan = world.cache.restorable(keys)
        assert plan is not None and plan.restore_tokens == 18
        back = world.cache.restore(plan).result(10)
        assert not back.ok and back.why is not None
        assert (back.why.check, back.why.code, back.why.kind) == (hk.Check.INTEGRITY, "load", hk.StateKind.DISK)
        verdict = world.cache.match(keys)
        assert verdict.matched_tokens == 18 and verdict.plan.restore_tokens == 16
        assert world.cache.restore(verdict.plan).result(10).ok
        assert world.reuse(keys) == 16
        world.cache.close()


def test_inspect_and_verify_name_tips(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with hk.DiskTier(tmp_path, 8 * MIB, region_bytes=MIB) as tier:
        world = World(tier)
        world.write(world.keys(18))
        assert world.cache.offload(world.keys(18)).result(10).tips == (18,)
        tip = world.keys(18)._core.tip_key(4, 2)
        world.cache.close()
    code, document = call(capsys, "inspect", tmp_path, "--records")
    assert code == 0
    counted = {kind: (row["records"], row["longest_tokens"]) for kind, row in document["records"].items()}
    assert counted == {"block": (4, 16), "boundary": (5, 18), "listing": (1, 16)}
    assert (document["tips"]["records"], document["tips"]["longest_tokens"]) == (1, 18)
    in_formats = {kind: sum(r["records"] for r in document["formats"] if r["kind"] == kind) for kind in counted}
    assert in_formats == {kind: records for kind, (records, _) in counted.items()}
    sizes = [sum(r["bytes"] for r in rows) for rows in (document["records"].values(), document["formats"])]
    assert sizes == [document["bytes"]["live"]] * 2
    named = {record["digest"]: record for record in document["listed"]}
    assert named[tip.hex()]["is"] == "tip" and named[tip.hex()]["kind"] == "boundary"
    assert sorted(record["is"] for record in document["listed"]) == ["block"] * 4 + ["boundary"] * 4 + [
        "listing",
        "tip",
    ]
    assert cli.main(["inspect", str(tmp_path), "--records"]) == 0
    printed = capsys.readouterr().out
    assert f"{tip.hex()} boundary (tip), live, 18 tokens" in printed and "\n  of tips " in printed
    assert [line.split()[1] for line in printed.splitlines() if line.startswith("listing ")] == ["1"]
    with Store(tmp_path) as opened:
        [found] = [
            (region.file, r.offset) for region in opened.regions() for r in region.records if r.key.digest == tip
        ]
    flip(tmp_path / found[0], found[1] + 4096)
    code, document = call(capsys, "verify", tmp_path)
    assert code == 1 and [record["is"] for record in document["damaged"]] == ["tip"]
    assert cli.main(["verify", str(tmp_path)]) == 1
    assert f"boundary (tip) {tip.hex()}, 18 tokens" in capsys.readouterr().out


@pytest.mark.parametrize("how", ["parts", "scales behind the rows"])
def test_a_tip_of_pages_whose_rows_lie_otherwise_comes_back_whole(tmp_path: Path, how: str) -> None:
    if how == "parts":
        changes: dict[str, Any] = {"parts": {"k": PAGE, "v": PAGE}}
    else:
        changes = {"format": hk.KvFormat("rows", "uint8", scale_placement="page_footer")}
    of = spec(row_bytes=PAGE // UNIT, **changes)
    with disk(tmp_path) as tier:
        store_tip(tier, of=of)
    with disk(tmp_path) as tier:
        world = World(tier, of=of)
        brought_back(world, world.keys(23), 18)


def test_a_tip_stored_with_other_rows_is_one_of_another_format(tmp_path: Path) -> None:
    form = hk.KvFormat("rows", "uint8")
    other = spec(row_bytes=PAGE // UNIT, format=form)
    with disk(tmp_path) as tier:
        store_tip(tier, of=spec(format=form))
    with disk(tmp_path) as tier:
        store_tip(tier, of=other)  # what is there is not taken for it
    with disk(tmp_path) as tier:
        world = World(tier, of=other)
        plan = world.cache.match(world.keys(23)).plan
        assert plan is not None and plan.restore_tokens == 18
        assert world.cache.restore(plan).result(10).ok
        world.cache.close()


def test_a_damaged_listing_is_written_anew_since_sound_tips_are_found_by_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with hk.DiskTier(tmp_path, 8 << 20, region_bytes=1 << 20) as tier:
        world = World(tier)
        world.write(world.keys(18))
        assert world.cache.offload(world.keys(18), boundaries=[16, 18]).result(10).tips == (18,)
        world.cache.close()
    with Store(tmp_path) as found:
        [(name, offset)] = [(r.file, x.offset) for r in found.regions() for x in r.records if x.flags & 0x40]
    flip(tmp_path / name, offset + 20)
    code, document = call(capsys, "verify", tmp_path, "--quarantine")
    assert (code, document["quarantined"]["rewritten"], document["quarantined"]["removed"]) == (1, 1, 1)
    assert call(capsys, "verify", tmp_path)[0] == 0
    with hk.DiskTier(tmp_path, 8 << 20) as tier:
        world = World(tier)
        assert world.cache.restorable(world.keys(20)).restore_tokens == 18
        world.cache.close()
