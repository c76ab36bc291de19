# SPDX-License-Identifier: Apache-2.0
"""The plan's figures are the published ones, and its conclusions follow from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hybridkv as hk
from hybridkv import Checkpoint, Prefix, StateKind, Window
from hybridkv.planner import DISK_UNIT_BYTES, Answer, Fleet, Load, Place, Retention, homogeneous_spec, plan
from hybridkv.planner.break_even import break_even
from hybridkv.planner.homogeneous import cheapest_homogeneous, load_bytes
from hybridkv.planner.sizes import sizes_of, with_rows

CONFIGS = Path(__file__).resolve().parents[1] / "data" / "configs"
KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
DISK = Place("disk", 4 * TIB, hk.Bandwidth(3e9), 2e9, DISK_UNIT_BYTES)
TOKENS = 100_096


def config(name: str) -> Path:
    return CONFIGS / f"{name}.json"


def asked(name: str, load: Load | None = None, **more: Any) -> Answer:
    """The plan of a DeepSeek-V4 in the smallest unit it allows, over a disk of 3 GB/s."""
    said: dict[str, Any] = {"places": [DISK], "unit_tokens": 128, **more}
    return plan(config(name), 80 * GIB, load or Load(TOKENS, 8), **said)


def retained(answer: Answer, name: str) -> Retention:
    return next(one for one in answer.retentions if one.name == name)


# -- published figures: state sizes -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["deepseek-v4-flash", "deepseek-v4-pro"])
def test_rolling_rows_are_the_published_ones(name: str) -> None:
    tails = {one.name: one for one in asked(name).hybrid.sizes.tails}
    told = {key: (one.row_bytes, one.ring_rows, one.layer_bytes, one.live_rows) for key, one in tails.items()}
    assert told == {
        "pending csa": (8192, 8, 64 * KIB, "4 + t mod 4"),
        "pending indexer": (2048, 8, 16 * KIB, "4 + t mod 4"),
        "hca_tail hca": (4096, 128, 512 * KIB, "t mod 128"),
    }


@pytest.mark.parametrize(
    ("name", "fp8", "mxfp4", "window_token", "ratio", "window_mib", "csa_mib", "hca_mib", "overlap_kib"),
    [
        ("deepseek-v4-flash", 3850, 3514, 25_112, 6.5, 3.07, 1.64, 10.0, 420),
        ("deepseek-v4-pro", 5511, 5031, 35_624, 6.5, 4.35, 2.34, 15.5, 600),
    ],
)
def test_totals_are_the_published_ones(
    name: str,
    fp8: int,
    mxfp4: int,
    window_token: int,
    ratio: float,
    window_mib: float,
    csa_mib: float,
    hca_mib: float,
    overlap_kib: int,
) -> None:
    answer = asked(name)
    sizes = answer.hybrid.sizes
    assert int(sizes.bytes_per_token) == fp8
    small = asked(name, rows={"indexer": "indexer_mxfp4"}).hybrid.sizes
    assert int(small.bytes_per_token) == mxfp4
    assert sizes.window_bytes_per_token == window_token
    assert sizes.window_ratio is not None and round(sizes.window_ratio, 1) == ratio
    assert round(sizes.window_bytes / MIB, 2) == window_mib
    rings = {one.name: one.layer_bytes * one.layers / MIB for one in sizes.tails}
    assert round(rings["pending csa"] + rings["pending indexer"], 2) == csa_mib
    assert round(rings["hca_tail hca"], 1) == hca_mib
    assert sizes.ring_bytes == (rings["pending csa"] + rings["pending indexer"] + rings["hca_tail hca"]) * MIB
    boundary = {one.name: one.boundary_bytes for one in sizes.groups}
    assert boundary["overlap"] == overlap_kib * KIB
    assert sizes.boundary_bytes == sizes.window_bytes + overlap_kib * KIB
    assert sizes.by_kind["TAIL"].boundary_bytes == boundary["overlap"]
    assert sizes.by_kind["INDEXER"].bytes_per_token == answer.hybrid.sizes.groups[2].bytes_per_token


def engine_spec(
    layers: int, csa: int, hca: int, *, whole_rings: bool = True, first_halves: bool = False
) -> hk.CacheSpec:
    """An engine's own layout: windows in padded blocks of 64 tokens, rings of rolling rows in blocks of 4 and 8."""

    def rows(name: str, kind: StateKind, kept: int, block: int, page: int, count: int) -> hk.CacheGroup:
        return hk.CacheGroup(
            name, kind, Window(kept + 1), page_bytes=page, block_tokens=block, layers=range(count)
        )  # a ring of so many rows is kept as a window

    groups = [rows("swa", StateKind.WINDOW, 127, 64, 37_440, layers)]
    if first_halves:
        page = 20 * KIB
        groups.append(hk.CacheGroup("overlap", StateKind.TAIL, Checkpoint(), page_bytes=page, layers=range(csa)))
        return hk.CacheSpec(
            128, [replace(one, block_tokens=None) if one.name == "overlap" else widened(one) for one in groups]
        )
    kept = 8 if whole_rings else 4
    groups.append(rows("csa", StateKind.TAIL, kept, 4, 32_832, csa))
    groups.append(rows("csa_indexer", StateKind.TAIL, kept, 4, 8_640, csa))
    if whole_rings:
        groups.append(rows("hca", StateKind.TAIL, 128, 8, 32_832, hca))
    return hk.CacheSpec(4, groups)


