# SPDX-License-Identifier: Apache-2.0
"""What a cache says of pages of a real model that came, went, moved or lie where no kernel can read them.

Every code of :class:`~hybridkv.Why` is seen here, on DeepSeek-V4's own groups and pages.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is absent: the kit breaks states of its models")

import numpy as np

import hybridkv as hk
from faults.live import Live
from faults.pages import Opened, StoredPrefix
from hybridkv import verdict as verdict_module
from hybridkv.canary import Bitwise, Canary, Scope
from tier_support import HostileTier
from tiny_models import tiny

TOKENS = 79  # four whole blocks, then a tip with 3 rows in its CSA tail and 15 in its HCA tail
SPAN = TOKENS // 16


@functools.cache
def stored_prefix() -> StoredPrefix:
    live = Live(tiny("deepseek_v4"))
    return StoredPrefix(live.model, live.prompt, TOKENS)


def given_back(verdict: hk.Verdict) -> hk.Verdict:
    if verdict.lease is not None:
        verdict.lease.cancel()
    return verdict


def evicted(groups: dict[str, list[int]]) -> hk.Verdict:
    """Ask after pages were evicted."""
    opened = stored_prefix().opened()
    assert opened.cache.evict(stored_prefix().prefix, groups) == sum(map(len, groups.values()))
    return given_back(opened.match("off"))


def spec_with(group: str, **fields: Any) -> hk.CacheSpec:
    """The model's spec, one group declared otherwise."""
    spec = stored_prefix().measured.spec
    groups = [replace(g, **fields) if g.name == group else g for g in spec.groups]
    return hk.CacheSpec(spec.unit_tokens, groups, identity=spec.identity)


def aligned(nbytes: int, alignment: int, offset: int = 0) -> np.ndarray:
    """Memory that starts so many bytes behind a multiple of an alignment."""
    raw = np.zeros(nbytes + 2 * alignment, np.uint8)
    start = -raw.ctypes.data % alignment + offset
    return raw[start : start + nbytes]


def bound(spec: hk.CacheSpec, group: str, arrays: Any) -> hk.Verdict:
    """Ask a cache that holds the prefix, a group's pool being where it is."""
    cache = hk.HybridCache(spec, blocks=64)
    cache.bind(group, arrays)
    cache.insert(stored_prefix().prefix)
    return given_back(cache.match(stored_prefix().keys, verify="off"))


def pages_of(spec: hk.CacheSpec, group: str) -> tuple[int, int, int]:
    """Pages of a pool, layers of the group, bytes of a page of one layer."""
    described = next(g for g in spec.groups if g.name == group)
    return hk.HybridCache(spec, blocks=64).pages[group], described.layer_count, described.page_bytes


def missing() -> hk.Verdict:
    return given_back(stored_prefix().opened(without={"overlap": [SPAN]}).match("off"))


def partial() -> hk.Verdict:
    """HCA keeps blocks of two units; 48 tokens are no multiple of them."""
    group = next(g for g in stored_prefix().measured.spec.groups if g.name == "hca")
    made = replace(group.format, page_rows=2)
    wide = spec_with("hca", block_tokens=32, rows_per_page=2, page_bytes=2 * group.page_bytes, format=made)
    cache = hk.HybridCache(wide, blocks=64)
    cache.insert(stored_prefix().prefix[:3])
    return given_back(cache.match(stored_prefix().keys))


def stale() -> hk.Verdict:
    return evicted({"overlap": [SPAN]})


def expired() -> hk.Verdict:
    return evicted({"swa": [SPAN]})


def lagging() -> hk.Verdict:
    """The indexer has not reached the last whole block that its entries have."""
    return given_back(stored_prefix().opened(without={"indexer": [SPAN - 1, SPAN]}).match("off"))


def filling() -> hk.Verdict:
    opened = stored_prefix().opened(without={"csa": range(2, SPAN + 1)})
    fill = opened.cache.reserve(stored_prefix().prefix, groups={"csa": [2, 3]})
    verdict = given_back(opened.match("off"))
    fill.publish()
    return verdict


def drop() -> hk.Verdict:
    return given_back(stored_prefix().opened().match("off", drop_tokens=1))


def pins() -> hk.Verdict:
    """As many requests as a count of pins has room for resume from one prefix; one more cannot."""
    opened = stored_prefix().opened()
    leases = []
    while True:
        verdict = opened.match("off")
        if verdict.lease is None or verdict.usable_tokens != TOKENS:
            break
        leases.append(verdict.lease)
        assert len(leases) < 1 << 16
    given_back(verdict)
    for lease in leases:
        lease.release()
    assert given_back(opened.match("off")).usable_tokens == TOKENS
    return verdict


