# SPDX-License-Identifier: Apache-2.0
"""Field cases of offload and restore, and of what other cache managers pin of their tiers; see field_cases.json."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import Event, blamed, check_counters
from hybridkv.record_formats import record_formats
from hybridkv.tiers import Answer, RecordKey, RecordKind, TierStatus
from tier_support import DictTier
from transfer_cases import KIND, BadTier, ask, finish, free, history_spec, phases, stored
from transfer_world import UNIT, World, spec


@pytest.fixture(autouse=True)
def _no_store_stays_shut(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where a test fails while a store is shut, what it holds could not end."""
    made: list[DictTier] = []
    begin = DictTier.__init__

    def init(tier: DictTier, **options: Any) -> None:
        begin(tier, **options)
        made.append(tier)

    monkeypatch.setattr(DictTier, "__init__", init)
    yield
    for tier in made:
        tier.gate.set()


# -- loads ------------------------------------------------------------------------------------------


def test_FC_136_a_load_takes_no_page_that_a_step_still_uses() -> None:
    tier = DictTier()
    world, keys = stored(tier, pages={"kv": 4, "idx": 4, "swa": 16, "tail": 16})
    plan = ask(world, keys).plan
    ticket = world.cache.admit("a", 16)
    ticket.grow(16)
    running = Event()
    ticket.close(keep_tip=False, after=running)
    before = free(world)
    with pytest.raises(hk.OutOfPages):
        world.cache.restore(plan)
    assert free(world) == before
    running.passed = True
    world.cache.poll()
    assert world.cache.restore(plan).result(10).ok
    assert world.reuse(keys) == 16
    finish(world, tier)


def test_FC_137_what_a_load_has_not_brought_is_shown_by_no_call() -> None:
    tier = DictTier()
    world, keys = stored(tier)
    verdict = ask(world, keys)
    tier.gate.clear()
    load = world.cache.restore(verdict.plan)
    assert phases(world, keys, "kv") == ["restoring"] * 4
    targets = {block.page for block in world.cache.inspect(keys)["kv"]}
    for looked in (world.cache.match(keys, limit=17), world.cache.match_at(world.keys(17), 16)):
        assert (looked.outcome, looked.remedy, looked.lease) == (hk.Outcome.FALSE_HIT, hk.Remedy.WAIT, None)
    fill = world.cache.reserve(keys)
    assert not targets & set(np.asarray(fill.page_ids("kv")).tolist()), "a page of its own"
    fill.abort()
    again = world.cache.restore(verdict.plan)
    with pytest.raises(TimeoutError):
        load.result(0.05)
    assert load.progress == 0
    tier.gate.set()
    assert load.result(10).ok
    assert again.result(10).elsewhere == 4 + 4 + 2 + 1, "each page is loaded once"
    assert world.reuse(keys) == 16
    finish(world, tier)


def test_FC_140_no_load_goes_where_a_store_reads_and_no_store_reads_what_is_loaded() -> None:
    tier = DictTier()
    world, keys = stored(tier, pages=dict.fromkeys(("kv", "idx", "swa", "tail"), 4))
    other = world.keys(16, first=500)
    world.write(other)
    plan = ask(world, keys).plan
    tier.gate.clear()
    stores = [world.cache.offload(other) for _ in range(2)]  # two that share every source
    with pytest.raises(hk.OutOfPages):
        world.cache.restore(plan)
    tier.gate.set()
    assert [store.result(10).ok for store in stores] == [True, True]
    tier.gate.clear()
    load = world.cache.restore(plan)
    waits = world.cache.restore(plan)  # another takes no targets of its own
    store = world.cache.offload(keys)
    assert store.result(10).records == 0, "what is being loaded is stored already, and not read"
    tier.gate.set()
    assert load.result(10).ok
    assert waits.result(10).ok and waits.result(10).elsewhere == 4 + 4 + 2 + 1
    assert world.reuse(keys) == 16
    assert len(tier.records) == 2 * 8
    assert world.cache.restore(ask(world, other).plan).result(10).ok
    assert world.reuse(other) == 16
    finish(world, tier)


