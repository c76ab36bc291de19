# SPDX-License-Identifier: Apache-2.0
"""Two sides compared: every difference told at once, conversions where there are some, and where it must run."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridkv as hk
from hybridkv.formats import REGISTRY, Agreement, Manifest, RankGeometry, Refusal, negotiate
from hybridkv.formats.manifest import MOST_BYTES
from tier_sides import Side, version

ROWS = REGISTRY["indexer_fp8"]


def spec(
    *, unit: int = 64, block: int = 64, made: Any = ROWS.format, more: tuple[hk.CacheGroup, ...] = (), **identity: Any
) -> hk.CacheSpec:
    """History of indexer rows in pages of as many rows as the block has tokens, and a window."""
    paged = made if made is not ROWS.format else ROWS.paged(block)
    history = hk.CacheGroup(
        *("history", hk.StateKind.COMPRESSED, hk.Prefix()),
        page_bytes=block * 132, row_bytes=132, rows_per_page=block, block_tokens=block, layers=(0, 1), format=paged,
    )  # fmt: skip
    window = hk.CacheGroup("window", hk.StateKind.WINDOW, hk.Window(33), page_bytes=32 * 64)
    return hk.CacheSpec(unit, [history, window, *more], identity=hk.Identity("m", **identity))


def told(ours: hk.CacheSpec, theirs: hk.CacheSpec, **more: Any) -> Agreement | Refusal:
    return negotiate(Manifest.of(ours), Manifest.of(theirs, **more))


def refused(ours: hk.CacheSpec, theirs: hk.CacheSpec, **more: Any) -> dict[str, hk.formats.Difference]:
    found = told(ours, theirs, **more)
    assert isinstance(found, Refusal)
    assert found.because == found.differences[0].where and found.differences[0].reason
    return {d.where: d for d in found.differences}


def test_equal_sides_agree() -> None:
    found = told(spec(), spec())
    assert isinstance(found, Agreement) and found.exact and found.differences == ()
    assert negotiate(spec(), spec()) == found
    salted = told(spec(salt=b"a"), spec(salt=b"b"))
    assert isinstance(salted, Agreement), "a salt is told to nobody"


def test_all_differences_are_told_at_once_those_in_the_way_first() -> None:
    draft = hk.CacheGroup("draft", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64)
    other = REGISTRY["indexer_fp8_hadamard"].format
    found = refused(
        spec(),
        spec(unit=32, made=replace(other, theta=1.0, producer="x"), more=(draft,), weights="r2"),
        ranks=RankGeometry(tp=2, pp=2, dcp=2, dcp_interleave=4),
        draft=["draft"],
    )
    assert set(found) == {
        *("unit_tokens", "identity.weights", "ranks.tp", "ranks.pp", "ranks.dcp", "ranks.dcp_interleave"),
        *("groups['history'].format.hadamard", "groups['history'].format.theta", "groups['history'].format.producer"),
        *("groups['draft'].group", "groups['window'].block_tokens"),
    }
    assert (found["groups['draft'].group"].ours, found["groups['draft'].group"].theirs) == (None, "draft")
    assert list(found)[-1] == "groups['history'].format.producer", "cosmetic ones stand last"
    assert str(found["ranks.tp"]) == "ranks.tp: ours 1, theirs 2 (incompatible): a rank holds another share"


def test_versions_of_keys_and_records_are_compared() -> None:
    own = Manifest.of(spec())
    for name in ("key_profile", "record_layout"):
        found = negotiate(own, replace(own, **{name: 9}))
        assert isinstance(found, Refusal) and found.because == name


@pytest.mark.parametrize("changed", [{"kind": 3}, {"coverage": (2, 64)}, {"layers": (0, 2)}, {"draft": True}])
def test_another_group_under_the_same_name(changed: dict[str, Any]) -> None:
    own = Manifest.of(spec())
    found = negotiate(own, replace(own, groups=(replace(own.groups[0], **changed), own.groups[1])))
    assert isinstance(found, Refusal) and found.because == f"groups['history'].{next(iter(changed))}"


def test_FC_094_one_side_drafts() -> None:
    """The list of groups is part of what is compared, and so is which of them are a draft's."""
    draft = hk.CacheGroup("draft", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64)
    assert set(refused(spec(), spec(more=(draft,)))) == {"groups['draft'].group"}
    assert set(refused(spec(more=(draft,)), spec())) == {"groups['draft'].group"}
    assert set(refused(spec(more=(draft,)), spec(more=(draft,)), draft=["draft"])) == {"groups['draft'].draft"}


