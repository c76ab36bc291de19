# SPDX-License-Identifier: Apache-2.0
"""Effects that wait for an event: the engine's kernels may still read or write what a call gives up."""

from __future__ import annotations

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
        self._applying = False

    def __len__(self) -> int:
        return len(self._waiting)

    def run(self, owner: object, after: Event | None, effect: Callable[[], None]) -> None:
        """Apply an effect once ``after`` has passed, and behind the earlier effects of the same owner."""
        self.apply_due()
        if not self.waits(owner) and (after is None or after.query()):
            effect()
        else:
            self._waiting.append(_Waiting(owner, after if after is not None else _PASSED, effect))

    def waits(self, owner: object) -> bool:
        """Whether an effect of this owner still waits."""
        return any(waiting.owner is owner for waiting in self._waiting)

    def apply_due(self) -> int:
        """Apply every due effect, in order per owner. Returns how many were applied.

        An event that raises leaves its effect waiting; an effect that calls back finds nothing to apply.
        """
        if self._applying:
            return 0
        self._applying = True
        applied = 0
        held: list[object] = []
        try:
            for waiting in list(self._waiting):
                if any(waiting.owner is earlier for earlier in held) or not waiting.event.query():
                    held.append(waiting.owner)
                    continue
                self._waiting.remove(waiting)
                waiting.effect()
                applied += 1
        finally:
            self._applying = False
        return applied


@dataclass(eq=False)
class _Waiting:
    owner: object
    event: Event
    effect: Callable[[], None]


class _Passed:
    def query(self) -> bool:
        return True


_PASSED = _Passed()
