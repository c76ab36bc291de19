# SPDX-License-Identifier: Apache-2.0
"""PrefixReuse.forward: what is reused, what is computed, and that the logits are right."""

from __future__ import annotations

import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import hybridkv as hk  # noqa: E402
import tiny_models  # noqa: E402
from hybridkv.adapters.transformers import PrefixReuse  # noqa: E402
from hybridkv.demo.models import tiny_deepseek_v4  # noqa: E402
from reuse_support import some_ids, whole_logits  # noqa: E402


@pytest.fixture(scope="module")
def v4() -> Any:
    return tiny_deepseek_v4(3)


def chunk_noise(model: Any, ids: Any) -> float:
    """How far the model itself is from its one-pass logits when it computes in chunks."""
    chunked = PrefixReuse(model, memory_bytes=8 << 20, checkpoint_tokens=16).forward(ids)
    return float((chunked.logits - whole_logits(model, ids)).abs().max())


@pytest.mark.parametrize("name", tiny_models.ARCHITECTURES)
def test_resumed_logits_are_those_of_a_recompute_up_to_the_models_own_chunking(name: str) -> None:
    model = tiny_models.tiny(name)
    ids = some_ids(120, seed=1)
    reuse = PrefixReuse(model, memory_bytes=8 << 20)
    reuse.forward(ids[:, :75])
    resumed = reuse.forward(ids)
    assert resumed.rows[0].usable == resumed.rows[0].matched == 75 and resumed.rows[0].why is None
    assert resumed.logits.shape == (1, 45, 256) and resumed.rows[0].computed == 45
    far = float((resumed.logits - whole_logits(model, ids)[:, 75:]).abs().max())
    assert far <= 4 * max(chunk_noise(model, ids), 1e-6)  # one cut is not the other; 2.4 times it on AVX2


def test_rows_with_different_prefixes_in_one_batch(v4: Any) -> None:
    reuse = PrefixReuse(v4, memory_bytes=8 << 20)
    known = some_ids(64, seed=2)
    reuse.forward(known)
    batch = some_ids(90, seed=3, rows=4)
    batch[0, :64] = known  # a tip of 64, aligned
    batch[2, :40] = known[:, :40]  # the boundary at 32
    out = reuse.forward(batch)
    assert [row.usable for row in out.rows] == [64, 0, 32, 0]
    assert [row.outcome.name for row in out.rows] == ["REUSABLE", "MISS", "REUSABLE", "MISS"]
    assert out.logits.shape == (4, 26, 256)  # as many as every row computed
    assert [row.logits.shape[0] for row in out.rows] == [26, 90, 58, 90]
    assert torch.allclose(out.logits, whole_logits(v4, batch)[:, -26:], atol=1e-4)


def test_a_padded_row_is_run_without_its_padding(v4: Any) -> None:
    reuse = PrefixReuse(v4, memory_bytes=8 << 20)
    ids = some_ids(50, seed=4, rows=2)
    mask = torch.ones_like(ids)
    mask[1, :13] = 0
    out = reuse.forward(ids, attention_mask=mask)
    assert [row.tokens for row in out.rows] == [50, 37]
    alone = whole_logits(v4, ids[1:, 13:])
    assert torch.allclose(out.rows[1].logits, alone[0], atol=1e-4)
    padded = v4(input_ids=ids, attention_mask=mask, use_cache=False).logits
    assert (padded[1, 13:] - alone[0]).abs().max() > 0.01  # what the padding would have done
    with pytest.raises(hk.ArgumentError, match="one length"):
        _ = out.past
    assert out.past_of(1).get_seq_length() == 37
    assert reuse.forward(torch.cat([ids[1:, 13:], ids[:1, :4]], dim=1)).rows[0].usable == 37


def test_the_cache_that_comes_back_is_a_copy(v4: Any) -> None:
    reuse = PrefixReuse(v4, memory_bytes=8 << 20)
    ids = some_ids(40, seed=5, rows=2)
    out = reuse.forward(ids)
    past = out.past
    reuse._runner.run(some_ids(9, seed=6, rows=2), past, 40)
    assert past.get_seq_length() == 49 and out.past_of(0).get_seq_length() == 40
    for layer in past.layers:
        layer.keys.zero_()
    again = reuse.forward(torch.cat([ids, ids[:, :8]], dim=1))
    assert [row.usable for row in again.rows] == [40, 40]
    assert torch.allclose(again.logits, whole_logits(v4, torch.cat([ids, ids[:, :8]], dim=1))[:, -8:], atol=1e-4)


