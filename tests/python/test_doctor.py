# SPDX-License-Identifier: Apache-2.0
"""Doctor: what a host has, what two hosts would take for a hit, the checklist; from facts alone, and bounded."""

from __future__ import annotations

import gc
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import keys_of
from doctor_support import a_cache, facts_of, host, sound, versions, watching
from hybridkv import formats
from hybridkv.alignment import KERNELS
from hybridkv.doctor import SCHEMA, cache_facts, compare, readiness
from hybridkv.doctor.answers import NO, UNKNOWN, YES
from hybridkv.doctor.documents import MOST_BYTES, parse_document, read_document
from hybridkv.doctor.engines import DISTRIBUTIONS, KNOWN, installed, known_of
from hybridkv.doctor.host import family_of
from hybridkv.doctor.questions import ITEMS, TOPICS
from hybridkv.doctor.report import host_text

ROOT = Path(__file__).resolve().parents[2]


# -- a host ------------------------------------------------------------------------------------------


def test_engines_are_told_by_their_metadata_alone() -> None:
    assert list(installed(versions())) == list(DISTRIBUTIONS)
    assert set(installed(versions()).values()) == {None}
    told = installed(versions(vllm="0.33.0", **{"flashinfer-python": "0.6", "tensorrt-llm": "1.2"}))
    assert (told["vllm"], told["flashinfer"], told["tensorrt_llm"], told["sglang"]) == ("0.33.0", "0.6", "1.2", None)
    assert set(installed(lambda name: None).values()) == {None}  # metadata without a version


