# SPDX-License-Identifier: Apache-2.0
"""Who holds what: owners of leases, fills and tickets, deadlines of leases, and what was lost."""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hybridkv.coverage import real_number
from hybridkv.errors import ArgumentError, LeaseExpired
from hybridkv.texts import name_of

if TYPE_CHECKING:
    from hybridkv.deferred import Deferred

KINDS = ("lease", "fill", "ticket")  # in the order of the core's counts of live handles
LEAKS_KEPT = 256  # the youngest; the metrics count them all

Size = tuple[int, int]  # tokens, pages


@dataclass(frozen=True)
class Holder:
    """A handle that holds pages, or a number of them that nobody put a name to.

    Attributes
    ----------
    what : str
        "lease", "fill" or "ticket".
    owner : str or None
        Who holds it; None for all of a kind without an owner, taken together.
    count : int
        Handles; 1 where there is an owner.
    tokens, pages : int or None
        What it covers, and the pages that it pins or has taken. None where there is no owner.
    deadline_s : float or None
        When its time is up, on the clock of the cache.
    waits : bool
        Whether it has ended and only events keep its pages.
    """

    what: str
    owner: str | None
    count: int = 1
    tokens: int | None = None
    pages: int | None = None
    deadline_s: float | None = None
    waits: bool = False


@dataclass(frozen=True)
class Leak:
    """A handle that was garbage collected while it was open.

    Attributes
    ----------
    what : str
        "lease", "fill" or "ticket".
    owner : str or None
        Who held it; None where no name was given.
    tokens, pages : int
        What it covered, and the pages that it pinned or had taken.
    """

    what: str
    owner: str | None
    tokens: int
    pages: int


class Named:
    """A handle with an owner. It does not keep the handle's core alive."""

    __slots__ = ("core", "ended", "size", "terms", "what")

    def __init__(self, what: str, core: weakref.ref[Any], size: Callable[[Any], tuple[Size, bool] | None]) -> None:
        self.what = what
        self.core = core
        self.size = size
        self.terms: tuple[str, float | None] = ("", None)  # owner, deadline: replaced as one
        self.ended: str | None = None  # what a revocation said