def widened(group: hk.CacheGroup) -> hk.CacheGroup:
    """The same rows in one block of 128 tokens."""
    return replace(group, block_tokens=None, page_bytes=2 * group.page_bytes)


@pytest.mark.parametrize(
    ("layers", "csa", "hca", "blocks", "hca_state", "whole", "halves"),
    [(43, 21, 20, 14.75, 10.02, 3.90, 3.48), (61, 30, 31, 22.26, 15.53, 5.54, 4.94)],
)
def test_an_engines_own_layout_retains_the_published_bytes(
    layers: int, csa: int, hca: int, blocks: float, hca_state: float, whole: float, halves: float
) -> None:
    """A spec is planned as it is: three ways to keep a boundary of DeepSeek-V4, as three specs."""
    found = []
    for spec in (
        engine_spec(layers, csa, hca),
        engine_spec(layers, csa, hca, whole_rings=False),
        engine_spec(layers, csa, hca, first_halves=True),
    ):
        sizes = plan(spec, 80 * GIB, Load(4096)).hybrid.sizes
        found.append(round(sizes.boundary_bytes / MIB, 2))
        if len(found) == 1:
            state = next(one for one in sizes.groups if one.name == "hca")
            assert round(state.boundary_bytes / MIB, 2) == hca_state
    assert found == [blocks, whole, halves]


# -- published figures: three policies --------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "layers", "replayed", "token", "mib"),
    [("deepseek-v4-flash", 43, 5_504, 25_112, 3.07), ("deepseek-v4-pro", 61, 7_808, 35_624, 4.35)],
)
def test_the_three_policies_are_the_published_ones(
    name: str, layers: int, replayed: int, token: int, mib: float
) -> None:
    answer = asked(name)
    sizes = answer.hybrid.sizes
    overlap = sizes.boundary_bytes - sizes.window_bytes
    full = retained(answer, "every token")
    assert full.states_bytes_per_token == token + overlap / 128 and full.recompute_tokens == 0
    assert full.read_back_share < 0.002  # nearly all written bytes are never read back
    for period in (512, 2048, 8192):
        periodic = retained(answer, f"every({period})")
        assert periodic.recompute_tokens == period - 128  # to the last boundary; p - 1 where tokens are counted
        assert periodic.record_bytes == sizes.boundary_bytes
        assert round((periodic.record_bytes - overlap) / MIB, 2) == mib
        assert periodic.states_bytes_per_token == sizes.boundary_bytes / period
    zero = retained(answer, "none, replay")
    assert (zero.states_bytes_per_token, zero.record_bytes) == (0, 0)
    assert zero.recompute_tokens == replayed == 128 * layers
    assert zero.layer_tokens == replayed * layers and zero.exact
    half = retained(answer, "none, triangular")
    assert half.recompute_tokens == 127 * layers and half.exact and not half.chosen
    assert half.layer_tokens == 127 * layers * (layers + 1) // 2 and 0.5 < half.layer_tokens / zero.layer_tokens < 0.52
    bounded = retained(answer, "none, bounded")
    assert (bounded.recompute_tokens, bounded.exact, bounded.chosen) == (128, False, False)


