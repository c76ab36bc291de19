# SPDX-License-Identifier: Apache-2.0
"""A running request of DeepSeek-V4: compressed history, indexer, window rows and three tails at once."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import check_conserved, give_back, held, keys_of, tokens, usable
from ticket_support import check_idle, holds, made, new_pages, phases, run, step, table

FLASH = Path(__file__).parents[1] / "data" / "configs" / "deepseek-v4-flash.json"
HISTORY = ("csa", "hca", "indexer")
LIVE = ("swa", "overlap", "pending", "hca_tail")


def scaled(unit: int = 256, blocks: int = 64, **more: Any) -> Any:
    """The published model over few blocks."""
    return hk.HybridCache(hk.CacheSpec.from_config(FLASH, unit_tokens=unit), blocks=blocks, **more)


def boundaries(cache: Any, n: int, unit: int = 256) -> list[int]:
    v = cache.match(keys_of(n, unit))
    lengths = np.asarray(v.boundaries).tolist()
    give_back(v)
    return lengths


def test_history_is_paged_and_every_state_is_live() -> None:
    cache = scaled()
    ticket = cache.admit("a", 2048)
    slots = ticket.grow(600)
    assert [len(new_pages(slots, name)) for name in HISTORY] == [3, 3, 3]
    assert all(slots.live_page(name) == -1 for name in HISTORY)
    assert all(slots.live_page(name) == ticket.live_page(name) >= 0 for name in LIVE)
    assert all(new_pages(slots, name) == [] for name in LIVE)
    ticket.close()
    check_idle(cache)


def test_a_prompt_in_chunks_keeps_the_states_that_a_resume_needs() -> None:
    cache = scaled()
    ticket = cache.admit("a", 2048)
    copies = step(ticket, tokens(2048), 512)
    assert sorted(copies) == ["overlap", "swa"]  # at a multiple of 4 and of 128 no compressor row is open
    assert step(ticket, tokens(2048), 88) == {}
    assert boundaries(cache, 2048) == [512]
    v = cache.match(keys_of(2048, 256))
    assert held(v.lease, "csa") == held(v.lease, "indexer") == held(v.lease, "hca") == [0, 1]
    assert held(v.lease, "swa") == held(v.lease, "overlap") == [1]
    assert held(v.lease, "pending") == held(v.lease, "hca_tail") == []
    v.lease.cancel()
    ticket.close()
    assert boundaries(cache, 2048) == [512, 600]
    check_idle(cache)


@pytest.mark.parametrize(
    ("end", "states"),
    [(600, {"swa", "overlap", "hca_tail"}), (603, set(LIVE)), (640, {"swa", "overlap"})],
)
def test_a_tip_keeps_the_states_of_its_own_position(end: int, states: set[str]) -> None:
    cache = scaled()
    ticket = cache.admit("a", 2048)
    step(ticket, tokens(2048), 512)
    step(ticket, tokens(2048), end - 512)
    live = {name: ticket.live_page(name) for name in LIVE}
    ticket.close()
    v = cache.match(keys_of(2048, 256))
    assert usable(v) == end
    assert np.asarray(v.boundaries).tolist() == [512, end]
    for name in LIVE:
        assert np.asarray(v.lease.page_ids(name)).tolist()[2] == (live[name] if name in states else -1)
    v.lease.release()
    check_idle(cache)


def test_a_unit_of_one_window_has_paged_windows() -> None:
    cache = scaled(128)
    ticket = cache.admit("a", 1024)
    slots = ticket.grow(300)
    assert len(new_pages(slots, "swa")) == 3
    assert slots.live_page("swa") == -1
    assert sorted(made(ticket.advance(300, tokens(300)))) == []
    assert holds(ticket, "swa") == [1, 2]
    ticket.close()
    v = cache.match(keys_of(1024, 128))
    assert usable(v) == 300
    v.lease.release()
    check_idle(cache)


def test_a_resumed_request_copies_every_state_into_its_own_page() -> None:
    cache = scaled()
    first = cache.admit("a", 2048)
    step(first, tokens(2048), 512)
    step(first, tokens(2048), 91)
    first.close()
    v = cache.match(keys_of(1000, 256))
    shared = {name: np.asarray(v.lease.page_ids(name)).tolist() for name in (*HISTORY, *LIVE)}
    ticket = cache.admit("b", 2048, lease=v.lease)
    assert ticket.tokens == 603
    ticket.grow(397)
    for name in HISTORY:
        [copy] = np.asarray(ticket.copies(name)).tolist()
        assert copy[:2] == [shared[name][2], table(ticket, name)[2]]
        assert table(ticket, name)[:2] == shared[name][:2]
    for name in LIVE:  # of the window: the rows before 512, and those from there on over them
        copies = np.asarray(ticket.copies(name)).tolist()
        assert [source for source, _, _ in copies] == [page for page in shared[name] if page >= 0]
        assert {target for _, target, _ in copies} == {ticket.live_page(name)}
        assert ticket.live_page(name) not in shared[name]
    ticket.advance(1000, tokens(1000)[603:])
    ticket.close()
    assert boundaries(cache, 2048) == [512, 603, 1000]
    check_idle(cache)


def test_drafts_leave_no_state_of_rejected_tokens() -> None:
    cache = scaled()
    ticket = cache.admit("a", 2048)
    step(ticket, tokens(2048), 508)
    ticket.grow(8)
    ticket.rewind(4)
    assert made(ticket.advance(512, tokens(512)[508:])) == {}
    step(ticket, tokens(2048), 100)
    assert boundaries(cache, 2048) == []
    for name in ("swa", "overlap"):
        assert phases(cache, keys_of(512, 256), name) == ["absent", "absent"]
    for name in HISTORY:
        assert phases(cache, keys_of(512, 256), name) == ["ready", "ready"]
    ticket.close(keep_tip=False)
    check_idle(cache)


def test_a_closing_window_moves_every_history_group_at_once() -> None:
    cache = scaled()
    ticket = cache.admit("a", 2048)
    ticket.grow(2048)
    for end in range(64, 2049, 64):
        ticket.advance(end, tokens(2048)[end - 64 : end])
        ready = [phases(cache, keys_of(2048, 256), name).count("ready") for name in HISTORY]
        assert ready == [end // 256] * 3
        check_conserved(cache, cache.pages)
    ticket.close()
    check_idle(cache)


def test_no_match_sees_compressed_rows_without_their_indexer() -> None:
    cache = scaled(blocks=512)
    prompts = [tokens(4096, start=10_000 * i) for i in range(8)]
    asked = [hk.block_keys(prompts[0], 256)]
    torn: list[str] = []
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            v = cache.match(asked[0])
            if dict(v.lost).get(hk.Check.COMPLETE):
                torn.append(f"{v.why.group} {v.why.code} below {v.matched_tokens}")
            give_back(v)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    reader = threading.Thread(target=ask)
    reader.start()
    try:
        for prompt in prompts:
            asked[0] = hk.block_keys(prompt, 256)
            ticket = cache.admit("a", 4096)
            run(ticket, prompt, 256)
            ticket.close()
    finally:
        done.set()
        reader.join()
        sys.setswitchinterval(before)
    assert torn == []
    check_idle(cache)
