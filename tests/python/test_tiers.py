# SPDX-License-Identifier: Apache-2.0
"""Tiers from Python: the contract, over memory and adapters; tests/cpp/tier/contract.h is its long form."""

from __future__ import annotations

import logging
import select
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from hybridkv.tiers import Answer, Damage, GetItem, Part, Priority, PutItem, RecordKey, RecordKind
from tier_support import FORMAT, TIERS, Asker, DictTier, HostileTier, key, pages, parts, record, room


@pytest.fixture(params=TIERS)
def tier(request: pytest.FixtureRequest) -> Iterator[hk.Tier]:
    with TIERS[request.param]() as made:
        yield made


@pytest.fixture
def hostile() -> Iterator[HostileTier]:
    with HostileTier() as made:
        yield made


def test_what_was_put_comes_back_whole_and_in_part(tier: hk.Tier) -> None:
    ask = Asker(tier)
    assert ask.put(record(1)) == "OK"
    assert ask.has(1)
    arrays = room()
    wanted = parts(arrays)
    assert ask.get(key(1), [wanted[2], wanted[0]]).status.name == "OK"
    assert np.array_equal(arrays[0], pages(1)[0])
    assert np.array_equal(arrays[1], room()[1])
    assert np.array_equal(arrays[2], pages(1)[2])
    assert ask.get(key(1), []).status.name == "OK"
    usage = tier.usage()
    assert (usage.hits, usage.puts, usage.misses) == (3, 1, 0)
    assert usage.bytes_read > 0 and usage.bytes_written > 0


def test_arrays_of_any_dtype_and_shape(tier: hk.Tier) -> None:
    ask = Asker(tier)
    rows = np.arange(24, dtype=np.float32).reshape(4, 6)
    rows.flags.writeable = False
    assert ask.put(PutItem(key(1), (Part(rows, group=0),))) == "OK"
    out = np.zeros((6, 4), np.int32)
    assert ask.get(key(1), [Part(out, group=0)]).status.name == "OK"
    assert out.tobytes() == rows.tobytes()


def test_what_is_not_there_is_a_miss(tier: hk.Tier) -> None:
    ask = Asker(tier)
    assert ask.get(key(1), parts(room())).status.name == "MISS"
    assert ask.probe(key(1)) == "MISS"
    assert ask.remove(key(1)) == "MISS"


def test_an_existing_key_stays_as_it_was_until_it_is_removed(tier: hk.Tier) -> None:
    ask = Asker(tier)
    assert ask.put(record(1)) == "OK"
    assert ask.put(PutItem(key(1), parts(pages(2)))) == "OK"
    assert ask.has(1)
    assert ask.probe(key(1)) == "OK"
    assert ask.remove(key(1)) == "OK"
    assert ask.probe(key(1)) == "MISS"
    assert ask.put(PutItem(key(1), parts(pages(2)))) == "OK"
    assert not ask.has(1)
    assert tier.usage().removed == 1


def test_another_format_or_kind_is_another_record(tier: hk.Tier) -> None:
    ask = Asker(tier)
    assert ask.put(record(1)) == "OK"
    other = RecordKey(key(1).digest, bytes(16), RecordKind.BLOCK)
    assert ask.get(other, parts(room())).status.name == "MISS"
    assert ask.get(key(1, RecordKind.BOUNDARY), parts(room())).status.name == "MISS"


def test_parts_in_another_size_or_of_another_label_are_a_mismatch(tier: hk.Tier) -> None:
    ask = Asker(tier)
    assert ask.put(record(1)) == "OK"
    for wanted in (parts(room((64, 4095, 100))), parts(room((64, 4097, 100))), parts(room(), block=2)):
        report = ask.get(key(1), wanted)
        assert (report.status.name, report.damage) == ("MISMATCH", Damage.PARTS)
    assert ask.has(1)


def test_each_item_of_a_batch_has_its_own_status(tier: hk.Tier) -> None:
    ask = Asker(tier)
    assert ask.put(record(1)) == "OK"
    arrays = [room(), room(), room()]
    twice = (parts(arrays[1])[0],) * 2
    empty = Part(np.empty(0, np.uint8), group=0)
    items = [
        GetItem(key(1), parts(arrays[0])),
        GetItem(key(1), twice),
        GetItem(key(2), parts(arrays[2])),
        GetItem(key(1), (empty,)),
    ]
    batch = tier.get(items)
    assert [ask.last(batch, i).status.name for i in range(4)] == ["OK", "INVALID", "MISS", "INVALID"]
    assert all(np.array_equal(a, b) for a, b in zip(arrays[0], pages(1), strict=True))
    batch = tier.put([record(3, durable=True), record(4)])
    assert ask.last(batch, 0).status.name == "INVALID"  # none of these is durable
    assert ask.last(batch, 1).status.name == "OK"
    batch = tier.get([])
    assert tier.drain() and not tier.poll()


