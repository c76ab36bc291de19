# SPDX-License-Identifier: Apache-2.0
"""Doctor: what two hosts would take for a hit, from their facts alone."""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace
from typing import Any

import pytest

import hybridkv as hk
from doctor_support import a_cache, facts_of, host
from hybridkv import formats
from hybridkv.doctor import compare, doctor
from hybridkv.doctor.report import comparison_text
from hybridkv.doctor.severities import SEVERITIES

# -- two hosts ---------------------------------------------------------------------------------------


def told_of(document: dict[str, Any]) -> dict[str, str]:
    return {difference["field"]: difference["severity"] for difference in document["differences"]}


def test_two_hosts_alike_have_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    one = host(monkeypatch, ("sm90",), vllm="0.33.0")
    document = compare(one, copy.deepcopy(one))
    assert document["differences"] == [] and set(document["counts"].values()) == {0}
    assert comparison_text(document).startswith("no difference")


def test_equal_size_on_two_gpu_families_is_a_false_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"indexer_fp8_padded": 132, "indexer_fp8_ue8m0": 132, "indexer_mxfp4_padded": 68, "v41_fp8": 528}
    entries = {
        name: SimpleNamespace(format=hk.KvFormat(name, "uint8", row_bytes=size), row_format=lambda: None)
        for name, size in sizes.items()
    }
    monkeypatch.setattr(formats, "REGISTRY", entries, raising=False)
    hopper, blackwell = host(monkeypatch, ("sm90",), vllm="0.33.0"), host(monkeypatch, ("sm100",), vllm="0.33.0")
    for document in (compare(hopper, blackwell), compare(blackwell, hopper)):
        told = told_of(document)
        assert told["gpu.families"] == "false hit"
        assert told["formats.vllm.indexer_fp8_padded.written_here"] == "false hit"
        assert told["formats.vllm.indexer_fp8_ue8m0.written_here"] == "false hit"
        assert told["formats.vllm.indexer_mxfp4_padded.written_here"] == "refused"
        assert "formats.vllm.v41_fp8.written_here" not in told
        (padded,) = (d["consequence"] for d in document["differences"] if "indexer_fp8_padded" in d["field"])
        assert "rows of 132 bytes are indexer_fp8_ue8m0 on the other's GPUs" in padded
    monkeypatch.setattr(formats, "REGISTRY", None, raising=False)
    blind = compare(host(monkeypatch, ("sm90",), vllm="0.33.0"), host(monkeypatch, ("sm100",), vllm="0.33.0"))
    assert told_of(blind)["formats.vllm.indexer_mxfp4_padded.written_here"] == "false hit"


@pytest.mark.parametrize(
    ("ours", "theirs", "severity"),
    [
        ({"transformers": "5.8.0"}, {"transformers": "5.24.0"}, "false hit"),
        ({"transformers": "5.12.0"}, {"transformers": "5.23.0"}, "unequal numbers"),
        ({"vllm": "0.33.0"}, {"vllm": "0.34.0"}, "false hit"),
        ({"vllm": "0.33.0"}, {"vllm": "0.33.1"}, "unequal numbers"),
        ({"vllm": "0.33.0"}, {}, "cosmetic"),
    ],
)
def test_versions_of_an_engine(
    monkeypatch: pytest.MonkeyPatch, ours: dict[str, str], theirs: dict[str, str], severity: str
) -> None:
    (engine,) = ours
    document = compare(host(monkeypatch, **ours), host(monkeypatch, **theirs))
    assert told_of(document)[f"engines.{engine}"] == severity


def with_cache(facts: dict[str, Any], cache: hk.HybridCache) -> dict[str, Any]:
    return {**facts, "cache": facts_of(cache)}


DIFFERENCES: list[tuple[str, str, list[Any]]] = [
    ("key_profile", "lost hits", ["key_profile", 2]),
    ("format_schema", "lost hits", ["format_schema", 9]),
    ("record_version", "refused", ["record_version", 9]),
    ("store_version", "refused", ["store_version", 9]),
    ("hybridkv", "cosmetic", ["hybridkv", "0.0.9"]),
    ("torch", "unequal numbers", ["torch", "1.0"]),
    ("python", "cosmetic", ["python", "3.9.9"]),
    ("numpy", "cosmetic", ["numpy", "1.0"]),
    ("platform", "cosmetic", ["platform", "other"]),
    ("gpu.driver", "cosmetic", ["gpu", "driver", "12.0"]),
    ("gpu.families", "unequal numbers", ["gpu", "families", []]),
    ("formats.vllm.csa_ring", "false hit", ["formats", 7, "fingerprint", "00"]),
    ("cache.identity.salted", "lost hits", ["cache", "identity", "salted", False]),
    ("cache.ranks.tp", "refused", ["cache", "manifest", "ranks", "tp", 2]),
    ("cache.verify", "false hit", ["cache", "verify", "off"]),
    ("cache.verify", "cosmetic", ["cache", "verify", "all"]),
]


