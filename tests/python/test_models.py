# SPDX-License-Identifier: Apache-2.0
"""Model families: published figures from real configurations, and refusals by field."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from hybridkv.coverage import Checkpoint, Chunk, Prefix, Window
from hybridkv.errors import ArgumentError, SpecError, UnsupportedModel
from hybridkv.models import FAMILIES
from hybridkv.models.deepseek_v4 import CSA, HCA
from hybridkv.spec import CacheSpec

CONFIGS = Path(__file__).resolve().parents[1] / "data" / "configs"


# Per file: bytes per token, and per group: name, coverage, layers, page bytes of one layer, rows per page.
LAYOUTS: dict[str, tuple[float, list[tuple[str, Any, int, int, int]]]] = {
    "llama-3.1-8b": (131072.0, [("kv", Prefix(), 32, 256 * 4096, 256)]),
    "mistral-nemo-base-2407": (163840.0, [("kv", Prefix(), 40, 256 * 4096, 256)]),
    "mistral-defaults": (0.0, [("swa", Window(4096), 32, 256 * 4096, 256)]),
    "gemma-3-12b-it": (
        65536.0,
        [("kv", Prefix(), 8, 256 * 8192, 256), ("swa", Window(1024), 40, 256 * 8192, 256)],
    ),
    "gpt-oss-20b": (
        24576.0,
        [("kv", Prefix(), 12, 256 * 2048, 256), ("swa", Window(128), 12, 128 * 2048, 128)],
    ),
    "llama-4-scout": (
        49152.0,
        [("kv", Prefix(), 12, 256 * 4096, 256), ("chunk", Chunk(8192), 36, 256 * 4096, 256)],
    ),
    "deepseek-v2-defaults": (36864.0, [("kv", Prefix(), 32, 256 * 1152, 256)]),
    "deepseek-v3": (61 * 1152.0, [("kv", Prefix(), 61, 256 * 1152, 256)]),
    "deepseek-v3.2": (
        61 * 788.0,
        [("kv", Prefix(), 61, 256 * 656, 256), ("indexer", Prefix(), 61, 256 * 132, 256)],
    ),
    # conv: 3 inputs of (2 * 16 * 128 + value heads * 128) bf16 channels; matrix: 128 * 128 float32 a head
    "qwen3-next-defaults": (
        24576.0,
        [
            ("kv", Prefix(), 12, 256 * 2048, 256),
            ("state", Checkpoint(), 36, 3 * 8192 * 2 + 32 * 16384 * 4, 1),
        ],
    ),
    "qwen3.5-27b": (
        65536.0,
        [
            ("kv", Prefix(), 16, 256 * 4096, 256),
            ("state", Checkpoint(), 48, 3 * 10240 * 2 + 48 * 16384 * 4, 1),
        ],
    ),
    "qwen3.5-35b-a3b": (
        20480.0,
        [
            ("kv", Prefix(), 10, 256 * 2048, 256),
            ("state", Checkpoint(), 30, 3 * 8192 * 2 + 32 * 16384 * 4, 1),
        ],
    ),
    # Mamba-1: 8192 channels, 16 values each
    "jamba-1.5-mini": (
        16384.0,
        [("kv", Prefix(), 4, 256 * 4096, 256), ("state", Checkpoint(), 28, 3 * 8192 * 2 + 8192 * 16 * 4, 1)],
    ),
    # Mamba-2: channels + 2 * groups * state in the convolution, heads * width * state in the matrix
    "bamba-9b-rebuilt": (
        12288.0,
        [
            ("kv", Prefix(), 3, 256 * 4096, 256),
            ("state", Checkpoint(), 29, 3 * (8192 + 256) * 2 + 8192 * 128 * 4, 1),
        ],
    ),
    "nemotron-h-56b": (
        40960.0,
        [
            ("kv", Prefix(), 10, 256 * 4096, 256),
            ("state", Checkpoint(), 54, 3 * (16384 + 4096) * 2 + 16384 * 256 * 4, 1),
        ],
    ),
    "nemotron-3-nano-30b-a3b": (
        6144.0,
        [
            ("kv", Prefix(), 6, 256 * 1024, 256),
            ("state", Checkpoint(), 23, 3 * (4096 + 2048) * 2 + 4096 * 128 * 4, 1),
        ],
    ),
}


def read(name: str) -> dict[str, Any]:
    config = json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))
    assert isinstance(config, dict)
    return config


def spec_of(name: str, **kw: Any) -> CacheSpec:
    return CacheSpec.from_config(CONFIGS / f"{name}.json", **kw)


def refused(field: str, config: Any, **kw: Any) -> UnsupportedModel:
    with pytest.raises(UnsupportedModel) as caught:
        CacheSpec.from_config(config, **kw)
    assert caught.value.field == field, caught.value
    assert caught.value.context["model_type"] == config.get("model_type")
    return caught.value


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout(name: str) -> None:
    spec = spec_of(name)
    growth, groups = LAYOUTS[name]
    assert spec.bytes_per_token == growth
    found = [(g.name, g.coverage, len(g.layers), g.page_bytes, g.rows_per_page) for g in spec.groups]
    assert found == groups
    for group in spec.groups:
        assert group.block_tokens == spec.unit_tokens == 256 and group.format is not None
        assert group.row_bytes is not None and group.row_bytes * (group.rows_per_page or 1) == group.page_bytes


def test_every_family_has_a_configuration() -> None:
    tried = set()
    for path in CONFIGS.glob("*.json"):
        config = read(path.stem)
        tried |= {config["model_type"], config.get("text_config", {}).get("model_type")}
        CacheSpec.from_config(config)
    assert set(FAMILIES) <= tried


def test_one_model_has_one_format_however_its_rotation_is_told() -> None:
    """transformers rewrites rope_scaling into nested rope_parameters; the bytes are the same."""
    legacy = read("deepseek-v4-flash")
    modern = copy.deepcopy(legacy)
    yarn = modern.pop("rope_scaling")
    yarn = {"rope_type": yarn.pop("type"), "attention_factor": 1.0, **{k: float(v) for k, v in yarn.items()}}
    modern["partial_rotary_factor"] = modern.pop("qk_rope_head_dim") / 512
    modern["rope_parameters"] = {
        "main": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.125},
        "compress": {**yarn, "rope_theta": 160000.0, "partial_rotary_factor": 0.125},
    }
    assert CacheSpec.from_config(modern) == CacheSpec.from_config(legacy)
    modern["rope_parameters"]["compress"]["factor"] = 8
    assert CacheSpec.from_config(modern)["csa"].fingerprint != CacheSpec.from_config(legacy)["csa"].fingerprint

    legacy = read("llama-3.1-8b")
    modern = {k: v for k, v in legacy.items() if k not in ("rope_scaling", "rope_theta")}
    modern["rope_parameters"] = {**legacy["rope_scaling"], "rope_theta": legacy["rope_theta"]}
    assert CacheSpec.from_config(modern) == CacheSpec.from_config(legacy)

    assert CacheSpec.from_config({**legacy, "rope_parameters": {}}) == CacheSpec.from_config(legacy)

    legacy = read("gemma-3-12b-it")
    modern = copy.deepcopy(legacy)
    full = {"rope_theta": 1_000_000.0, **modern["text_config"].pop("rope_scaling")}
    modern["text_config"]["rope_parameters"] = {
        "full_attention": full,
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    }
    assert CacheSpec.from_config(modern) == CacheSpec.from_config(legacy)
    assert CacheSpec.from_config(legacy)["swa"].fingerprint != CacheSpec.from_config(legacy)["kv"].fingerprint


@pytest.mark.parametrize(
    ("name", "field", "change"),
    [
        ("deepseek-v4-flash", "compress_ratios", {"compress_ratios": [0, 4, 16] + [4] * 41}),
        ("deepseek-v4-flash", "compress_ratios", {"compress_ratios": [4] * 42}),
        ("deepseek-v4-flash", "compress_ratios", {"compress_ratios": [4] * 45}),
        ("deepseek-v4-flash", "compress_ratios", {"compress_ratios": None}),
        ("deepseek-v4-flash", "compress_ratios", {"compress_ratios": "4"}),
        (
            "deepseek-v4-flash",
            "compress_ratios",
            {"num_nextn_predict_layers": None},
        ),
        ("deepseek-v4-flash", "layer_types", {"layer_types": [CSA] * 43}),
        ("deepseek-v4-flash", "layer_types", {"layer_types": [CSA] * 42}),
        ("deepseek-v4-flash", "layer_types", {"layer_types": ["full_attention"] * 43}),
        ("deepseek-v4-flash", "compress_ratios", {"compress_rates": {CSA: 8}}),
        ("deepseek-v4-flash", "compress_rates", {"compress_rates": [4, 128]}),
        ("deepseek-v4-defaults", "compress_rates", {"compress_rates": None}),
        ("deepseek-v4-defaults", "compress_rates", {"compress_rates": {CSA: 4}}),
        ("deepseek-v4-defaults", "compress_rates", {"compress_rates": {CSA: 0, HCA: 128}}),
        ("deepseek-v4-defaults", "compress_rates", {"compress_rates": {CSA: True, HCA: 128}}),
        ("deepseek-v4-defaults", "compress_rates", {"compress_rates": {CSA: "4", HCA: 128}}),
        ("deepseek-v4-flash", "rms_norm_eps", {"rms_norm_eps": "1e-6"}),
        ("deepseek-v4-flash", "rms_norm_eps", {"rms_norm_eps": True}),
        ("nemotron-h-56b", "hybrid_override_pattern", {"hybrid_override_pattern": ""}),
        ("nemotron-h-56b", "hybrid_override_pattern", {"hybrid_override_pattern": ["M"]}),
        ("deepseek-v4-defaults", "compress_rate_csa", {"compress_rate_csa": 2}),
        ("deepseek-v4-flash", "sliding_window", {"sliding_window": None}),
        ("deepseek-v4-flash", "sliding_window", {"sliding_window": 0}),
        ("deepseek-v4-flash", "head_dim", {"head_dim": True}),
        ("deepseek-v4-flash", "index_head_dim", {"index_head_dim": None}),
        ("deepseek-v4-flash", "qk_rope_head_dim", {"qk_rope_head_dim": None}),
        ("deepseek-v4-flash", "num_hidden_layers", {"num_hidden_layers": 43.0}),
        ("deepseek-v4-flash", "dtype", {"dtype": "float16", "head_dim": 256}),
        ("deepseek-v3", "index_head_dim", {"index_head_dim": 128}),
        ("deepseek-v3", "kv_lora_rank", {"kv_lora_rank": None}),
        ("deepseek-v3", "dtype", {"torch_dtype": None}),
        ("deepseek-v3", "torch_dtype", {"torch_dtype": "float8_e4m3fn"}),
        ("deepseek-v3.2", "index_head_dim", {"index_head_dim": None}),
        ("deepseek-v3.2", "layer_types", {"layer_types": ["full_attention"] * 61}),
        ("llama-3.1-8b", "sliding_window", {"sliding_window": 4096}),
        ("llama-3.1-8b", "num_attention_heads", {"num_attention_heads": None}),
        ("llama-3.1-8b", "head_dim", {"num_attention_heads": 33}),
        ("mistral-nemo-base-2407", "layer_types", {"layer_types": ["full_attention"] * 40}),
        ("mistral-nemo-base-2407", "sliding_window", {"sliding_window": -1}),
        ("gpt-oss-20b", "layer_types", {"layer_types": None}),
        ("gpt-oss-20b", "layer_types", {"layer_types": ["chunked_attention"] * 24}),
        ("gpt-oss-20b", "sliding_window", {"sliding_window": None}),
        ("jamba-1.5-mini", "attn_layer_offset", {"attn_layer_offset": 8}),
        ("jamba-1.5-mini", "attn_layer_offset", {"attn_layer_offset": None}),
        ("jamba-1.5-mini", "attn_layer_period", {"attn_layer_period": None}),
        ("jamba-1.5-mini", "mamba_d_state", {"mamba_d_state": None}),
        ("jamba-1.5-mini", "sliding_window", {"sliding_window": 128}),
        ("bamba-9b-rebuilt", "attn_layer_indices", {"attn_layer_indices": None}),
        ("bamba-9b-rebuilt", "attn_layer_indices", {"attn_layer_indices": [32]}),
        ("bamba-9b-rebuilt", "mamba_d_head", {"mamba_d_head": 32}),
        ("bamba-9b-rebuilt", "mamba_d_head", {"mamba_n_heads": 127}),
        ("nemotron-h-56b", "hybrid_override_pattern", {"hybrid_override_pattern": "M-X"}),
        ("nemotron-h-56b", "hybrid_override_pattern", {"hybrid_override_pattern": "M-*-"}),
        ("nemotron-h-56b", "layer_types", {"hybrid_override_pattern": None}),
        ("nemotron-h-56b", "head_dim", {"attention_head_dim": None}),
        ("nemotron-h-56b", "head_dim", {"head_dim": 64}),
        ("nemotron-h-56b", "sliding_window", {"sliding_window": 128}),
        ("nemotron-3-nano-30b-a3b", "mamba_ssm_cache_dtype", {"mamba_ssm_cache_dtype": "int8"}),
        ("nemotron-3-nano-30b-a3b", "n_groups", {"mamba_n_groups": 4}),
        ("qwen3-next-defaults", "layer_types", {"layer_types": ["linear_attention"] * 47}),
        ("qwen3-next-defaults", "layer_types", {"layer_types": None}),
        ("qwen3-next-defaults", "layer_types", {"full_attention_interval": 6}),
        ("qwen3-next-defaults", "linear_num_key_heads", {"linear_num_key_heads": None}),
    ],
)
def test_missing_and_contradictory_fields_are_refused_by_name(name: str, field: str, change: dict[str, Any]) -> None:
    refused(field, {**read(name), **change})


@pytest.mark.parametrize(
    ("name", "field", "change"),
    [
        ("gemma-3-12b-it", "layer_types", {"layer_types": ["sliding_attention"] * 47}),
        ("gemma-3-12b-it", "use_bidirectional_attention", {"use_bidirectional_attention": True}),
        ("gemma-3-12b-it", "sliding_window", {"sliding_window": None}),
        ("llama-4-scout", "no_rope_layers", {"no_rope_layers": [1, 0]}),
        ("llama-4-scout", "no_rope_layers", {"no_rope_layers": [2] * 48}),
        (
            "llama-4-scout",
            "layer_types",
            {"layer_types": ["full_attention"] * 48, "no_rope_layers": [1] * 48},
        ),
        ("llama-4-scout", "attention_chunk_size", {"attention_chunk_size": 0}),
        ("qwen3.5-27b", "layer_types", {"full_attention_interval": 8}),
        ("qwen3.5-27b", "mamba_ssm_dtype", {"mamba_ssm_dtype": "fp4"}),
    ],
)
def test_fields_of_the_nested_text_model_are_refused_by_name(name: str, field: str, change: dict[str, Any]) -> None:
    config = read(name)
    config["text_config"].update(change)
    refused(field, config)


def test_a_text_config_that_is_no_mapping_is_refused() -> None:
    refused("text_config", {**read("gemma-3-12b-it"), "text_config": [1]})


def test_gemma_3_by_pattern_by_types_and_flat() -> None:
    nested = read("gemma-3-12b-it")
    spec = CacheSpec.from_config(nested)
    assert spec["kv"].layers == tuple(range(5, 48, 6))
    types = ["sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(48)]
    flat = {**nested["text_config"], "torch_dtype": "bfloat16"}
    assert CacheSpec.from_config({**flat, "layer_types": types}) == CacheSpec.from_config(flat) == spec
    assert CacheSpec.from_config({**flat, "sliding_window_pattern": 6}) == spec
    assert CacheSpec.from_config({**flat, "sliding_window_pattern": 2})["kv"].layers == tuple(range(1, 48, 2))
    refused("layer_types", {**flat, "layer_types": types, "sliding_window_pattern": 2})


def test_llama_4_by_interval_by_flags_and_by_types() -> None:
    nested = read("llama-4-scout")
    spec = CacheSpec.from_config(nested)
    assert spec["kv"].layers == tuple(range(3, 48, 4))
    text = nested["text_config"]
    flags = [int((i + 1) % 4 != 0) for i in range(48)]
    types = ["chunked_attention" if f else "full_attention" for f in flags]
    for change in (
        {"no_rope_layers": flags},
        {"no_rope_layers": []},
        {"layer_types": types},
        {"no_rope_layer_interval": 4},
    ):
        assert CacheSpec.from_config({**nested, "text_config": {**text, **change}}) == spec
    whole = CacheSpec.from_config({**nested, "text_config": {**text, "attention_chunk_size": None}})
    assert [g.name for g in whole.groups] == ["kv"] and len(whole["kv"].layers) == 48
    assert spec.boundary_bytes == {"chunk": 31 * 36 * 256 * 4096}
    assert spec.requirements(8192)["chunk"].rows == 0 and spec.requirements(8192 + 700)["chunk"].rows == 700


def test_mistral_without_the_field_is_refused() -> None:
    config = read("mistral-defaults")
    del config["sliding_window"]
    refused("sliding_window", config)


def test_jamba_may_begin_with_attention() -> None:
    spec = CacheSpec.from_config({**read("jamba-1.5-mini"), "attn_layer_offset": 0})
    assert spec["kv"].layers == (0, 8, 16, 24)


def test_nemotron_h_by_list_of_types() -> None:
    config = read("nemotron-h-56b")
    spec = CacheSpec.from_config(config)
    names = {"M": "mamba", "*": "attention", "-": "mlp"}
    listed = [names[letter] for letter in config.pop("hybrid_override_pattern")]
    assert CacheSpec.from_config({**config, "layers_block_type": listed}) == spec
    del config["num_hidden_layers"]
    assert CacheSpec.from_config({**config, "layer_types": listed}) == spec


def test_states_in_the_dtype_that_the_configuration_names() -> None:
    config = read("nemotron-3-nano-30b-a3b")
    half = CacheSpec.from_config({**config, "mamba_ssm_cache_dtype": "bfloat16"})
    assert half["state"].page_bytes == 3 * 6144 * 2 + 4096 * 128 * 2
    wide = CacheSpec.from_config(config, dtype="float32")
    assert wide["state"].page_bytes == 3 * 6144 * 4 + 4096 * 128 * 4
    assert half["state"].parts == {"conv": 23 * 3 * 6144 * 2, "matrix": 23 * 4096 * 128 * 2}
    for t in (1, 255, 256, 1000):
        assert half.requirements(t)["state"].rows == 1
    assert half.requirements(0)["state"].rows == 0


@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_fp8_without_published_rows_is_the_own_dtype(name: str) -> None:
    if name == "deepseek-v3.2":
        bf16 = spec_of(name, dtype="bfloat16")
        assert (bf16["kv"].row_bytes, bf16["indexer"].row_bytes) == (1152, 256)
        return
    assert spec_of(name) == spec_of(name, dtype="bfloat16")
    assert spec_of(name, dtype="float32").bytes_per_token == 2 * spec_of(name).bytes_per_token


def test_formats_tell_models_and_rows_apart() -> None:
    flash, wide = spec_of("deepseek-v4-flash"), spec_of("deepseek-v4-flash", dtype="bfloat16")
    prints = [g.fingerprint for g in flash.groups] + [g.fingerprint for g in wide.groups[:4]]
    assert len(set(prints)) == 11
    other_eps = CacheSpec.from_config({**read("deepseek-v4-flash"), "rms_norm_eps": 1e-20})
    assert other_eps["csa"].fingerprint != flash["csa"].fingerprint
    assert spec_of("deepseek-v4-flash")["csa"].fingerprint == flash["csa"].fingerprint


def test_unknown_models_are_told_with_what_was_read() -> None:
    error = refused("model_type", {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 12})
    assert error.got == "gpt2" and error.context["architectures"] == ["GPT2LMHeadModel"]
    assert "deepseek_v4" in str(error.expected)
    for config in (
        {},
        {"model_type": None},
        {"model_type": ["llama"]},
        {"hidden_size": 4096, "num_attention_heads": 32},
    ):
        refused("model_type", config)


def test_bad_arguments(tmp_path: Path) -> None:
    for dtype in ("fp4", None, 8):
        with pytest.raises(ArgumentError, match="dtype"):
            spec_of("llama-3.1-8b", dtype=dtype)
    for unit in (0, -1, True, 1.5):
        with pytest.raises(SpecError, match="unit_tokens"):
            spec_of("llama-3.1-8b", unit_tokens=unit)
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    for config in (
        tmp_path / "absent.json",
        tmp_path / "broken.json",
        tmp_path / "list.json",
        3,
        None,
        [1],
        tmp_path,
    ):
        with pytest.raises(ArgumentError, match="config"):
            CacheSpec.from_config(config)  # type: ignore[arg-type]


def test_a_folder_stands_for_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(read("llama-3.1-8b")), encoding="utf-8")
    assert CacheSpec.from_config(str(tmp_path)) == spec_of("llama-3.1-8b")
