# SPDX-License-Identifier: Apache-2.0
"""A tier: colder memory for records, seen through one interface whatever it is made of."""

from __future__ import annotations

import math
import mmap
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hybridkv import _core
from hybridkv.arguments import integer, members
from hybridkv.errors import ArgumentError, Busy, Closed
from hybridkv.pools import array_facts, dense_strides
from hybridkv.stream_capture import refuse_capture
from hybridkv.tiers.known_writers import KnownWriters
from hybridkv.tiers.records import (
    Answer,
    Damage,
    GetItem,
    Part,
    Presence,
    Priority,
    PutItem,
    RecordKey,
    Report,
    TierStatus,
    TierUsage,
    chosen,
)
from hybridkv.windows import ApproximateWindows, KeepWindows

_NONE = bytes(16)
_SLICE_SECONDS = 0.1  # of a wait, so that signals are served
_GRACE_SECONDS = 2.0  # for calls under way when a tier is collected or the interpreter ends

_Bytes = npt.NDArray[np.uint8]
_CorePart = tuple[_Bytes, int, int, int, int]


class Tier(KnownWriters):
    """What every tier can do. :class:`MemoryTier` is one; derive from :class:`TierAdapter` for one of your own.

    Asks are batches and return at once with the number of the batch; each item is answered by a :class:`Report`,
    which :meth:`poll` gives. An ``OK`` get has been verified: key, format, and the checksum of every part that was
    asked for. Nothing that is slow, broken or full makes an ask wait.

    Arrays of an item are the tier's until the report that releases it; the tier keeps them alive. A get whose deadline
    passes while its call is under way is answered ``TIMEOUT`` with ``released=False``, and once more when the call
    has ended. After three calls in a row that time out or find the tier unreachable, everything is answered
    ``UNAVAILABLE`` at once for a second, then for two, up to thirty; in between one item is tried.

    ``name`` is what a :class:`~hybridkv.CostModel` knows it by: "disk", "memory", "adapter", of a stack that of its
    slowest tier. It may be set, before a cache is made with the tier: the cache compares its cost model with it then.

    A cache that is made with a tier has it for itself until it is closed: nobody else polls it then. Which boundaries
    the cache stores is said by :attr:`windows`.

    Any thread may call. :meth:`close` it, or use it in a ``with`` block; one that is collected, or alive when the
    interpreter ends, is closed. Behind a fork the child's copy is closed to it.

    Notes
    -----
    With asyncio::

        loop.add_reader(tier.event_fd, lambda: [handle(report) for report in tier.poll()])
    """

    name = "tier"

    def __init__(self, core: _core.Tier, most_items: int) -> None:
        super().__init__()
        self._core = core
        self._most_items = most_items
        self._user: weakref.ref[object] | None = None  # the cache that has it for itself
        self.windows = KeepWindows.all()
        self._held: dict[tuple[int, int], list[_Bytes]] = {}  # arrays by batch and item, until their release
        self._lock = threading.Lock()  # held over ask and filing, so that no report comes before the filing
        self._arenas: dict[int, object] = {}  # what keeps the memory, by address
        self._end = weakref.finalize(self, _shut, core, self._held, self._arenas)

    @property
    def windows(self) -> KeepWindows | ApproximateWindows:
        """Which boundaries a cache stores here, a :class:`~hybridkv.KeepWindows`; may be set.

        Raises
        ------
        ArgumentError
            Set to something else.
        """
        return self._windows

    @windows.setter
    def windows(self, policy: KeepWindows | ApproximateWindows) -> None:
        self._windows = windows_policy(policy)

    # ---- asks --------------------------------------------------------------------------------------

    def get(
        self, items: Iterable[GetItem], *, timeout: float | None = None, priority: Priority = Priority.DEMAND
    ) -> int:
        """Ask for records; the bytes of each part go into its array.

        Parameters
        ----------
        items : iterable of GetItem
            A batch; none of it is taken where one of the errors is raised.
        timeout : float, optional
            Seconds from now after which an item is answered ``TIMEOUT``. None: never.
        priority : Priority
            What is asked for on demand goes first, then prefetches, then writes; but of 17 one is a lower one's where
            it waits.

        Returns
        -------
        int
            The batch.

        Raises
        ------
        ArgumentError
            No list of items, an array that is not contiguous or not writable, more items than the tier ever takes.
        Busy
            The tier has as many items as it takes; poll.
        Closed
            It was closed.
        CaptureError
            A stream captures.
        """
        self._check_own()
        refuse_capture("tier", "bytes of the host: they are loaded now, once")
        batch = _items(items, GetItem)
        wanted = [_parts(item.parts, writable=True) for item in batch]
        order = int(chosen("priority", Priority, priority))
        given = [(item.key._core(), parts) for item, parts in zip(batch, wanted, strict=True)]
        self._core.here()
        with self._lock:
            return self._taken(self._core.get(given, _seconds(timeout), order), wanted)

    def put(self, items: Iterable[PutItem], *, timeout: float | None = None) -> int:
        """Ask to keep records. The arguments and errors are those of :meth:`get`; arrays need not be writable."""
        self._check_own()
        refuse_capture("tier", "bytes of the host: they are stored now, once")
        batch = _items(items, PutItem)
        parts = [_parts(item.parts, writable=False) for item in batch]
        given = [
            (
                item.key._core(),
                of_item,
                item.parent or _NONE,
                item.identity,
                item.tokens,
                item.flags,
                bool(item.pinned),
                bool(item.durable),
            )
            for item, of_item in zip(batch, parts, strict=True)
        ]
        self._core.here()  # a fork may have copied a lock that somebody held
        with self._lock:
            return self._taken(self._core.put(given, _seconds(timeout)), parts)

    def remove(self, keys: Iterable[RecordKey], *, timeout: float | None = None) -> int:
        """Ask to remove records, each with everything that stands on it: ``OK``, or ``MISS`` where it is not there."""
        self._check_own()
        names = [key._core() for key in _items(keys, RecordKey)]
        return self._taken(self._core.remove(names, _seconds(timeout)), [[]] * len(names))

    def probe(self, keys: Iterable[RecordKey], *, timeout: float | None = None) -> int:
        """Ask which records are there: ``OK`` or ``MISS``. Nothing is read or verified."""
        self._check_own()
        names = [key._core() for key in _items(keys, RecordKey)]
        return self._taken(self._core.probe(names, _seconds(timeout)), [[]] * len(names))

    def flush(self, *, timeout: float | None = None) -> int:
        """Ask, as a batch of one item, that all that was put and removed before survives a power cut (if durable)."""
        self._check_own()
        return self._taken(self._core.flush(_seconds(timeout)), [[]])

    def look(self, key: RecordKey) -> Presence:
        """Say what is known of a key without any I/O."""
        answer, flags = self._core.look(_record_key(key)._core())
        return Presence(Answer(answer), flags)

    def touch(self, key: RecordKey) -> None:
        """Say that a record was of use without a get of it, so that it is kept longer."""
        self._core.touch(_record_key(key)._core())

    def cancel(self, batch: int) -> None:
        """Answer what is queued of a batch ``CANCELLED``; what is under way goes on."""
        number = integer("batch", batch, "what an ask returned")
        if not 0 <= number < 1 << 64:
            raise ArgumentError("batch", "what an ask returned", batch)
        self._core.cancel(number)

    # ---- memory that stays -------------------------------------------------------------------------

    def add_arena(self, buffer: object) -> None:
        """Promise that memory stays mapped where it is until :meth:`drop_arena`, or until the tier is closed.

        Gets into arrays that lie in it may then go in cheaper ways: a disk tier over io_uring has the kernel find and
        pin its pages once, which makes them resident, and not at every read. A tier that cannot use it takes it all the
        same: :attr:`TierUsage.arenas_fixed` tells. The tier keeps the buffer alive. Other memory meets the promise that
        nobody gives pages of it back to the system or maps others there: a get there would be ``CORRUPT``.

        May take as long as finding all its pages does; asks do not wait for that.

        Parameters
        ----------
        buffer : array, bytearray, memoryview or mmap
            C-contiguous, in host memory.

        Raises
        ------
        ArgumentError
            No such memory, none at all, or memory that overlaps another arena.
        Closed
            It was closed.
        """
        address, size, keep = _memory_of(buffer)
        self._keep_arena(address, size, keep)

    def drop_arena(self, buffer: object) -> None:
        """Take the promise of :meth:`add_arena` back.

        Parameters
        ----------
        buffer : array, bytearray, memoryview or mmap
            What it was given for, or another view that begins where that does.

        Raises
        ------
        ArgumentError
            No arena begins there.
        Busy
            An item that is not released has arrays in it, which may be one that timed out.
        """
        self._let_arena_go(_memory_of(buffer)[0])

    def _keep_arena(self, address: int, size: int, keep: object) -> None:
        self._core.here()
        status = _as_buffer(self._core.add_arena, address, size)
        if status == TierStatus.CLOSED:
            raise Closed("tier", "an open tier", "a closed one")
        with self._lock:
            self._arenas[address] = keep

    def _let_arena_go(self, address: int) -> None:
        self._core.here()
        if _as_buffer(self._core.drop_arena, address) == TierStatus.BUSY:
            raise Busy("buffer", "memory that no item has", "an arena in use")
        with self._lock:
            self._arenas.pop(address, None)

    # ---- answers -----------------------------------------------------------------------------------

    def poll(self, most: int = 256) -> list[Report]:
        """Take the reports that are there, at most so many; what is past its deadline times out."""
        self._check_own()
        reports = [
            Report(batch, item, TierStatus(status), Damage(damage), released, late)
            for batch, item, status, damage, released, late in self._core.poll(_positive("most", most))
        ]
        with self._lock:
            for report in reports:
                if report.released:
                    self._held.pop((report.batch, report.item), None)
        return reports

    @property
    def event_fd(self) -> int:
        """File descriptor that is readable while :meth:`poll` has something to give or a deadline has passed.

        The tier's own: do not read or close it.
        """
        return self._core.event_fd

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until there is a report, at most so many seconds; say whether there is."""
        return _in_slices(self._core.wait, timeout)

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until every item has its status, at most so many seconds; say whether they all have."""
        return _in_slices(self._core.drain, timeout)

    def close(self, timeout: float | None = None) -> bool:
        """Refuse new asks, cancel what is queued, and wait until whatever is under way has ended.

        Reports can still be polled. Where a call does not return within `timeout` seconds (None: for ever) the tier is
        not closed, and can be asked again.

        Returns
        -------
        bool
            Whether it is closed.
        """
        self._stop_keeping()
        closed = _in_slices(self._core.close_by, timeout)
        if closed:
            self._end.detach()
            self._arenas.clear()  # nobody reads or writes there any more
        return closed

    def usage(self) -> TierUsage:
        """Return what it holds, has under way and has counted."""
        return TierUsage(**self._core.usage())

    @property
    def durable(self) -> bool:
        """Whether what was flushed survives this process."""
        return self._core.caps()[0]

    @property
    def most_bytes(self) -> int:
        """Largest record that it takes, envelope (128 bytes and 32 a part) included, in bytes."""
        return self._core.caps()[3]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ---- a cache above -----------------------------------------------------------------------------

    def _lend(self, cache: object) -> None:
        """Give the tier to one cache, which polls it alone."""
        self._core.here()
        with self._lock:
            if self._user is not None and self._user() is not None:
                raise Busy("tier", "a tier that no other cache has", "one that is lent")
            self._user = weakref.ref(cache)

    def _check_own(self) -> None:
        """Refuse who asks or polls past the cache that has the tier: it would wait for reports that never come."""
        if self._user is not None and self._user() is not None:
            raise Busy("tier", "a tier that no cache has: ask and poll the cache", "one that is lent")

    def _take_back(self, cache: object) -> None:
        with self._lock:
            if self._user is not None and self._user() is cache:
                self._user = None

    def _taken(self, answer: tuple[int, int], arrays: Sequence[Sequence[_CorePart]]) -> int:
        status, batch = answer
        if status == TierStatus.OK:
            for item, parts in enumerate(arrays):
                if parts:
                    self._held[batch, item] = [part[0] for part in parts]
            return batch
        if status == TierStatus.BUSY:
            raise Busy("items", f"at most {self._most_items} under way or not polled", "a full tier")
        if status == TierStatus.CLOSED:
            raise Closed("tier", "an open tier", "a closed one")
        raise ArgumentError("items", f"at most {self._most_items}", len(arrays))