def test_the_window_is_too_short_for_the_overlap_by_three_rows() -> None:
    """Running the 4 tokens before a boundary again reads window rows from 131 before it."""
    spec = hk.CacheSpec.from_config(config("deepseek-v4-flash"), unit_tokens=128)
    overlap, window = spec["overlap"], spec["swa"]
    assert overlap.rows_per_page == 4 and isinstance(window.coverage, Window)
    assert window.rows_per_page == 128 < overlap.rows_per_page + window.coverage.tokens - 1 == 131


def test_break_even_is_the_published_one() -> None:
    """A window of 3.07 MiB from 3 GB/s in 1.1 ms; a replay of 5,504 tokens at 20,000 a second in 275 ms."""
    answer = asked("deepseek-v4-flash")
    (one,) = answer.break_even
    assert round(1000 * DISK.read.seconds(answer.hybrid.sizes.window_bytes), 1) == 1.1
    assert one.replay_s is not None and round(1000 * one.replay_s) == 275
    assert round(1000 * one.record_s, 1) == 1.2  # with the overlap
    assert one.least_bytes_per_second == 3850.25 * 20_000
    assert one.pays and one.tokens == TOKENS


@pytest.mark.parametrize("name", ["deepseek-v4-flash", "gemma-3-12b-it", "jamba-1.5-mini", "llama-3.1-8b"])
@pytest.mark.parametrize("speed", [1e8, 1e9, 3e9, 5e10])
def test_the_least_length_is_where_restoring_becomes_quicker(name: str, speed: float) -> None:
    spec = hk.CacheSpec.from_config(config(name))
    place = Place("disk", TIB, hk.Bandwidth(speed, 0.002))
    cost = hk.CostModel({"disk": place.read}, tokens_per_second=20_000)
    least = break_even(spec, place, cost, 8192).least_tokens
    assert (least is None) == (spec.bytes_per_token * 20_000 >= speed)
    if least is not None:
        assert break_even(spec, place, cost, least + 1).pays  # bytes are whole, so that one token more is beyond doubt
        assert least < 3 or not break_even(spec, place, cost, least - 2).pays


# -- the two designs --------------------------------------------------------------------------------


def test_one_lifetime_keeps_every_row_and_a_state_a_block() -> None:
    spec = hk.CacheSpec.from_config(config("deepseek-v4-flash"), unit_tokens=256)
    twin = homogeneous_spec(spec)
    assert sizes_of(spec, 4096, 4096).window_bytes_per_token == 25_112  # a page has half the rows of its block
    assert [group.name for group in twin.groups] == ["kv", "live"]
    assert twin.bytes_per_token == 3850.25 + 25_112 + 430_080 / 256
    live = sum(spec[name].total_page_bytes for name in ("pending", "hca_tail"))
    assert twin["live"].total_page_bytes == live and twin.boundary_bytes == {"live": 0}
    gemma = hk.CacheSpec.from_config(config("gemma-3-12b-it"), unit_tokens=64)
    assert homogeneous_spec(gemma).bytes_per_token == 48 * 8192
    assert homogeneous_spec(gemma)["kv"].parts == {"kv": 8 * 8192 * 64, "swa": 40 * 8192 * 64}


def test_the_homogeneous_block_is_the_one_that_suits_it() -> None:
    """Where states are kept for every block larger blocks have fewer; where none are the smallest is as good."""
    load = Load(32_768, 8)
    jamba = hk.CacheSpec.from_config(config("jamba-1.5-mini"), unit_tokens=16)
    best = cheapest_homogeneous(jamba, load, 8)
    assert best.unit_tokens == 2048
    assert load_bytes(best, load, 8) < load_bytes(homogeneous_spec(jamba), load, 8) / 10
    llama = hk.CacheSpec.from_config(config("llama-3.1-8b"), unit_tokens=16)
    assert cheapest_homogeneous(llama, load, 8).unit_tokens == 16


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3", "mistral-nemo-base-2407"])
def test_a_model_that_keeps_history_alone_is_homogeneous(name: str) -> None:
    answer = plan(config(name), 80 * GIB, Load(32_768, 4))
    assert answer.is_homogeneous and answer.advice[0].choice == "homogeneous"
    assert answer.hybrid.load_bytes == answer.homogeneous.load_bytes
    assert answer.hybrid.capacity.cap == answer.homogeneous.capacity.cap > 0
    assert answer.retention is None and answer.retentions == ()