def test_FC_095_blocks_must_divide_one_another_both_ways() -> None:
    """Blocks of 16 here and 32 there, refused or converted at start, whichever side is the larger."""
    plain = spec(unit=16, block=16, made=None), spec(unit=16, block=32, made=None), spec(unit=16, block=48, made=None)
    for ours, theirs in (plain[:2], plain[1::-1]):
        found = refused(ours, theirs)["groups['history'].block_tokens"]
        assert found.severity == "convertible" and found.reason == "no format is declared"
    for ours, theirs in (plain[1:], plain[:0:-1]):
        found = refused(ours, theirs)["groups['history'].block_tokens"]
        assert (found.severity, found.reason) == ("incompatible", "neither block divides the other")
    for ours, theirs in ((16, 32), (32, 16)):
        agreed = told(spec(unit=16, block=ours), spec(unit=16, block=theirs))
        assert isinstance(agreed, Agreement) and not agreed.exact
        plan = agreed.conversions["history"]
        assert [step.name for step in plan.steps] == ["pages", "strides"]
        assert (plan.source.page_rows, plan.target.page_rows) == (theirs, ours)
    found = refused(spec(unit=16, block=32), spec(unit=16, block=48))
    assert found["groups['history'].block_tokens"].reason == "neither block divides the other"


def test_a_block_of_a_window_is_another_boundary() -> None:
    def windows(block: int) -> hk.CacheSpec:
        window = hk.CacheGroup("w", hk.StateKind.WINDOW, hk.Window(9), page_bytes=8 * 64, block_tokens=block)
        return hk.CacheSpec(16, [window])

    found = refused(windows(16), windows(32))
    assert found["groups['w'].block_tokens"].reason == "states and windows are kept at other lengths"


def test_tensor_ranks_change_nothing_where_everything_is_replicated() -> None:
    made = replace(ROWS.paged(64), shard="replicated")
    group = hk.CacheGroup("h", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64 * 132, format=made)
    own = hk.CacheSpec(64, [group])
    found = told(own, own, ranks=RankGeometry(tp=8))
    assert isinstance(found, Agreement) and [d.severity for d in found.differences] == ["cosmetic"]
    assert set(refused(own, own, ranks=RankGeometry(tp=8, pp=2))) == {"ranks.tp", "ranks.pp"}
    assert set(refused(spec(), spec(), ranks=RankGeometry(tp=8))) == {"ranks.tp"}


def test_a_declared_and_an_undeclared_format() -> None:
    found = refused(spec(), spec(made=None))
    assert found["groups['history'].format"].reason == "one side declares no format"


def test_what_nothing_converts_is_refused() -> None:
    found = refused(spec(), spec(made=REGISTRY["indexer_fp8_page8"].format))
    assert found["groups['history'].format.row_order"].reason == "no converter for row_order"


# ---- as bytes ------------------------------------------------------------------------------------


def own_manifest() -> Manifest:
    draft = hk.CacheGroup(
        *("draft", hk.StateKind.TAIL, hk.Checkpoint()), page_bytes=64, layers=("a", "b"), parts={"x": 64, "y": 64}
    )
    return Manifest.of(spec(more=(draft,)), ranks=RankGeometry(tp=4), draft=["draft"])