def test_flush_is_one_item(tier: hk.Tier) -> None:
    ask = Asker(tier)
    assert ask.put(record(1)) == "OK"
    assert ask.flush() == "OK"
    assert not tier.durable
    if isinstance(tier, DictTier):
        assert tier.synced == 1


def test_the_event_fd_is_readable_while_there_are_reports(tier: hk.Tier) -> None:
    def readable(seconds: float) -> bool:
        return bool(select.select([tier.event_fd], [], [], seconds)[0])

    assert not readable(0) and not tier.wait(0)
    tier.put([record(1), record(2)])
    assert tier.drain()
    assert readable(60) and tier.wait()
    assert len(tier.poll(1)) == 1
    assert readable(0)
    assert len(tier.poll()) == 1
    assert not readable(0) and not tier.poll()


def test_a_full_tier_is_busy_and_takes_nothing() -> None:
    for make in TIERS.values():
        with make(most_items=2) as tier:
            ask = Asker(tier)
            batch = tier.probe([key(1), key(2)])
            tier.drain()
            with pytest.raises(hk.Busy):
                tier.put([record(1)])
            assert ask.last(batch, 1).status.name == "MISS"
            assert ask.probe(key(1)) == "MISS"
            with pytest.raises(hk.ArgumentError, match="at most 2"):
                tier.probe([key(1)] * 3)


def test_a_closed_tier_refuses_and_still_reports(tier: hk.Tier) -> None:
    ask = Asker(tier)
    batch = tier.put([record(1)])
    tier.close()
    assert ask.last(batch).status.name in ("OK", "CANCELLED")
    for refused in (
        lambda: tier.get([GetItem(key(1), ())]),
        lambda: tier.put([record(1)]),
        lambda: tier.remove([key(1)]),
        lambda: tier.probe([key(1)]),
        lambda: tier.flush(),
    ):
        with pytest.raises(hk.Closed):
            refused()
    tier.close()
    assert not tier.poll() and tier.drain() and tier.usage().queued == 0


def test_parents_pins_flags_and_eviction() -> None:
    size = (4096,)
    with hk.MemoryTier(4 * (4096 + 160)) as tier:
        ask = Asker(tier)
        child = record(2, size, parent=key(1).digest, flags=5)
        assert ask.put(child) == "MISS"
        assert ask.put(record(1, size)) == "OK"
        assert ask.put(child) == "OK"
        assert ask.put(record(3, size, kind=RecordKind.BOUNDARY, parent=key(2).digest, pinned=True)) == "OK"
        assert tier.look(key(2)) == hk.tiers.Presence(Answer.HERE, 5)
        assert tier.look(RecordKey(key(2).digest, bytes(16))).answer == Answer.OTHER_FORMAT
        for name in range(10, 20):
            assert ask.put(record(name, size)) == "OK"
        assert tier.look(key(10)).answer == Answer.ABSENT
        assert ask.has(1, size) and ask.has(2, size) and ask.has(3, size, RecordKind.BOUNDARY)
        assert ask.put(record(30, (8192,))) == "NO_SPACE"
        tier.touch(key(19))
        assert ask.remove(key(1)) == "OK"
        assert tier.usage().records == 1
        assert tier.look(key(3, RecordKind.BOUNDARY)).answer == Answer.ABSENT


def test_an_adapter_knows_nothing_without_asking() -> None:
    with DictTier() as tier:
        assert tier.look(key(1)).answer == Answer.UNKNOWN
        tier.touch(key(1))
        assert Asker(tier).put(record(1, pinned=True)) == "OK"
        assert tier.pinned == {key(1)}


