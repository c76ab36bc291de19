# SPDX-License-Identifier: Apache-2.0
"""Effects that wait for an event: the engine's kernels may still read or write what a call gives up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from hybridkv.errors import ArgumentError


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
    """
    if after is None or callable(getattr(after, "query", None)):
        return after  # type: ignore[return-value]
    raise ArgumentError("after", "None or an object with query() -> bool", after)


class Deferred:
    """Effects in the order they were asked for, each applied once its event has passed.

    The library has no thread of its own here: :meth:`apply_due` is called by ``cache.poll()``, by ``reserve``
    when it is short of pages, and by the next call on the same object.
    """

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []
        self._applying = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def due(self, owner: object, after: Event | None) -> bool:
        """Tell whether an effect asked for now is due: its event has passed, and nothing of its owner waits.

        To be asked before the caller changes anything: an event that raises does so here.
        """
        self.apply_due(owner)
        return (after is None or after.query()) and not self.waits(owner)

    def add(self, owner: object, after: Event | None, effect: Callable[[], None]) -> None:
        """Keep an effect until its event has passed, behind the earlier effects of the same owner."""
        self._waiting.append(_Waiting(owner, after if after is not None else _PASSED, effect))

    def run(self, owner: object, after: Event | None, effect: Callable[[], None]) -> None:
        """Apply an effect at once where it is due, else keep it."""
        if self.due(owner, after):
            effect()
        else:
            self.add(owner, after, effect)

    def waits(self, owner: object) -> bool:
        """Whether an effect of this owner still waits, or is being applied."""
        return any(waiting.owner is owner for waiting in list(self._waiting))

    def apply_due(self, owner: object | None = None) -> int:
        """Apply every due effect (of one owner), in order per owner. Returns how many were applied.

        Where an event or an effect raises, the others are applied all the same, and the first error is raised
        at the end; an effect whose event raised waits on. Called from within an effect, or while another
        thread is here, it applies nothing.
        """
        if not self._waiting or not self._applying.acquire(blocking=False):
            return 0
        applied = 0
        held: list[object] = []
        errors: list[BaseException] = []
        try:
            for waiting in list(self._waiting):
                if owner is not None and waiting.owner is not owner:
                    continue
                try:
                    if any(waiting.owner is earlier for earlier in held) or not waiting.event.query():
                        held.append(waiting.owner)
                        continue
                except BaseException as error:
                    held.append(waiting.owner)
                    errors.append(error)
                    continue
                try:
                    waiting.effect()
                    applied += 1
                except BaseException as error:
                    errors.append(error)
                self._waiting.remove(waiting)
        finally:
            self._applying.release()
        if errors:
            try:
                raise errors[0]
            finally:  # or the error would hold its own traceback, and with it the callers' handles
                del errors, held, waiting
        return applied

    def drop_broken(self, owner: object | None = None) -> None:
        """Give up waiting effects (of one owner) whose event raises: nobody can tell when they would be due.

        For callers who end the handle itself: its pins and pages go back without them.
        """
        for waiting in list(self._waiting):
            if owner is not None and waiting.owner is not owner:
                continue
            try:
                waiting.event.query()
            except Exception:
                self._waiting.remove(waiting)


@dataclass(eq=False)
class _Waiting:
    owner: object
    event: Event
    effect: Callable[[], None]


class _Passed:
    def query(self) -> bool:
        return True


_PASSED = _Passed()