@pytest.mark.parametrize(("field", "severity", "change"), DIFFERENCES)
def test_each_difference_has_its_severity(
    monkeypatch: pytest.MonkeyPatch, field: str, severity: str, change: list[Any]
) -> None:
    ours = with_cache(host(monkeypatch, ("sm90",), vllm="0.33.0"), a_cache())
    for entry in ours["formats"]:
        entry["fingerprint"] = "11"
    theirs = copy.deepcopy(ours)
    assert theirs["formats"][7]["name"] == "csa_ring"
    inside: Any = theirs
    *path, last, value = change
    for step in path:
        inside = inside[step]
    inside[last] = value
    document = compare(ours, theirs)
    assert told_of(document)[field] == severity
    assert all(d["severity"] in SEVERITIES and d["consequence"] for d in document["differences"])
    assert [SEVERITIES.index(d["severity"]) for d in document["differences"]] == sorted(
        SEVERITIES.index(d["severity"]) for d in document["differences"]
    )
    assert field in comparison_text(document)
    assert told_of(compare(theirs, ours))[field] == severity  # whoever is ours


# -- two caches: what negotiate says ------------------------------------------------------------------

S = hk.StateKind
ROWS = hk.KvFormat("r", "bfloat16", theta=1.0)


def kv(**fields: Any) -> hk.CacheGroup:
    given: dict[str, Any] = {"name": "kv", "kind": S.COMPRESSED, "coverage": hk.Prefix(), "page_bytes": 64} | fields
    return hk.CacheGroup(given.pop("name"), given.pop("kind"), given.pop("coverage"), **{"format": ROWS, **given})


def spec(*groups: hk.CacheGroup, unit: int = 16, **identity: Any) -> hk.CacheSpec:
    return hk.CacheSpec(unit, groups or [kv()], identity=hk.Identity("m", **identity))


MORE = kv(name="p")
WINDOW = {"name": "w", "kind": S.WINDOW}
SPECS = {
    "plain": spec(),
    "page_bytes": spec(kv(page_bytes=128)),
    "layers": spec(kv(layers=(2, 3))),
    "other layers": spec(kv(layers=(4, 5))),
    "kind": spec(kv(kind=S.INDEXER)),
    "tokens_per_row": spec(kv(tokens_per_row=4)),
    "row_bytes": spec(kv(row_bytes=4)),
    "no format": spec(kv(format=None, row_bytes=4)),
    "parts": spec(kv(parts={"a": 32, "b": 32})),
    "order of parts": spec(kv(parts={"b": 32, "a": 32})),
    "block": spec(kv(block_tokens=32)),
    "window": spec(kv(coverage=hk.Window(16), **WINDOW), MORE),
    "other window": spec(kv(coverage=hk.Window(8), **WINDOW), MORE),
    "rebuildable window": spec(kv(coverage=hk.Window(16), rebuildable=True, **WINDOW), MORE),
    "two": spec(kv(), MORE),
    "two in another order": spec(MORE, kv()),
    "theta": spec(kv(format=hk.KvFormat("r", "bfloat16", theta=2.0))),
    "true": spec(kv(format=hk.KvFormat("r", "bfloat16", yarn={"t": True}))),
    "one": spec(kv(format=hk.KvFormat("r", "bfloat16", yarn={"t": 1}))),
    "stride": spec(kv(format=hk.KvFormat("r", "bfloat16", theta=1.0, page_stride=128))),
    "producer": spec(kv(format=hk.KvFormat("r", "bfloat16", theta=1.0, producer_version="2"))),
    "unit": spec(unit=8),
    "weights": spec(weights="r2"),
    "rope": spec(rope={"theta": 1}),
    "extra": spec(extra=b"z"),
}


@pytest.fixture(scope="module")
def of_specs() -> dict[str, dict[str, Any]]:
    base = json.loads(json.dumps(doctor()))
    return {name: with_cache(base, hk.HybridCache(made, blocks=8)) for name, made in SPECS.items()}


@pytest.mark.parametrize("ours", SPECS)
def test_compare_says_nothing_exactly_where_negotiate_agrees(ours: str, of_specs: dict[str, dict[str, Any]]) -> None:
    for theirs, made in SPECS.items():
        told = compare(of_specs[ours], of_specs[theirs])
        answer = formats.negotiate(SPECS[ours], made)
        wrong = {
            field for field, severity in told_of(told).items() if severity in ("false hit", "refused", "lost hits")
        }
        agreed = isinstance(answer, formats.Agreement) and answer.exact
        if ours == theirs == "no format":  # equal sizes prove nothing, and negotiate has no word for it
            assert wrong == {"cache.groups.kv.format"}
        else:
            assert (not wrong) == agreed, (ours, theirs)
        assert len(told["differences"]) == len(answer.differences) + (ours == theirs == "no format")


