# SPDX-License-Identifier: Apache-2.0
"""Window policies: what each keeps, reads and computes again; the published figures; what cannot be asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridkv as hk
from hybridkv.group import Need
from hybridkv.replay_schedule import BoundedReplay, ReplaySchedule
from hybridkv.windows import ApproximateWindows, WindowPlan

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "tests" / "data" / "configs"
KIB, MIB = 2**10, 2**20


def spec_of(name: str, unit_tokens: int = 128) -> hk.CacheSpec:
    return hk.CacheSpec.from_config(CONFIGS / f"deepseek-v4-{name}.json", unit_tokens=unit_tokens)


def small(unit: int = 4) -> hk.CacheSpec:
    kv = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=100, layers=(0, 1))
    swa = hk.CacheGroup("swa", hk.StateKind.WINDOW, hk.Window(6), page_bytes=10, layers=(0, 1))
    tail = hk.CacheGroup(
        "tail", hk.StateKind.TAIL, hk.Checkpoint(every=8), page_bytes=8, row_bytes=1, rows_per_page=8, layers=(1,)
    )
    return hk.CacheSpec(unit, [kv, swa, tail])


EVERY_POLICY: list[hk.KeepWindows | ApproximateWindows] = [
    hk.KeepWindows.all(),
    hk.KeepWindows.all(ends=False, replay="triangular"),
    hk.KeepWindows.every(10),
    hk.KeepWindows.every(16, ends=False),
    hk.KeepWindows.none(),
    hk.KeepWindows.none(ends=False, replay="triangular"),
    hk.KeepWindows.bounded(),
    hk.KeepWindows.bounded(40, ends=False),
]


# -- what is kept -----------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(EVERY_POLICY), st.lists(st.tuples(st.integers(1, 100), st.booleans())))
def test_what_is_kept_is_what_the_rule_says(
    policy: hk.KeepWindows | ApproximateWindows, seen: list[tuple[int, bool]]
) -> None:
    seen = [(t, is_end) for t, is_end in seen if is_end or t % 4 == 0]
    step = {"all": 4, "every": 12 if policy == hk.KeepWindows.every(10) else 16}.get(getattr(policy, "retain", ""), 0)
    want = {t for t, is_end in seen if (is_end and policy.ends) or (step and t % step == 0)}
    assert policy.kept(small(), seen) == tuple(sorted(want))


def test_an_unaligned_length_is_kept_as_an_end_alone() -> None:
    assert hk.KeepWindows.none().kept(small(), [(7, True), (8, False)]) == (7,)
    for wrong in (7, 0, -4):
        with pytest.raises(hk.ArgumentError, match="boundaries"):
            hk.KeepWindows.all().kept(small(), [(wrong, False)])


@pytest.mark.parametrize("wrong", [5, None, [None], "ab", [(4,)], [(4, True, 1)], [(4, 1)]])
def test_boundaries_that_are_none_are_refused_by_field(wrong: Any) -> None:
    policy = hk.KeepWindows.all()
    for ask in (lambda: policy.kept(small(), wrong), lambda: policy.plans(small(), 8, wrong)):
        with pytest.raises(hk.ArgumentError) as caught:
            ask()
        assert caught.value.field == "boundaries"


@pytest.mark.parametrize("name", ["flash", "pro"])
def test_a_period_is_a_multiple_of_the_step(name: str) -> None:
    spec = spec_of(name, 256)
    assert hk.KeepWindows.every(1000).period_tokens(spec) == 1024
    assert hk.KeepWindows.every(1).period_tokens(spec) == 256 == hk.KeepWindows.all().period_tokens(spec)
    assert hk.KeepWindows.none().period_tokens(spec) is hk.KeepWindows.bounded().period_tokens(spec) is None


def test_a_distance_is_rounded_up_to_whole_boundaries() -> None:
    groups = [
        hk.CacheGroup("history", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=4096),
        hk.CacheGroup("window", hk.StateKind.WINDOW, hk.Window(128), page_bytes=8192),
    ]
    spec, windows = hk.CacheSpec(64, groups), hk.KeepWindows.every(100)
    assert windows.period_tokens(spec) == 128
    assert windows.kept(spec, [(t, False) for t in range(64, 513, 64)]) == (128, 256, 384, 512)
    checkpoints = windows.checkpoints(spec)
    assert checkpoints == hk.CheckpointPolicy(junctions=False, every=128)
    assert checkpoints.lengths(0, 0, 500, 0, 64) == [128, 256, 384, 448]  # and the output's end, rounded down


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([p for p in EVERY_POLICY if p.ends]), st.integers(1, 60), st.integers(1, 60))
def test_the_cache_keeps_what_the_tier_is_to_write(
    policy: hk.KeepWindows | ApproximateWindows, prompt: int, answer: int
) -> None:
    spec, end = small(), 4 * (prompt + answer)
    kept = policy.kept(spec, [(t, t in (4 * prompt, end)) for t in range(4, end + 1, 4)])
    checkpoints = policy.checkpoints(spec)
    if checkpoints is None:
        assert kept == tuple(range(4, end + 1, 4))
    else:
        assert kept == tuple(checkpoints.lengths(0, 4 * prompt, end, 0, 4))


# -- the published figures --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "window_mib", "overlap_kib", "record_mib", "window_per_token", "history"),
    [("flash", 3.07, 420, 3.48, 25_112, 3850.25), ("pro", 4.35, 600, 4.94, 35_624, 5511.4375)],
)
def test_bytes_kept_are_the_published_ones(
    name: str, window_mib: float, overlap_kib: int, record_mib: float, window_per_token: int, history: float
) -> None:
    spec = spec_of(name)
    window, overlap = spec.boundary_bytes["swa"], spec.boundary_bytes["overlap"]
    assert abs(window / MIB - window_mib) < 0.006 and overlap == overlap_kib * KIB
    kept = hk.KeepWindows.all().kept_bytes(spec)
    assert kept == (history * 1_000_000, (window + overlap) * 1_000_000 / 128, window + overlap)
    assert abs(kept.record / MIB - record_mib) < 0.006
    assert window / 128 == window_per_token
    assert hk.KeepWindows.every(4096).kept_bytes(spec, 4096).states == kept.record
    assert hk.KeepWindows.none().kept_bytes(spec) == (kept.history, 0, kept.record)
    assert hk.KeepWindows.bounded().kept_bytes(spec) == (kept.history, 0, kept.record)


def test_a_prefix_of_a_mebitoken_is_3_8_gib_of_history() -> None:
    assert round(hk.KeepWindows.none().kept_bytes(spec_of("flash"), MIB).history / 2**30, 1) == 3.8


@pytest.mark.parametrize(("name", "layers", "replayed"), [("flash", 43, 5_504), ("pro", 61, 7_808)])
def test_replays_are_the_published_ones(name: str, layers: int, replayed: int) -> None:
    spec, t = spec_of(name), 100_096
    whole, half = (hk.KeepWindows.none(replay=s).plans(spec, t)[-1].replay for s in ("layers", "triangular"))
    assert isinstance(whole, ReplaySchedule) and isinstance(half, ReplaySchedule)
    assert t - whole.resume_tokens == replayed == 128 * layers
    assert whole.layer_tokens == replayed * layers
    assert [t - span.start for span in half.spans] == [127 * (layers - n) for n in range(layers)]
    assert half.layer_tokens == 127 * layers * (layers + 1) // 2
    assert 0.5 < half.layer_tokens / whole.layer_tokens < 0.52


def test_break_even_of_a_record_and_a_replay() -> None:
    """The window alone: 1.1 ms at 3 GB/s against 275 ms at 20,000 tokens a second."""
    spec = spec_of("flash")
    disk = hk.Bandwidth(3e9)
    assert abs(disk.seconds(spec.boundary_bytes["swa"]) - 0.0011) < 0.0001
    ways = hk.KeepWindows.all(replay="layers").plans(spec, 100_096, [100_096])
    choice = hk.CostModel({"disk": disk}, tokens_per_second=20_000).choose(
        [way.candidate("disk") for way in ways], 100_096
    )
    assert choice.candidate.replay_layer_tokens == 0 and choice.candidate.load_bytes == 3_644_416
    replay = choice.estimates[1]
    assert replay.replay_s is not None and abs(replay.replay_s - 0.275) < 0.001


# -- plans ------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(EVERY_POLICY),
    st.integers(0, 120),
    st.lists(st.integers(0, 140), max_size=5),
    st.none() | st.integers(0, 130),
)
def test_plans_are_every_way_and_each_reads_what_a_resume_needs(
    policy: hk.KeepWindows | ApproximateWindows, tokens: int, records: list[int], limit: int | None
) -> None:
    spec = small()
    plans = policy.plans(spec, tokens, records, limit=limit)
    below = tokens + 1 if limit is None else limit
    read = [plan for plan in plans if plan.replay is None]
    assert [plan.tokens for plan in read] == sorted({0, *(t for t in records if t <= tokens and t < below)})
    assert [plan.tokens for plan in plans] == sorted(plan.tokens for plan in plans)
    for plan in plans:
        needs = spec.requirements(plan.tokens)
        pages = {name: len(need.blocks) * spec[name].total_page_bytes for name, need in needs.items()}
        whole = plan.tokens // 4 * spec["kv"].total_page_bytes
        assert plan.history_bytes == whole and plan.reads["kv"] == needs["kv"]
        if plan.replay is None:
            assert plan.reads == needs and plan.exact and plan.writes == ()
            assert plan.record_bytes == sum(pages.values()) - whole
            assert plan.resume_tokens == plan.tokens
        else:
            check_replay(policy, spec, plan)
            assert plan.tokens == min(tokens, below - 1) // 4 * 4


def check_replay(policy: hk.KeepWindows | ApproximateWindows, spec: hk.CacheSpec, plan: WindowPlan) -> None:
    assert plan.record_bytes == 0 and plan.exact == policy.exact == plan.replay.exact  # type: ignore[union-attr]
    assert isinstance(plan.replay, ReplaySchedule if policy.exact else BoundedReplay)
    assert 0 < plan.resume_tokens < plan.tokens
    assert plan.writes == ("swa", "tail")
    for name in plan.writes:
        assert plan.reads[name] == Need(0, 0, range(plan.reads[name].blocks.stop, plan.reads[name].blocks.stop))


def test_a_tip_has_its_partial_pages_in_the_record() -> None:
    plan = hk.KeepWindows.all().plans(small(), 22, [22])[1]
    assert plan.tokens == 22 and plan.history_bytes == 5 * 200
    assert plan.record_bytes == 200 + 2 * 20 + 8  # block 5 of history, blocks 4 and 5 of the window, the tail
    assert {name: list(need.blocks) for name, need in plan.reads.items()} == {
        "kv": [0, 1, 2, 3, 4, 5],
        "swa": [4, 5],
        "tail": [5],
    }


def test_the_overlap_is_read_with_every_record() -> None:
    spec = spec_of("flash")
    for policy in (hk.KeepWindows.all(), hk.KeepWindows.every(4096), hk.KeepWindows.none(), hk.KeepWindows.bounded()):
        for t in (128, 4096, 8192 + 57):
            plan = next(p for p in policy.plans(spec, t, [t]) if p.tokens == t and p.replay is None)
            assert plan.reads["overlap"].rows == 4 and plan.reads["swa"].rows == 127
            assert plan.record_bytes >= 3_644_416


def test_candidates_read_from_where_things_are() -> None:
    spec = spec_of("flash")
    _, record, replay = hk.KeepWindows.every(4096, replay="triangular").plans(spec, 8192, [4096])
    assert dict(record.candidate("disk", history="disk").loads) == {"disk": 3_644_416 + record.history_bytes}
    both = record.candidate("host", history="disk")
    assert dict(both.loads) == {"disk": record.history_bytes, "host": 3_644_416}
    assert dict(record.candidate().loads) == dict(replay.candidate("disk").loads) == {}
    assert replay.candidate().replay_layer_tokens == 120_142 and replay.candidate().layers == 43
    assert not hk.KeepWindows.bounded().plans(spec, 8192)[-1].candidate().exact


def test_work_of_layers_of_unknown_order_counts_for_the_whole_model() -> None:
    kv = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=1, layers=("a", "b", "c", "d"))
    swa = hk.CacheGroup("swa", hk.StateKind.WINDOW, hk.Window(9), page_bytes=1, layers=("b", "d"))
    plan = hk.KeepWindows.none().plans(hk.CacheSpec(4, [kv, swa]), 64)[-1]
    assert (plan.replay.layer_tokens, plan.candidate().replay_layer_tokens) == (32, 64)  # type: ignore[union-attr]


# -- what cannot be asked for -----------------------------------------------------------------------


def test_an_approximation_is_another_type_that_only_its_name_gives() -> None:
    bounded = hk.KeepWindows.bounded()
    assert type(bounded) is ApproximateWindows and not isinstance(bounded, hk.KeepWindows) and not bounded.exact
    ways: list[Callable[[], object]] = [
        lambda: hk.KeepWindows("none", exact=False),  # type: ignore[call-arg]
        lambda: hk.KeepWindows("bounded"),  # type: ignore[arg-type]
        lambda: hk.KeepWindows("none", replay="bounded"),  # type: ignore[arg-type]
        lambda: dataclasses.replace(hk.KeepWindows.none(), exact=False),  # type: ignore[call-arg]
        lambda: setattr(hk.KeepWindows.none(), "exact", False),
    ]
    for way in ways:
        with pytest.raises((TypeError, hk.ArgumentError, dataclasses.FrozenInstanceError)):
            way()
    exact = [hk.KeepWindows.all(), hk.KeepWindows.every(4), hk.KeepWindows.none(), hk.KeepWindows("all")]
    for policy in exact:
        assert policy.exact and all(plan.exact for plan in policy.plans(small(), 100, [40]))


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: hk.KeepWindows("some"), "retain"),
        (lambda: hk.KeepWindows("every"), "every_tokens"),
        (lambda: hk.KeepWindows.every(0), "every_tokens"),
        (lambda: hk.KeepWindows("all", 4), "every_tokens"),
        (lambda: hk.KeepWindows("none"), "replay"),
        (lambda: hk.KeepWindows.none(replay="square"), "replay"),
        (lambda: hk.KeepWindows.all(ends=1), "ends"),
        (lambda: hk.KeepWindows.bounded(0), "tokens"),
        (lambda: hk.KeepWindows.bounded(ends=None), "ends"),
        (lambda: hk.KeepWindows.all().plans(small(), -1), "tokens"),
        (lambda: hk.KeepWindows.all().plans(small(), 8, [-1]), "boundaries"),
        (lambda: hk.KeepWindows.all().kept_bytes(small(), 1.5), "tokens"),
    ],
)
def test_bad_arguments_name_their_field(make: Callable[[], object], field: str) -> None:
    with pytest.raises(hk.ArgumentError) as caught:
        make()
    assert caught.value.field == field


def test_compressed_history_without_its_overlap_is_refused_by_every_policy() -> None:
    spec = spec_of("flash")
    without = hk.CacheSpec(128, [g for g in spec.groups if g.name != "overlap"])
    for policy in EVERY_POLICY:
        if policy != hk.KeepWindows.bounded(40, ends=False):  # too short for this model
            policy.check(spec)
        with pytest.raises(hk.SpecError, match="overlap"):
            policy.check(without)
        with pytest.raises(hk.SpecError, match="overlap"):
            policy.kept_bytes(without)
        with pytest.raises(hk.SpecError, match="overlap"):
            policy.kept(without, [])
        with pytest.raises(hk.SpecError, match="overlap"):
            policy.plans(without, 256)


def test_a_recurrent_state_is_kept_and_never_replayed() -> None:
    spec = hk.CacheSpec.from_config(CONFIGS / "qwen3-next-defaults.json", unit_tokens=64)
    recurrent = [g.name for g in spec.groups if g.kind is hk.StateKind.TAIL]
    plan = hk.KeepWindows.every(1024).plans(spec, 4096, [1024])[1]
    assert recurrent and all(plan.reads[name].blocks for name in recurrent)
    refused = [hk.KeepWindows.none(), hk.KeepWindows.every(1024, replay="layers"), hk.KeepWindows.bounded()]
    for policy in refused:
        with pytest.raises(hk.SpecError, match="kept checkpoints"):
            policy.check(spec)


def test_a_replay_that_a_group_declares_too_short_is_refused() -> None:
    spec = spec_of("flash")

    def declared(tokens: int | None) -> hk.CacheSpec:
        swa = dataclasses.replace(spec["swa"], rebuildable=True, replay_tokens=tokens)
        return hk.CacheSpec(128, [swa if g.name == "swa" else g for g in spec.groups])

    for enough in (None, 5_461, 6_000):
        hk.KeepWindows.none().check(declared(enough))
    with pytest.raises(hk.SpecError, match="at least 5461"):
        declared(5_460)  # whatever the policy: a match would replay it


# -- the document -----------------------------------------------------------------------------------


def table() -> list[str]:
    """The worked table of docs/windows.md."""
    spec, t = spec_of("flash"), 100_096
    cost = hk.CostModel({"disk": hk.Bandwidth(3e9)}, tokens_per_second=20_000)
    policies: list[tuple[str, hk.KeepWindows | ApproximateWindows, list[int]]] = [
        ("`all()`", hk.KeepWindows.all(), [t]),
        ("`every(4096)`", hk.KeepWindows.every(4096), [98_304]),
        ('`none()`, `"layers"`', hk.KeepWindows.none(), []),
        ('`none()`, `"triangular"`', hk.KeepWindows.none(replay="triangular"), []),
        ("`bounded()`", hk.KeepWindows.bounded(), []),
    ]
    rows = [
        "| policy | records, GB a million tokens | record read | tokens run again | layer-tokens | load, ms "
        "| computing, ms | exact |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for name, policy, records in policies:
        assert policy.kept(spec, [(r, False) for r in records]) == tuple(records)
        plan = policy.plans(spec, t, records)[-1]
        work = plan.replay.layer_tokens if plan.replay else (t - plan.tokens) * 43
        candidate = plan.candidate("disk", history="disk")
        took = cost.estimate(candidate, t, allow_approximate=True)
        assert took.load_s is not None and took.replay_s is not None and took.recompute_s is not None
        computing = took.replay_s + took.recompute_s
        rows.append(
            f"| {name} | {policy.kept_bytes(spec).states / 1e9:.2f} | {plan.record_bytes / MIB:.2f} MiB "
            f"| {t - plan.resume_tokens:,} | {work:,} | {1000 * took.load_s:.1f} | {1000 * computing:.1f} "
            f"| {'yes' if plan.exact else '**no**'} |"
        )
    return rows


def test_the_table_of_the_document_is_what_the_code_says() -> None:
    text = (ROOT / "docs" / "windows.md").read_text(encoding="utf-8")
    assert "\n".join(table()) in text, "\n" + "\n".join(table())
