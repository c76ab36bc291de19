# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4, Flash and Pro: the published figures, and what a resume needs at every position."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hybridkv.coverage import Checkpoint, Window
from hybridkv.errors import SpecError
from hybridkv.kinds import StateKind
from hybridkv.models.deepseek_v4 import CSA, HCA, require_overlap
from hybridkv.spec import CacheSpec, Need

CONFIGS = Path(__file__).resolve().parents[1] / "data" / "configs"
MIB, GIB = 2**20, 2**30


def read(name: str) -> dict[str, Any]:
    config = json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))
    assert isinstance(config, dict)
    return config


def spec_of(name: str, **kw: Any) -> CacheSpec:
    return CacheSpec.from_config(CONFIGS / f"{name}.json", **kw)


@pytest.mark.parametrize(
    ("name", "per_token", "window", "overlap", "total"),
    [
        ("deepseek-v4-flash", 3850.25, 3_214_336, 430_080, 3_644_416),
        ("deepseek-v4-pro", 5511.4375, 4_559_872, 614_400, 5_174_272),
    ],
)
def test_deepseek_v4_figures(name: str, per_token: float, window: int, overlap: int, total: int) -> None:
    spec = spec_of(name)
    assert spec.bytes_per_token == per_token
    assert spec.boundary_bytes == {"swa": window, "overlap": overlap, "pending": 0, "hca_tail": 0}
    assert sum(spec.boundary_bytes.values()) == total
    assert (spec.boundary_tokens, spec.boundary_group) == (256, "csa")


def test_deepseek_v4_layers() -> None:
    flash, pro = spec_of("deepseek-v4-flash"), spec_of("deepseek-v4-pro")
    order = ["csa", "hca", "indexer", "swa", "overlap", "pending", "hca_tail"]
    assert [g.name for g in flash.groups] == [g.name for g in pro.groups] == order
    assert [len(g.layers) for g in flash.groups] == [21, 20, 21, 43, 21, 21, 20]
    assert [len(g.layers) for g in pro.groups] == [30, 31, 30, 61, 30, 30, 31]
    assert flash["csa"].layers == tuple(range(2, 43, 2)) and flash["hca"].layers == tuple(range(3, 43, 2))
    assert pro["hca"].layers[:3] == (0, 1, 3)
    kinds = [StateKind.COMPRESSED] * 2 + [StateKind.INDEXER, StateKind.WINDOW] + [StateKind.TAIL] * 3
    assert [g.kind for g in flash.groups] == kinds
    assert flash["indexer"].in_step_with == "csa"
    assert [g.coverage for g in flash.groups[3:]] == [
        Window(128),
        Checkpoint(),
        Checkpoint(every=4),
        Checkpoint(every=128),
    ]
    assert flash["overlap"].parts == {"csa": 21 * 16 * 1024, "indexer": 21 * 4 * 1024}


def test_deepseek_v4_rows_and_states_have_the_published_sizes() -> None:
    flash = spec_of("deepseek-v4-flash")
    rows = {g.name: (g.row_bytes, g.page_bytes) for g in flash.groups}
    assert rows == {
        "csa": (584, 37_376),
        "hca": (584, 1_168),
        "indexer": (132, 8_448),
        "swa": (584, 128 * 584),
        "overlap": (4_096 + 1_024, 20 * 1024),
        "pending": (8_192 + 2_048, 4 * 10_240),
        "hca_tail": (4_096, 512 * 1024),
    }
    assert flash["csa"].format is not None and flash["csa"].format.footer_offset == 64 * 576
    assert spec_of("deepseek-v4-flash", unit_tokens=128)["swa"].rows_per_page == 128
    assert spec_of("deepseek-v4-flash", unit_tokens=512).bytes_per_token == 3850.25


@pytest.mark.parametrize("name", ["deepseek-v4-flash", "deepseek-v4-pro"])
def test_deepseek_v4_requirements_are_position_exact(name: str) -> None:
    spec = spec_of(name)
    csa, hca, every = (len(spec[g].layers) for g in ("csa", "hca", "swa"))
    at = spec.requirements(512)
    assert at["csa"] == Need(128, 128 * 584 * csa, range(0, 2))
    assert at["indexer"] == Need(128, 128 * 132 * csa, range(0, 2))
    assert at["hca"] == Need(4, 4 * 584 * hca, range(0, 2))
    assert at["swa"] == Need(127, 127 * 584 * every, range(1, 2))
    assert at["overlap"] == Need(4, 20 * 1024 * csa, range(1, 2))
    for name_of_tail in ("pending", "hca_tail"):
        assert at[name_of_tail].rows == at[name_of_tail].bytes == 0 and not at[name_of_tail].blocks
    at = spec.requirements(600)
    assert at["hca_tail"] == Need(88, 88 * 4096 * hca, range(2, 3))
    assert (at["csa"].rows, at["hca"].rows) == (150, 4)
    assert at["swa"] == Need(127, 127 * 584 * every, range(1, 3))
    assert at["pending"].rows == 0 and at["overlap"].rows == 4
    at = spec.requirements(603)
    assert at["pending"] == Need(3, 3 * 10_240 * csa, range(2, 3))
    assert (at["csa"].rows, at["hca_tail"].rows) == (150, 91)