@pytest.mark.parametrize(
    ("context", "choice"), [(512, "homogeneous"), (1024, "homogeneous"), (8192, "hybrid"), (131_072, "hybrid")]
)
def test_a_window_that_holds_the_whole_context_is_no_reason_for_a_hybrid_cache(context: int, choice: str) -> None:
    """Gemma's windows are 1,024 tokens: below that nothing ever slides out."""
    answer = plan(config("gemma-3-12b-it"), 80 * GIB, Load(context, 4))
    assert not answer.is_homogeneous
    assert answer.advice[0].topic == "design" and answer.advice[0].choice == choice
    assert (answer.hybrid.load_bytes <= 0.95 * answer.homogeneous.load_bytes) == (choice == "hybrid")


# -- units, policies --------------------------------------------------------------------------------


def test_the_unit_is_the_smallest_that_costs_little() -> None:
    answer = plan(config("deepseek-v4-flash"), 80 * GIB, Load(131_072, 8))
    by_unit = {one.unit_tokens: one for one in answer.units}
    assert list(by_unit) == [128, 256, 512, 1024, 2048]  # one HCA entry stands for 128 tokens
    assert answer.unit.unit_tokens == 256  # a window of 128 is live there: a page, and not one a block
    assert by_unit[128].request_bytes > 2 * by_unit[256].request_bytes
    few = plan(config("deepseek-v4-flash"), 80 * GIB, Load(131_072, 8, step_tokens=128))
    assert few.unit.unit_tokens == 128
    assert plan(config("llama-3.1-8b"), 80 * GIB, Load(8192)).unit.unit_tokens == 16
    nano = plan(config("nemotron-3-nano-30b-a3b"), 80 * GIB, Load(8192))
    assert nano.unit.fill_share <= 0.03 < nano.units[0].fill_share  # 16 tokens of it are 96 KiB, and 4 KiB of envelope


def test_a_unit_is_not_chosen_where_too_much_of_a_prefix_is_lost() -> None:
    short = plan(config("gemma-3-12b-it"), 80 * GIB, Load(4096))
    assert short.unit.lost_tokens <= 0.05 * 4096
    cheapest = min(short.units, key=lambda one: one.request_bytes)
    assert cheapest.unit_tokens > short.unit.unit_tokens


def test_the_policy_is_the_quickest_that_is_worth_its_bytes() -> None:
    answer = asked("deepseek-v4-flash")
    chosen = answer.retention
    assert chosen is not None and chosen.exact and chosen.fits and chosen.expected_s == chosen.mean_s
    times = {one.name: one.expected_s for one in answer.retentions if one.expected_s is not None and one.fits}
    most = 1.05 * min(times.values())
    assert times[chosen.name] <= most
    for one in answer.retentions:
        if one.name in times and one.prefix_bytes < chosen.prefix_bytes and one.name != "none, triangular":
            assert times[one.name] > most


def test_what_there_is_no_room_for_is_counted_as_computed() -> None:
    load = Load(TOKENS, 8)
    plenty, scarce = (asked("deepseek-v4-flash", load, fleet=Fleet(1, prefixes)) for prefixes in (2_000, 100_000))
    a, b = retained(plenty, "all()"), retained(scarce, "all()")
    assert a.mean_s == b.mean_s and a.share > b.share
    computed = TOKENS / 20_000
    assert b.mean_s is not None and b.expected_s == pytest.approx(b.share * b.mean_s + (1 - b.share) * computed)
    assert scarce.retention is not None and scarce.retention.name == "ends, replay"
    assert plenty.retention is not None and plenty.retention.prefix_bytes > scarce.retention.prefix_bytes
    assert {one.topic for one in scarce.advice if one.warning} == {"states", "layers", "fleet"}


def test_a_disk_that_writes_slowly_keeps_fewer_states() -> None:
    load = Load(TOKENS, 8, requests_per_second=2, prefixes=1_000)
    slow, fast = (
        asked("deepseek-v4-flash", load, places=[replace(DISK, write_bytes_per_second=speed)]) for speed in (5e8, 5e10)
    )
    assert fast.retention is not None and slow.retention is not None
    assert slow.retention.write_bytes * 2 <= 5e8 * 1.05 < fast.retention.write_bytes * 2
    busy = slow.layering.traffic[0]
    assert busy.write_bytes == slow.retention.write_bytes
    assert busy.write_share == pytest.approx(2 * busy.write_bytes / 5e8)