@pytest.mark.parametrize("chunk", [2, 7, 16, 50])
def test_chunked_prefill_changes_nothing_but_rounding(v4: Any, chunk: int) -> None:
    ids = some_ids(100, seed=7)
    reuse = PrefixReuse(v4, memory_bytes=8 << 20, chunk_tokens=chunk)
    sizes = []
    run = reuse._runner.run
    reuse._runner.run = lambda part, *rest, **more: (sizes.append(part.shape[1]), run(part, *rest, **more))[1]
    out = reuse.forward(ids)
    assert max(sizes) <= chunk and sum(sizes) == 100
    assert torch.allclose(out.logits, whole_logits(v4, ids), atol=1e-4)
    assert reuse.forward(torch.cat([ids, ids[:, :3]], dim=1)).rows[0].usable == 100


@pytest.mark.parametrize("tips", [True, False])
def test_boundaries_are_kept_at_the_stride_and_at_the_end(v4: Any, tips: bool) -> None:
    reuse = PrefixReuse(v4, memory_bytes=8 << 20, checkpoint_tokens=32, keep_tips=tips, replay=False)
    ids = some_ids(100, seed=8)
    out = reuse.forward(ids)
    assert out.rows[0].stored == ([32, 64, 96, 100] if tips else [32, 64, 96])
    usable = {n: reuse.cache.match(reuse.keys(ids[0, :n].tolist())) for n in (101, 100, 96, 80, 33, 32)}
    found = {n: verdict.usable_tokens for n, verdict in usable.items()}
    for verdict in usable.values():
        if verdict.lease is not None:
            verdict.lease.cancel()
    assert found == {101: 96, 100: 96, 96: 64, 80: 64, 33: 32, 32: 0}
    longer = reuse.forward(torch.cat([ids, ids[:, :5]], dim=1))
    assert longer.rows[0].usable == (100 if tips else 96)


def test_a_gone_window_is_replayed_or_told(v4: Any) -> None:
    ids = some_ids(200, seed=9)
    told = {}
    for replay in (True, False):
        reuse = PrefixReuse(v4, memory_bytes=8 << 20, replay=replay)
        reuse.forward(ids[:, :150])
        reuse.cache.evict(reuse.keys(ids[0, :150].tolist()), {"swa": True, "overlap": True})
        out = reuse.forward(ids)
        told[replay] = out.rows[0]
        assert torch.allclose(out.logits, whole_logits(v4, ids)[:, -out.logits.shape[1] :], atol=1e-4)
    assert told[True].usable == 150 and told[True].replayed == (64, 150) and told[True].computed == 50 + 86
    assert told[False].usable == 0 and told[False].matched == 150 and told[False].replayed is None
    why = told[False].why
    assert (why.check, why.kind, why.group) == (hk.Check.GROUPS, hk.StateKind.WINDOW, "swa")


def test_what_a_replay_rebuilt_is_kept(v4: Any) -> None:
    reuse = PrefixReuse(v4, memory_bytes=8 << 20)
    ids = some_ids(160, seed=10)
    reuse.forward(ids[:, :144])
    reuse.cache.evict(reuse.keys(ids[0, :144].tolist()), {"swa": True, "overlap": True})
    assert reuse.forward(ids).rows[0].replayed == (64, 144)
    other = ids.clone()
    other[0, 144:] += 1
    assert reuse.forward(other % 256).rows[0].replayed is None


def test_a_replay_is_not_run_where_going_on_from_a_whole_boundary_computes_less(v4: Any) -> None:
    reuse = PrefixReuse(v4, memory_bytes=8 << 20)
    ids = some_ids(200, seed=11)
    reuse.forward(ids[:, :160])
    keys = reuse.keys(ids[0, :160].tolist())
    reuse.cache.evict(keys, {"swa": [9], "overlap": [9]})  # the boundary at 160 alone
    before = reuse.cache.metrics()
    row = reuse.forward(ids).rows[0]
    assert (row.usable, row.matched, row.replayed, row.computed) == (144, 160, None, 56)
    assert row.why.check is hk.Check.GROUPS and row.why.group == "swa" and "replay" in row.why.detail
    after = reuse.cache.metrics()
    assert after.effective_hits - before.effective_hits == 1 and after.pending == after.withdrawn == 0


