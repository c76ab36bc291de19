# SPDX-License-Identifier: Apache-2.0
"""Bad arguments of running requests: an error that names the field, and nothing has changed."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import Event, Rules, check_conserved, give_back, keys_of, make_cache, observe, state_text, tokens
from ticket_support import assert_named, check_idle, copies_of, owned, table

RULES: Rules = {"full": (hk.Prefix(), 16), "swa": (hk.Window(33), 16), "state": (hk.Checkpoint(), 16)}
Call = Callable[[Any], Any]


def middle() -> tuple[Any, Any]:
    """A request of 400 tokens at most: 40 written, 70 grown, a state asked for at 64."""
    cache = make_cache(16, RULES, blocks=128)
    ticket = cache.admit("a", 400, states=2)
    ticket.grow(40)
    ticket.advance(40, tokens(40))
    ticket.grow(30, states=(64,))
    return cache, ticket


def seen(cache: Any, ticket: Any) -> str:
    """What a caller can see of a cache and one request."""
    facts = [ticket.tokens, ticket.grown_tokens, ticket.max_tokens, ticket.closed, sorted(owned(ticket, RULES))]
    facts += [(table(ticket, name), copies_of(ticket, name)) for name in RULES]
    return state_text(facts) + observe(cache, keys_of(400))


def rest(n: int) -> np.ndarray:
    """Token ids from 40 to n."""
    return tokens(n)[40:]


BAD_GROWS: dict[str, Call] = {
    "negative": lambda t: t.grow(-1),
    "a bool": lambda t: t.grow(True),
    "a float": lambda t: t.grow(1.5),
    "a text": lambda t: t.grow("1"),
    "none": lambda t: t.grow(None),
    "far too many": lambda t: t.grow(2**70),
    "a state below what is written": lambda t: t.grow(10, states=(32,)),
    "a state at what is written": lambda t: t.grow(10, states=(40,)),
    "a state beyond what is grown": lambda t: t.grow(10, states=(96,)),
    "a state inside a unit": lambda t: t.grow(10, states=(72,)),
    "a state twice": lambda t: t.grow(30, states=(80, 80)),
    "a state that was asked for": lambda t: t.grow(10, states=(64,)),
    "states no numbers": lambda t: t.grow(10, states=("a",)),
    "states a float": lambda t: t.grow(10, states=(80.0,)),
    "states no sequence": lambda t: t.grow(10, states=80),
}

BAD_ADVANCES: dict[str, Call] = {
    "below the total": lambda t: t.advance(39, []),
    "below the total, with ids": lambda t: t.advance(39, tokens(39)),
    "beyond what is grown": lambda t: t.advance(71, rest(71)),
    "negative": lambda t: t.advance(-1, []),
    "a float": lambda t: t.advance(50.0, rest(50)),
    "a bool": lambda t: t.advance(True, []),
    "no ids": lambda t: t.advance(50),
    "too few ids": lambda t: t.advance(50, rest(49)),
    "too many ids": lambda t: t.advance(50, rest(51)),
    "all ids": lambda t: t.advance(50, tokens(50)),
    "ids where nothing is new": lambda t: t.advance(40, [7]),
    "ids negative": lambda t: t.advance(42, [1, -1]),
    "ids too large": lambda t: t.advance(42, [1, 2**32]),
    "ids floats": lambda t: t.advance(42, np.array([1.0, 2.0])),
    "ids of two axes": lambda t: t.advance(42, np.zeros((1, 2), np.int32)),
    "ids and keys": lambda t: t.advance(50, rest(50), keys=keys_of(50)),
    "keys too short": lambda t: t.advance(50, keys=keys_of(49)),
    "keys of another unit": lambda t: t.advance(50, keys=keys_of(64, 8)),
    "keys a slice from inside": lambda t: t.advance(50, keys=keys_of(64)[1:]),
    "keys of another sequence": lambda t: t.advance(50, keys=hk.block_keys(tokens(64, start=9000), 16)),
    "keys no keys": lambda t: t.advance(50, keys="keys"),
    "a state nobody asked for": lambda t: t.advance(60, rest(60), states=(48,)),
    "a state not yet reached": lambda t: t.advance(60, rest(60), states=(64,)),
    "states no numbers": lambda t: t.advance(64, rest(64), states=("a",)),
    "states no sequence": lambda t: t.advance(64, rest(64), states=64),
    "a state twice": lambda t: t.advance(64, rest(64), states=(64, 64)),
    "after no event": lambda t: t.advance(50, rest(50), after=7),
    "wrote no mapping": lambda t: t.advance(50, rest(50), wrote=5),
    "wrote of nobody": lambda t: t.advance(50, rest(50), wrote={"nobody": [0]}),
}

BAD_CALLS: dict[str, Call] = {
    "rewind: negative": lambda t: t.rewind(-1),
    "rewind: a float": lambda t: t.rewind(1.0),
    "rewind: a bool": lambda t: t.rewind(True),
    "rewind: a text": lambda t: t.rewind("1"),
    "rewind: after no event": lambda t: t.rewind(1, after="later"),
    "close: after no event": lambda t: t.close(after=object()),
    "close: keep_tip no bool": lambda t: t.close(keep_tip="yes"),
    "fail: no reason": lambda t: t.fail(7),
    "page_ids: unknown group": lambda t: t.page_ids("nobody"),
    "page_ids: a number": lambda t: t.page_ids(0),
    "copies: unknown group": lambda t: t.copies("nobody"),
    "live_page: unknown group": lambda t: t.live_page("nobody"),
}

TABLE = {
    **{f"grow: {name}": call for name, call in BAD_GROWS.items()},
    **{f"advance: {name}": call for name, call in BAD_ADVANCES.items()},
    **BAD_CALLS,
}


@pytest.mark.parametrize("name", TABLE)
def test_a_bad_call_is_refused_and_changes_nothing(name: str) -> None:
    cache, ticket = middle()
    before = seen(cache, ticket)
    with pytest.raises(hk.ArgumentError) as refused:
        TABLE[name](ticket)
    assert_named(refused.value)
    assert seen(cache, ticket) == before
    ticket.advance(64, rest(64), states=(64,))
    ticket.close()
    assert give_back(cache.match(keys_of(400))) == 64
    check_conserved(cache, cache.pages)
    check_idle(cache)


BAD_ADMITS: dict[str, Call] = {
    "most 0": lambda c: c.admit("a", 0),
    "most negative": lambda c: c.admit("a", -1),
    "most a bool": lambda c: c.admit("a", True),
    "most a float": lambda c: c.admit("a", 16.0),
    "most a text": lambda c: c.admit("a", "16"),
    "most none": lambda c: c.admit("a", None),
    "states negative": lambda c: c.admit("a", 16, states=-1),
    "states a float": lambda c: c.admit("a", 16, states=1.0),
    "states a bool": lambda c: c.admit("a", 16, states=True),
    "formats of nobody": lambda c: c.admit("a", 16, formats={"nobody": None}),
    "formats no format": lambda c: c.admit("a", 16, formats={"full": 7}),
    "lease no lease": lambda c: c.admit("a", 16, lease="lease"),
    "lease a verdict": lambda c: c.admit("a", 16, lease=c.match(keys_of(20))),
}


@pytest.mark.parametrize("name", BAD_ADMITS)
def test_a_bad_admission_is_refused_and_changes_nothing(name: str) -> None:
    cache = make_cache(16, RULES, blocks=64)
    cache.match(keys_of(20))
    before = observe(cache, keys_of(64))
    lookups = cache.metrics().lookups
    with pytest.raises(hk.ArgumentError) as refused:
        BAD_ADMITS[name](cache)
    assert_named(refused.value)
    if cache.metrics().lookups == lookups:
        assert observe(cache, keys_of(64)) == before
    assert list(cache.preemption_order()) == []
    cache.close()


def test_a_refused_reason_settles_nothing() -> None:
    cache = make_cache(16, {"kv": (hk.Prefix(), 16)}, blocks=64)
    cache.insert(keys_of(32))
    ticket = cache.admit("a", 64, lease=cache.match(keys_of(64)).lease)
    with pytest.raises(hk.ArgumentError):
        ticket.fail(3.5)
    assert cache.metrics().pending == 1
    ticket.close()


def test_a_ticket_is_neither_copied_nor_pickled() -> None:
    cache, ticket = middle()
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            attempt(ticket)
    with pytest.raises(TypeError):
        hk.Ticket()
    ticket.close()
    check_idle(cache)


def test_attributes_of_a_ticket_are_read_only() -> None:
    _, ticket = middle()
    for name in ("tokens", "grown_tokens", "max_tokens", "handle", "closed"):
        with pytest.raises(AttributeError):
            setattr(ticket, name, 1)
    ticket.close()


def test_a_refusal_can_be_pickled_with_its_reason() -> None:
    cache = make_cache(16, {"kv": (hk.Prefix(), 16)}, blocks=4)
    with pytest.raises(hk.NotAdmitted) as caught:
        cache.admit("a", 1000)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.reason, again.retry, again.field) == ("never", False, caught.value.field)
    assert isinstance(caught.value, hk.HybridKVError)


@pytest.mark.parametrize("verb", ["advance", "rewind", "close"])
def test_an_event_that_breaks_raises_before_anything_changed(verb: str) -> None:
    cache, ticket = middle()
    before = seen(cache, ticket)
    event = Event()
    event.broken = True
    calls: dict[str, Call] = {
        "advance": lambda t: t.advance(64, rest(64), after=event),
        "rewind": lambda t: t.rewind(2, after=event),
        "close": lambda t: t.close(after=event),
    }
    with pytest.raises(OSError, match="gone"):
        calls[verb](ticket)
    assert seen(cache, ticket) == before
    ticket.close()
    check_idle(cache)


def test_a_full_pool_is_told_by_its_name() -> None:
    cache = make_cache(16, {"kv": (hk.Prefix(), 16)}, blocks=8)
    ticket = cache.admit("a", 128)
    ticket.grow(128)
    with pytest.raises(hk.OutOfPages) as refused:
        cache.reserve(keys_of(16))
    assert (refused.value.pool, refused.value.free) == ("kv", 0)
    ticket.close()


def test_a_refusal_tells_which_pool_is_short_of_how_many_pages() -> None:
    rules = {"full": (hk.Prefix(), 16), "swa": (hk.Window(64), 16)}
    cache = make_cache(16, rules, blocks=64, pages={"full": 64, "swa": 8})
    with pytest.raises(hk.NotAdmitted, match=r"at most the 8 pages of 'swa'.* 32 pages.*step_tokens") as refused:
        cache.admit("a", 512)
    assert (refused.value.pool, refused.value.needed) == ("swa", 32)
    bounded = make_cache(16, rules, blocks=64, pages={"full": 64, "swa": 12}, admission=hk.Admission(step_tokens=128))
    with pytest.raises(hk.NotAdmitted, match=r"at most the 12 pages of 'swa'.* 13 pages or more$|13 pages") as refused:
        bounded.admit("a", 512)
    assert (refused.value.pool, refused.value.needed) == (
        "swa",
        hk.worst_pages(cache.spec, 512, step_tokens=128)["swa"],
    )
    few = make_cache(16, rules, blocks=64, admission=hk.Admission(max_requests=1))
    ticket = few.admit("a", 16)
    with pytest.raises(hk.NotAdmitted) as refused:
        few.admit("b", 16)
    assert (refused.value.pool, refused.value.needed) == (None, None)
    ticket.close()
    with pytest.raises(hk.ArgumentError, match="1 or more"):
        few.admit("c", 0)