def test_a_call_past_its_deadline_is_quarantined_and_reported_again() -> None:
    with DictTier(breaker_after=0) as tier:
        ask = Asker(tier)
        assert ask.put(record(1)) == "OK"
        tier.gate.clear()
        arrays = room()
        batch = tier.get([GetItem(key(1), parts(arrays))], timeout=0.01)
        queued = tier.get([GetItem(key(1), parts(room()))], timeout=0.01)
        waiting = tier.get([GetItem(key(1), parts(room()))])
        assert select.select([tier.event_fd], [], [], 60)[0]
        report = ask.first(batch)
        assert (report.status.name, report.released) == ("TIMEOUT", False)
        assert ask.first(queued).released  # the engine never had it
        assert tier.usage().quarantined == 1
        assert (batch, 0) in tier._held and (queued, 0) not in tier._held
        tier.cancel(waiting)
        assert ask.first(waiting).status.name == "CANCELLED"
        assert not tier.close(0.01)
        tier.gate.set()
        late = ask.last(batch)
        assert late.late and late.status.name == "OK"
        assert all(np.array_equal(a, b) for a, b in zip(arrays, pages(1), strict=True))
        assert not tier._held


def test_the_breaker_answers_for_an_engine_that_does_not() -> None:
    with DictTier(breaker_seconds=(0.02, 0.02)) as tier:
        ask = Asker(tier)
        assert ask.put(record(1)) == "OK"
        tier.gate.clear()
        for _ in range(3):
            assert ask.first(tier.probe([key(1)], timeout=0.005)).status.name == "TIMEOUT"
        assert tier.usage().breaker_open
        assert ask.first(tier.probe([key(1)])).status.name == "UNAVAILABLE"
        tier.gate.set()
        for _ in range(1000):
            if ask.probe(key(1)) == "OK":
                break
            tier.wait(0.005)
        assert not tier.usage().breaker_open
        assert ask.has(1)


def test_priorities_are_those_of_the_core() -> None:
    with DictTier() as tier:
        order: list[int] = []
        tier.contains = lambda name: bool(order.append(int.from_bytes(name.digest, "little"))) or True  # type: ignore[method-assign]
        tier.gate.clear()
        first = tier.get([GetItem(key(1), ())])  # stands in the gate
        tier.gate.wait(0.05)
        for name, priority in ((2, Priority.WRITE), (3, Priority.PREFETCH), (4, Priority.DEMAND)):
            tier.get([GetItem(key(name), ())], priority=priority)
        with pytest.raises(hk.ArgumentError, match="priority"):
            tier.get([], priority=7)  # type: ignore[arg-type]
        tier.gate.set()
        assert tier.drain()
        assert first == 1 and [report.batch for report in tier.poll()] == [1, 4, 3, 2]


SPOILED: dict[str, tuple[Callable[[bytes, list[Any]], Any], str]] = {
    "flipped bit of a part": (lambda e, b: (e, [bytes([b[0][0] ^ 1]) + b[0][1:], *b[1:]]), "CORRUPT"),
    "flipped bit of the envelope": (lambda e, b: (e[:20] + bytes([e[20] ^ 1]) + e[21:], b), "CORRUPT"),
    "short part": (lambda e, b: (e, [b[0][:-1], *b[1:]]), "CORRUPT"),
    "long part": (lambda e, b: (e, [b[0] + b"x", *b[1:]]), "CORRUPT"),
    "too few parts": (lambda e, b: (e, b[:-1]), "CORRUPT"),
    "no parts": (lambda e, b: (e, []), "CORRUPT"),
    "too many parts": (lambda e, b: (e, [*b, b"x"]), "CORRUPT"),
    "swapped parts": (lambda e, b: (e, b[::-1]), "CORRUPT"),
    "short envelope": (lambda e, b: (e[:-1], b), "CORRUPT"),
    "empty envelope": (lambda e, b: (b"", b), "CORRUPT"),
    "nothing of a tuple": (lambda e, b: 7, "IO_ERROR"),
    "no buffers": (lambda e, b: (e, [1, 2, 3]), "IO_ERROR"),
    "text": (lambda e, b: ("envelope", b), "IO_ERROR"),
    "scattered memory": (lambda e, b: (e, [np.zeros((200, 2), np.uint8)[:, 0], *b[1:]]), "IO_ERROR"),
}


