# SPDX-License-Identifier: Apache-2.0
"""Bad input: a typed error that names the field, what was expected and what came; nothing changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import (
    PAGE_BYTES,
    check_conserved,
    full_swa,
    give_back,
    group,
    held,
    keys_of,
    make_cache,
    observe,
    put,
    tokens,
)

UNIT = 16


def assert_named(error: hk.HybridKVError) -> None:
    """The error says which field, what was expected and what came."""
    assert isinstance(error.field, str)
    assert error.field
    assert error.expected not in ("", None)
    assert hasattr(error, "got")
    assert error.field in str(error)


def spec_of(*groups: Any, unit: int = UNIT) -> Any:
    return hk.CacheSpec(unit, list(groups))


BAD_SPECS: dict[str, Callable[[], Any]] = {
    "no groups": lambda: spec_of(),
    "unit 0": lambda: spec_of(group("a", hk.Prefix()), unit=0),
    "unit negative": lambda: spec_of(group("a", hk.Prefix()), unit=-16),
    "two of one name": lambda: spec_of(group("a", hk.Prefix()), group("a", hk.Window(4))),
    "kind disk": lambda: spec_of(group("a", hk.Prefix(), kind=hk.StateKind.DISK)),
    "block no multiple of the unit": lambda: spec_of(group("a", hk.Prefix(), 24)),
    "block 0": lambda: spec_of(group("a", hk.Prefix(), 0)),
    "in step with nobody": lambda: spec_of(
        group("a", hk.Prefix()), group("i", hk.Prefix(), kind=hk.StateKind.INDEXER, in_step_with="b")
    ),
    "page smaller than its rows": lambda: spec_of(
        group("a", hk.Prefix(), page_bytes=100, row_bytes=64, rows_per_page=16)
    ),
    "alignment 0": lambda: spec_of(group("a", hk.Prefix(), alignment=0)),
    "alignment 48": lambda: spec_of(group("a", hk.Prefix(), alignment=48)),
    "stride below the page": lambda: spec_of(group("a", hk.Prefix(), page_bytes=128, page_stride=64)),
    "stride no multiple of the alignment": lambda: spec_of(
        group("a", hk.Prefix(), page_bytes=100, alignment=64, page_stride=100)
    ),
    "block inside a compressed row": lambda: spec_of(group("a", hk.Prefix(), 16, tokens_per_row=128)),
    "unit inside a compressed row": lambda: spec_of(group("a", hk.Prefix(), 2, tokens_per_row=4), unit=2),
    "window page too short": lambda: spec_of(
        group("a", hk.Window(128), 256, page_bytes=64 * 64, row_bytes=64, rows_per_page=64)
    ),
    "nine groups of Prefix": lambda: spec_of(*(group(f"g{i}", hk.Prefix()) for i in range(9))),
    "nine groups of windows": lambda: spec_of(*(group(f"g{i}", hk.Window(4)) for i in range(9))),
    "window 0": lambda: spec_of(group("a", hk.Window(0))),
    "window negative": lambda: spec_of(group("a", hk.Window(-1))),
    "chunk 0": lambda: spec_of(group("a", hk.Chunk(0))),
    "every 0": lambda: spec_of(group("a", hk.Checkpoint(0))),
    "every negative": lambda: spec_of(group("a", hk.Checkpoint(-4))),
    "page_bytes 0": lambda: spec_of(group("a", hk.Prefix(), page_bytes=0)),
    "page_bytes negative": lambda: spec_of(group("a", hk.Prefix(), page_bytes=-8)),
    "model None": lambda: hk.Identity(model=None),
    "weights None": lambda: hk.Identity(weights=None),
    "adapter None": lambda: hk.Identity(adapter=None),
    "salt None": lambda: hk.Identity(salt=None),
    "extra None": lambda: hk.Identity(extra=None),
    "name empty": lambda: spec_of(group("", hk.Prefix())),
    "coverage no rule": lambda: spec_of(group("a", "prefix")),
}


@pytest.mark.parametrize("name", BAD_SPECS)
def test_a_bad_field_of_a_spec_is_refused(name: str) -> None:
    with pytest.raises(hk.SpecError) as refused:
        BAD_SPECS[name]()
    assert_named(refused.value)


def test_good_specs_near_the_bad_ones_are_made() -> None:
    """The limits themselves are legal, so that the refusals above say what they mean."""
    spec_of(*(group(f"g{i}", hk.Prefix()) for i in range(8)), *(group(f"w{i}", hk.Window(4)) for i in range(8)))
    spec_of(group("a", hk.Window(1)))
    spec_of(group("a", hk.Window(129), 256, page_bytes=128 * 64, row_bytes=64, rows_per_page=128))
    spec_of(group("a", hk.Prefix(), page_bytes=100, alignment=64, page_stride=192))
    spec_of(group("a", hk.Prefix(), 32))
    spec_of(group("a", hk.Prefix(), 16, tokens_per_row=4))


def test_an_unknown_model_is_not_guessed() -> None:
    with pytest.raises(hk.UnsupportedModel) as refused:
        hk.CacheSpec.from_config({"model_type": "never_heard_of", "num_hidden_layers": 2, "hidden_size": 64})
    assert "never_heard_of" in str(refused.value)


BAD_TOKENS: dict[str, Any] = {
    "float64": np.zeros(32),
    "float list": [1.5] * 32,
    "bool": np.zeros(32, dtype=bool),
    "negative": [-1] + [0] * 31,
    "negative array": np.full(32, -7, dtype=np.int64),
    "2**32": np.full(32, 2**32, dtype=np.int64),
    "2**32 in a list": [2**32] * 32,
    "uint64 large": np.full(32, 2**63, dtype=np.uint64),
    "two axes": np.zeros((4, 8), dtype=np.int32),
    "strings": ["a"] * 32,
    "None": None,
}


@pytest.mark.parametrize("name", BAD_TOKENS)
def test_bad_tokens_are_refused(name: str) -> None:
    with pytest.raises(hk.ArgumentError) as refused:
        hk.block_keys(BAD_TOKENS[name], UNIT)
    assert_named(refused.value)
    assert isinstance(refused.value, ValueError)


def test_a_bad_token_late_in_the_prompt_is_found() -> None:
    ids = tokens(1000).astype(np.int64)
    ids[997] = -1
    with pytest.raises(hk.ArgumentError):
        hk.block_keys(ids, UNIT)


BAD_KEYS: dict[str, Callable[[], Any]] = {
    "unit 0": lambda: keys_of(32, 0),
    "unit negative": lambda: keys_of(32, -16),
    "parent of another unit": lambda: hk.block_keys(tokens(8), 16, parent=keys_of(32, 8)),
    "parent no keys": lambda: hk.block_keys(tokens(8), 16, parent="root"),
    "identity no identity": lambda: keys_of(32, identity="m"),
    "media before the start": lambda: keys_of(32, media=[(-1, 4, b"d" * 16)]),
    "media of no length": lambda: keys_of(32, media=[(4, 0, b"d" * 16)]),
    "media no digest": lambda: keys_of(32, media=[(4, 4, None)]),
    "hash of 15 bytes": lambda: hk.BlockKeys.from_hashes([b"x" * 15], 16),
    "hash no bytes": lambda: hk.BlockKeys.from_hashes([17], 16),
    "hash unit 0": lambda: hk.BlockKeys.from_hashes([b"x" * 16], 0),
}


@pytest.mark.parametrize("name", BAD_KEYS)
def test_bad_arguments_of_keys_are_refused(name: str) -> None:
    with pytest.raises(hk.ArgumentError) as refused:
        BAD_KEYS[name]()
    assert_named(refused.value)


BAD_CACHES: dict[str, dict[str, Any]] = {
    "blocks 0": {"blocks": 0},
    "blocks negative": {"blocks": -1},
    "blocks no number": {"blocks": "many"},
    "pages 0": {"blocks": 16, "pages": {"full": 0}},
    "pages negative": {"blocks": 16, "pages": {"full": -4}},
    "pages of nobody": {"blocks": 16, "pages": {"nobody": 4}},
    "verify unknown": {"blocks": 16, "verify": "sometimes"},
}


@pytest.mark.parametrize("name", BAD_CACHES)
def test_a_bad_cache_is_refused(name: str) -> None:
    spec = spec_of(group("full", hk.Prefix()))
    with pytest.raises(hk.ArgumentError) as refused:
        hk.HybridCache(spec, **BAD_CACHES[name])
    assert_named(refused.value)


def test_a_cache_needs_a_spec() -> None:
    with pytest.raises(hk.HybridKVError):
        hk.HybridCache("spec", blocks=16)


def bad_calls() -> dict[str, Callable[[Any, Any], Any]]:
    """Calls on a cache (full, swa; unit 16) with keys of 100 tokens; each must raise ArgumentError."""

    def other_unit() -> Any:
        return keys_of(100, 8)

    calls: dict[str, Callable[[Any, Any], Any]] = {
        "match: keys of another unit": lambda c, k: c.match(other_unit()),
        "match: no keys": lambda c, k: c.match([1, 2, 3]),
        "match: a slice from inside": lambda c, k: c.match(k[2:]),
        "match: limit negative": lambda c, k: c.match(k, limit=-1),
        "match: limit no number": lambda c, k: c.match(k, limit="all"),
        "match: drop negative": lambda c, k: c.match(k, drop_tokens=-16),
        "match: formats of nobody": lambda c, k: c.match(k, formats={"nobody": None}),
        "match: format no format": lambda c, k: c.match(k, formats={"full": 7}),
        "match: verify unknown": lambda c, k: c.match(k, verify="maybe"),
        "match_at: keys of another unit": lambda c, k: c.match_at(other_unit(), 32),
        "match_at: negative": lambda c, k: c.match_at(k, -16),
        "match_at: of no verdict": lambda c, k: c.match_at(k, 32, of="v"),
        "spans: keys of another unit": lambda c, k: c.spans(other_unit()),
        "inspect: keys of another unit": lambda c, k: c.inspect(other_unit()),
        "bind: nobody": lambda c, k: c.bind("nobody", np.zeros((256, PAGE_BYTES), np.uint8)),
        "bind: too few pages": lambda c, k: c.bind("full", np.zeros((255, PAGE_BYTES), np.uint8)),
        "bind: pages too small": lambda c, k: c.bind("full", np.zeros((256, PAGE_BYTES - 1), np.uint8)),
        "bind: one axis": lambda c, k: c.bind("full", np.zeros(256 * PAGE_BYTES, np.uint8)),
        "bind: no array": lambda c, k: c.bind("full", "pool"),
        "bind: no arrays": lambda c, k: c.bind("full", []),
    }
    for verb in ("reserve", "insert", "evict"):
        for name, groups in {
            "unknown group": {"nobody": True},
            "index negative": {"full": [-1]},
            "index out of range": {"full": [0, 7]},
            "index far out of range": {"full": [2**40]},
            "index no number": {"full": ["a"]},
            "groups no mapping": 5,
        }.items():
            calls[f"{verb}: {name}"] = lambda c, k, v=verb, g=groups: getattr(c, v)(k, groups=g)
        calls[f"{verb}: keys of another unit"] = lambda c, k, v=verb: getattr(c, v)(other_unit())
        calls[f"{verb}: no keys"] = lambda c, k, v=verb: getattr(c, v)("keys")
    for verb in ("reserve", "insert"):
        calls[f"{verb}: formats of nobody"] = lambda c, k, v=verb: getattr(c, v)(k, formats={"nobody": None})
    return calls


BAD_CALLS = bad_calls()


@pytest.mark.parametrize("name", BAD_CALLS)
def test_a_bad_call_is_refused_and_changes_nothing(name: str) -> None:
    cache = full_swa()
    keys = keys_of(100)
    put(cache, keys, {"full": [0, 1, 2], "swa": [1, 2]})
    fill = cache.reserve(keys, groups={"full": [4]})
    before = observe(cache, keys)
    with pytest.raises(hk.ArgumentError) as refused:
        BAD_CALLS[name](cache, keys)
    assert_named(refused.value)
    assert observe(cache, keys) == before
    assert give_back(cache.match(keys)) == 48
    fill.abort()


def test_the_index_of_a_tip_needs_a_partial_rest() -> None:
    cache = full_swa()
    with pytest.raises(hk.ArgumentError):
        cache.insert(keys_of(96), groups={"full": [6]})
    cache.insert(keys_of(97), groups={"full": [6]})


def test_bad_calls_on_a_lease_change_nothing() -> None:
    cache = full_swa()
    keys = keys_of(100)
    cache.insert(keys[:6])
    v = cache.match(keys)
    before = observe(cache, keys)
    for call in (
        lambda: v.lease.page_ids("nobody"),
        lambda: v.lease.handouts("nobody"),
        lambda: v.lease.addresses("nobody"),
        lambda: v.lease.extend(keys_of(100, 8)),
        lambda: v.lease.release(after=3),
    ):
        with pytest.raises(hk.ArgumentError) as refused:
            call()
        assert_named(refused.value)
        assert v.lease.valid
        assert observe(cache, keys) == before
    v.lease.release()


def test_a_lease_is_released_once() -> None:
    cache = full_swa()
    keys = keys_of(100)
    cache.insert(keys[:6])
    for end in ("release", "cancel", "fail"):
        v = cache.match(keys)
        getattr(v.lease, end)(*(["broken"] if end == "fail" else []))
        assert not v.lease.valid
        before = observe(cache, keys)
        for call in (
            v.lease.release,
            v.lease.cancel,
            lambda lease=v.lease: lease.fail("again"),
            lambda lease=v.lease: lease.page_ids("full"),
            lambda lease=v.lease: lease.handouts("full"),
            lambda lease=v.lease: lease.extend(keys),
        ):
            with pytest.raises(hk.LeaseExpired):
                call()
        assert observe(cache, keys) == before


def test_a_fill_is_closed_once() -> None:
    cache = full_swa()
    keys = keys_of(100)
    fill = cache.reserve(keys)
    with pytest.raises(hk.ArgumentError):
        fill.page_ids("nobody")
    with pytest.raises(hk.ArgumentError):
        fill.publish({"nobody": True})
    with pytest.raises(hk.ArgumentError):
        fill.publish({"full": [99]})
    with pytest.raises(hk.ArgumentError):
        fill.publish(after="soon")
    fill.abort()
    before = observe(cache, keys)
    for call in (fill.publish, lambda: fill.publish({"full": [0]}), lambda: fill.page_ids("full")):
        with pytest.raises(hk.FillClosed):
            call()
    assert observe(cache, keys) == before


def test_a_full_pool_refuses_the_whole_fill() -> None:
    cache = make_cache(16, {"full": (hk.Prefix(), 16), "swa": (hk.Window(33), 16)}, pages={"full": 8, "swa": 4})
    keys = keys_of(96)
    pin = cache.reserve(hk.block_keys(tokens(32, start=9000), 16), groups={"full": True})
    before = observe(cache, keys)
    with pytest.raises(hk.OutOfPages) as refused:
        cache.reserve(keys)
    assert_named(refused.value)
    assert observe(cache, keys) == before
    with pytest.raises(hk.OutOfPages):
        cache.insert(keys)
    assert observe(cache, keys) == before
    check_conserved(cache, {"full": 8, "swa": 4})
    cache.insert(keys, groups={"full": True})
    pin.abort()


def test_no_descriptor_left_is_said_and_changes_nothing() -> None:
    cache = make_cache(16, {"full": (hk.Prefix(), 16)}, blocks=4, pages={"full": 64})
    keys = keys_of(160)
    pin = cache.reserve(keys, groups={"full": [0]})
    before = observe(cache, keys)
    with pytest.raises(hk.OutOfPages):
        cache.reserve(keys)
    assert observe(cache, keys) == before
    pin.abort()


def test_calls_after_close_say_closed() -> None:
    cache = full_swa()
    keys = keys_of(100)
    cache.insert(keys)
    cache.close()
    for call in (
        lambda: cache.match(keys),
        lambda: cache.insert(keys),
        lambda: cache.reserve(keys),
        lambda: cache.evict(keys),
        lambda: cache.match_at(keys, 32),
    ):
        with pytest.raises(hk.Closed):
            call()


# -- forged keys ---------------------------------------------------------------------------------


def forged(kind: str, count: int) -> list[bytes]:
    """Different 16-byte keys that agree in many bits."""
    rng = np.random.default_rng(16)
    base = rng.bytes(16)
    numbers = [int(i).to_bytes(8, "little") for i in range(count)]
    if kind == "120 bits, last byte":
        return [base[:15] + bytes([i]) for i in range(min(count, 256))]
    if kind == "120 bits, first byte":
        return [bytes([i]) + base[1:] for i in range(min(count, 256))]
    if kind == "one bit":
        value = int.from_bytes(base, "little")
        return [(value ^ (1 << bit)).to_bytes(16, "little") for bit in range(128)]
    if kind == "first half":
        return [base[:8] + n for n in numbers]
    if kind == "last half":
        return [n + base[8:] for n in numbers]
    if kind == "zeros":
        return [bytes(8) + n for n in numbers]
    if kind == "middle":
        return [base[:6] + n[:4] + base[10:] for n in numbers]
    raise AssertionError(kind)


FORGERIES = (
    "120 bits, last byte",
    "120 bits, first byte",
    "one bit",
    "first half",
    "last half",
    "zeros",
    "middle",
)


@pytest.mark.parametrize("kind", FORGERIES)
def test_near_collisions_are_survived(kind: str) -> None:
    """Keys that differ in few bits, or share the bits a table might look at, never answer for each other."""
    names = forged(kind, 600)
    cache = make_cache(16, {"full": (hk.Prefix(), 16), "swa": (hk.Window(17), 16)}, blocks=1024)
    there, absent = names[::2], names[1::2]
    pages: dict[int, bytes] = {}
    found = 0
    for name in there:
        cache.insert(hk.BlockKeys.from_hashes([name], 16))
    for name in there:
        v = cache.match(hk.BlockKeys.from_hashes([name], 16), limit=17)
        if v.lease is None:  # a full table line keeps the block private; that is counted, never wrong
            assert v.outcome == hk.Outcome.MISS
            continue
        found += 1
        page = int(np.asarray(v.lease.page_ids("full"))[0])
        assert pages.setdefault(page, name) == name
        v.lease.release()
    for name in absent:
        assert cache.match(hk.BlockKeys.from_hashes([name], 16), limit=17).outcome == hk.Outcome.MISS
    assert found >= 14
    check_conserved(cache, {"full": 1024, "swa": 1024})
    removed = sum(cache.evict(hk.BlockKeys.from_hashes([name], 16)) for name in there)
    assert removed == 2 * found
    for name in there:
        assert cache.match(hk.BlockKeys.from_hashes([name], 16), limit=17).outcome == hk.Outcome.MISS
    check_conserved(cache, {"full": 1024, "swa": 1024})


@pytest.mark.parametrize("kind", FORGERIES)
def test_a_chain_of_near_collisions_keeps_its_order(kind: str) -> None:
    names = forged(kind, 14)[:14]
    cache = make_cache(16, {"full": (hk.Prefix(), 16)}, blocks=512)
    keys = hk.BlockKeys.from_hashes(names, 16)
    assert len(keys) == len(names)
    cache.insert(keys)
    v = cache.match(keys, limit=len(names) * 16 + 1)
    assert v.usable_tokens % 16 == 0
    if v.lease is not None:
        own = np.asarray(v.lease.page_ids("full"))
        assert len(set(own.tolist())) == len(own)
        assert held(v.lease, "full") == list(range(v.usable_tokens // 16))
        v.lease.release()
    shuffled = hk.BlockKeys.from_hashes(names[::-1], 16)
    w = cache.match(shuffled, limit=17)
    if w.lease is not None and v.usable_tokens == 16 * len(names):
        assert int(np.asarray(w.lease.page_ids("full"))[0]) == int(own[-1])
        w.lease.release()


def test_only_the_first_16_bytes_of_a_hash_count() -> None:
    cache = make_cache(16, {"full": (hk.Prefix(), 16)})
    cache.insert(hk.BlockKeys.from_hashes([b"a" * 16 + b"tail one"], 16))
    assert give_back(cache.match(hk.BlockKeys.from_hashes([b"a" * 16 + b"tail two"], 16), limit=17)) == 16
