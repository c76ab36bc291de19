# SPDX-License-Identifier: Apache-2.0
"""The facts of a running cache, as an object of JSON that ``hybridkv doctor --cache`` reads elsewhere.

Nothing of a salt is in it but whether one is set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from hybridkv.alignment import KernelNeeds
from hybridkv.arguments import VERIFY_MODES
from hybridkv.doctor.documents import SCHEMA, Json
from hybridkv.doctor.host import version_of
from hybridkv.doctor.manifests import TOLD_OF_IDENTITY, manifest_document, told_of_group
from hybridkv.errors import ArgumentError
from hybridkv.formats import COSMETIC, Manifest, negotiate
from hybridkv.graph import Topology

if TYPE_CHECKING:
    from hybridkv.cache import HybridCache
    from hybridkv.formats import GroupManifest
    from hybridkv.group import CacheGroup

_MOST_DIFFERENCES = 8  # told of one writer


def cache_facts(cache: HybridCache, *, canary: Mapping[str, float] | None = None) -> Json:
    """Write down how a cache is set up, and its counters.

    Parameters
    ----------
    cache : HybridCache
        Open.
    canary : mapping of str to number, optional
        What the engine knows of a canary that recomputes a sample of hits: "rate", the share that it recomputes,
        and "mismatches", how many differed. Default: there is none.

    Returns
    -------
    dict
        Everything is JSON; see :func:`hybridkv.doctor.readiness` for what it is read for.

    Raises
    ------
    ArgumentError
        No cache, or a canary that is no mapping of numbers.
    Closed
        The cache was closed.

    Examples
    --------
    >>> import hybridkv as hk
    >>> cache = hk.HybridCache(hk.CacheSpec.homogeneous(layers=2, page_bytes=64), blocks=8)
    >>> facts = cache_facts(cache)
    >>> facts["identity"]["salted"], facts["verify"], facts["metrics"]["lookups"]
    (False, 'sampled', 0)
    """
    from hybridkv.cache import HybridCache

    if not isinstance(cache, HybridCache):
        raise ArgumentError("cache", "a HybridCache", type(cache).__name__)
    if canary is not None and not (isinstance(canary, Mapping) and all(map(_is_share, canary.values()))):
        raise ArgumentError("canary", "None, or a mapping of names to numbers of 0 or more", canary)
    cache._check_usable()
    metrics = cache.metrics()
    identity = cache.spec.identity
    manifest = cache.manifest
    return {
        "schema": SCHEMA,
        "kind": "cache",
        "hybridkv": version_of("hybridkv"),
        "key_profile": manifest.key_profile,
        "unit_tokens": manifest.unit_tokens,
        "identity": {
            **{name: getattr(identity, name) for name in TOLD_OF_IDENTITY},
            "salted": identity.salted,
            "fingerprint": manifest.identity.hex(),
        },
        "manifest": manifest_document(manifest),
        "verify": next(name for name, mode in VERIFY_MODES.items() if mode == cache._verify),
        "eviction": cache.eviction,
        "tier": None if cache.tier is None else cache.tier.name,
        "tier_writes": cache._tier_writes.mode,
        "admission": None if cache.admission is None else _plain(asdict(cache.admission)),
        "writers": None if cache.tier is None else _writers(manifest, cache.tier.manifests),
        "graph_widths": dict(cache._graph_widths),
        "topologies": [_topology(topology) for topology in list(cache._topologies)],
        "canary": None if canary is None else {str(name): float(value) for name, value in canary.items()},
        "groups": [
            _group(cache, group, declared) for group, declared in zip(cache.spec.groups, manifest.groups, strict=True)
        ],
        "metrics": {f.name: _plain(getattr(metrics, f.name)) for f in fields(metrics)},
    }


def _is_share(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")


def _writers(ours: Manifest, known: Iterable[Manifest]) -> list[Json]:
    """Tell of each known writer of the tier what stands between its records and this cache; nothing of itself."""
    found = []
    for writer in known:
        told = negotiate(ours, writer)
        apart = [d for d in told.differences if d.severity != COSMETIC]
        found.append({"manifest": writer.fingerprint.hex(), "differences": [str(d) for d in apart[:_MOST_DIFFERENCES]]})
    return found


def _topology(topology: Topology) -> Json:
    return {
        "buckets": list(topology.shape.buckets),
        "released": topology.released,
        "buffers": len(topology.buffers),
        "counts": {reason: times for reason, times in topology.counts.items() if times},
    }


def _group(cache: HybridCache, group: CacheGroup, declared: GroupManifest) -> Json:
    fmt = group.format
    named = [kernel.name for kernel in group.kernels if isinstance(kernel, KernelNeeds)]
    return {
        **told_of_group(declared),
        "pages": cache.pages[group.name],
        "format": None if fmt is None else {"layout": fmt.layout, "dtype": fmt.dtype, "namespace": fmt.namespace},
        "kernels": list(dict.fromkeys([*named, *cache._bound_kernels.get(group.name, ())])),
        "bound": group.name in cache._bound,
        "violations": [
            {"kernel": v.kernel, "field": v.field, "effect": v.effect, "text": str(v)}
            for v in cache.alignment(group.name)
        ],
    }


def _plain(value: Any) -> Any:
    """Return counters as JSON: names of enums in lower case, tuples as lists."""
    if isinstance(value, Mapping):
        return {key.name.lower() if isinstance(key, IntEnum) else str(key): _plain(part) for key, part in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    return value