def test_small_pools_evict_and_stay_right(v4: Any) -> None:
    spec = PrefixReuse.spec_of(v4)
    pages = {g.name: 14 for g in spec.groups}
    reuse = PrefixReuse(v4, cache=hk.HybridCache(spec, blocks=40, pages=pages, eviction="none"))
    for seed in range(12):
        ids = some_ids(70, seed=100 + seed % 5)
        out = reuse.forward(ids)
        assert torch.allclose(out.logits, whole_logits(v4, ids)[:, -out.logits.shape[1] :], atol=1e-4)
    metrics = reuse.cache.metrics()
    assert metrics.retired > 0 and metrics.pending == 0 and metrics.leaks == 0
    for counts in metrics.pages.values():
        assert counts.free + counts.filling + counts.held + counts.cached == 14


def test_a_prompt_larger_than_the_pools_is_computed_and_not_kept(v4: Any) -> None:
    spec = PrefixReuse.spec_of(v4)
    reuse = PrefixReuse(
        v4, cache=hk.HybridCache(spec, blocks=8, pages={g.name: 2 for g in spec.groups}, eviction="none")
    )
    ids = some_ids(120, seed=12)
    out = reuse.forward(ids)
    assert torch.allclose(out.logits, whole_logits(v4, ids), atol=1e-4)
    assert sum(reuse.not_stored.values()) > 0 and out.rows[0].stored != [120]


@pytest.mark.parametrize("written", ["in place", "through data", "exchanged"])
def test_other_weights_are_another_namespace(written: str) -> None:
    model = tiny_deepseek_v4(4)
    reuse = PrefixReuse(model, memory_bytes=8 << 20)
    ids = some_ids(80, seed=13)
    reuse.forward(ids[:, :64])
    assert reuse.forward(ids).rows[0].usable == 64
    weight = model.model.layers[1].self_attn.kv_proj.weight
    if written == "in place":
        with torch.no_grad():
            weight.mul_(1.01)
    elif written == "through data":
        weight.data += 0.01
    else:
        model.model.layers[1].self_attn.kv_proj.weight = torch.nn.Parameter(weight.detach() * 1.01)
    out = reuse.forward(ids)
    assert (out.rows[0].usable, out.rows[0].outcome) == (0, hk.Outcome.MISS)
    assert torch.allclose(out.logits, whole_logits(model, ids), atol=1e-4)
    assert reuse.forward(torch.cat([ids, ids[:, :2]], dim=1)).rows[0].usable == 80


@pytest.mark.parametrize("change", ["frequencies", "attention"])
def test_other_settings_are_another_namespace(change: str) -> None:
    model = tiny_models.tiny("llama")
    reuse = PrefixReuse(model, memory_bytes=8 << 20)
    ids = some_ids(80, seed=17)
    reuse.forward(ids[:, :64])
    assert reuse.forward(ids).rows[0].usable == 64
    if change == "frequencies":
        model.model.rotary_emb.inv_freq.mul_(0.5)  # a buffer that no checkpoint holds
    else:
        model.set_attn_implementation("sdpa")
    out = reuse.forward(ids)
    assert out.rows[0].outcome is hk.Outcome.MISS
    assert torch.allclose(out.logits, whole_logits(model, ids), atol=1e-4)


def test_a_name_for_the_weights_stands_for_them_until_they_change() -> None:
    model = tiny_deepseek_v4(4)
    ids = some_ids(80, seed=13)
    own = hk.Identity(model="mine")
    for settings in ({"weights": "revision 7"}, {"weights": "revision 7", "identity": own}):
        reuse = PrefixReuse(model, memory_bytes=8 << 20, **settings)
        assert all(group.format.weights == "revision 7" for group in reuse.cache.spec.groups)
        reuse.forward(ids[:, :64])
        assert reuse.forward(ids).rows[0].usable == 64
        with torch.no_grad():
            model.lm_head.weight.mul_(1.01)
        row = reuse.forward(ids).rows[0]
        assert row.usable == 0
        if "identity" in settings:  # the keys are the caller's: the format tells
            assert (row.outcome, row.why.check, row.why.code) == (hk.Outcome.FALSE_HIT, hk.Check.ABI, "format")


