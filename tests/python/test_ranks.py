# SPDX-License-Identifier: Apache-2.0
"""Ranks of one model: the same keys, the same sizes, other bytes. Records of one are never read as another's."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

import hybridkv as hk
from hybridkv.doctor import cache_facts
from hybridkv.formats import Agreement, Manifest, RankGeometry, Refusal, negotiate
from hybridkv.record_formats import record_formats
from tier_sides import Side, in_another_process, opened, version


def ranked(**ranks: int) -> hk.CacheSpec:
    return version(ranks=RankGeometry(**ranks))


# ---- what a geometry is ------------------------------------------------------------------------


def test_one_rank_is_the_default() -> None:
    assert RankGeometry().alone and hk.CacheSpec.homogeneous(2, 64).ranks == RankGeometry()
    assert not RankGeometry(tp=2).alone and not RankGeometry(dcp_interleave=4).alone


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"tp": 0}, "tp"),
        ({"tp": 2, "tp_rank": 2}, "tp_rank"),
        ({"pp_rank": 1}, "pp_rank"),
        ({"dcp": 4, "dcp_rank": -1}, "dcp_rank"),
        ({"dcp_interleave": 0}, "dcp_interleave"),
        ({"tp": 2, "tp_rank": True}, "tp_rank"),
        ({"tp": 2, "tp_rank": "0"}, "tp_rank"),
    ],
)
def test_a_rank_that_is_none_is_refused(given: dict[str, Any], field: str) -> None:
    with pytest.raises(hk.SpecError) as caught:
        RankGeometry(**given)
    assert caught.value.field == f"manifest.ranks.{field}"


def test_a_spec_wants_a_geometry() -> None:
    with pytest.raises(hk.SpecError, match="ranks"):
        replace(version(), ranks={"tp": 2})  # type: ignore[arg-type]


# ---- fingerprints ------------------------------------------------------------------------------


def test_records_of_one_rank_have_the_names_that_they_always_had() -> None:
    """Golden: what stores of before hold is found still, and so it is with a geometry of one rank that is declared."""
    spec = hk.CacheSpec(
        16,
        [
            hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64),
            hk.CacheGroup("swa", hk.StateKind.WINDOW, hk.Window(32), page_bytes=64),
        ],
    )
    golden = ("e960b16bf0fb0687dad7201fc1f44a1a", "45f2ed47b805cf81421326db0d2cead7")  # of record layout 3
    assert tuple(record.hex() for record in record_formats(spec)) == golden
    assert record_formats(replace(spec, ranks=RankGeometry(tp=1, tp_rank=0))) == record_formats(spec)
    assert Manifest.of(spec).fingerprint.hex() == "113a98e86848ba5b1504cb28a5f77afa"
    assert json.loads(Manifest.of(spec).to_bytes())["ranks"] == {"tp": 1, "pp": 1, "dcp": 1, "dcp_interleave": 1}


def test_every_rank_of_every_geometry_has_names_of_its_own() -> None:
    geometries = [
        RankGeometry(),
        *(RankGeometry(tp=tp, tp_rank=r) for tp in (2, 4) for r in range(tp)),
        *(RankGeometry(pp=pp, pp_rank=r) for pp in (2, 4) for r in range(pp)),
        *(RankGeometry(dcp=dcp, dcp_rank=r) for dcp in (2, 4) for r in range(dcp)),
        *(RankGeometry(dcp=2, dcp_rank=r, dcp_interleave=8) for r in range(2)),
        RankGeometry(dcp_interleave=8),
        *(RankGeometry(tp=2, pp=2, dcp=2, **{f"{axis}_rank": 1}) for axis in ("tp", "pp", "dcp")),
    ]
    for kind in (0, 1):
        assert len({record_formats(version(ranks=ranks))[kind] for ranks in geometries}) == len(geometries)


def test_tensor_ranks_decide_nothing_of_what_is_replicated() -> None:
    def of(shard: str, **ranks: int) -> tuple[bytes, bytes]:
        return record_formats(version(shard=shard, ranks=RankGeometry(**ranks)))

    alone = of("replicated")
    assert of("replicated", tp=8, tp_rank=5) == alone
    assert of("heads", tp=8, tp_rank=5) != of("heads", tp=8, tp_rank=4) != of("heads")
    for axis in ("pp", "dcp"):  # other layers, other tokens
        assert len({alone, of("replicated", **{axis: 2}), of("replicated", **{axis: 2, f"{axis}_rank": 1})}) == 3


def mixed(**ranks: int) -> hk.CacheSpec:
    """History that every tensor rank has whole, and windows of its own heads."""
    history = hk.CacheGroup(
        "kv",
        hk.StateKind.COMPRESSED,
        hk.Prefix(),
        page_bytes=64,
        format=hk.KvFormat("rows", "bfloat16", shard="replicated"),
    )
    window = hk.CacheGroup("swa", hk.StateKind.WINDOW, hk.Window(16), page_bytes=64)
    return hk.CacheSpec(16, [history, window], identity=hk.Identity("m"), ranks=RankGeometry(**ranks))


def test_of_a_mix_history_is_shared_and_boundaries_are_not() -> None:
    (block, boundary), (other_block, other_boundary) = (record_formats(mixed(tp=2, tp_rank=r)) for r in (0, 1))
    assert block == other_block == record_formats(mixed())[0] and boundary != other_boundary


# ---- two sides ---------------------------------------------------------------------------------


def test_positions_are_compared() -> None:
    ours = Manifest.of(ranked(tp=2, pp=2, dcp=2))
    for name in ("tp_rank", "pp_rank", "dcp_rank"):
        told = negotiate(ours, Manifest.of(ranked(tp=2, pp=2, dcp=2, **{name: 1})))
        assert isinstance(told, Refusal) and told.because == f"ranks.{name}"
        assert (told.differences[0].ours, told.differences[0].theirs) == (0, 1)
    assert isinstance(negotiate(ours, Manifest.of(ranked(tp=2, pp=2, dcp=2))), Agreement)


def test_tensor_ranks_of_replicated_groups_agree() -> None:
    one, other = (Manifest.of(version(shard="replicated", ranks=RankGeometry(tp=2, tp_rank=r))) for r in (0, 1))
    told = negotiate(one, other)
    assert isinstance(told, Agreement) and told.exact
    assert [(d.where, d.severity) for d in told.differences] == [("ranks.tp_rank", "cosmetic")]
    assert isinstance(negotiate(Manifest.of(mixed(tp=2)), Manifest.of(mixed(tp=2, tp_rank=1))), Refusal)


def test_a_manifest_says_which_rank_it_is_of() -> None:
    made = Manifest.of(ranked(tp=4, tp_rank=3))
    assert made.ranks == RankGeometry(tp=4, tp_rank=3) and Manifest.from_bytes(made.to_bytes()) == made
    assert Manifest.of(version(), ranks=made.ranks) == made, "its records are those of that rank"
    document = json.loads(made.to_bytes())
    for name in ("tp_rank", "pp_rank", "dcp_rank"):  # a manifest of before they were told
        del document["ranks"][name]
    assert Manifest.from_bytes(json.dumps(document).encode()).ranks == RankGeometry(tp=4)
    for wrong in ({"tp_rank": 4}, {"tp": 2}, {"more": 1}):
        with pytest.raises(hk.SpecError, match=r"manifest\.ranks"):
            Manifest.from_bytes(json.dumps(document | {"ranks": document["ranks"] | {"tp_rank": 3} | wrong}).encode())


def test_a_cache_declares_the_ranks_of_its_spec() -> None:
    cache = hk.HybridCache(ranked(tp=2, tp_rank=1), blocks=8)
    assert cache.manifest.ranks == RankGeometry(tp=2, tp_rank=1)
    cache.update_identity(hk.Identity("m", weights="r2"), on_change="flush")
    assert cache.spec.ranks == RankGeometry(tp=2, tp_rank=1)
    cache.close()


# ---- stores ------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", ["tp", "pp", "dcp"])
def test_the_store_of_another_rank_is_no_hit_and_says_why(tmp_path: Path, axis: str) -> None:
    """Same spec, same keys, same sizes: a restart with the directories of two ranks exchanged is no false hit."""
    first, second = ranked(**{axis: 2}), ranked(**{axis: 2, f"{axis}_rank": 1})
    with opened(tmp_path) as tier, Side(first, tier) as side:
        side.write(1)
    with opened(tmp_path) as tier, Side(second, tier) as side:
        verdict = side.look()
        assert (verdict.outcome, verdict.usable_tokens) == (hk.Outcome.FALSE_HIT, 0)
        assert verdict.why is not None and verdict.why.check is hk.Check.ABI
        assert verdict.remedy is hk.Remedy.RECOMPUTE
        assert side.skew == {f"ranks.{axis}_rank": 1}
        side.write(2)
        assert side.read() == 2
    with opened(tmp_path) as tier, Side(first, tier) as side:
        assert side.read() == 1, "each its own, beside the other's"


def test_another_process_of_another_rank(tmp_path: Path) -> None:
    code = "with Side(version(ranks=RankGeometry(tp=2, tp_rank={})), tier) as side: {}"
    look = "print(side.look().outcome.name, side.skew)"
    in_another_process(tmp_path / "s", code.format(0, "side.write(1)"))
    assert in_another_process(tmp_path / "s", code.format(1, look)).strip() == "FALSE_HIT {'ranks.tp_rank': 1}"
    assert in_another_process(tmp_path / "s", code.format(0, "print(side.read())")).strip() == "1"


def test_another_number_of_ranks_is_no_hit(tmp_path: Path) -> None:
    with opened(tmp_path) as tier, Side(ranked(), tier) as side:
        side.write(1)
    with opened(tmp_path) as tier, Side(ranked(tp=2), tier) as side:
        assert side.look().outcome is hk.Outcome.FALSE_HIT and side.skew == {"ranks.tp": 1}
    with opened(tmp_path) as tier, pytest.raises(hk.TierError, match=r"ranks\.tp"):
        Side(ranked(tp=2), tier, tier_skew="refuse")


def test_what_is_replicated_is_a_hit_on_every_tensor_rank(tmp_path: Path) -> None:
    first, second = (version(shard="replicated", ranks=RankGeometry(tp=2, tp_rank=r)) for r in (0, 1))
    with opened(tmp_path) as tier, Side(first, tier) as side:
        side.write(5)
    with opened(tmp_path) as tier, Side(second, tier, tier_skew="refuse") as side:
        assert side.look().remedy is hk.Remedy.RESTORE and side.read() == 5 and side.skew == {}


def test_of_a_mix_history_is_found_and_windows_are_not(tmp_path: Path) -> None:
    """The other rank's history is read; no length is usable without the own windows, and none is made of others'."""
    with opened(tmp_path) as tier, Side(mixed(tp=2), tier) as side:
        side.write(7)
    with opened(tmp_path) as tier, Side(mixed(tp=2, tp_rank=1), tier) as side:
        verdict = side.look()
        assert (verdict.outcome, verdict.matched_tokens, verdict.usable_tokens) == (hk.Outcome.FALSE_HIT, 64, 0)
        assert verdict.remedy is hk.Remedy.RECOMPUTE and side.skew == {"ranks.tp_rank": 1}
        side.write(8)
        assert side.read() == 7, "history of the other rank, whose bytes are equal"
        assert side.pools["swa"].max() == 8 and 7 not in side.pools["swa"]


@pytest.mark.parametrize("made", [lambda: hk.MemoryTier(1 << 20)])
def test_it_is_so_in_any_tier(made: Any) -> None:
    with made() as tier:
        with Side(ranked(tp=2), tier) as side:
            side.write(1)
        with Side(ranked(tp=2, tp_rank=1), tier) as side:
            assert side.look().outcome is hk.Outcome.FALSE_HIT and side.skew == {"ranks.tp_rank": 1}


# ---- doctor ------------------------------------------------------------------------------------


def facts(spec: hk.CacheSpec) -> dict[str, Any]:
    cache = hk.HybridCache(spec, blocks=8)
    told = cache_facts(cache)
    cache.close()
    return told


def test_facts_of_a_cache_name_its_rank() -> None:
    assert facts(ranked(tp=2, tp_rank=1))["manifest"]["ranks"] == asdict(RankGeometry(tp=2, tp_rank=1))