def limits(most_items: int, breaker_after: int, breaker_seconds: tuple[float, float]) -> _core.TierLimits:
    """Check the arguments that all tiers have in common."""
    pair = "two numbers of seconds, 0 < first <= most <= 1e6"
    times = [_time("breaker_seconds", value) for value in members("breaker_seconds", breaker_seconds, pair)]
    if len(times) != 2 or not 0 < times[0] <= times[1] <= 1e6:
        raise ArgumentError("breaker_seconds", pair, breaker_seconds)
    first, most = times
    expected = "a number of failures below 2^31, 0 for no breaker"
    failures = integer("breaker_after", breaker_after, expected)
    if not 0 <= failures < 2**31:
        raise ArgumentError("breaker_after", expected, breaker_after)
    return _core.TierLimits(_positive("most_items", most_items), failures, first, most)


def windows_policy(policy: object) -> KeepWindows | ApproximateWindows:
    """Return which boundaries are kept. Raises ArgumentError where nothing says so."""
    if not isinstance(policy, (KeepWindows, ApproximateWindows)):
        raise ArgumentError("windows", "a KeepWindows", policy)
    return policy


def _shut(core: _core.Tier, held: dict[tuple[int, int], list[_Bytes]], arenas: dict[int, object]) -> None:
    """Close what nobody closed; where its engine does not return, leave it and what it may still use as they are."""
    try:
        if not core.close_by(_GRACE_SECONDS):
            core.abandon((held, arenas))
    except Closed:  # it is of the process that this one was forked from
        pass