def test_FC_143_of_a_load_that_breaks_off_the_filled_prefix_counts() -> None:
    tier = BadTier(breaker_after=0, threads=1)
    world, keys = stored(tier, 20, of=history_spec(), blocks=8, pages={"kv": 5})
    held = world.keys(8, first=900)
    world.write(held)
    lease = world.cache.match(held, limit=9).lease
    assert lease is not None
    with pytest.raises(hk.OutOfPages):  # room for three of five
        world.cache.restore(ask(world, keys).plan)
    assert ask(world, keys).usable_tokens == 0
    assert free(world)["kv"] == 3
    lease.release()
    tier.broken = frozenset((RecordKind.BLOCK, keys.digests[block].tobytes()) for block in (3, 4))
    result = world.cache.restore(ask(world, keys).plan).result(10)
    assert (result.status, result.stored) == (TierStatus.CORRUPT, 3)
    assert result.why is not None and result.why.block == 3
    verdict = ask(world, keys)
    assert verdict.why is not None
    assert (verdict.usable_tokens, verdict.why.check, verdict.why.block) == (12, hk.Check.INTEGRITY, 3)
    assert world.reuse(keys[:3]) == 12
    assert free(world)["kv"] == 2, "what was not filled went back"
    finish(world, tier)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, TierStatus.CORRUPT),
        (OSError("a bad sector"), TierStatus.IO_ERROR),
        (ConnectionError("gone"), TierStatus.UNAVAILABLE),
        (RuntimeError("a bug of the adapter"), TierStatus.IO_ERROR),
    ],
    ids=["damage", "error", "unreachable", "bug"],
)
def test_FC_145_a_load_that_failed_is_a_false_hit_and_publishes_nothing(
    error: BaseException | None, status: TierStatus
) -> None:
    tier = BadTier(breaker_after=0)
    world, keys = stored(tier)
    tier.broken, tier.error = frozenset({(RecordKind.BLOCK, keys.digests[0].tobytes())}), error
    before = free(world)
    result = world.cache.restore(ask(world, keys).plan).result(10)
    assert (result.status, result.ok) == (status, False)
    assert result.why is not None
    assert (result.why.check, result.why.kind, result.why.code) == (hk.Check.INTEGRITY, KIND.DISK, "load")
    verdict = ask(world, keys)
    assert verdict.outcome is hk.Outcome.FALSE_HIT
    assert verdict.why is not None
    if status is TierStatus.UNAVAILABLE:  # what cannot be reached is not lost: it may be asked for again
        assert (verdict.remedy, verdict.why.code) == (hk.Remedy.RESTORE, "in_tier")
        assert phases(world, keys, "kv")[0] == "tier-only"
    else:
        assert verdict.remedy is hk.Remedy.RECOMPUTE
        assert (verdict.why.check, verdict.why.kind, verdict.why.code) == (hk.Check.INTEGRITY, KIND.DISK, "load")
        assert phases(world, keys, "kv")[0] == "absent"
    assert world.cache.metrics().load_failures[status.name.lower()] == 1
    assert free(world)["kv"] >= before["kv"] - 3, "only what was verified beside it is kept"
    world.write(keys)  # recomputed
    assert world.reuse(keys) == 16
    finish(world, tier)


@pytest.mark.parametrize("kind", list(RecordKind)[:2], ids=lambda kind: kind.name.lower())
def test_FC_148_groups_of_a_record_come_back_together_or_not_at_all(kind: RecordKind) -> None:
    tier = BadTier(breaker_after=0)
    world, keys = stored(tier)
    tier.broken = frozenset({(kind, keys.digests[3].tobytes())})  # of its last part
    assert not world.cache.restore(ask(world, keys).plan).result(10).ok
    together = {RecordKind.BLOCK: ("kv", "idx"), RecordKind.BOUNDARY: ("swa", "tail")}[kind]
    assert [phases(world, keys, group)[3] for group in together] == ["absent", "absent"]
    verdict = ask(world, keys)
    assert (verdict.usable_tokens, verdict.plan.restore_tokens) == (0, 12), "the next length below"
    assert world.cache.restore(verdict.plan).result(10).ok
    assert world.reuse(keys) == 12
    finish(world, tier)


# -- stores -----------------------------------------------------------------------------------------


