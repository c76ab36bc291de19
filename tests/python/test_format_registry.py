# SPDX-License-Identifier: Apache-2.0
"""The registry: entries that declare everything, golden vectors under every Python at hand, what the core compares."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from format_vectors import DOCUMENT, GOLDEN, ROOT, vectors
from hybridkv.formats import REGISTRY, FormatEntry, Registry
from hybridkv.formats.format_entry import APPLIES, BY_DEPLOYMENT, BY_MODEL
from hybridkv.formats.tables import sections, written_into
from hybridkv.reference.published import PUBLISHED

ENTRIES = list(REGISTRY.values())
VECTORS = json.loads(GOLDEN.read_text(encoding="ascii"))

SAME_SIZE: list[tuple[str, hk.KvFormat, hk.KvFormat]] = [
    ("scale", REGISTRY["indexer_fp8"].format, REGISTRY["indexer_fp8_ue8m0"].format),
    ("hadamard", REGISTRY["indexer_fp8"].format, REGISTRY["indexer_fp8_hadamard"].format),
    ("row_order", REGISTRY["indexer_fp8"].format, REGISTRY["indexer_fp8_page8"].format),
    ("page_stride", REGISTRY["indexer_fp8"].format, REGISTRY["indexer_fp8_padded"].format),
    ("state_format", REGISTRY["csa_ring"].format, REGISTRY["csa_reference"].format),
    ("scale_floor", REGISTRY["fp8_ds_mla_v4_flashinfer"].format, REGISTRY["fp8_ds_mla_v4_trtllm"].format),
    ("scale_placement", REGISTRY["v41_fp8"].format, REGISTRY["v41_fp8_new"].format),
    ("head_layout", REGISTRY["paged_flashinfer_nhd"].format, REGISTRY["paged_flashinfer_hnd"].format),
    ("kv_order", REGISTRY["paged_vllm"].format, REGISTRY["paged_flashinfer_nhd"].format),
    *(
        (field, REGISTRY[name].format, replace(REGISTRY[name].format, **{field: value}))
        for name, field, value in [
            ("fp8_ds_mla_v4", "position_convention", "absolute_halves"),
            ("fp8_ds_mla_v4", "channel_order", "rope|nope|scales"),
            ("fp8_ds_mla_v4", "row_stride", 640),
            ("fp8_ds_mla_v4_vllm", "rounding_point", "before_norm"),
            ("csa_ring", "bias_added", False),
            ("csa_ring", "gate_dtype", "bfloat16"),
            ("csa_ring", "half_order", "second_feeds_next"),
        ]
    ),
]


@pytest.mark.parametrize(("field", "ours", "theirs"), SAME_SIZE, ids=[row[0] for row in SAME_SIZE])
def test_bytes_of_one_size_that_mean_two_things_are_told_apart(field: str, ours: Any, theirs: Any) -> None:
    assert ours.row_bytes == theirs.row_bytes and ours.dtype == theirs.dtype
    assert ours.fingerprint != theirs.fingerprint
    assert field in [d.field for d in ours.diff(theirs)]


@pytest.mark.parametrize("entry", ENTRIES, ids=list(REGISTRY))
def test_an_entry_declares_every_field_or_says_who_does(entry: FormatEntry) -> None:
    has = set(entry.format.declared())
    assert has - {"schema"} <= set(APPLIES[entry.kind]) | {*BY_MODEL, *BY_DEPLOYMENT}
    assert not has & set(entry.leaves_open) and all(entry.leaves_open.values())
    assert entry.used_by and entry.says
    assert REGISTRY[entry.name] is entry and entry.name in REGISTRY.named(entry.format)
    forgotten = next(f for f in APPLIES[entry.kind] if f in has and f not in ("layout", "dtype", "scale", "rope_dims"))
    with pytest.raises(hk.SpecError, match=forgotten) as caught:
        replace(entry, format=replace(entry.format, **{forgotten: None}))
    assert entry.name in caught.value.field
    with pytest.raises(hk.SpecError, match="declared or left open"):
        replace(entry, leaves_open={**entry.leaves_open, forgotten: "nobody"})


def test_a_field_that_means_nothing_for_a_kind_is_refused() -> None:
    entry = REGISTRY["paged_vllm"]
    with pytest.raises(hk.SpecError, match="hadamard"):
        replace(entry, format=replace(entry.format, hadamard=True))
    with pytest.raises(hk.SpecError, match="one of rows"):
        replace(entry, kind="other")
    with pytest.raises(hk.SpecError, match="different names"):
        Registry([entry, entry])


def test_no_two_entries_are_one_format() -> None:
    assert len({entry.format.fingerprint for entry in ENTRIES}) == len(ENTRIES) == len(REGISTRY) >= 38
    assert list(REGISTRY) == [entry.name for entry in ENTRIES]


@pytest.mark.parametrize("name", ["fp8_ds_mla_v5", "", "FP8", None, 3, ["csa_ring"]])
def test_an_unknown_name_is_a_typed_error(name: Any) -> None:
    with pytest.raises(hk.ArgumentError) as caught:
        REGISTRY[name]
    assert caught.value.field == "format" and (name != "fp8_ds_mla_v5" or "fp8_ds_mla_v4" in str(caught.value))
    assert name not in REGISTRY and REGISTRY.get(name) is None


def test_declare_takes_what_is_there_and_no_more() -> None:
    entry = REGISTRY["fp8_ds_mla_v4"]
    assert entry.declare("tile", "scale") == hk.KvFormat("fp8_ds_mla", "float8_e4m3", tile=64, scale="ue8m0")
    with pytest.raises(hk.ArgumentError, match="theta"):
        entry.declare("theta")


def test_pages_of_another_size() -> None:
    entry = REGISTRY["fp8_ds_mla_v4"]
    assert entry.paged(64) == entry.format
    two = entry.paged(2)
    assert (two.page_rows, two.page_stride, two.footer_offset) == (2, 1728, 1152)
    assert REGISTRY["fp8_ds_mla_v4_flashinfer"].format.page_stride == 64 * 584
    for bad in (0, True, 1.5):
        with pytest.raises(hk.SpecError):
            entry.paged(bad)  # type: ignore[arg-type]
    with pytest.raises(hk.SpecError, match="paged_vllm"):
        REGISTRY["paged_vllm"].paged(16)


KERNEL_NAMES = {
    "fp8_ds_mla_v4": "fp8_ds_mla",
    "fp8_ds_mla_v4_flashinfer": "fp8_ds_mla_512",
    "fp8_ds_mla_v32": "fp8_ds_mla_v32",
    "indexer_fp8": "indexer_fp8",
    "indexer_fp8_ue8m0": "indexer_fp8_ue8m0",
    "indexer_mxfp4": "indexer_mxfp4",
    "v41_fp8": "v41_fp8",
    "v41_fp4": "v41_fp4",
    "bfloat16_rows": "bfloat16",
}


@pytest.mark.parametrize("name", KERNEL_NAMES)
def test_an_entry_is_what_the_kernels_call_the_same_rows(name: str) -> None:
    """The kernels' own declaration has no rotated channels, and of the distance of pages what it is a multiple of."""
    made, kernels = REGISTRY[name].row_format(), PUBLISHED[KERNEL_NAMES[name]]
    assert made is not None and (made.page_stride, made.footer_offset) == (kernels.page_stride, kernels.footer_offset)
    same = replace(made, name=kernels.name, stride_multiple=kernels.stride_multiple, rope_dims=0, interleaved=None)
    assert same == kernels