def test_no_engine_is_imported() -> None:
    engines = ["torch", "transformers", *DISTRIBUTIONS]
    program = (
        "import sys, json; from hybridkv.doctor import doctor, readiness, compare; d = doctor(); "
        f"readiness(d); compare(d, d); print(json.dumps([n for n in {engines!r} if n in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


@pytest.mark.parametrize(
    ("engine", "version", "known"),
    [
        ("vllm", "0.33.0", True), ("vllm", "0.33.7+cu130", True), ("vllm", "0.33", True), ("vllm", "0.34.0", False),
        ("vllm", "0.32.9", False), ("vllm", "0.33.0rc1", False), ("vllm", "0.33.0.post1", True), ("vllm", "", False),
        ("vllm", "main", False), ("sglang", "0.5.23", True), ("sglang", "0.5.24", False), ("sglang", "0.5", False),
        ("transformers", "5.8.0", True), ("transformers", "5.9.0", False), ("transformers", "5.20.0", True),
        ("transformers", "5.24.0", True), ("transformers", "5.24.0.dev0", False), ("flash_mla", "1.0", False),
        ("lmcache", "0.5.6", True), ("vllm", "9" * 5000, False), ("nope", "1", False),
    ],
)  # fmt: skip
def test_nothing_is_guessed_of_versions_that_were_not_read(engine: str, version: str, known: bool) -> None:
    assert (known_of(engine, version) is not None) == known


def test_versions_of_one_engine_have_one_row_each() -> None:
    for one in KNOWN:
        for other in KNOWN:
            if one is not other and one.engine == other.engine:
                assert known_of(one.engine, other.first) is not one
                assert one.revision != other.revision


def test_formats_of_installed_engines_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = host(monkeypatch, ("sm100",), vllm="0.33.0", lmcache="0.5.6", sglang="0.6")
    told = {(entry["engine"], entry["name"]): entry for entry in facts["formats"]}
    assert told["vllm", "indexer_fp8_ue8m0"]["written_here"] is True
    assert told["vllm", "indexer_fp8_padded"]["written_here"] is False
    assert told["vllm", "csa_ring"]["families"] == [] and told["vllm", "csa_ring"]["written_here"] is True
    assert not any(engine == "sglang" for engine, _ in told)
    assert facts["engines"]["sglang"]["known"] is False and "0.5.23" in facts["engines"]["sglang"]["source"]
    assert facts["engines"]["lmcache"]["role"] == "passes on"
    blind = host(monkeypatch, (), vllm="0.33.0")
    assert {entry["written_here"] for entry in blind["formats"]} == {None}
    assert "no NVIDIA driver" in blind["gpu"]["reason"] and blind["gpu"]["driver"] is None


def test_the_registry_says_which_formats_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = SimpleNamespace(format=hk.KvFormat("x", "uint8"), row_format=lambda: object())
    state = SimpleNamespace(format=hk.KvFormat("y", "uint8"), row_format=lambda: None)
    monkeypatch.setattr(formats, "REGISTRY", {"fp8_ds_mla_v32": rows, "csa_ring": state}, raising=False)
    told = {entry["name"]: entry for entry in host(monkeypatch, (), vllm="0.33.0")["formats"]}
    assert told["fp8_ds_mla_v32"]["fingerprint"] == rows.format.fingerprint.hex()
    assert "kernels copy and convert" in told["fp8_ds_mla_v32"]["ours"]
    assert told["csa_ring"]["ours"] == "declared"
    assert told["hca_ring"]["ours"] == "not in the registry" and told["hca_ring"]["fingerprint"] is None
    monkeypatch.setattr(formats, "REGISTRY", None, raising=False)
    assert "cannot tell" in host(monkeypatch, (), vllm="0.33.0")["formats"][0]["ours"]


def test_every_format_of_the_table_is_in_the_registry() -> None:
    registry = getattr(formats, "REGISTRY", None)
    listed = {name for known in KNOWN for name in known.formats}
    read = {name for needs in KERNELS.values() for name in needs.formats}
    assert listed
    assert {name for known in KNOWN for name in known.families} <= listed
    if registry is not None:
        assert sorted(name for name in listed | read if name not in registry) == []
        widths = {name: registry[name].format.row_bytes for name in read}
        assert all(widths[name] in needs.row_bytes for needs in KERNELS.values() for name in needs.formats)


@pytest.mark.parametrize(
    ("major", "minor", "family"),
    [
        (0, 0, None),
        (8, 9, "sm89"),
        (8, 0, "sm80"),
        (9, 0, "sm90"),
        (10, 0, "sm100"),
        (10, 3, "sm100"),
        (12, 1, "sm120"),
    ],
)
def test_families(major: int, minor: int, family: str | None) -> None:
    assert family_of(major, minor) == family


def test_the_driver_tells_the_devices(tmp_path: Path) -> None:
    library = tmp_path / "libcuda_copies.so"
    source = ROOT / "tests" / "cpp" / "fake_cuda" / "copies.cpp"
    options = ["-std=c++20", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{ROOT / 'tests' / 'cpp'}"]
    subprocess.run([shutil.which("c++") or "c++", *options, str(source), "-o", str(library)], check=True)
    program = "import json; from hybridkv.doctor import doctor; print(json.dumps(doctor()['gpu']))"
    paths = os.pathsep.join(path for path in sys.path if path)
    told = {**os.environ, "PYTHONPATH": paths, "HYBRIDKV_LIBCUDA": str(library)}
    done = subprocess.run([sys.executable, "-c", program], env=told, capture_output=True, text=True, check=True)
    gpu = json.loads(done.stdout)
    assert (gpu["driver"], gpu["reason"], gpu["families"]) == ("13.0", None, ["sm90"])
    assert gpu["devices"][0] == {"name": "Stand-in 0", "capability": "9.0", "family": "sm90"}


# -- a cache -----------------------------------------------------------------------------------------


def test_facts_of_a_cache_say_nothing_of_its_salt() -> None:
    cache = a_cache(verify="all", eviction="lru")
    cache.insert(keys_of(32))
    facts = facts_of(cache, canary={"rate": 0.01, "mismatches": 0})
    assert facts["schema"] == SCHEMA and facts["kind"] == "cache"
    assert (facts["verify"], facts["eviction"], facts["tier"], facts["tier_writes"]) == ("all", "lru", None, "none")
    assert facts["identity"]["salted"] is True and facts["canary"] == {"rate": 0.01, "mismatches": 0.0}
    assert facts["metrics"]["pages"]["kv"]["cached"] == 2
    assert facts["groups"][0]["kernels"] == ["vector_copy_16"] and facts["groups"][0]["bound"]
    text = json.dumps(facts)
    assert "secret" not in text and b"secret of the gateway".hex() not in text
    assert parse_document("cache", text.encode(), "cache") == facts


def test_kernels_named_at_bind_are_in_the_facts() -> None:
    cache = a_cache()
    cache.bind("kv", np.zeros((8, 1024), np.uint8), kernel=["tma", "vector_copy_16"])
    assert facts_of(cache)["groups"][0]["kernels"] == ["vector_copy_16", "tma"]


def test_no_cache_and_no_canary() -> None:
    with pytest.raises(hk.ArgumentError):
        cache_facts(None)  # type: ignore[arg-type]
    for canary in ({"rate": -1.0}, {"rate": "x"}, [1], {"rate": float("nan")}, {"rate": float("inf")}, {"rate": True}):
        with pytest.raises(hk.ArgumentError):
            cache_facts(a_cache(), canary=canary)  # type: ignore[arg-type]
    cache = a_cache()
    cache.close()
    with pytest.raises(hk.Closed):
        cache_facts(cache)


def test_topologies_that_watch_a_cache_are_in_its_facts_while_they_live() -> None:
    cache = a_cache()
    assert facts_of(cache)["topologies"] == []
    topology = watching(cache)
    cache.reset()
    with pytest.raises(hk.graph.TopologyChanged):
        topology.check()
    told = {"buckets": [1], "released": False, "buffers": 1, "counts": {"cleared": 1}}
    assert facts_of(cache)["topologies"] == [told]
    topology.release()
    assert facts_of(cache)["topologies"][0]["released"]
    del topology
    gc.collect()
    assert facts_of(cache)["topologies"] == []


def test_writers_of_the_tier_are_in_the_facts_with_what_they_have_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    tier = hk.MemoryTier(1 << 20)
    first = a_cache(tier=tier)
    assert facts_of(first)["writers"] == [{"manifest": first.manifest.fingerprint.hex(), "differences": []}]
    first.close()
    facts = facts_of(a_cache(tier=tier, identity=hk.Identity("m", weights="r2", salt=b"another secret")))
    own, other = sorted(facts["writers"], key=lambda writer: len(writer["differences"]))
    assert own["differences"] == [] and other["manifest"] == first.manifest.fingerprint.hex()
    assert len(other["differences"]) == 1 and other["differences"][0].startswith("identity.weights")
    assert "secret" not in json.dumps(facts)
    document = readiness(host(monkeypatch), facts)
    assert answers(document)["writers"] == NO
    assert "1 of 2" in next(item["evidence"] for item in document["items"] if item["name"] == "writers")


# -- the checklist -----------------------------------------------------------------------------------


def answers(document: dict[str, Any]) -> dict[str, str]:
    return {item["name"]: item["answer"] for item in document["items"]}


def test_what_nobody_knows_is_not_met(monkeypatch: pytest.MonkeyPatch) -> None:
    document = readiness(host(monkeypatch))
    assert set(answers(document).values()) == {UNKNOWN}
    assert (document["met"], document["asked"]) == (0, len(ITEMS))
    assert list(document["topics"]) == list(TOPICS) and all(score["asked"] for score in document["topics"].values())
    assert all(item["remedy"] for item in document["items"])
    empty = readiness(host(monkeypatch), {"schema": 1, "kind": "cache"})
    assert YES not in answers(empty).values()


def test_a_sound_stack_answers_everything_with_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    document = readiness(*sound(monkeypatch))
    assert {name: answer for name, answer in answers(document).items() if answer != YES} == {}
    assert document["met"] == document["asked"] == sum(score["met"] for score in document["topics"].values())
    assert all(item["remedy"] is None for item in document["items"])


BREAKS: list[tuple[str, str, list[Any]]] = [
    ("verify", NO, ["cache", "verify", "off"]),
    ("verify", UNKNOWN, ["cache", "verify", None]),
    ("raced", NO, ["cache", "metrics", "raced", 3]),
    ("leaks", NO, ["cache", "metrics", "leaks", 1]),
    ("leaks", UNKNOWN, ["cache", "metrics", "leaks", None]),
    ("quarantine", NO, ["cache", "metrics", "quarantined", 1]),
    ("settled", NO, ["cache", "metrics", "misses", 1]),
    ("settled", NO, ["cache", "metrics", "false_hits", "abi", "window", 1]),
    ("settled", UNKNOWN, ["cache", "metrics", "lookups", 0]),
    ("pages", NO, ["cache", "metrics", "pages", "kv", "free", 5]),
    ("pages", UNKNOWN, ["cache", "metrics", "pages", None]),
    ("eviction", NO, ["cache", "eviction", "lru"]),
    ("placed", NO, ["cache", "metrics", "unplaced", 1]),
    ("tier writes", NO, ["cache", "tier", "disk"]),
    ("formats", NO, ["cache", "groups", 0, "format", None]),
    ("kernels", NO, ["cache", "groups", 0, "kernels", []]),
    ("alignment", NO, ["cache", "groups", 0, "violations", [{"effect": "refused", "text": "off by 8"}]]),
    ("alignment", YES, ["cache", "groups", 0, "violations", [{"effect": "slower", "text": "off by 8"}]]),
    ("alignment", UNKNOWN, ["cache", "groups", 0, "bound", False]),
    ("writers", NO, ["cache", "writers", [{"manifest": "0f", "differences": ["identity.weights: ours"]}]]),
    ("identity", NO, ["cache", "identity", "weights", ""]),
    ("salt", NO, ["cache", "identity", "salted", False]),
    ("gpu", NO, ["host", "gpu", "families", ["sm90", "sm100"]]),
    ("gpu", UNKNOWN, ["host", "gpu", "families", []]),
    ("engines", NO, ["host", "engines", "vllm", "known", False]),
    ("records", NO, ["cache", "metrics", "load_failures", "corrupt", 1]),
    ("records", NO, ["cache", "metrics", "store_failures", "timeout", 1]),
    ("widths", NO, ["cache", "graph_widths", {}]),
    ("guarded", NO, ["cache", "topologies", []]),
    ("guarded", NO, ["cache", "topologies", 0, "released", True]),
    ("guarded", UNKNOWN, ["cache", "topologies", None]),
    ("memory", NO, ["cache", "metrics", "eager", "moved", 1]),
    ("memory", UNKNOWN, ["cache", "metrics", "eager", None]),
    ("eager", UNKNOWN, ["cache", "graph_widths", {}]),
    ("eager", NO, ["cache", "metrics", "eager", "width", 1]),
    ("copies", NO, ["cache", "metrics", "copy_failures", 1]),
    ("counted", NO, ["cache", "metrics", "lookups", 0]),
    ("effective", NO, ["cache", "metrics", "effective_hits", 0]),
    ("canary", NO, ["cache", "canary", None]),
    ("canary", NO, ["cache", "canary", "mismatches", 1]),
    ("canary", NO, ["cache", "canary", "rate", 0]),
    ("canary", UNKNOWN, ["cache", "canary", "rate", None]),
]


@pytest.mark.parametrize(("name", "answer", "change"), BREAKS)
def test_each_question_can_be_answered_with_no(
    monkeypatch: pytest.MonkeyPatch, name: str, answer: str, change: list[Any]
) -> None:
    facts = dict(zip(("host", "cache"), sound(monkeypatch), strict=True))
    inside: Any = facts
    *path, last, value = change
    for step in path:
        inside = inside[step]
    inside[last] = value
    document = readiness(facts["host"], facts["cache"])
    assert answers(document)[name] == answer
    told = next(item for item in document["items"] if item["name"] == name)
    assert (told["remedy"] is None) == (answer == YES) and told["evidence"]


def test_every_question_has_a_case_in_which_it_is_no() -> None:
    assert {name for name, answer, _ in BREAKS if answer == NO} == {item.name for item in ITEMS}


# -- files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (b"", "f"), (b"\xff", "f"), (b"[]", "f"), (b"null", "f"), (b"{", "f"), (b"{}", "f.schema"),
        (b'{"schema": 2, "kind": "host"}', "f.schema"), (b'{"schema": true, "kind": "host"}', "f.schema"),
        (b'{"schema": 1.0, "kind": "host"}', "f.schema"), (b'{"schema": 1}', "f.kind"),
        (b'{"schema": 1, "kind": "cache"}', "f.kind"), (b'{"schema": 1, "schema": 1, "kind": "host"}', "f.names"),
        (b'{"schema": 1, "kind": "host", "x": NaN}', "f.number"),
        (b'{"schema": 1, "kind": "host", "x": ' + b"9" * 41 + b"}", "f.number"),
        (b'{"schema": 1, "kind": "host", "x": ' + b"[" * 40 + b"]" * 40 + b"}", "f"),
        (b'{"schema": 1, "kind": "host", "x": ' + b"[" * 200_000, "f"),
    ],
)  # fmt: skip
def test_documents_that_are_none_are_refused(raw: bytes, field: str) -> None:
    with pytest.raises(hk.ArgumentError) as caught:
        parse_document("f", raw, "host")
    assert caught.value.field == field
    assert len(str(caught.value)) < 400