def test_bytes_are_read_as_they_were_written() -> None:
    own = own_manifest()
    data = own.to_bytes()
    again = Manifest.from_bytes(data)
    assert again == own and again.to_bytes() == data and again.fingerprint == own.fingerprint
    assert isinstance(negotiate(own, again), Agreement) and data.isascii()


def test_no_salt_and_no_name_of_an_identity_leaves() -> None:
    data = Manifest.of(spec(salt=b"secret-salt", weights="secret-weights")).to_bytes()
    assert b"secret" not in data and b"secret".hex().encode() not in data
    assert Manifest.of(spec(salt=b"x")).to_bytes() == Manifest.of(spec()).to_bytes()


def _changed(path: list[Any], value: Any) -> bytes:
    document = json.loads(own_manifest().to_bytes())
    inner = document
    for name in path[:-1]:
        inner = inner[name]
    if value is KeyError:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return json.dumps(document).encode()


BAD = [
    (["schema"], 2), (["schema"], True), (["schema"], None), (["more"], 1), (["ranks"], KeyError),
    (["unit_tokens"], 0), (["unit_tokens"], "16"), (["unit_tokens"], 1.5), (["groups"], []), (["groups"], {}),
    (["groups", 0, "name"], ""), (["groups", 1, "name"], "history"), (["groups", 0, "kind"], 4),
    (["groups", 0, "kind"], -1), (["groups", 0, "coverage"], [0]), (["groups", 0, "coverage"], [4, 0]),
    (["groups", 0, "coverage"], [0, None]), (["groups", 0, "block_tokens"], 0), (["groups", 0, "page_bytes"], None),
    (["groups", 0, "row_bytes"], 0), (["groups", 0, "layers"], "ab"), (["groups", 0, "layers"], [1.5]),
    (["groups", 0, "layers"], [-1]), (["groups", 0, "parts"], [["x"]]), (["groups", 0, "parts"], [[1, 2]]),
    (["groups", 0, "parts"], {}), (["groups", 0, "draft"], 1), (["groups", 0, "format"], {"schema": 9}),
    (["groups", 0, "format", "fields", "tile"], 64), (["groups", 0, "fingerprint"], "0" * 32),
    (["groups", 0, "fingerprint"], "zz"), (["groups", 0], []), (["groups", 0, "more"], 1), (["ranks", "tp"], 0),
    (["ranks", "more"], 1), (["identity"], "00"), (["identity"], 3), (["identity_parts"], []),
    (["identity_parts", "model"], "x"), (["key_profile"], None), (["record_layout"], 0), (["records"], ["0" * 32]),
    (["records", 0], None), (["groups"], [{}] * 65),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), BAD, ids=range(len(BAD)))
def test_a_manifest_that_is_none_is_a_typed_error(path: list[Any], value: Any) -> None:
    with pytest.raises(hk.SpecError) as caught:
        Manifest.from_bytes(_changed(path, value))
    assert caught.value.field.startswith(("manifest", "format"))


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{}", b"[]", b"null", b"\xff", "{\u00e9}".encode(), b'{"schema":NaN}', b'{"schema":1,"schema":1}'),
        *(b"[" * 100_000, b'{"schema":' + b"9" * 5000 + b"}", b" " * (MOST_BYTES + 1)),
    ],
    ids=range(11),
)
def test_bytes_that_are_no_manifest(data: bytes) -> None:
    with pytest.raises(hk.SpecError):
        Manifest.from_bytes(data)


def test_a_manifest_is_bounded() -> None:
    with pytest.raises(hk.SpecError, match=f"at most {MOST_BYTES} bytes"):
        Manifest.from_bytes(own_manifest().to_bytes() + b" " * MOST_BYTES)
    Manifest.from_bytes(own_manifest().to_bytes() + b" " * 100)