def _in_slices(step: Any, timeout: float | None) -> bool:
    left = math.inf if timeout is None else max(0.0, _time("timeout", timeout))
    while not step(min(left, _SLICE_SECONDS)):
        left -= _SLICE_SECONDS
        if left <= 0:
            return False
    return True


def _items(items: Iterable[Any], kind: type[Any]) -> list[Any]:
    batch = members("items", items, f"an iterable of {kind.__name__}")
    for index, item in enumerate(batch):
        if not isinstance(item, kind):
            raise ArgumentError(f"items[{index}]", kind.__name__, type(item).__name__)
    return batch


def _record_key(key: object) -> RecordKey:
    if not isinstance(key, RecordKey):
        raise ArgumentError("key", "a RecordKey", type(key).__name__)
    return key


def _parts(parts: Iterable[Part], *, writable: bool) -> list[_CorePart]:
    return [
        (_bytes_of(part.data, writable), part.group, part.layer, part.block, part.rows) for part in _items(parts, Part)
    ]


def _bytes_of(array: object, writable: bool) -> _Bytes:
    if not isinstance(array, np.ndarray) or array.dtype.hasobject:
        raise ArgumentError("data", "a numpy array of numbers", type(array).__name__)
    if not array.flags.c_contiguous:
        raise ArgumentError("data", "a C-contiguous array", f"strides {array.strides}")
    if writable and not array.flags.writeable:
        raise ArgumentError("data", "a writable array", "a read-only one")
    return array.reshape(-1).view(np.uint8)


