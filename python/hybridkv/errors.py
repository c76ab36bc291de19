# SPDX-License-Identifier: Apache-2.0
"""Errors: one class per thing a caller can act on, each with its context as attributes.

A false hit is never an error: it is a verdict with a reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any

from hybridkv.frozen_mapping import FrozenMapping
from hybridkv.printed import printable

_LONGEST_TEXT = 2000  # characters of a value that a message shows
_DEEPEST_PLAIN = 8  # containers in one another


class HybridKVError(Exception):
    """Base of all errors of this package.

    Parameters
    ----------
    field : str
        The argument or the field of a spec that was refused.
    expected : object
        What was expected there.
    got : object
        What came.
    **context : object
        Further facts, kept as attributes.

    Notes
    -----
    Where one of these is raised, nothing has changed. Errors can be pickled and copied; a value that is not plain
    data travels as its text. The message is one line that can be printed: of what came, other characters are escapes.
    What objects of the caller raise while they are read (a mapping's items, an iterator,
    an event) passes as it is; nothing has changed then either.
    """

    def __init__(self, field: str = "", expected: object = "", got: object = "", **context: object) -> None:
        self.field = field
        self.expected = expected
        self.got = got
        self.context = dict(context)
        for name, value in context.items():
            setattr(self, name, value)
        extra = "".join(f"; {name}={_text(value, repr)}" for name, value in context.items())
        super().__init__(printable(f"{field}: expected {_text(expected, str)}, got {_text(got, str)}{extra}"))

    def __reduce__(self) -> tuple[Any, ...]:
        expected, got = _portable(self.expected), _portable(self.got)
        context = {name: _portable(value) for name, value in self.context.items()}
        return _again, (type(self), self.field, expected, got, context)


def _again(kind: type[HybridKVError], field: str, expected: object, got: object, context: Any) -> HybridKVError:
    return kind(field, expected, got, **context)


def _portable(value: object) -> object:
    """Return plain data, and values of this package that hold nothing else, as they are; all else as its text."""
    return value if _is_plain(value, 0) else _text(value, repr)


def _is_plain(value: object, depth: int) -> bool:
    kind = type(value)
    if kind in (type(None), bool, int, float, complex, str, bytes):
        return True
    if depth > _DEEPEST_PLAIN:
        return False
    if kind in (tuple, list, set, frozenset):
        return all(_is_plain(item, depth + 1) for item in value)  # type: ignore[attr-defined]
    if kind in (dict, FrozenMapping):
        return all(_is_plain(part, depth + 1) for item in value.items() for part in item)  # type: ignore[attr-defined]
    if not kind.__module__.startswith("hybridkv."):
        return False
    if isinstance(value, Enum):
        return True
    if not dataclasses.is_dataclass(value):
        return False
    return all(_is_plain(getattr(value, f.name), depth + 1) for f in dataclasses.fields(value))


def _text(value: object, show: Any) -> str:
    """Text of a value whose own code may fail: an error about it must not become another error."""
    try:
        text = str(show(value))
    except Exception:  # such as an int of more digits than Python prints
        return f"<{type(value).__name__}>"
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."


class SpecError(HybridKVError):
    """A field of a :class:`~hybridkv.CacheSpec` or of one of its groups is not legal."""


class UnsupportedModel(HybridKVError):
    """A model configuration that is not known; nothing is guessed from shapes."""


class ArgumentError(HybridKVError, ValueError):
    """An argument of a call is not legal."""


class StaleIdentity(ArgumentError):
    """Keys, or a fill, of weights that were replaced (:meth:`HybridCache.update_identity`); make the keys anew.

    Attributes
    ----------
    fields : tuple of str
        Fields of the identity that have a value which was replaced; empty where it is a fill of before.
    """

    fields: tuple[str, ...] = ()


class NotAdmitted(HybridKVError):
    """Admission refused a request, and cancelled the lease it came with: whoever waits holds nothing.

    Attributes
    ----------
    reason : str
        "requests" (the cap on requests), "combinations" (the cap on live combinations of groups), "watermark" (it
        waits for the high one), "pages" (does not fit now), "lease" (would fit without the pages that its own lease
        pins: match fewer or none) or "never" (more than a pool has).
    retry : bool
        Whether it may fit later; False where it never can.
    pool : str or None
        Name of the group whose pool is short; None where it is not one group's.
    needed : int or None
        Pages of it that the request may hold at a time (:func:`~hybridkv.worst_pages`), beside what it has of its
        lease.
    """

    reason: str = ""
    retry: bool = True
    pool: str | None = None
    needed: int | None = None


class OutOfPages(HybridKVError):
    """A pool has not enough free pages; nothing was taken.

    Attributes
    ----------
    pool : str
        Name of the group, or "blocks" where no descriptor is free.
    needed, free : int
        Pages asked for and pages there.
    """

    pool: str
    needed: int
    free: int


class Busy(HybridKVError):
    """Refused while leases, fills or tickets live.

    Attributes
    ----------
    owners : mapping of str to int
        The handles that live: "lease of decode-3" and the like with how many of it, or the kind alone where nobody
        put a name to them. Empty where the refusal was about something else.
    """

    owners: Mapping[str, int] = MappingProxyType({})


class KernelContract(HybridKVError):
    """A kernel refused its inputs; nothing was written.

    Attributes
    ----------
    argument : str
        The argument that was refused, as "out", "pools[1]" or "page_ids['kv']"; the same as ``field``.
    """

    @property
    def argument(self) -> str:
        return self.field


class TierError(HybridKVError):
    """A tier could not do what was asked."""


class RestoreRefused(HybridKVError):
    """An image does not belong where it should be restored.

    Attributes
    ----------
    code : str
        Why, in one word; see :class:`~hybridkv.adapters.transformers.CacheImage`.
    differences : sequence of FieldDiff
        Every fact that differs where the code is "format", else empty.
    """

    code: str = ""
    differences: Sequence[Any] = ()


class LeaseExpired(HybridKVError):
    """The lease was released, failed, cancelled or revoked before, or its deadline has passed.

    Attributes
    ----------
    owner : str or None
        Who had a lease that was revoked.
    deadline_s : float or None
        Its deadline on the clock of the cache, where it had one.
    """

    owner: str | None = None
    deadline_s: float | None = None


class FillClosed(HybridKVError):
    """The fill was aborted or published before."""


class Closed(HybridKVError):
    """The cache or the ticket was closed before."""