def test_every_published_row_format_is_an_entry() -> None:
    assert set(KERNEL_NAMES.values()) == set(PUBLISHED)


def test_row_formats_agree_with_what_is_declared() -> None:
    made = [(entry, entry.row_format()) for entry in ENTRIES]
    assert {entry.name for entry, row in made if entry.kind == "rows" and row is None} == {
        *("fp8_tensor", "fp8_unified_split", "indexer_fp8_page8")
    }
    for entry, row in made:
        if row is not None:
            own = entry.format
            assert (row.row_bytes, row.page_rows, row.page_stride) == (own.row_bytes, own.page_rows, own.page_stride)
            assert row.data_bytes == own.row_stride and row.hadamard == own.hadamard
            assert own.footer_offset in (None, row.footer_offset)


# ---- golden vectors ------------------------------------------------------------------------------


def test_golden_vectors() -> None:
    """What a store was written under must stay what it was; a new entry adds a line by `format_vectors.py --write`."""
    assert vectors() == VECTORS


def _ran(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(Path.home()), **variables}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def _pythons() -> list[str]:
    named = [shutil.which(f"python3.{minor}") for minor in range(11, 16)]
    installed = sorted(str(path) for path in Path.home().glob(".pyenv/versions/3.1[1-9]*/bin/python3"))
    found: dict[str, str] = {}
    for python in (sys.executable, *(path for path in named if path), *installed):
        told = _ran([python, "-c", "import sys; print(sys.version_info >= (3, 11), sys.version)"])
        if told.returncode == 0 and told.stdout.startswith("True"):
            found.setdefault(told.stdout.split()[1], python)
    return list(found.values())