def test_deepseek_v4_needs_by_position() -> None:
    spec = spec_of("deepseek-v4-flash")
    for t in range(1, 1100):
        at = spec.requirements(t)
        assert at["swa"].rows == min(t, 127)
        assert at["csa"].rows == at["indexer"].rows == t // 4 and at["hca"].rows == t // 128
        assert at["pending"].rows == t % 4 and at["hca_tail"].rows == t % 128
        assert at["overlap"].rows == (4 if t >= 4 else 0) and len(at["overlap"].blocks) == 1


def test_deepseek_v4_in_wider_rows_gives_the_quoted_totals() -> None:
    for name, gib in (("deepseek-v4-pro", 9.62), ("deepseek-v4-flash", 6.72)):
        spec = spec_of(name, dtype="bfloat16")
        assert (spec["csa"].row_bytes, spec["indexer"].row_bytes, spec["swa"].row_bytes) == (1024, 256, 1024)
        needs = spec.requirements(MIB)
        total = sum(needs[g].bytes for g in ("csa", "hca", "indexer", "swa"))
        assert abs(total / GIB - gib) < 0.005
        assert spec_of(name, dtype="float32").bytes_per_token == 2 * spec.bytes_per_token
        assert spec["overlap"].page_bytes == 20 * 1024  # states are float32 whatever rows are


def test_deepseek_v4_by_layer_types_is_deepseek_v4_by_ratios() -> None:
    names = {0: "sliding_attention", 4: CSA, 128: HCA}
    for name in ("deepseek-v4-flash", "deepseek-v4-pro"):
        legacy = read(name)
        modern = copy.deepcopy(legacy)
        ratios = modern.pop("compress_ratios")
        modern["layer_types"] = [names[r] for r in ratios[: modern["num_hidden_layers"]]]
        modern["compress_rates"] = {CSA: 4, HCA: 128}
        assert CacheSpec.from_config(modern) == CacheSpec.from_config(legacy)
        assert CacheSpec.from_config({**legacy, **modern}) == CacheSpec.from_config(legacy)  # both, agreeing
        scalars = {**modern, "compress_rates": None, "compress_rate_csa": 4, "compress_rate_hca": 128}
        assert CacheSpec.from_config(scalars) == CacheSpec.from_config(legacy)
        without_draft = {**legacy, "compress_ratios": ratios[:-1]}
        assert CacheSpec.from_config(without_draft) == CacheSpec.from_config(legacy)


def test_deepseek_v4_with_other_ratios_and_widths() -> None:
    """A tiny model: no published FP8 rows of its widths, so that rows take its own dtype."""
    tiny = {
        "model_type": "deepseek_v4",
        "num_hidden_layers": 5,
        "layer_types": ["sliding_attention", CSA, HCA, CSA, HCA],
        "compress_rates": {CSA: 4, HCA: 16},
        "head_dim": 32,
        "partial_rotary_factor": 0.5,
        "index_head_dim": 16,
        "sliding_window": 16,
        "torch_dtype": "float32",
    }
    spec = CacheSpec.from_config(tiny, unit_tokens=16)
    assert spec == CacheSpec.from_config(tiny, unit_tokens=16, dtype="float32")
    assert (spec["csa"].row_bytes, spec["indexer"].row_bytes) == (128, 64)
    assert spec.requirements(50)["hca_tail"].rows == 2
    dense = CacheSpec.from_config({**tiny, "compress_rates": {CSA: 1, HCA: 16}}, unit_tokens=16)
    assert dense["csa"].tokens_per_row == 1 and dense.requirements(50)["pending"].rows == 0
    only_sliding = {**tiny, "layer_types": ["sliding_attention"] * 5}
    assert [g.name for g in CacheSpec.from_config(only_sliding, unit_tokens=16).groups] == ["swa"]


def test_deepseek_v4_refuses_a_unit_that_splits_an_entry() -> None:
    with pytest.raises(SpecError, match="tokens_per_row"):
        spec_of("deepseek-v4-flash", unit_tokens=64)


def test_overlapping_entries_without_their_tail_are_refused() -> None:
    groups = list(spec_of("deepseek-v4-flash").groups)
    require_overlap([*groups, replace(groups[-1], name="other", format=None)])
    for without in (
        [g for g in groups if g.name != "overlap"],
        [g if g.name != "overlap" else replace(g, layers=g.layers[1:], parts=None) for g in groups],
        [g if g.name != "overlap" else replace(g, coverage=Checkpoint(every=4)) for g in groups],
    ):
        with pytest.raises(SpecError) as caught:
            require_overlap(without)
        assert caught.value.field == "groups" and "csa" in str(caught.value)