def test_what_is_no_bytes_and_no_manifest() -> None:
    for bad in (None, "x", bytearray(b"{}"), 3):
        with pytest.raises(hk.ArgumentError):
            Manifest.from_bytes(bad)  # type: ignore[arg-type]
        with pytest.raises(hk.ArgumentError, match="theirs"):
            negotiate(own_manifest(), bad)  # type: ignore[arg-type]
        with pytest.raises(hk.ArgumentError, match="spec"):
            Manifest.of(bad)  # type: ignore[arg-type]
    with pytest.raises(hk.ArgumentError, match="group"):
        Manifest.of(spec(), draft=["none"])
    with pytest.raises(hk.SpecError, match=r"ranks\.tp"):
        RankGeometry(tp=0)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_no_byte_of_a_manifest_makes_anything_else(data: st.DataObject) -> None:
    good = bytearray(own_manifest().to_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(good) - 1))
        good[at] = data.draw(st.sampled_from(b'0123456789abcdef"{}[],:-.etrufalsn\\u\x00\xff'))
    try:
        again = Manifest.from_bytes(bytes(good[: data.draw(st.sampled_from([len(good), len(good) // 2]))]))
    except hk.SpecError:
        return
    assert Manifest.from_bytes(again.to_bytes()) == again
    negotiate(own_manifest(), again)


@pytest.mark.soak
def test_a_million_broken_manifests() -> None:
    """Bytes changed, dropped and repeated, a million times: a manifest or a typed error, and never anything else."""
    good = np.frombuffer(own_manifest().to_bytes(), np.uint8)
    random = np.random.default_rng()
    seed = int(random.integers(2**32))
    random = np.random.default_rng(seed)
    refusals = 0
    for _ in range(1_000_000):
        bad = good.copy()
        at = random.integers(0, len(bad), random.integers(1, 4))
        bad[at] = random.integers(32, 127, len(at)) if random.random() < 0.9 else random.integers(0, 256, len(at))
        first, last = np.sort(random.integers(0, len(bad), 2)) if random.random() < 0.2 else (0, len(bad))
        data = bad[first:last].tobytes() * int(random.integers(1, 3))
        try:
            Manifest.from_bytes(data)
        except hk.SpecError:
            refusals += 1
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {data!r}") from error
    assert refusals > 500_000


# ---- bind ----------------------------------------------------------------------------------------


def pool(pages: int = 8) -> Any:
    return np.zeros((pages, 2 * 64 * 132), np.uint8)


def test_bind_compares_what_the_pool_declares() -> None:
    cache = hk.HybridCache(spec(), blocks=8)
    with pytest.raises(hk.SpecError) as caught:
        cache.bind("history", pool(), format=replace(ROWS.paged(64), hadamard=True, theta=1.0))
    assert [d.where for d in caught.value.differences] == [  # type: ignore[attr-defined]
        "groups['history'].format.theta", "groups['history'].format.hadamard",
    ]  # fmt: skip
    assert caught.value.plan is None  # type: ignore[attr-defined]
    with pytest.raises(hk.SpecError, match="page_rows=32") as caught:
        cache.bind("history", pool(), format=ROWS.paged(32))
    assert [step.name for step in caught.value.plan.steps] == ["pages", "strides"]  # type: ignore[attr-defined]
    assert cache.match(hk.block_keys(range(64), 64)).outcome is hk.Outcome.MISS  # nothing has changed
    with pytest.raises(hk.ArgumentError, match="format"):
        cache.bind("history", pool(), format="indexer_fp8")  # type: ignore[arg-type]
    cache.bind("history", pool(), format=ROWS.paged(64))
    cache.bind("history", pool(), format=replace(ROWS.paged(64), producer="x", page_stride=8640, alignment=64))
    cache.bind("history", pool())
    cache.close()


def test_bind_of_a_group_without_a_format_compares_sizes() -> None:
    cache = hk.HybridCache(spec(made=None), blocks=8)
    with pytest.raises(hk.SpecError, match="row_bytes=584"):
        cache.bind("history", pool(), format=REGISTRY["fp8_ds_mla_v4"].format)
    cache.bind("history", pool(), format=ROWS.paged(64))
    cache.close()


# ---- tiers ---------------------------------------------------------------------------------------


def test_two_versions_on_one_disk_keep_apart_and_say_what_it_costs(tmp_path: Any) -> None:
    """A rolling upgrade: both write the same tokens into one store; each reads its own, before and after a restart."""
    with hk.DiskTier(tmp_path / "s", 16 << 20, region_bytes=4 << 20) as tier:
        with Side(version(1.0), tier) as old:
            old.write(1)
        with Side(version(2.0), tier) as new:
            verdict = new.cache.match(new.keys)
            assert (verdict.outcome, verdict.usable_tokens) == (hk.Outcome.FALSE_HIT, 0)
            assert verdict.why is not None and verdict.why.check is hk.Check.ABI
            assert new.cache.metrics().tier_skew == {"groups['kv'].format.theta": 1}
            new.write(2)
            assert new.read() == 2
            assert new.cache.metrics().tier_skew == {"groups['kv'].format.theta": 1}
        with Side(version(1.0), tier) as old:
            assert old.read() == 1
    (tmp_path / "s" / "writers").unlink()
    with hk.DiskTier(tmp_path / "s", 16 << 20) as tier, Side(version(3.0), tier) as third:
        assert third.cache.match(third.keys).outcome is hk.Outcome.FALSE_HIT
        assert third.cache.metrics().tier_skew == {"unknown writer": 1}
        tier.know(Manifest.from_bytes(Manifest.of(version(2.0)).to_bytes()))
        third.cache.match_at(third.keys, 48)
        assert third.cache.metrics().tier_skew == {"unknown writer": 1, "groups['kv'].format.theta": 1}
        assert "theta" in repr(third.cache.metrics())


def test_a_restore_converts_nothing() -> None:
    """Records that a conversion would make ours are not read by a restore: told by their field, or refused."""
    padded, packed = (REGISTRY[name].paged(16) for name in ("indexer_fp8_padded", "indexer_fp8"))

    def described(made: Any) -> hk.CacheSpec:
        group = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=16 * 132, format=made)
        return hk.CacheSpec(16, [group])

    assert isinstance(told(described(packed), described(padded)), Agreement)
    with hk.MemoryTier(1 << 20) as tier:
        with Side(described(padded), tier) as old:
            old.write(1)
        with pytest.raises(hk.TierError, match="page_stride") as caught:
            Side(described(packed), tier, tier_skew="refuse")
        assert list(caught.value.plans) == ["kv"]  # type: ignore[attr-defined]
        with Side(described(packed), tier) as new:
            assert new.cache.match(new.keys).outcome is hk.Outcome.FALSE_HIT
            assert new.cache.metrics().tier_skew == {"groups['kv'].format.page_stride": 1}


def test_zero_hits_because_of_the_identity() -> None:
    with hk.MemoryTier(1 << 20) as tier:
        with Side(version(weights="r1"), tier) as old:
            old.write(1)
            assert old.cache.metrics().tier_skew == {}
        with Side(version(weights="r2", adapter="a"), tier) as new:
            assert new.cache.match(new.keys).outcome is hk.Outcome.MISS
            assert new.cache.metrics().tier_skew == {"identity.adapter": 1, "identity.weights": 1}
            assert new.cache.metrics().misses == 1


def test_what_is_simply_not_there_is_no_skew() -> None:
    with hk.MemoryTier(1 << 20) as tier:
        with Side(version(1.0), tier) as old:
            old.write(1)
        with Side(version(2.0), tier) as new:
            strange = hk.block_keys(range(100, 164), 16, identity=new.cache.spec.identity)
            assert new.cache.match(strange).outcome is hk.Outcome.MISS
            assert new.cache.metrics().tier_skew == {}
        with Side(version(1.0), tier) as same:
            assert same.cache.match(same.keys).remedy is hk.Remedy.RESTORE
            assert same.cache.metrics().tier_skew == {}


def test_a_tier_of_another_writer_is_refused_where_that_was_asked_for() -> None:
    with hk.MemoryTier(1 << 20) as tier:
        with Side(version(1.0), tier):
            pass
        with pytest.raises(hk.TierError, match="theta") as caught:
            Side(version(2.0, weights="r2"), tier, tier_skew="refuse")
        assert [d.where for d in caught.value.differences] == [  # type: ignore[attr-defined]
            "identity.weights", "groups['kv'].format.theta",
        ]  # fmt: skip
        assert len(tier.manifests) == 1, "who was refused is no writer"
        with Side(version(1.0), tier, tier_skew="refuse") as same:  # the tier was not lent to who was refused
            assert same.cache.manifest == tier.manifests[0]
        with pytest.raises(hk.ArgumentError, match="tier_skew"):
            Side(version(1.0), tier, tier_skew="sometimes")
        with pytest.raises(hk.ArgumentError, match="manifest"):
            tier.know(b"{}")  # type: ignore[arg-type]
        for number in range(100):
            tier.know(Manifest.of(version(10.0 + number)))
        assert len(tier.manifests) == 64


def test_manifests_are_known_again_after_a_restart(tmp_path: Any) -> None:
    """New weights on an old store: every key is another, and the first look-up says by what."""
    file = tmp_path / "writers"
    with hk.DiskTier(tmp_path / "s", 16 << 20, region_bytes=4 << 20) as tier:
        tier.keep_manifests(file)
        with Side(version(weights="r1"), tier) as old:
            old.write(1)
    assert file.stat().st_mode & 0o777 == 0o600
    with hk.DiskTier(tmp_path / "s", 16 << 20) as tier:
        assert tier.recovered.records == 4 and tier.recovered.unknown_files == 0
        tier.keep_manifests(str(file))
        with Side(version(weights="r2"), tier) as new:
            assert new.cache.match(new.keys).outcome is hk.Outcome.MISS
            assert new.cache.metrics().tier_skew == {"identity.weights": 1}
    with hk.MemoryTier(1 << 20) as tier:
        tier.keep_manifests(file)
        assert [m.identity_parts for m in tier.manifests] == [
            Manifest.of(version(weights=revision)).identity_parts for revision in ("r1", "r2")
        ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s", "writers"]


def test_a_file_that_is_none_of_manifests_is_refused_and_stays(tmp_path: Any) -> None:
    with hk.MemoryTier(1 << 20) as tier:
        good = Manifest.of(version()).to_bytes() + b"\n"
        for number, bad in enumerate((b"{}\n", good + b"\x00\n", b" " * (9 << 20), good[:-3])):
            file = tmp_path / str(number)
            file.write_bytes(bad)
            with pytest.raises(hk.TierError, match="manifests"):
                tier.keep_manifests(file)
            assert file.read_bytes() == bad and tier.manifests == ()
        for bad_path in (tmp_path, tmp_path / "gone" / "file"):
            with pytest.raises(hk.TierError, match="manifests"):
                tier.keep_manifests(bad_path)
        with pytest.raises(hk.ArgumentError, match="path"):
            tier.keep_manifests(3)  # type: ignore[arg-type]
        tier.know(Manifest.of(version()))
        assert len(tier.manifests) == 1 and sorted(p.name for p in tmp_path.iterdir()) == ["0", "1", "2", "3"]


def test_a_cache_that_could_not_be_made_gives_the_tier_back(tmp_path: Any) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with hk.MemoryTier(1 << 20) as tier:
        tier.keep_manifests(folder / "writers")
        (folder / "writers").unlink()
        folder.rmdir()
        failed: list[BaseException] = []
        try:
            Side(version(), tier)
        except hk.TierError as error:
            failed.append(error)  # with its traceback, which keeps what could not be made
        assert failed and tier.manifests == ()
        folder.mkdir()
        with Side(version(), tier) as side:
            assert tier.manifests == (side.cache.manifest,)