class Holders:
    """The handles of a cache that have an owner, and the leaks of all.

    Notes
    -----
    Any thread may call. Leases are lent and revoked under one lock, so that a deadline that was put off is seen
    by the revocation that comes after. A handle may be collected at any moment, within these calls too: what that
    does (:meth:`leaked`, and an entry that leaves with its core) are single steps that need no lock.
    """

    def __init__(self, clock: Callable[[], float], deferred: Deferred) -> None:
        if not callable(clock):
            raise ArgumentError("clock", "a function that returns seconds", clock)
        self._clock = clock
        self._deferred = deferred
        self._named: dict[weakref.ref[Any], Named] = {}
        self._leaks: deque[Leak] = deque(maxlen=LEAKS_KEPT)
        self._lock = threading.RLock()

    def name(self, what: str, core: Any, owner: str, size: Callable[[Any], tuple[Size, bool] | None]) -> Named:
        """Give a handle an owner.

        Parameters
        ----------
        what : str
            One of `KINDS`.
        core : object
            What lives as long as the handle holds anything; it can be referred to weakly.
        owner : str
            The name.
        size : callable
            From the core: its tokens and pages, and whether only events keep them; None where it holds nothing.
        """
        named = self._named
        reference = weakref.ref(core, lambda gone: named.pop(gone, None))
        entry = Named(what, reference, size)
        entry.terms = (owner, None)
        named[reference] = entry
        return entry

    # -- leases ------------------------------------------------------------------------------------

    def lend(self, entry: Named, owner: str, deadline_s: float | None) -> None:
        """Set owner and deadline of a lease that is open."""
        with self._lock:
            self._check_ended(entry)
            entry.terms = (owner, deadline_s)

    def deadline(self, deadline_s: object) -> float | None:
        """Return a deadline that lies ahead.

        Raises
        ------
        ArgumentError
            No number, or a time that is not after now.
        """
        if deadline_s is None:
            return None
        when, now = seconds("deadline_s", deadline_s), self.now()
        if when <= now:
            raise ArgumentError("deadline_s", f"a time after now ({now}) on the cache's clock", deadline_s)
        return when

    def check(self, entry: Named) -> None:
        """Raise LeaseExpired where a lease was revoked, or its time is up, which ends it here."""
        deadline_s = entry.terms[1]
        late = deadline_s is not None and entry.ended is None and self.now() >= deadline_s
        with self._lock:
            if late and (core := entry.core()) is not None and entry.terms[1] == deadline_s:
                self._revoke(entry, core, f"one whose deadline {deadline_s} has passed")
            self._check_ended(entry)

    def revoke(self, owner: str | None, now: float | None) -> list[Holder]:
        """End the open leases of an owner (of anyone) whose deadline has passed at `now` (None: whatever it is)."""
        revoked = []
        with self._lock:
            for entry in list(self._named.values()):
                label, deadline_s = entry.terms
                core = entry.core()
                if entry.what != "lease" or core is None or (owner is not None and label != owner):
                    continue
                if now is not None and (deadline_s is None or now < deadline_s):
                    continue
                by = "revoked" if now is None else f"whose deadline {deadline_s} has passed"
                holder = _holder(entry, core)
                if holder is not None and self._revoke(entry, core, f"one {by}"):
                    revoked.append(holder)
        return revoked

    def now(self) -> float:
        """Time on the cache's clock, in seconds."""
        return self._clock()

    def drop(self, core: Any) -> None:
        """Drop the pins of a settled lease, once every event given for work that reads them has passed."""
        if self._deferred.waits(core):
            self._deferred.add(core, None, core.drop)
        else:
            core.drop()

    def _revoke(self, entry: Named, core: Any, what_happened: str) -> bool:
        if not core.revoke():
            return False
        entry.ended = what_happened
        self.drop(core)
        return True

    def _check_ended(self, entry: Named) -> None:
        if entry.ended is not None:
            owner, deadline_s = entry.terms
            expected = "a lease neither revoked nor past its deadline"
            raise LeaseExpired("lease", expected, entry.ended, owner=owner, deadline_s=deadline_s)

    # -- reports -----------------------------------------------------------------------------------

    def live(self, counts: Sequence[int]) -> list[Holder]:
        """Every handle with an owner, then each kind's others, of the core's counts of live handles."""
        found = []
        for entry in list(self._named.values()):
            core = entry.core()
            if core is not None and (holder := _holder(entry, core)) is not None:
                found.append(holder)
        found.sort(key=lambda holder: (KINDS.index(holder.what), holder.owner or ""))
        for what, count in zip(KINDS, counts, strict=False):
            unnamed = count - sum(holder.what == what for holder in found)
            if unnamed > 0:
                found.append(Holder(what, None, unnamed))
        return found

    def owners(self, counts: Sequence[int]) -> dict[str, int]:
        """Live handles by "kind of owner", or by kind alone where nobody put a name to them."""
        owners: Counter[str] = Counter()
        for holder in self.live(counts):
            owners[holder.what if holder.owner is None else f"{holder.what} of {holder.owner}"] += holder.count
        return dict(owners)

    def leaked(self, what: str, owner: str | None, size: Size) -> None:
        """Report a handle that was collected open."""
        self._leaks.append(Leak(what, owner, *size))

    def leaks(self) -> list[Leak]:
        """Return the youngest reports, oldest first."""
        return list(self._leaks)


def label(owner: object) -> str:
    """Return an owner's name.

    Raises
    ------
    ArgumentError
        No text, an empty one, or one that UTF-8 cannot encode.
    """
    return name_of("owner", owner)


def seconds(field: str, value: object) -> float:
    """Return a time in seconds.

    Raises
    ------
    ArgumentError
        No number, or an integer that no float is near.
    """
    number = real_number(value)
    if number is None or number != number:
        raise ArgumentError(field, "a time in seconds", value)
    try:
        return float(number)
    except OverflowError:
        raise ArgumentError(field, "a time in seconds, below 2^1024", value) from None


def _holder(entry: Named, core: Any) -> Holder | None:
    size = entry.size(core)
    if size is None:
        return None
    (tokens, pages), waits = size
    owner, deadline_s = entry.terms
    return Holder(entry.what, owner, 1, tokens, pages, deadline_s, waits)