def test_a_recurrent_state_is_never_replayed() -> None:
    answer = plan(config("jamba-1.5-mini"), 80 * GIB, Load(8192), places=[DISK])
    assert not any("replay" in one.name or "triangular" in one.name for one in answer.retentions)
    assert answer.break_even[0].replay_s is None


@pytest.mark.parametrize(("speed", "choice"), [(1e9, "recompute"), (1e10, "restore")])
def test_a_disk_slower_than_computing_is_not_recommended(speed: float, choice: str) -> None:
    """Llama's 128 KiB a token at 20,000 tokens a second: 2.6 GB/s is where it turns."""
    place = Place("disk", 4 * TIB, hk.Bandwidth(speed))
    answer = plan(config("llama-3.1-8b"), 80 * GIB, Load(32_768), places=[place])
    told = next(one for one in answer.advice if one.topic == "disk")
    assert told.choice == choice and told.warning == (choice == "recompute")
    assert answer.break_even[0].least_bytes_per_second == 131_072 * 20_000


# -- a million tokens, a fleet ----------------------------------------------------------------------


def test_a_million_tokens_follow_from_the_same_formulas() -> None:
    answer = asked("deepseek-v4-pro", Load(2**20, 1))
    last = answer.lengths[-1]
    assert last.tokens == 2**20 and round(last.history_bytes / GIB, 2) == 5.38
    spec = hk.CacheSpec.from_config(config("deepseek-v4-pro"), unit_tokens=128)
    assert last.request_bytes == answer.hybrid.capacity.request_bytes
    assert last.history_bytes == sum(spec[name].total_page_bytes * 2**20 // 128 for name in ("csa", "hca", "indexer"))
    assert last.recompute_s == 2**20 / 20_000
    assert last.restore_s == (last.history_bytes + answer.hybrid.sizes.boundary_bytes) / 3e9
    assert [one.tokens for one in asked("deepseek-v4-flash", Load(5000)).lengths] == [
        5000,
        8192,
        32_768,
        131_072,
        2**20,
    ]


def test_a_fleet_is_its_hosts() -> None:
    load = Load(32_768, 8)
    routed = asked("deepseek-v4-flash", load, fleet=Fleet(16, 100_000))
    each = routed.fleet.prefixes_of_a_host
    assert each == 6_250 and routed.fleet.requests == 16 * routed.hybrid.capacity.cap
    alone = asked("deepseek-v4-flash", replace(load, prefixes=6_250))
    assert alone.layering == routed.layering
    for layer in routed.layering.layers:
        if layer.holds == "kept prefixes":
            assert routed.fleet.bytes[layer.place] == 16 * layer.bytes
    needed = routed.fleet.hosts_needed
    assert needed is not None
    enough = asked("deepseek-v4-flash", load, fleet=Fleet(needed, 100_000))
    fewer = asked("deepseek-v4-flash", load, fleet=Fleet(max(1, needed - 1), 100_000))
    room = routed.fleet.room_of_a_host
    assert needed * room >= 100_000 > (needed - 1) * room
    assert enough.layering.homeless == 0 and enough.fleet.hosts == needed and fewer.fleet.hosts < needed


def test_hosts_that_all_keep_all_need_room_for_all() -> None:
    load = Load(32_768, 8)
    spread = asked("deepseek-v4-flash", load, fleet=Fleet(16, 1_000_000, routed=False))
    assert spread.fleet.prefixes_of_a_host == 1_000_000 and spread.fleet.hosts_needed is None
    assert spread.layering.homeless > 0
    told = next(one for one in spread.advice if one.topic == "fleet")
    assert told.warning and told.choice == "route requests by prefix"


def test_prefixes_fill_the_places_from_the_fastest_down() -> None:
    host = Place("host", 64 * GIB, hk.Bandwidth(5e10))
    load = Load(32_768, 8, prefixes=20_000, requests_per_second=1.0)
    answer = plan(config("deepseek-v4-flash"), 40 * GIB, load, places=[host, DISK])
    kept = [one for one in answer.layering.layers if one.holds == "kept prefixes"]
    assert [one.place for one in kept] == ["pools", "host", "disk"]
    assert sum(one.number for one in kept) + answer.layering.homeless == 20_000
    assert kept[0].number == answer.hybrid.capacity.kept_prefixes
    assert kept[1].share is not None and 0.9 < kept[1].share <= 1  # full before the disk gets any
    shares = [one.hit_share for one in answer.layering.traffic]
    assert shares == [one.number / 20_000 for one in kept[1:]]
    for one, where in zip(answer.layering.traffic, kept[1:], strict=True):
        assert one.read_bytes_per_second == pytest.approx(where.number / 20_000 * one.read_bytes)


# -- as data ----------------------------------------------------------------------------------------


def test_the_answer_is_plain_data() -> None:
    answer = asked("deepseek-v4-flash", fleet=Fleet(4, 5_000))
    document = answer.to_dict()
    assert document["schema"] == "hybridkv.plan/1"
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["hybrid"]["sizes"]["groups"][0]["name"] == "csa"
    assert [one["topic"] for one in document["advice"]] == [one.topic for one in answer.advice]


def test_a_spec_is_planned_as_it_is() -> None:
    history = hk.CacheGroup("history", StateKind.COMPRESSED, Prefix(), page_bytes=4096, layers=range(8))
    window = hk.CacheGroup("window", StateKind.WINDOW, Window(128), page_bytes=65536, layers=range(8))
    spec = hk.CacheSpec(128, [history, window], identity=hk.Identity(model="mine"))
    answer = plan(spec, GIB, Load(4096, 2))
    assert answer.question.model == "mine" and answer.question.most_tokens is None
    assert [one.unit_tokens for one in answer.units] == [128]
    assert answer.hybrid.sizes == sizes_of(spec, 4096, 4096)
    with pytest.raises(hk.ArgumentError) as refused:
        plan(spec, GIB, Load(4096), unit_tokens=64)
    assert refused.value.field == "unit_tokens"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def test_every_model_that_is_known_is_planned(path: Path) -> None:
    answer = plan(path, 80 * GIB, Load(2048, 4), places=[DISK])
    assert answer.hybrid.capacity.cap >= 4 and answer.advice[0].topic == "design"
    assert sum(one.chosen for one in answer.units) == 1
    assert sum(one.chosen for one in answer.retentions) == (1 if answer.retentions else 0)


BAD: Sequence[tuple[dict[str, Any], str]] = [
    ({"memory_bytes": 0}, "memory_bytes"),
    ({"memory_bytes": -1}, "memory_bytes"),
    ({"memory_bytes": 1.5}, "memory_bytes"),
    ({"memory_bytes": "80"}, "memory_bytes"),
    ({"load": 8192}, "load"),
    ({"load": Load(2**20 + 1)}, "context_tokens"),
    ({"places": ["disk"]}, "places"),
    ({"places": [DISK, DISK]}, "places"),
    ({"tokens_per_second": 0}, "tokens_per_second"),
    ({"tokens_per_second": float("nan")}, "tokens_per_second"),
    ({"fleet": 16}, "fleet"),
    ({"dtype": "int3"}, "dtype"),
    ({"unit_tokens": 0}, "unit_tokens"),
    ({"model": {"model_type": "gpt9"}}, "model_type"),
    ({"model": 7}, "config"),
    ({"model": "no/such/config.json"}, "config"),
    ({"rows": {"csa": "no_rows"}}, "rows"),
    ({"rows": {"overlap": "indexer_fp8"}}, "rows"),
    ({"rows": {"kv": "indexer_fp8"}}, "group"),
]


@pytest.mark.parametrize(("change", "field"), BAD)
def test_bad_input_is_named(change: dict[str, Any], field: str) -> None:
    said: dict[str, Any] = {"model": config("deepseek-v4-flash"), "memory_bytes": 80 * GIB, "load": Load(8192)}
    with pytest.raises(hk.HybridKVError) as refused:
        plan(**{**said, **change})
    assert refused.value.field == field


def test_rows_of_another_format_change_that_group_alone() -> None:
    spec = hk.CacheSpec.from_config(config("deepseek-v4-flash"))
    small = with_rows(spec, "indexer", "indexer_mxfp4")
    assert small["indexer"].row_bytes == 68
    assert [one for one in small.groups if one.name != "indexer"] == [
        one for one in spec.groups if one.name != "indexer"
    ]
