# SPDX-License-Identifier: Apache-2.0
"""PrefixReuse over a tier: what comes back after a restart is bit for bit what was there, or it is computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is absent: real models need it")
pytest.importorskip("transformers", reason="transformers is absent: real models need it")

from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

import hybridkv as hk  # noqa: E402
import tiny_models  # noqa: E402
from hybridkv.adapters.transformers import PrefixReuse  # noqa: E402
from hybridkv.demo.disk_damage import damage, longest_boundary  # noqa: E402
from hybridkv.tiers import RecordKind  # noqa: E402
from reuse_support import some_ids  # noqa: E402
from tier_support import DictTier, HostileTier  # noqa: E402

MIB = 1 << 20
ROOM = 8 * MIB
HYBRIDS = ("deepseek_v4", "gemma3_text", "qwen3_next")  # windows and tails, windows, recurrent states
PLAIN: dict[str, Any] = {"memory_bytes": ROOM, "keep_tips": False, "replay": False}


def store(path: Path) -> hk.DiskTier:
    return hk.DiskTier(path, 8 * MIB, region_bytes=MIB)


def written(model: Any, tier: hk.Tier, ids: Any, **options: Any) -> PrefixReuse:
    """Run a prompt and see all of it stored."""
    reuse = PrefixReuse(model, tier=tier, **{**PLAIN, **options})
    reuse.forward(ids)
    assert reuse.flush() and not reuse.not_written
    return reuse


@pytest.fixture(scope="module")
def v4() -> Any:
    return tiny_models.tiny("deepseek_v4")


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_prefix_resumes_behind_a_restart_bit_for_bit(name: str, tmp_path: Path) -> None:
    model = tiny_models.tiny(name)
    ids = some_ids(120, seed=1)
    scratch = PrefixReuse(model, **PLAIN).forward(ids)
    with store(tmp_path) as tier:
        written(model, tier, ids[:, :75]).close()
    with store(tmp_path) as tier:
        reuse = PrefixReuse(model, tier=tier, **PLAIN)
        out = reuse.forward(ids)
        row = out.rows[0]
        assert (row.usable, row.computed, row.why) == (64, 56, None)
        assert row.loaded.tokens == 64 and row.loaded.bytes > 0 and row.loaded.refused == []
        assert torch.equal(out.logits, scratch.logits[:, 64:])
        longer = torch.cat([ids, ids[:, :2]], dim=1)
        again = reuse.forward(longer).rows[0]
        assert (again.usable, again.loaded.tokens) == (112, 0)  # in memory now
        reuse.close()


def test_what_was_evicted_from_memory_comes_back_from_the_tier(v4: Any) -> None:
    spec = PrefixReuse.spec_of(v4, replay=False)
    prompts = [some_ids(80, seed=30 + number) for number in range(6)]
    scratch = [PrefixReuse(v4, **PLAIN).forward(ids).logits[:, 64:] for ids in prompts]
    with hk.MemoryTier(4 * MIB, threaded=True) as tier:
        pages = {group.name: 12 for group in spec.groups}
        cache = hk.HybridCache(spec, blocks=60, pages=pages, eviction="none", tier=tier)
        reuse = PrefixReuse(v4, cache=cache, keep_tips=False, replay=False)
        for ids in prompts:
            reuse.forward(ids[:, :64])
        reuse.flush()
        for ids, right in zip(prompts, scratch, strict=True):
            out = reuse.forward(ids)
            assert out.rows[0].usable == 64
            assert torch.equal(out.logits, right)
        metrics = reuse.cache.metrics()
        assert metrics.retired > 0 and metrics.restores[hk.StateKind.COMPRESSED].successes > 0
        assert metrics.pending == metrics.leaks == 0 and not reuse.not_stored and not reuse.not_written
        reuse.close()


@pytest.mark.parametrize(("kind", "usable"), [(RecordKind.BOUNDARY, 96), (RecordKind.BLOCK, 32)])
def test_a_damaged_record_costs_the_lengths_that_need_it(
    v4: Any, kind: RecordKind, usable: int, tmp_path: Path
) -> None:
    ids = some_ids(120, seed=2)
    with store(tmp_path) as tier:
        reuse = written(v4, tier, ids[:, :115])
        keys = reuse.keys(ids[0].tolist())
        reuse.close()
    assert longest_boundary(tmp_path, keys, 16) == 112
    unit = 7 if kind is RecordKind.BOUNDARY else 3
    damage(tmp_path, kind, keys.digests[unit - 1].tobytes())
    with store(tmp_path) as tier:
        reuse = PrefixReuse(v4, tier=tier, **PLAIN)
        out = reuse.forward(ids)
        row = out.rows[0]
        assert (row.usable, row.loaded.tokens) == (usable, usable)
        assert [why.check for why in row.loaded.refused] == [hk.Check.INTEGRITY]
        assert torch.equal(out.logits, PrefixReuse(v4, **PLAIN).forward(ids).logits[:, usable:])
        assert reuse.flush()
        reuse.close()
    with store(tmp_path) as tier:  # what was computed instead was stored instead
        reuse = PrefixReuse(v4, tier=tier, **PLAIN)
        assert reuse.forward(ids).rows[0].usable == 112
        reuse.close()


def test_a_window_that_no_record_has_is_replayed_over_history_from_the_tier(v4: Any, tmp_path: Path) -> None:
    ids = some_ids(200, seed=3)
    with store(tmp_path) as tier:
        written(v4, tier, ids[:, :160], replay=True).close()
        keys = PrefixReuse(v4, **PLAIN).keys(ids[0].tolist())
    damage(tmp_path, RecordKind.BOUNDARY, keys.digests[9].tobytes())
    with store(tmp_path) as tier:
        reuse = PrefixReuse(v4, tier=tier, memory_bytes=ROOM, keep_tips=False)
        out = reuse.forward(ids)
        assert out.rows[0].usable == 160 and out.rows[0].replayed is not None
        scratch = PrefixReuse(v4, **PLAIN).forward(ids).logits[:, 160:]
        assert torch.allclose(out.logits, scratch, atol=1e-4)
        reuse.close()


@pytest.mark.parametrize("change", ["weights", "dtype"])
def test_a_store_of_another_model_gives_nothing(change: str, v4: Any, tmp_path: Path) -> None:
    ids = some_ids(80, seed=4)
    with store(tmp_path) as tier:
        written(v4, tier, ids).close()
    dtype = torch.float64 if change == "dtype" else None
    other = tiny_models.tiny("deepseek_v4", 1 if change == "weights" else 0, dtype)
    with store(tmp_path) as tier:
        reuse = PrefixReuse(other, tier=tier, **PLAIN)
        row = reuse.forward(ids).rows[0]
        assert (row.usable, row.outcome, row.loaded.bytes) == (0, hk.Outcome.MISS, 0)
        reuse.close()


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("rope", {"rope_theta": 5e5}),
        ("rope", {"max_position_embeddings": 1024}),
        ("weights", {}),
        ("extra", {"rms_norm_eps": 1e-3}),
    ],
)
def test_what_another_model_differs_in_is_told_by_its_own_name(field: str, change: dict[str, Any]) -> None:
    def model(seed: int, **more: Any) -> Any:
        torch.manual_seed(seed)
        sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
        return LlamaForCausalLM(LlamaConfig(**{**sizes, **heads, "max_position_embeddings": 512, **more})).eval()

    ids = some_ids(40) % 64
    with hk.MemoryTier(1 << 24) as tier:
        ours = written(model(0), tier, ids)
        ours.close()
        reuse = PrefixReuse(model(0, **change) if change else model(1), tier=tier)
        assert ours.identity.differences(reuse.identity) == (field,)
        reuse.forward(ids)
        assert reuse.cache.metrics().tier_skew == {f"identity.{field}": 1}
        reuse.close()


def test_the_same_keys_of_another_dtype_are_refused_by_abi(v4: Any) -> None:
    own = hk.Identity(model="mine")
    ids = some_ids(80, seed=5)
    with hk.MemoryTier(4 * MIB, threaded=True) as tier:
        written(v4, tier, ids, identity=own).close()
        other = tiny_models.tiny("deepseek_v4", 0, torch.float64)
        reuse = PrefixReuse(other, tier=tier, identity=own, **PLAIN)
        row = reuse.forward(ids).rows[0]
        assert (row.usable, row.outcome, row.loaded.bytes) == (0, hk.Outcome.FALSE_HIT, 0)
        assert (row.why.check, row.why.code, row.why.kind) == (hk.Check.ABI, "format", hk.StateKind.DISK)
        reuse.close()


def test_generate_resumes_from_the_tier_with_the_same_tokens(v4: Any, tmp_path: Path) -> None:
    ids = some_ids(70, seed=6, rows=2)
    turn = {"max_new_tokens": 9, "do_sample": False}
    with store(tmp_path) as tier:
        reuse = PrefixReuse(v4, tier=tier, memory_bytes=ROOM)
        said = reuse.generate(ids, **turn)
        reuse.close()
    asked = torch.cat([said, ids[:, :11]], dim=1)
    right = v4.generate(asked, attention_mask=torch.ones_like(asked), **turn)
    with store(tmp_path) as tier:
        reuse = PrefixReuse(v4, tier=tier, memory_bytes=ROOM)
        assert torch.equal(reuse.generate(asked, **turn), right)
        assert [row.loaded.tokens for row in reuse.last_rows] == [78, 78]  # all but the last token said
        reuse.close()


@pytest.mark.parametrize("name", ["jamba", "deepseek_v4", "qwen3_next"])
def test_a_conversation_goes_on_from_its_end_behind_a_restart_bit_for_bit(name: str, tmp_path: Path) -> None:
    """As one process does that keeps it in memory; a model that takes tokens one by one has no other boundary."""
    model = tiny_models.tiny(name)
    turn = {"max_new_tokens": 5, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    first, second = some_ids(37, seed=8), some_ids(6, seed=9)
    alone = PrefixReuse(model, memory_bytes=ROOM)
    with store(tmp_path) as tier:
        reuse = PrefixReuse(model, tier=tier, memory_bytes=ROOM)
        said = reuse.generate(first, **turn).sequences
        assert torch.equal(said, alone.generate(first, **turn).sequences)
        reuse.close()
    asked = torch.cat([said, second], dim=1)
    wanted = alone.generate(asked, **turn)
    with store(tmp_path) as tier:
        reuse = PrefixReuse(model, tier=tier, memory_bytes=ROOM)
        found = reuse.generate(asked, **turn)
        row = reuse.last_rows[0]
        assert (row.loaded.tokens, row.usable) == (41, 41) and not row.loaded.refused
        assert torch.equal(found.sequences, wanted.sequences)
        assert all(torch.equal(a, b) for a, b in zip(found.logits, wanted.logits, strict=True))
        reuse.close()


def test_a_store_without_an_index_is_asked_for_the_prefix(v4: Any) -> None:
    ids = some_ids(80, seed=7)
    with DictTier() as tier:
        written(v4, tier, ids).close()
        again = DictTier()
        again.records = tier.records
    with again:
        reuse = PrefixReuse(v4, tier=again, **PLAIN)
        assert reuse.forward(ids).rows[0].loaded.tokens == 64
        reuse.close()


def test_a_frozen_store_costs_its_time_out_and_no_answer(v4: Any) -> None:
    ids = some_ids(80, seed=8)
    scratch = PrefixReuse(v4, **PLAIN).forward(ids).logits
    with DictTier(breaker_after=0) as tier:
        reuse = written(v4, tier, ids[:, :64], load_timeout_s=0.2)
        reuse.cache.evict(reuse.keys(ids[0].tolist()))
        tier.gate.clear()
        out = reuse.forward(ids)
        assert out.rows[0].usable == 0 and torch.equal(out.logits, scratch)
        assert reuse.cache.metrics().load_failures.keys() == {"timeout"}
        tier.gate.set()
        assert reuse.flush()
        reuse.close()


def test_a_full_or_failing_store_is_counted_and_harms_nothing(v4: Any) -> None:
    ids = some_ids(80, seed=9)
    with hk.MemoryTier(20_000, threaded=True) as tier:
        reuse = PrefixReuse(v4, tier=tier, **PLAIN)
        reuse.forward(ids)
        assert reuse.flush()
        assert set(reuse.not_written) <= {"NO_SPACE", "MISS"} and sum(reuse.not_written.values()) == 1
        assert reuse.forward(torch.cat([ids, ids[:, :1]], dim=1)).rows[0].usable == 80
        reuse.close()


def test_a_tier_that_was_closed_too_early_harms_nothing(v4: Any) -> None:
    ids = some_ids(80, seed=12)
    tier = hk.MemoryTier(4 * MIB, threaded=True)
    reuse = written(v4, tier, ids[:, :64])
    tier.close()
    out = reuse.forward(ids)
    assert out.rows[0].usable == 64 and torch.equal(out.logits, PrefixReuse(v4, **PLAIN).forward(ids).logits[:, 64:])
    assert reuse.flush() and dict(reuse.not_written) == {"CLOSED": 1}
    reuse.close()


def test_room_is_not_waited_for_behind_a_store_that_hangs(v4: Any) -> None:
    spec = PrefixReuse.spec_of(v4, replay=False)
    pages = {group.name: 5 for group in spec.groups}
    with DictTier(breaker_after=0) as tier:
        tier.gate.clear()
        cache = hk.HybridCache(spec, blocks=40, pages=pages, eviction="none", tier=tier)
        reuse = PrefixReuse(v4, cache=cache, keep_tips=False, replay=False, load_timeout_s=0.1)
        reuse.forward(some_ids(70, seed=13))
        ids = some_ids(70, seed=14)
        out = reuse.forward(ids)  # pages are pinned by a write that hangs
        assert torch.equal(out.logits, PrefixReuse(v4, **PLAIN).forward(ids).logits)
        tier.gate.set()
        assert reuse.flush(10) and reuse.not_written
        reuse.close()


def test_bytes_that_a_store_spoiled_are_never_used(v4: Any) -> None:
    ids = some_ids(80, seed=10)
    scratch = PrefixReuse(v4, **PLAIN).forward(ids).logits
    with HostileTier(breaker_after=0) as tier:
        reuse = written(v4, tier, ids[:, :64])
        reuse.cache.evict(reuse.keys(ids[0].tolist()))

        def spoil(envelope: bytes, buffers: list[Any]) -> tuple[bytes, list[Any]]:
            first = bytearray(buffers[0])
            first[0] ^= 1
            return envelope, [bytes(first), *buffers[1:]]

        tier.spoil = spoil
        out = reuse.forward(ids)
        assert out.rows[0].usable == 0 and torch.equal(out.logits, scratch)
        assert out.rows[0].loaded.refused and out.rows[0].loaded.tokens == 0
        reuse.close()


def test_a_cache_that_stores_by_itself_is_left_to(v4: Any) -> None:
    ids = some_ids(80, seed=11)
    with hk.MemoryTier(4 * MIB, threaded=True) as tier:
        spec = PrefixReuse.spec_of(v4, replay=False)
        cache = hk.HybridCache(spec, blocks=200, eviction="none", tier=tier, tier_writes="through")
        reuse = PrefixReuse(v4, cache=cache, keep_tips=False, replay=False)
        reuse.forward(ids)
        while tier.usage().records < 10:
            tier.wait(0.1)
            cache.poll()
        assert tier.usage().records == 10  # five blocks, five boundaries
        cache.close()


def test_what_is_loaded_can_be_evicted_again(v4: Any) -> None:
    spec = PrefixReuse.spec_of(v4, replay=False)
    prompts = [some_ids(80, seed=40 + number) for number in range(3)]
    with hk.MemoryTier(4 * MIB, threaded=True) as tier:
        for ids in prompts:
            written(v4, tier, ids[:, :64]).close()
        pages = {group.name: 6 for group in spec.groups}
        cache = hk.HybridCache(spec, blocks=40, pages=pages, eviction="none", tier=tier)
        reuse = PrefixReuse(v4, cache=cache, keep_tips=False, replay=False)
        for _ in range(2):
            for ids in prompts:
                row = reuse.forward(ids[:, :65]).rows[0]  # keeps nothing itself
                assert (row.loaded.tokens, row.stored) == (64, [])
        assert reuse.cache.metrics().retired > 0
        reuse.close()


def test_arguments(v4: Any) -> None:
    with hk.MemoryTier(MIB) as tier, hk.MemoryTier(MIB) as other:
        with pytest.raises(hk.ArgumentError, match="tier"):
            PrefixReuse(v4, tier="disk", **PLAIN)
        with pytest.raises(hk.ArgumentError, match="timeout_s"):
            PrefixReuse(v4, tier=tier, load_timeout_s=0, **PLAIN)
        cache = hk.HybridCache(PrefixReuse.spec_of(v4), blocks=64, tier=other)
        with pytest.raises(hk.ArgumentError, match="the tier that the cache was made with"):
            PrefixReuse(v4, cache=cache, tier=tier)
        cache.close()
        jamba = tiny_models.tiny("jamba")
        with pytest.raises(hk.ArgumentError, match="checkpoint_tokens"):
            PrefixReuse(jamba, tier=other, memory_bytes=ROOM, keep_tips=False)
        reuse = PrefixReuse(v4, tier=other, **PLAIN)
        with pytest.raises(hk.Busy, match="tier"):
            PrefixReuse(v4, tier=other, **PLAIN)
        with pytest.raises(hk.ArgumentError, match="timeout"):
            reuse.flush("soon")  # type: ignore[arg-type]
        reuse.close()
        reuse.close()
        with pytest.raises(hk.Closed):
            reuse.forward(some_ids(20))
    assert PrefixReuse(v4, **PLAIN).flush()


def test_tenants_with_salts_of_their_own_share_nothing(tmp_path: Path) -> None:
    """One model, one prompt, two salts: nothing is found in memory, and nothing in the store behind a restart."""
    model = tiny_models.tiny("gemma3_text")
    ids = some_ids(90, seed=3)
    own = PrefixReuse.spec_of(model).identity
    one, two = (replace(own, salt=salt * 32) for salt in (b"1", b"2"))
    with store(tmp_path) as tier:
        written(model, tier, ids, identity=one).close()
    for salted, usable in ((two, 0), (one, 80)):
        with store(tmp_path) as tier:
            reuse = PrefixReuse(model, tier=tier, identity=salted, **PLAIN)
            row = reuse.forward(ids).rows[0]
            assert row.usable == usable
            assert (row.loaded is not None and row.loaded.tokens > 0) == (usable > 0)
            assert "1" * 32 not in repr(reuse) + repr(reuse.identity) + repr(row)
            assert reuse.forward(ids).rows[0].usable == 80
            reuse.close()
