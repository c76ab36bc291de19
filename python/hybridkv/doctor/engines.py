# SPDX-License-Identifier: Apache-2.0
"""Engines: which are installed, by their metadata alone, and which formats each version is known to write.

Nothing here imports an engine. What a version is known to write was read in its sources; of any other version nothing
is known, and that is what is said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

DISTRIBUTIONS: Mapping[str, tuple[str, ...]] = {
    "vllm": ("vllm",),
    "sglang": ("sglang",),
    "tensorrt_llm": ("tensorrt_llm", "tensorrt-llm"),
    "flashinfer": ("flashinfer-python", "flashinfer"),
    "flash_mla": ("flash_mla", "flash-mla"),
    "lmcache": ("lmcache",),
    "transformers": ("transformers",),
}
"""Engines by their names, each with the names of the packages that bring it."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """What the versions of an engine from `first` to `last` do with the bytes of caches.

    Parameters
    ----------
    engine : str
        Its name in :data:`DISTRIBUTIONS`.
    first, last : str
        The versions that were read, ends included; as many numbers of a version are compared as are given.
    role : {"writes", "reads", "passes on"}
        What it does with them.
    formats : tuple of str
        Names of the registry of formats.
    families : mapping of str to tuple of str
        GPU families on which a format is written, of those that are not written on all.
    revision : str
        What tells these versions from others that write formats of the same names; "" where nothing does.
    source : str
        Where that was read.
    """

    engine: str
    first: str
    last: str
    role: str
    formats: tuple[str, ...]
    families: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    revision: str = ""
    source: str


_TRANSFORMERS = ("transformers_tail", "transformers_overlap", "gated_delta", "mamba2", "mamba1")

KNOWN = (
    Known(
        engine="vllm",
        first="0.33",
        last="0.33",
        role="writes",
        formats=(
            *("fp8_ds_mla_v4_vllm", "fp8_ds_mla_v32", "indexer_fp8_padded", "indexer_fp8_ue8m0"),
            *("indexer_mxfp4_padded", "v41_fp8", "v41_fp4", "csa_ring", "csa_indexer_ring", "hca_ring"),
            *("paged_vllm", "paged_flashinfer_nhd", "bfloat16_rows"),
        ),
        families={
            "indexer_fp8_padded": ("sm90",),
            "indexer_fp8_ue8m0": ("sm100",),
            "indexer_mxfp4_padded": ("sm100", "sm120"),
        },
        source="vllm 0.33.0: models/deepseek_v4, v1/attention/backends/mla",
    ),
    Known(
        engine="sglang",
        first="0.5.23",
        last="0.5.23",
        role="writes",
        formats=(
            *("fp8_ds_mla_v4", "fp8_ds_mla_v4_flashinfer", "fp8_ds_mla_v32", "fp8_unified_split"),
            *("indexer_fp8_hadamard", "indexer_mxfp4", "v41_fp8", "v41_fp4", "v41_fp8_new", "v41_fp4_new"),
            *("csa_ring", "csa_ring_draft", "csa_indexer_ring", "hca_ring", "hca_ring_draft", "hca_online"),
            *("paged_sglang", "bfloat16_rows"),
        ),
        families={"fp8_ds_mla_v4_flashinfer": ("sm120",), "fp8_unified_split": ("rocm",)},
        source="sglang 0.5.23: srt/mem_cache, kernels/ops/attention/dsv4/kv_layout.py",
    ),
    Known(
        engine="lmcache",
        first="0.5.6",
        last="0.5.6",
        role="passes on",
        formats=(),
        source="lmcache 0.5.6: chunks of whatever the engine wrote; nobody compares formats",
    ),
    Known(
        engine="transformers",
        first="5.8.0",
        last="5.8.0",
        role="writes",
        formats=_TRANSFORMERS,
        revision="other numbers in states of the same names, shapes and dtypes",
        source="measured: its states change every output of 5.23.0",
    ),
    Known(
        engine="transformers",
        first="5.12.0",
        last="5.23.0",
        role="writes",
        formats=_TRANSFORMERS,
        revision="the overlap gate in the model's dtype",
        source="measured: 5.12.0, 5.20.0, 5.23.0",
    ),
    Known(
        engine="transformers",
        first="5.24.0",
        last="5.24.0",
        role="writes",
        formats=_TRANSFORMERS,
        revision="the overlap gate in float32",
        source="transformers 5.24.0: models/deepseek_v4/modular_deepseek_v4.py",
    ),
)
"""What was read in the sources of engines, or measured. TensorRT-LLM, FlashInfer and FlashMLA were read at commits that
are no release: of their releases nothing is known."""


def installed(version_of: Any = metadata.version) -> dict[str, str | None]:
    """Return the version of every engine, None where it is not installed; no engine is imported.

    Parameters
    ----------
    version_of : callable, optional
        What returns the version of a package by its name, or raises PackageNotFoundError.
    """
    return {engine: _version(names, version_of) for engine, names in DISTRIBUTIONS.items()}


def _version(names: tuple[str, ...], version_of: Any) -> str | None:
    for name in names:
        try:
            version = version_of(name)
        except metadata.PackageNotFoundError:
            continue
        if isinstance(version, str):  # metadata without a version is metadata of nothing
            return version
    return None


def known_of(engine: str, version: str) -> Known | None:
    """Return what is known of a version of an engine; None: nothing."""
    for known in KNOWN:
        if known.engine == engine and _between(known.first, version, known.last):
            return known
    return None


def read_versions(engine: str) -> str:
    """Say which versions of an engine were read, for people."""
    spans = [k.first if k.first == k.last else f"{k.first} to {k.last}" for k in KNOWN if k.engine == engine]
    return ", ".join(spans) or "none"


def _between(first: str, version: str, last: str) -> bool:
    if re.search(r"[a-z]", version.partition("+")[0].replace(".post", "")):
        return False  # a version before a release is none that was read
    low, high, numbers = _numbers(first), _numbers(last), _numbers(version)
    padded = (*numbers, *(0,) * (max(len(low), len(high)) - len(numbers)))
    return bool(numbers) and low <= padded[: len(low)] and padded[: len(high)] <= high


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d{1,9}(?:\.\d{1,9})*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()