def test_vectors_are_the_same_under_every_hash_seed_and_python(capsys: pytest.CaptureFixture[str]) -> None:
    package = str(Path(hk.__file__).parent)
    script = str(ROOT / "tests" / "python" / "format_vectors.py")
    pythons = _pythons()
    for python, seed in [*((sys.executable, seed) for seed in ("0", "1")), *((python, "random") for python in pythons)]:
        run = _ran([python, "-S", "-B", script, package], PYTHONHASHSEED=seed, LC_ALL="C")
        assert run.returncode == 0, f"{python}: {run.stderr}"
        assert json.loads(run.stdout) == VECTORS, python
    with capsys.disabled():
        print(f"\ngolden vectors of {len(VECTORS)} formats: the same by {len(pythons)} Pythons")


# ---- the document --------------------------------------------------------------------------------


def test_the_tables_of_the_document_are_those_of_the_registry() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert written_into(text) == text, "PYTHONPATH=python python tests/python/format_vectors.py --write"
    assert all(f"<!-- generated: {name} -->" in text for name in sections())
    with pytest.raises(KeyError):
        written_into("<!-- generated: luck -->\n<!-- end -->")


# ---- the core ------------------------------------------------------------------------------------


def test_the_core_compares_fingerprints_and_nothing_else() -> None:
    """A page carries the number of its writer's fingerprint, a match that of its reader's: equal or FALSE_HIT(ABI)."""
    chosen = [ENTRIES[i] for i in range(0, len(ENTRIES), 3)]
    group = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64 * 584, format=chosen[0].format)
    spec = hk.CacheSpec(16, [group])
    cache = hk.HybridCache(spec, blocks=len(chosen))
    assert cache._core.format(0) == chosen[0].format.fingerprint
    keys = [hk.block_keys([number] * 16, 16) for number in range(len(chosen))]
    for writer, key in zip(chosen, keys, strict=True):
        cache.insert(key, formats={"kv": writer.format})
    for writer, key in zip(chosen, keys, strict=True):
        for reader in chosen:
            given = replace(reader.format, producer="another")  # cosmetic: the same fingerprint
            verdict = cache.match(key, limit=17, formats={"kv": given})
            if reader is writer:
                assert verdict.outcome is hk.Outcome.REUSABLE
                assert verdict.lease is not None
                verdict.lease.cancel()
            else:
                why = verdict.why
                assert why is not None and (why.check, why.code) == (hk.Check.ABI, "format")
                told = hk.formats.relation(given, writer.format)
                convertible = told.compatibility is hk.formats.Compatibility.CONVERTIBLE
                assert (verdict.remedy is hk.Remedy.CONVERT) is convertible
                assert verdict.plan.converter == told.plan
                assert verdict.plan.conversions == ((("kv", 0),) if convertible else ())
    cache.close()


CONFIGS = ROOT / "tests" / "data" / "configs"


def test_models_declare_what_the_registry_does() -> None:
    """Formats of `from_config` agree with an entry in every field that both declare, under the entry's layout."""
    tried = 0
    for path in sorted(CONFIGS.glob("*.json")):
        try:
            spec = hk.CacheSpec.from_config(path)
        except hk.HybridKVError:
            continue
        for made in (group.format for group in spec.groups):
            assert made is not None
            has = made.declared()
            entries = [e for e in ENTRIES if (e.format.layout, e.format.dtype) == (made.layout, made.dtype)]
            shared = [{f: v for f, v in e.format.declared().items() if f in has} for e in entries]
            places = {"page_rows", "footer_offset", "ring_rows", "row_bytes", "overlap"}  # of a page's size and a width
            fits = [all(has[f] == v for f, v in own.items() if f not in places) for own in shared]
            assert not entries or any(fits), (path.name, made)
            tried += bool(entries)
    assert tried >= 8


def test_page_bytes_are_real_pages() -> None:
    """The page of an entry holds its rows, and its footer begins where the rows end."""
    for entry in ENTRIES:
        own = entry.format
        if own.page_rows and own.row_bytes:
            assert own.page_stride is not None and own.page_stride >= own.page_rows * own.row_bytes
            assert own.footer_offset in (None, own.page_rows * (own.row_stride or 0))
            assert np.gcd(own.page_stride, own.alignment or 1) == own.alignment
