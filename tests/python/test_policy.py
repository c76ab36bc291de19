# SPDX-License-Identifier: Apache-2.0
"""The order of eviction, by hand: oldest prefix first, suffix before prefix, states on their own, tips, pins.

tests/python/test_policy_property.py compares it with a naive definition.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import hybridkv as hk
from hybridkv.policy import LruPolicy

UNIT = 4
HISTORY = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64)
WINDOW = hk.CacheGroup("swa", hk.StateKind.WINDOW, hk.Window(UNIT + 1), page_bytes=64)
STATE = hk.CacheGroup("state", hk.StateKind.TAIL, hk.Checkpoint(), page_bytes=64)


class Bench:
    """A cache, its policy, and what a caller does with both."""

    def __init__(self, groups: Sequence[hk.CacheGroup] = (HISTORY, WINDOW), blocks: int = 1000) -> None:
        self.spec = hk.CacheSpec(UNIT, groups)
        self.cache = hk.HybridCache(self.spec, blocks=blocks, eviction="none")
        self.policy = LruPolicy(self.cache)

    def keys(self, text: str) -> hk.BlockKeys:
        """Keys of a text: a capital letter is a unit, small ones are single tokens of a tip."""
        tokens = []
        for letter in text:
            tokens += [ord(letter)] * (UNIT if letter.isupper() else 1)
        return hk.block_keys(tokens, UNIT)

    def store(self, text: str, *, at: Sequence[int] | None = None, states: bool = True) -> None:
        """Store a prefix, with states at its end, or at these lengths in units."""
        keys = self.keys(text)
        if at is None:
            self.cache.insert(keys)
            self.policy.stored(keys, keys.tokens, states=states)
            return
        needs = [self.spec.requirements(units * UNIT) for units in at]
        groups: dict[str, Any] = {}
        for group in self.spec.groups:
            history = isinstance(group.coverage, hk.Prefix)
            groups[group.name] = history or sorted({block for need in needs for block in need[group.name].blocks})
        self.cache.insert(keys, groups)
        for units in at:
            self.policy.stored(keys, units * UNIT)
        self.policy.stored(keys, keys.tokens, states=False)

    def held(self, text: str) -> str:
        """By unit, the tip last: which groups hold a page, one letter each."""
        seen = self.cache.inspect(self.keys(text))
        ready = {name: [info.phase == "ready" for info in infos] for name, infos in seen.items()}
        count = max(map(len, ready.values()))
        return " ".join("".join(n[0] for n in ready if i < len(ready[n]) and ready[n][i]) or "-" for i in range(count))

    def going(self, pool: str, texts: Sequence[str], keep: Sequence[str] = ()) -> Iterator[str]:
        """Make room page by page; yield the first text that lost something, with what it still holds."""
        while True:
            before = {text: self.held(text) for text in texts}
            retired = self.policy.make_room(pool, [self.keys(text) for text in keep])
            after = {text: self.held(text) for text in texts}
            changed = [text for text in texts if before[text] != after[text]]
            assert bool(retired) == bool(changed)
            if not changed:
                return
            yield f"{changed[0]}: {after[changed[0]]}"


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_old_goes_before_new_and_suffix_before_prefix(bench: Bench) -> None:
    for text in ("SA", "SB"):
        bench.store(text, states=False)
    bench.cache.evict(bench.keys("SA"), {"swa": True})
    bench.cache.evict(bench.keys("SB"), {"swa": True})
    assert list(bench.going("kv", ["SA", "SB"])) == ["SA: k -", "SB: k -", "SA: - -"]


def test_a_use_makes_a_whole_prefix_young(bench: Bench) -> None:
    for text in ("SA", "SB", "T"):
        bench.store(text)
    bench.policy.touch(bench.keys("SAX"), 8)
    assert list(bench.going("kv", ["SB", "T", "SA"])) == ["SB: ks -", "T: -", "SA: ks -", "SB: - -"]
    assert bench.policy.evicted_pages == 8
    assert len(bench.policy) == 0
    assert bench.cache.metrics().pages["kv"].free == 1000


def test_what_lost_its_continuation_was_used_when_that_was(bench: Bench) -> None:
    bench.store("SA", at=(2,))
    bench.store("T", at=(1,))
    bench.policy.touch(bench.keys("SA"), 8)  # S by way of A
    assert next(bench.going("kv", ["T", "SA"])) == "T: -"
    bench.store("U", at=(1,))
    assert list(bench.going("kv", ["SA", "U"])) == ["SA: k -", "SA: - -", "U: -"]


def test_neighbours_go_in_one_call_and_no_more_than_asked(bench: Bench) -> None:
    bench.store("ABCDEF")
    calls = []
    evict = bench.cache.evict
    bench.policy._cache = Spy(bench.cache, calls)
    assert bench.policy.make_room("kv", pages=4) == 8
    assert [(groups, len(keys)) for keys, groups in calls] == [({"kv": True}, 4), ({"swa": True}, 4)]
    assert bench.held("ABCDEF") == "ks ks - - - -"
    assert evict(bench.keys("AB")) == 4


class Spy:
    """A cache that remembers what was evicted."""

    def __init__(self, cache: hk.HybridCache, calls: list[tuple[hk.BlockKeys, object]]) -> None:
        self._cache = cache
        self._calls = calls
        self.spec = cache.spec
        self.inspect = cache.inspect

    def evict(self, keys: hk.BlockKeys, groups: object = None) -> int:
        self._calls.append((keys, groups))
        return self._cache.evict(keys, groups)  # type: ignore[arg-type]


def test_a_run_ends_where_another_prefix_is_older(bench: Bench) -> None:
    bench.store("AB")
    bench.store("C")
    bench.policy.touch(bench.keys("A"), 4)
    assert bench.policy.make_room("kv", pages=2) == 4
    assert (bench.held("AB"), bench.held("C")) == ("ks -", "-")


def test_states_go_alone_and_leave_history(bench: Bench) -> None:
    bench.store("AB", at=(2,))
    bench.store("CD", at=(2,))
    assert list(bench.going("swa", ["AB", "CD"])) == ["AB: k k", "CD: k k"]
    assert bench.policy.make_room("swa") == 0


def test_pages_outside_every_tail_go_first(bench: Bench) -> None:
    bench.store("AB", at=(2,))
    bench.store("CDE")  # the windows of C and D are in no tail
    assert bench.policy.make_room("swa") == 2
    assert (bench.held("AB"), bench.held("CDE")) == ("k ks", "k k ks")
    assert next(bench.going("swa", ["AB", "CDE"])) == "AB: k k"


def test_the_end_of_a_branch_outranks_boundaries_inside_one(bench: Bench) -> None:
    bench.store("AB", at=(2,))
    bench.store("CDE", at=(1, 2, 3))
    bench.policy.touch(bench.keys("CDE"), 8)
    assert list(bench.going("swa", ["AB", "CDE"])) == ["CDE: k ks ks", "CDE: k k ks", "AB: k k", "CDE: k k k"]


def test_the_last_boundary_before_a_fork_ends_a_branch(bench: Bench) -> None:
    bench.store("SPA", at=(1, 3))  # the fork is at P, which keeps no states; S is the last boundary before it
    bench.store("T", at=(1,))
    bench.store("SPB", at=(3,))
    bench.policy.touch(bench.keys("S"), 4)
    order = list(bench.going("swa", ["T", "SPA", "SPB"]))
    assert order == ["SPA: ks k k", "T: k", "SPB: ks k k", "SPA: k k k"]


def test_without_its_fork_a_boundary_is_inside_a_branch_again(bench: Bench) -> None:
    bench.store("SPA", at=(1, 3))
    bench.store("SPB", at=(3,))
    bench.store("T", at=(1,))
    bench.policy.touch(bench.keys("S"), 4)
    bench.policy.touch(bench.keys("SPA"), 12)
    assert next(bench.going("kv", ["SPB"])) == "SPB: ks k -"
    assert next(bench.going("swa", ["T", "SPA"])) == "SPA: k k ks"


def test_without_its_end_a_branch_ends_before(bench: Bench) -> None:
    bench.store("AB", at=(1, 2))
    bench.store("CD", at=(1, 2))
    assert next(bench.going("kv", ["AB"])) == "AB: ks -"
    assert list(bench.going("swa", ["AB", "CD"])) == ["CD: k ks", "AB: k -", "CD: k k"]


def test_a_page_that_another_boundary_needs_stays() -> None:
    wide = hk.CacheGroup("swa", hk.StateKind.WINDOW, hk.Window(2 * UNIT + 1), page_bytes=64)
    bench = Bench((HISTORY, wide))
    bench.store("ABCDE", at=(2, 3, 5))  # windows AB, BC, DE
    assert bench.held("ABCDE") == "ks ks ks ks ks"
    assert list(bench.going("swa", ["ABCDE"])) == ["ABCDE: k ks ks ks ks", "ABCDE: k k k ks ks", "ABCDE: k k k k k"]


def test_states_that_are_of_use_together_go_together() -> None:
    bench = Bench((HISTORY, WINDOW, STATE))
    bench.store("AB", at=(2,))
    assert list(bench.going("swa", ["AB"])) == ["AB: k k"]


def test_what_can_be_rebuilt_goes_alone() -> None:
    rebuilt = hk.CacheGroup(
        "swa", hk.StateKind.WINDOW, hk.Window(UNIT + 1), page_bytes=64, layers=(0,), rebuildable=True
    )
    state = hk.CacheGroup("tail", hk.StateKind.TAIL, hk.Checkpoint(), page_bytes=64)
    bench = Bench((HISTORY, rebuilt, state))
    bench.store("ABC", at=(2, 3))
    assert list(bench.going("swa", ["ABC"])) == ["ABC: k kt kst", "ABC: k kt kt"]
    assert list(bench.going("tail", ["ABC"])) == ["ABC: k k kt", "ABC: k k k"]
    bench.store("XYZ", at=(2, 3))
    assert list(bench.going("tail", ["XYZ"])) == ["XYZ: k k kst", "XYZ: k k k"]


def test_what_was_resumed_from_is_a_boundary_whoever_stored_it(bench: Bench) -> None:
    keys = bench.keys("ABC")
    bench.cache.insert(keys)
    bench.policy.stored(keys, 12, states=False)
    bench.policy.touch(keys, 8)
    assert list(bench.going("swa", ["ABC"])) == ["ABC: k ks k", "ABC: k k k"]


def test_a_use_of_history_alone_makes_no_states_young(bench: Bench) -> None:
    bench.store("AB", at=(2,))
    bench.store("CD", at=(2,))
    bench.policy.touch(bench.keys("AB"), 8, states=False)
    assert next(bench.going("swa", ["AB", "CD"])) == "AB: k k"
    assert next(bench.going("kv", ["AB", "CD"])) == "CD: k -"


def test_what_is_kept_stays_tips_inside_it_too(bench: Bench) -> None:
    bench.store("ABx", at=None)
    bench.store("ABxy")
    bench.store("AC")
    keep = ["ABxyz"]
    assert list(bench.going("kv", ["AC", "ABx", "ABxy"], keep)) == ["AC: ks -"]
    assert list(bench.going("swa", ["ABx", "ABxy"], keep)) == []
    assert bench.policy.make_room("blocks", [bench.keys("ABxyz")]) == 0
    assert list(bench.going("kv", ["ABx", "ABxy"], ["AB"])) == ["ABx: ks ks -", "ABxy: ks ks -"]


def test_a_kept_page_of_another_boundary_goes_when_it_is_kept_no_longer() -> None:
    wide = hk.CacheGroup("swa", hk.StateKind.WINDOW, hk.Window(2 * UNIT + 1), page_bytes=64)
    bench = Bench((HISTORY, wide))
    bench.store("SA", at=(2,))
    assert list(bench.going("swa", ["SA"], ["SB"])) == ["SA: ks k"]
    assert list(bench.going("swa", ["SA"])) == ["SA: k k"]


def test_pinned_pages_are_skipped_and_stay_known(bench: Bench) -> None:
    bench.store("AB", at=(2,))
    bench.store("CD", at=(2,))
    verdict = bench.cache.match(bench.keys("ABx"))
    assert verdict.usable_tokens == 8 and verdict.lease is not None
    assert list(bench.going("swa", ["AB", "CD"])) == ["CD: k k"]
    assert list(bench.going("kv", ["AB", "CD"])) == ["CD: k -", "CD: - -"]
    assert bench.policy.make_room("blocks") == 0
    assert bench.held("AB") == "k ks"
    verdict.lease.release()
    assert list(bench.going("swa", ["AB"])) == ["AB: k k"]
    assert list(bench.going("kv", ["AB"])) == ["AB: k -", "AB: - -"]
    assert len(bench.policy) == 0


def test_a_tip_has_pages_of_its_own_and_goes_whole(bench: Bench) -> None:
    bench.store("ABx")
    bench.store("C")
    bench.cache.evict(bench.keys("AB"), {"swa": [0]})
    assert bench.held("ABx") == "k ks ks"
    assert next(bench.going("swa", ["C"], ["ABx"])) == "C: k"
    assert next(bench.going("swa", ["ABx"])) == "ABx: k ks -"  # its history is of no other use
    assert next(bench.going("swa", ["ABx"])) == "ABx: k k -"  # and what its window had in B is in no tail now
    assert bench.cache.match(bench.keys("ABxy")).usable_tokens == 0
    assert list(bench.going("kv", ["ABx", "C"])) == ["ABx: k - -", "ABx: - - -", "C: -"]
    assert bench.cache._core.free_blocks() == 1000  # the directory of tips went too


def test_a_tip_that_is_passed_is_no_end_of_a_branch(bench: Bench) -> None:
    bench.store("ABx")
    bench.store("C", at=(1,))
    longer = hk.block_keys([65] * 4 + [66] * 4 + [ord("x")] * 2 + [1, 2], UNIT)
    bench.cache.insert(longer, {"kv": True, "swa": [2]})
    bench.policy.stored(longer, 12)
    assert next(bench.going("swa", ["C", "ABx"], ["AB"])) == "ABx: ks ks -"


def test_a_tip_that_forks_off_is_the_end_of_a_branch(bench: Bench) -> None:
    bench.store("ABx", at=None)
    bench.store("C", at=(1,))
    bench.policy.touch(bench.keys("ABx"), 9)
    bench.store("ABD", at=(3,))
    assert next(bench.going("swa", ["C", "ABx"], ["AB"])) == "C: k"


def test_descriptors_are_freed_by_the_end_of_the_oldest_prefix(bench: Bench) -> None:
    bench.store("AB")
    bench.store("C")
    free = bench.cache._core.free_blocks()
    assert bench.policy.make_room("blocks") == 2
    assert bench.cache._core.free_blocks() == free + 1
    assert bench.held("AB") == "ks -"


def test_the_names_of_pools_are_those_of_the_error() -> None:
    bench = Bench(blocks=2)
    bench.store("AB")
    cache = hk.HybridCache(bench.spec, blocks=2, pages={"kv": 9, "swa": 9}, eviction="none")
    with pytest.raises(hk.OutOfPages) as short:
        cache.insert(bench.keys("ABC"))
    assert short.value.pool == "blocks"
    with pytest.raises(hk.OutOfPages) as short:
        bench.cache.insert(bench.keys("DEF"), {"kv": True})
    assert (short.value.pool, short.value.needed - short.value.free) == ("kv", 3)
    with pytest.raises(hk.OutOfPages) as short:
        bench.cache.insert(bench.keys("DEF"), {"swa": True})
    assert short.value.pool == "swa"
    for pool in ("kv", "swa", "blocks"):
        assert bench.policy.make_room(pool) >= 0
    with pytest.raises(hk.ArgumentError) as refused:
        bench.policy.make_room("gone")
    assert (refused.value.field, refused.value.got) == ("pool", "gone")


def test_blocks_of_several_units_end_where_they_end() -> None:
    coarse = hk.CacheGroup("coarse", hk.StateKind.INDEXER, hk.Prefix(), page_bytes=64, block_tokens=2 * UNIT)
    states = hk.CacheGroup("swa", hk.StateKind.WINDOW, hk.Window(3 * UNIT), page_bytes=64, block_tokens=2 * UNIT)
    bench = Bench((HISTORY, coarse, states))
    bench.store("ABCDEx")
    assert bench.held("ABCDEx") == "kcs kcs kcs k k k"  # by own block
    assert bench.policy.make_room("coarse") == 3  # the tip
    assert bench.policy.make_room("kv") == 1
    assert bench.policy.make_room("coarse", pages=1) == 3
    assert bench.held("ABCDEx") == "kcs k k - - -"
    assert bench.policy.make_room("swa") == 1
    assert bench.held("ABCDEx") == "kc k k - - -"
    assert bench.policy.make_room("coarse") == 3
    assert bench.held("ABCDEx") == "k - - - - -"


def test_a_spec_without_history_forgets_what_has_no_state() -> None:
    bench = Bench((STATE,))
    bench.store("ABCD", at=(2, 4))
    assert list(bench.going("state", ["ABCD"])) == ["ABCD: - - - s", "ABCD: - - - -"]
    assert len(bench.policy) == 0


def test_a_homogeneous_spec_has_history_alone() -> None:
    bench = Bench((HISTORY,))
    bench.store("AB")
    bench.store("Cx")
    assert list(bench.going("kv", ["AB", "Cx"])) == ["AB: k -", "AB: - -", "Cx: k -", "Cx: - -"]


def test_entries_whose_pages_are_gone_are_dropped(bench: Bench) -> None:
    for number in range(40):
        keys = hk.block_keys([1, 1, 1, 1, number, 2], UNIT)  # a fifth tip takes the place of the oldest
        bench.cache.insert(keys)
        bench.policy.stored(keys, 6)
    assert len(bench.policy) == 41
    for number in range(1000):
        keys = hk.block_keys([1, 1, 1, 1, number, 3], UNIT)
        bench.cache.insert(keys)
        bench.policy.stored(keys, 6)
        assert len(bench.policy) <= 64
    bench.cache.reset()
    assert bench.policy.make_room("kv") == 0
    assert len(bench.policy) == 0


def test_memory_is_bounded_by_what_lies_in_the_cache() -> None:
    bench = Bench(blocks=256)
    for number in range(800):  # long prompts, of which little is left
        tokens = [7] * 8 + [number] * 400
        keys = hk.block_keys(tokens, UNIT)
        if number == 400:
            tracemalloc.start()
        while True:
            try:
                bench.cache.insert(keys)
                break
            except hk.OutOfPages as short:
                assert bench.policy.make_room(short.pool, [keys[:2]], pages=short.needed - short.free)
        bench.policy.stored(keys, keys.tokens)
        assert len(bench.policy) <= 256
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 256 * 1024


def test_arguments_are_checked(bench: Bench) -> None:
    keys = bench.keys("AB")
    other = hk.block_keys(range(16), 8)
    policy = bench.policy
    for field, call in (
        ("keys", lambda: policy.touch("AB", 4)),  # type: ignore[arg-type]
        ("keys", lambda: policy.stored(other, 8)),
        ("keys", lambda: policy.touch(keys[1:], 8)),
        ("keys", lambda: policy.make_room("kv", [keys[1:]])),
        ("tokens", lambda: policy.touch(keys, 9)),
        ("tokens", lambda: policy.touch(keys, -1)),
        ("tokens", lambda: policy.stored(keys, True)),
        ("tokens", lambda: policy.stored(keys, 6)),
        ("pages", lambda: policy.make_room("kv", pages=0)),
        ("pool", lambda: policy.make_room("gone")),
    ):
        with pytest.raises(hk.ArgumentError) as refused:
            call()
        assert refused.value.field == field
    policy.touch(keys, 8)  # not known: passed over
    policy.stored(keys, 0)
    assert len(policy) == 0


def test_states_that_nobody_told_of_are_found_at_last(bench: Bench) -> None:
    bench.store("ABC", at=(3,))
    bench.policy.make_room("swa", pages=9)
    bench.cache.insert(bench.keys("ABC"), {"swa": [0]})
    assert list(bench.going("swa", ["ABC"], ["A"])) == []
    assert list(bench.going("swa", ["ABC"])) == ["ABC: k k k"]


def test_a_boundary_whose_next_one_went_ends_the_branch(bench: Bench) -> None:
    bench.store("AB", at=(1, 2))
    bench.store("CD", at=(1, 2))
    assert list(bench.going("swa", ["AB", "CD"], ["A", "C"])) == ["AB: ks k", "CD: ks k"]
    bench.store("EF", at=(1, 2))
    assert list(bench.going("swa", ["AB", "CD", "EF"])) == ["EF: k ks", "AB: k k", "CD: k k", "EF: k k"]


def test_many_uses_take_no_memory(bench: Bench) -> None:
    keys = bench.keys("ABC")
    bench.store("ABC", at=(1, 2, 3))
    for _ in range(200):
        bench.policy.touch(keys, 12)
    tracemalloc.start()
    for _ in range(2000):
        bench.policy.touch(keys, 12)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 32 * 1024


def test_it_is_an_eviction_policy(bench: Bench) -> None:
    policy: hk.EvictionPolicy = bench.policy
    assert policy.make_room("kv") == 0