def test_a_file_is_read_to_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    path.write_bytes(b'{"schema": 1, "kind": "host"}'.ljust(MOST_BYTES))
    assert read_document("f", path, "host") == {"schema": 1, "kind": "host"}
    path.write_bytes(b'{"schema": 1, "kind": "host"}'.ljust(MOST_BYTES + 1))
    for refused in (path, tmp_path / "none", tmp_path, "a\0b"):
        with pytest.raises(hk.ArgumentError) as caught:
            read_document("f", refused, "host")
        assert caught.value.field == "f"
    with open("/dev/zero", "rb"), pytest.raises(hk.ArgumentError):
        read_document("f", "/dev/zero", "host")


def mutated(draw: random.Random, value: Any) -> Any:
    """The same facts with one of them replaced by what does not belong there."""
    odd = draw.choice([None, True, -1, 1e308, "", "x" * 300, [], [1], {}, {"a": {}}, 10**30, [[]], {"kv": []}])
    if draw.random() < 0.2 or not isinstance(value, (dict, list)) or not value:
        return odd
    if isinstance(value, dict):
        name = draw.choice(list(value))
        return {**value, name: mutated(draw, value[name])}
    place = draw.randrange(len(value))
    return [*value[:place], mutated(draw, value[place]), *value[place + 1 :]]


