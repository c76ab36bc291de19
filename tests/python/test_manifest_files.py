# SPDX-License-Identifier: Apache-2.0
"""A file of manifests: what is written can be read, and two tiers that keep one file lose nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import hybridkv as hk
from hybridkv.formats import Manifest, manifest_file


def long(number: int, names: int = 500) -> Manifest:
    """A manifest of about 450 bytes for each name of a layer."""
    layers = [f"layer.{number}.{layer}.{'x' * 400}" for layer in range(names)]
    kv = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64, layers=layers)
    return Manifest.of(hk.CacheSpec(16, [kv], identity=hk.Identity(f"m{number}")))


def test_as_many_as_are_known_can_be_read_again(tmp_path: Path) -> None:
    """The bound of a file was below that of 64 manifests, so that a tier could not read what it had written."""
    path = tmp_path / "manifests"
    known = tuple(long(number) for number in range(manifest_file.MOST_MANIFESTS))
    manifest_file.write_manifests(path, known)
    assert path.stat().st_size > 8 << 20
    with hk.MemoryTier(1 << 20) as tier:
        tier.keep_manifests(path)
        assert tier.manifests == known


def test_a_manifest_that_nobody_could_read_is_not_written(tmp_path: Path) -> None:
    path, huge = tmp_path / "manifests", long(0, names=3000)
    assert len(huge.to_bytes()) > 1 << 20
    with hk.MemoryTier(1 << 20) as tier:
        tier.keep_manifests(path)
        with pytest.raises(hk.TierError, match="manifests of at most 1048576 bytes"):
            tier.know(huge)
        assert tier.manifests == ()
        tier.know(long(1, names=1))
    with hk.MemoryTier(1 << 20) as tier:
        tier.keep_manifests(path)
        assert len(tier.manifests) == 1


def test_two_tiers_that_keep_one_file_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "manifests"
    with hk.MemoryTier(1 << 20) as one, hk.MemoryTier(1 << 20) as two, hk.MemoryTier(1 << 20) as after:
        one.keep_manifests(path)
        two.keep_manifests(path)
        one.know(long(1, names=1))
        two.know(long(2, names=1))
        one.know(long(3, names=1))
        after.keep_manifests(path)
        assert set(after.manifests) == {long(number, names=1) for number in (1, 2, 3)}