FIELDS = {
    ("plain", "page_bytes"): {"cache.groups.kv.page_bytes": "refused"},
    ("layers", "other layers"): {"cache.groups.kv.layers": "refused"},
    ("two", "two in another order"): {"cache.groups.kv.order": "refused", "cache.groups.p.order": "refused"},
    ("plain", "theta"): {"cache.groups.kv.format.theta": "refused"},
    ("plain", "producer"): {"cache.groups.kv.format.producer_version": "cosmetic"},
    ("plain", "weights"): {"cache.identity.weights": "lost hits"},
    ("plain", "rope"): {"cache.identity.rope": "lost hits"},
    ("plain", "extra"): {"cache.identity.extra": "lost hits"},
    ("plain", "two"): {"cache.groups.p": "refused"},
}


@pytest.mark.parametrize(("ours", "theirs"), FIELDS)
def test_fields_of_manifests_have_their_severity(ours: str, theirs: str, of_specs: dict[str, dict[str, Any]]) -> None:
    for one, other in ((ours, theirs), (theirs, ours)):
        told = compare(of_specs[one], of_specs[other])
        assert told_of(told) == FIELDS[ours, theirs]
        assert all(d["consequence"] for d in told["differences"])
    if theirs == "weights":
        assert [(d["ours"], d["theirs"]) for d in told["differences"]] == [("r2", "")]  # in words, not as digests


CONTRADICTIONS: list[tuple[str, list[Any]]] = [
    ("key_profile", ["key_profile", 2]),
    ("unit_tokens", ["unit_tokens", 64]),
    ("identity.fingerprint", ["identity", "fingerprint", "00"]),
    ("identity.weights", ["identity", "weights", "r2"]),
    ("groups", ["groups", []]),
    ("groups[0].kind", ["groups", 0, "kind", "indexer"]),
    ("groups[0].coverage", ["groups", 0, "coverage", ["Window", 16]]),
    ("groups[0].page_bytes", ["groups", 0, "page_bytes", 65]),
    ("groups[0].fingerprint", ["groups", 0, "fingerprint", "00"]),
    ("manifest", ["manifest", None]),
    ("manifest", ["manifest", 7]),
    ("manifest.schema", ["manifest", "schema", 9]),
    ("manifest.unit_tokens", ["manifest", "unit_tokens", True]),
    ("manifest.groups", ["manifest", "groups", []]),
]


@pytest.mark.parametrize(("field", "change"), CONTRADICTIONS)
def test_facts_that_contradict_their_manifest_are_refused(
    field: str, change: list[Any], of_specs: dict[str, dict[str, Any]]
) -> None:
    theirs = copy.deepcopy(of_specs["plain"])
    inside: Any = theirs["cache"]
    *path, last, value = change
    for step in path:
        inside = inside[step]
    inside[last] = value
    with pytest.raises(hk.ArgumentError) as refused:
        compare(of_specs["plain"], theirs)
    assert refused.value.field == f"theirs.cache.{field}"


def test_a_group_that_is_listed_twice_is_refused(of_specs: dict[str, dict[str, Any]]) -> None:
    """Only the last one of a name was looked at, and could hide another."""
    for listed in ("groups", "manifest"):
        theirs = copy.deepcopy(of_specs["plain"])
        inside = theirs["cache"] if listed == "groups" else theirs["cache"]["manifest"]
        (own,) = inside["groups"]
        for groups in ([{**own, "fingerprint": "0" * 32}, own], [own, {**own, "fingerprint": "0" * 32}], [own, own]):
            inside["groups"] = groups
            with pytest.raises(hk.ArgumentError):
                compare(of_specs["plain"], theirs)


def test_a_manifest_without_end_is_refused(of_specs: dict[str, dict[str, Any]]) -> None:
    theirs = copy.deepcopy(of_specs["plain"])
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"x": deep}
    theirs["cache"]["manifest"] = deep
    with pytest.raises(hk.ArgumentError):
        compare(of_specs["plain"], theirs)


def test_what_is_not_in_the_facts_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    document = compare(host(monkeypatch, vllm="0.40"), host(monkeypatch))
    assert any("salts" in what for what in document["cannot_tell"])
    assert any("--cache" in what for what in document["cannot_tell"])
    assert any("vllm 0.40" in what for what in document["cannot_tell"])