def test_FC_139_a_store_under_way_keeps_its_source_through_a_preemption() -> None:
    tier = DictTier()
    world = World(tier, pages=dict.fromkeys(("kv", "idx", "swa", "tail"), 4))
    keys, other = world.keys(16), world.keys(16, first=700)
    world.write(keys)
    running = world.cache.match(keys, limit=17).lease
    assert running is not None
    tier.gate.clear()
    store = world.cache.offload(keys)
    running.release()  # preempted
    assert world.cache.evict(keys, {"kv": True, "idx": True}) == 0
    with pytest.raises(hk.OutOfPages):
        world.cache.reserve(other)
    with pytest.raises(hk.NotAdmitted):
        world.cache.admit("b", 16)
    tier.gate.set()
    assert store.result(10).ok
    world.write(other)  # evicts it: only the record has the bytes now
    assert world.cache.restore(ask(world, keys).plan).result(10).ok
    assert world.reuse(keys) == 16
    finish(world, tier)


def test_FC_142_a_record_is_seen_by_nobody_before_it_is_whole() -> None:
    tier = DictTier()
    world = World(tier)
    keys = world.keys(16)
    world.write(keys)
    layout, _ = record_formats(world.spec)
    first = RecordKey(keys.digests[0].tobytes(), layout, RecordKind.BLOCK)
    tier.gate.clear()
    store = world.cache.offload(keys)
    elsewhere = DictTier()
    elsewhere.records = tier.records
    reader = World(elsewhere)
    for _ in range(2):  # asks the store, and hears of nothing
        assert reader.cache.prefetch(keys) is None
        assert elsewhere.drain(10)
        reader.cache.poll()
        assert ask(reader, keys).outcome is hk.Outcome.MISS
    assert tier.look(first).answer is not Answer.HERE
    assert (store.done(), store.progress) == (False, 0)
    tier.gate.set()
    assert store.result(10).ok
    assert tier.look(first).answer is Answer.HERE
    finish(reader, elsewhere)
    finish(world, tier)
    again = DictTier()
    again.records = tier.records
    later = World(again)
    assert later.cache.prefetch(keys) is None
    assert again.drain(10)
    later.cache.poll()
    assert later.cache.restore(ask(later, keys).plan).result(10).ok
    assert later.reuse(keys) == 16
    finish(later, again)


@pytest.mark.parametrize("ends", ["well", "badly", "cancelled"])
def test_FC_149_pages_of_a_store_stay_until_it_has_ended(ends: str) -> None:
    tier = DictTier(breaker_after=0)
    world = World(tier, pages={"kv": 8, "idx": 8, "swa": 16, "tail": 16})
    keys = world.keys(16)
    ticket = world.cache.admit("a", 16, states=1)
    world.write(keys)
    tier.gate.clear()
    store = world.cache.offload(keys, timeout_s=0.05 if ends == "badly" else 10)
    ticket.close(keep_tip=False)  # aborted
    if ends == "cancelled":
        store.cancel()
    with pytest.raises(hk.Busy, match="transfer"):
        world.cache.close()
    kept = world.cache.evict(keys)
    if ends == "well":
        assert kept == 0
    if ends == "badly":
        with pytest.raises(TimeoutError):  # its deadline has passed; what it reads is not let go
            store.result(0.3)
        assert phases(world, keys, "kv")[0] != "absent"
    tier.gate.set()
    status = {"well": TierStatus.OK, "badly": TierStatus.TIMEOUT, "cancelled": TierStatus.CANCELLED}[ends]
    assert store.result(10).status is status
    world.cache.evict(keys)
    assert free(world) == {"kv": 8, "idx": 8, "swa": 16, "tail": 16}
    finish(world, tier)


# -- what was stored, and what was not -----------------------------------------------------------------


def test_FC_011_a_window_that_was_never_stored_is_the_reason() -> None:
    tier = hk.MemoryTier(1 << 20)
    world = World(tier)
    keys = world.keys(16)
    world.write(keys)
    world.cache.evict(keys, {"swa": [2, 3]})  # the only copy goes
    result = world.cache.offload(keys, boundaries=[16]).result(10)
    assert (result.ok, result.left_out) == (True, (16,)), "stored, and marked as without its window"
    world.forget(keys)
    assert ask(world, keys).plan.restore_tokens == 0, "its history alone leads nowhere"
    world.write(keys, {"kv": True, "idx": True, "tail": True})
    verdict = ask(world, keys)
    assert (verdict.outcome, *blamed(verdict)) == (hk.Outcome.FALSE_HIT, hk.Check.GROUPS, "swa", 2)
    world.write(keys)
    assert world.cache.offload(keys).result(10).ok  # the copy first
    world.cache.evict(keys, {"swa": True})
    assert world.cache.restore(ask(world, keys).plan).result(10).ok
    assert world.reuse(keys) == 16
    finish(world, tier)