def foreign_format() -> hk.Verdict:
    """The pages were written by the next release of transformers."""
    group = next(g for g in stored_prefix().measured.spec.groups if g.name == "csa")
    assert group.format is not None
    formats = {"csa": replace(group.format, kernel_version="transformers 99.0.0")}
    return given_back(stored_prefix().opened(formats=formats).match("off"))


def base() -> hk.Verdict:
    spec = spec_with("csa", alignment=64)
    pages, layers, size = pages_of(spec, "csa")
    pools = [aligned(pages * size, 64, offset=16).reshape(pages, size) for _ in range(layers)]
    return bound(spec, "csa", pools)


def page_stride() -> hk.Verdict:
    spec = spec_with("swa", alignment=64)
    pages, layers, size = pages_of(spec, "swa")
    pools = [aligned(pages * (size + 16), 64).reshape(pages, size + 16)[:, :size] for _ in range(layers)]
    return bound(spec, "swa", pools)


def row_stride() -> hk.Verdict:
    spec = stored_prefix().measured.spec
    pages, layers, size = pages_of(spec, "indexer")
    row = next(g.row_bytes for g in spec.groups if g.name == "indexer") or 0
    wide = row * 3 // 2
    shape = (pages, size // row, wide)
    pools = [np.zeros(shape, np.uint8)[:, :, :row] for _ in range(layers)]
    return bound(spec, "indexer", pools)


def footer() -> hk.Verdict:
    """A kernel that looks for its scales behind the end of the page."""
    group = next(g for g in stored_prefix().measured.spec.groups if g.name == "hca")
    assert group.format is not None
    spec = spec_with("hca", format=replace(group.format, footer_offset=group.page_bytes))
    pages, layers, size = pages_of(spec, "hca")
    return bound(spec, "hca", [np.zeros((pages, size), np.uint8) for _ in range(layers)])


def content() -> hk.Verdict:
    """One byte of a page is another after it was published."""
    opened = stored_prefix().opened()
    with _leased(opened) as lease:
        page = int(lease.page_ids("hca_tail")[SPAN])
    opened.pages.pools["hca_tail"][page, 0] ^= 1
    return given_back(opened.match("all"))


def offloaded(damage: bool) -> hk.Verdict:
    """The history was offloaded and evicted from its second block on; its records are sound, or all are damaged."""
    tier = HostileTier(breaker_after=0)
    opened = stored_prefix().opened(tier=tier)
    assert opened.cache.offload(stored_prefix().keys).result(10).ok
    history = {name: list(range(1, SPAN)) for name in ("csa", "hca", "indexer")}
    assert opened.cache.evict(stored_prefix().prefix, history) == 3 * (SPAN - 1)
    verdict = given_back(opened.match("off"))
    if damage:
        tier.spoil = lambda envelope, buffers: (envelope, [bytes(len(each)) for each in buffers])
        assert not opened.cache.restore(verdict.plan).result(10).ok
        verdict = given_back(opened.match("off"))
    opened.cache.close()
    tier.close()
    return verdict


def in_tier() -> hk.Verdict:
    """It rests in a tier."""
    return offloaded(False)


def load() -> hk.Verdict:
    """It rested in a tier that could not give it back."""
    return offloaded(True)


def withheld() -> hk.Verdict:
    """A canary found windows wrong, and reads none until somebody has looked."""
    opened = stored_prefix().opened()
    canary = Canary(opened.cache, rate=0.0, compare=Bitwise())
    canary.trip(Scope("group", "swa"))
    return given_back(opened.match("off"))


def _leased(opened: Opened) -> hk.Lease:
    lease = opened.match("off").lease
    assert lease is not None
    return lease


C, K = hk.Check, hk.StateKind

SEEN: dict[str, tuple[Callable[[], hk.Verdict], hk.Check, hk.StateKind, str, int, int]] = {
    "missing": (missing, C.GROUPS, K.TAIL, "overlap", SPAN, 64),
    "partial": (partial, C.GROUPS, K.COMPRESSED, "hca", 1, 32),
    "stale": (stale, C.GROUPS, K.TAIL, "overlap", SPAN, 64),
    "expired": (expired, C.GROUPS, K.WINDOW, "swa", SPAN, 64),
    "lagging": (lagging, C.COMPLETE, K.INDEXER, "indexer", SPAN - 1, 48),
    "filling": (filling, C.COMPLETE, K.COMPRESSED, "csa", 2, 32),
    "drop": (drop, C.GROUPS, K.COMPRESSED, "csa", 0, 64),
    "pins": (pins, C.RACED, K.COMPRESSED, "csa", 0, 0),
    "format": (foreign_format, C.ABI, K.COMPRESSED, "csa", 0, 0),
    "base": (base, C.ALIGNED, K.COMPRESSED, "csa", 0, 0),
    "page_stride": (page_stride, C.ALIGNED, K.WINDOW, "swa", SPAN, 0),
    "row_stride": (row_stride, C.ALIGNED, K.INDEXER, "indexer", 0, 0),
    "footer": (footer, C.ALIGNED, K.COMPRESSED, "hca", 0, 0),
    "content": (content, C.INTEGRITY, K.TAIL, "hca_tail", SPAN, 0),
    "in_tier": (in_tier, C.COMPLETE, K.DISK, "csa", 1, 16),
    "withheld": (withheld, C.INTEGRITY, K.WINDOW, "swa", 0, 0),
    "load": (load, C.INTEGRITY, K.DISK, "csa", 1, 16),
}
"""By code: how it comes about, and what names it: check, kind, group, own block, tokens that stay usable."""


@pytest.mark.parametrize("code", SEEN)
def test_what_is_wrong_is_named(code: str) -> None:
    make, check, kind, group, block, usable = SEEN[code]
    verdict = make()
    assert verdict.why is not None
    assert (verdict.why.check, verdict.why.code) == (check, code)
    assert (verdict.why.kind, verdict.why.group, verdict.why.block) == (kind, group, block)
    assert verdict.usable_tokens == usable
    assert verdict.outcome == (hk.Outcome.REUSABLE if usable else hk.Outcome.FALSE_HIT)
    assert check in verdict.lost


def test_every_code_is_seen() -> None:
    documented = verdict_module.Why.__doc__ or ""
    listed = documented[documented.index("code : str") : documented.index("detail : str")]
    codes = {word.strip(",. ") for word in listed.replace(" or ", " ").split()} - {"code", ":", "str"}
    assert codes == set(SEEN)


def test_the_unbroken_prefix_is_reusable() -> None:
    verdict = given_back(stored_prefix().opened().match("all"))
    assert (verdict.outcome, verdict.usable_tokens, verdict.why) == (hk.Outcome.REUSABLE, TOKENS, None)


def test_pools_that_a_kernel_can_take_are_reusable() -> None:
    """The controls of base, page stride, row stride and footer: the same pools as they should be."""
    spec = spec_with("csa", alignment=64)
    pages, layers, size = pages_of(spec, "csa")
    assert bound(spec, "csa", [aligned(pages * size, 64).reshape(pages, size)] * layers).why is None
    spec = spec_with("swa", alignment=64, page_stride=2112)
    pages, layers, size = pages_of(spec, "swa")
    assert size == 2048
    assert bound(spec, "swa", [aligned(pages * 2112, 64).reshape(pages, 2112)[:, :size]] * layers).why is None
    spec = stored_prefix().measured.spec
    pages, layers, size = pages_of(spec, "indexer")
    row = next(g.row_bytes for g in spec.groups if g.name == "indexer") or 0
    assert bound(spec, "indexer", [np.zeros((pages, size // row, row), np.uint8)] * layers).why is None
    group = next(g for g in spec.groups if g.name == "hca")
    assert group.format is not None
    spec = spec_with("hca", format=replace(group.format, footer_offset=group.page_bytes - 8))
    pages, layers, size = pages_of(spec, "hca")
    assert bound(spec, "hca", [np.zeros((pages, size), np.uint8)] * layers).why is None


@pytest.mark.parametrize("group", ["csa", "hca", "indexer", "swa", "overlap", "pending", "hca_tail"])
def test_a_tip_that_one_group_does_not_attest_is_not_usable(group: str) -> None:
    opened = stored_prefix().opened(without={group: [SPAN]})
    verdict = given_back(opened.match("all"))
    assert verdict.usable_tokens == SPAN * 16
    history = group in ("csa", "hca", "indexer")
    assert verdict.matched_tokens == (SPAN * 16 if history else TOKENS)  # a tip counts when its history is known
    assert (verdict.why is None) == history


def test_another_tenant_and_other_weights_find_nothing() -> None:
    stored = stored_prefix()
    opened = stored.opened()
    tokens = Live(tiny("deepseek_v4")).prompt[: TOKENS + 1].numpy()
    own = stored.measured.spec.identity
    for identity in (replace(own, salt=b"another"), replace(own, weights="others"), replace(own, extra=b"others")):
        keys = hk.block_keys(tokens, stored.measured.spec.unit_tokens, identity=identity)
        verdict = opened.cache.match(keys)
        assert (verdict.outcome, verdict.matched_tokens) == (hk.Outcome.MISS, 0)
    assert given_back(opened.match()).usable_tokens == TOKENS