@pytest.mark.parametrize("what", SPOILED)
def test_whatever_an_adapter_returns_is_never_ok_with_other_bytes(what: str, hostile: HostileTier) -> None:
    spoil, expected = SPOILED[what]
    ask = Asker(hostile)
    assert ask.put(record(1)) == "OK"
    hostile.spoil = spoil  # type: ignore[method-assign]
    assert ask.get(key(1), parts(room())).status.name == expected
    hostile.spoil = HostileTier.spoil  # type: ignore[method-assign]
    assert hostile.usage().hits == 0
    found = expected == "IO_ERROR" or hostile.records == {}
    assert found, "what is not what it says is discarded"
    assert ask.put(record(1)) == "OK" and ask.has(1)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConnectionRefusedError(), "UNAVAILABLE"),
        (TimeoutError(), "UNAVAILABLE"),
        (OSError(28, "full"), "NO_SPACE"),
        (OSError(5, "broken"), "IO_ERROR"),
        (KeyError("x"), "IO_ERROR"),
        (SystemExit(3), "IO_ERROR"),
        (KeyboardInterrupt(), "IO_ERROR"),
        (RecursionError(), "IO_ERROR"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_an_adapter_raises_is_its_items_status(
    error: BaseException, status: str, hostile: HostileTier, caplog: pytest.LogCaptureFixture
) -> None:
    ask = Asker(hostile)
    assert ask.put(record(1)) == "OK"
    hostile.raises = error
    with caplog.at_level(logging.WARNING, logger="hybridkv.tiers"):
        assert ask.get(key(1), parts(room())).status.name == status
    assert bool(caplog.records) == (status == "IO_ERROR")
    hostile.raises = None
    assert ask.has(1)


def test_an_adapter_that_keeps_the_memory_of_a_put_has_failed() -> None:
    kept: list[Any] = []

    class Keeper(DictTier):
        def store(self, key: RecordKey, envelope: bytes, parts: Any, pinned: bool) -> None:
            kept.extend(np.frombuffer(part, np.uint8) for part in parts)

    class Honest(DictTier):
        def store(self, key: RecordKey, envelope: bytes, parts: Any, pinned: bool) -> None:
            assert all(part.readonly and part.contiguous and part.format == "B" for part in parts)
            kept.extend(parts)

    with Keeper() as tier:
        assert Asker(tier).put(record(1)) == "IO_ERROR"
        kept.clear()
    with Honest() as tier:
        assert Asker(tier).put(record(1)) == "OK"
        with pytest.raises(ValueError, match="released"):
            bytes(kept[0])


HUGE = 2**2000  # an int that no float is near

WRONG: list[tuple[str, Callable[[hk.Tier], Any]]] = [
    ("items", lambda tier: tier.get(7)),  # type: ignore[arg-type]
    ("items[1]", lambda tier: tier.get([GetItem(key(1), ()), 7])),  # type: ignore[list-item]
    ("items[0]", lambda tier: tier.get([GetItem(key(1), (7,))])),  # type: ignore[arg-type]
    ("data", lambda tier: tier.get([GetItem(key(1), (Part(b"x", group=0),))])),  # type: ignore[arg-type]
    ("data", lambda tier: tier.get([GetItem(key(1), (Part(np.zeros(8, np.uint8)[::2], group=0),))])),
    ("data", lambda tier: tier.get([GetItem(key(1), (Part(np.frombuffer(b"x", np.uint8), group=0),))])),
    ("data", lambda tier: tier.put([PutItem(key(1), (Part(np.array([None]), group=0),))])),
    ("timeout", lambda tier: tier.probe([key(1)], timeout="soon")),  # type: ignore[arg-type]
    ("timeout", lambda tier: tier.probe([key(1)], timeout=float("nan"))),
    ("most", lambda tier: tier.poll(0)),
    ("batch", lambda tier: tier.cancel(-1)),
    ("digest", lambda tier: RecordKey(b"short", FORMAT)),
    ("digest", lambda tier: RecordKey(bytes(16), FORMAT)),
    ("format", lambda tier: RecordKey(key(1).digest, "text")),  # type: ignore[arg-type]
    ("kind", lambda tier: RecordKey(key(1).digest, FORMAT, 3)),  # type: ignore[arg-type]
    ("group", lambda tier: Part(np.zeros(1), group=1 << 16)),
    ("layer", lambda tier: Part(np.zeros(1), group=0, layer=-1)),
    ("block", lambda tier: Part(np.zeros(1), group=0, block=1 << 32)),
    ("rows", lambda tier: Part(np.zeros(1), group=0, rows=True)),
    ("key", lambda tier: PutItem(b"", ())),  # type: ignore[arg-type]
    ("key", lambda tier: GetItem(b"", ())),  # type: ignore[arg-type]
    ("parent", lambda tier: PutItem(key(1), (), parent=b"")),
    ("identity", lambda tier: PutItem(key(1), (), identity=b"")),
    ("tokens", lambda tier: PutItem(key(1), (), tokens=-1)),
    ("flags", lambda tier: PutItem(key(1), (), flags=256)),
    ("capacity_bytes", lambda tier: hk.MemoryTier(0)),
    ("threaded", lambda tier: hk.MemoryTier(1, threaded=1)),  # type: ignore[arg-type]
    ("most_items", lambda tier: hk.MemoryTier(1, most_items=0)),
    ("breaker_after", lambda tier: hk.MemoryTier(1, breaker_after=-1)),
    ("breaker_seconds", lambda tier: hk.MemoryTier(1, breaker_seconds=(2.0, 1.0))),
    ("breaker_seconds", lambda tier: hk.MemoryTier(1, breaker_seconds=(0.0, 1.0))),
    ("threads", lambda tier: DictTier(threads=0)),
    ("most_bytes", lambda tier: DictTier(most_bytes=0)),
    ("durable", lambda tier: DictTier(durable=None)),
    ("key", lambda tier: tier.look(5)),  # type: ignore[arg-type]
    ("key", lambda tier: tier.touch(b"digest")),  # type: ignore[arg-type]
    ("windows", lambda tier: setattr(tier, "windows", 5)),
    ("windows", lambda tier: setattr(tier, "windows", None)),
    ("windows", lambda tier: setattr(tier, "windows", hk.KeepWindows)),
    ("timeout", lambda tier: tier.probe([key(1)], timeout=HUGE)),
    ("timeout", lambda tier: tier.wait(HUGE)),
    ("timeout", lambda tier: tier.drain(HUGE)),
    ("timeout", lambda tier: tier.close(HUGE)),
]


@pytest.mark.parametrize(("field", "use"), WRONG)
def test_wrong_arguments_are_refused_by_field(field: str, use: Callable[[hk.Tier], Any]) -> None:
    with hk.MemoryTier(1 << 20) as tier:
        with pytest.raises(hk.ArgumentError) as caught:
            use(tier)
        assert caught.value.field == field
        assert not tier._held and tier.usage().queued == 0


@pytest.mark.parametrize("made", [*TIERS, "disk"])
@pytest.mark.parametrize(
    "seconds", [None, 1, (), (1,), (1, 2, 3), (1, None), "ab", (1, HUGE), (float("nan"), 1), (1, 2e6)]
)
def test_how_long_a_breaker_is_open_is_two_numbers(made: str, seconds: Any, tmp_path: Path) -> None:
    options = {"breaker_seconds": seconds}
    with pytest.raises(hk.ArgumentError) as caught:
        hk.DiskTier(tmp_path / "s", 1 << 24, **options) if made == "disk" else TIERS[made](**options)
    assert caught.value.field == "breaker_seconds"
    assert "seconds" in str(caught.value.expected)
    assert not (tmp_path / "s").exists()


def test_a_tier_says_which_windows_it_keeps_and_keeps_them_where_others_are_refused() -> None:
    with hk.MemoryTier(1 << 20) as tier:
        assert tier.windows == hk.KeepWindows.all()
        for policy in (hk.KeepWindows.every(8), hk.KeepWindows.bounded()):
            tier.windows = policy
            with pytest.raises(hk.ArgumentError, match="windows: expected a KeepWindows, got 5"):
                tier.windows = 5  # type: ignore[assignment]
            assert tier.windows is policy


@pytest.mark.parametrize("size", [0, -1, 2**62, 2**2000])
def test_a_capacity_that_is_none_is_told_both_bounds(size: int, tmp_path: Path) -> None:
    for made in (lambda: hk.MemoryTier(size), lambda: hk.DiskTier(tmp_path / "s", size)):
        with pytest.raises(hk.ArgumentError, match="at least 1 and below 2\\^62"):
            made()
    assert not (tmp_path / "s").exists()


def test_a_capacity_below_four_regions_leaves_an_empty_directory_at_most(tmp_path: Path) -> None:
    with pytest.raises(hk.TierError, match="at least 4 regions"):
        hk.DiskTier(tmp_path / "s", 1 << 20, region_bytes=1 << 20)
    assert list((tmp_path / "s").iterdir()) == []
    hk.DiskTier(tmp_path / "s", 4 << 20, region_bytes=1 << 20).close()


def test_a_record_larger_than_the_tier_is_invalid() -> None:
    with hk.MemoryTier(4096) as tier:
        assert tier.most_bytes == 4096
        ask = Asker(tier)
        assert ask.put(record(1, (4096 - 160,))) == "OK"
        assert ask.put(record(2, (4096 - 159,))) == "INVALID"
        assert ask.has(1, (4096 - 160,))
