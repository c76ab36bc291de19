# SPDX-License-Identifier: Apache-2.0
"""What the tests of running requests share: small specs, single steps, readings of pages, and the worst case.

The worst case of admission is written here a second time, from the coverage rules alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

import hybridkv as hk
from contract_support import Rules, check_conserved, check_counters, make_cache, pools, tokens

GEMMA: Rules = {"full": (hk.Prefix(), 16), "swa": (hk.Window(64), 16)}
RECURRENT: Rules = {"full": (hk.Prefix(), 16), "state": (hk.Checkpoint(), 16)}
ENGINE: Rules = {"full": (hk.Prefix(), 256), "swa": (hk.Window(128), 64), "c4": (hk.Window(8), 4)}  # unit 4
CHUNKED: Rules = {"full": (hk.Prefix(), 2), "local": (hk.Chunk(4), 2)}  # unit 2


def homogeneous(pages: int = 16, **more: Any) -> Any:
    """One full-attention group "kv" of unit 16."""
    return make_cache(16, {"kv": (hk.Prefix(), 16)}, blocks=256, pages={"kv": pages}, **more)


def assert_named(error: Any) -> None:
    """The error says which field, what was expected and what came."""
    assert isinstance(error, hk.HybridKVError)
    assert isinstance(error.field, str)
    assert error.field
    assert error.expected not in ("", None)
    assert error.field in str(error)


# -- steps ------------------------------------------------------------------------------------------


def step(ticket: Any, ids: np.ndarray, count: int, *, states: Iterable[int] = (), after: Any = None) -> dict[str, Any]:
    """Grow by so many tokens and say that their rows are written; returns the copies to run, by group."""
    at = ticket.tokens
    assert ticket.grown_tokens == at
    named = tuple(states)
    ticket.grow(count, states=named)
    return made(ticket.advance(at + count, ids[at : at + count], states=named, after=after))


def run(ticket: Any, ids: np.ndarray, count: int, to: int | None = None) -> None:
    """Steps of so many tokens up to a length, the end of the ids unless given."""
    end = len(ids) if to is None else to
    while ticket.tokens < end:
        step(ticket, ids, min(count, end - ticket.tokens))


def served(cache: Any, ids: np.ndarray, count: int = 16, **more: Any) -> None:
    """A whole request from its admission to its end."""
    ticket = cache.admit("served", len(ids))
    run(ticket, ids, count)
    ticket.close(**more)


def made(copies: Mapping[str, Any]) -> dict[str, Any]:
    """The copies by group, groups without any left out."""
    result = {}
    for name, rows in copies.items():
        table = np.asarray(rows)
        assert table.dtype == np.int32
        assert table.ndim == 2 and table.shape[1] == 3
        if len(table):
            result[name] = table.tolist()
    return result


def copies_of(ticket: Any, name: str) -> list[list[int]]:
    """Copies that a group has to run before the first write."""
    table = np.asarray(ticket.copies(name))
    assert table.dtype == np.int32
    assert table.ndim == 2 and table.shape[1] == 3
    return [list(map(int, row)) for row in table]


def new_pages(slots: Any, name: str) -> list[int]:
    """Pages of one call of grow."""
    ids = np.asarray(slots.page_ids(name))
    assert ids.dtype == np.int32
    assert ids.ndim == 1
    return [int(i) for i in ids]


def table(ticket: Any, name: str) -> list[int]:
    """A request's pages of one group, -1 where none is held."""
    ids = np.asarray(ticket.page_ids(name))
    assert ids.dtype == np.int32
    assert ids.ndim == 1
    return [int(i) for i in ids]


def holds(ticket: Any, name: str) -> list[int]:
    """Own blocks of a group that a request holds a page of."""
    return [block for block, page in enumerate(table(ticket, name)) if page >= 0]


def owned(ticket: Any, names: Iterable[str]) -> set[tuple[str, int]]:
    """Every page a request holds, its live pages included."""
    pages = {(name, page) for name in names for page in table(ticket, name) if page >= 0}
    return pages | {(name, ticket.live_page(name)) for name in names if ticket.live_page(name) >= 0}


# -- what must hold ---------------------------------------------------------------------------------


def phases(cache: Any, keys: Any, name: str) -> list[str]:
    """Phase of each own block of a group."""
    return [info.phase for info in cache.inspect(keys)[name]]


def pins(cache: Any, keys: Any, name: str) -> list[int]:
    """Pins of the word of each own block of a group."""
    return [info.pins for info in cache.inspect(keys)[name]]


def free(cache: Any) -> dict[str, int]:
    """Free pages of each pool."""
    return {name: counts[0] for name, counts in pools(cache).items()}


def check_idle(cache: Any) -> None:
    """Nothing is pinned, filling or pending, and every count adds up."""
    check_conserved(cache, cache.pages)
    check_counters(cache)
    assert cache.metrics().pending == 0
    for name, (_, filling, held, _) in pools(cache).items():
        assert (filling, held) == (0, 0), name
    assert cache.verify()


def first_needed(coverage: Any, t: int) -> int:
    """First token whose row the token at t needs, from the rules as they are written."""
    if isinstance(coverage, hk.Prefix):
        return 0
    if isinstance(coverage, hk.Window):
        return max(0, t - (coverage.tokens - 1))
    return int(t // coverage.tokens * coverage.tokens)


def needed(coverage: Any, block: int, t: int) -> list[int]:
    """Own blocks with a row that the next token needs."""
    return sorted({token // block for token in range(first_needed(coverage, t), t)})


def worst(rules: Rules, max_tokens: int, *, step: int | None = None, states: int = 0) -> dict[str, int]:
    """Pages of each group that a request may ever hold at once, tried at every length and every step.

    Exact where at most one group is no history: pins are on units, and keep the pages of other groups there.
    """
    ahead = max_tokens if step is None else step
    result = {}
    for name, (coverage, block) in rules.items():
        if isinstance(coverage, hk.Checkpoint):
            ends = range(block, max_tokens + 1, block)
            kept = any(coverage.every is None or end % coverage.every for end in ends)
            result[name] = 1 + kept + states
            continue
        most = 0
        for written in range(max_tokens):
            grown = min(max_tokens, written + ahead)
            most = max(most, -(-grown // block) - first_needed(coverage, written) // block)
        result[name] = most
    return result


def ample(rules: Rules, max_tokens: int, *, step: int) -> dict[str, int]:
    """Pages that are enough for one request whatever its groups keep for each other."""
    windows = [c.tokens for c, _ in rules.values() if isinstance(c, hk.Window | hk.Chunk)]
    result = worst(rules, max_tokens, step=step)
    for name, (coverage, block) in rules.items():
        if not isinstance(coverage, hk.Prefix):
            result[name] += sum(-(-(reach + step) // block) + 1 for reach in windows)
    return result


def longer(shared: int, more: int, *, start: int = 50_000) -> np.ndarray:
    """Token ids [[shared + more]] that begin like `tokens` and go on in their own way."""
    return np.concatenate([tokens(shared), tokens(more, start=start)])
