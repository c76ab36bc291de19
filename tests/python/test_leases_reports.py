# SPDX-License-Identifier: Apache-2.0
"""Who holds what: the refusal of a close names owners, and what was collected open is reported with its owner."""

from __future__ import annotations

import gc
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import Event, full_swa, keys_of, make_cache
from hybridkv.holders import LEAKS_KEPT

KEYS = keys_of(97)


@contextmanager
def leaking() -> Iterator[None]:
    """Let handles be collected open in the block."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


def filled() -> Any:
    cache = full_swa()
    cache.insert(KEYS[:6])
    return cache


@pytest.mark.parametrize("verb", ["reset", "close"])
def test_a_refused_close_names_who_holds_pages(verb: str) -> None:
    cache = filled()
    leases = [cache.match(KEYS).lease for _ in range(4)]
    leases[0].lend("decode-3")
    leases[1].lend("decode-3")
    leases[2].lend("decode-4")
    fills = [
        cache.reserve(keys_of(32, identity=hk.Identity(salt=bytes([i + 1]))), owner=o)
        for i, o in enumerate(["prefill-0", None, None])
    ]
    with pytest.raises(hk.Busy, match="decode-4") as refused:
        getattr(cache, verb)()
    assert refused.value.owners == {
        "lease of decode-3": 2,
        "lease of decode-4": 1,
        "lease": 1,
        "fill of prefill-0": 1,
        "fill": 2,
    }
    assert pickle.loads(pickle.dumps(refused.value)).owners == refused.value.owners
    for lease in leases:
        lease.release()
    for fill in fills:
        fill.abort()
    getattr(cache, verb)()


def test_a_close_names_whom_a_revoked_lease_still_waits_for() -> None:
    cache = filled()
    lease = cache.match(KEYS).lease
    event = Event()
    lease.lend("decode-3", after=event)
    cache.revoke(owner="decode-3")
    (holder,) = cache.live()
    assert (holder.what, holder.owner, holder.tokens, holder.pages, holder.waits) == ("lease", "decode-3", 96, 8, True)
    with pytest.raises(hk.Busy) as refused:
        cache.close()
    assert refused.value.owners == {"lease of decode-3": 1}
    del lease  # collected after it was revoked: no leak, and the pages wait on
    gc.collect()
    with pytest.raises(hk.Busy, match="decode-3"):
        cache.close()
    event.passed = True
    cache.close()
    assert cache.metrics().leaks == 0 and cache.live() == []


def test_another_busy_names_nobody() -> None:
    cache = filled()
    with pytest.raises(hk.Busy) as refused:
        cache.bind("full", np.zeros((256, 64), np.uint8))
    assert dict(refused.value.owners) == {}


def test_live_tells_each_handle_that_has_an_owner() -> None:
    cache = filled()
    first, second = cache.match(KEYS).lease, cache.match(KEYS).lease
    first.lend("decode-3", deadline_s=1e12)
    fill = cache.reserve(keys_of(40, identity=hk.Identity(salt=b"x")), owner="prefill-0")
    aborted = cache.reserve(keys_of(16, identity=hk.Identity(salt=b"y")), owner="prefill-1")
    event = Event()
    aborted.abort(after=event)
    assert cache.live() == [
        hk.Holder("lease", "decode-3", 1, 96, 8, 1e12, False),
        hk.Holder("fill", "prefill-0", 1, 40, 6, None, False),
        hk.Holder("fill", "prefill-1", 1, 16, 2, None, True),
        hk.Holder("lease", None, 1),
    ]
    event.passed = True
    cache.poll()
    first.release()
    second.release()
    fill.publish()
    assert cache.live() == []


def test_a_name_leaves_with_its_handle() -> None:
    cache = filled()
    for round_ in range(20):
        lease = cache.match(KEYS).lease
        lease.lend(f"decode-{round_}")
        lease.release()
        cache.reserve(keys_of(32, identity=hk.Identity(salt=b"x")), owner="prefill").abort()
    del lease
    gc.collect()
    assert not cache._holders._named


def test_a_lease_collected_open_is_reported_with_its_owner() -> None:
    cache = filled()
    named, unnamed = cache.match(KEYS).lease, cache.match(KEYS).lease
    named.lend("decode-3", deadline_s=1e12)
    with leaking():
        del named, unnamed
    assert sorted(cache.leaks(), key=lambda leak: leak.owner or "") == [
        hk.Leak("lease", None, 96, 8),
        hk.Leak("lease", "decode-3", 96, 8),
    ]
    assert cache.metrics().leaks == 2
    cache.close()


def test_a_fill_collected_open_is_reported_with_its_owner() -> None:
    cache = filled()
    fill = cache.reserve(keys_of(40, identity=hk.Identity(salt=b"x")), owner="prefill-0")
    with leaking():
        del fill
    assert cache.leaks() == [hk.Leak("fill", "prefill-0", 40, 6)]
    assert cache.metrics().leaks == 1
    with pytest.raises(hk.ArgumentError):
        cache.reserve(KEYS, owner="")


def test_a_fill_collected_while_it_waits_is_reported_once_that_is_known() -> None:
    cache = full_swa()
    event = Event()
    half, whole = cache.reserve(keys_of(64), owner="half"), cache.reserve(keys_of(64, 16, identity=hk.Identity("m")))
    half.publish({"full": True}, after=event)
    whole.publish(after=event)
    with leaking():
        del half, whole
    assert cache.leaks() == []
    event.passed = True
    assert cache.poll() == 2
    gc.collect()
    assert cache.leaks() == [hk.Leak("fill", "half", 64, 8)]
    assert cache.metrics().leaks == 1
    cache.reset()


def test_a_fill_has_the_owner_of_the_lease_it_took_over() -> None:
    cache = make_cache(16, {"full": (hk.Prefix(), 16)})
    cache.insert(keys_of(20))
    lease = cache.match(keys_of(48)).lease
    lease.lend("decode-3")
    fill = cache.reserve(keys_of(48), lease=lease)
    assert [(holder.what, holder.owner) for holder in cache.live()] == [("lease", "decode-3"), ("fill", "decode-3")]
    fill.abort()
    assert cache.live() == []


def test_only_the_youngest_leaks_are_kept_and_all_are_counted() -> None:
    cache = filled()
    with leaking():
        for round_ in range(LEAKS_KEPT + 5):
            lease = cache.match(KEYS).lease
            lease.lend(f"decode-{round_}")
            del lease
    leaks = cache.leaks()
    assert (len(leaks), leaks[0].owner, leaks[-1].owner) == (LEAKS_KEPT, "decode-5", f"decode-{LEAKS_KEPT + 4}")
    assert cache.metrics().leaks == LEAKS_KEPT + 5


def test_a_refused_admission_says_why_and_whether_to_come_again() -> None:
    refused = hk.NotAdmitted("max_tokens", "at most 64 pages", "80", reason="never", retry=False)
    assert (refused.reason, refused.retry) == ("never", False)
    assert (hk.NotAdmitted().reason, hk.NotAdmitted().retry) == ("", True)