class Adapted(torch.nn.Module):
    """A layer with an adapter, as adapter libraries wrap them."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base = base
        self.extra = torch.nn.Linear(base.in_features, base.out_features, bias=False)
        self._active_adapter = ["first"]
        self._disable_adapters = False

    def forward(self, x: Any) -> Any:
        return self.base(x) if self._disable_adapters else self.base(x) + 0.1 * self.extra(x)


def test_an_adapter_that_is_switched_off_is_another_namespace() -> None:
    model = tiny_deepseek_v4(4)
    attention = model.model.layers[1].self_attn
    attention.kv_proj = Adapted(attention.kv_proj).eval()
    reuse = PrefixReuse(model, memory_bytes=8 << 20)
    ids = some_ids(80, seed=13)
    reuse.forward(ids[:, :64])
    assert reuse.forward(ids).rows[0].usable == 64
    attention.kv_proj._disable_adapters = True
    out = reuse.forward(ids)
    assert out.rows[0].outcome is hk.Outcome.MISS
    assert torch.allclose(out.logits, whole_logits(model, ids), atol=1e-4)
    attention.kv_proj._disable_adapters = False
    assert reuse.forward(torch.cat([ids, ids[:, :3]], dim=1)).rows[0].usable == 80  # back in the first one


def test_a_user_in_the_middle_of_a_failure_leaks_nothing(v4: Any) -> None:
    reuse = PrefixReuse(v4, memory_bytes=8 << 20)
    ids = some_ids(60, seed=14)
    reuse.forward(ids[:, :48])
    run = reuse._runner.run

    def fails(*arguments: Any, **more: Any) -> Any:
        raise RuntimeError("out of memory")

    reuse._runner.run = fails
    with pytest.raises(RuntimeError, match="out of memory"):
        reuse.forward(ids)
    reuse._runner.run = run
    metrics = reuse.cache.metrics()
    assert metrics.pending == 0 and metrics.leaks == 0 and metrics.withdrawn == 1
    assert reuse.forward(ids).rows[0].usable == 48


def test_threads_share_one_object(v4: Any) -> None:
    reuse = PrefixReuse(v4, memory_bytes=4 << 20)
    batches = [some_ids(60, seed=20 + i % 3) for i in range(12)]
    wrong: list[Any] = []

    def work(own: list[Any]) -> None:
        for ids in own:
            out = reuse.forward(ids)
            if not torch.allclose(out.logits, whole_logits(v4, ids)[:, -out.logits.shape[1] :], atol=1e-4):
                wrong.append(ids)

    threads = [threading.Thread(target=work, args=(batches[i::3],)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert reuse.cache.metrics().pending == 0 and reuse.cache.metrics().leaks == 0


def test_a_policy_that_fails_leaks_no_lease(v4: Any) -> None:
    reuse = PrefixReuse(v4, memory_bytes=4 << 20)
    ids = some_ids(50)
    reuse.forward(ids[:, :40])

    def fails(*arguments: Any, **more: Any) -> None:
        raise KeyError("policy")

    reuse._store._policy.touch = fails
    with pytest.raises(KeyError, match="policy"):
        reuse.forward(ids)
    metrics = reuse.cache.metrics()
    assert (metrics.leaks, metrics.pending) == (0, 0)


def test_a_damaged_page_costs_no_more_than_the_boundaries_that_need_it(v4: Any) -> None:
    reuse = PrefixReuse(v4, memory_bytes=8 << 20, replay=False)
    ids = some_ids(100, seed=16)
    reuse.forward(ids[:, :90])
    verdict = reuse.cache.match(reuse.keys(ids[0].tolist()))
    held = verdict.lease.page_ids("overlap")
    verdict.lease.cancel()
    reuse.pages.pools["overlap"][int(held[held >= 0][0]), 0] ^= 1  # of the tip at 90 alone
    out = reuse.forward(ids)
    row = out.rows[0]
    assert (row.usable, row.matched, row.why.check, row.why.group) == (80, 90, hk.Check.INTEGRITY, "overlap")
    assert torch.allclose(out.logits, whole_logits(v4, ids)[:, 80:], atol=1e-4)
    metrics = reuse.cache.metrics()
    assert metrics.false_hits[hk.Check.INTEGRITY][hk.StateKind.TAIL] == 1 and metrics.pending == 0


def test_a_long_prompt_gives_up_its_own_earlier_boundaries(v4: Any) -> None:
    spec = PrefixReuse.spec_of(v4, replay=False)
    pages = {g.name: 40 if isinstance(g.coverage, hk.Prefix) else 4 for g in spec.groups}
    reuse = PrefixReuse(v4, cache=hk.HybridCache(spec, blocks=200, pages=pages), replay=False)
    ids = some_ids(300, seed=15)
    out = reuse.forward(ids)
    assert not reuse.not_stored and out.rows[0].stored[-1] == 300
    row = reuse.forward(torch.cat([ids, ids[:, :4]], dim=1)).rows[0]
    assert (row.usable, row.computed) == (300, 4)
