# SPDX-License-Identifier: Apache-2.0
"""Hot updates over a store: each record names the identity of its keys, and the tier knows both versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from hybridkv.formats import Manifest
from hybridkv.tiers import Store
from tier_sides import Side, opened, version

OLD, NEW = hk.Identity("m", weights="r1"), hk.Identity("m", weights="r2")


class Event:
    """Work on a device that is over when it is told to be."""

    def __init__(self) -> None:
        self.passed = False

    def query(self) -> bool:
        return self.passed


def identities(path: Path) -> dict[bytes, bytes]:
    """Which identity each record of a store names, by digest."""
    with Store(path) as store:
        return {record.key.digest: record.identity for region in store.regions() for record in region.records}


def keys_of(identity: hk.Identity, first: int = 0, tokens: int = 64) -> hk.BlockKeys:
    return hk.block_keys(range(first, first + tokens), 16, identity=identity)


def named(keys: hk.BlockKeys) -> set[bytes]:
    return {row.tobytes() for row in keys.digests}


def insert(side: Side, keys: hk.BlockKeys) -> hk.BlockKeys:
    side.cache.insert(keys)
    return keys


@pytest.mark.parametrize("on_change", ["flush", "version"])
def test_a_restart_tells_the_right_identity_of_both(tmp_path: Path, on_change: str) -> None:
    with opened(tmp_path) as tier, Side(version(weights="r1"), tier) as side:
        side.write(1)
        side.cache.update_identity(NEW, on_change=on_change)
        assert tier.manifests == (Manifest.of(version(weights="r1")), side.cache.manifest)
        new = insert(side, keys_of(NEW))
        assert side.cache.offload(new).result().records == 4
    found = identities(tmp_path)
    assert found == dict.fromkeys(named(keys_of(OLD)), OLD.fingerprint) | dict.fromkeys(named(new), NEW.fingerprint)
    with opened(tmp_path) as tier:
        assert [m.identity for m in tier.manifests] == [OLD.fingerprint, NEW.fingerprint]
        with Side(version(weights="r3"), tier) as third:
            assert third.look().outcome is hk.Outcome.MISS and third.skew == {"identity.weights": 1}
        with Side(version(weights="r1"), tier) as old:
            assert old.look().remedy is hk.Remedy.RESTORE


def test_what_is_on_its_way_keeps_the_identity_of_before(tmp_path: Path) -> None:
    """Transfers that were begun before the update, of the cache's keys and of an engine's own hashes."""
    event = Event()
    own = hk.BlockKeys.from_hashes([bytes([n]) * 16 for n in range(1, 5)], 16)
    later = hk.BlockKeys.from_hashes([bytes([n]) * 16 for n in range(101, 105)], 16)
    with opened(tmp_path) as tier, Side(version(weights="r1"), tier) as side:
        moving = [side.cache.offload(insert(side, keys), after=event) for keys in (keys_of(OLD), own)]
        side.cache.update_identity(NEW, on_change="version")
        assert side.cache.offload(insert(side, later)).result().records == 4
        event.passed = True
        assert [transfer.result().records for transfer in moving] == [4, 4]
    found = identities(tmp_path)
    assert {found[name] for name in named(keys_of(OLD)) | named(own)} == {OLD.fingerprint}
    assert {found[name] for name in named(later)} == {NEW.fingerprint}


def test_what_is_published_later_under_old_keys_is_of_the_old_identity(tmp_path: Path) -> None:
    """Two versions side by side: a request of before goes on, and what it stores names the weights it ran with."""
    with opened(tmp_path) as tier, Side(version(weights="r1"), tier, tier_writes="through") as side:
        ticket = side.cache.admit("runs on", max_tokens=64)
        side.cache.update_identity(NEW, on_change="version")
        for request in (ticket, side.cache.admit("new", max_tokens=64)):
            request.grow(64)
            request.advance(64, np.arange(64, dtype=np.uint32))
            request.close()
        side.cache.flush()
    found = identities(tmp_path)
    assert {found[name] for name in named(keys_of(OLD))} == {OLD.fingerprint}
    assert {found[name] for name in named(keys_of(NEW))} == {NEW.fingerprint}


def test_write_back_too(tmp_path: Path) -> None:
    with opened(tmp_path) as tier, Side(version(weights="r1"), tier, tier_writes="back") as side:
        old = insert(side, keys_of(OLD))
        side.cache.update_identity(NEW, on_change="version")
        new = insert(side, keys_of(NEW))
        side.cache.flush()
    assert {name: found for name, found in identities(tmp_path).items() if name in named(old)} == dict.fromkeys(
        named(old), OLD.fingerprint
    )
    assert {found for name, found in identities(tmp_path).items() if name in named(new)} == {NEW.fingerprint}


def test_a_record_is_of_the_identity_of_its_keys(tmp_path: Path) -> None:
    """An adapter of one request, in a continuation too; and a tenant's salt, which is told to nobody."""
    adapted = hk.Identity("m", weights="r1", adapter="lora")
    salted = hk.Identity("m", weights="r1", salt=b"secret")
    with opened(tmp_path) as tier, Side(version(weights="r1"), tier) as side:
        grown = hk.block_keys(range(32, 64), 16, identity=adapted, parent=keys_of(adapted, tokens=32)[:2])
        for keys in (grown, keys_of(salted)):
            side.cache.offload(insert(side, keys)).result()
    found = identities(tmp_path)
    assert {found[name] for name in named(grown)} == {adapted.fingerprint}
    assert {found[name] for name in named(keys_of(salted))} == {OLD.fingerprint}