def test_FC_133_where_a_block_rests_is_told_after_every_step() -> None:
    tier = DictTier()
    world = World(tier)
    keys = world.keys(16)

    def now() -> tuple[str, tuple[int, int, str]]:
        check_counters(world.cache)
        assert world.cache.verify()
        return phases(world, keys, "kv")[3], world.cache.spans(keys)["kv"][-1]

    assert now() == ("absent", (0, 16, "absent"))
    world.write(keys)
    assert now() == ("ready", (0, 16, "compressed"))
    tier.gate.clear()
    store = world.cache.offload(keys)
    assert now() == ("offloading", (0, 16, "compressed"))
    assert world.cache.evict(keys, {"kv": True}) == 0, "claimed"
    tier.gate.set()
    assert store.result(10).ok
    assert now() == ("ready with copy", (0, 16, "compressed"))
    world.forget(keys)
    assert now()[1] == (0, 16, "disk")
    tier.gate.clear()
    load = world.cache.restore(ask(world, keys).plan)
    assert now() == ("restoring", (0, 16, "disk"))
    tier.gate.set()
    assert load.result(10).ok
    assert now()[1] == (0, 16, "compressed")
    finish(world, tier)


def draft_spec() -> hk.CacheSpec:
    groups = [*spec().groups, hk.CacheGroup("draft", KIND.TAIL, hk.Checkpoint(), page_bytes=32, layers=("2", "3"))]
    return hk.CacheSpec(UNIT, groups, identity=hk.Identity(model="small"))


def test_FC_031_what_was_stored_without_its_checkpoint_is_history_and_not_resumed() -> None:
    tier = hk.MemoryTier(1 << 20)
    world = World(tier)
    keys = world.keys(16)
    world.write(keys, {"kv": True, "idx": True, "swa": True})
    result = world.cache.offload(keys, boundaries=[12, 16]).result(10)
    assert (result.tokens, result.left_out) == (0, (12, 16)), "said to be incomplete"
    assert result.stored == 4, "history it is"
    world.cache.close()
    later = World(tier)
    verdict = ask(later, keys)
    assert (verdict.outcome, verdict.matched_tokens) == (hk.Outcome.FALSE_HIT, 16)
    assert (verdict.remedy, verdict.plan.restore_tokens) == (hk.Remedy.RECOMPUTE, 0)
    assert later.cache.prefetch(keys) is None
    finish(later, tier)


def test_FC_032_a_store_without_the_draft_group_is_a_downgrade_with_its_reason() -> None:
    tier = hk.MemoryTier(1 << 20)
    world, keys = stored(tier)
    world.cache.close()
    drafting = World(tier, of=draft_spec())
    verdict = ask(drafting, keys)
    assert (verdict.outcome, verdict.plan.restore_tokens) == (hk.Outcome.FALSE_HIT, 0)
    drafting.write(keys, {"kv": True, "idx": True, "swa": True, "tail": True})
    verdict = ask(drafting, keys)
    assert blamed(verdict)[1:] == ("draft", 3)
    assert verdict.why is not None and verdict.why.kind is KIND.DISK and verdict.why.check is hk.Check.ABI
    drafting.write(keys)
    assert drafting.cache.offload(keys).result(10).ok
    drafting.cache.close()
    restarted = World(tier, of=draft_spec())
    plan = ask(restarted, keys).plan
    assert ("draft", 3) in plan.loads
    assert restarted.cache.restore(plan).result(10).ok
    assert restarted.reuse(keys) == 16
    finish(restarted, tier)


def test_FC_035_after_a_restart_the_exact_end_is_no_candidate_either() -> None:
    tier = hk.MemoryTier(1 << 20)
    world = World(tier)
    keys = world.keys(20)
    world.write(keys)
    assert world.cache.offload(keys, boundaries=[16, 20]).result(10).tokens == 20
    world.cache.close()
    later = World(tier)
    verdict = later.cache.match(keys)
    assert (verdict.matched_tokens, verdict.plan.restore_tokens) == (16, 16)
    load = later.cache.prefetch(keys)
    assert load is not None and load.result(10).tokens == 16
    agreed = later.cache.match_at(keys, 16)
    assert agreed.usable_tokens == 16
    assert agreed.lease is not None
    agreed.lease.release()
    assert ask(later, keys).plan.restore_tokens == 20, "of a longer prompt it is"
    finish(later, tier)
