# SPDX-License-Identifier: Apache-2.0
"""Doctor: what two hosts would take for a hit, from their facts alone."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest

import hybridkv as hk
from doctor_support import a_cache, facts_of, host
from hybridkv import formats
from hybridkv.doctor import compare
from hybridkv.doctor.comparison import SEVERITIES
from hybridkv.doctor.report import comparison_text

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
    ("cache.unit_tokens", "lost hits", ["cache", "unit_tokens", 64]),
    ("cache.identity.model", "lost hits", ["cache", "identity", "model", "other"]),
    ("cache.identity.weights", "lost hits", ["cache", "identity", "weights", "r2"]),
    ("cache.identity.adapter", "lost hits", ["cache", "identity", "adapter", "a"]),
    ("cache.identity.fingerprint", "lost hits", ["cache", "identity", "fingerprint", "00"]),
    ("cache.identity.salted", "lost hits", ["cache", "identity", "salted", False]),
    ("cache.ranks.tp_rank", "refused", ["cache", "ranks", "tp_rank", 1]),
    ("cache.verify", "false hit", ["cache", "verify", "off"]),
    ("cache.verify", "cosmetic", ["cache", "verify", "all"]),
    ("cache.groups.kv", "refused", ["cache", "groups", []]),
    ("cache.groups.kv.fingerprint", "refused", ["cache", "groups", 0, "fingerprint", "00"]),
    ("cache.groups.kv.format", "false hit", ["cache", "groups", 0, "format", None]),
    ("cache.groups.kv.block_tokens", "lost hits", ["cache", "groups", 0, "block_tokens", 32]),
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


def test_what_is_not_in_the_facts_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    document = compare(host(monkeypatch, vllm="0.40"), host(monkeypatch))
    assert any("salts" in what for what in document["cannot_tell"])
    assert any("--cache" in what for what in document["cannot_tell"])
    assert any("vllm 0.40" in what for what in document["cannot_tell"])
