# SPDX-License-Identifier: Apache-2.0
"""Hosts and caches whose facts doctor judges."""

from __future__ import annotations

import json
from importlib import metadata
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import keys_of
from hybridkv.doctor import cache_facts, doctor
from hybridkv.doctor.engines import installed


def versions(**there: str) -> Any:
    def version_of(name: str) -> str:
        if name in there:
            return there[name]
        raise metadata.PackageNotFoundError(name)

    return version_of


def host(monkeypatch: pytest.MonkeyPatch, families: tuple[str, ...] = (), **there: str) -> dict[str, Any]:
    """Facts of a host with these engines and GPU families, as JSON has them."""
    capability = {"sm90": (9, 0), "sm100": (10, 0), "sm120": (12, 0)}
    devices = [("GPU", *capability[family]) for family in families]
    facts = {
        "reason": "" if devices else "no NVIDIA driver",
        "driver_version": 13000 if devices else 0,
        "devices": devices,
    }
    with monkeypatch.context() as patch:
        patch.setattr("hybridkv.doctor.host.installed", lambda: installed(versions(**there)))
        patch.setattr("hybridkv._core.cuda_driver_facts", lambda: facts)
        made: dict[str, Any] = json.loads(json.dumps(doctor()))
    return made


def a_cache(**more: Any) -> hk.HybridCache:
    fmt = hk.KvFormat("mine", "uint8", row_bytes=64)
    kv = hk.CacheGroup(
        "kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=1024, format=fmt, kernels=["vector_copy_16"]
    )
    identity = hk.Identity("m", weights="r1", salt=b"secret of the gateway")
    spec = hk.CacheSpec(16, [kv], identity=more.pop("identity", identity))
    cache = hk.HybridCache(spec, blocks=8, **more)
    raw = np.zeros(8 * 1024 + 64, np.uint8)
    cache.bind("kv", raw[-raw.ctypes.data % 64 :][: 8 * 1024].reshape(8, 1024))
    return cache


def facts_of(cache: hk.HybridCache, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(cache_facts(cache, **more)))
    return made


def sound(monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], dict[str, Any]]:
    """Facts that answer every question with yes."""
    cache = a_cache()
    cache.set_graph_widths({"kv": 4})
    topology = watching(cache)
    cache.insert(keys_of(32))
    cache.match(keys_of(33)).lease.release()
    facts = facts_of(cache, canary={"rate": 0.01, "mismatches": 0})
    topology.release()
    return host(monkeypatch, ("sm90",), vllm="0.33.0"), facts


def watching(cache: hk.HybridCache) -> hk.graph.Topology:
    """Topology of a graph that reads one buffer, and tables of four blocks."""
    return hk.graph.Topology.capture({"out": np.zeros(4)}, cache.spec, max_blocks=4, padding=-1, cache=cache)