# ---- what look-ups are told ----------------------------------------------------------------------


def test_misses_after_an_update_say_because_of_what() -> None:
    with hk.MemoryTier(1 << 20) as tier, Side(version(weights="r1"), tier) as side:
        side.write(1)
        side.cache.update_identity(NEW, on_change="flush")
        assert side.cache.match(keys_of(NEW)).outcome is hk.Outcome.MISS
        assert side.skew == {"identity.weights": 1}
        side.cache.update_identity(hk.Identity("m", weights="r3", adapter="a"), on_change="flush")
        side.cache.match(keys_of(side.cache.spec.identity))
        assert side.skew == {"identity.weights": 2, "identity.adapter": 1}


def test_misses_of_old_keys_beside_old_records_are_no_skew() -> None:
    """With two versions side by side the old one looks its own records up."""
    with hk.MemoryTier(1 << 20) as tier, Side(version(weights="r1"), tier) as side:
        side.write(1)
        side.cache.update_identity(NEW, on_change="version")
        assert side.cache.match(keys_of(OLD, first=500)).outcome is hk.Outcome.MISS and side.skew == {}
        assert side.cache.match(keys_of(OLD)).remedy is hk.Remedy.RESTORE and side.skew == {}
        assert side.cache.match(keys_of(NEW)).outcome is hk.Outcome.MISS and side.skew == {"identity.weights": 1}


def test_an_update_that_the_tier_cannot_keep_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with hk.MemoryTier(1 << 20) as tier, Side(version(weights="r1"), tier, tier_skew="refuse") as side:
        tier.keep_manifests(folder / "writers")
        (folder / "writers").unlink()
        folder.rmdir()
        with pytest.raises(hk.TierError, match="manifests"):
            side.cache.update_identity(NEW, on_change="flush")
        assert side.cache.spec.identity == OLD and len(tier.manifests) == 1
        side.write(1)
        folder.mkdir()
        side.cache.update_identity(NEW, on_change="flush")  # of its own: "refuse" is about being made
        assert side.cache.spec.identity == NEW and len(tier.manifests) == 2


def test_without_a_tier_nothing_is_told() -> None:
    cache: Any = hk.HybridCache(version(weights="r1"), blocks=8)
    cache.update_identity(NEW, on_change="flush")
    assert cache.metrics().tier_skew == {}
    cache.close()


def test_a_fingerprint_is_that_of_before_and_leaves_the_salt_out() -> None:
    """Golden: stores and manifests that are there name identities by it."""
    assert OLD.fingerprint.hex() == "a5bca40b87b9d0f65e706b8b7ae818d0"
    assert hk.Identity("m", weights="r1", salt=b"x").fingerprint == OLD.fingerprint
    assert hk.Identity("m", weights="r1", kv_dtype="fp8_e4m3").fingerprint != OLD.fingerprint