def _memory_of(buffer: object) -> tuple[int, int, object]:
    """Return where memory lies, how much it is, and what keeps it."""
    if isinstance(buffer, (bytearray, memoryview, mmap.mmap)):
        if memoryview(buffer).nbytes == 0:
            raise ArgumentError("buffer", "at least a byte", "none")
        buffer = np.frombuffer(buffer, np.uint8)
    facts = array_facts("buffer", buffer)
    if not facts.host:
        raise ArgumentError("buffer", "host memory", "an array of a device")
    dense = dense_strides(facts.shape, facts.dtype.itemsize)
    if any(n > 1 and at != wanted for n, at, wanted in zip(facts.shape, facts.strides, dense, strict=True)):
        raise ArgumentError("buffer", "a C-contiguous array", f"strides {facts.strides}")
    return facts.address, math.prod(facts.shape) * facts.dtype.itemsize, facts.keepalive


def _as_buffer(step: Callable[..., TierStatus | int], *memory: int) -> TierStatus | int:
    """Call the core, which knows memory by its address and size: what it refuses of them is the buffer's."""
    try:
        return step(*memory)
    except ArgumentError as error:
        raise ArgumentError("buffer", error.expected, error.got) from None


def _seconds(timeout: float | None) -> float | None:
    return None if timeout is None else _time("timeout", timeout)


def _time(field: str, value: float) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(field, "a number of seconds", value) from None
    if math.isnan(seconds):
        raise ArgumentError(field, "a number of seconds", value)
    return seconds


def _positive(field: str, value: int) -> int:
    number = integer(field, value, "an integer in [1, 2^24]")
    if not 1 <= number <= 1 << 24:
        raise ArgumentError(field, "an integer in [1, 2^24]", value)
    return number
