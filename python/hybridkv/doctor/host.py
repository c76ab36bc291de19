# SPDX-License-Identifier: Apache-2.0
"""What a host has: versions of what is written down, CPU and GPU, engines, and the formats that they write."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from hybridkv import _core, formats
from hybridkv.alignment import KERNELS
from hybridkv.doctor.documents import SCHEMA, Json
from hybridkv.doctor.engines import installed, known_of, read_versions
from hybridkv.keys import KEY_PROFILE

NOT_INSTALLED = "not installed"


def doctor() -> Json:
    """Gather the facts of this installation and its host.

    Returns
    -------
    dict
        ``schema`` and ``kind`` of the object; ``hybridkv``, ``key_profile``, ``format_schema``, ``record_version``,
        ``store_version``, ``cpu_features``, ``cuda``, ``python``, ``numpy``, ``platform``; ``torch``; ``gpu`` (driver,
        devices, families, or why there are none); ``engines`` with what is known of their versions; ``formats`` that
        they write and whether ours know them; ``kernels`` whose needs of a pool are known and that run here.
        Everything is JSON.
    """
    gpu = _gpu(_core.cuda_driver_facts())
    engines = {name: _engine(name, version) for name, version in installed().items()}
    return {
        "schema": SCHEMA,
        "kind": "host",
        "hybridkv": version_of("hybridkv"),
        "key_profile": KEY_PROFILE,
        "format_schema": formats.KvFormat("any", "any").schema,
        "record_version": _core.record_version,
        "store_version": _core.store_version,
        "cpu_features": {
            "sha256": _core.sha256_path(),
            "crc32c": _core.crc32c_path(),
            "kernels": _core.cpu_level(),
        },
        "cuda": _cuda(_core.cuda_facts()),
        "python": platform.python_version(),
        "numpy": version_of("numpy"),
        "platform": platform.platform(),
        "torch": version_of("torch"),
        "gpu": gpu,
        "engines": engines,
        "formats": _formats(engines, gpu["families"]),
        "kernels": sorted(n for n, needs in KERNELS.items() if not needs.gpu or needs.gpu in gpu["families"]),
    }


def version_of(package: str) -> str:
    """Return the version of an installed package, without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED


def family_of(major: int, minor: int) -> str | None:
    """Return the GPU family of a compute capability; None where the driver does not tell it."""
    if major < 1:
        return None
    return f"sm{major}0" if major >= 9 else f"sm{major}{minor}"


def _cuda(facts: Mapping[str, Any]) -> str:
    if not facts["available"]:
        return f"not available: {facts['reason']}"
    return f"{facts['devices']} devices, driver for CUDA {_release(facts['driver_version'])}"


def _release(number: int) -> str:
    major, minor = divmod(number // 10, 100)
    return f"{major}.{minor}"


def _gpu(facts: Mapping[str, Any]) -> Json:
    devices = [
        {"name": name, "capability": f"{major}.{minor}" if major else None, "family": family_of(major, minor)}
        for name, major, minor in facts["devices"]
    ]
    families = sorted({device["family"] for device in devices if device["family"] is not None})
    return {
        "driver": _release(facts["driver_version"]) if facts["driver_version"] else None,
        "reason": facts["reason"] or None,
        "devices": devices,
        "families": families,
    }


def _engine(name: str, version: str | None) -> Json:
    if version is None:
        return {"version": None, "known": None, "role": None, "revision": None, "source": None}
    known = known_of(name, version)
    if known is None:
        source = f"nothing is known of this version; read were: {read_versions(name)}"
        return {"version": version, "known": False, "role": None, "revision": None, "source": source}
    return {
        "version": version,
        "known": True,
        "role": known.role,
        "revision": known.revision or None,
        "source": known.source,
    }


def _formats(engines: Mapping[str, Json], families: list[str]) -> list[Json]:
    """One entry for each format that an installed engine is known to write, in the order of the engines."""
    listed = []
    for engine, facts in engines.items():
        known = known_of(engine, facts["version"]) if facts["version"] is not None else None
        for name in known.formats if known is not None else ():
            only = list(known.families.get(name, ())) if known is not None else []
            here = None if not families else not only or bool(set(only) & set(families))
            listed.append({"name": name, "engine": engine, "families": only, "written_here": here, **_ours(name)})
    return listed


def _ours(name: str) -> Json:
    """What this installation knows of a format: its fingerprint, bytes of a row, whether its kernels take the rows."""
    registry = getattr(formats, "REGISTRY", None)
    if not isinstance(registry, Mapping):
        told = "cannot tell: this version has no registry of formats"
        return {"ours": told, "fingerprint": None, "row_bytes": None}
    if name not in registry:
        return {"ours": "not in the registry", "fingerprint": None, "row_bytes": None}
    entry = registry[name]
    taken = entry.row_format() is not None
    ours = "declared; rows that our kernels copy and convert" if taken else "declared"
    return {"ours": ours, "fingerprint": entry.format.fingerprint.hex(), "row_bytes": entry.format.row_bytes}
