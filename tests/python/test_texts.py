# SPDX-License-Identifier: Apache-2.0
"""Texts and paths that nothing can be made of are refused where they are given, by the name of the field."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from hybridkv import digests
from hybridkv.alignment import KernelNeeds
from hybridkv.doctor.documents import read_document
from hybridkv.reference import RowFormat
from hybridkv.replay.shapes import find_shape
from hybridkv.replay.trace import load_trace

HALF = "name \ud800"
SECRET = bytes(32)


def group(**fields: Any) -> hk.CacheGroup:
    given: dict[str, Any] = {"name": "kv", "page_bytes": 64, **fields}
    return hk.CacheGroup(given.pop("name"), hk.StateKind.COMPRESSED, hk.Prefix(), **given)


def cache(**more: Any) -> hk.HybridCache:
    return hk.HybridCache(hk.CacheSpec(16, [group()]), blocks=4, **more)


def lent(owner: str) -> None:
    made, keys = cache(), hk.block_keys(range(16), 16)
    made.insert(keys)
    lease = made.match(keys, limit=keys.tokens + 1).lease
    assert lease is not None
    with lease:
        lease.lend(owner)


def reserved(owner: str) -> None:
    cache().reserve(hk.block_keys(range(16), 16), owner=owner)


def captured(name: str) -> None:
    hk.graph.Topology.capture({name: np.zeros(4)}, hk.CacheSpec(16, [group()]), max_blocks=4, padding=-1)


def padded(name: str) -> None:
    hk.graph.Topology.capture({}, hk.CacheSpec(16, [group()]), max_blocks=4, padding={"kv": {name: -1}})


_FORMAT_TEXTS = [
    name
    for name, parameter in inspect.signature(hk.KvFormat).parameters.items()
    if str(parameter.annotation).split(" ")[0] == "str"
]

_SETTINGS: dict[str, Callable[[str], Any]] = {
    "value": lambda text: {"a": text},
    "key": lambda text: {text: 1},
    "deep": lambda text: {"a": [{"b": text}]},
}


def _identity(name: str, made: Callable[[str], Any] = str) -> Callable[[str], object]:
    return lambda text: hk.Identity(**{name: made(text)})


def _format(name: str) -> Callable[[str], object]:
    return lambda text: hk.KvFormat(**{"layout": "l", "dtype": "d", name: text})


def _of_config(config: dict[str, Any], **more: Any) -> hk.CacheSpec:
    return hk.CacheSpec.from_config(config, unit_tokens=16, **more)


TEXTS: dict[str, Callable[[str], object]] = {
    **{f"Identity.{name}": _identity(name) for name in ("model", "weights", "adapter", "kv_dtype")},
    **{f"Identity.rope {where}": _identity("rope", made) for where, made in _SETTINGS.items()},
    **{f"Identity.quantisation {where}": _identity("quantisation", made) for where, made in _SETTINGS.items()},
    **{f"KvFormat.{name}": _format(name) for name in _FORMAT_TEXTS},
    "KvFormat.roles value": lambda text: hk.KvFormat("l", "d", roles={"a": text}),
    "KvFormat.roles key": lambda text: hk.KvFormat("l", "d", roles={text: 1}),
    "KvFormat.yarn": lambda text: hk.KvFormat("l", "d", yarn={"a": text}),
    "CacheGroup.name": lambda text: group(name=text),
    "CacheGroup.layers": lambda text: group(layers=(text,)),
    "CacheGroup.parts": lambda text: group(parts={text: 64}),
    "CacheGroup.kernels": lambda text: group(kernels=[text]),
    "CacheSpec.in_step_with": lambda text: hk.CacheSpec(16, [group(in_step_with=text)]),
    "CacheSpec.homogeneous layers": lambda text: hk.CacheSpec.homogeneous([text], 64),
    "CacheSpec.from_config dtype": lambda text: _of_config({"model_type": "llama"}, dtype=text),
    "CacheSpec.from_config model_type": lambda text: _of_config({"model_type": text}),
    "CacheSpec.group": lambda text: hk.CacheSpec(16, [group()]).group(text),
    "Manifest.of draft": lambda text: hk.formats.Manifest.of(hk.CacheSpec(16, [group()]), draft=[text]),
    "HybridCache.verify": lambda text: cache(verify=text),
    "HybridCache.eviction": lambda text: cache(eviction=text),
    "HybridCache.tier_writes": lambda text: cache(tier_writes=text),
    "HybridCache.tier_skew": lambda text: cache(tier_skew=text),
    "HybridCache.pages": lambda text: cache(pages={text: 4}),
    "HybridCache.reserve owner": reserved,
    "Lease.lend owner": lent,
    "KernelNeeds.name": lambda text: KernelNeeds(name=text, source="s"),
    "KernelNeeds.source": lambda text: KernelNeeds(name="n", source=text),
    "KernelNeeds.dtypes": lambda text: KernelNeeds(name="n", source="s", dtypes=(text,)),
    "KernelNeeds.formats": lambda text: KernelNeeds(name="n", source="s", formats=(text,)),
    "alignment.suggest": lambda text: hk.alignment.suggest(group(), text),
    "Topology.capture buffers": captured,
    "Topology.capture padding": padded,
    "Candidate.loads": lambda text: hk.Candidate(0, loads={text: 1}),
    "CostModel.tiers": lambda text: hk.CostModel({text: hk.Bandwidth(1e9)}),
    "Observations.loaded": lambda text: hk.Observations().loaded(text, 1, 1.0),
    "RowFormat.name": lambda text: RowFormat(text, 4, ()),
    "tenant_salt": lambda text: digests.tenant_salt(SECRET, text),
    "scales_digest": lambda text: digests.scales_digest({text: 1.0}),
    "find_shape": find_shape,
    "DiskTier.engine": lambda text: hk.DiskTier("somewhere", 1 << 20, engine=text),
    "DiskTier.admission": lambda text: hk.DiskTier("somewhere", 1 << 20, admission=text),
}  # fmt: skip


@pytest.mark.parametrize("entry", TEXTS)
def test_half_a_surrogate_pair_is_refused_at_the_entry(entry: str) -> None:
    with pytest.raises(hk.HybridKVError) as refused:
        TEXTS[entry](HALF)
    assert refused.value.field
    str(refused.value).encode()  # what tells of it can be printed


def test_keys_are_not_made_of_what_is_refused_later() -> None:
    """The root of a key took such a name, and the manifest of the cache did not."""
    with pytest.raises(hk.SpecError) as refused:
        hk.block_keys(range(16), 16, identity=hk.Identity("\ud800"))
    assert refused.value.field == "identity.model"


def opened(path: Any) -> None:
    hk.DiskTier(path, 64 << 20).close()


def kept(path: Any) -> None:
    with hk.MemoryTier(1 << 20) as tier:
        tier.keep_manifests(path)


PATHS: dict[str, Callable[[Any], object]] = {
    "DiskTier": opened,
    "Store": hk.tiers.Store,
    "keep_manifests": kept,
    "from_config": lambda path: hk.CacheSpec.from_config(path, unit_tokens=16),
    "weights_digest": digests.weights_digest,
    "weights_digest of several": lambda path: digests.weights_digest([path]),
    "safetensors_header": digests.safetensors_header,
    "adapter_digest": digests.adapter_digest,
    "tokenizer_digest": digests.tokenizer_digest,
    "rope_settings": digests.rope_settings,
    "quantisation_settings": digests.quantisation_settings,
    "read_json": digests.read_json,
    "load_trace": load_trace,
    "read_document": lambda path: read_document("cache", path, "cache"),
}


def checkpoint_paths() -> dict[str, Callable[[Any], object]]:
    pytest.importorskip("transformers")
    from hybridkv.adapters.transformers import checkpoint_digest

    return {"checkpoint_digest": checkpoint_digest}


@pytest.mark.parametrize("path", ["a\0b", "\ud800", b"bytes", 7, None, ""], ids=ascii)
def test_a_path_that_no_file_has_is_refused_at_the_entry(path: Any) -> None:
    for entry, take in {**PATHS, **checkpoint_paths()}.items():
        with pytest.raises(hk.ArgumentError) as refused:
            take(path)
        assert refused.value.field in ("path", "folder", "config", "trace", "cache"), entry
        str(refused.value).encode()


def test_a_name_of_a_file_need_not_be_utf_8(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.json")
    Path(path).write_text('{"rope_theta": 1}')
    assert digests.rope_settings(path) == {"rope_theta": 1}


# -- that none is forgotten ---------------------------------------------------------------------------

_RESULTS = {
    "Busy", "Choice", "Closed", "FillClosed", "FlushResult", "Holder", "IdentityChange", "KernelContract", "Leak",
    "LeaseExpired", "Metrics", "NotAdmitted", "OutOfPages", "PagePlan", "Plan", "RestoreRefused", "Slots", "SpecError",
    "StaleIdentity", "Ticket", "TierError", "Transfer", "TransferResult", "UnsupportedModel", "ArgumentError",
    "HybridKVError", "Fill", "EvictionPolicy", "LruPolicy", "Departure", "Explanation", "StaticChecks",
}  # fmt: skip
"""Made by the package, and read by those who call."""

_LOOKED_UP = {
    "group", "formats", "on_change", "wrote", "why", "dtypes", "verify", "owner", "name", "pool", "max_blocks", "index",
    "compact", "groups", "padding", "parts",
}  # fmt: skip
"""Parameters that name one of what is there: another one is refused as such, or matches nothing."""


def takers() -> Iterator[tuple[str, str]]:
    """Yield class and parameter of what is public at the top and takes a text or a path."""
    for name in hk.__all__:
        made = getattr(hk, name)
        if not inspect.isclass(made) or name in _RESULTS:
            continue
        methods = [("__init__", made.__init__)] + [(n, m) for n, m in vars(made).items() if not n.startswith("_")]
        for _, method in methods:
            function = getattr(method, "__func__", method)
            if inspect.isfunction(function):
                for parameter in inspect.signature(function).parameters.values():
                    if any(kind in str(parameter.annotation) for kind in ("str", "PathLike")):
                        yield name, parameter.name


def test_every_public_class_that_takes_a_text_is_swept() -> None:
    swept = {entry.replace(" ", ".").split(".")[0] for entry in [*TEXTS, *PATHS]}
    missing = {(name, parameter) for name, parameter in takers() if name not in swept and parameter not in _LOOKED_UP}
    assert missing == set()