def test_facts_of_any_shape_are_judged_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    host_facts, cache = sound(monkeypatch)
    ours = {**host_facts, "cache": cache}
    draw = random.Random(11)
    refused = 0
    rounds = 20_000 if os.environ.get("HYBRIDKV_SOAK") else 1500
    for _ in range(rounds):
        theirs = ours
        for _ in range(draw.randint(1, 3)):
            changed = mutated(draw, theirs)
            theirs = changed if isinstance(changed, dict) else theirs
        for judge, given in ((compare, (ours, theirs)), (readiness, (theirs, theirs.get("cache")))):
            try:
                json.dumps(judge(*given))
            except hk.ArgumentError as error:
                refused += 1
                assert error.field and len(str(error)) < 1000
    assert 100 < refused < 2 * rounds


def test_bytes_of_any_kind_are_parsed_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    good = json.dumps(host(monkeypatch, vllm="0.33.0")).encode()
    draw = random.Random(3)
    taken = 0
    for _ in range(1500):
        raw = bytearray(good)
        for _ in range(draw.randint(1, 4)):
            place = draw.randrange(len(raw))
            if draw.random() < 0.5:
                raw[place] = draw.randrange(256)
            else:
                del raw[place : place + draw.randint(1, 30)]
        try:
            parse_document("f", bytes(raw), "host")
            taken += 1
        except hk.ArgumentError as error:
            assert error.field.startswith("f")
    assert taken > 100


# -- text --------------------------------------------------------------------------------------------


def test_the_text_has_every_engine_format_and_question(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, cache = sound(monkeypatch)
    text = host_text({**facts, "readiness": readiness(facts, cache)})
    for word in (
        "vllm 0.33.0",
        "indexer_fp8_padded",
        "not on this GPU family",
        "GPU (sm90)",
        "26 of 26",
        "races: 4 of 4",
    ):
        assert word in text
    assert all(item.question in text for item in ITEMS)
    blind = host_text({**facts, "readiness": readiness(facts)})
    assert "no facts of a cache were given (--cache): 24 questions cannot be answered" in blind
