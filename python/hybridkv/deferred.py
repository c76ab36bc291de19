# SPDX-License-Identifier: Apache-2.0
"""Effects that wait for an event: the engine's kernels may still read or write what a call gives up."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol, runtime_checkable

from hybridkv.errors import ArgumentError
from hybridkv.stream_capture import is_capturing, refuse_capture


@runtime_checkable
class Event(Protocol):
    """What ``after=`` takes: a CUDA event, or any object that can say whether it has passed."""

    def query(self) -> bool:
        """Whether everything recorded before the event is done."""
        ...


def checked_event(after: object) -> Event | None:
    """Return ``after`` if it is None or an event.

    Raises
    ------
    ArgumentError
        Neither.
    CaptureError
        An event, while a stream captures: a wait of the host is no part of the graph. Record the event in the graph,
        and give it after the replay.
    """
    if after is not None:
        refuse_capture("after", "a wait that would vanish at replay")
    if after is None or callable(getattr(after, "query", None)):
        return after  # type: ignore[return-value]
    raise ArgumentError("after", "None or an object with query() -> bool", after)


class Deferred:
    """Effects in the order they were asked for, each applied once its event has passed.

    The library has no thread of its own here: :meth:`apply_due` is called by ``cache.poll()``, by ``reserve``
    when it is short of pages, and by the next call on the same object.

    Notes
    -----
    Any thread may call. Two orders hold. Effects of one owner are applied in the order they were asked for, each
    behind the earlier ones. And so are the due effects of one event source (a stream, say): a look asks the
    youngest event first, each once, so where it finds one passed it finds the earlier ones of its source passed
    as well.

    A handle may be collected at any moment, within these calls too, and then it adds effects: nothing here may
    rely on a queue that only grows between two steps, hence the lock is one that its own thread may take again.
    """

    def __init__(self) -> None:
        self._queues: dict[object, list[_Waiting]] = {}  # by owner; none is empty
        self._numbers = itertools.count()
        self._lock = threading.RLock()
        self._applying = threading.Lock()

    def __len__(self) -> int:
        return sum(len(queue) for queue in list(self._queues.values()))

    def __bool__(self) -> bool:
        return bool(self._queues)

    def due(self, owner: object, after: Event | None) -> bool:
        """Tell whether an effect asked for now is due: its event has passed, and nothing of its owner waits.

        To be asked before the caller changes anything: an event that raises does so here.
        """
        self.apply_due(owner)
        return (after is None or after.query()) and not self.waits(owner)

    def add(self, owner: object, after: Event | None, effect: Callable[[], None], *, quiet: bool = False) -> _Waiting:
        """Keep an effect until its event has passed, behind the earlier effects of the same owner.

        A quiet one is not counted by :meth:`apply_due`.
        """
        waiting = _Waiting(next(self._numbers), owner, after if after is not None else _PASSED, effect, quiet)
        with self._lock:
            self._queues.setdefault(owner, []).append(waiting)
        return waiting

    def hold(self, owner: object, after: Event) -> _Waiting:
        """Let every later effect of an owner wait for an event too."""
        return self.add(owner, after, _nothing, quiet=True)

    def hand_over(self, owner: object, heir: object) -> None:
        """Let what waits for an owner wait for its heir, ahead of what is asked for from now on."""
        with self._lock:
            queue = self._queues.pop(owner, None)
            if queue is None:
                return
            for waiting in queue:
                waiting.owner = heir
            self._queues[heir] = queue + self._queues.get(heir, [])

    def withdraw(self, waiting: _Waiting) -> None:
        """Forget an effect unless it was applied, or is being applied."""
        if self._claim(waiting):
            self._remove(waiting)

    def run(self, owner: object, after: Event | None, effect: Callable[[], None]) -> None:
        """Apply an effect at once where it is due, else keep it."""
        if self.due(owner, after):
            effect()
        else:
            self.add(owner, after, effect)

    def waits(self, owner: object) -> bool:
        """Whether an effect of this owner still waits, or is being applied."""
        return owner in self._queues

    def apply_due(self, owner: object | None = None) -> int:
        """Apply every due effect (of one owner). Returns how many were applied.

        Where an event or an effect raises, the others are applied all the same, and the first error is raised
        at the end; an effect whose event raised waits on. Called from within an effect, while another thread is
        here, or while a stream captures, it applies nothing: what it publishes and gives back is no part of a graph,
        and an event must not be asked within a capture.
        """
        if not self._queues or is_capturing() or not self._applying.acquire(blocking=False):
            return 0
        errors: list[BaseException] = []
        try:
            waiting = self._listed(owner)
            applied = self._apply(waiting, _passed(waiting, errors), errors)
        finally:
            self._applying.release()
        if errors:
            try:
                raise errors[0]
            finally:  # or the error would hold its own traceback, and with it the callers' handles
                del errors, waiting
        return applied

    def owners(self) -> list[object]:
        """Return whose effects wait."""
        with self._lock:
            return list(self._queues)

    def is_broken(self) -> bool:
        """Whether effects wait, and none of them for an event that has merely not passed yet."""
        listed = self._listed(None)
        for waiting in listed:
            with suppress(Exception):
                if not waiting.event.query():
                    return False
        return bool(listed)

    def drop_broken(self, owner: object | None = None) -> None:
        """Give up waiting effects (of one owner) whose event raises: nobody can tell when they would be due.

        For callers who end the handle itself: its pins and pages go back without them.
        """
        for waiting in self._listed(owner):
            try:
                waiting.event.query()
            except Exception:
                self.withdraw(waiting)

    def _listed(self, owner: object | None) -> list[_Waiting]:
        with self._lock:
            if owner is not None:
                return list(self._queues.get(owner, ()))
            listed: list[_Waiting] = []
            for queue in list(self._queues.values()):
                listed.extend(queue)
        return sorted(listed, key=attrgetter("number"))

    def _apply(self, listed: list[_Waiting], passed: set[int], errors: list[BaseException]) -> int:
        applied = 0
        held: set[int] = set()  # owners whose earlier effect waits on
        for waiting in listed:
            if id(waiting.owner) in held:
                continue
            if id(waiting.event) not in passed:
                held.add(id(waiting.owner))
                continue
            if not self._claim(waiting):  # withdrawn since it was listed
                continue
            try:
                waiting.effect()
                applied += not waiting.quiet
            except BaseException as error:
                errors.append(error)
            self._remove(waiting)
        return applied

    def _claim(self, waiting: _Waiting) -> bool:
        """Make an effect the caller's, to apply or to forget; False where it is another's."""
        with self._lock:
            mine = not waiting.claimed
            waiting.claimed = True
        return mine

    def _remove(self, waiting: _Waiting) -> None:
        """Take a claimed effect out; until then its owner's later effects stay behind it."""
        with self._lock:
            queue = self._queues[waiting.owner]
            queue.remove(waiting)
            if not queue:
                del self._queues[waiting.owner]


@dataclass(eq=False)
class _Waiting:
    number: int  # in the order asked for
    owner: object
    event: Event
    effect: Callable[[], None]
    quiet: bool
    claimed: bool = False  # by who applies or withdraws it


def _passed(listed: list[_Waiting], errors: list[BaseException]) -> set[int]:
    """Ids of the events that have passed, asked from the youngest to the oldest, each once."""
    asked: set[int] = set()
    passed: set[int] = set()
    for waiting in reversed(listed):
        event = waiting.event
        if id(event) in asked:
            continue
        asked.add(id(event))
        try:
            if event.query():
                passed.add(id(event))
        except BaseException as error:
            errors.insert(0, error)  # the oldest effect's first
    return passed


class _Passed:
    def query(self) -> bool:
        return True


_PASSED = _Passed()


def _nothing() -> None:
    """Have no effect: only the waiting counts."""
