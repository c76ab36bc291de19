# SPDX-License-Identifier: Apache-2.0
"""A gate before an offload: its pages are not read before an event of the engine has passed."""

from __future__ import annotations

from hybridkv import _core
from hybridkv.deferred import Deferred, Event


class Gate:
    """Opens a transfer once its event has passed, and cancels it where the event fails.

    Notes
    -----
    It is an event itself, and the only one of its transfer: who holds the pages is never left waiting for an event that
    nobody can ask any more.
    """

    def __init__(self, deferred: Deferred, core: _core.Transfer, event: Event) -> None:
        self.error = ""
        self._deferred = deferred
        self._core = core
        self._event = event
        self._waiting = deferred.add(core, self, core.open)

    @property
    def shut(self) -> bool:
        """Whether the event has not passed, as far as is known."""
        return self._deferred.waits(self._core)

    def query(self) -> bool:
        """Whether the transfer need not wait any more."""
        try:
            return bool(self._event.query())
        except Exception as error:
            self.error = f"after: {type(error).__name__}: {error}"
            self._core.cancel()
            return True

    def look(self) -> None:
        """Open it if that is due."""
        if self.shut:
            self._deferred.apply_due(self._core)

    def give_up(self) -> None:
        """Wait no more; the transfer is cancelled by the caller."""
        self._deferred.withdraw(self._waiting)
